"""Files of D4RL that others wrote: where episodes end, and which next observation is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import _d4rl, describe
from cpprb_like.errors import DataLossWarning
from cpprb_like.views import FrameStacks, Hindsight, NStep, Sequences

h5py = need("h5py")

loss_is_told = pytest.mark.filterwarnings(
    "ignore:.*(metadata/policy/weight|steps are left out):cpprb_like.errors.DataLossWarning"
)


def written(path: Path, *, timeouts: bool = True, next_observations: bool = False) -> Any:
    """A file as D4RL's scripts write it: 12 steps, a terminal at 3, a time-out at 7."""
    rng = np.random.default_rng(0)
    data = {
        "observations": rng.normal(size=(12, 3)).astype(np.float32),
        "actions": rng.normal(size=(12, 2)).astype(np.float32),
        "rewards": rng.normal(size=12).astype(np.float32),
        "terminals": np.arange(12) == 3,
        "infos/qpos": rng.normal(size=(12, 4)),
    }
    if timeouts:
        data["timeouts"] = np.arange(12) == 7
    if next_observations:
        data["next_observations"] = rng.normal(size=(12, 3)).astype(np.float32)
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            file.create_dataset(name, data=values, compression="gzip")
        file.create_dataset("metadata/policy/weight", data=np.zeros(5))
    return data


def test_steps_whose_next_observation_is_not_known_are_left_out(tmp_path: Path) -> None:
    """Of the layout without ``next_observations``, with a warning; as by D4RL's own loader.

    Their next observations were zeros, from which targets bootstrapped.
    """
    data = written(tmp_path / "theirs.hdf5")

    with pytest.warns(DataLossWarning, match=r"; 2 of 12 steps are left out, .* their next_obs:"):
        rb = ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5")
    with pytest.raises(ValueError, match="metadata/policy/weight"):
        ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", strict=True)
    assert describe(tmp_path / "theirs.hdf5").left_out[-1].startswith("the last step of each")

    rows = rb.get_all_transitions()
    assert [(one.length, one.terminated, one.truncated) for one in rb.episodes.list()] == [
        (4, True, False),
        (3, False, True),
        (3, False, True),
    ]
    found, kept = qlearning_dataset(tmp_path / "theirs.hdf5"), ~np.isin(np.arange(12), (7, 11))
    names = {"obs": "observations", "act": "actions", "rew": "rewards", "terminated": "terminals"}
    for name, theirs in names.items():
        np.testing.assert_array_equal(rows[name], found[theirs])
        np.testing.assert_array_equal(rows[name], data[theirs][kept])
    np.testing.assert_array_equal(rows["info.qpos"], data["infos/qpos"][kept])
    masked = rows["terminated"]
    np.testing.assert_array_equal(
        rows["next_obs"][~masked], found["next_observations"][~found["terminals"]]
    )
    np.testing.assert_array_equal(rows["next_obs"][masked], rows["obs"][masked])


@loss_is_told
def test_targets_never_bootstrap_from_a_made_up_value(tmp_path: Path) -> None:
    """Of n-step returns, frame stacks and sequences; 38 % of the rows bootstrapped from zeros."""
    data = written(tmp_path / "theirs.hdf5")
    obs, rew = data["observations"], data["rewards"]
    expected = {0: (4, 0), 1: (4, 0), 2: (4, 0), 3: (4, 0), 4: (7, 3), 5: (7, 2), 6: (7, 1)}
    expected |= {8: (11, 3), 9: (11, 2), 10: (11, 1)}  # steps up to the second number
    several: list[Any] = [{}, {"next_of": "obs"}]
    for options in several:
        rb = ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", seed=0, **options)
        rows = rb.view(NStep(3, gamma=0.5, discount=True)).sample(300)
        seen = set()
        for k in range(300):
            (first,) = np.flatnonzero((obs == rows["obs"][k]).all(axis=1)).tolist()
            stop, power = expected[first]
            if stop - first > 3:
                stop, power = first + 3, 3
            gammas = 0.5 ** np.arange(stop - first)
            assert rows["rew"][k] == pytest.approx(gammas @ rew[first:stop], rel=1e-5)
            assert rows["discount"][k] == (0.5**power if power else 0)
            if power:
                np.testing.assert_array_equal(rows["next_obs"][k], obs[stop])
            seen.add(first)
        assert seen == expected.keys()
        observed = {row.tobytes() for row in obs}
        stacks = rb.view(FrameStacks({"obs": 2}), NStep(2, discount=True)).sample(200)
        for k in range(2):
            frames = stacks["next_obs"][..., k][stacks["discount"] > 0]
            assert {row.tobytes() for row in frames} <= observed
        sequences = rb.view(Sequences(2)).sample(50)
        following = sequences["next_obs"][sequences["mask"]]
        assert {row.tobytes() for row in following} <= observed


