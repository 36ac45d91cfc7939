"""``restore`` of a checkpoint of an object with other options: refused by name, nothing changed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from cpprb_like import Mixture, PrioritizedReplayBuffer, ReplayBuffer, ReplayMemory
from cpprb_like.compat import coax, dqn, keras_gym
from cpprb_like.limiters import Backlog, RateLimited
from cpprb_like.samplers import Prioritized, Recency
from cpprb_like.schedules import Linear
from cpprb_like.typing import NstepSpec
from cpprb_like.views import NStep, Sequences

FIELDS: dict[str, Any] = {
    "obs": {"shape": (2, 4)},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
    "cut": {"shape": (), "dtype": bool},
}
TOKENS: dict[str, Any] = FIELDS | {
    "tokens": {"shape": ("T",)},
    "ends": {"shape": 2, "dtype": "i4", "counts": "T"},
}
NSTEP: NstepSpec = {"size": 3, "gamma": 0.9, "rew": "rew"}


def made(**options: Any) -> ReplayBuffer:
    """A buffer with rows."""
    kind = options.pop("kind", ReplayBuffer)
    rb: ReplayBuffer = kind(40, options.pop("fields", FIELDS), seed=0, **options)
    n = rb.n_envs
    step: dict[str, Any] = {
        field.name: np.zeros((n, *(max(1, length) for length in field.shape)))
        for field in rb.schema.declared
    }
    for t in range(6):
        rb.add(**step | {"rew": np.full(n, t)})
    return rb


BUFFERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "n_envs": ({"n_envs": 4}, {}, r"n_envs: 4 here, 1 in the checkpoint"),
    "fewer_envs": ({}, {"n_envs": 2}, r"n_envs: 1 here, 2 in the checkpoint"),
    "Nstep": ({"Nstep": NSTEP}, {}, r"Nstep: NStepReturns\(size=3, .*\) here, None in"),
    "no_Nstep": ({}, {"Nstep": NSTEP}, r"Nstep: None here, NStepReturns"),
    "gamma": ({"Nstep": NSTEP}, {"Nstep": NSTEP | {"gamma": 0.5}}, r"gamma=0\.9.* here, .*0\.5"),
    "next_of": ({"next_of": "obs"}, {}, r"'next_obs' is not in .*next_of: \['obs'\] here"),
    "stacks": ({"stack_compress": {"obs": 1}}, {}, r"stack_compress: \{'obs': 1\} here, \{\} in"),
    "axis": (
        {"stack_compress": {"obs": 1}}, {"stack_compress": {"obs": 0}},
        r"stack_compress: \{'obs': 1\} here, \{'obs': 0\} in",
    ),
    "truncated": ({"truncated": "cut"}, {"truncated": False}, r"truncated: cut here, False in"),
    "terminated": ({}, {"terminated": "cut"}, r"terminated: None here, cut in the checkpoint"),
    "dtype": ({}, {"fields": FIELDS | {"rew": {"dtype": "f8", "shape": ()}}}, r"'rew': float32"),
    "named_axis": (
        {"fields": TOKENS, "room": {"T": 9}},
        {"fields": TOKENS | {"tokens": {"shape": ("T", 2)}}, "room": {"T": 9}},
        r"'tokens': float32 of shape \('T',\) here, float32 of shape \('T', 2\) in",
    ),
    "no_axis": (
        {"fields": TOKENS, "room": {"T": 9}}, {"fields": FIELDS | {"tokens": {"shape": 3}}},
        r"'ends' is not in the checkpoint; field 'tokens': float32 of shape \('T',\) here, ",
    ),
    "counts": (
        {"fields": TOKENS, "room": {"T": 9}},
        {"fields": TOKENS | {"ends": {"shape": 2, "dtype": "i4"}}, "room": {"T": 9}},
        r"'ends': int32 of shape \(2,\) that counts 'T' here, int32 of shape \(2,\) in",
    ),
    "sampler": ({"sampler": Recency()}, {}, r"sampler: a Uniform was saved, .* to a Recency"),
    "class": ({"kind": PrioritizedReplayBuffer}, {}, r"a ReplayBuffer was saved, .* to a Prio"),
    "priorities": ({}, {"sampler": Prioritized()}, r"sampler: a Prioritized was saved"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUFFERS)
def test_each_option_that_rows_depend_on_is_compared(name: str, tmp_path: Path) -> None:
    """A buffer of four environments became one of one, and its options were gone."""
    here, saved, message = BUFFERS[name]
    made(**saved).save(tmp_path)
    rb = made(**here)
    before = pickle.dumps(rb)
    with pytest.raises((TypeError, ValueError), match=message):
        rb.restore(tmp_path)
    assert pickle.dumps(rb) == before


def test_a_difference_of_several_options_names_all(tmp_path: Path) -> None:
    """And says where the buffer is in a mixture."""

    def mixed(**options: Any) -> Mixture:
        parts = {"a": made(), "b": made(**options)}
        return Mixture(parts, {"a": 1, "b": 1}, seed=0)

    mixed(n_envs=2).save(tmp_path)
    mixture = mixed(Nstep=NSTEP)
    before = pickle.dumps(mixture)
    with pytest.raises(ValueError, match=r"sources\.b: the rows differ: n_envs: 1 .*; Nstep: "):
        mixture.restore(tmp_path)
    assert pickle.dumps(mixture) == before


def test_a_buffer_of_another_capacity_is_restored(tmp_path: Path) -> None:
    """It keeps its own, with the newest rows."""
    rb = ReplayBuffer(100, FIELDS, n_envs=2, Nstep=NSTEP, seed=0)
    for t in range(30):
        rb.add(obs=np.zeros((2, 2, 4)), rew=[t, t], done=[0, 0], cut=[0, 0])
    rb.save(tmp_path)
    other = ReplayBuffer(20, FIELDS, n_envs=2, Nstep=NSTEP, seed=0)
    other.restore(tmp_path)
    assert (other.capacity, other.n_envs, other.is_Nstep(), len(other)) == (20, 2, True, 20)


def test_a_buffer_of_other_rooms_is_restored(tmp_path: Path) -> None:
    """It keeps its own, with the newest rows whose items fit."""
    rb = ReplayBuffer(100, TOKENS, room={"T": 90}, seed=0)
    for t in range(30):
        step = {"obs": np.zeros((2, 4)), "rew": t, "done": 0, "cut": 0, "ends": [0, 1]}
        rb.add(**step, tokens=np.full(3, t))
    rb.save(tmp_path)
    other = ReplayBuffer(20, TOKENS, room={"T": 17}, seed=0)
    other.restore(tmp_path)
    other.check()
    rows = other.get_all_transitions()
    assert (other.capacity, other.schema.rooms) == (20, {"T": 17})
    assert rows["rew"].tolist() == [25, 26, 27, 28, 29]
    assert (rows["tokens"] == rows["rew"][:, None]).all()


def shares(*names: str) -> Mixture:
    """A mixture of buffers of these names."""
    return Mixture({name: made() for name in names}, dict.fromkeys(names, 1.0), seed=0)


def berkeley(size: int = 30, length: int = 4) -> dqn.ReplayBuffer:
    """Berkeley's buffer with frames."""
    buffer = dqn.ReplayBuffer(size, length, seed=0)
    for _ in range(5):
        buffer.store_effect(buffer.store_frame(np.zeros((4, 4, 1), np.uint8)), 0, 0.0, False)
    return buffer


