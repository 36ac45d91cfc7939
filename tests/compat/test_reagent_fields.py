"""ReAgent's fields: read from the first step, declared, or made of an environment's spaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like.compat.reagent import ReplayBuffer, replay_buffer_to_pre_timeline_df
from cpprb_like.compat.reagent.circular_replay_buffer import NamesError, ReplayElement

torch = need("torch", "make test-torch")

STEP: dict[str, Any] = {"observation": [1.0, 2.0], "action": 1, "reward": 1.0, "terminal": False}


def picture(rb: Any) -> Any:
    """What can be seen of a buffer."""
    store = {name: str(column) for name, column in rb._store.items()}
    return store, rb.add_count.item(), rb._is_index_valid.tolist(), rb.get_storage_signature()


# ---- from the first step -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        (1.5, (), torch.float32),
        (1, (), torch.int64),
        (True, (), torch.bool),
        ([1, 2], (2,), torch.int64),
        ((1.0, 2.0), (2,), torch.float32),
        (np.float16(1), (), torch.float16),
        (np.ones((2, 3), np.uint8), (2, 3), torch.uint8),
        (np.ones(2, ">f8"), (2,), torch.float32),
        (np.ones((1,), ">i4"), (1,), torch.int32),
        (np.ones((0, 2)), (0, 2), torch.float32),
        (1 + 2j, (), torch.complex128),
    ],
)
def test_dense_fields(value: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Shape and dtype are those of the first value, but for float64, which becomes float32."""
    rb = ReplayBuffer(replay_capacity=5)
    rb.add(**STEP, x=value)
    rb.add(**STEP, x=value)
    batch = rb.sample_all_valid_transitions()
    assert batch.x.dtype == batch.next_x.dtype == dtype
    assert batch.x.shape == batch.next_x.shape == (1, *(shape or (1,)))
    expected = np.asarray(value).reshape(batch.x[0].shape)
    np.testing.assert_array_equal(batch.x[0].numpy(), expected)
    assert rb._store["x"].shape == (5, *shape)


def test_fields_come_in_the_order_of_the_first_step() -> None:
    """Not in that of a set; names and kinds can be asked for."""
    rb = ReplayBuffer(replay_capacity=5)
    assert rb.get_storage_signature() == []
    rb.add(b=1, terminal=False, a=2, observation=1.0, z=3, action=1, reward=0)
    names = [name for name, _ in rb.get_add_args_signature()]
    assert names == ["observation", "action", "reward", "terminal", "b", "a", "z"]
    assert rb.get_transition_elements()[9:] == ["b", "next_b", "a", "next_a", "z", "next_z"]
    assert rb.get_storage_signature()[0].metadata.shape == ()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"observation": [1.0]}, AssertionError),
        ({"observation": [[1.0, 2.0]]}, AssertionError),
        ({"action": [1]}, AssertionError),
        ({"action": 1.5}, ValueError),
        ({"action": 2**70}, ValueError),
        ({"reward": [1.0, 2.0]}, AssertionError),
        ({"reward": "1"}, ValueError),
        ({"reward": 1e300}, ValueError),
        ({"terminal": 2}, AssertionError),
        ({"terminal": [False, True]}, AssertionError),
        ({"observation": torch.ones(2)}, AssertionError),
        ({"observation": {"a": [1]}}, AssertionError),
        ({"x": 1}, KeyError),
        ({"action": ...}, KeyError),
        ({"action": ..., "acton": 1}, KeyError),
        ({"final_observation": [1.0, 2.0]}, AssertionError),
        ({"truncated": np.array([True, False])}, AssertionError),
        ({"final_observation": [1.0], "truncated": True}, AssertionError),
        ({"final_observation": ["a", "b"], "truncated": True}, ValueError),
    ],
)
@pytest.mark.parametrize("stack_size", [1, 3])
def test_later_steps_that_are_refused_change_nothing(
    change: dict[str, Any], error: type[Exception], stack_size: int
) -> None:
    """Other shapes, other names, values that the dtype does not hold."""
    for terminal in (False, True):
        rb = ReplayBuffer(stack_size=stack_size, replay_capacity=9)
        rb.add(**STEP | {"terminal": terminal})
        before = picture(rb)
        fields = {name: value for name, value in (STEP | change).items() if value is not ...}
        with pytest.raises(error):
            rb.add(**fields)
        assert picture(rb) == before
        rb.add(**STEP)


