"""cpprb's helpers for environments: its names and types, and nested spaces beyond them."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium_cases import Trail, Words, spaces_of
from helpers import rooms
from optional import need

import cpprb_like
from cpprb_like import ReplayBuffer, create_before_add_func, create_env_dict

FLOAT, INT = np.float32, np.int32

BOX = spaces.Box(0, 1, (2,))
IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)


def test_plain_environment() -> None:
    """The fields of CartPole are those of cpprb, in its order."""
    assert create_env_dict(gym.make("CartPole-v1")) == {
        "rew": {"shape": 1, "dtype": FLOAT},
        "done": {"shape": 1, "dtype": FLOAT},
        "obs": {"shape": (4,), "dtype": FLOAT},
        "next_obs": {"shape": (4,), "dtype": FLOAT},
        "act": {"shape": 1, "dtype": INT},
    }
    assert list(create_env_dict(gym.make("CartPole-v1"))) == [
        "rew",
        "done",
        "obs",
        "next_obs",
        "act",
    ]


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(0, 1, (2, 3), np.float64), (2, 3), FLOAT),
        (spaces.Box(0, 1, ()), (), FLOAT),
        (IMAGE, (4, 4, 3), FLOAT),
        (spaces.Discrete(3), 1, INT),
        (spaces.MultiDiscrete([3, 4]), (2,), INT),
        (spaces.MultiBinary(4), 4, INT),
        (spaces.MultiBinary([2, 3]), (2, 3), INT),
        (spaces.OneOf([BOX]), 1, object),
    ],
    ids=str,
)
def test_declaration_of_a_space(space: Any, shape: Any, dtype: Any) -> None:
    """Each space has cpprb's shape and type; the two after MultiBinary are ours."""
    env_dict = create_env_dict(spaces_of(space, space))
    for name in ("obs", "next_obs", "act"):
        assert env_dict[name]["shape"] == shape
        assert np.dtype(env_dict[name]["dtype"]) == np.dtype(dtype)


def test_values_of_any_length() -> None:
    """They have the axes of a recorder, under these names, and the types of other spaces."""
    graph = spaces.Graph(IMAGE, spaces.Discrete(3))
    env_dict = create_env_dict(
        spaces_of(spaces.Tuple([graph, spaces.Text(7)]), spaces.Sequence(spaces.Discrete(3)))
    )
    assert env_dict == {
        "rew": {"shape": 1, "dtype": FLOAT},
        "done": {"shape": 1, "dtype": FLOAT},
        **{
            f"{root}0.nodes": {"shape": (f"{root}0.nodes", 4, 4, 3), "dtype": FLOAT}
            for root in ("obs", "next_obs")
        },
        **{
            f"{root}0.edges": {"shape": (f"{root}0.edges",), "dtype": INT}
            for root in ("obs", "next_obs")
        },
        **{
            f"{root}0.edge_links": {
                "shape": (f"{root}0.edges", 2),
                "dtype": INT,
                "counts": f"{root}0.nodes",
            }
            for root in ("obs", "next_obs")
        },
        "obs1": {"shape": (), "dtype": str},
        "next_obs1": {"shape": (), "dtype": str},
        "act": {"shape": ("act",), "dtype": INT},
    }
    assert list(create_env_dict(spaces_of(graph)))[2:4] == ["obs.nodes", "next_obs.nodes"]


def test_types_that_are_asked_for() -> None:
    """``int_type`` and ``float_type`` replace cpprb's types."""
    env = spaces_of(IMAGE, spaces.Discrete(3))
    chosen = create_env_dict(env, int_type=np.int8, float_type="float64")
    assert [chosen[name]["dtype"] for name in ("rew", "done", "obs", "next_obs")] == ["float64"] * 4
    assert chosen["act"]["dtype"] is np.int8


def test_tuple_spaces() -> None:
    """Parts are numbered as in cpprb."""
    env = spaces_of(spaces.Tuple([BOX, spaces.Discrete(2)]), spaces.Tuple([spaces.Discrete(2)]))
    env_dict = create_env_dict(env)
    assert list(env_dict) == ["rew", "done", "obs0", "next_obs0", "obs1", "next_obs1", "act0"]
    given = create_before_add_func(env)((1, 2), (3,), (4, 5), 6, 7)
    assert given == {
        "obs0": 1,
        "obs1": 2,
        "act0": 3,
        "next_obs0": 4,
        "next_obs1": 5,
        "rew": 6,
        "done": 7,
    }