ENV = gymnasium.make("CartPole-v1")
OTHERS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "layer": (
        lambda: made().view(NStep(3, 0.9)), lambda: made().view(NStep(5, 0.9)),
        r"layers: \(.*NStep.*\) here, .* in the checkpoint",
    ),
    "layers": (
        lambda: made().view(NStep(3, 0.9)), lambda: made().view(NStep(3, 0.9), Sequences(2)),
        "layers: ",
    ),
    "source": (lambda: made().view(NStep(2)), made, r"a ReplayBuffer was saved, .* to a View"),
    "sources": (
        lambda: shares("a", "b"), lambda: shares("a", "c"),
        r"sources: \['a', 'b'\] here, \['a', 'c'\] in the checkpoint",
    ),
    "source_class": (
        lambda: Mixture({"a": made().view(NStep(2))}, {"a": 1.0}),
        lambda: Mixture({"a": made()}, {"a": 1.0}),
        r"sources\.a: a ReplayBuffer was saved, which cannot be given to a View",
    ),
    "limited": (
        lambda: RateLimited(made(n_envs=2), Backlog(9)), lambda: RateLimited(made(), Backlog(9)),
        r"buffer: the rows differ: n_envs: 2 here, 1 in",
    ),
    "memory": (lambda: ReplayMemory(5), lambda: ReplayMemory(9), r"max_size: 5 here, 9 in"),
    "dqn": (berkeley, lambda: berkeley(length=2), r"frame_history_len: 4 here, 2 in"),
    "dqn_size": (berkeley, lambda: berkeley(20), r"size: 30 here, 20 in"),
    "keras_gym": (
        lambda: keras_gym.ExperienceReplayBuffer(ENV, 50, bootstrap_n=2),
        lambda: keras_gym.ExperienceReplayBuffer(ENV, 50), r"bootstrap_n: 2 here, 1 in",
    ),
    "coax": (
        lambda: coax.SimpleReplayBuffer(20), lambda: coax.SimpleReplayBuffer(30),
        r"capacity: 20 here, 30 in",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_views_mixtures_and_fronts_compare_theirs(name: str, tmp_path: Path) -> None:
    """Layers and sources of the checkpoint replaced the present ones in silence."""
    here, saved, message = OTHERS[name]
    saved().save(tmp_path, encode=pickle.dumps)
    thing = here()
    with pytest.raises((TypeError, ValueError), match=message):
        thing.restore(tmp_path, decode=pickle.loads)


def test_parameters_of_samplers_and_schedules_are_state(tmp_path: Path) -> None:
    """They are restored, as before; rows do not depend on them."""
    saved = made(sampler=Prioritized(alpha=0.3, beta=Linear(0.4, 1.0, 10)))
    saved.save(tmp_path)
    rb = made(sampler=Prioritized())
    sampler = rb.sampler
    rb.restore(tmp_path)
    assert rb.sampler is sampler
    assert repr(sampler) == repr(saved.sampler)
