"""Reading some of the fields only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import Array

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer

FIELDS: dict[str, Any] = {
    "obs": {"shape": (4, 3), "dtype": "u1"},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": (), "dtype": "f4"},
    "odd": {"shape": (), "dtype": ">f8"},
    "image": {"shape": 300, "dtype": "u1"},
    "object": {"shape": (), "dtype": "O"},
    "done": {"shape": (), "dtype": bool},
}
NSTEP = {"size": 3, "gamma": 0.5, "rew": ["rew", "odd"], "next": "next_obs", "discount": True}
CHOICES: list[Any] = [
    "act",
    "rew",
    ["done", "obs"],
    ("odd", "next_obs"),
    {"image", "object"},
    iter(["next_obs", "rew"]),
    [],
]
KINDS = ["plain", "chained", "several steps", "by priority"]


def filled(kind: str) -> ReplayBuffer:
    """A buffer that has wrapped."""
    options: dict[str, Any] = {"seed": 0, "n_envs": 2}
    fields = dict(FIELDS)
    if kind == "plain":
        fields["next_obs"] = FIELDS["obs"]
    else:
        options |= {"next_of": "obs", "stack_compress": "obs"}
    if kind in ("several steps", "by priority"):
        options["Nstep"] = NSTEP
    made = PrioritizedReplayBuffer if kind == "by priority" else ReplayBuffer
    rb = made(64, fields, **options)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (2, 4, 80), "u1")
    for step in range(70):
        rb.add(
            obs=frames[:, :, step : step + 3],
            next_obs=frames[:, :, step + 1 : step + 4],
            act=[step, -step],
            rew=rng.normal(size=2),
            odd=rng.normal(size=2),
            image=rng.integers(0, 255, (2, 300)),
            object=[str(step), None],
            done=[step % 9 == 8, step % 5 == 4],
        )
    return rb


def assert_part(part: dict[str, Array], whole: dict[str, Array], names: set[str]) -> None:
    """The part holds the fields of these names, and whatever is no field, as the whole does."""
    no_fields = whole.keys() - FIELDS.keys() - {"next_obs"}
    assert part.keys() == names | no_fields
    for name, values in part.items():
        np.testing.assert_array_equal(values, whole[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", CHOICES, ids=range(len(CHOICES)))
def test_some_fields_are_those_of_the_whole_batch(kind: str, fields: Any) -> None:
    """The same rows are drawn, and the fields that are asked for are those of the whole batch."""
    fields = fields if isinstance(fields, str) else list(fields)
    names = {fields} if isinstance(fields, str) else set(fields)
    first, second = filled(kind), filled(kind)
    assert_part(first.sample(30, fields=fields), second.sample(30), names)
    if kind in ("several steps", "by priority"):
        part = first.sample(9, nstep=(1, 3), gamma=0.9, fields=fields)
        assert_part(part, second.sample(9, nstep=(1, 3), gamma=0.9), names)
    whole = second.sample(8)
    out = {name: np.zeros_like(whole[name]) for name in names}
    assert first.sample(8, fields=fields, out=out) is out
    assert_part(out, whole, names)
    assert_part(first.get_all_transitions(fields=fields), second.get_all_transitions(), names)
    for part, whole in zip(first.batches(20, fields=fields), second.batches(20), strict=True):
        assert_part(part, whole, names)
    options: dict[str, Any] = {"indexes": True, "first_only": sorted(names)[:1]}
    part = first.sample_sequences(7, 4, fields=fields, **options)
    assert_part(part, second.sample_sequences(7, 4, **options), names)


@pytest.mark.parametrize(
    ("fields", "error"),
    [("x", ValueError), (["act", "x"], ValueError), (3, TypeError), ([b"act"], TypeError)],
)
def test_what_are_no_fields(fields: Any, error: type[Exception]) -> None:
    """Names that are no fields are refused, with those there are."""
    rb = filled("plain")
    for read in (
        lambda: rb.sample(3, fields=fields),
        lambda: rb.batches(3, fields=fields),
        lambda: rb.get_all_transitions(fields=fields),
        lambda: rb.sample_sequences(3, 2, fields=fields),
    ):
        with pytest.raises(error, match="fields: expected"):
            read()
    with pytest.raises(ValueError, match=r"first_only: expected some of \['act'\], got 'rew'"):
        rb.sample_sequences(3, 2, fields="act", first_only="rew")
