"""The hooks of samplers: buffers call them, and ``check_sampler`` tries them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import refused

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import ColumnSpec, Mixture
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, PrioritySampler, RankBased, Sampler, Uniform
from cpprb_like.testing import check_sampler
from cpprb_like.typing import FieldSpec
from cpprb_like.views import NStep, Sequences

FIELDS: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": "i8"}, "rew": {"shape": ()}}


class ByAge(Sampler):
    """A sampler of a user, with weights of its own: the older, the likelier."""

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The weights."""
        return {"weights": ColumnSpec(np.dtype(np.float64), ())}

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        """Draw rows by age."""
        among = ring.present_slots()
        if not replace and n > len(among):
            raise NotEnoughDataError(f"{n} of {len(among)}")
        ages = self.row_weights(among)
        slots = rng.choice(among, n, replace=replace, p=ages / ages.sum())
        return slots, {"weights": 1.0 / (1.0 + slots)}

    def row_weights(self, slots: Any) -> Any:
        """Something for each row."""
        return 1.0 + slots


def filled(sampler: Sampler, rows: int = 5, **options: Any) -> ReplayBuffer:
    """A buffer with a few rows."""
    make: Any = PrioritizedReplayBuffer if sampler.has_priorities else ReplayBuffer
    rb: ReplayBuffer = make(10, FIELDS, sampler=sampler, seed=0, **options)
    rb.add(x=np.arange(rows), rew=np.zeros(rows))
    return rb


# ---- columns ---------------------------------------------------------------------------------


def test_columns_that_a_sampler_declares_are_those_of_a_batch() -> None:
    """Of a buffer and a view, empty batches included; weights need no priorities."""
    rb = filled(ByAge())
    sources: list[Any] = [rb, rb.view(NStep(2))]
    for source in sources:
        assert not source.has_priorities
        assert source.columns["weights"] == (np.float64, ())
        for n in (0, 3):
            batch = source.sample(n)
            assert set(batch) == set(source.columns)
            for name, (dtype, shape) in source.columns.items():
                assert (batch[name].dtype, batch[name].shape) == (dtype, (n, *shape))


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (ByAge, "weights"),
        (lambda: Prioritized(probabilities=True), "probabilities"),
        (Prioritized, "indexes"),
    ],
)
def test_a_field_cannot_have_the_name_of_a_column_of_the_sampler(sampler: Any, name: str) -> None:
    """It is refused when buffer or learner are made; it was when the first batch was drawn."""
    fields = FIELDS | {name: {}}
    with pytest.raises(ValueError, match=rf"env_dict: \['{name}'\] are names of columns that"):
        ReplayBuffer(10, fields, sampler=sampler())
    if sampler is not ByAge:
        with (
            SharedReplay(10, fields, writers=1) as replay,
            pytest.raises(ValueError, match=rf"env_dict: \['{name}'\] are names of columns that"),
        ):
            replay.learner(sampler())


def test_columns_that_are_no_dict_are_refused() -> None:
    """A method ``columns``, which is no property, is an error when the buffer is made."""

    class Method(Uniform):
        def columns(self) -> Any:  # type: ignore[override]  # what is tested
            return {}

    with pytest.raises(TypeError, match=r"Uniform\(\): expected columns by name, got <bound"):
        ReplayBuffer(10, FIELDS, sampler=Method())


class Refuses(Uniform):
    """Says before a draw that there will be none."""

    columns = {"mark": ColumnSpec(np.dtype(np.int64), ())}  # noqa: RUF012

    def check_draw(self, n: int, *, replace: bool) -> None:
        """No draw is one that this sampler makes."""
        raise NotEnoughDataError(f"none of {n}")


@pytest.mark.parametrize(
    ("sampler", "message"),
    [(Refuses, "none of 5"), (ByAge, None)],
)
def test_a_mixture_asks_every_sampler_before_it_draws(sampler: Any, message: Any) -> None:
    """What a sampler says of a draw or of its columns leaves the generators where they are."""
    one, other = filled(Uniform()), filled(sampler())
    mixture = Mixture({"one": one, "other": other}, {"one": 1, "other": 1}, seed=0)
    before = [repr(rb.rng.bit_generator.state) for rb in (one, other)]
    with refused(other, (NotEnoughDataError, ValueError), message or "'other'"):
        mixture.sample(10)
    assert [repr(rb.rng.bit_generator.state) for rb in (one, other)] == before