def test_values_that_can_be_converted_are_taken() -> None:
    """1 for 1.0, 0 for False."""
    rb = ReplayBuffer(replay_capacity=5)
    rb.add(**STEP)
    rb.add(**STEP | {"reward": np.float64(2.0)})
    rb.add(observation=np.ones(2), action=np.int8(3), reward=1, terminal=0)
    assert rb._store["action"].tolist() == [1, 1, 3, 0, 0]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"observation": [1.0]}, "Add expects"),
        (STEP | {"x": "text"}, "Unable to deduce type"),
        (STEP | {"x": torch.ones(2)}, "Input shouldn't be tensor"),
        (STEP | {"x": [[1], [1, 2]]}, "Unable to deduce type"),
        (STEP | {"x": None}, "Unable to deduce type"),
        (STEP | {"x": {"a": 1}}, "Unable to deduce type"),
        (STEP | {"x": {1: [1]}}, "Unable to deduce type"),
        (STEP | {"state": 1}, "state"),
        (STEP | {"_x": 1}, "_x"),
        (STEP | {"a b": 1}, "a b"),
        (STEP | {"terminal": [False]}, "terminal"),
        (STEP | {"reward": 1j}, "reward"),
        (STEP | {"observation": {"a": [1]}}, "observation"),
        (STEP | {"final_observation": [1.0, 2.0]}, "final_observation"),
    ],
)
def test_first_steps_that_are_refused_fix_nothing(fields: dict[str, Any], word: str) -> None:
    """Then any other step can be the first."""
    rb = ReplayBuffer(replay_capacity=5)
    with pytest.raises(AssertionError, match=word):
        rb.add(**fields)
    assert rb.get_storage_signature() == []
    rb.add(observation=1, action=1, reward=1, terminal=0)
    assert rb.add_count == 1


def test_messages_of_missing_fields_are_plain() -> None:
    """Although the error is a ``KeyError``."""
    rb = ReplayBuffer(replay_capacity=5)
    rb.add(**STEP)
    with pytest.raises(NamesError) as caught:
        rb.add(observation=[1.0, 2.0])
    assert str(caught.value).startswith("Add expects")
    with pytest.raises(TypeError, match="keyword"):
        rb.add([1.0, 2.0], 1, 1.0, False)


def test_an_example_fixes_the_fields() -> None:
    """Once; it is no step."""
    rb = ReplayBuffer(replay_capacity=5)
    rb.initialize_buffer(**STEP, x=1)
    assert rb.is_empty()
    assert len(rb.get_add_args_signature()) == 5
    with pytest.raises(ValueError):
        rb.initialize_buffer(**STEP)
    with pytest.raises(ValueError):
        rb.add(**STEP)


def test_inputs_stay_as_they_are_and_are_copied() -> None:
    """Later changes of an array, a list or a dict do not reach the buffer."""
    observation, ids = np.ones(2), {"a": [1, 2]}
    rb = ReplayBuffer(replay_capacity=5)
    for _ in range(2):
        rb.add(**STEP | {"observation": observation}, ids=ids)
    observation[:] = 7
    ids["a"].append(3)
    batch = rb.sample_all_valid_transitions()
    assert batch.state.tolist() == [[1, 1]]
    assert batch.ids["a"][1].tolist() == [1, 2]
    batch.state[:] = 9
    assert rb.sample_all_valid_transitions().state.tolist() == [[1, 1]]


# ---- id lists ----------------------------------------------------------------------------


def sparse(i: int) -> dict[str, Any]:
    """Lists of changing lengths, some of them empty."""
    ids = {"even": list(range(i % 4)), "odd": np.arange(i % 4, 4)}
    scores = {"s": (list(range(i % 7)), [k + 0.5 for k in range(i % 7)])}
    return {"ids": ids, "scores": scores}


