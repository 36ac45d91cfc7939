"""Spaces become fields of the same shape and dtype, and nested batches again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium_cases import Trail, attached, cart_pole, spaces_of, take
from helpers import rooms

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.views import Packed


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), (84, 84, 4), "uint8"),
        (spaces.Box(0, 1, (), np.float64), (), "float32"),
        (spaces.Box(0, 1, (1,), np.float16), (1,), "float32"),
        (spaces.Discrete(7), (), "int64"),
        (spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])), (2, 2), "int64"),
        (spaces.MultiBinary(5), (5,), "int8"),
        (spaces.MultiBinary([2, 3]), (2, 3), "int8"),
        (spaces.OneOf([spaces.Discrete(3)]), (), "O"),
        (spaces.Sequence(spaces.Text(3)), (), "O"),
        (spaces.Sequence(spaces.Sequence(spaces.Discrete(3))), (), "O"),
    ],
    ids=str,
)
def test_fields_follow_the_space(space: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Shape and dtype of observations and actions are the space's; floats are float32."""
    env_dict = GymnasiumRecorder(spaces_of(space, space)).env_dict
    assert list(env_dict) == ["obs", "act", "rew", "next_obs", "terminated", "truncated"]
    for name in ("obs", "act", "next_obs"):
        assert env_dict[name] == {"shape": shape, "dtype": np.dtype(dtype)}
    assert env_dict["rew"] == {"shape": (), "dtype": np.dtype("float32")}
    assert env_dict["terminated"] == {"shape": (), "dtype": np.dtype(bool)}
    assert env_dict["truncated"] == {"shape": (), "dtype": np.dtype(bool)}


def test_fields_of_values_of_any_length() -> None:
    """Axes have the names of fields, and next observations have axes of their own."""
    space = spaces.Dict(
        {
            "bare": spaces.Graph(spaces.Discrete(3), None),
            "graph": spaces.Graph(spaces.Box(0, 1, (4,), np.float64), spaces.MultiBinary(2)),
            "points": spaces.Sequence(spaces.Box(0, 9, (3,), np.uint8)),
            "word": spaces.Text(12),
        }
    )
    env_dict = GymnasiumRecorder(spaces_of(space, spaces.Sequence(spaces.Discrete(3)))).env_dict
    for root in ("obs", "next_obs"):
        assert {name: env_dict[name] for name in env_dict if name.startswith(root)} == {
            f"{root}.bare.nodes": {"shape": (f"{root}.bare.nodes",), "dtype": np.int64},
            f"{root}.graph.nodes": {"shape": (f"{root}.graph.nodes", 4), "dtype": np.float32},
            f"{root}.graph.edges": {"shape": (f"{root}.graph.edges", 2), "dtype": np.int8},
            f"{root}.graph.edge_links": {
                "shape": (f"{root}.graph.edges", 2),
                "dtype": np.int64,
                "counts": f"{root}.graph.nodes",
            },
            f"{root}.points": {"shape": (f"{root}.points", 3), "dtype": np.uint8},
            f"{root}.word": {"shape": (), "dtype": str},
        }
    assert env_dict["act"] == {"shape": ("act",), "dtype": np.int64}
    with pytest.raises(ValueError, match=r"room=\{'obs.bare.nodes': 100_000, 'obs.graph.nodes'"):
        ReplayBuffer(100, env_dict)
    assert len(ReplayBuffer(100, env_dict, room=rooms(env_dict)).schema.axes) == 11


def test_packed_graphs_are_one_graph() -> None:
    """Edges of a batch count its nodes, and a batch is nested as its spaces are."""
    env = spaces_of(spaces.Graph(spaces.Box(0, 9, (1,)), spaces.Discrete(3)), spaces.Text(3))
    recorder, rb = attached(env)
    no_edges = spaces.GraphInstance(np.ones((1, 1)), None, None)
    recorder.reset(no_edges)
    pair = spaces.GraphInstance(np.zeros((2, 1)), np.array([2, 1]), np.array([[0, 1], [1, 0]]))
    recorder.add("on", pair, 0.0, False, False, {})
    recorder.add("off", pair, 0.0, True, False, {})
    batch = recorder.restore(rb.view(Packed()).sample(2, replace=False))
    assert batch["act"].tolist() in (["on", "off"], ["off", "on"])
    assert batch["next_obs"].edge_links.tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]
    assert batch["next_obs"].edges.tolist() == [2, 1, 2, 1]
    assert batch["next_obs.nodes_offsets"].tolist() == [0, 2, 4]
    assert sorted(np.diff(batch["obs.edges_offsets"])) == [0, 2]