def sample(rb: ReplayBuffer, _: Path) -> object:
    """Three rows."""
    return rb.sample(3)


def sample_windows(rb: ReplayBuffer, _: Path) -> object:
    """Three rows of a view, which has fewer rows to begin at."""
    return rb.view(Sequences(2)).sample(3)


def draw_ahead(rb: ReplayBuffer, _: Path) -> object:
    """Three rows that a thread draws."""
    with rb.batches(3, prefetch=1) as batches:
        return next(batches)


def explain(rb: ReplayBuffer, _: Path) -> object:
    """What is known of a row."""
    return rb.explain(3)


def add(rb: ReplayBuffer, _: Path) -> object:
    """One row with a priority."""
    return rb.add(x=1, done=False, priorities=1.0)


SLOTS = np.zeros(3, np.intp)
WRONG: list[Any] = [None, 3, np.zeros((7, 7)), [[]]]
NOT_DRAWN: list[Any] = [
    *WRONG, (None, {}), (3, {}), (SLOTS,), (SLOTS[:, None], {}), (SLOTS * 1.0, {}), (SLOTS, None),
    (SLOTS, 3), (SLOTS.astype(SLOTS.dtype.newbyteorder()), {}),
]  # fmt: skip
# Where a hook is called: the name of the hook, the call, and what the hook must not return.
CALLED: list[tuple[str, Callable[[ReplayBuffer, Path], object], list[Any]]] = [
    ("nbytes_for", sample, [None, [[]], -1]),
    ("draw", sample, [*NOT_DRAWN, (SLOTS + 20, {})]),
    ("draw", sample_windows, [*NOT_DRAWN, (SLOTS + 20, {})]),
    ("draw", lambda rb, _: rb.sample(3, indexes=True), NOT_DRAWN),
    ("draw_starts", sample_windows, NOT_DRAWN),
    ("draw_state", draw_ahead, WRONG),
    ("row_weights", explain, WRONG[1:]),
    ("row_weights", lambda rb, folder: rb.report(folder / "report"), WRONG[1:]),
    ("row_priorities", explain, WRONG[1:]),
    ("get_max_priority", lambda rb, _: rb.get_max_priority(), [None, [[]]]),
    ("read_priorities", add, [None, 3, [[]]]),
    ("prepare", add, WRONG),
]


@pytest.mark.parametrize(
    ("hook", "call", "wrong"),
    [(hook, call, wrong) for hook, call, every in CALLED for wrong in every],
)
def test_what_a_hook_returns_is_refused_with_the_names_of_sampler_and_hook(
    hook: str, call: Callable[[ReplayBuffer, Path], object], wrong: Any, tmp_path: Path
) -> None:
    """Errors were those of NumPy and of the interpreter, and named neither."""
    is_of_priorities = hasattr(PrioritySampler, hook) and not hasattr(Sampler, hook)
    base = ByWeight if is_of_priorities else Sampler if hook == "draw" else Plain
    cls = type("Mine", (base,), {hook: lambda *_, **__: wrong, "__repr__": lambda _: "Mine()"})

    def use() -> None:
        fields: Any = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
        rb = ReplayBuffer(20, fields, sampler=cls(), seed=0)
        rb.add(x=range(20), done=[False] * 20)
        call(rb, tmp_path)

    errors = (TypeError, ValueError, IndexError)
    with pytest.raises(errors, match=rf"^Mine\(\)\.{hook}: (slots: )?expected "):
        use()


