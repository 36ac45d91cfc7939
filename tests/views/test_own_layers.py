"""Layers of the caller: what they compute, what they are refused, and how they go with others."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import check_arrays
from own_layers import FIELDS, Advantages, ReturnsToGo

from cpprb_like import ReplayBuffer, checkpoint, views
from cpprb_like.buffers import Mixture
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, RankBased, Sampler, Uniform
from cpprb_like.views import FrameStacks, Hindsight, Layer, NStep, Rule, Sequences, Windows
from cpprb_like.views._layer import stacks_of

Array = npt.NDArray[Any]
TOKENS: dict[str, Any] = {"ids": {"shape": ("T",)}, "obs": {"shape": 4}, "rew": {"shape": ()}}
TOKENS |= {"value": {"shape": ()}, "next_value": {"shape": ()}, "done": {"shape": ()}}
GAMMA, LAMBDA, HORIZON = 0.9, 0.7, 6


def steps(seed: int, n: int = 90) -> dict[str, Array]:
    """Random steps; ``obs`` has their numbers."""
    rng = np.random.default_rng(seed)
    return {
        "obs": np.arange(n, dtype=np.float32).repeat(3).reshape(n, 3),
        "rew": rng.normal(size=n).astype(np.float32),
        "value": rng.normal(size=n).astype(np.float32),
        "next_value": rng.normal(size=n).astype(np.float32),
        "terminated": rng.random(n) < 0.1,
    }


def twin(values: Mapping[str, Array], first: int) -> tuple[float, float]:
    """The return-to-go and the advantage of a step, by the formulas."""
    total = advantage = 0.0
    for k in range(HORIZON):
        t = first + k
        total += GAMMA**k * float(values["rew"][t])
        goes_on = 1.0 - float(values["terminated"][t])
        delta = values["rew"][t] + GAMMA * values["next_value"][t] * goes_on - values["value"][t]
        advantage += (GAMMA * LAMBDA) ** k * float(delta)
        if values["terminated"][t]:
            break
    return total, advantage


def own() -> tuple[Layer, Layer]:
    """Both layers of the example."""
    return ReturnsToGo(GAMMA, HORIZON), Advantages(GAMMA, LAMBDA, HORIZON)


def check(batch: Mapping[str, Array], values: Mapping[str, Array]) -> None:
    """The columns of a batch of rows are those of the twin."""
    for k, number in enumerate(batch["obs"].reshape(-1, 3)[:, 0].astype(int)):
        total, advantage = twin(values, int(number))
        np.testing.assert_allclose(batch["return_to_go"].ravel()[k], total, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(batch["advantage"].ravel()[k], advantage, rtol=1e-4, atol=1e-4)
        found = batch["lambda_return"].ravel()[k]
        np.testing.assert_allclose(found, advantage + values["value"][number], rtol=1e-4, atol=1e-4)


class Slow(Sampler):
    """A sampler of the caller, without ``draw_starts``."""

    def draw(
        self, ring: Any, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Array, dict[str, Array]]:
        slots = ring.present_slots()
        return rng.choice(slots, n, replace=replace), {}


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased, Slow])
def test_columns_are_those_of_the_formulas(sampler: type[Sampler]) -> None:
    """With samplers of every kind, in a buffer that has wrapped around."""
    values = steps(0)
    rb = ReplayBuffer(60, FIELDS, sampler=sampler(), seed=0)
    rb.add(**values)
    view = rb.view(*own())
    batch = view.sample(40)
    check_arrays(batch)
    check(batch, values)
    assert view.columns["return_to_go"] == (np.dtype(np.float32), ())
    for epoch in view.epoch(7):
        check(epoch, values)
    sequences = rb.view(Sequences(4, across_episodes=True), *own()).sample(9)
    check(sequences, values)


def test_a_mixture_and_a_copy_draw_what_the_view_does() -> None:
    """Pickled and copied too."""
    values = steps(1)
    one, two = (ReplayBuffer(90, FIELDS, seed=seed) for seed in (0, 1))
    one.add(**values)
    two.add(**values)
    views = [rb.view(*own()) for rb in (one, two)]
    check(Mixture({"a": views[0], "b": views[1]}, {"a": 1, "b": 1}, seed=0).sample(20), values)
    twins = [copy.deepcopy(views[0]), pickle.loads(pickle.dumps(views[0]))]
    expected = views[0].sample(8)
    for same in twins:
        for name, found in same.sample(8).items():
            np.testing.assert_array_equal(found, expected[name])


def test_a_learner_draws_what_a_buffer_does() -> None:
    """From every shard."""
    values = steps(2)
    with SharedReplay(200, FIELDS, writers=2) as replay:
        for number in range(2):
            replay.actor(number).add(**values)
        view = replay.learner(Uniform(), seed=0).view(*own())
        check(view.sample(30), values)


class Around(Layer):
    """Needs rows, and makes nothing of them."""

    def __init__(self, before: int, after: int) -> None:
        self.before, self.after = before, after

    def around(self, fields: Any) -> tuple[int, int]:
        """See ``Layer.around``."""
        return self.before, self.after


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize(("before", "after"), [(200, 0), (0, 200), (60, 60), (10**12, 0)])
def test_more_rows_around_than_the_buffer_has_are_refused(
    n_envs: int, before: int, after: int
) -> None:
    """By the layer's name when the view is made, and not by a draw that finds no row."""
    rb = ReplayBuffer(100, FIELDS, n_envs=n_envs, seed=0)
    with pytest.raises(ValueError, match=r"^Around: .* rows .* do not fit into 100 rows$"):
        rb.view(Around(before, after))
    rb.view(Around(100 // n_envs - 1, 0))
    with pytest.raises(ValueError, match=r"^FrameStacks: 101 rows \(100 before a row and 0"):
        rb.view(FrameStacks({next(iter(FIELDS)): 101}))


def test_layers_that_do_not_go_together_are_refused_by_name() -> None:
    """When the view is made."""
    rb = ReplayBuffer(50, {**FIELDS, "goal": {"shape": ()}}, seed=0)
    places: Any = {"goal": "goal", "achieved": "value"}
    goals = Hindsight(lambda at, goal, rows: at * 0, **places)
    bad: list[tuple[tuple[Layer, ...], str]] = [
        ((ReturnsToGo(0.9, 3), goals), r"ReturnsToGo: \['rew'\] are changed by Hindsight"),
        ((goals, Goals(goals.reward_func, **places)), r"'rew'\] are changed by Goals"),
        ((ReturnsToGo(0.9, 3, "reward"),), r"ReturnsToGo\.reads: expected some of the fields"),
        ((ReturnsToGo(0.9, 51),), "ReturnsToGo: 51 rows .* do not fit into 50"),
        ((Replaces("rew", (np.float32, ())), NStep(2)), "n-step returns make the column 'rew' too"),
        ((Replaces("obs", ("f4", (3,))), FrameStacks({"obs": 2})), "makes the column 'obs' too"),
        ((Replaces("mask", (bool, ())), Sequences(2)), "'mask' is a further column of the view"),
        ((ReturnsToGo(0.9, 3), ReturnsToGo(0.9, 4)), "expected one ReturnsToGo"),
    ]
    for layers, message in bad:
        with pytest.raises(ValueError, match=message):
            rb.view(*layers)
    for wrong in (ReturnsToGo, "NStep", None):
        with pytest.raises(TypeError, match="expected NStep, Sequences"):
            rb.view(wrong)  # type: ignore[arg-type]


class Goals(Hindsight):
    """Another kind of layer that changes goals."""


class Replaces(Layer):
    """Makes a column, and of it what ``found`` says."""

    def __init__(self, name: str, spec: Any, found: Any = None) -> None:
        self.name, self.spec, self.found = name, spec, found

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {self.name: self.spec}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> Any:
        del wanted
        return {} if self.found is None else {self.name: self.found(len(windows))}


BAD: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "expected an array for 'rew', got nothing"),
    (lambda n: [0.0] * n, TypeError, "expected an array for 'rew', got list"),
    (lambda n: np.zeros(n + 1), ValueError, r"expected shape \(4,\) for 'rew', got \(5,\)"),
    (lambda n: np.zeros((n, 1)), ValueError, r"expected shape \(4,\)"),
    (lambda n: np.zeros(n, complex), TypeError, "expected float32 for 'rew', got complex128"),
    (lambda n: np.full(n, 1e300), ValueError, "for 'rew': .*1e\\+300"),
]


