"""RLlib reads what is written here, and what RLlib recorded is read here: RLlib is the judge.

In a run of their own: Ray makes its tensors known to pyarrow in the whole process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_cases import LISTS, of_any_length, rows_of
from local_ray import local_ray, ray
from optional import need
from strategies import Array, assert_same

from cpprb_like import ReplayBuffer
from cpprb_like.errors import DataLossWarning
from cpprb_like.typing import FieldSpec

gymnasium = need("gymnasium")
need("torch", "RLlib's modules are PyTorch's")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:ray"),
]
LISTENS = "0A"
LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",  # the first, as one of IPv6
}
FLAG: FieldSpec = {"shape": (), "dtype": bool}
VECTOR: FieldSpec = {"shape": 4}
IMAGE: FieldSpec = {"shape": (6, 5, 3), "dtype": "u1"}
OBSERVATIONS: dict[str, dict[str, FieldSpec]] = {
    "vectors": {"obs": VECTOR},
    "images": {"obs": IMAGE},
    "parts": {"obs.image": IMAGE, "obs.at": VECTOR},
}


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """Ray's data sets need its processes: one that works, none that listens to other machines."""
    with local_ray(cpus=1):
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_of_ray_listens_to_other_machines() -> None:
    """Neither those that are there from the start, nor one that works."""
    assert ray.data.range(3).map_batches(lambda batch: batch).count() == 3
    found = listening(family(os.getpid()))
    assert found
    assert found <= LOOPBACK


def family(pid: int) -> set[int]:
    """A process and all that it started, as far as they are there."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            behind_its_name = (folder / "stat").read_text().rpartition(")")[2]
            parents[int(folder.name)] = int(behind_its_name.split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> set[str]:
    """The addresses on which processes listen, as the system writes them."""
    sockets = set()
    for pid in pids:
        for name in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):  # it was closed meanwhile
                sockets.add(str(name.readlink()))
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        line[1].partition(":")[0]
        for line in lines
        if line[3] == LISTENS and f"socket:[{line[9]}]" in sockets
    }


# ---------------------------------------------------------------------- RLlib reads ours


def filled(observations: dict[str, FieldSpec]) -> ReplayBuffer:
    """Two environments whose episodes terminate, are truncated, or go on."""
    fields: dict[str, FieldSpec] = {
        **observations,
        "act": {"shape": (), "dtype": "i8"},
        "rew": {"shape": ()},
        "terminated": FLAG,
        "truncated": FLAG,
        "logp": {"shape": 2},
    }
    rb = ReplayBuffer(60, fields, next_of=list(observations), n_envs=2)
    rng = np.random.default_rng(0)
    values = {
        field.name: rng.integers(0, 256, (21, 2, *field.shape))
        for field in rb.schema.fields
        if field.name in (*observations, "rew", "logp")
    }
    for t in range(20):
        now = {name: column[t] for name, column in values.items()}
        following = {f"next_{name}": values[name][t + 1] for name in observations}
        ends = {"terminated": [t % 7 == 6, False], "truncated": [False, t % 5 == 4]}
        rb.add(**now, **following, **ends, act=[t % 2, 1])
    return rb


def config_of(path: Path) -> Any:
    """An algorithm that learns from a file, of whatever RLlib says of CartPole."""
    config = need("ray.rllib.algorithms.bc").BCConfig().environment("CartPole-v1")
    config.training(train_batch_size_per_learner=8)
    config.offline_data(input_=[str(path)], dataset_num_iters_per_learner=1)
    environment = gymnasium.make("CartPole-v1")
    spaces = environment.observation_space, environment.action_space
    spec = config.get_multi_rl_module_spec(spaces={"__env__": spaces, "default_policy": spaces})
    return config.rl_module(rl_module_spec=spec)


def read_by_ray(config: Any) -> dict[str, Any]:
    """All rows, as RLlib hands them to the first part of what prepares them."""
    offline = need("ray.rllib.offline.offline_data").OfflineData(config)
    batch: dict[str, Any] = offline.data.take_batch(1000)
    return batch


def prelearner(config: Any) -> Any:
    """What prepares rows for a learner."""
    return need("ray.rllib.offline.offline_prelearner").OfflinePreLearner(config=config)


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_rllib_reads_ours(kind: str, tmp_path: Path) -> None:
    """Each step is an episode of one step to it, with the values that were exported."""
    rb = filled(OBSERVATIONS[kind])
    rb.export(tmp_path / "x.parquet", "rllib")
    config = config_of(tmp_path / "x.parquet")
    batch = read_by_ray(config)
    prepared = prelearner(config)._map_to_episodes(batch)["episodes"]
    assert len(prepared) == len(rb)
    steps = {
        (episode.id_, int(t)): episode for episode, t in zip(prepared, batch["t"], strict=True)
    }
    names = [name.removeprefix("obs").removeprefix(".") for name in OBSERVATIONS[kind]]
    ends = set()
    for number, told in enumerate(rb.episodes.list()):
        rows = rb.episodes.read(number)
        for t in range(told.length):
            step = steps.pop((str(number), t))
            for following, seen in zip(("", "next_"), step.get_observations(), strict=True):
                for name in names:
                    field = f"{following}obs.{name}" if name else f"{following}obs"
                    value = rows[field][t]
                    if name:  # of parts, Ray gives arrays of several axes flat
                        value = value.reshape(-1)
                    assert_same(value, seen[name] if name else seen, f"{field} {number} {t}")
            assert step.get_actions() == [rows["act"][t]]
            assert step.get_rewards() == [rows["rew"][t]]
            assert_same(rows["logp"][t], step.get_extra_model_outputs("logp")[0], "logp")
            flags = bool(step.is_terminated), bool(step.is_truncated)
            assert flags == (rows["terminated"][t], rows["truncated"][t])
            ends.add(flags)
    assert not steps
    assert ends == {(False, False), (True, False), (False, True)}


def test_a_batch_for_a_learner_of_rllib_has_our_rows(tmp_path: Path) -> None:
    """Its whole pipeline gives tensors, in the order of the rows."""
    rb = filled(OBSERVATIONS["vectors"])
    rb.export(tmp_path / "x.parquet", "rllib")
    config = config_of(tmp_path / "x.parquet")
    batch = prelearner(config)(read_by_ray(config))
    read = [rb.episodes.read(number) for number in range(len(rb.episodes.list()))]
    names = {"obs": "obs", "new_obs": "next_obs", "actions": "act", "rewards": "rew"}
    names |= {"terminateds": "terminated", "truncateds": "truncated"}
    for column, name in names.items():
        expected = np.concatenate([rows[name] for rows in read])
        assert_same(expected, np.asarray(batch[f"default_policy/{column}"]), name)


def test_ray_and_rllib_read_values_of_any_length(tmp_path: Path) -> None:
    """Ray's data sets have the lists and texts of each row, RLlib's episodes texts and tokens."""
    rb = of_any_length()
    rb.export(tmp_path / "x.parquet", "rllib")
    found = ray.data.read_parquet(str(tmp_path / "x.parquet")).take_all()
    found.sort(key=lambda row: (row["eps_id"], row["t"]))
    assert len(found) == 20
    for name in (*LISTS, "say"):
        expected = [row for rows in rb.episodes for row in rows_of(rb, rows, name)]
        for one, other in zip(found, expected, strict=True):
            value = one[name]
            if name in ("nodes", "edges"):
                value = np.array([*value]).reshape(other.shape)
            np.testing.assert_array_equal(value, other)
    config = config_of(tmp_path / "x.parquet")
    prepared = prelearner(config)._map_to_episodes(read_by_ray(config))["episodes"]
    assert len(prepared) == 20
    for episode, says, ids in zip(
        prepared, [row["say"] for row in found], [row["ids"] for row in found], strict=True
    ):
        assert episode.get_extra_model_outputs("say")[0] == says
        np.testing.assert_array_equal(episode.get_extra_model_outputs("ids")[0], ids)


# ---------------------------------------------------------------------- ours reads RLlib's


class Pictures(gymnasium.Env):  # type: ignore[misc, name-defined]  # it is optional
    """Images that differ; episodes of 5 or 9 steps, the longer ones truncated."""

    # A shape that RLlib has a network for.
    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, config: object = None) -> None:
        """RLlib hands over a config."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self._t, self._most = 0, 5 if self.np_random.random() < 0.5 else 9
        return self._look(), {}

    def step(self, action: Any) -> Any:
        """One picture more."""
        self._t += 1
        ends = self._t == self._most
        is_short = self._most == 5
        return self._look(), float(action[0]), ends and is_short, ends and not is_short, {}

    def _look(self) -> Any:
        return self.np_random.integers(0, 256, (10, 10, 3), np.uint8)