@pytest.mark.parametrize("column", [None, [1, 2, 3], np.array(1.0)])
@pytest.mark.parametrize("call", [sample, sample_windows])
def test_a_column_that_is_no_array_of_rows_is_named(
    call: Callable[[ReplayBuffer, Path], object], column: Any, tmp_path: Path
) -> None:
    """With its sampler and type; slots may have gaps between them."""
    drawn: Any = (SLOTS, {"age": column})
    cls = type("Mine", (Sampler,), {"draw": lambda *_, **__: drawn, "__repr__": lambda _: "Mine()"})
    rb = ReplayBuffer(20, {"x": {"shape": ()}, "done": {"shape": ()}}, sampler=cls(), seed=0)
    rb.add(x=range(20), done=[0] * 20)
    with pytest.raises(TypeError, match=r"Mine\(\)\.draw: column 'age': .*, got"):
        call(rb, tmp_path)
    drawn = (np.arange(12)[1:7:2], {})
    assert np.asarray(rb.sample(3)["x"]).tolist() == [1, 3, 5]


@pytest.mark.parametrize("drawn", [(SLOTS[:1], {}), (SLOTS, {"a": SLOTS[:1]})])
@pytest.mark.parametrize("call", [sample, sample_windows])
def test_a_sampler_that_draws_too_few_rows_is_named(
    call: Callable[[ReplayBuffer, Path], object], drawn: Any, tmp_path: Path
) -> None:
    """A view said that there were no rows to draw."""
    cls = type("Mine", (Sampler,), {"draw": lambda *_, **__: drawn, "__repr__": lambda _: "Mine()"})
    fields: Any = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    rb = ReplayBuffer(20, fields, sampler=cls(), seed=0)
    rb.add(x=range(20), done=[False] * 20)
    with pytest.raises(ValueError, match=r"^Mine\(\)( drew|: expected 3 values)"):
        call(rb, tmp_path)


# ---- what is kept for rows -------------------------------------------------------------------


def test_check_asks_the_sampler_about_what_it_keeps_for_rows() -> None:
    """``rb.check()`` passes on what ``check_rows`` of a user's sampler finds."""

    class Ill(Uniform):
        def check_rows(self, ring: Any, slots: Any) -> None:
            raise AssertionError(f"{len(slots)} rows of {ring.capacity} are ill")

    with pytest.raises(AssertionError, match="5 rows of 10 are ill"):
        filled(Ill()).check()


@pytest.mark.parametrize(
    ("sampler", "weights", "priorities"),
    [
        (Uniform(), None, None),
        (ByAge(), [2.0, 4.0], None),
        (Prioritized(2.0, eps=0.0), [1.0, 9.0], [1.0, 3.0]),
        (Prioritized(0.0), [1.0, 1.0], None),
        (RankBased(1.0), None, [1.0, 3.0]),
    ],
    ids=repr,
)
def test_weights_and_priorities_of_rows(sampler: Sampler, weights: Any, priorities: Any) -> None:
    """As the sampler tells them; nothing where it keeps none, or none that are known."""
    rb = filled(sampler)
    if rb.has_priorities:
        rb.update_priorities([0, 1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0, 4.0])
    slots = np.array([1, 3])
    found: Any = rb.sampler.row_priorities(slots)
    if priorities is None:
        assert found is None
    else:
        np.testing.assert_allclose(found, priorities)
    if weights is not None:
        found = rb.sampler.row_weights(slots)
        np.testing.assert_allclose(found, weights)


# ---- priorities of new rows ------------------------------------------------------------------


class Doubles(Prioritized):
    """Reads priorities in a unit of its own."""

    def read_priorities(self, priorities: Any) -> Any:
        """Twice what was given."""
        return 2.0 * super().read_priorities(priorities)


class Notes(RankBased):
    """Notes the priorities of new rows."""

    def set_new(self, first: int, clears: int, priorities: Any) -> None:
        """Take a note, and set them."""
        self.noted = first, clears, priorities.tolist()
        super().set_new(first, clears, priorities)


class Later(Notes):
    """Has the hook from its base class."""


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_hook_for_new_priorities_is_called_also_if_the_base_class_needs_none(n_envs: int) -> None:
    """``add`` writes rows and weights in one step, and passed over ``read_priorities``."""
    rb: Any = PrioritizedReplayBuffer(10, FIELDS, sampler=Doubles(1.0), n_envs=n_envs)
    rb.add(x=[1, 2], rew=[0, 0], priorities=[3.0, 4.0])
    np.testing.assert_allclose(rb.sampler.row_priorities(np.arange(2)), [6.0, 8.0])
    for make in (Notes, Later):
        rb = PrioritizedReplayBuffer(10, FIELDS, sampler=make(1.0), n_envs=n_envs)
        rb.add(x=[1, 2], rew=[0, 0], priorities=[3.0, 4.0])
        assert rb.sampler.noted == (0, 0, [3.0, 4.0])
        assert rb.sampler.row_priorities(np.arange(2)).tolist() == [3.0, 4.0]


