"""Prioritized replay under attack: bad input, wrong owners, exceptions midway, and threads."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers import refused
from optional import need
from prioritized_cases import (
    NUMBER,
    Array,
    assert_nodes_are_sums,
    prioritized,
    sampler_of,
    weights_of,
    with_priorities,
)
from threads import run_together
from views import sample_sequences

from cpprb_like import (
    NotEnoughDataError,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from cpprb_like.buffers import Mixture, _replay
from cpprb_like.compat.cpprb import _prioritized as buffer_module
from cpprb_like.samplers import Prioritized, PrioritySampler, RankBased, Uniform
from cpprb_like.samplers import _prioritized as sampler_module
from cpprb_like.typing import FieldSpec

NAN, INF = math.nan, math.inf
LONG = np.longdouble
MASKED = np.ma.MaskedArray([1.0, 2.0], mask=[True, False])
SOURCES = {module.__file__ for module in (_replay, sampler_module, buffer_module)}
BAD_SCHEDULE: list[Callable[[float], Any]] = [
    lambda _: NAN,
    lambda _: -1.0,
    lambda _: "0.4",
    lambda _: None,
    lambda _: True,
]

# ---- priorities --------------------------------------------------------------------------

# Two priorities each, the type of the error, and words of the message.
BAD_PRIORITIES: list[tuple[Any, type[Exception], list[str]]] = [
    ([1.0, NAN], ValueError, ["priorities[1]", "finite", "nan"]),
    (np.array([NAN, 1.0]), ValueError, ["priorities[0]", "finite", "nan"]),
    (np.array([[1.0], [NAN]], np.float32), ValueError, ["priorities[1]", "nan"]),
    (np.array([1.0, NAN], np.float16), ValueError, ["priorities[1]", "nan"]),
    ([1.0, INF], ValueError, ["priorities[1]", "inf"]),
    (np.array([1.0, INF]), ValueError, ["priorities[1]", "inf"]),
    ([1.0, -INF], ValueError, ["priorities[1]", "-inf"]),
    ([1.0, -1e-300], ValueError, ["priorities[1]", "at least 0"]),
    ([-1, 1], ValueError, ["priorities[0]", "-1"]),
    (np.array([1.0, -5e-324]), ValueError, ["priorities[1]", "at least 0"]),
    ([1.0, sys.float_info.max], ValueError, ["priorities[1]", "too large", "alpha"]),
    (np.array([LONG("1e400"), LONG(1)]), ValueError, ["priorities[0]", "inf"]),
    ([1.0], ValueError, ["priorit", "2", "1"]),
    ([1.0, 2.0, 3.0], ValueError, ["priorit", "2", "3"]),
    (1.0, ValueError, ["priorit", "2", "1"]),
    ([], ValueError, ["priorit", "2", "0"]),
    ([[1.0, 2.0, 3.0]], ValueError, ["priorities", "(1, 3)"]),
    (np.ones((2, 1, 1)), ValueError, ["priorities", "(2, 1, 1)"]),
    (np.ones((0, 3)), ValueError, ["priorities", "(0, 3)"]),
    ([[1.0], [2.0, 3.0]], ValueError, ["priorities"]),
    ([True, False], TypeError, ["priorities", "True"]),
    (np.array([True, True]), TypeError, ["priorities"]),
    (["1", "2"], TypeError, ["priorities", "'1'"]),
    ("12", TypeError, ["priorities", "'12'"]),
    ([1j, 2.0], TypeError, ["priorities", "1j"]),
    ([None, 1.0], TypeError, ["priorities", "None"]),
    ([10**30, 1], TypeError, ["priorities"]),
    ({1.0, 2.0}, TypeError, ["priorities"]),
    ({"a": 1.0}, TypeError, ["priorities"]),
    (object(), TypeError, ["priorities"]),
    (np.array([1, 2], "M8[s]"), TypeError, ["priorities"]),
    (MASKED, TypeError, ["priorities", "masked"]),
]


@pytest.mark.parametrize(("bad", "error", "words"), BAD_PRIORITIES, ids=lambda v: repr(v)[:30])
@pytest.mark.parametrize("call", ["update", "add", "add_where", "add_converted"])
def test_bad_priorities_are_refused_and_nothing_has_changed(
    call: str, bad: Any, error: type[Exception], words: list[str]
) -> None:
    """Each call says what is wrong with which priority, and leaves rows, tree and draws alone."""
    rb = prioritized(10, 1.0, n_envs=2)
    rb.add(x=[0, 1], priorities=[3.0, 4.0])
    rb.sample(3)
    rb.add(x=[2, 3])
    with refused(rb, error, *words):
        if call == "update":
            rb.update_priorities([0, 1], bad)
        elif call == "add":
            rb.add(x=np.array([7, 8]), priorities=bad)
        elif call == "add_where":
            rb.add_where([True, False], x=[7, 8], priorities=bad)
        else:
            rb.add(x=[7.0, 8], priorities=bad)


def test_none_are_no_priorities_of_an_update() -> None:
    """``None`` means the default in ``add`` only."""
    rb = with_priorities([1.0, 2.0])
    with refused(rb, TypeError, "priorities", "None"):
        rb.update_priorities([0, 1], None)  # type: ignore[arg-type]
    with refused(rb, TypeError, "indexes", "None"):
        rb.update_priorities(None, [1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["name", "missing", "shape", "value", "position"])
@pytest.mark.parametrize("where", [False, True])
def test_a_failed_add_changes_no_priority(bad: str, where: bool) -> None:
    """Whatever is wrong with the fields, good priorities beside them have no effect."""
    rb = prioritized(10, n_envs=2)
    rb.add(x=[0, 1])
    wrong: dict[str, dict[str, Any]] = {
        "name": {"y": 1},
        "shape": {"x": [[1, 2, 3]]},
        "value": {"x": [1, NAN]},
    }
    fields: dict[str, Any] = {"x": [2, 3], "priorities": [50.0, 60.0], **wrong.get(bad, {})}
    if bad == "missing":
        del fields["x"]
    position = [1] if bad == "position" else []
    with refused(rb, (TypeError, ValueError)):
        if where:
            rb.add_where([True, True], *position, **fields)
        else:
            rb.add(*position, **fields)
    assert rb.get_max_priority() == 1.0


def test_a_value_that_raises_when_it_is_read_changes_nothing() -> None:
    """An exception out of a caller's object goes through, and the buffer is as it was."""

    class Broken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
            raise KeyError("broken")

    rb = with_priorities([1.0, 2.0])
    calls: list[Callable[[], object]] = [
        lambda: rb.add(x=1, priorities=Broken()),
        lambda: rb.add(x=Broken(), priorities=3.0),
        lambda: rb.update_priorities(Broken(), [1.0]),
        lambda: rb.update_priorities([0], Broken()),
    ]
    for call in calls:
        with refused(rb, (KeyError, ValueError)):
            call()


