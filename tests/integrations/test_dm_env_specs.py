"""Nested specs become fields of the same shape and dtype, and nested batches again."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import rooms
from optional import need

need("dm_env")

import dm_env
from dm_env import specs
from dm_env_cases import Arm, Stacked, Trail, attached, drawn_actions, env_of, outline, take
from views import sample_sequences

import cpprb_like
from cpprb_like import ReplayBuffer
from cpprb_like.integrations.dm_env import DmEnvRecorder, SpecNest, env_dict_from_spec

Bare = namedtuple("Bare", ["shape", "dtype"])  # noqa: PYI024 (what no annotation describes)


class Spec:
    """Any object with a shape and a dtype is a spec."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype


@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [
        (specs.Array((), float), (), "float64"),
        (specs.Array((84, 84, 4), np.uint8), (84, 84, 4), "uint8"),
        (specs.BoundedArray((1,), np.float16, 0, 1), (1,), "float16"),
        (specs.DiscreteArray(7), (), "int32"),
        (specs.DiscreteArray(7, dtype=np.int64), (), "int64"),
        (specs.StringArray((2,)), (2,), "O"),
        (specs.Array((), "U5"), (), "U5"),
        (Spec([np.int64(2), 3], "bool"), (2, 3), "bool"),
        (Spec((), SimpleNamespace(as_numpy_dtype=np.float32)), (), "float32"),
    ],
    ids=str,
)
def test_fields_follow_the_spec(spec: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Shape and dtype of observations, actions and rewards are the specs'."""
    env_dict = DmEnvRecorder(env_of(spec, spec, spec)).env_dict
    assert list(env_dict) == [
        *("obs", "act", "rew", "discount", "next_obs", "terminated", "truncated")
    ]
    for name in ("obs", "act", "rew", "next_obs"):
        assert env_dict[name] == {"shape": shape, "dtype": np.dtype(dtype)}
    assert env_dict["discount"] == {"shape": (), "dtype": np.dtype("float32")}
    for name in ("terminated", "truncated"):
        assert env_dict[name] == {"shape": (), "dtype": np.dtype(bool)}
    assert env_dict_from_spec(spec, "x") == {"x": {"shape": shape, "dtype": np.dtype(dtype)}}
    assert len(ReplayBuffer(10, env_dict)) == 0


def test_rewards_and_discounts_of_dm_env_are_of_64_bits_unless_it_says_otherwise() -> None:
    """The default specs of ``dm_env.Environment`` are taken like any other."""
    env = dm_env.Environment
    found = DmEnvRecorder(
        env_of(reward=env.reward_spec(Trail()), discount=env.discount_spec(Trail()))
    ).env_dict
    assert found["rew"]["dtype"] == found["discount"]["dtype"] == np.float64


def test_specs_of_whole_time_steps() -> None:
    """TF-Agents' ``time_step_spec`` knows the reward; discounts go by ``discount_spec``, if any."""
    told = dm_env.TimeStep(None, specs.Array((3,), float), specs.Array((), np.float16), None)
    env = env_of(time_step_spec=lambda: told)
    fields = DmEnvRecorder(env).env_dict
    assert fields["rew"] == {"shape": (3,), "dtype": np.dtype(float)}
    assert fields["discount"]["dtype"] == np.float32
    del env.discount_spec
    assert DmEnvRecorder(env).env_dict["discount"]["dtype"] == np.float16


def test_names_of_nested_fields() -> None:
    """Parts are named by the path of keys, positions and names that leads to them."""
    observation = [
        "clock",
        *("arms.0.angles", "arms.0.held"),
        *("arms.1.angles", "arms.1.held"),
    ]
    assert list(DmEnvRecorder(Trail()).env_dict) == [
        *(f"obs.{part}" for part in observation),
        *("act.0", "act.1.push", "rew.speed", "rew.style", "discount"),
        *(f"next_obs.{part}" for part in observation),
        *("terminated", "truncated"),
    ]


def test_names_without_a_first_part() -> None:
    """A nest needs no name; a single spec does."""
    leaf = specs.DiscreteArray(3)
    assert list(env_dict_from_spec({"a": leaf, "b": [leaf, Arm(leaf, leaf)]})) == [
        *("a", "b.0", "b.1.angles", "b.1.held")
    ]
    with pytest.raises(ValueError, match="needs a name"):
        env_dict_from_spec(leaf)


def test_order_of_a_dict_changes_no_name() -> None:
    """The values of a dict are found by key, whatever the order of spec and value."""
    leaf = specs.DiscreteArray(9)
    nest = SpecNest(OrderedDict(b=leaf, a=leaf), "obs")
    assert nest.flatten({"a": 1, "b": 2}) == {"obs.b": 2, "obs.a": 1}


def test_env_dict_is_the_callers_own() -> None:
    """Changing it, or the spec, changes no other reading."""
    spec = {"a": specs.Array((2,), float)}
    nest = SpecNest(spec)
    recorder = DmEnvRecorder(Trail())
    for owner in (nest, recorder):
        first = owner.env_dict
        first[next(iter(first))]["shape"] = 3
        first.clear()
    spec.clear()
    assert nest.env_dict == {"a": {"shape": (2,), "dtype": np.dtype(float)}}
    assert recorder.env_dict["obs.clock"]["shape"] == (2,)


def test_restore_nests_a_sampled_batch() -> None:
    """A batch gets the nesting of the specs over the same arrays; other columns stay."""
    env = Stacked([Trail(seed) for seed in range(2)])
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    for action in drawn_actions(5, seed=1):
        pair = (np.array([action[0]] * 2), {"push": np.array([action[1]["push"]] * 2)})
        recorder.add(pair, env.step([action] * 2))
    batch = rb.sample(8)
    batch["weights"] = np.ones(8)
    nested = recorder.restore(batch)
    assert set(nested) == {
        *("obs", "act", "rew", "next_obs"),
        *("discount", "terminated", "truncated", "weights"),
    }
    for root in ("obs", "next_obs"):
        assert outline(nested[root]) == outline(env.observation_spec())
        assert nested[root]["clock"] is batch[f"{root}.clock"]
        assert nested[root]["arms"][1].angles is batch[f"{root}.arms.1.angles"]
    assert outline(nested["act"]) == outline(env.action_spec())
    assert outline(nested["rew"]) == outline(env.reward_spec())
    assert nested["rew"]["style"] is batch["rew.style"]
    assert nested["weights"] is batch["weights"]
    for part, spec in take(nested["rew"], 0).items():
        env.reward_spec()[part].validate(spec)
    with pytest.raises(KeyError, match=r"obs\.clock"):
        recorder.restore({"discount": batch["discount"]})


def test_restored_sequences() -> None:
    """Columns of sequences are nested like those of steps."""
    env = Trail()
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    for action in drawn_actions(40, seed=1):
        recorder.add(action, env.step(action))
    nested = recorder.restore(sample_sequences(rb, 3, 4))
    assert nested["obs"]["clock"].shape == (3, 4, 2)
    assert nested["obs"]["arms"][0].angles.shape == (3, 4, 3)


def test_further_nests_beside_a_step() -> None:
    """What a policy says of its action is another nest of fields."""
    info = SpecNest({"logp": specs.Array((), float), "state": (specs.Array((2,), float),)}, "info")
    recorder = DmEnvRecorder(env_of(), n_envs=2)
    rb = recorder.attach(ReplayBuffer(10, {**recorder.env_dict, **info.env_dict}, n_envs=2))
    begins = dm_env.TimeStep([0, 0], None, None, np.zeros((2, 2)))
    recorder.reset(begins)
    value = {"logp": np.array([-1.0, -2.0]), "state": (np.arange(4.0).reshape(2, 2),)}
    step = dm_env.TimeStep([1, 2], [1.0, 1.0], [1.0, 0.0], np.ones((2, 2)))
    recorder.add([0, 1], step, **info.flatten(value, n_envs=2))
    recorder.add([0, 1], step._replace(step_type=[1, 0]), **info.flatten(value, n_envs=2))
    found = info.restore(rb.get_all_transitions())
    assert found["logp"].tolist() == [-1, -2, -1]
    assert found["state"][0].tolist() == [[0, 1], [2, 3], [0, 1]]


def test_empty_nests() -> None:
    """A nest without specs, such as the info of most policies, has no fields."""
    empties: list[Any] = [(), {}, []]
    for empty in empties:
        nest = SpecNest(empty, "info")
        assert (nest.env_dict, nest.flatten(empty), nest.restore({})) == ({}, {}, empty)


def test_objects_are_copied() -> None:
    """Python objects in a buffer do not change with those that were given."""
    nest = SpecNest(Spec((), object), "memo")
    rb = ReplayBuffer(10, nest.env_dict)
    memo = {"seen": [1]}
    rb.add(**nest.flatten(memo))
    memo["seen"].append(2)
    assert rb[0]["memo"] == {"seen": [1]}


def test_objects_of_several_environments() -> None:
    """They come one for each environment, in a list, a tuple or an array. Texts do too."""
    words = ["a", "bc"]
    for spec, value in itertools.product(
        (Spec((), object), specs.StringArray(())),
        (words, tuple(words), np.array(words), np.array(words, object)),
    ):
        nest = SpecNest(spec, "word")
        rb = ReplayBuffer(10, nest.env_dict, n_envs=2, room=rooms(nest.env_dict))
        rb.add(**nest.flatten(value, n_envs=2))
        assert rb.get_all_transitions()["word"].tolist() == ["a", "bc"]
    with pytest.raises(ValueError, match="expected shape"):
        nest.flatten("ab", n_envs=2)


def test_text_actions_beside_environments_that_reset() -> None:
    """An environment that resets has no action, whatever was given for it."""
    recorder, rb = attached(env_of(action=specs.StringArray(())), n_envs=2)
    for types, action in (([0, 0], None), ([2, 1], ["left", "é"]), ([0, 1], [None, ""])):
        step = dm_env.TimeStep(np.array(types), np.zeros(2), np.ones(2), np.zeros((2, 2)))
        if action is None:
            recorder.reset(step)
        else:
            recorder.add(action, step)
    assert rb.get_all_transitions()["act"].tolist() == ["left", "é", ""]


def test_recorder_is_pickled_with_its_nests() -> None:
    """A copy goes on where the recorder was, into a buffer of its own."""
    env = Trail()
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    action = drawn_actions(1, seed=0)[0]
    step = env.step(action)
    copied = pickle.loads(pickle.dumps(recorder))
    recorder.add(action, step)
    fields = copied.env_dict
    assert copied.attach(ReplayBuffer(10, fields, room=rooms(fields))).capacity == 10
    copied.reset(env.reset())
    nested = copied.restore(rb.sample(3))
    assert outline(nested["obs"]) == outline(env.observation_spec())


class Lender:
    """Is read by way of an array that stays its own, like tensors of other packages."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, *_: object, **__: object) -> Any:
        return self.array


@pytest.mark.parametrize("give", [np.asarray, Lender])
def test_values_are_copied(give: Any) -> None:
    """What is flattened shares no memory with the value, which may be read-only."""
    value = np.zeros(2)
    value.flags.writeable = False
    (found,) = SpecNest(specs.Array((2,), float), "x").flatten(give(value)).values()
    assert not np.shares_memory(found, value)


def test_objects_in_an_array_are_copied() -> None:
    """Python objects are copied with the array that holds them."""
    memos = np.array([{"seen": [1]}, None], object)
    (found,) = SpecNest(Spec((2,), object), "memo").flatten(memos).values()
    memos[0]["seen"].append(2)
    assert found[0] == {"seen": [1]}


@pytest.mark.parametrize(
    ("error", "raised"), [(RuntimeError, ValueError), (MemoryError, MemoryError)]
)
def test_value_that_cannot_be_read(error: type[Exception], raised: type[Exception]) -> None:
    """An error of a value names the field; but no memory is no bad value."""

    class Unreadable:
        def __array__(self, *_: object, **__: object) -> Any:
            raise error("unreadable")

    with pytest.raises(raised, match="unreadable") as caught:
        SpecNest(specs.Array((), float), "x").flatten(Unreadable())
    assert ("'x'" in str(caught.value)) == (raised is ValueError)


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        (None, TypeError, ["'obs'", "a shape and a dtype", "None"]),
        ({"a": [3]}, TypeError, ["'obs.a.0'", "3"]),
        ({"a": np.float32}, (TypeError, ValueError), ["'obs.a'"]),
        (Spec(None, float), TypeError, ["'obs'"]),
        (Spec((), None), TypeError, ["'obs'"]),
        (Spec((None, 3), float), ValueError, ["'obs'", "fixed shape"]),
        (Spec((2.5,), float), ValueError, ["'obs'", "fixed shape"]),
        (Spec((-1,), float), ValueError, ["'obs'", "fixed shape", "negative"]),
        (Spec((2,), "no such"), ValueError, ["'obs'", "dtype of NumPy"]),
        ({"a": {"b": Spec((), int)}, "a.b": Spec((), int)}, ValueError, ["['obs.a.b']"]),
        ({1: Spec((), int), "1": Spec((), int)}, ValueError, ["['obs.1']"]),
    ],
)
def test_bad_spec(spec: Any, error: Any, words: list[str]) -> None:
    """What is no spec is refused by the name that its field would have."""
    with pytest.raises(error) as caught:
        SpecNest(spec, "obs")
    assert [word for word in words if word not in str(caught.value)] == []


def test_named_tuple_with_the_names_of_a_spec() -> None:
    """A tuple is a nest, even if its fields are called like the attributes of a spec."""
    leaf = specs.DiscreteArray(3)
    assert list(env_dict_from_spec(Bare(leaf, leaf), "obs")) == ["obs.shape", "obs.dtype"]


def test_nothing_is_imported() -> None:
    """The module needs neither dm_env nor TF-Agents."""
    program = (
        "import sys, numpy; before = set(sys.modules)\n"
        "from cpprb_like.integrations.dm_env import DmEnvRecorder\n"
        "print(*set(sys.modules) - before)"
    )
    command = [sys.executable, "-c", program]
    place = Path(cpprb_like.__file__).parents[1]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "cpprb_like.integrations.dm_env" in loaded
    packages = {name.partition(".")[0] for name in loaded}
    assert not packages & {"dm_env", "tree", "tf_agents", "tensorflow", "gymnasium"}


def test_floats_of_another_type() -> None:
    """``float_type`` is that of all floats, for networks that take no other; the rest stays."""
    env = env_of({"at": specs.Array((2,), np.float64), "id": specs.Array((), np.int32)})
    fields = DmEnvRecorder(env, float_type=np.float32).env_dict
    floats = {name for name, spec in fields.items() if spec["dtype"] == np.float32}
    assert {"obs.at", "next_obs.at", "rew", "discount"} <= floats
    assert fields["obs.id"]["dtype"] == np.int32
    assert DmEnvRecorder(env).env_dict["obs.at"]["dtype"] == np.float64
    for wrong, error in (("space", TypeError), (int, ValueError), ("x", TypeError)):
        with pytest.raises(error, match=r"float_type: expected a .*'spec'"):
            DmEnvRecorder(env, float_type=wrong)