# ---- check_sampler tries each hook -------------------------------------------------------------


class Plain(Uniform):
    """The samplers below break it."""

    def __repr__(self) -> str:
        return "it"


class ByWeight(Prioritized):
    """The same, of a sampler with priorities."""

    def __repr__(self) -> str:
        return "it"


BROKEN: dict[str, tuple[Callable[[], Sampler], str]] = {}


def breaks(hook: str, promise: str) -> Callable[[Any], Any]:
    """Note which hook a class breaks, and what the test must say of it."""

    def note(cls: Any) -> Any:
        BROKEN[hook] = cls, promise
        return cls

    return note


@breaks("keeps_rows", "says so by keeps_rows; row_weights is an array")
class Keeps(Plain):
    """Keeps weights, and does not say so."""

    def row_weights(self, slots: Any) -> Any:
        return np.ones(len(slots))


@breaks("maps_rows", "what it keeps is in the file; row_priorities: ")
class Maps(ByWeight):
    """Keeps its weights on the heap, and says that they are in the file."""

    def open_in_file(self, ring: Any, memory: Any) -> None:
        self.open(ring)


@breaks("has_priorities", "true of a PrioritySampler, and of no other; got True")
class Claims(Plain):
    """Has no priorities, and says so."""

    has_priorities = True


@breaks("columns", "each draw has such columns; 'age' is not there")
class Declares(Plain):
    """Declares a column that it never gives."""

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        return {"age": ColumnSpec(np.dtype(np.int64), ())}


@breaks("nbytes_for", "nbytes_for is a number of bytes; of 100 rows it is None")
class Sizeless(Plain):
    """Does not know how much it allocates."""

    def nbytes_for(self, capacity: int) -> Any:
        return None


@breaks("open", "what a buffer calls when it is made, and when rows come and go, works; it raised")
class Shut(Plain):
    """Cannot be opened."""

    def open(self, ring: Any) -> None:
        raise ZeroDivisionError


@breaks("open_in_file", "open_in_file draws from a ring as open does")
class InFile(Plain):
    """Draws the oldest row of a file."""

    oldest = False

    def open_in_file(self, ring: Any, memory: Any) -> None:
        self.oldest = True

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, extra = super().draw(ring, n, rng, replace=replace)
        return np.full_like(slots, ring.present_slots()[0]) if self.oldest else slots, extra


@breaks("move", "with the priorities that they had; it raised ValueError")
class Stays(ByWeight):
    """Does not hear that its rows are in other slots."""

    def move(self, slots: Any, ring: Any) -> None:
        pass