def test_dict_spaces() -> None:
    """The two functions agree on names, where cpprb's differ."""
    env = spaces_of(spaces.Dict({"k": BOX}), spaces.Dict({"a": spaces.Discrete(3)}))
    env_dict = create_env_dict(env)
    assert list(env_dict) == ["rew", "done", "k", "next_k", "a"]
    before_add = create_before_add_func(env)
    rb = ReplayBuffer(10, env_dict)
    rb.add(**before_add(obs={"k": [0, 1]}, act={"a": 2}, next_obs={"k": [3, 4]}, rew=5, done=1))
    batch = rb.get_all_transitions()
    assert {name: column.ravel().tolist() for name, column in batch.items()} == {
        "rew": [5],
        "done": [1],
        "k": [0, 1],
        "next_k": [3, 4],
        "a": [2],
    }


def test_batches_pass_through() -> None:
    """Several steps at once are taken apart as one is."""
    env = spaces_of(spaces.Tuple([BOX, spaces.Discrete(2)]))
    rb = ReplayBuffer(10, create_env_dict(env))
    obs = (np.zeros((3, 2)), np.array([0, 1, 0]))
    rb.add(**create_before_add_func(env)(obs, [1, 1, 0], obs, [1, 2, 3], [0, 0, 1]))
    assert len(rb) == 3


@pytest.mark.parametrize("maker", [Trail, Words])
def test_nested_environment(maker: Any) -> None:
    """Nested spaces and values without a fixed size go through both functions unchanged."""
    env = maker()
    env_dict = create_env_dict(env, int_type=np.int64, float_type=np.float64)
    rb = ReplayBuffer(10, env_dict, room=rooms(env_dict))
    before_add = create_before_add_func(env)
    obs, _ = env.reset(seed=3)
    action = env.action_space.sample()
    next_obs, rew, terminated, _, _ = env.step(action)
    given = before_add(obs, action, next_obs, rew, terminated)
    rb.add(**given)
    row = rb[0]
    assert set(given) <= set(row)
    if maker is Trail:
        np.testing.assert_array_equal(row["next_goal.1"], next_obs["goal"][1])
        np.testing.assert_array_equal(row["act1.push"], action[1]["push"])
    else:
        assert row["word"] == obs["word"]
        np.testing.assert_array_equal(row["next_points"], np.reshape(next_obs["points"], (-1, 2)))
        np.testing.assert_array_equal(row["stack"], obs["stack"])
        assert row["either"].item() == obs["either"]
        assert row["graphs.1.edges"].shape == (0, 3)
        np.testing.assert_array_equal(row["next_graphs.1.edge_links"], [[0, 1]])
        np.testing.assert_array_equal(row["graphs.0.nodes"], obs["graphs"][0].nodes)


@pytest.mark.parametrize(
    ("observation", "action", "name"),
    [
        (spaces.Dict({"rew": BOX}), BOX, "rew"),
        (spaces.Dict({"k": BOX}), spaces.Dict({"k": BOX}), "k"),
        (spaces.Dict({"k": BOX, "next_k": BOX}), BOX, "next_k"),
        (spaces.Dict({"act": BOX}), BOX, "act"),
    ],
)
def test_two_parts_of_one_name(observation: Any, action: Any, name: str) -> None:
    """Fields that would share a name are refused, where cpprb drops one of them."""
    env = spaces_of(observation, action)
    for function in (create_env_dict, create_before_add_func):
        with pytest.raises(ValueError, match=f"'{name}'.*GymnasiumRecorder"):
            function(env)


def test_unknown_space() -> None:
    """A space that cannot be stored is refused by name."""

    class Odd(spaces.Space[int]):
        def __repr__(self) -> str:
            return "Odd()"

    with pytest.raises(NotImplementedError, match=r"Odd\(\)"):
        create_env_dict(spaces_of(Odd()))


def test_names_of_the_package() -> None:
    """Both functions are the package's, as in cpprb."""
    module = importlib.import_module("cpprb_like.integrations.gymnasium")
    assert cpprb_like.create_env_dict is module.create_env_dict
    assert cpprb_like.create_before_add_func is module.create_before_add_func


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (BOX, spaces.Discrete(3)),
        (IMAGE, spaces.MultiDiscrete([2, 3])),
        (spaces.MultiBinary([2, 3]), spaces.MultiBinary(4)),
        (spaces.Tuple([BOX, spaces.Discrete(3)]), spaces.Tuple([spaces.MultiBinary(3)])),
        (spaces.Dict({"k": BOX, "m": spaces.Discrete(3)}), spaces.Dict({"a": BOX})),
    ],
    ids=str,
)
def test_same_as_cpprb(observation: Any, action: Any) -> None:
    """Where cpprb is installed, its declarations are the same."""
    cpprb = need("cpprb")
    env = spaces_of(observation, action)
    ours, theirs = create_env_dict(env), cpprb.create_env_dict(env)
    assert ours == theirs
    assert list(ours) == list(theirs)
    if isinstance(observation, spaces.Dict):
        return  # cpprb's two functions disagree on these names
    step = (observation.sample(), action.sample(), observation.sample(), 1.0, 0.0)
    np.testing.assert_equal(
        create_before_add_func(env)(*step), cpprb.create_before_add_func(env)(*step)
    )
