"""Views, mixtures, memories of objects, and the fronts of older systems, saved and loaded."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import saved_cases
from combinations import GOALS, N_STEP, STACKS, WITHIN, Cell, build

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer, ReplayMemory, checkpoint
from cpprb_like.buffers import Mixture
from cpprb_like.checkpoint import load
from cpprb_like.compat import coax, cpprb, dqn, keras_gym
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.samplers import Prioritized, Recency, Sampler
from cpprb_like.schedules import Linear
from cpprb_like.views import Advantages, Layer, Packed, Padded

FIELDS: dict[str, Any] = {
    "obs": {"shape": 2},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def filled(cell: Cell, seed: int) -> ReplayBuffer:
    """A buffer of the fields that the layers read."""
    rb = build(cell, seed)
    rng = np.random.default_rng(seed)
    for t in range(90):
        rb.add(
            **{
                field.name: rng.random(field.shape) < 0.1
                if field.dtype.kind == "b"
                else np.full(field.shape, t)
                for field in rb.schema.fields
            }
        )
    return rb


def same(one: Any, two: Any) -> None:
    """Batches, or what a front gives, are equal."""
    if isinstance(one, dict):
        assert list(one) == list(two)
        for name in one:
            same(one[name], two[name])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for first, second in zip(one, two, strict=True):
            same(first, second)
    elif hasattr(one, "__dict__") and not isinstance(one, np.ndarray):
        same(vars(one), vars(two))
    else:
        np.testing.assert_array_equal(one, two)


def test_a_mixture_of_views_goes_on(tmp_path: Path) -> None:
    """Shares, their schedules, the rounding that is due, each source's generator and priorities."""
    demos, online = (
        filled(Cell("Uniform", "rows", "sample"), 1),
        filled(Cell("Prioritized", "rows", "sample"), 2),
    )
    sources = {"demos": demos.view(N_STEP), "online": online.view(N_STEP)}
    mixture = Mixture(
        sources, {"demos": Linear(0.9, 0.1, 5), "online": Linear(0.1, 0.9, 5)}, seed=3
    )
    mixture.sample(7)
    mixture.save(tmp_path / "a")
    twin = copy.deepcopy(mixture)
    for _ in range(3):
        found = load(tmp_path / "a")
        same(copy.deepcopy(twin).sample(9), found.sample(9))
    drawn = mixture.sample(9)
    demos.clear()
    mixture.sample(2)
    mixture.restore(tmp_path / "a")
    assert len(demos) == 60
    same(drawn, mixture.sample(9))
    online.add(
        **{
            name: values[0]
            for name, values in online.sample(1).items()
            if name in online.schema.names
        }
    )
    mixture.save(tmp_path / "a")
    same(mixture.sample(9), load(tmp_path / "a").sample(9))


def test_one_buffer_in_two_views_stays_one(tmp_path: Path) -> None:
    """Who is shared before is shared afterwards."""
    rb = filled(Cell("Uniform", "rows", "sample"), 1)
    mixture = Mixture({"a": rb.view(WITHIN), "b": rb.view(WITHIN)}, {"a": 0.5, "b": 0.5}, seed=0)
    mixture.save(tmp_path)
    found = load(tmp_path)
    one, two = found.sources["a"], found.sources["b"]
    assert one.buffer is two.buffer
    assert one.layers[0] is two.layers[0]


@pytest.mark.parametrize(
    "layout",
    [
        Packed(
            positions="T",
            multiple_of={"T": 4},
            dtypes={"tokens": "i8", "edges": "i4"},
            offsets="i8",
        ),
        Padded(side={"T": "left"}, value={"tokens": -1}, length={"T": 9}),
    ],
    ids=["packed", "padded"],
)
def test_views_of_values_of_any_length_go_on(layout: Layer, tmp_path: Path) -> None:
    """Their options come back as they were; a restore compares them."""
    rb = saved_cases.make("ragged", 30)
    saved_cases.add(rb, 40)
    view = rb.view(layout)
    view.save(tmp_path)
    found = load(tmp_path)
    same(copy.deepcopy(view).sample(9), found.sample(9))
    view.restore(tmp_path)
    same(view.sample(9), load(tmp_path).sample(9))
    with pytest.raises((TypeError, ValueError), match=r"layers"):
        rb.view(Packed(dtypes={"edges": "i4"})).restore(tmp_path)


def test_functions_are_handed_over_again(tmp_path: Path) -> None:
    """They are not in the files; the error says where they were."""
    view = filled(Cell("Uniform", "rows", "sample"), 1).view(GOALS, STACKS)
    view.save(tmp_path)
    with pytest.raises(ValueError, match=r"'layers\.0\.reward_func \(function\)"):
        load(tmp_path)
    functions = {
        "layers.0.reward_func": GOALS.reward_func,
        "layers.0.terminated_func": GOALS.terminated_func,
    }
    found = load(tmp_path, replace=functions)
    drawn = view.sample(8)
    same(drawn, found.sample(8))
    view.restore(tmp_path)
    same(drawn, view.sample(8))
    with pytest.raises(ValueError, match=r"nothing was saved at .'nowhere'"):
        load(tmp_path, replace={**functions, "nowhere": 1})