@pytest.mark.parametrize(("found", "error", "message"), BAD)
def test_what_is_no_column_is_refused(found: Any, error: type[Exception], message: str) -> None:
    """With the name of the layer and of the column."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**steps(0, 10))
    view = rb.view(Replaces("rew", (np.float32, ()), found))
    with pytest.raises(error, match=f"Replaces.fill: {message}"):
        view.sample(4)
    assert view.draws == 0


def test_a_replaced_field_is_cast_and_written_into_the_arrays_of_the_caller() -> None:
    """Also where the layer returns another precision; other fields stay as they are."""
    values = steps(0, 10)
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**values)
    view = rb.view(Replaces("rew", (np.float32, ()), lambda n: np.full(n, 0.25)))
    out = {
        name: np.ones((5, *spec.shape), spec.dtype)
        for name, spec in view.columns.items()
        if name in view.fields
    }
    array = out["rew"]
    view.sample(5, out=out)
    assert out["rew"] is array
    assert array.tolist() == [0.25] * 5
    rows = out["obs"][:, 0].astype(int)
    np.testing.assert_array_equal(out["value"], values["value"][rows])
    assert "rew" not in view.sample(3, fields="value")


class Halves(Layer):
    """Replaces a field, and makes a further column of what it was."""

    def reads(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["value"]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {"value": (np.float32, ()), "whole": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        made = {"value": windows.values["value"] / 2, "whole": windows.values["value"].copy()}
        return {name: made[name] for name in wanted}


@pytest.mark.parametrize("further", [(), (Sequences(3),), (Sequences(3, first_only="value"),)])
def test_a_layer_has_the_values_of_a_field_that_the_batch_leaves_out(
    further: tuple[Layer, ...],
) -> None:
    """A further column is in each batch, so the field that it is made of is read for it."""
    values = steps(0, 10)
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**values)
    view = rb.view(Halves(), *further)
    for names in (None, ["obs"], ["obs", "value"]):
        batch = view.sample(6, fields=names)
        assert ("value" in batch) == (names is None or "value" in names)
        there = batch.get("mask", np.ones(6, bool)).astype(bool)
        rows = batch["obs"][there][:, 0].astype(int)
        np.testing.assert_array_equal(batch["whole"][there], values["value"][rows])


@pytest.mark.parametrize("first_only", ["discount", "rew"])
def test_a_layer_may_make_the_column_discount(first_only: str) -> None:
    """Where no n-step returns do: for all rows of sequences, or for the first ones."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**steps(0, 10))
    layer = Replaces("discount", (np.float32, ()), lambda n: np.full(n, 0.5, np.float32))
    batch = rb.view(layer, Sequences(3, first_only=first_only)).sample(4)
    assert batch["discount"].shape == ((4,) if first_only == "discount" else (4, 3))
    assert set(batch["discount"].ravel().tolist()) <= {0.5, 0.0}