class Doing:
    """An array-like that does something when it is read."""

    def __init__(self, values: Any, action: Callable[[], object]) -> None:
        self.values, self.action = values, action

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        self.action()
        return np.asarray(self.values)


def test_arguments_that_change_the_buffer_while_they_are_read() -> None:
    """Adding or clearing from within an argument leaves a sound buffer; checks come after it."""
    rb = with_priorities([1.0, 2.0, 3.0])
    rb.add(x=9, priorities=Doing([5.0], rb.clear))
    assert weights_of(rb).tolist() == [5.0, 0.0, 0.0]
    rb.add(x=9, priorities=Doing([7.0], lambda: rb.add(x=[1, 1, 1])))
    assert_nodes_are_sums(rb)
    assert sorted(weights_of(rb).tolist()) == [5.0, 5.0, 7.0]
    with pytest.raises(IndexError, match=r"indexes\[0\]"):
        rb.update_priorities(Doing([2], rb.clear), [1.0])
    assert not weights_of(rb).any()
    assert sampler_of(rb).rows.total == 0.0


# ---- indexes -----------------------------------------------------------------------------

MISALIGNED = np.zeros(17, np.uint8)[1:].view(np.uint64)
BAD_INDEXES: list[tuple[Any, type[Exception], list[str]]] = [
    ([0, 4], IndexError, ["indexes[1]", "0 to 3", "4"]),
    ([9, 0], IndexError, ["indexes[0]", "9"]),
    ([0, 10], IndexError, ["indexes[1]", "10"]),
    ([0, -1], IndexError, ["indexes[1]", "-1"]),
    (np.array([0, -1], np.int8), IndexError, ["indexes[1]", "-1"]),
    ([0, 2**62], IndexError, ["indexes[1]", str(2**62)]),
    (np.array([0, 2**63], np.uint64), IndexError, ["indexes[1]", str(2**63)]),
    (np.array([0, 2**64 - 1], np.uint64), IndexError, ["indexes[1]", str(2**64 - 1)]),
    ([0, 2**64], TypeError, ["indexes"]),
    ([0.5, 1.0], TypeError, ["indexes", "0.5"]),
    (np.array([np.nan, 1.0]), TypeError, ["indexes"]),
    ([True, False], TypeError, ["indexes", "True"]),
    (np.array([True, False]), TypeError, ["indexes"]),
    ([None, 0], TypeError, ["indexes", "None"]),
    (["0", "1"], TypeError, ["indexes", "'0'"]),
    (slice(2), TypeError, ["indexes", "slice"]),
    ({0, 1}, TypeError, ["indexes"]),
    ([0], ValueError, ["index", "2", "1"]),
    (0, ValueError, ["index", "2", "1"]),
    ([0, 1, 2], ValueError, ["index", "2", "3"]),
    ([], ValueError, ["index", "2", "0"]),
    ([[0, 1]], ValueError, ["indexes", "(1, 2)"]),
    (np.zeros((2, 1, 1), int), ValueError, ["indexes", "(2, 1, 1)"]),
    ([[0], [1, 2]], ValueError, ["indexes"]),
    (np.ma.MaskedArray([0, 1], mask=[True, False]), TypeError, ["indexes"]),
    (np.ma.MaskedArray(np.array([0, 1], "u8"), mask=[True, False]), TypeError, ["indexes"]),
]