def test_names_of_nested_fields() -> None:
    """Parts are named by the path of keys and positions, in the order of the space."""
    recorder = GymnasiumRecorder(Trail())
    observation = ["camera", "clock", "goal.0", "goal.1"]
    expected = [
        *(f"obs.{part}" for part in observation),
        *("act.0", "act.1.push", "rew"),
        *(f"next_obs.{part}" for part in observation),
        *("terminated", "truncated"),
    ]
    assert list(recorder.env_dict) == expected


def test_env_dict_is_the_callers_own() -> None:
    """Changing it changes no other reading."""
    recorder = GymnasiumRecorder(Trail())
    first = recorder.env_dict
    first["rew"]["shape"] = 3
    first.clear()
    assert recorder.env_dict["rew"]["shape"] == ()


def test_restore_nests_a_sampled_batch() -> None:
    """A batch gets the nesting of the spaces over the same arrays; other columns stay."""
    env = Trail()
    recorder, rb = attached(env)
    action = (2, {"push": np.array([0.5, -0.5])})
    recorder.reset(env.reset(seed=0)[0])
    for _ in range(3):
        recorder.add(action, *env.step(action)[:2], False, False, {})
    batch = rb.sample(8)
    batch["weights"] = np.ones(8)
    nested = recorder.restore(batch)
    assert set(nested) == {"obs", "act", "rew", "next_obs", "terminated", "truncated", "weights"}
    for root in ("obs", "next_obs"):
        assert nested[root]["clock"] is batch[f"{root}.clock"]
        assert nested[root]["goal"][1] is batch[f"{root}.goal.1"]
        assert take(nested[root], 0) in env.observation_space
    assert take(nested["act"], 3) in env.action_space
    assert nested["act"][1]["push"] is batch["act.1.push"]
    assert nested["weights"] is batch["weights"]
    with pytest.raises(KeyError, match=r"obs\.camera"):
        recorder.restore({"rew": batch["rew"]})


def test_plain_spaces_are_restored_as_they_are() -> None:
    """Without nesting, a restored batch is the batch."""
    recorder, rb = attached(cart_pole())
    recorder.reset(np.zeros(4, np.float32))
    recorder.add(0, np.ones(4, np.float32), 1.0, False, False, {})
    batch = rb.sample(5)
    restored = recorder.restore(batch)
    assert all(restored[name] is batch[name] for name in batch)


def test_unknown_space() -> None:
    """A space that cannot be stored is refused by name."""

    class Odd(spaces.Space[int]):
        def __repr__(self) -> str:
            return "Odd()"

    nested = spaces.Dict({"a": spaces.Tuple([Odd()])})
    with pytest.raises(NotImplementedError, match=r"Odd\(\)"):
        GymnasiumRecorder(spaces_of(nested))


def test_two_parts_of_one_name() -> None:
    """Keys that would make one field of two parts are refused."""
    box = spaces.Box(0, 1)
    nested = spaces.Dict({"a": spaces.Dict({"b": box}), "a.b": box})
    with pytest.raises(ValueError, match=r"obs\.a\.b"):
        GymnasiumRecorder(spaces_of(nested))


def test_no_environment() -> None:
    """Something without spaces is refused."""
    with pytest.raises(TypeError, match="expected a Gymnasium environment, got int"):
        GymnasiumRecorder(3)  # type: ignore[arg-type]


def test_fields_of_other_types() -> None:
    """A buffer may declare a reward of several parts, or another dtype."""
    recorder = GymnasiumRecorder(cart_pole())
    fields = recorder.env_dict
    fields["rew"] = {"shape": 2, "dtype": np.float64}
    fields["obs"]["dtype"] = fields["next_obs"]["dtype"] = np.float16
    rb = recorder.attach(ReplayBuffer(10, fields))
    recorder.reset(np.full(4, 0.5, np.float32))
    recorder.add(0, np.full(4, 1.5, np.float32), [0.1, 0.2], False, False, {})
    assert rb[0]["rew"].tolist() == [0.1, 0.2]
    assert rb[0]["next_obs"].tolist() == [1.5] * 4