@pytest.mark.parametrize("name", ["indexes", "row_indexes", "weights"])
def test_columns_of_a_view_are_no_layers(name: str) -> None:
    """The column of the layer would be lost where the view writes its own."""
    layer = Replaces(name, (np.float32, ()), lambda n: np.zeros(n, np.float32))
    rb = ReplayBuffer(20, FIELDS, sampler=Prioritized(), seed=0)
    with pytest.raises(ValueError, match=f"Replaces: '{name}' is a further column"):
        rb.view(layer, Sequences(2))
    with SharedReplay(20, FIELDS, writers=1) as replay:
        learner = replay.learner(Prioritized(), seed=0)
        with pytest.raises(ValueError, match=f"column.*'{name}'|'{name}' is a further column"):
            learner.view(layer)


class Declares(Layer):
    """Says what its subclasses do not do."""

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {"rew": (np.float32, ())}


class Between(Replaces):
    """Needs one row and a half."""

    def around(self, fields: Mapping[str, Any]) -> Any:
        del fields
        return 1.5, 0


def test_what_a_layer_says_is_checked() -> None:
    """When the view is made: columns that nothing makes were missing from batches."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    with pytest.raises(TypeError, match=r"Declares: expected a method fill, which makes \['rew'\]"):
        rb.view(Declares())
    with pytest.raises(TypeError, match=r"Between\.around: expected an integer, got 1\.5"):
        rb.view(Between("rew", (np.float32, ())))


@pytest.mark.parametrize(
    "spec", ["f4", (np.float32, 3), (np.float32, (2.0,)), ((np.float32,), (3,))]
)
def test_a_column_that_is_no_column_is_refused(spec: Any) -> None:
    """With the name of the layer: a shape of floats was taken, other errors named none."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    with pytest.raises(TypeError, match=r"Replaces\.columns: expected \(dtype, shape\) of 'more'"):
        rb.view(Replaces("more", spec))


