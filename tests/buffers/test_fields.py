"""Reading some of the fields only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from strategies import Array
from timing import ratio
from views import sample_sequences

from cpprb_like import (
    HindsightReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    SelectiveReplayBuffer,
)
from cpprb_like.buffers import Mixture, View
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Advantages, Hindsight, NStep, Offsets, Sequences

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
    {"next_obs": 1, "rew": 2},
]
KINDS = ["plain", "chained", "several steps", "by priority"]


def filled(kind: str) -> ReplayBuffer:
    """A buffer that has wrapped."""
    options: dict[str, Any] = {"seed": 0, "n_envs": 2}
    fields = dict(FIELDS)
    if kind == "plain":
        fields["next_obs"] = FIELDS["obs"]
    else:
        options |= {"next_of": "obs", "stack_compress": {"obs": -1}}
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
        one, two = (rb.view(NStep((1, 3), 0.9)) for rb in (first, second))
        assert_part(one.sample(9, fields=fields), two.sample(9), names)
    whole = second.sample(8)
    out = {name: np.zeros_like(whole[name]) for name in names}
    assert first.sample(8, fields=fields, out=out) is out
    assert_part(out, whole, names)
    assert_part(first.get_all_transitions(fields=fields), second.get_all_transitions(), names)
    for part, whole in zip(first.epoch(20, fields=fields), second.epoch(20), strict=True):
        assert_part(part, whole, names)
    options: dict[str, Any] = {"indexes": True, "first_only": sorted(names)[:1]}
    part = sample_sequences(first, 7, 4, fields=fields, **options)
    assert_part(part, sample_sequences(second, 7, 4, **options), names)


def selective() -> SelectiveReplayBuffer:
    """An old-style buffer of two episodes."""
    rb = SelectiveReplayBuffer(3, obs_dim=2, Nepisodes=4, seed=0)
    rb.add([[0, 0], [1, 1]], [0, 0], [1, 1], [[1, 1], [2, 2]], [0, 1])
    rb.add([5, 5], 1, 0.5, [6, 6], 0)
    return rb


def copies() -> HindsightReplayBuffer:
    """Cpprb's buffer of copies of steps, of one episode."""
    cell: FieldSpec = {"shape": (), "dtype": "i8"}
    rb = HindsightReplayBuffer(
        60,
        {"obs": cell, "act": cell, "next_obs": cell},
        9,
        lambda at, _, goal: (at == goal).astype(np.float32),
        prioritized=False,
        seed=0,
    )
    rb.add(obs=np.arange(5), act=np.arange(5), next_obs=np.arange(1, 6))
    rb.on_episode_end(goal=9)
    return rb


def relabelling(asks: tuple[str, ...] = ("act",), **options: Any) -> View:
    """Goals that are set anew, with a function that asks for some fields."""
    cell: FieldSpec = {"shape": (), "dtype": "i8"}
    names = ("at", "goal", "act", "other", "end")
    rb = ReplayBuffer(50, {**dict.fromkeys(names, cell), "rew": {"shape": ()}}, seed=0)
    x = np.arange(50)
    rb.add(at=x, goal=-x, act=x, other=x, rew=-x, end=x)

    def reward(achieved: Array, goal: Array, rows: Any) -> Array:
        assert all((rows[name] == achieved).all() for name in asks)
        assert (rows["goal"] == goal).all()
        assert (rows["rew"] == -achieved).all()
        found: Array = achieved + 1000 * goal
        return found

    chosen: dict[str, Any] = {
        "goal": "goal",
        "achieved": "at",
        "relabel_ratio": 0.5,
        "strategy": "random",
        "relabelled": True,
    } | options
    return rb.view(Hindsight(reward, **chosen))


def mixture() -> Mixture:
    """Two buffers that declare the same fields in another order."""
    kinds: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "y": {"shape": 2}, "z": {}}
    a = ReplayBuffer(20, kinds, seed=0)
    b = PrioritizedReplayBuffer(20, {name: kinds[name] for name in "zxy"}, seed=1)
    for rb, first in ((a, 0), (b, 100)):
        x = np.arange(first, first + 20)
        rb.add(x=x, y=np.stack([x, -x], axis=1), z=x)
    return Mixture({"a": a, "b": b}, {"a": 1, "b": 2}, seed=2)