class Counting(Plain):
    """Has a column of a count."""

    def __init__(self) -> None:
        self.turn = 0

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, _ = super().draw(ring, n, rng, replace=replace)
        return slots, {"turn": np.full(n, self.turn)}

    def draw_starts(self, starts: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, _ = super().draw_starts(starts, n, rng, replace=replace)
        return slots, {"turn": np.full(n, self.turn)}


@breaks("draw", "slots are in use")
class Outside(Plain):
    """Draws what is not there."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, extra = super().draw(ring, n, rng, replace=replace)
        return slots + ring.stored, extra


@breaks("check_draw", "check_draw raises nothing where a draw works; it raised NotEnoughDataError")
class Pessimist(Plain):
    """Says that there will be no draw."""

    def check_draw(self, n: int, *, replace: bool) -> None:
        raise NotEnoughDataError(f"none of {n}")


@breaks("draw_state", "draw_state has the attributes that a draw changes")
class Untold(Counting):
    """Counts its draws, and does not say so."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        found = super().draw(ring, n, rng, replace=replace)
        self.turn += 1
        return found


@breaks("draw_starts", "draw_starts returns starts only")
class AnyStart(Plain):
    """Takes any row for a start."""

    def draw_starts(self, starts: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, extra = super().draw_starts(starts, n, rng, replace=replace)
        others = np.setdiff1d(starts.ring.present_slots(), starts.slots())
        return np.resize(others, n) if replace and len(others) else slots, extra


@breaks("row_weights", "float64 of shape (n,), at least 0; row_weights is an array of float32")
class Narrow(Plain):
    """Tells weights of another dtype."""

    keeps_rows = True

    def row_weights(self, slots: Any) -> Any:
        return np.ones(len(slots), np.float32)


@breaks("row_priorities", "float64 of shape (n,), at least 0; row_priorities is an array of float")
class Short(Plain):
    """Tells the priority of one row."""

    keeps_rows = True

    def row_priorities(self, slots: Any) -> Any:
        return np.ones(1)


@breaks("check_rows", "finds nothing wrong with a buffer that is sound; it raised none is sound")
class Ill(Plain):
    """Finds fault with every row."""

    def check_rows(self, ring: Any, slots: Any) -> None:
        raise AssertionError("none is sound")


@breaks("check_for_update", "the slots, or with check_for_update the handles, of the drawn rows")
class Slots(ByWeight):
    """Gives slots in place of handles."""

    def __init__(self) -> None:
        super().__init__(check_for_update=True)

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool, beta: Any = None) -> Any:
        slots, extra = super().draw(ring, n, rng, replace=replace, beta=beta)
        return slots, {**extra, "indexes": slots.astype(np.int64)}


@breaks("weights_dtype", "each draw has such columns; 'weights': expected float32")
class Wide(ByWeight):
    """Gives weights of another dtype."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool, beta: Any = None) -> Any:
        slots, extra = super().draw(ring, n, rng, replace=replace, beta=beta)
        return slots, {**extra, "weights": extra["weights"].astype(np.float64)}


@breaks("prepare", "rows have the priorities that add and update_priorities were given")
class Halves(ByWeight):
    """Gives new rows half of their weight."""

    def prepare(self, priorities: Any) -> Any:
        given: Any = super().prepare(priorities)
        return given.rows.beside(given.priorities, given.weights / 2)


@breaks("read_priorities", "read_priorities gives float64 of shape (n,), and ValueError for what")
class Lenient(ByWeight):
    """Takes a priority that is negative."""

    def read_priorities(self, priorities: Any) -> Any:
        return super().read_priorities(np.abs(priorities))


@breaks("set_new", "rows have the priorities that add and update_priorities were given")
class Forgets(ByWeight):
    """Passes over the priorities of new rows."""

    def set_new(self, first: int, clears: int, priorities: Any) -> None:
        pass


@breaks("update_priorities", "rows have the priorities that add and update_priorities were given")
class Fixed(ByWeight):
    """Passes over new priorities."""

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        pass


@breaks("get_max_priority", "new rows have the priority that get_max_priority says; expected [77.0")
class Boasts(ByWeight):
    """Says that new rows have another priority."""

    def get_max_priority(self) -> float:
        return 77.0


def test_every_hook_of_the_base_classes_is_broken_here() -> None:
    """Who declares a hook has ``check_sampler`` try it, and shows here that it does."""
    declared = {name for cls in (Sampler, PrioritySampler) for name in vars(cls)}
    assert set(BROKEN) == {name for name in declared if not name.startswith("_")}


@pytest.mark.once
@pytest.mark.parametrize("hook", BROKEN)
def test_a_hook_that_breaks_its_promise_is_found(hook: str) -> None:
    """The message names the sampler, the promise and what came."""
    make, promise = BROKEN[hook]
    with pytest.raises(AssertionError) as caught:
        check_sampler(make)
    message = " ".join(str(caught.value).split())
    assert message.startswith("it, ")
    assert promise in message, message


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        Plain,
        ByWeight,
        Prioritized,
        Notes,
        lambda: Prioritized(check_for_update=True, probabilities=True, weights_dtype=np.float64),
        lambda: Prioritized(stratified=False),
        lambda: RankBased(check_for_update=True),
    ],
)
def test_samplers_with_all_hooks_keep_their_promises(make: Any) -> None:
    """What the broken ones derive from, and all that this package has with priorities."""
    check_sampler(make)