@pytest.mark.parametrize(("bad", "error", "words"), BAD_INDEXES, ids=lambda v: repr(v)[:30])
@pytest.mark.parametrize("check_for_update", [False, True])
def test_bad_indexes_are_refused_and_nothing_has_changed(
    check_for_update: bool, bad: Any, error: type[Exception], words: list[str]
) -> None:
    """Of a call with one bad index no priority is set, and the message names the index."""
    rb = prioritized(9, 1.0, check_for_update=check_for_update)
    rb.add(x=[0, 1, 2, 3])
    rb.sample(2)
    if check_for_update and isinstance(bad, list) and bad in ([9, 0], [0, 10]):
        rb = prioritized(100, 1.0, check_for_update=True)  # 9 and 10 are no handles there
        rb.add(x=[0, 1, 2, 3])
    with refused(rb, error, *words):
        rb.update_priorities(bad, [50.0, 60.0])


def test_a_slot_without_a_step_has_no_priority() -> None:
    """Absent rows cannot be given a weight: it is an ``IndexError`` that says so."""
    rb = prioritized(6, n_envs=2)
    rb.add_where([True, False], x=[0, 1])
    with refused(rb, IndexError, "indexes[1]", "holds a step", "got 1"):
        rb.update_priorities([0, 1], [2.0, 3.0])
    assert set(rb.sample(50)["x"].tolist()) == {0}


def test_a_handle_of_the_future_is_refused() -> None:
    """Numbers that no row has had yet are no handles."""
    rb = prioritized(4, check_for_update=True)
    rb.add(x=np.arange(6))
    last = int(rb.sample(100)["indexes"].max())
    rb.update_priorities([last], [1.0])
    with refused(rb, IndexError, "indexes[0]", str(last + 1)):
        rb.update_priorities([last + 1], [1.0])


def test_every_integer_dtype_and_layout_of_indexes() -> None:
    """Signed, unsigned, swapped, strided, misaligned and read-only indexes are read right."""
    rb = with_priorities([1.0] * 9)
    for number, dtype in enumerate(["i1", "u1", "i2", ">u2", "i4", "u4", "i8", "u8", ">u8", ">i4"]):
        indexes = np.array([7, 0, 2, 0])[::2].astype(dtype)
        rb.update_priorities(indexes, [number + 2.0, number + 3.0])
        assert weights_of(rb).tolist() == [1, 1, number + 3, 1, 1, 1, 1, number + 2, 1]
    rb.update_priorities(np.arange(16, dtype=np.uint64)[::8], [3, 4])
    rb.update_priorities(MISALIGNED, [5, 6])
    frozen = np.array([4], np.uint64)
    frozen.flags.writeable = False
    rb.update_priorities(frozen, np.array([8.0, 9.0])[1:])
    assert weights_of(rb).tolist() == [6, 1, 11 + 1, 1, 9, 1, 1, 11, 4]


def test_arguments_are_not_written_to() -> None:
    """Indexes and priorities belong to the caller."""
    rb = with_priorities([1.0, 2.0, 3.0])
    indexes, priorities = np.array([2, 0], np.uint64), np.array([5.0, 6.0])
    rb.update_priorities(indexes, priorities)
    rb.add(x=[1, 2], priorities=priorities)
    rb.sample(3)
    assert indexes.tolist() == [2, 0]
    assert priorities.tolist() == [5.0, 6.0]
    priorities[:] = 100.0
    assert rb.sample(300)["weights"].min() > 0
    assert sorted(weights_of(rb).tolist()) == [5.0, 5.0, 6.0]


def test_tensors_are_priorities_and_indexes() -> None:
    """What the learner has in PyTorch can be handed over as it is."""
    torch = need("torch", "make test-torch")
    rb = with_priorities([1.0, 2.0, 3.0])
    rb.update_priorities(torch.tensor([2, 0]), torch.tensor([[5.0], [6.0]]))
    rb.add(x=1, priorities=torch.tensor(7.0))
    assert weights_of(rb).tolist() == [7.0, 2.0, 5.0]
    with refused(rb, ValueError, "priorities[0]"):
        rb.update_priorities(torch.tensor([0]), torch.tensor([NAN]))


# ---- draws that cannot be ------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("replace", [True, False])
def test_an_empty_buffer_draws_nothing(n: int, replace: bool) -> None:
    """As a uniform buffer: an error, before the first row and after a ``clear``."""
    rb = prioritized(5)
    with refused(rb, NotEnoughDataError, "empty"):
        rb.sample(n, replace=replace)
    rb.add(x=[1, 2])
    rb.clear()
    with refused(rb, NotEnoughDataError, "empty"):
        rb.sample(n, replace=replace)
    rb.add(x=3)
    assert rb.sample(1)["x"].tolist() == [3]


