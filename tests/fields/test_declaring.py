"""What a declaration can only mean is taken so, and what it may not mean is not passed over."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from helpers import refused

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.errors import FieldNameError
from cpprb_like.typing import FieldSpec

NUMBER: FieldSpec = {"shape": ()}
STEP: dict[str, FieldSpec] = {"obs": NUMBER, "rew": NUMBER, "next_obs": NUMBER, "done": NUMBER}


def walk(rb: ReplayBuffer, n: int = 6) -> None:
    """``n`` steps of reward 1 from observation i to i + 1; the last ends the episode."""
    for i in range(n):
        values = {"obs": i, "next_obs": i + 1, "rew": 1, "reward": 1, "done": i == n - 1}
        rb.add(**{name: values[name] for name in rb.schema.names})


# ---- n-step returns -----------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["rew", "reward"])
def test_nstep_takes_the_reward_and_the_next_values_by_default(reward: str) -> None:
    """Without ``rew`` and ``next``, every column of an n-step row is of the same n steps.

    Ends came from the last step, and rewards and next values from the first: rows of mixed kinds.
    """
    fields: dict[str, FieldSpec] = {
        reward if name == "rew" else name: spec for name, spec in STEP.items()
    }
    rb = ReplayBuffer(10, fields, Nstep={"size": 3, "gamma": 1.0})
    walk(rb)
    batch = rb.get_all_transitions()
    assert batch[reward].tolist() == [3, 3, 3, 3, 2, 1]
    assert batch["next_obs"].tolist() == [3, 4, 5, 6, 6, 6]
    assert batch["done"].tolist() == [0, 0, 0, 1, 1, 1]


def test_nstep_takes_next_values_of_next_of_by_default() -> None:
    """A field that ``next_of`` makes is a next value as one that is declared."""
    fields: dict[str, FieldSpec] = {name: spec for name, spec in STEP.items() if name != "next_obs"}
    rb = ReplayBuffer(10, fields, next_of="obs", Nstep={"size": 3, "gamma": 1.0})
    walk(rb)
    assert rb.get_all_transitions()["next_obs"].tolist() == [3, 4, 5, 6, 6, 6]


def test_nstep_with_empty_lists_sums_and_moves_nothing() -> None:
    """``[]`` says that there is none."""
    rb = ReplayBuffer(10, STEP, Nstep={"size": 3, "rew": [], "next": []})
    walk(rb)
    batch = rb.get_all_transitions()
    assert batch["rew"].tolist() == [1] * 6
    assert batch["next_obs"].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        (["obs", "done"], "'rew'"),
        (["obs", "rew", "reward", "done"], "'rew'"),
        (["obs", "rew", "next_state", "done"], "'next'"),
    ],
)
def test_nstep_refuses_what_may_mean_several_things(fields: list[str], word: str) -> None:
    """Where it is open which field is the reward, or a next value, the error says so."""
    with pytest.raises(ValueError, match=f"Nstep: expected {word}"):
        ReplayBuffer(10, dict.fromkeys(fields, NUMBER), Nstep={"size": 3})


@pytest.mark.parametrize("nothing", [None, False, {}])
def test_no_nstep_in_any_of_the_ways_of_cpprb(nothing: Any) -> None:
    """``Nstep=False`` and ``Nstep={}`` are no n-step, as in programs that compute the option."""
    assert not ReplayBuffer(10, STEP, Nstep=nothing).is_Nstep()


# ---- ends of episodes ---------------------------------------------------------------------

TERMINATED = ["dones", "terminations", "is_terminal", "Is_Done", "TERMINAL", "terminateds", "terms"]
TRUNCATED = ["truncations", "timeouts", "time_limit", "is_truncated", "Truncated"]
NEAR = [("terminated", name) for name in TERMINATED] + [("truncated", name) for name in TRUNCATED]


@pytest.mark.parametrize(("option", "name"), NEAR)
def test_a_field_that_looks_like_an_end_is_not_passed_over(option: str, name: str) -> None:
    """A field ``dones`` ends nothing, which is said, at the line that declares it.

    Ends were found by their exact names only, so that sequences, and n-step returns in silence, ran
    across the reset.
    """
    fields: dict[str, FieldSpec] = {"obs": NUMBER, "rew": NUMBER, name: NUMBER}
    with pytest.warns(UserWarning, match=f"{name}.*{option}='{name}'.*{option}=False") as caught:
        ReplayBuffer(10, fields)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=name) as caught:
        PrioritizedReplayBuffer(10, fields)
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match=f"Nstep.*{name}.*{option}='{name}'.*{option}=False"):
        ReplayBuffer(10, fields, Nstep={"size": 3})


@pytest.mark.parametrize(("option", "name"), NEAR)
def test_a_near_name_is_an_end_or_none_as_the_option_says(option: str, name: str) -> None:
    """With the option nothing is warned of, and the field ends episodes or does not."""
    fields = {"rew": NUMBER, name: NUMBER}
    named = ReplayBuffer(10, fields, Nstep={"size": 2, "gamma": 1.0}, **{option: name})  # type: ignore[arg-type]
    none = ReplayBuffer(10, fields, Nstep={"size": 2, "gamma": 1.0}, **{option: False})  # type: ignore[arg-type]
    for rb in (named, none):
        rb.add(**{"rew": [1, 1, 1, 1], name: [0, 1, 0, 0]})
    assert named.get_all_transitions()["rew"].tolist() == [2, 1, 2]
    assert none.get_all_transitions()["rew"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["terminated", "done", "truncated"])
def test_false_says_that_no_field_is_an_end(name: str) -> None:
    """The very name is none then either."""
    rb = ReplayBuffer(10, {"rew": NUMBER, name: NUMBER}, terminated=False, truncated=False)
    rb.add(**{"rew": [1, 1], name: [0, 1]})
    assert rb.get_current_episode_len() == 2


@pytest.mark.parametrize("name", ["not_done", "done_mask", "determined", "obs.done"])
def test_other_names_are_no_ends(name: str) -> None:
    """Names that mean something else, or its contrary, are left alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBuffer(10, {"rew": NUMBER, name: NUMBER}, Nstep={"size": 2})