# How to draw, the fields that there are, and what is asked for.
WAYS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "sample": (lambda **kw: filled("plain").sample(3, **kw), ("act", "rew")),
    "by priority": (lambda **kw: filled("by priority").sample(3, **kw), ("act", "rew")),
    "epoch": (lambda **kw: list(filled("plain").epoch(30, **kw)), ("act", "rew")),
    "all": (lambda **kw: filled("plain").get_all_transitions(**kw), ("act", "rew")),
    "sequences": (lambda **kw: sample_sequences(filled("plain"), 3, 2, **kw), ("act", "rew")),
    "episode": (lambda **kw: filled("chained").episodes.read(1, **kw), ("act", "next_obs")),
    "episodes": (lambda **kw: filled("chained").episodes.sample(3, **kw), ("act", "next_obs")),
    "hindsight": (lambda **kw: relabelling().sample(20, **kw), ("act", "rew")),
    "mixture": (lambda **kw: mixture().sample(9, **kw), ("x", "z")),
    "selective": (lambda **kw: selective().sample(9, **kw), ("act", "next_obs")),
    "selected": (lambda **kw: selective().get_episode(0, **kw), ("act", "next_obs")),
    "copies": (lambda **kw: copies().sample(9, **kw), ("goal", "next_obs")),
    "all copies": (lambda **kw: copies().get_all_transitions(**kw), ("goal", "next_obs")),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_draw_reads_some_fields(way: str) -> None:
    """The fields that are asked for are those of the whole batch; what is no field is there too."""
    draw, names = WAYS[way]
    for fields in (names[0], list(names), names[::-1], iter(names[1:])):
        asked = [fields] if isinstance(fields, str) else list(fields)
        given: Any = fields if isinstance(fields, (str, list, tuple)) else iter(asked)
        parts, wholes = draw(fields=given), draw()
        if isinstance(parts, dict):
            parts, wholes = [parts], [wholes]
        for part, whole in zip(parts, wholes, strict=True):
            assert set(asked) <= part.keys() <= whole.keys()
            assert part.keys() <= {
                *asked,
                "weights",
                "indexes",
                "mask",
                "discount",
                "source",
                "relabelled",
            }
            assert list(part) == [name for name in whole if name in part]
            for name, values in part.items():
                np.testing.assert_array_equal(values, whole[name])