@pytest.mark.parametrize("n", [1, 9, 30])
def test_id_lists(n: int) -> None:
    """All lists of a batch one after the other, and where each begins."""
    rb = ReplayBuffer(replay_capacity=20)
    for i in range(n):
        rb.add(**STEP | {"terminal": i == n - 1}, **sparse(i))
    batch = rb.sample_all_valid_transitions()
    numbers = [i for slot in range(min(n, 20)) for i in range(n) if i % 20 == slot and i >= n - 20]
    for prefix, rows in (("", numbers), ("next_", [i + 1 for i in numbers])):
        feats = [sparse(i) if i < n else {"ids": {}, "scores": {}} for i in rows]
        for key in ("even", "odd"):
            lists = [list(feat["ids"].get(key, [])) for feat in feats]
            offsets, ids = getattr(batch, f"{prefix}ids")[key]
            assert (offsets.dtype, ids.dtype) == (torch.int32, torch.int64)
            assert offsets.tolist() == np.cumsum([0, *map(len, lists)])[:-1].tolist()
            assert ids.tolist() == sum(lists, [])
        pairs = [feat["scores"].get("s", ([], [])) for feat in feats]
        offsets, ids, scores = getattr(batch, f"{prefix}scores")["s"]
        assert scores.dtype == torch.float32
        assert offsets.tolist() == np.cumsum([0, *(len(pair[0]) for pair in pairs)])[:-1].tolist()
        assert ids.tolist() == sum((list(pair[0]) for pair in pairs), [])
        assert scores.tolist() == sum((list(pair[1]) for pair in pairs), [])
    assert rb.sample_transition_batch(0, []).ids["even"][0].tolist() == []


def test_id_lists_in_the_timeline() -> None:
    """Next lists are lists of what a batch is else."""
    rb = ReplayBuffer(replay_capacity=9, update_horizon=2, return_as_timeline_format=True)
    for i in range(3):
        rb.add(**STEP | {"terminal": i == 2}, ids={"a": [i] * i})
    found = rb.sample_all_valid_transitions().next_ids
    assert [[tensor.tolist() for tensor in item["a"]] for item in found] == [
        [[0, 1], [1, 2, 2]],
        [[0, 2], [2, 2]],
        [[0], []],
    ]


@pytest.mark.parametrize(
    "ids",
    [{"a": [1]}, {"a": [1], "c": [2]}, {"a": [1], "b": [0.5]}, {"a": [1], "b": [[1]]}, [1], 1],
)
def test_other_lists_are_refused(ids: Any) -> None:
    """Missing or unknown keys, and what is no list of ids."""
    rb = ReplayBuffer(replay_capacity=9)
    rb.add(**STEP, ids={"a": [1], "b": []})
    with pytest.raises(AssertionError, match="ids"):
        rb.add(**STEP, ids=ids)
    assert rb.add_count == 1


@pytest.mark.parametrize("scores", [([1], [0.5, 1]), [[1], [0.5]], ([1],), ([0.5], [1.0])])
def test_other_scores_are_refused(scores: Any) -> None:
    """A tuple of as many ids as scores is expected."""
    rb = ReplayBuffer(replay_capacity=9)
    rb.add(**STEP, x={"a": ([1, 2], [0.5, 1])})
    with pytest.raises(AssertionError, match="x"):
        rb.add(**STEP, x={"a": scores})


def test_id_lists_have_no_stacks() -> None:
    """Which is said at once, and not at the first draw."""
    with pytest.raises(ValueError, match="stack_size"):
        ReplayBuffer(stack_size=2).add(**STEP, ids={"a": [1]})


# ---- declared ----------------------------------------------------------------------------


def test_declared_fields() -> None:
    """Shapes and dtypes are those of the declaration, before the first step too."""
    listed: Any = [2]
    rb = ReplayBuffer(
        observation_shape=(3,),
        stack_size=2,
        replay_capacity=9,
        batch_size=2,
        extra_storage_types=[ReplayElement("x", listed, np.float64), ("y", (), "u1")],
        action_dtype=np.int8,
    )
    assert rb.get_storage_signature() == rb.get_add_args_signature()
    assert rb.get_add_args_signature()[1:] == [
        ("action", (), np.int8),
        ("reward", (), np.float32),
        ("terminal", (), np.uint8),
        ("x", (2,), np.float64),
        ("y", (), np.uint8),
    ]
    rb.add(np.zeros(3), 1, 2, 0, [3, 4], 5)
    rb.add([1, 1, 1], 1, 2.0, True, y=5, x=np.ones(2))
    batch = rb.sample_all_valid_transitions()
    assert (batch.state.dtype, batch.action.dtype) == (torch.uint8, torch.int8)
    assert (batch.x.dtype, batch.x.shape) == (torch.float64, (2, 2, 2))
    assert batch.terminal.tolist() == [[False], [True]]
    wrong: list[tuple[list[Any], dict[str, Any]]] = [
        ([1], {}),
        ([[1] * 3, 1, 1, 0, [1, 1], 1, 1], {}),
        ([[1] * 3], {"observation": 1}),
    ]
    for args, more in wrong:
        with pytest.raises(ValueError, match="Add expects"):
            rb.add(*args, **more)
    with pytest.raises(AssertionError):
        rb.add([1, 1], 1, 2.0, True, [1, 1], 1)
    assert rb.add_count == 3
    assert rb.sample_transition_batch_tensor(indices=np.array([1])).step.tolist() == [[1]]