MISSING: dict[str, Callable[[], Any]] = {
    "layers.0.value": lambda: small().view(Advantages(0.9, 0.8, value=one_each)),
    "sampler.beta": lambda: small(Prioritized(beta=half)),
    "sampler.eta": lambda: small(Recency(half)),
}


def one_each(rows: Any) -> Any:
    """A value of 1 for each row."""
    return np.ones(len(rows["rew"]))


def half(t: float, /) -> float:
    """A schedule of 0.5."""
    del t
    return 0.5


def small(sampler: Sampler | None = None) -> ReplayBuffer:
    """A buffer of three rows."""
    rb = ReplayBuffer(10, FIELDS, next_of="obs", sampler=sampler, seed=0)
    rb.add(obs=np.zeros((3, 2)), next_obs=np.zeros((3, 2)), rew=[1, 2, 3], done=[0, 0, 1])
    return rb


@pytest.mark.parametrize("path", MISSING)
def test_a_missing_function_is_named_before_options_are_checked(path: str, tmp_path: Path) -> None:
    """``lam`` without a value was refused, and a file of a function as ``beta`` was damaged."""
    saved = MISSING[path]()
    saved.save(tmp_path)
    with pytest.raises(ValueError, match=rf"missing here: \['{re.escape(path)} \(function\)'\]"):
        load(tmp_path)
    function = one_each if path.startswith("layers") else half
    same(saved.sample(8), load(tmp_path, replace={path: function}).sample(8))


def test_schedules_are_replaced_by_their_path(tmp_path: Path) -> None:
    """A run goes on with another exponent."""
    sampler = Prioritized(beta=Linear(0.4, 1.0, 100))
    rb = PrioritizedReplayBuffer(10, FIELDS, sampler=sampler, seed=0)
    rb.add(obs=np.zeros((5, 2)), rew=np.arange(5), done=np.zeros(5))
    rb.save(tmp_path)
    found = PrioritizedReplayBuffer.load(tmp_path, replace={"sampler.beta": Linear(0.7, 0.7, 1)})
    assert "beta=Linear(start=0.7, stop=0.7, steps=1)" in repr(found.sampler)


class Newest(Sampler):
    """A sampler of the caller, with state."""

    def __init__(self) -> None:
        self.draws = 0

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        """The newest rows."""
        del rng, replace
        self.draws += 1
        return np.resize(ring.newest_slots(max(n, 1)), n), {}


class Mine(ReplayBuffer):
    """A buffer of the caller."""


def test_classes_of_the_caller(tmp_path: Path) -> None:
    """They are loaded if they are handed over, and never taken for those of the package."""
    rb = Mine(10, FIELDS, sampler=Newest(), seed=0)
    rb.add(obs=np.zeros((5, 2)), rew=np.arange(5), done=np.zeros(5))
    rb.sample(3)
    rb.note = {"run": 7, "score": (1.5, None)}  # type: ignore[attr-defined]
    rb.save(tmp_path)
    with pytest.raises(ValueError, match=r"Newest\" is no class of this package; .* classes="):
        Mine.load(tmp_path)
    found = Mine.load(tmp_path, classes=[Newest])
    assert type(found) is Mine
    assert found.note == {"run": 7, "score": (1.5, None)}  # type: ignore[attr-defined]
    assert isinstance(found.sampler, Newest)
    assert found.sampler.draws == 1
    rb.restore(tmp_path)
    rb.strange = object()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="strange: object cannot be saved"):
        rb.save(tmp_path)


def test_python_objects_by_an_encoder(tmp_path: Path) -> None:
    """Fields of objects, and memories of them."""
    fields = FIELDS | {"info": {"shape": (), "dtype": object}}
    rb = ReplayBuffer(4, fields, seed=0)
    for t in range(6):
        rb.add(obs=[t, t], rew=t, done=False, info={"t": t})
    with pytest.raises(TypeError, match=r"'info' holds Python objects.* encode="):
        rb.save(tmp_path / "rb")
    for _ in range(2):
        rb.save(tmp_path / "rb", encode=pickle.dumps)
        with pytest.raises(TypeError, match="decode="):
            ReplayBuffer.load(tmp_path / "rb")
        found = ReplayBuffer.load(tmp_path / "rb", decode=pickle.loads)
        assert found.get_all_transitions()["info"].tolist() == (
            rb.get_all_transitions()["info"].tolist()
        )
        rb.update([1], info=[{"new": 1}])
    memory = ReplayMemory(3, seed=1)
    for t in range(5):
        memory.append((t, "x"))
    memory.save(tmp_path / "memory", encode=pickle.dumps)
    again = ReplayMemory.load(tmp_path / "memory", decode=pickle.loads)
    assert list(again) == list(memory)
    assert again.sample(9).tolist() == memory.sample(9).tolist()
    memory.clear()
    memory.restore(tmp_path / "memory", decode=pickle.loads)
    assert list(again) == list(memory)