@pytest.mark.parametrize("replace", [True, False])
def test_nothing_is_drawn_when_all_priorities_are_zero(replace: bool) -> None:
    """With ``eps=0`` it is an error that says so, and one priority mends it."""
    rb = with_priorities([0.0, 0.0, 0.0])
    with refused(rb, NotEnoughDataError):
        rb.sample(2, replace=replace)
    rb.update_priorities([1], [5e-324])
    batch = rb.sample(1, replace=replace)
    assert (batch["x"].tolist(), batch["weights"].tolist()) == ([1], [1.0])


BAD_BETAS: list[tuple[Any, type[Exception]]] = [
    (-0.1, ValueError),
    (NAN, ValueError),
    (INF, ValueError),
    (True, TypeError),
    ("0.4", TypeError),
    (1j, TypeError),
    ([0.4], TypeError),
    (np.array([0.4, 0.4]), TypeError),
    *((schedule, (ValueError, TypeError)[i > 1]) for i, schedule in enumerate(BAD_SCHEDULE)),
]


@pytest.mark.parametrize(("beta", "error"), BAD_BETAS, ids=repr)
def test_a_bad_beta_is_refused(beta: Any, error: type[Exception]) -> None:
    """In the call nothing is drawn; in the sampler it is refused where that can be known."""
    rb = with_priorities([1.0, 2.0])
    with refused(rb, error, "beta"):
        rb.sample(3, beta)
    assert sampler_of(rb).draws == 0
    if not callable(beta):
        with pytest.raises(error, match="beta"):
            Prioritized(beta=beta)


@pytest.mark.parametrize("bad", [-1, 1.5, "3", None, 2**70])
def test_a_bad_batch_size_is_refused(bad: Any) -> None:
    """As in a uniform buffer."""
    rb = with_priorities([1.0, 2.0])
    with refused(rb, (TypeError, ValueError, MemoryError)):
        rb.sample(bad)


# ---- declarations ------------------------------------------------------------------------

BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(
        ({name: value}, error, name)
        for name in ("alpha", "eps")
        for value, error in [
            (-0.1, ValueError),
            (NAN, ValueError),
            (INF, ValueError),
            (True, TypeError),
            ("0.6", TypeError),
            (1j, TypeError),
            ([0.6], TypeError),
            (lambda _: 0.6, TypeError),
        ]
    ),
    ({"weights": "some"}, ValueError, "weights"),
    ({"weights": None}, ValueError, "weights"),
    ({"weights": np.ones(2)}, ValueError, "weights"),
    ({"max_priority": "ever"}, TypeError, "max_priority"),
    ({"weights_dtype": "f2"}, ValueError, "weights_dtype"),
    ({"weights_dtype": int}, ValueError, "weights_dtype"),
    ({"weights_dtype": "foo"}, ValueError, "weights_dtype"),
    ({"gamma": 1.0}, TypeError, "gamma"),
]


@pytest.mark.parametrize(("options", "error", "word"), BAD_OPTIONS, ids=lambda v: repr(v)[:40])
def test_bad_options_are_refused(
    options: dict[str, Any], error: type[Exception], word: str
) -> None:
    """The message names the option; the buffer hands its own options on."""
    with pytest.raises(error, match=word):
        Prioritized(**options)
    if {"alpha", "eps"} & options.keys():
        with pytest.raises(error, match=word):
            PrioritizedReplayBuffer(10, NUMBER, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 1.0, "eps": 1e308},
        {"alpha": 1.0, "eps": 1e306},
        {"alpha": 2000.0, "eps": 1.0},
        {"alpha": 1e300, "eps": 1e-4},
    ],
    ids=str,
)
def test_weights_of_new_rows_that_the_tree_cannot_sum_are_refused(options: Any) -> None:
    """At the construction, not at a draw that finds an infinite sum."""
    with pytest.raises(ValueError, match=r"eps.*at most"):
        PrioritizedReplayBuffer(1000, NUMBER, **options)


@pytest.mark.parametrize("name", ["priorities", "weights", "indexes"])
def test_fields_cannot_have_the_names_of_its_columns(name: str, tmp_path: Path) -> None:
    """They are refused before a file or a sampler is touched."""
    sampler = Prioritized()
    with pytest.raises(ValueError, match=f"env_dict.*{name}"):
        PrioritizedReplayBuffer(
            10, {"x": {}, name: {}}, sampler=sampler, mmap_prefix=tmp_path / "rows"
        )
    assert list(tmp_path.iterdir()) == []
    rb = PrioritizedReplayBuffer(10, NUMBER, sampler=sampler)
    rb.add(x=1)
    assert len(rb.sample(2)["weights"]) == 2