class Speed(Layer):
    """Keeps its promises; a subclass breaks one."""

    def reads(self, fields: Mapping[str, Any]) -> Any:
        del fields
        return ["rew"]

    def columns(self, fields: Mapping[str, Any]) -> Any:
        del fields
        return {"speed": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> Any:
        del wanted
        return {"speed": np.zeros(len(windows), np.float32)}


@pytest.mark.parametrize("wrong", [None, 3, np.zeros((7, 7)), [[]]])
@pytest.mark.parametrize("others", [(), (Sequences(2),)])
@pytest.mark.parametrize(
    "hook",
    [
        *("steps", "open", "items", "around", "reads", "changes", "columns", "fill"),
        *("a late function", "follows", "masses"),
    ],
)
def test_what_a_hook_returns_is_refused_with_the_names_of_layer_and_hook(
    hook: str, others: tuple[Layer, ...], wrong: Any
) -> None:
    """Errors were those of NumPy and of the interpreter, and named neither."""
    hooks: dict[str, Any] = {hook: lambda *_: wrong}
    if hook == "a late function":
        hook = "fill"
        hooks = {"changes": lambda *_: ["rew"], "fill": lambda *_: lambda: wrong}
    elif wrong is None and hook in ("steps", "items"):
        pytest.skip("None is the default")
    layer = type("Mine", (Rule,) if hook in ("follows", "masses") else (Speed,), hooks)()
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**steps(0, 10))
    with pytest.raises((TypeError, ValueError), match=rf"^Mine\.{hook}: expected .*, got "):
        rb.view(layer, *others).sample(4)


@pytest.mark.parametrize("wrong", [None, 3, {"speed": 3}, {"speed": (4, "x")}])
def test_stacks_that_are_none_are_refused_with_the_name_of_the_layer(wrong: Any) -> None:
    """A cluster asks for them; a buffer does not."""
    layer = type("Mine", (Speed,), {"stacks": lambda _: wrong})()
    with pytest.raises(TypeError, match=r"^Mine\.stacks: expected \(depth, axis\) by name, got"):
        stacks_of(layer)


class Ones(Declares):
    """Makes a column of ones when the batch is read, of as many rows too many."""

    def __init__(self, more: int) -> None:
        self.more = more

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["rew"]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {"more": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> Any:
        del wanted
        more = np.ones(len(windows) + self.more)
        return lambda: {"rew": windows.values["rew"], "more": more}


class Doubles(Speed):
    """Changes a column by a field that a batch may lack."""

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["value"]

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> Any:
        rewards = windows.take(windows.slots, ["rew"])["rew"]
        made = {"value": 2 * rewards, "speed": rewards}
        return {name: made[name] for name in wanted}


@pytest.mark.parametrize("others", [(), (Sequences(2),)])
def test_a_layer_with_changes_reads_fields_that_the_batch_leaves_out(
    others: tuple[Layer, ...],
) -> None:
    """By ``windows.take``, as ``windows.values`` lacks them."""
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**steps(0, 10))
    view = rb.view(Doubles(), *others)
    rewards = steps(0, 10)["rew"]
    for fields in (None, ["obs"], ["value", "obs"]):
        batch = view.sample(4, fields=fields)
        there = batch.get("mask", np.ones(4, bool)).astype(bool)
        rows = batch["obs"][there][:, 0].astype(int)
        np.testing.assert_array_equal(batch["speed"][there], rewards[rows])
        assert ("value" in batch) == (fields is None or "value" in fields)