@loss_is_told
@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_goals_in_hindsight_are_observed_ones(tmp_path: Path, strategy: Any) -> None:
    """Goals were the zeros that stood for the unknown value: of each row with ``"final"``."""
    path = tmp_path / "theirs.hdf5"
    rng = np.random.default_rng(0)
    achieved = rng.normal(size=(12, 2))
    with h5py.File(path, "w") as file:
        file["observations/achieved_goal"] = achieved
        file["observations/desired_goal"] = np.zeros((12, 2))
        file["actions"] = file["rewards"] = np.ones(12)
        file["terminals"] = np.arange(12) == 3
        file["timeouts"] = np.arange(12) == 7
    rb = ReplayBuffer.from_dataset(path, seed=0)

    view = rb.view(
        Hindsight(lambda got, goal, _: (got == goal).all(1), relabel_ratio=1.0, strategy=strategy)
    )
    rows = view.sample(500)

    goals = {row.tobytes() for row in rows["obs.desired_goal"]}
    last = {achieved[k].tobytes() for k in (3, 7, 11)}
    assert goals == last if strategy == "final" else goals <= {row.tobytes() for row in achieved}


def test_without_fields_of_next_values_all_steps_are_read(tmp_path: Path) -> None:
    """As no draw reads what is not known; nothing is lost, so nothing is reported."""
    data = written(tmp_path / "theirs.hdf5")
    fields: Any = {"obs": {}, "act": {}, "rew": {}, "terminated": {}, "truncated": {}}
    with h5py.File(tmp_path / "theirs.hdf5", "a") as file:
        del file["metadata"]

    rb = ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", env_dict=fields, strict=True)

    np.testing.assert_array_equal(rb.get_all_transitions()["obs"], data["observations"])
    with pytest.raises(ValueError, match="2 of 12 steps are left out"):
        ReplayBuffer.from_dataset(
            tmp_path / "theirs.hdf5", env_dict=fields, strict=True, next_of="obs"
        )
    del fields["terminated"], fields["truncated"]
    with pytest.warns(DataLossWarning, match="3 of 12 steps are left out"):
        ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", env_dict={**fields, "next_obs": {}})


def test_episodes_of_one_step_whose_next_observation_is_not_known(tmp_path: Path) -> None:
    """They are left out as a whole, wherever they stand; also where none is left."""
    for ends, lengths in ([0, 1, 3], [1]), ([0, 1], []), ([1, 2, 3], [1]), ([0, 3], [2]):
        path = tmp_path / f"{ends}.hdf5"
        with h5py.File(path, "w") as file:
            file["observations"] = np.arange(4.0)[: ends[-1] + 1]
            file["rewards"] = file["terminals"] = np.zeros(ends[-1] + 1)
            file["timeouts"] = np.isin(np.arange(ends[-1] + 1), ends)
        with pytest.warns(DataLossWarning, match=f"{len(ends)} of {ends[-1] + 1} steps"):
            rb = ReplayBuffer.from_dataset(path)
        assert [one.length for one in rb.episodes.list()] == lengths
        assert len(rb) == sum(lengths)


@loss_is_told
def test_next_observations_of_the_file_are_taken(tmp_path: Path) -> None:
    """Files that have them lack none."""
    data = written(tmp_path / "theirs.hdf5", next_observations=True)

    rows = ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5").get_all_transitions()

    np.testing.assert_array_equal(rows["next_obs"], data["next_observations"])


def test_without_time_outs_an_episode_ends_at_terminals_only(tmp_path: Path) -> None:
    """No end is invented, and one warning says that some may be lacking."""
    written(tmp_path / "theirs.hdf5", timeouts=False)

    with pytest.warns(UserWarning, match="without a data set timeouts") as warned:
        found = describe(tmp_path / "theirs.hdf5")

    assert [warning.filename for warning in warned] == [__file__]
    assert [(one.length, one.is_open) for one in found.episodes] == [(4, False), (8, True)]