def test_a_column_of_a_plain_buffer_is_never_shadowed() -> None:
    """The sampler declares its columns, so a field of such a name is refused with the buffer."""
    with pytest.raises(ValueError, match=r"\['weights'\] are names of columns"):
        ReplayBuffer(3, {"weights": {}}, sampler=Prioritized())


@pytest.mark.parametrize("name", ["alpha", "eps", "check_for_update"])
def test_a_sampler_comes_in_place_of_its_options(name: str) -> None:
    """Options beside a sampler would be ignored, so they are refused."""
    sampler = Prioritized()
    with pytest.raises(TypeError, match=name):
        PrioritizedReplayBuffer(10, NUMBER, sampler=sampler, **{name: 1})  # type: ignore[arg-type]
    PrioritizedReplayBuffer(10, NUMBER, sampler=sampler)


@pytest.mark.parametrize("bad", [Uniform(), Prioritized, object(), "prioritized", 1], ids=repr)
def test_only_a_sampler_by_priority_will_do(bad: Any) -> None:
    """Another sampler, or the class instead of an object, is refused with the right words."""
    with pytest.raises(TypeError, match="sampler: expected"):
        PrioritizedReplayBuffer(10, NUMBER, sampler=bad)


# ---- owners ------------------------------------------------------------------------------


def test_two_buffers_cannot_share_a_sampler() -> None:
    """The second is refused, and the first goes on."""
    sampler = Prioritized(1.0, eps=0.0)
    rb = PrioritizedReplayBuffer(10, NUMBER, sampler=sampler, seed=0)
    rb.add(x=[0, 1], priorities=[1.0, 3.0])
    for size in (10, 5):
        with refused(rb, ValueError, "another buffer"):
            PrioritizedReplayBuffer(size, NUMBER, sampler=sampler)
    with pytest.raises(ValueError, match="another buffer"):
        sampler.draw(ReplayBuffer(10, NUMBER).ring, 1, rb.rng, replace=True)
    assert weights_of(rb)[:2].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("capacity", [9, 10, 11, 5, 40])
@pytest.mark.parametrize("rows", [0, 10, 25])
def test_a_copied_sampler_begins_anew_in_another_buffer(how: Any, capacity: int, rows: int) -> None:
    """No weight of the old buffer's rows comes along, whatever the sizes."""
    sampler = Prioritized(1.0, eps=0.0)
    old = PrioritizedReplayBuffer(10, NUMBER, sampler=sampler, seed=0)
    old.add(x=np.arange(rows), priorities=np.full(rows, 7.0))
    rb = PrioritizedReplayBuffer(capacity, NUMBER, sampler=how(sampler), seed=0)
    assert not weights_of(rb).any()
    rb.add(x=100)
    assert set(rb.sample(50)["x"].tolist()) == {100}
    assert weights_of(rb).tolist() == [1.0] + [0.0] * (capacity - 1)


def test_a_sampler_without_a_buffer_says_so() -> None:
    """Its methods raise an error and do not crash, also after it has been copied alone."""
    rb = prioritized(5)
    rb.add(x=1)
    calls: list[Callable[[Prioritized], object]] = [
        lambda sampler: sampler.rows,
        lambda sampler: sampler.update_priorities([0], [1.0]),
        lambda sampler: sampler.get_max_priority(),
        lambda sampler: sampler.draw(rb.ring, 1, rb.rng, replace=True),
        lambda sampler: sampler.probabilities_of(np.arange(1)),
    ]
    for sampler in (Prioritized(), copy.deepcopy(sampler_of(rb))):
        for call in calls:
            with pytest.raises(RuntimeError, match="no buffer"):
                call(sampler)


def test_a_buffer_that_was_never_initialised_says_so() -> None:
    """``__new__`` alone gives an object whose calls raise and do not crash."""
    rb = PrioritizedReplayBuffer.__new__(PrioritizedReplayBuffer)
    for fields in ({"x": 1}, {"x": 1, "priorities": 1.0}, {"priorities": None}, {}):
        with pytest.raises(RuntimeError, match="__init__"):
            rb.add(**fields)