def test_declarations_that_are_refused() -> None:
    """Shapes that are no tuple, names of parameters, names twice."""
    with pytest.raises(AssertionError):
        ReplayBuffer([84, 84], 1, 10, 1)
    for name in ("truncated", "state", "next_action"):
        with pytest.raises(ValueError, match=name):
            ReplayBuffer((1,), 1, 10, 1, extra_storage_types=[(name, (), "f4")])
    for twice in (["action"], ["x", "x"]):
        with pytest.raises(ValueError, match=f"{twice[-1]}.*twice"):
            ReplayBuffer((1,), 1, 10, 1, extra_storage_types=[(x, (), "f4") for x in twice])
    number: Any = 5
    with pytest.raises(ValueError, match="x: expected a tuple"):
        ReplayBuffer((1,), 1, 10, 1, extra_storage_types=[("x", number, "f4")])
    for dtype in ("U3", object, "M8[s]"):
        with pytest.raises(ValueError, match="PyTorch"):
            ReplayBuffer((1,), 1, 10, 1, action_dtype=dtype)


class Box(SimpleNamespace):
    """A space by name only, as those of gym and Gymnasium are known."""


class Discrete(SimpleNamespace):
    """See ``Box``."""


class MultiDiscrete(SimpleNamespace):
    """See ``Box``."""


class Dict(SimpleNamespace):
    """See ``Box``."""


class Tuple(SimpleNamespace):
    """See ``Box``."""


def box(*shape: int) -> Box:
    """A box of floats."""
    return Box(shape=shape, dtype=np.dtype(np.float32))


CHOICE = Discrete(shape=(), dtype=np.dtype(np.int64), n=3)


def test_buffers_of_an_environment() -> None:
    """Observation, action and the logged extras; other options are those of the class."""
    env = SimpleNamespace(observation_space=box(4), action_space=CHOICE)
    rb = ReplayBuffer.create_from_env(
        env, replay_memory_size=10, batch_size=2, update_horizon=3, gamma=1.0
    )
    assert rb.get_add_args_signature() == [
        ("observation", (4,), np.float32),
        ("action", (), np.int64),
        ("reward", (), np.float32),
        ("terminal", (), np.uint8),
        ("mdp_id", (), np.int64),
        ("sequence_number", (), np.int64),
        ("log_prob", (), np.float32),
    ]
    env.action_space = MultiDiscrete(shape=(2,), dtype=np.dtype(np.int64))
    rb = ReplayBuffer.create_from_env(
        env, replay_memory_size=10, batch_size=2, store_log_prob=False
    )
    assert rb.get_add_args_signature()[1] == ("action", (2,), np.int64)
    assert rb.get_add_args_signature()[-1][0] == "sequence_number"


def test_buffers_of_a_recommendation_environment() -> None:
    """The user is the observation; documents and answers have an axis for all of them."""
    answer = Dict(spaces={"click": CHOICE, "quality": box(2)})
    spaces: dict[str, Any] = {
        "user": box(5),
        "doc": Dict(spaces={"0": box(7), "1": box(7)}),
        "response": Tuple(spaces=(answer,) * 3),
    }
    env = SimpleNamespace(observation_space=Dict(spaces=spaces), action_space=CHOICE)

    def extras() -> list[Any]:
        rb = ReplayBuffer.create_from_env(env, replay_memory_size=10, batch_size=2)
        assert rb.get_add_args_signature()[0] == ("observation", (5,), np.float32)
        return [tuple(element) for element in rb.get_add_args_signature()[4:-3]]

    answers = [("response_click", (3,), np.int64), ("response_quality", (3, 2), np.float32)]
    assert extras() == [("doc", (2, 7), np.float32), *answers]
    spaces["doc"] = Dict(
        spaces={"0": Dict(spaces={"id": CHOICE}), "1": Dict(spaces={"id": CHOICE})}
    )
    assert extras() == [("doc_id", (2,), np.int64), *answers]
    spaces["doc"] = Dict(spaces={"0": CHOICE})
    with pytest.raises(NotImplementedError):
        extras()