BAD: list[tuple[Any, type[Exception], str]] = [
    ("none such", ValueError, "fields: expected some of [{all}], got 'none such'"),
    (["{first}", "?"], ValueError, "fields: expected some of [{all}], got '?'"),
    (["{first}", "{first}"], ValueError, "fields: expected each field once, got '{first}' twice"),
    ([], ValueError, "fields: expected some of [{all}], got none"),
    ("", ValueError, "fields: expected some of [{all}], got ''"),
    (3, TypeError, "fields: expected names of fields, got 3"),
    ([b"act"], TypeError, "fields: expected names of fields, got b'act'"),
    (False, TypeError, "fields: expected names of fields, got False"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("fields", "error", "words"), BAD, ids=[str(bad[0]) for bad in BAD])
def test_what_are_no_fields(way: str, fields: Any, error: type[Exception], words: str) -> None:
    """Each way to draw refuses them in the same words: which, and what there is."""
    draw, (first, _) = WAYS[way]
    if isinstance(fields, list):
        fields = [first if name == "{first}" else name for name in fields]
    with pytest.raises(error) as caught:
        draw(fields=fields)
    start, _, end = words.replace("{first}", first).partition("{all}")
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(end)
    assert end == "" or repr(first) in str(caught.value)


def test_columns_of_layers_may_be_named() -> None:
    """They come with every batch of a view. ``fields=["rew", "return"]`` was refused."""
    fields: Any = {name: {"shape": ()} for name in ("rew", "act", "done")}
    rb = ReplayBuffer(20, fields, seed=0)
    rb.add(rew=range(9), act=range(9), done=[0] * 8 + [1])
    view = rb.view(Advantages(lam=1, value=None), Offsets({"act": (0, 1)}), Sequences(3))
    other, expected = rb.view(*view.layers), set(view.columns)
    mixture = Mixture({"a": view, "b": other}, {"a": 1, "b": 1}, seed=0)
    asked = ["rew", "return", "mask", "act_is_pad"]
    with view.batches(4, fields=asked, to="numpy", prefetch=1) as batches:
        draws = [view.sample(4, fields=asked), mixture.sample(4, fields=iter(asked)), next(batches)]
    for batch in (*draws, next(view.epoch(4, fields=asked))):
        assert set(batch) - {"source"} == expected - {"act", "done"}
    for names, words in (
        (["rew", "mask", "mask"], "each field once, got 'mask' twice"),
        (["rew", "weights"], r"some of \['rew', .*'return'.*\], got 'weights'"),
        (["return"], r"expected some of \['rew', 'act', 'done'\], got \['return'\]"),
    ):
        with pytest.raises(ValueError, match=words):
            view.sample(4, fields=names)


def test_first_only_is_of_the_fields_that_there_are() -> None:
    """A field that is not read has no first value either."""
    batch = sample_sequences(filled("plain"), 3, 2, fields="act", first_only="rew")
    assert batch.keys() == {"act", "mask"}
    with pytest.raises(ValueError, match=r"first_only: expected some of \[.*\], got 'none'"):
        sample_sequences(filled("plain"), 3, 2, first_only="none")


# ---- hindsight: what the functions ask for ------------------------------------------------------


CASES = [("goal",), ("rew",), ("at",), ("act", "rew"), ("goal", "end"), ("end", "other"), ("end",)]


@pytest.mark.parametrize("asks", [(), ("act",), ("at", "other")])
@pytest.mark.parametrize("fields", CASES)
@pytest.mark.parametrize("goal_func", [None, lambda values: values + 1])
def test_some_fields_of_relabelled_rows(
    asks: tuple[str, ...], fields: tuple[str, ...], goal_func: Any
) -> None:
    """They are those of the whole batch, whatever the functions ask for; also in ``out``."""

    def ends(achieved: Array, goal: Array, rows: Any) -> Array:
        assert (rows["goal"] == goal).all()
        found: Array = achieved + 7 * goal
        return found

    options: dict[str, Any] = {"goal_func": goal_func, "terminated_func": ends, "terminated": "end"}
    one, two = relabelling(() if goal_func else asks, **options), relabelling((), **options)
    if goal_func is not None:
        for view in (one, two):
            layer: Any = view.layers[0]
            layer.reward_func = lambda achieved, goal, rows: achieved * goal
    for _ in range(3):
        part, whole = one.sample(30, fields=fields), two.sample(30)
        assert part.keys() == {*fields, "relabelled"}
        out = {name: np.zeros_like(whole[name]) for name in fields}
        one.sample(30, fields=fields, out=out)
        for name in fields:
            np.testing.assert_array_equal(part[name], whole[name])
        whole = two.sample(30)
        for name in fields:
            np.testing.assert_array_equal(out[name], whole[name])


def test_functions_are_called_for_what_they_give_only() -> None:
    """Who asks for neither the reward nor the end pays for no function."""
    never = relabelling()

    def fail(*_: Any) -> Any:
        raise AssertionError

    layer: Any = never.layers[0]
    layer.reward_func = fail
    assert (never.sample(40, fields="goal")["goal"] > 0).any()
    assert never.sample(40, fields=["at", "act"])["at"].max() > 9
    with pytest.raises(AssertionError):
        never.sample(40, fields="rew")


@pytest.mark.parametrize("raises", [True, False])
def test_a_field_that_a_function_asks_for_late(raises: bool) -> None:
    """If its rows are gone by then, others are drawn; the function sees rows as they were."""
    her = relabelling()
    rb, layer = her.buffer, her.layers[0]
    assert isinstance(layer, Hindsight)
    seen: list[bool] = []

    def reward(achieved: Array, goal: Array, rows: Any) -> Array:
        if not seen:  # all rows go away before the field is read that nobody asked for before
            x = np.arange(1000, 1050)
            rb.add(at=x, goal=-x, act=x, other=x, rew=-x, end=x)
        seen.append(bool((achieved == rows["other"]).all()))
        if raises and not seen[-1]:
            raise ValueError("what the function says of such rows does not matter")
        return goal

    layer.reward_func = reward
    batch = her.sample(30, fields=["at", "rew"])
    assert seen == [False, True]
    assert (batch["at"] >= 1000).all()
    layer.reward_func = lambda achieved, goal, rows: rows["none such"]
    with pytest.raises(KeyError, match="none such"):  # an error of its own stays one
        her.sample(30, fields="rew")


# ---- costs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sample", "episodes", "hindsight", "mixture", "sequences", "all"])
def test_fields_that_are_not_asked_for_cost_nothing(way: str) -> None:
    """A batch of numbers beside images takes a small part of the time of one with the images."""
    fields: dict[str, Any] = {
        "at": {},
        "goal": {},
        "rew": {},
        "image": {"shape": 20_000},
        "done": {},
    }
    rb = ReplayBuffer(1000, fields, seed=0)
    x = np.arange(100)
    for _ in range(10):
        rb.add(at=x, goal=x, rew=x, done=x % 50 == 49, image=np.zeros((100, 20_000)))
    her = rb.view(
        Hindsight(lambda achieved, goal, _: (achieved == goal)[:, 0], goal="goal", achieved="at")
    )
    calls: dict[str, Callable[..., Any]] = {
        "sample": lambda **kw: rb.sample(300, **kw),
        "episodes": lambda **kw: rb.episodes.sample(6, **kw),
        "hindsight": lambda **kw: her.sample(300, **kw),
        "mixture": lambda **kw: Mixture({"a": rb}, {"a": 1}, seed=0).sample(300, **kw),
        "sequences": lambda **kw: sample_sequences(rb, 10, 30, **kw),
        "all": rb.get_all_transitions,
    }
    call = calls[way]
    assert ratio(call, lambda: call(fields=["goal", "rew"]), turns=7, number=1) < 0.5