# ---- interruptions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda rb: rb.clear(),
        lambda rb: (rb.clear(), rb.add(x=[50, 51])),
        lambda rb: (rb.clear(), rb.add(x=50), rb.sample(1), rb.clear()),
        lambda rb: rb.add(x=np.arange(50, 53)),
        lambda rb: rb.add(x=np.arange(50, 75)),
        lambda rb: rb.sample(3),
        lambda rb: rb.update_priorities([0], [0.0]),
    ],
    ids=["clear", "clear, add", "clear, sample, clear", "add 3", "add 25", "sample", "update"],
)
def test_whatever_another_thread_does_before_priorities_are_noted(meanwhile: Any) -> None:
    """Between the publication of rows and their priorities another call may come: all stays sound.

    The tree used to give weight to slots that a ``clear`` had emptied, and every draw failed then.
    """

    class Interrupted(Prioritized):
        armed = False

        def prepare(self, priorities: Any) -> Any:
            return PrioritySampler.prepare(self, priorities)  # so that ``set_new`` is called

        def set_new(self, *args: Any) -> None:
            if self.armed:
                self.armed = False
                meanwhile(rb)
            super().set_new(*args)

    sampler = Interrupted(1.0, eps=0.0, check_for_update=False)
    rb = PrioritizedReplayBuffer(10, NUMBER, sampler=sampler, seed=0)
    rb.add(x=np.arange(8), priorities=np.ones(8))
    for n in (1, 4, 13):
        sampler.armed = True
        rb.add(x=np.arange(n), priorities=np.arange(n) + 1.0)
        assert not sampler.armed
        assert_nodes_are_sums(rb)
        rb.add(x=99)
        assert_nodes_are_sums(rb)
        batch = rb.sample(60)
        assert set(batch["x"].tolist()) <= set(rb.get_all_transitions()["x"].tolist())
        assert np.isfinite(batch["weights"]).all()


def test_an_update_after_a_clear_brings_nothing_back() -> None:
    """The greatest priority of before is forgotten, though an old batch is the first to come.

    It was noted before the clear was, and so survived it.
    """
    for indexes in ("old", "none"):
        rb = prioritized(4, 1.0, eps=0.0, check_for_update=True)
        rb.add(x=[0, 1], priorities=[7.0, 7.0])
        old = rb.sample(2)["indexes"] if indexes == "old" else np.zeros(0, np.uint64)
        rb.clear()
        rb.update_priorities(old, np.full(len(old), 5.0))
        assert rb.get_max_priority() == 1.0
        rb.add(x=0)
        assert weights_of(rb).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_handles_given_before_priorities_were_noted_die_with_a_clear() -> None:
    """A handle that another thread got for a row just published is never that of a later row.

    Noting the priorities made the rows uncounted again, and a ``clear`` then counted too few.
    """

    class Drawing(Prioritized):
        def set_new(self, *args: Any) -> None:
            handles.extend(rb.sample(100)["indexes"].tolist())
            super().set_new(*args)

    handles: list[int] = []
    sampler = Drawing(1.0, eps=0.0, check_for_update=True)
    rb = PrioritizedReplayBuffer(10, NUMBER, sampler=sampler, seed=0)
    rb.add(x=np.arange(10))
    rb.add(x=10, priorities=1.0)
    rb.clear()
    rb.update_priorities(handles, np.full(100, 9.0))
    rb.add(x=np.arange(10))
    assert set(handles).isdisjoint(rb.sample(100)["indexes"].tolist())
    rb.update_priorities(handles, np.full(100, 9.0))
    assert weights_of(rb).tolist() == [1.0] * 10


class Waiting:
    """A generator that has to be waited for; ``action`` is done during the wait, once."""

    def __init__(self, rng: np.random.Generator, action: Callable[[], object]) -> None:
        self.rng = rng  # which the capsule does not keep alive
        self.capsule = rng.bit_generator.capsule
        self.todo = [action]

    @property
    def bit_generator(self) -> Waiting:
        return self

    lock = bit_generator

    def __enter__(self) -> None:
        while self.todo:
            self.todo.pop()()

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("filled", [6, 25])
@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda rb: rb.clear(),
        lambda rb: (rb.clear(), rb.add(x=np.arange(50, 53))),
        lambda rb: (rb.clear(), rb.add(x=np.arange(50, 53), priorities=[1, 2, 3])),
        lambda rb: rb.add(x=np.arange(50, 53), priorities=np.zeros(3)),
        lambda rb: rb.add(x=np.arange(50, 75), priorities=np.full(25, 4.0)),
        lambda rb: rb.add(x=np.arange(50, 60)),
        lambda rb: rb.update_priorities(np.arange(5), np.zeros(5)),
        lambda rb: rb.sample(3, replace=False),
    ],
    ids=["clear", "clear, add", "clear, add 3", "add 0", "add 25", "add 10", "update", "sample"],
)
def test_whatever_another_thread_does_while_a_draw_waits_for_the_generator(
    meanwhile: Any, filled: int, replace: bool
) -> None:
    """The batch holds rows that were in the buffer together, with weights above 0 and up to 1."""
    rb = prioritized(10, 1.0, eps=0.0, check_for_update=True)
    rb.add(x=np.arange(filled), priorities=np.arange(filled) + 1.0)
    before = set(rb.get_all_transitions()["x"].tolist())
    rb.rng = Waiting(rb.rng, lambda: meanwhile(rb))  # type: ignore[assignment]
    try:
        batch = rb.sample(3, replace=replace)
    except NotEnoughDataError:
        assert np.count_nonzero(weights_of(rb)) < 3
    else:
        assert batch["weights"].min() > 0
        assert batch["weights"].max() <= 1
        after = set(rb.get_all_transitions()["x"].tolist())
        drawn = set(batch["x"].tolist())
        assert drawn <= before or drawn <= after
        assert replace or len(drawn) == 3
    assert_nodes_are_sums(rb)


