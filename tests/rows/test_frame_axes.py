"""The axis of a stack's frames: read from its shape, checked against the stacks; what all takes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers import refused
from memory import allocated
from numpy.typing import NDArray

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._fields.derived import fits_both_axes, likely_axis
from cpprb_like.samplers import RankBased
from cpprb_like.typing import FieldSpec, NstepSpec

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}
KIB = 2**10


def moving(rows: int, shape: tuple[int, ...], axis: int) -> NDArray[np.uint8]:
    """Stacks of random frames along an axis, each the one before it moved on."""
    depth = shape[axis]
    frame = (*shape[:axis], *shape[axis + 1 :])
    frames = np.random.default_rng(0).integers(0, 256, (rows + depth, *frame), np.uint8)
    return np.array([np.moveaxis(frames[row : row + depth], 0, axis) for row in range(rows)])


def buffer(shape: tuple[int, ...], stacks: Any = "obs", size: int = 200, **options: Any) -> Any:
    """A buffer of stacks and their next ones."""
    fields: dict[str, FieldSpec] = {"obs": {"shape": shape, "dtype": "u1"}}
    return ReplayBuffer(size, fields, next_of="obs", stack_compress=stacks, seed=0, **options)


def fill(rb: Any, stacks: NDArray[np.uint8]) -> Any:
    """Add stacks, of which each leads to the next one."""
    rb.add(obs=stacks[:-1], next_obs=stacks[1:])
    return rb


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((84, 84, 4), 2),
        ((4, 84, 84), 0),  # Gymnasium
        ((4, 84, 84, 3), 0),  # of coloured frames
        ((3, 84, 84, 3), 3),  # of frames of which nobody knows
        ((84, 84, 3, 4), 3),
        ((3, 84, 84, 4), 3),
        ((4, 84, 84, 1), 0),
        ((1, 84, 84, 4), 3),
        ((4, 10, 10), 0),  # of small square frames
        ((10, 10, 4), 2),
        ((4, 128), 0),
        ((17, 4), 1),
        ((4, 300), 0),  # more than a stack may have
        ((4, 3), 1),  # either: cpprb's meaning
        ((2, 10), 1),
        ((32, 84, 84), 2),
        ((300, 4), 1),
        ((8,), 0),
        ((1, 1), 1),
    ],
)
def test_the_shape_tells_the_axis(shape: tuple[int, ...], axis: int) -> None:
    """It is the last axis unless only the first can be that of the frames."""
    assert likely_axis(shape) == axis
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of axes that both fit, see below
        assert buffer(shape, size=2).ring.chains[0].axis == axis


@pytest.mark.parametrize("shape", [(4, 3), (2, 10), (4, 4, 4), (4, 5, 6), (3, 84, 84, 3)])
def test_a_shape_that_does_not_tell_the_axis_is_asked_for(shape: tuple[int, ...]) -> None:
    """A warning says how to name the axis; programs of cpprb go on with the last one.

    A wrong axis only got a warning after 1,000 steps, when all of them were stored whole.
    """
    with pytest.warns(UserWarning, match=r"the first axis or the last .* \{'obs': 0\} takes"):
        rb = buffer(shape, size=2)
    assert rb.ring.chains[0].axis == len(shape) - 1
    for axis in (0, -1):
        assert buffer(shape, {"obs": axis}, size=2).ring.chains[0].axis == axis % len(shape)


@pytest.mark.parametrize(
    "shape", [(4, 84, 84), (84, 84, 4), (4, 10, 10), (10, 10, 4), (4, 12, 20, 3)]
)
def test_shapes_that_tell_the_axis_do_not_warn(shape: tuple[int, ...]) -> None:
    """Square frames and colours tell it where the lengths of the axes do not."""
    assert not fits_both_axes(shape)
    buffer(shape, size=2)


@pytest.mark.parametrize("shape", [(4, 12, 12), (12, 12, 4), (4, 12, 20, 3), (4, 20)])
def test_frames_first_take_what_frames_last_take(shape: tuple[int, ...]) -> None:
    """Gymnasium's frames-first stacks are stored as frames without a declared axis.

    The last axis was taken whatever the shape: nothing followed, and each stack was stored whole.
    """
    axis = likely_axis(shape)
    stacks = moving(150, shape, axis)
    told, given = fill(buffer(shape), stacks), fill(buffer(shape, {"obs": axis}), stacks)
    assert told.nbytes == given.nbytes < 1.3 * 200 * (stacks[0].nbytes / shape[axis] + 16)
    batch = told.get_all_transitions()
    np.testing.assert_array_equal(batch["obs"], stacks[:-1])
    np.testing.assert_array_equal(batch["next_obs"], stacks[1:])


def noise(rows: int, shape: tuple[int, ...] = (4, 6, 6)) -> NDArray[np.uint8]:
    """Stacks that have nothing to do with each other."""
    return np.random.default_rng(0).integers(0, 256, (rows, *shape), np.uint8)


def add_one_by_one(rb: Any, stacks: NDArray[np.uint8]) -> None:
    """Add stacks step by step."""
    for before, after in pairwise(stacks):
        rb.add(obs=before, next_obs=after)


@pytest.mark.parametrize("case", ["wrong axis", "environments in turns", "noise", "plain"])
@pytest.mark.parametrize("adds", ["one by one", "blocks"])
def test_values_that_are_mostly_stored_apart_are_reported_once(case: str, adds: str) -> None:
    """After 1,000 values the next ``add`` warns, names the fields, and adds its rows.

    A buffer of the steps of several environments, without ``n_envs``, took four times the memory
    without a word; and of a wrong axis the first read alone warned.
    """
    shape, axes = ((4, 6, 6), {"obs": 2 if case == "wrong axis" else 0})
    stacks = noise(1300) if case == "noise" else moving(1300, shape, 0)
    fields: dict[str, FieldSpec] = {"obs": {"shape": shape, "dtype": "u1"}}
    rb = ReplayBuffer(2000, fields, next_of="obs", stack_compress=None if case == "plain" else axes)
    following = stacks[1:]
    if case in ("environments in turns", "plain"):  # two that are apart in time
        turns = np.stack([stacks[:650], stacks[650:]], 1)
        stacks, following = turns[:-1].reshape(-1, *shape), turns[1:].reshape(-1, *shape)
    names = "'next_obs' do" if case == "plain" else "'obs'.* do"
    words = rf"\d+ of the first 1\d\d\d values of {names} not follow from the row before.*n_envs="
    step = 1 if adds == "one by one" else 300
    said: list[Any] = []
    for first in range(0, len(following), step):
        rows = slice(first, first + step)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rb.add(obs=stacks[rows][: len(following[rows])], next_obs=following[rows])
        said += caught
    (warning,) = said
    assert re.match(words, str(warning.message))
    assert warning.filename == __file__
    assert rb.get_stored_size() == len(following)
    np.testing.assert_array_equal(rb.get_all_transitions()["next_obs"], following)


@pytest.mark.parametrize("case", ["follow", "few", "static", "episodes", "vector", "half"])
def test_values_that_mostly_follow_are_no_reason_to_warn(case: str) -> None:
    """Few rows, screens that do not change, ends of episodes, stacks that follow now and then."""
    stacks = moving(1500, (4, 6, 6), 0)
    rb = buffer((4, 6, 6), {"obs": 0}, n_envs=3 if case == "vector" else 1, size=3000)
    if case == "few":
        add_one_by_one(rb, noise(990))
    elif case == "static":
        add_one_by_one(rb, np.zeros_like(stacks))
    elif case == "episodes":
        for first in range(0, 1400, 5):
            fill(rb, moving(6, (4, 6, 6), 0) + np.uint8(first % 250))
    elif case == "vector":
        for before, after in pairwise(stacks[:700]):
            rb.add(obs=np.array([before] * 3), next_obs=np.array([after] * 3))
    elif case == "half":
        fill(rb, np.concatenate([noise(400), stacks]))
    else:
        add_one_by_one(rb, stacks)
    rb.add(**{name: values[0] for name, values in rb[:1].items()} if rb.n_envs == 1 else rb[:3])


def test_a_warning_that_is_an_error_changes_nothing() -> None:
    """With warnings as errors one ``add`` raises, and adds no row; the next one adds."""
    rb, stacks = buffer((4, 6, 6), size=3000), noise(1200)
    fill(rb, stacks[:1100])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with refused(rb, UserWarning, "stored by itself"):
            fill(rb, stacks[1100:])
        fill(rb, stacks[1099:])
    assert len(rb) == 1199
    np.testing.assert_array_equal(rb.get_all_transitions()["next_obs"], stacks[1:])


# ------------------------------------------------------------------ what is taken, and what is said

SMALL: dict[str, FieldSpec] = {
    "obs": {"shape": 4},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
IMAGE: dict[str, FieldSpec] = {"obs": {"shape": (12, 12, 4), "dtype": "u1"}, "rew": {"shape": ()}}
NSTEP: NstepSpec = {"size": 3, "rew": "rew"}


def of_kind(kind: str, size: int) -> Any:
    """A buffer."""
    kinds: dict[str, Callable[[], Any]] = {
        "plain": lambda: ReplayBuffer(size, SMALL),
        "n-step": lambda: ReplayBuffer(size, SMALL, Nstep=NSTEP),
        "objects": lambda: ReplayBuffer(size, SMALL | {"info": {"shape": (), "dtype": object}}),
        "prioritized": lambda: PrioritizedReplayBuffer(size, SMALL),
        "handles": lambda: PrioritizedReplayBuffer(size, SMALL, check_for_update=True),
        "ranked": lambda: PrioritizedReplayBuffer(size, SMALL, sampler=RankBased()),
        "next": lambda: ReplayBuffer(size, SMALL, next_of=["obs", "rew"]),
        "stacks": lambda: ReplayBuffer(size, IMAGE, stack_compress="obs"),
        "pairs": lambda: ReplayBuffer(size, IMAGE, next_of="obs", stack_compress="obs"),
        "many": lambda: ReplayBuffer(
            size, IMAGE, n_envs=size // 4, next_of="obs", stack_compress="obs"
        ),
    }
    return kinds[kind]()


KINDS = ["plain", "n-step", "objects", "prioritized", "handles", "ranked", "next"]
STACKED = ["stacks", "pairs", "many"]


def add_noise(rb: Any, rows: int) -> None:
    """Add steps that have nothing to do with each other."""
    rng = np.random.default_rng(0)
    for _ in range(rows // rb.n_envs):
        step: dict[str, Any] = {}
        for field in rb.schema.fields:
            shape = (*((rb.n_envs,) if rb.n_envs > 1 else ()), *field.shape)
            step[field.name] = rng.integers(0, 2, shape).astype(field.dtype)
        rb.add(**step)


def said(text: str) -> int:
    """Bytes of a figure."""
    number, unit = text.rsplit(maxsplit=1)
    return round(float(number) * UNITS[unit])


@pytest.mark.parametrize("rows", [0, 300])
@pytest.mark.parametrize("kind", KINDS + STACKED)
def test_the_table_adds_up_to_nbytes(kind: str, rows: int) -> None:
    """``repr`` counts all that ``nbytes`` counts, field by field.

    What fields of ``next_of`` and ``stack_compress`` keep beside the rows was in ``nbytes`` alone:
    690 KiB in the table of a buffer of 57 MiB.
    """
    rb = of_kind(kind, 200)
    add_noise(rb, rows)
    lines = repr(rb).splitlines()
    figures = [re.search(r"([\d.]+ (?:B|KiB|MiB))$", line) for line in lines[2:]]
    *parts, total = [said(figure[1]) for figure in figures if figure is not None]
    assert len(figures) == len(parts) + 1
    rounded = 0.06 * KIB * len(parts)  # tenths of KiB
    assert abs(sum(parts) - total) <= rounded
    assert abs(total - rb.nbytes) <= 0.06 * KIB
    chained = [chain.name for chain in rb.ring.chains] if rows else []
    assert [name for name in chained if f"(overflow of {name})" not in repr(rb)] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "next"])
def test_nbytes_is_what_python_allocates(kind: str) -> None:
    """A full buffer has allocated ``nbytes``; of Python objects the references count.

    Buffers that keep values aside have reserved memory, which is not seen.
    """

    def full() -> Any:
        rb = of_kind(kind, 1000)
        with warnings.catch_warnings():  # nothing follows from the row before
            warnings.simplefilter("ignore")
            add_noise(rb, 2000)
        rb.sample(1)
        return rb

    nbytes = full().nbytes
    assert nbytes < 2**21  # from there on memory is mapped, which is not seen
    grown = allocated(full)
    assert 0.95 * nbytes < grown < 1.05 * nbytes + 48 * KIB, (grown, nbytes)


def test_what_is_refused_has_the_newest_values_in_its_table() -> None:
    """The newest values of many environments are allocated at once, and count at once."""
    fields: dict[str, FieldSpec] = {"obs": {"shape": (84, 84, 4), "dtype": "u1"}}
    chained = ReplayBuffer(2000, fields, n_envs=2000, next_of="obs")
    plain = ReplayBuffer(2000, fields, n_envs=2000)
    assert chained.nbytes - plain.nbytes >= 2000 * 84 * 84 * 4