def coax_buffer(kind: Callable[..., Any]) -> Any:
    """A buffer of coax with some transitions."""
    buffer = kind(20) if kind is coax.SimpleReplayBuffer else kind(20, alpha=0.6)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    for t in range(30):
        action = t % 2
        batch = coax.TransitionBatch.from_single(
            s=obs,
            a=action,
            logp=0.0,
            r=1.0,
            done=False,
            gamma=0.9,
            s_next=obs,
            a_next=0,
            logp_next=0.0,
        )
        obs, *_ = env.step(action)
        buffer.add(batch, *([] if kind is coax.SimpleReplayBuffer else [np.ones(1)]))
    return buffer


@pytest.mark.parametrize("kind", [coax.SimpleReplayBuffer, coax.PrioritizedReplayBuffer])
def test_coax(kind: Callable[..., Any], tmp_path: Path) -> None:
    """Its buffers draw the same transitions afterwards."""
    buffer = coax_buffer(kind)
    buffer.sample(4)
    buffer.save(tmp_path)
    found = load(tmp_path)
    drawn = buffer.sample(8)
    same(drawn, found.sample(8))
    buffer.restore(tmp_path)
    same(drawn, buffer.sample(8))


def test_berkeley(tmp_path: Path) -> None:
    """Frames, the step that is open, and what a view shows."""
    buffer = dqn.ReplayBuffer(30, 4, seed=0)
    rng = np.random.default_rng(0)
    for t in range(50):
        index = buffer.store_frame(rng.integers(0, 255, (8, 8, 1), np.uint8))
        buffer.encode_recent_observation()
        buffer.store_effect(index, t % 3, float(t), t % 11 == 0)
    buffer.store_frame(rng.integers(0, 255, (8, 8, 1), np.uint8))
    buffer.save(tmp_path)
    found = load(tmp_path)
    same(buffer.encode_recent_observation(), found.encode_recent_observation())
    same(buffer.sample(5), found.sample(5))


def test_keras_gym(tmp_path: Path) -> None:
    """The environment is not saved: ``restore`` takes the one that is there."""
    env = gymnasium.make("CartPole-v1")
    buffer = keras_gym.ExperienceReplayBuffer(env, 50, bootstrap_n=2, random_seed=1)
    state, _ = env.reset(seed=0)
    for t in range(40):
        following, _, end, _, _ = env.step(t % 2)
        buffer.add(state, t % 2, 1.0, end, episode_id=t // 10)
        state = env.reset()[0] if end else following
    buffer.save(tmp_path)
    drawn = buffer.sample()
    buffer.restore(tmp_path)
    same(drawn, buffer.sample())
    found = load(tmp_path, replace={"env": env})
    same(drawn, found.sample())


def reach(state: Any, action: Any, goal: Any) -> Any:
    """Reward of a goal that was reached."""
    del action
    return (state == goal).all(axis=1)


def test_buffers_that_only_cpprb_has(tmp_path: Path) -> None:
    """Hindsight copies with an open episode; whole episodes."""
    hindsight = cpprb.HindsightReplayBuffer(
        100,
        {"obs": {"shape": 2}, "act": {"shape": ()}, "next_obs": {"shape": 2}},
        max_episode_len=10,
        reward_func=reach,
        prioritized=False,
    )
    for t in range(7):
        hindsight.add(obs=[t, t], act=t, next_obs=[t + 1, t])
    hindsight.save(tmp_path / "h")
    found = load(tmp_path / "h", replace={"reward_func": reach})
    assert found.get_stored_size() == hindsight.get_stored_size()
    selective = cpprb.SelectiveReplayBuffer(5, obs_dim=2)
    for t in range(12):
        selective.add([t, t], t, t, [t, t], t % 4 == 3)
    selective.save(tmp_path / "s")
    same(selective.get_episode(1), load(tmp_path / "s").get_episode(1))


def test_a_recorder_goes_on_with_a_loaded_buffer(tmp_path: Path) -> None:
    """The episode that was open is truncated by the reset, so no return reaches over it."""
    env = gymnasium.make("CartPole-v1")
    recorder = GymnasiumRecorder(env)
    options: dict[str, Any] = {
        "Nstep": {"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs", "discount": True}
    }
    rb = recorder.attach(ReplayBuffer(100, recorder.env_dict, **options, seed=0))
    recorder.reset(seed=0)
    for _ in range(5):
        recorder.step(0)
    rb.save(tmp_path)

    loaded = ReplayBuffer.load(tmp_path)
    assert len(loaded) == 3
    again = GymnasiumRecorder(env)
    assert again.attach(loaded) is loaded
    again.reset(seed=1)
    rows = loaded.get_all_transitions()
    assert rows["rew"].tolist() == [1.75, 1.75, 1.75, 1.5, 1.0]
    assert not rows["terminated"].any()
    again.step(0)
    assert len(loaded) == 5


class Apart:
    """Nothing that can be saved, and no function."""


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    """An object of an unknown class is an error that says where it is."""
    rb = ReplayBuffer(10, FIELDS)
    rb.extra = Apart()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="extra: Apart cannot be saved"):
        rb.save(tmp_path)
    with pytest.raises(TypeError, match="value: expected a buffer, a view or a mixture, got Apart"):
        checkpoint.save(Apart(), tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