def add_two(
    rb: PrioritizedReplayBuffer,
    present: tuple[bool, bool] = (True, True),
    times: int = 1,
    **priorities: list[float],
) -> None:
    """Add a row of each of two environments; the field says in which slot it will be."""
    for _ in range(times):
        slots = np.arange(rb.ring.written, rb.ring.written + 2) % rb.capacity
        rb.add_where(present, x=slots, **priorities)


def clear_and_add(rb: PrioritizedReplayBuffer) -> None:
    """Two new rows in place of all."""
    rb.clear()
    add_two(rb, priorities=[5.0, 6.0])


def update_all(rb: PrioritizedReplayBuffer, priority: float) -> None:
    """Set the priority of all rows."""
    slots = rb.ring.present_slots()
    try:
        rb.update_priorities(slots, np.full(len(slots), priority))
    except IndexError:
        assert sampler_of(rb).rows.total < INF  # the rows were cleared meanwhile


def sample_soundly(rb: PrioritizedReplayBuffer, n: int, *, replace: bool = True) -> None:
    """Draw if possible: then rows, indexes, weights and probabilities must fit together."""
    try:
        batch = rb.sample(n, replace=replace)
    except NotEnoughDataError:
        return
    assert (batch["indexes"] % rb.capacity == batch["x"]).all()
    for name in ("weights", "probabilities"):
        assert batch[name].min() > 0
        assert batch[name].max() <= 1


# Another thread may run between any two lines of Python: these stand for it.
ACTIONS: dict[str, Callable[[PrioritizedReplayBuffer], object]] = {
    "clear": lambda rb: rb.clear(),
    "clear, add": clear_and_add,
    "add": lambda rb: add_two(rb, times=6),
    "add with priorities": lambda rb: add_two(rb, times=6, priorities=[0.0, 3.0]),
    "add_where": lambda rb: add_two(rb, (False, True), times=6, priorities=[9.0, 3.0]),
    "update to 0": lambda rb: update_all(rb, 0.0),
    "update to 0.01": lambda rb: update_all(rb, 0.01),
    "sample": lambda rb: sample_soundly(rb, 3),
}
CALLS: dict[str, Callable[[PrioritizedReplayBuffer], object]] = {
    "add": lambda rb: add_two(rb, priorities=[4.0, 7.0]),
    "add_where": lambda rb: add_two(rb, (True, False), priorities=[4.0, 7.0]),
    "sample": lambda rb: sample_soundly(rb, 20),
    "sample distinct": lambda rb: sample_soundly(rb, 3, replace=False),
    "update": lambda rb: update_all(rb, 2.0),
    "get_max_priority": lambda rb: rb.get_max_priority(),
}