@pytest.mark.parametrize("environment", ["CartPole-v1", Pictures])
def test_ours_reads_what_rllib_recorded(environment: Any, tmp_path: Path) -> None:
    """Every step of every episode is that of the episodes that its runner returned."""
    runners = need("ray.rllib.offline.offline_env_runner")
    config = need("ray.rllib.algorithms.bc").BCConfig().environment(environment).debugging(seed=0)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    config.offline_data(
        output=str(tmp_path / "x"),
        output_write_episodes=False,
        output_compress_columns=[],
        output_max_rows_per_file=30,  # at least the rows of a sample
        output_write_remaining_data=True,
    )
    runner = runners.OfflineSingleAgentEnvRunner(config=config, worker_index=0)
    episodes: dict[str, list[Any]] = {}
    for _ in range(2):
        for part in runner.sample(num_timesteps=24, random_actions=environment is Pictures):
            episodes.setdefault(part.id_, []).append(part)
    runner.stop()
    recorded = sum(len(part) for parts in episodes.values() for part in parts)
    assert len(list((tmp_path / "x").glob("*/run-*/*.parquet"))) > 1
    assert any(len(parts) > 1 for parts in episodes.values())

    with pytest.warns(DataLossWarning, match="eps_id"):
        rb = ReplayBuffer.from_dataset(tmp_path / "x", format="rllib")

    assert len(rb) == recorded
    found = {
        rows["obs"][0].tobytes(): rows
        for rows in (rb.episodes.read(number) for number in range(len(rb.episodes.list())))
    }
    assert len(found) == len(rb.episodes.list()) == len(episodes)
    for parts in episodes.values():
        expected = steps_of(parts)
        rows = found[expected["obs"][0].tobytes()]
        for name, values in expected.items():
            assert_same(values, rows[name], name)


def steps_of(parts: list[Any]) -> dict[str, Array]:
    """The columns of an episode, which RLlib's runner returned in parts."""
    observations = [np.stack(part.get_observations()) for part in parts]
    length = sum(map(len, parts))
    is_last = np.arange(length) == length - 1
    return {
        "obs": np.concatenate([values[:-1] for values in observations]),
        "next_obs": np.concatenate([values[1:] for values in observations]),
        "act": np.concatenate([np.stack(part.get_actions()) for part in parts]),
        "rew": np.concatenate([np.array(part.get_rewards(), float) for part in parts]),
        "terminated": is_last & bool(parts[-1].is_terminated),
        "truncated": is_last & bool(parts[-1].is_truncated),
        **{
            name: np.concatenate([np.stack(part.get_extra_model_outputs(name)) for part in parts])
            for name in parts[0].extra_model_outputs
        },
    }