def test_a_known_end_needs_no_near_one() -> None:
    """``dones`` beside ``done`` is the user's own business."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBuffer(10, {"rew": NUMBER, "done": NUMBER, "dones": NUMBER})
        ReplayBuffer(10, {"rew": NUMBER, "terminated": NUMBER, "terminal": NUMBER})
        ReplayBuffer(10, {"rew": NUMBER, "x": NUMBER, "terminal": NUMBER}, terminated="x")
    with pytest.warns(UserWarning, match="truncated='timeouts'"):
        ReplayBuffer(10, {"rew": NUMBER, "done": NUMBER, "timeouts": NUMBER})


def test_nstep_refuses_an_end_that_cannot_be_one() -> None:
    """A ``done`` for each of several agents ends no episode: n-step returns would cross it."""
    fields: dict[str, FieldSpec] = {"rew": NUMBER, "done": {"shape": 2}}
    ReplayBuffer(10, fields)
    with pytest.raises(ValueError, match=r"'done'.*one bool or number.*terminated=False"):
        ReplayBuffer(10, fields, Nstep={"size": 3})


# ---- other declarations -------------------------------------------------------------------


@pytest.mark.parametrize("shape", [np.array([2, 3]), [2, 3], (np.int8(2), np.uint64(3))])
def test_a_shape_may_be_an_array(shape: Any) -> None:
    """A shape is a sequence of integers, whatever its type; ``np.array([2, 3])`` was refused.

    An array has ``__index__``, and so was taken for an integer.
    """
    assert ReplayBuffer(10, {"x": {"shape": shape}}).schema.fields[0].shape == (2, 3)
    assert ReplayBuffer(10, {"x": {"shape": np.array(3)}}).schema.fields[0].shape == (3,)
    assert ReplayBuffer(10, {"x": {"shape": np.array([3])}}).schema.fields[0].shape == (3,)
    with pytest.raises(TypeError, match="'x': expected a shape"):
        ReplayBuffer(10, {"x": {"shape": np.array([2.0, 3.0])}})


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
def test_unknown_options_that_are_none_are_taken(make: Any) -> None:
    """Wrappers pass on ``ctx=None``; a value is refused with the options that there are."""
    make(10, {"x": {}}, ctx=None, reward_func=None)
    with pytest.raises(TypeError, match=r"unknown options \['ctx'\].*n_envs.*Nstep"):
        make(10, {"x": {}}, ctx=1, reward_func=None)


# ---- names and numbers of calls -----------------------------------------------------------


@pytest.mark.parametrize("fields", [{"x": 1, "y": 2}, {"y": 2}, {}])
def test_wrong_names_are_a_type_error_and_a_key_error(fields: dict[str, Any]) -> None:
    """Programs catch ``KeyError``, as cpprb raises it, or ``TypeError``, as Python does."""
    rb = ReplayBuffer(10, {"x": {}})
    for error in (TypeError, KeyError, FieldNameError):
        with refused(rb, error, "this buffer has ['x']"):
            rb.add(**fields)
    with refused(rb, TypeError, "cpprb drops", "'y'"):
        rb.add(x=1, y=2)


@pytest.mark.parametrize("n", [np.float64(7.0), np.float32(7), 7.0, np.int8(7), np.array(7)])
def test_a_batch_size_may_be_a_whole_float(n: Any) -> None:
    """``np.floor`` gives floats."""
    for make in (ReplayBuffer, PrioritizedReplayBuffer):
        rb = make(10, {"x": {}})
        rb.add(x=[1, 2, 3])
        assert len(rb.sample(n)["x"]) == 7
        assert [len(batch["x"]) for batch in rb.epoch(n)] == [3]


@pytest.mark.parametrize("n", [7.5, float("nan"), float("inf"), np.array([7.0]), "7", None])
def test_a_batch_size_that_is_no_whole_number(n: Any) -> None:
    """What is no number of rows is refused, and named."""
    rb = ReplayBuffer(10, {"x": {}})
    rb.add(x=1)
    with refused(rb, (TypeError, ValueError), "batch_size"):
        rb.sample(n)


def test_indexes_may_be_whole_floats() -> None:
    """Indexes that went through float arithmetic are indexes, as in cpprb; halves are none."""
    rb = PrioritizedReplayBuffer(10, {"x": {"shape": ()}})
    rb.add(x=[1, 2, 3])
    rb.update_priorities(np.array([0.0, 2.0]), [1.0, 5.0])
    assert rb.get_max_priority() == 5.0
    assert rb._encode_sample(np.array([0.0, 2.0]))["x"].tolist() == [1, 3]
    rb.update(np.array([0.0]), x=[7.0])
    assert rb[0.0]["x"] == 7
    for wrong in ([0.5], [np.nan], [np.inf], [1e300]):
        with pytest.raises(TypeError, match="indexes"):
            rb.update_priorities(wrong, [1.0])
        with pytest.raises(TypeError, match="slots"):
            rb[wrong]


def test_a_slot_past_the_end_says_how_many_rows_there_are() -> None:
    """The range alone did not say that the buffer holds ten rows."""
    rb = ReplayBuffer(20, {"x": {}})
    with pytest.raises(IndexError, match="empty"):
        rb._encode_sample([0])
    rb.add(x=np.zeros(10))
    with pytest.raises(IndexError, match=r"holds 10 rows.*-10 to 9"):
        rb._encode_sample([10])


def test_a_subclass_that_does_not_call_super_is_an_error() -> None:
    """The message named the subclass's own ``__init__``, which had been called."""

    class Mine(ReplayBuffer):
        def __init__(self) -> None:
            pass

    for call in (
        lambda: Mine().add(x=1),
        lambda: Mine().add_where([True], x=1),
        lambda: Mine().sample(1),
        lambda: len(Mine()),
        lambda: Mine().clear(),
        lambda: Mine()[0],
    ):
        with pytest.raises(RuntimeError, match=r"ReplayBuffer.__init__ .*super\(\).__init__"):
            call()


def test_a_deleted_row_may_have_been_terminated_and_truncated() -> None:
    """``check`` takes all flags of a row that it may have had before its episode was deleted."""
    rb = ReplayBuffer(10, {"x": NUMBER, "terminated": NUMBER, "truncated": NUMBER})
    rb.add(x=[1, 2, 3], terminated=[0, 1, 0], truncated=[0, 1, 0])
    rb.episodes.delete(0)
    assert len(rb) == 1
    rb.check()


def test_numbers_of_hundreds_of_digits_are_refused_in_a_sentence() -> None:
    """An int that no float can hold raised a bare ``OverflowError`` here and there."""
    huge = 10**400
    fields: dict[str, FieldSpec] = {"x": NUMBER, "done": NUMBER}
    with pytest.raises(ValueError, match=r"size: expected 1 to \d+ steps"):
        ReplayBuffer(huge, fields)
    with pytest.raises(ValueError, match=r"gamma.*expected 0 to 1"):
        ReplayBuffer(10, fields, Nstep={"size": 2, "rew": "x", "gamma": huge})
    rb = ReplayBuffer(10, fields)
    for value in (huge, [huge], [huge, 1.0]):
        with refused(rb, ValueError, "'x'"):
            rb.add(x=value, done=0)