def interrupted(
    call: Callable[[PrioritizedReplayBuffer], object],
    action: Callable[[PrioritizedReplayBuffer], object],
    rb: PrioritizedReplayBuffer,
    line: int,
) -> bool:
    """Do the call, and the action before so many lines of the package have run; whether it came."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in SOURCES:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                sys.settrace(None)
                action(rb)
                sys.settrace(trace)
        return trace

    tracer = sys.gettrace()
    sys.settrace(trace)
    try:
        call(rb)
    finally:
        sys.settrace(tracer)
    return left < 0


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_can_be_interrupted_at_every_line(call: str, action: str) -> None:
    """Whatever another thread does there: the call is sound, and so is the buffer afterwards."""
    options: dict[str, Any] = {"probabilities": True}
    for line in range(1000):
        rb = prioritized(11, 1.0, eps=0.0, n_envs=2, check_for_update=True, seed=line, **options)
        for i in range(8):
            add_two(rb, (True, i % 3 != 1), priorities=[i + 1.0, 8.0 - i])
        there = interrupted(CALLS[call], ACTIONS[action], rb, line)
        assert_nodes_are_sums(rb)
        add_two(rb)
        assert_nodes_are_sums(rb)
        assert weights_of(rb)[(rb.ring.written - 1) % 11] > 0
        if not there:
            break
    assert line > 1, "no line of it was seen"


@pytest.mark.parametrize("line", range(25))
def test_weights_belong_to_the_moment_of_the_draw(line: int) -> None:
    """No weight exceeds 1 if another thread lifts the lightest row at any line of a draw.

    The lightest row was looked up after the draw, and was another one by then.
    """
    rb = with_priorities([1.0, 8.0], probabilities=True)
    batch: dict[str, Array] = {}
    interrupted(
        lambda rb: batch.update(rb.sample(90, beta=1.0)),
        lambda rb: rb.update_priorities([0], [4.0]),
        rb,
        line,
    )
    before = {(0, 1.0, 1 / 9), (1, 0.125, 8 / 9)}
    after = {(0, 1.0, 4 / 12), (1, 0.5, 8 / 12)}
    columns = [batch[name].tolist() for name in ("x", "weights", "probabilities")]
    assert set(zip(*columns, strict=True)) in (before, after)


# ---- threads -----------------------------------------------------------------------------

WIDE: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "copies": {"shape": 12, "dtype": "i8"},
}


class Learner:
    """Draws, checks that rows are whole and weights right, and updates."""

    def __init__(self, rb: PrioritizedReplayBuffer, n: int, *, clears: bool = False) -> None:
        self.rb, self.n, self.clears = rb, n, clears
        self.rng = np.random.default_rng(n)

    def __call__(self) -> None:
        try:
            batch = self.rb.sample(self.n)
        except NotEnoughDataError:
            assert self.clears, "rows were lost"
            return
        assert (batch["copies"] == batch["x"][:, None]).all(), "a torn row"
        assert (batch["indexes"] % self.rb.capacity == batch["x"] % self.rb.capacity).all()
        assert batch["weights"].min() > 0
        assert batch["weights"].max() <= 1
        self.rb.update_priorities(batch["indexes"], self.rng.random(self.n) * 9)


class Adder:
    """Adds numbered rows, each in the slot of its number, some with priorities."""

    def __init__(self, rb: PrioritizedReplayBuffer, n: int) -> None:
        self.rb, self.n, self.number = rb, n, 0

    def __call__(self) -> None:
        x = np.arange(self.number, self.number + self.n)
        fields = {"x": x, "copies": np.repeat(x[:, None], 12, axis=1)}
        if self.number % 3:
            self.rb.add(**fields, priorities=x % 5 + 0.5)
        else:
            self.rb.add(**fields)
        self.number += self.n


@pytest.mark.parametrize(("capacity", "large"), [(40, 50), (20_000, 6000)])
@pytest.mark.usefixtures("switch_often")
def test_one_adds_while_two_learn(capacity: int, large: int) -> None:
    """Every batch is whole, every update is sound, and in the end the sums are right."""
    rb = prioritized(capacity, fields=WIDE, check_for_update=True)
    adder = Adder(rb, 4)
    for _ in range(capacity // 4):
        adder()
    run_together(adder, Learner(rb, 16), Learner(rb, large), seconds=0.8)
    assert_nodes_are_sums(rb)
    assert (weights_of(rb) > 0).all()


@pytest.mark.usefixtures("switch_often")
def test_one_clears_while_others_add_and_learn() -> None:
    """Clears at any moment leave no weight behind and no handle that reaches another row."""
    rb = prioritized(30, fields=WIDE, check_for_update=True)
    number = iter(range(10**9))

    def add() -> None:
        x = next(number)
        rb.add(x=x, copies=np.full(12, x), priorities=x % 7 + 0.5)

    def learn() -> None:
        try:
            batch = rb.sample(20)
        except NotEnoughDataError:
            return
        assert (batch["copies"] == batch["x"][:, None]).all(), "a torn row"
        assert np.isfinite(batch["weights"]).all()
        rb.update_priorities(batch["indexes"], np.ones(20))

    def clear() -> None:
        time.sleep(1e-4)
        rb.clear()

    run_together(add, learn, learn, clear, seconds=0.8)
    assert_nodes_are_sums(rb)


@pytest.mark.parametrize("kind", ["uniform", "slots", "handles", "ranks", "sequences", "mixture"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "<i4", ">i8", "<u8", "i8"])
def test_indexes_are_int64_and_come_back_as_any_integers(kind: str, dtype: str) -> None:
    """Since torch cannot count with uint64 and JAX narrows it, uint64 ones were of no use."""
    fields: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": "i8"}}
    sampler = (
        RankBased(1.0) if kind == "ranks" else Prioritized(1.0, check_for_update=kind == "handles")
    )
    rb = PrioritizedReplayBuffer(10, fields, sampler=sampler, seed=0)
    if kind == "uniform":
        plain = ReplayBuffer(10, fields, seed=0)
        plain.add(x=range(4))
        batch = plain.sample(8, indexes=True)
        plain.update(batch["indexes"].astype(dtype), x=-batch["x"])
        assert plain.get_all_transitions()["x"].min() == -batch["x"].max()
        with pytest.raises(IndexError, match=r"indexes\[1\].*-3"):
            plain.update(np.array([1, -3]), x=[1, 1])
    else:
        rb.add(x=range(4))
        if kind == "mixture":
            source: Any = Mixture({"a": rb}, {"a": 1})
            batch = source.sample(8)
        else:
            source = rb
            batch = sample_sequences(rb, 8, 1) if kind == "sequences" else rb.sample(8)
        source.update_priorities(batch["indexes"].astype(dtype), np.full(8, 7.0))
        assert rb.get_max_priority() == 7.0
        with pytest.raises(IndexError, match=r"indexes\[1\].*-3"):
            source.update_priorities(np.array([1, -3]), [1, 1])
    assert batch["indexes"].dtype == np.int64