@pytest.mark.parametrize("others", [(), (Sequences(2),)])
def test_a_column_of_a_late_function_is_checked(others: tuple[Layer, ...]) -> None:
    """As one of ``fill`` itself, from learners too."""
    shape = (4, *(2,) * len(others))
    rb = ReplayBuffer(20, FIELDS, seed=0)
    rb.add(**steps(0, 10))
    with SharedReplay(20, FIELDS, writers=2) as replay:
        with replay.actor() as actor:
            actor.add(**steps(0, 10))
        source: Any
        for source in rb, replay.learner(seed=0):
            found = source.view(Ones(0), *others).sample(4)["more"]
            assert (found.shape, found.dtype) == (shape, np.float32)
            view = source.view(Ones(1), *others)
            with pytest.raises(ValueError, match=r"Ones\.fill: expected shape \("):
                view.sample(4)


WHOLE, CROP = 6, 4
PIXELS: dict[str, Any] = {
    "obs": {"shape": (WHOLE, WHOLE), "dtype": "i4"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


class Crops(Layer):
    """One random crop of the images of each item."""

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        return [name for name in ("obs", "next_obs") if name in fields]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: (fields[name].dtype, (CROP, CROP, *fields[name].shape[2:]))
            for name in self.changes(fields)
        }

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        n = len(windows)
        corners = windows.rng.integers(0, WHOLE - CROP + 1, (2, n))
        y, x = corners[:, windows.items, None] + np.arange(CROP)
        where = np.arange(n)[:, None, None], y[:, :, None], x[:, None]
        return {name: windows.values[name][where] for name in wanted}


def pixels(n: int, **options: Any) -> ReplayBuffer:
    """Images whose pixels say which step and which place they are, in episodes of 7 steps."""
    rb = ReplayBuffer(40, PIXELS, next_of="obs", **{"seed": 0} | options)
    for t in range(n):
        image = 100 * t + np.arange(WHOLE * WHOLE).reshape(WHOLE, WHOLE)
        rb.add(obs=image, next_obs=image + 100, rew=t, done=t % 7 == 6)
    return rb


def check_crops(batch: Mapping[str, Array], depth: int = 0) -> set[int]:
    """Each image is a crop, the next one the same of the next step; returns the corners."""
    obs, following = (
        batch[name].reshape(-1, *batch[name].shape[-2 - bool(depth) :])
        for name in ("obs", "next_obs")
    )
    there = batch.get("mask", np.ones(len(obs), bool)).ravel()
    inner = np.arange(CROP)[:, np.newaxis] * WHOLE + np.arange(CROP)
    corners = obs[there].reshape(there.sum(), -1)[:, -1] - inner[-1, -1]
    assert there.any()
    for image, after in zip(obs[there], following[there], strict=True):
        newest, later = (image[..., -1], after[..., -1]) if depth else (image, after)
        assert (newest - newest[0, 0] == inner).all()
        assert (later == newest + 100).all()
        if depth:
            assert (after[..., :-1] == image[..., 1:]).all()
    return set((corners % 100).tolist())


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("items", [(), (Sequences(4),), (Sequences(5, across_episodes=True),)])
def test_a_layer_of_random_crops(items: tuple[Layer, ...], depth: int) -> None:
    """Of single images and of stacks that another layer makes; of a sequence all alike."""
    stacks = (FrameStacks({"obs": depth}),) if depth else ()
    rb = pixels(60)
    view = rb.view(Crops(), *items, *stacks)
    out = {
        name: np.zeros((30, *spec.shape), spec.dtype)
        for name, spec in view.columns.items()
        if name in view.fields
    }
    assert view.sample(30, out=out) is out
    assert len(check_crops(out, depth)) > 5
    batch = view.sample(30)
    check_arrays({name: values for name, values in batch.items() if name in PIXELS})
    check_crops(batch, depth)
    for k in range(30 if items else 0):
        item = {name: values[k] for name, values in batch.items() if name != "rew"}
        assert len(check_crops(item, depth)) == 1
    assert "obs" not in view.sample(3, fields="rew")
    only = view.sample(3, fields=["next_obs"])["next_obs"]
    assert only.shape == batch["next_obs"][:3].shape


def test_random_numbers_of_layers_are_repeated_by_a_seed_and_a_copy() -> None:
    """They come from the generator of the buffer, after those of the draw."""
    views = [pixels(60).view(Crops(), NStep((1, 3), discount=True)) for _ in range(2)]
    views[0].sample(5)
    views[1].sample(5)
    views += [copy.deepcopy(views[0]), pickle.loads(pickle.dumps(views[0]))]
    expected = views[0].sample(20)
    for view in views[1:]:
        for name, found in view.sample(20).items():
            np.testing.assert_array_equal(found, expected[name])


@pytest.mark.parametrize("first_only", [(), "obs"])
def test_crops_of_columns_of_first_rows(first_only: Any) -> None:
    """A column of first rows is cropped as the other columns of its sequence."""
    batch = pixels(60).view(Crops(), Sequences(4, first_only=first_only)).sample(30)
    first = batch["obs"] if first_only else batch["obs"][:, 0]
    np.testing.assert_array_equal(batch["next_obs"][:, 0], first + 100)


def test_a_learner_crops_what_it_draws() -> None:
    """Of every shard, with goals that another layer changes."""
    with SharedReplay(40, PIXELS, next_of="obs", writers=2) as replay:
        for number in range(2):
            for t in range(15):
                image = 100 * t + np.arange(WHOLE * WHOLE).reshape(WHOLE, WHOLE)
                replay.actor(number).add(obs=image, next_obs=image + 100, rew=t, done=t == 14)
        view = replay.learner(Uniform(), seed=0).view(Crops(), Sequences(3))
        check_crops(view.sample(20))


class Sums(Layer):
    """Reads a field that another layer changes."""

    def reads(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["obs"]


class Wrong(Crops):
    """Changes a column that there is not."""

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["image"]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {}


def test_changes_that_do_not_go_together_are_refused() -> None:
    """By the names of both layers, when the view is made."""
    rb = pixels(10)
    with pytest.raises(ValueError, match=r"Sums: \['obs'\] are changed by Crops"):
        rb.view(Crops(), Sums())
    with pytest.raises(ValueError, match=r"Wrong\.changes: expected some of the columns .*'image'"):
        rb.view(Wrong())
    goals = {**PIXELS, "goal": {"shape": 2}, "at": {"shape": 2}}
    named: Any = {"goal": "goal", "achieved": "at"}
    her = Hindsight(lambda at, goal, rows: at[:, 0] * 0, **named)
    with pytest.raises(ValueError, match="Hindsight: expected 'goal' as it is stored"):
        ReplayBuffer(10, goals, seed=0).view(FrameStacks({"goal": 2}), her)


def goals() -> ReplayBuffer:
    """Six episodes of ten steps, with goals."""
    names = ("obs", "achieved_goal", "desired_goal")
    fields: Any = {name: {"shape": 2} for name in names}
    fields |= {"act": {}, "rew": {}, "terminated": {"dtype": bool}}
    rb = ReplayBuffer(100, fields, next_of=("obs", "achieved_goal"), seed=0)
    for t in range(60):
        now, after = {"obs": [t, 0], "achieved_goal": [t, 0]}, [t + 1, 0]
        now |= {"next_obs": after, "next_achieved_goal": after, "desired_goal": [-9, -9]}
        rb.add(**now, act=t % 10, rew=-1, terminated=t % 10 == 9)
    return rb


class Raised(Layer):
    """Adds a thousand to columns, and can make another one."""

    def __init__(self, *names: str, makes: str | None = None) -> None:
        self.names = names
        self.makes = makes

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return [*self.names]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        del fields
        return {} if self.makes is None else {self.makes: (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        made = np.zeros(len(windows), np.float32)
        return {name: windows.values.get(name, made) + 1000 for name in wanted}


@pytest.mark.parametrize("others", [(), (NStep(3),), (Sequences(4),)])
def test_rewards_of_goals_are_computed_from_stored_values(others: tuple[Layer, ...]) -> None:
    """Also of a field that another layer changes; goals of a changed field are refused."""
    seen: list[float] = []

    def reward(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
        seen.append(rows["obs"].max())
        return np.asarray((achieved == goal).all(1) - 1.0)

    her = Hindsight(reward, relabel_ratio=1.0)
    goals().view(Raised("obs"), her, *others).sample(64)
    assert max(seen) < 60
    with pytest.raises(ValueError, match=r"'next_achieved_goal'.* are changed by Raised"):
        goals().view(Raised("next_achieved_goal"), her, *others)


@pytest.mark.parametrize("name", ["next_obs", "discount"])
def test_columns_that_a_new_goal_cuts_are_changed_by_no_other_layer(name: str) -> None:
    """One would put its values over those of the other."""

    def ends(achieved: Array, goal: Array, rows: Mapping[str, Array]) -> Array:
        del rows
        return np.asarray((achieved == goal).all(1))

    her = Hindsight(lambda at, goal, rows: at[:, 0] * 0, terminated_func=ends)
    with pytest.raises(ValueError, match=f"'{name}'"):
        goals().view(Raised(name), her, NStep(3, discount=True))


def test_two_layers_that_change_a_batch_make_no_column_both() -> None:
    """The values of the last one would stand."""
    her = Hindsight(lambda at, goal, rows: at[:, 0] * 0, relabelled=True)
    with pytest.raises(ValueError, match="makes the column 'relabelled' too"):
        goals().view(Raised("act", makes="relabelled"), her)


class Actions(Layer):
    """Rewards that are actions, a column that no layer changes."""

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["rew"]

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        del wanted
        return {"rew": windows.values["act"]}


@pytest.mark.parametrize("first_only", [(), "act"])
@pytest.mark.parametrize("steps", [(), (NStep(3),)])
def test_layers_read_columns_of_sequences_that_none_changes(
    steps: tuple[Layer, ...], first_only: Any
) -> None:
    """By row, as they are in the batch."""
    batch = goals().view(Actions(), Sequences(3, first_only=first_only), *steps).sample(8)
    expected = np.repeat(batch["act"], 3) if first_only else batch["act"].reshape(-1)
    there = batch["mask"].reshape(-1)
    np.testing.assert_array_equal(batch["rew"].reshape(-1)[there], expected[there])


class Another(Layer):
    """Gives each row the reward of another row of its episode, when the batch is read."""

    def __init__(self, meddle: Any = None) -> None:
        self.meddle = meddle

    def changes(self, fields: Mapping[str, Any]) -> list[str]:
        del fields
        return ["rew"]

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> Any:
        del wanted
        others = windows.others("future")

        def compute() -> dict[str, Array]:
            if self.meddle is not None:
                self.meddle()
            return windows.take(others, ["rew"])

        return compute


def test_another_row_of_the_episode_is_read_late() -> None:
    """If it was overwritten when it is read, the batch is drawn again."""
    rb = pixels(21)
    calls: list[None] = []

    def meddle() -> None:
        calls.append(None)
        if len(calls) == 1:
            for t in range(35):
                rb.add(
                    obs=np.zeros((WHOLE, WHOLE)),
                    next_obs=0 * np.ones((WHOLE, WHOLE)),
                    rew=70 + t,
                    done=False,
                )

    batch = rb.view(Another()).sample(50)
    number = batch["obs"][:, 0, 0] // 100
    assert ((batch["rew"] >= number) & (batch["rew"] // 7 == number // 7)).all()
    assert rb.view(Another(meddle)).sample(50)["rew"].shape == (50,)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "layer",
    [
        views.Advantages(0.9, 0.8),
        FrameStacks({"obs": 3}, padding="zeros"),
        NStep((2, 3), discount=True),
        views.Offsets({"obs": (-1, 0)}),
        views.Packed(segments=True),
        views.Padded(value=3),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_subclass_keeps_its_attributes(layer: Layer, tmp_path: Path) -> None:
    """They were dropped or given to its constructor, which has other parameters.

    What is saved of the options of the base class is checked all the same.
    """
    cls = type(layer)

    class Own(cls):  # type: ignore[misc, valid-type]
        """With an attribute, and without parameters."""

        def __init__(self) -> None:
            super().__init__(**vars(layer))
            self.scale = 3.0

    view = ReplayBuffer(10, TOKENS, room={"T": 9}).view(Own())
    view.save(tmp_path)
    found = checkpoint.load(tmp_path, classes=[Own]).layers[0]
    for one in (found, copy.copy(view.layers[0])):
        assert type(one) is Own
        assert vars(one) == vars(layer) | {"scale": 3.0}
    option = min(vars(layer))
    with pytest.raises(KeyError, match=option):
        Own().__setstate__({name: one for name, one in vars(layer).items() if name != option})


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own checks, and what it prints."""
    path = Path(__file__).resolve().parents[2] / "examples" / "own_layer.py"
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert "sequences: (8, 16)" in capsys.readouterr().out