def seamed(path: Path, **changed: Any) -> Path:
    """A file without ``timeouts``: steps 0 to 9 and, after a time limit, 500 to 509."""
    steps = np.r_[np.arange(10.0), np.arange(500.0, 510.0)]
    data = {
        "observations": np.stack([steps, -steps], 1),
        "next_observations": np.stack([steps + 1, -steps - 1], 1),
        "actions": np.zeros((20, 1)),
        "rewards": np.where(steps < 500, 0.0, 100.0),
        "terminals": np.arange(20) == 19,
        **changed,
    }
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            file[name] = values
    return path


@pytest.mark.parametrize("kind", ["plain", "NaN", "single precision", "parts", "in pieces"])
def test_without_time_outs_next_observations_show_where_episodes_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two episodes were read as one, and n-step returns summed over the seam.

    The next observation of step 9 is not the observation of the row after. NaN is equal to itself.
    """
    changed: dict[str, Any] = {}
    path = seamed(tmp_path / "x.hdf5")
    if kind == "NaN":
        with h5py.File(path, "a") as file:
            file["observations"][:, 1] = file["next_observations"][:, 1] = np.nan
    elif kind == "single precision":
        with h5py.File(path, "a") as file:
            changed["observations"] = file["observations"][...] * 0.1
            changed["next_observations"] = (file["next_observations"][...] * 0.1).astype("f4")
        path = seamed(tmp_path / "y.hdf5", **changed)
    elif kind == "parts":
        with h5py.File(path, "a") as file:
            for name in ("observations", "next_observations"):
                values = file[name][...]
                del file[name]
                file[f"{name}/a"], file[f"{name}/b"] = values * 0, values[:, 0]
    elif kind == "in pieces":
        monkeypatch.setattr(_d4rl, "rows_in_chunk", lambda _: 3)

    with pytest.warns(UserWarning, match="timeouts 1 episodes are truncated where") as warned:
        rb = ReplayBuffer.from_dataset(path, seed=0)

    assert [warning.filename for warning in warned] == [__file__]
    assert [(one.length, one.terminated, one.truncated) for one in rb.episodes.list()] == [
        (10, False, True),
        (10, True, False),
    ]
    rewards = rb.view(NStep(3, gamma=0.5)).sample(300)["rew"]
    assert set(rewards.tolist()) <= {0.0, 100.0, 150.0, 175.0}


@pytest.mark.parametrize("kind", ["rounded", "shuffled"])
def test_next_observations_that_seldom_follow_are_refused(kind: str, tmp_path: Path) -> None:
    """A file whose values differ by rounding was read as episodes of one step, with a warning.

    With ``timeouts`` it is read. Up to half of the rows may end an episode.
    """
    steps = np.r_[np.arange(10.0), np.arange(500.0, 510.0)]
    data = {"observations": steps, "next_observations": steps + 1}
    if kind == "rounded":
        data["next_observations"] = np.float32(steps + 1) * np.float32(1 + 1e-7)
    else:
        order = np.random.default_rng(0).permutation(20)
        data = {name: values[order] for name, values in data.items()}
    path = seamed(tmp_path / "x.hdf5", **data)
    for call in describe, ReplayBuffer.from_dataset:
        with pytest.raises(ValueError, match=r"x\.hdf5: without .* got others in 1\d of 19 rows"):
            call(path)
    path = seamed(tmp_path / "y.hdf5", **data, timeouts=np.arange(20) == 9)
    assert [one.length for one in describe(path).episodes] == [10, 10]
    steps = np.r_[0.0, 1, 100, 200, 201]
    path = seamed(
        tmp_path / "z.hdf5",
        observations=steps,
        next_observations=steps + 1,
        actions=np.zeros((5, 1)),
        rewards=np.ones(5),
        terminals=np.zeros(5),
    )
    with pytest.warns(UserWarning, match="timeouts 2 episodes are truncated where"):
        assert [one.length for one in describe(path).episodes] == [2, 1, 2]


def test_no_episode_ends_where_next_observations_follow(tmp_path: Path) -> None:
    """Without a seam nothing is cut; with ``timeouts`` they alone count.

    If each one follows, they may have been made of the observations, over ends too: a warning.
    """
    steps = np.arange(20.0)
    one = seamed(tmp_path / "x.hdf5", observations=steps, next_observations=steps + 1)
    with pytest.warns(UserWarning, match="nothing tells where .* as all next_observations are"):
        assert [one.length for one in describe(one).episodes] == [20]
    with h5py.File(one, "a") as file:
        file["terminals"][9] = True
        file["next_observations"][9] = -1.0  # not that of the row after: it is a real one
    assert [one.length for one in describe(one).episodes] == [10, 10]
    two = seamed(tmp_path / "y.hdf5", timeouts=np.arange(20) == 4)
    assert [one.length for one in describe(two).episodes] == [5, 15]


def test_what_is_no_column_is_named(tmp_path: Path) -> None:
    """A data set of another length cannot be a field."""
    written(tmp_path / "theirs.hdf5")
    with h5py.File(tmp_path / "theirs.hdf5", "a") as file:
        file["goal"] = np.zeros(3)
        file["name"] = "hopper"

    with pytest.warns(
        DataLossWarning,
        match=r"3 data sets .*metadata/policy/weight .*goal \(float64 of shape \(3,\)\)",
    ):
        ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5")
    with pytest.raises(ValueError, match="name"):
        ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", strict=True)


@loss_is_told
def test_the_fields_can_be_chosen_and_converted(tmp_path: Path) -> None:
    """``env_dict`` names the fields, with other dtypes."""
    written(tmp_path / "theirs.hdf5")
    fields: Any = {"obs": {"dtype": "f8"}, "rew": {}, "terminated": {}, "truncated": {}}

    rb = ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", env_dict=fields, capacity=5)

    assert rb.fields == ("obs", "rew", "terminated", "truncated")
    assert rb.columns["obs"].dtype == np.float64
    assert len(rb) == 5
    with pytest.raises(ValueError, match=r"env_dict: .* and not \['x'\]"):
        ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", env_dict={"x": {}})


def qlearning_dataset(path: Path) -> dict[str, Any]:
    """What ``d4rl.qlearning_dataset`` (version 1.1, ``terminate_on_end=False``) makes of a file."""
    with h5py.File(path) as file:
        data = {name: file[name][()] for name in ("observations", "actions", "rewards")}
        ends = file["terminals"][()].astype(bool), file["timeouts"][()].astype(bool)
    kept = [k for k in range(len(data["rewards"]) - 1) if not ends[1][k]]
    return {
        "observations": data["observations"][kept],
        "next_observations": data["observations"][[k + 1 for k in kept]],
        "actions": data["actions"][kept],
        "rewards": data["rewards"][kept],
        "terminals": ends[0][kept],
    }


def test_d4rl_reads_ours(tmp_path: Path) -> None:
    """Its rule finds the transitions of a buffer, but for those that it drops."""
    rng = np.random.default_rng(1)
    flag: Any = {"shape": (), "dtype": bool}
    fields: Any = {"obs": {"shape": 3}, "act": {"shape": 2}, "rew": {"shape": ()}}
    rb = ReplayBuffer(100, {**fields, "terminated": flag, "truncated": flag}, next_of="obs")
    for t in range(50):
        obs = rng.normal(size=3)
        rb.add(
            obs=obs,
            act=rng.normal(size=2),
            rew=t,
            next_obs=rng.normal(size=3),
            terminated=t % 10 == 9,
            truncated=t % 7 == 6,
        )
    rb.export(tmp_path / "ours.hdf5")

    found = qlearning_dataset(tmp_path / "ours.hdf5")

    rows = rb.get_all_transitions()
    kept = ~rows["truncated"]
    kept[-1] = False
    np.testing.assert_array_equal(found["observations"], rows["obs"][kept])
    np.testing.assert_array_equal(found["rewards"], rows["rew"][kept])
    np.testing.assert_array_equal(found["terminals"], rows["terminated"][kept])


def test_every_data_set_has_a_value_for_each_row(tmp_path: Path) -> None:
    """D4RL's ``sequence_dataset`` takes one of each."""
    rb = ReplayBuffer(30, {"obs": {"shape": 2}, "act": {}, "rew": {}, "done": {}, "extra": {}})
    for t in range(20):
        rb.add(obs=[t, t], act=t, rew=t, done=t % 7 == 6, extra=t)
    rb.export(tmp_path / "ours.hdf5")
    lengths: dict[str, int] = {}

    def note(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            lengths[name] = len(found)

    with h5py.File(tmp_path / "ours.hdf5") as file:
        file.visititems(note)
    assert set(lengths.values()) == {20}, lengths
    assert "extra" in lengths


def test_fields_have_the_names_that_d4rl_gives_them(tmp_path: Path) -> None:
    """Extra fields keep their names, but for one that D4RL uses itself."""
    fields: Any = {"obs": {}, "act": {}, "rew": {}, "info.x": {}, "rewards": {}, "a/b": {}}
    rb = ReplayBuffer(10, fields, next_of="obs")
    rb.add(obs=1, act=2, rew=3, next_obs=4, **{"info.x": 5, "rewards": 6, "a/b": 7})
    rb.export(tmp_path / "x.hdf5", reward="rew")
    rows = ReplayBuffer.from_dataset(tmp_path / "x.hdf5", strict=True).get_all_transitions()
    assert {name: values.ravel().tolist() for name, values in rows.items()} == {
        "obs": [1],
        "act": [2],
        "rew": [3],
        "next_obs": [4],
        "info.x": [5],
        "rewards_": [6],
        "a/b": [7],
        "terminated": [False],
        "truncated": [False],
    }


def test_what_d4rl_cannot_say_is_reported(tmp_path: Path) -> None:
    """That an episode is cut, and that one before the last is open; strict writes nothing."""
    fields: Any = {"obs": {}, "act": {}, "rew": {}}
    rb = ReplayBuffer(6, fields, next_of="obs", n_envs=2)
    for t in range(4):
        rb.add(obs=[t, t], act=[0, 0], rew=[t, t], next_obs=[t + 1, t + 1])
    said = r"missing \(2 of 2\); .*before the last one is still open.* \(1 of 2\)"
    with pytest.raises(ValueError, match=said):
        rb.export(tmp_path / "x.hdf5", strict=True)
    assert not list(tmp_path.iterdir())
    with pytest.warns(DataLossWarning, match=said):
        rb.export(tmp_path / "x.hdf5")
    found = describe(tmp_path / "x.hdf5")
    assert [(one.length, one.is_open) for one in found.episodes] == [(3, False), (3, True)]
    assert any("first steps" in text for text in found.lacks)
    assert any("still open" in text for text in found.lacks)


# ---------------------------------------------------------------------- with D4RL as the judge


def offline(obs: int, act: int) -> Any:
    """D4RL's functions, and an environment of its own that is nothing but its data sets.

    Its other environments need simulators, and it prints that it does without.
    """
    os.environ.setdefault("D4RL_SUPPRESS_IMPORT_ERROR", "1")
    d4rl = need("d4rl", "make test-datasets")
    box = need("gym.spaces").Box
    env = d4rl.offline_env.OfflineEnv()
    env.observation_space, env.action_space = box(-9, 9, (obs,)), box(-9, 9, (act,))
    return d4rl, env


def recorded(steps: int = 500) -> ReplayBuffer:
    """Episodes that end either way, and an open one."""
    rng = np.random.default_rng(1)
    flag: Any = {"shape": (), "dtype": bool}
    fields: Any = {"obs": {"shape": 3}, "act": {"shape": 2}, "rew": {"shape": 1}, "prob": {}}
    rb = ReplayBuffer(steps, {**fields, "terminated": flag, "truncated": flag}, next_of="obs")
    obs = rng.normal(size=3)
    for t in range(steps):
        following = rng.normal(size=3)
        terminated, truncated = t % 100 == 99, t % 70 == 69
        step = {"act": rng.normal(size=2), "rew": t, "prob": -t}
        rb.add(obs=obs, next_obs=following, terminated=terminated, truncated=truncated, **step)
        obs = rng.normal(size=3) if terminated or truncated else following
    return rb


@pytest.mark.filterwarnings("ignore")
def test_transitions_of_d4rl_are_ours(tmp_path: Path) -> None:
    """``qlearning_dataset`` has the transitions but those that it drops, those before time-outs."""
    d4rl, env = offline(3, 2)
    rb = recorded()
    rb.export(tmp_path / "ours.hdf5")

    data = env.get_dataset(str(tmp_path / "ours.hdf5"))
    found = d4rl.qlearning_dataset(env, data)

    rows = rb.get_all_transitions()
    np.testing.assert_array_equal(data["next_observations"], rows["next_obs"])
    kept = ~rows["truncated"]
    kept[-1] = False
    names = {"observations": "obs", "actions": "act", "terminals": "terminated"}
    for theirs, name in names.items():
        np.testing.assert_array_equal(found[theirs], rows[name][kept])
    np.testing.assert_array_equal(found["rewards"], rows["rew"][kept, 0])


@pytest.mark.filterwarnings("ignore")
def test_episodes_of_d4rl_are_ours(tmp_path: Path) -> None:
    """``sequence_dataset`` takes a value for each row from every data set."""
    d4rl, env = offline(3, 2)
    rb = recorded(5_000)
    rb.export(tmp_path / "ours.hdf5")

    data = env.get_dataset(str(tmp_path / "ours.hdf5"))
    found = list(d4rl.sequence_dataset(env, data))

    assert len(found) == sum(one.terminated or one.truncated for one in rb.episodes.list())
    for number, episode in enumerate(found):
        rows = rb.episodes.read(number)
        names = {
            "observations": "obs",
            "actions": "act",
            "next_observations": "next_obs",
            "terminals": "terminated",
            "timeouts": "truncated",
            "prob": "prob",
        }
        for theirs, name in names.items():
            np.testing.assert_array_equal(episode[theirs], rows[name], err_msg=theirs)
        np.testing.assert_array_equal(episode["rewards"], rows["rew"][:, 0])


@pytest.mark.filterwarnings("ignore")
def test_ours_reads_what_d4rl_wrote(tmp_path: Path) -> None:
    """Its ``DatasetWriter`` has no time-outs, which is reported; what its reader sees is there."""
    d4rl, env = offline(3, 2)
    rng = np.random.default_rng(2)
    writer = need("d4rl.utils.dataset_utils").DatasetWriter(goal=True)
    for t in range(60):
        step = rng.normal(size=3), rng.normal(size=2), t / 2, t % 20 == 19
        writer.append_data(*step, goal=rng.normal(size=2))
    writer.write_dataset(str(tmp_path / "theirs.hdf5"))

    with pytest.warns(UserWarning, match="without a data set timeouts"):
        rb = ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5", strict=True)

    data = env.get_dataset(str(tmp_path / "theirs.hdf5"))
    rows = rb.get_all_transitions()
    names = {
        "observations": "obs",
        "actions": "act",
        "rewards": "rew",
        "terminals": "terminated",
        "infos/goal": "info.goal",
    }
    for theirs, name in names.items():
        assert rows[name].dtype == data[theirs].dtype
        np.testing.assert_array_equal(rows[name], data[theirs])
    env._max_episode_steps = 1000
    found = d4rl.qlearning_dataset(env, data)
    drawn = ~found["terminals"]
    np.testing.assert_array_equal(
        rows["next_obs"][~rows["terminated"]], found["next_observations"][drawn]
    )


@pytest.mark.filterwarnings("ignore")
def test_transitions_of_a_file_without_next_observations_are_those_of_d4rl(tmp_path: Path) -> None:
    """``qlearning_dataset`` leaves out the same steps; of terminated ones no target reads more."""
    d4rl, env = offline(3, 2)
    written(tmp_path / "theirs.hdf5")
    with h5py.File(tmp_path / "theirs.hdf5", "a") as file:
        del file["metadata"]

    rows = ReplayBuffer.from_dataset(tmp_path / "theirs.hdf5").get_all_transitions()

    found = d4rl.qlearning_dataset(env, env.get_dataset(str(tmp_path / "theirs.hdf5")))
    names = {"observations": "obs", "actions": "act", "rewards": "rew", "terminals": "terminated"}
    for theirs, name in names.items():
        np.testing.assert_array_equal(found[theirs], rows[name])
    lives = ~found["terminals"]
    np.testing.assert_array_equal(found["next_observations"][lives], rows["next_obs"][lives])