@pytest.mark.parametrize(
    "spaces", [(CHOICE, CHOICE), (Dict(spaces={}), CHOICE), (box(2), Dict(spaces={})), (None, None)]
)
def test_other_spaces(spaces: tuple[Any, Any]) -> None:
    """ReAgent has no fields for them."""
    env = SimpleNamespace(observation_space=spaces[0], action_space=spaces[1])
    with pytest.raises(NotImplementedError):
        ReplayBuffer.create_from_env(env, replay_memory_size=10, batch_size=2)


def test_spaces_of_gymnasium() -> None:
    """The real ones are known as well."""
    gymnasium = need("gymnasium")
    env = SimpleNamespace(
        observation_space=gymnasium.spaces.Box(0, 255, (4, 4), np.uint8),
        action_space=gymnasium.spaces.Discrete(3),
    )
    rb = ReplayBuffer.create_from_env(env, replay_memory_size=10, batch_size=2)
    rb.add(env.observation_space.sample(), env.action_space.sample(), 1.0, False, 0, 0, -0.5)
    assert rb._store["observation"].dtype == torch.uint8


# ---- tables ------------------------------------------------------------------------------


def logged(n: int, **options: Any) -> Any:
    """A buffer with the extras that a table needs."""
    rb = ReplayBuffer(replay_capacity=20, **options)
    for t in range(n):
        extras = {"mdp_id": 3, "sequence_number": t, "log_prob": np.log(0.5)}
        step = {
            "observation": [t, 0.5],
            "action": t % 2,
            "reward": float(t),
            "terminal": t == n - 1,
        }
        rb.add(**step, **extras)
    return rb


def test_tables_have_each_step_once() -> None:
    """In order, with the possible actions of all of them."""
    need("pandas", "make test-torch")
    table = replay_buffer_to_pre_timeline_df(True, logged(4))
    assert list(table.columns) == [
        *("ds", "state_features", "action", "mdp_id", "sequence_number", "action_probability"),
        *("reward", "metrics", "possible_actions_mask", "possible_actions"),
    ]
    assert table["sequence_number"].tolist() == [0, 1, 2, 3]
    assert table["state_features"].tolist()[2] == {0: 2.0, 1: 0.5}
    assert table["action"].tolist() == ["0", "1", "0", "1"]
    assert table["mdp_id"].tolist() == ["3"] * 4
    assert table["ds"].tolist() == ["2019-01-01"] * 4
    assert table["metrics"].tolist() == [{"reward": float(t)} for t in range(4)]
    np.testing.assert_allclose(table["action_probability"], 0.5)
    assert table["possible_actions"].tolist() == [["0", "1"]] * 3 + [[]]
    assert table["possible_actions_mask"].tolist() == [[1, 1]] * 3 + [[]]
    table = replay_buffer_to_pre_timeline_df(True, logged(2), n_actions=3)
    assert table["possible_actions"].tolist() == [["0", "1", "2"], []]
    with pytest.raises(ValueError, match="n_actions: expected more than 1"):
        replay_buffer_to_pre_timeline_df(True, logged(4), n_actions=1)


def test_tables_of_continuous_actions() -> None:
    """Actions are dicts; fields of possible actions are taken over."""
    need("pandas", "make test-torch")
    rb = ReplayBuffer(replay_capacity=9)
    for t in range(2):
        extras = {"mdp_id": 3, "sequence_number": t, "log_prob": 0.0}
        rb.add(**STEP | {"action": [0.5, t]}, **extras, possible_actions_mask=[1, t])
    table = replay_buffer_to_pre_timeline_df(False, rb)
    assert table["action"].tolist() == [{0: 0.5, 1: 0.0}]
    assert table["possible_actions_mask"].tolist() == [[1, 0]]
    assert "possible_actions" not in table


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"stack_size": 2}, "state"),
        ({"update_horizon": 2, "return_as_timeline_format": True}, "timeline"),
    ],
)
def test_tables_that_cannot_be_made(options: dict[str, Any], word: str) -> None:
    """Of stacks, of lists, or without what was logged."""
    need("pandas", "make test-torch")
    with pytest.raises(ValueError, match=word):
        replay_buffer_to_pre_timeline_df(True, logged(4, **options))
    rb = ReplayBuffer(replay_capacity=9)
    rb.add(**STEP)
    with pytest.raises(ValueError, match="log_prob"):
        replay_buffer_to_pre_timeline_df(True, rb)
