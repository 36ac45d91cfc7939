"""The buffers for RLlib over a cluster: RLlib's own transitions, from the hosts of all nodes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from local_ray import ray  # noqa: F401 (tests are skipped without it)
from optional import need
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer as Theirs
from rllib_episodes import (
    Runner,
    draw_from,
    fill,
    first_number,
    number_starts,
    places,
    same_episode,
)

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.integrations.rllib import EpisodeReplayBuffer
from cpprb_like.integrations.rllib_cluster import (
    AddAtRunners,
    ClusterEpisodeReplayBuffer,
    ClusterPrioritizedEpisodeReplayBuffer,
)
from cpprb_like.ray import ClusterReplay
from cpprb_like.ray._connection import Connection

torch = need("torch", "RLlib's modules are PyTorch's")
torch.set_num_threads(1)
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("local_ray")]
KINDS = ("vector", "image", "nest")
GAMMA = 0.9
ELSEWHERE = "elsewhere"


@pytest.fixture(params=["here", ELSEWHERE])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether this process is on the node of the hosts, or asks them by calls of Ray."""
    if request.param == ELSEWHERE:
        monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)
    return str(request.param)


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes buffers over hosts of this node, and ends them."""
    buffers: list[Any] = []

    def make(cls: Any, capacity: int, hosts: int = 2, **options: Any) -> Any:
        given = {"writers": 2, "cluster": {"hosts": hosts}, "seed": 1} | options
        buffers.append(cls(capacity, **given))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.close()


# ---------------------------------------------------------------------- the same transitions


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_uniform_transitions_are_those_of_rllib(made: Any, kind: str, n_step: int) -> None:
    """Of the same start, from chunks of episodes that alternate, over two hosts."""
    ours, theirs = made(ClusterEpisodeReplayBuffer, 10_000), Theirs(10_000)
    fill(kind, ours, theirs, seed=n_step)
    where = places(theirs)
    assert len(ours) == len(theirs) == len(where)
    assert ours.get_num_episodes() == theirs.get_num_episodes()
    items = ours.sample(
        400,
        n_step=n_step,
        gamma=GAMMA,
        sample_episodes=True,
        include_extra_model_outputs=True,
    )
    assert len({(item.id_, item.t_started) for item in items}) > 100
    assert sum(about.written != () for about in ours.replay._connection.abouts(10.0).values()) == 2
    assert all(sum(about.written) > 20 for about in ours.replay._connection.abouts(10.0).values())
    short = 0
    for item in items:
        place = where[item.id_, item.t_started]
        left = len(theirs.episodes[theirs._indices[place][0]]) - item.t_started
        draw_from(theirs, place)
        steps = min(n_step, left)
        short += steps < n_step
        (expected,) = theirs.sample(
            1,
            n_step=steps,
            gamma=GAMMA,
            sample_episodes=True,
        )
        logits = item.extra_model_outputs.pop("logits")
        assert np.asarray(logits[0]).shape == (3,)
        same_episode(item, expected, named=True, rtol=1e-14)
        assert item.get_extra_model_outputs("weights") == [1.0]
    assert (short > 0) == (n_step > 1)


@pytest.mark.usefixtures("where")
def test_steps_are_drawn_in_proportion_to_their_priorities(made: Any) -> None:
    """``p ** alpha`` over all hosts, and weights that make up for it."""
    alpha, beta = 0.7, 0.5
    buffer = made(ClusterPrioritizedEpisodeReplayBuffer, 1000, alpha=alpha)
    runner = Runner("vector")
    buffer.add(runner(4))
    buffer.add(runner(4), weight=3.0)
    n = len(buffer)
    rng = np.random.default_rng(1)
    priorities: dict[int, float] = {}
    for _ in range(60):
        items = buffer.sample(16)
        values = rng.uniform(0.1, 5.0, 16)
        buffer.update_priorities(values)
        priorities |= {first_number(item): value for item, value in zip(items, values, strict=True)}
    assert len(priorities) == n
    buffer._learner.flush()
    buffer.sample(17)
    items = buffer.sample(20_000, beta=beta)
    numbers = [first_number(item) for item in items]
    mass = {number: value**alpha for number, value in priorities.items()}
    total = sum(mass.values())
    observed = [numbers.count(number) for number in mass]
    expected = [len(items) * value / total for value in mass.values()]
    assert chi_square(np.array(observed), np.array(expected)) < chi_square_limit(n - 1)
    least = min(mass.values())
    np.testing.assert_allclose(
        [item.get_extra_model_outputs("weights")[0] for item in items],
        [(mass[number] / least) ** -beta for number in numbers],
    )


@pytest.mark.parametrize("cls", [ClusterEpisodeReplayBuffer, ClusterPrioritizedEpisodeReplayBuffer])
def test_transitions_stay_right_while_steps_are_written_over(made: Any, cls: Any) -> None:
    """No return goes beyond its episode or what is stored."""
    ours, theirs = made(cls, 80), Theirs(10**6)
    runner = Runner("vector")
    for n_steps in (*range(1, 15), *[1] * 20):
        chunks = runner(n_steps, end=0.2)
        if not chunks:
            continue
        ours.add(chunks)
        theirs.add(chunks)
        assert len(ours) == min(80, len(theirs))
        episodes = {episode.id_: episode for episode in theirs.episodes}
        starts = number_starts(theirs)
        if len(ours) < 20:  # there may be no return of all steps
            continue
        for item in ours.sample(20, n_step=(1, 5), gamma=GAMMA, sample_episodes=True):
            id_, t = starts[first_number(item)]
            episode = episodes[id_]
            n = int(item.get_extra_model_outputs("n_step")[0])
            assert 1 <= n <= 4
            np.testing.assert_array_equal(item.get_observations(1), episode.get_observations(t + n))
            rewards = episode.get_rewards(slice(t, t + n))
            expected = sum(GAMMA**k * value for k, value in enumerate(rewards))
            np.testing.assert_allclose(item.get_rewards(), [expected])
            assert item.is_terminated == (t + n == len(episode) and episode.is_terminated)
            assert item.is_truncated == (t + n == len(episode) and episode.is_truncated)


# ---------------------------------------------------------------------- shards


def test_without_writers_each_open_episode_has_one(made: Any) -> None:
    """As many as the first ``add`` brings, of all hosts together."""
    buffer = made(ClusterEpisodeReplayBuffer, 1000, writers=None)
    runner = Runner("vector", n_envs=5)
    buffer.add([chunk for _ in range(1) for chunk in runner(9, end=0.0)])
    assert buffer.replay._connection.plan.writers == 3
    for _ in range(5):
        buffer.add(runner(3, end=0.0))
    items = buffer.sample(200, n_step=3, sample_episodes=True)
    assert {item.get_extra_model_outputs("n_step")[0] for item in items} == {3}


def test_an_episode_that_ends_with_the_first_chunks_has_a_writer_for_the_next(made: Any) -> None:
    """Its environment has no open episode then, and goes on all the same."""
    buffer = made(ClusterEpisodeReplayBuffer, 1000, hosts=1, writers=None)
    runner = Runner("vector", n_envs=3)
    chunks = runner(9, end=0.0)
    chunks[0].is_terminated = True
    runner.going[0] = runner.begin()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.add(chunks)
        for _ in range(5):
            buffer.add(runner(6, end=0.0))
    items = buffer.sample(400, n_step=3, sample_episodes=True)
    steps = np.array([item.get_extra_model_outputs("n_step")[0] for item in items])
    assert (steps < 3).mean() < 0.1  # those before the end


def test_a_data_set_of_whole_episodes_makes_no_thousand_writers(made: Any) -> None:
    """Ended episodes are not all of environments of their own."""
    buffer = made(ClusterEpisodeReplayBuffer, 1000, hosts=1, writers=None)
    runner = Runner("vector", n_envs=1)
    chunks = [chunk for _ in range(40) for chunk in runner(4, end=0.0)]
    buffer.add(chunks)
    assert buffer.replay._connection.plan.writers == 1


def test_more_episodes_than_writers_are_cut_with_a_warning(made: Any) -> None:
    """Each step is there, and returns stop where an episode was cut."""
    buffer = made(ClusterEpisodeReplayBuffer, 1000, hosts=1, writers=1)
    runner = Runner("vector", n_envs=2)
    with pytest.warns(UserWarning, match="more than 1 episodes are open"):
        buffer.add(runner(20, end=0.0))
    buffer.add(runner(20, end=0.0))
    items = buffer.sample(500, n_step=1, sample_episodes=True)
    assert len({first_number(item) for item in items}) > 0.99 * len(buffer)


def test_a_chunk_that_does_not_go_on_is_refused(made: Any) -> None:
    """Nothing of the call was added."""
    buffer = made(ClusterEpisodeReplayBuffer, 1000)
    runner = Runner("vector", n_envs=1, lookback=0)
    first, second, third = (runner(5, end=0.0) for _ in range(3))
    buffer.add(first)
    with pytest.raises(ValueError, match="expected a chunk from time step"):
        buffer.add([*third, *second])
    assert len(buffer) == len(first[0])
    buffer.add([*second, *third])
    assert buffer.get_num_episodes() == 1


def test_what_a_cluster_does_not_give_is_said(made: Any) -> None:
    """Sequences, arrays, infos, the state as one object, and several agents."""
    buffer = made(ClusterEpisodeReplayBuffer, 1000)
    with pytest.raises(NotEnoughDataError):
        buffer.sample(3, n_step=1, sample_episodes=True)
    fill("vector", buffer, calls=2)
    sequences = {"batch_length_T": 4, "sample_episodes": True}
    for options in (sequences, {**sequences, "n_step": 3}, {}):
        with pytest.raises(ValueError, match=r"rllib\.EpisodeReplayBuffer"):
            buffer.sample(3, **options)
    with pytest.raises(ValueError, match="store_infos"):
        buffer.sample(3, include_infos=True, sample_episodes=True)
    with pytest.raises(ValueError, match="range"):
        buffer.sample(3, n_step=(3, 3), sample_episodes=True)
    with pytest.raises(TypeError, match=r"replay\.save"):
        buffer.get_state()
    for one in (buffer, EpisodeReplayBuffer(10)):
        with pytest.raises(TypeError, match="RLlib's MultiAgentEpisodeReplayBuffer"):
            one.add(MultiAgentEpisode())


@pytest.mark.parametrize("kind", ["vector", "nest"])
def test_rows_of_a_saved_cluster_are_counted_and_drawn(
    made: Any, tmp_path: Path, kind: str
) -> None:
    """A new buffer counted none of them, and drew none before it had got a step."""
    buffer = made(ClusterEpisodeReplayBuffer, 1000)
    runner = fill(kind, buffer)
    n, episodes = len(buffer), buffer.get_num_episodes()
    first = {first_number(item) for item in buffer.sample(1000, n_step=1, sample_episodes=True)}
    buffer.replay.save(tmp_path)
    buffer.close()
    again = made(ClusterEpisodeReplayBuffer, 1000, cluster=ClusterReplay.load(tmp_path))
    assert len(again) == again.get_num_timesteps() == n
    assert 0.5 * episodes < again.get_num_episodes() <= episodes
    items = again.sample(2000, n_step=1, sample_episodes=True)
    assert {first_number(item) for item in items} >= first
    given = runner(4)
    again.add(given)
    assert len(again) == n + sum(map(len, given))
    items = again.sample(2000, n_step=1, sample_episodes=True)
    assert len({first_number(item) for item in items}) > 0.9 * n


def test_a_cluster_of_other_fields_is_refused(made: Any) -> None:
    """It would fail at the first step, or be drawn as if it had the fields of the buffer."""
    with (
        ClusterReplay(100, {"x": {"shape": ()}}, writers=1, hosts=1) as replay,
        pytest.raises(ValueError, match=r"cluster: expected the fields of a saved buffer"),
    ):
        made(ClusterEpisodeReplayBuffer, 100, cluster=replay)


# ---------------------------------------------------------------------- training


def config_of(algorithm: Any, kind: Any, n_step: Any, runners: int = 0, **options: Any) -> Any:
    """A small training."""
    environment = "CartPole-v1" if algorithm is DQNConfig else "Pendulum-v1"
    buffer: dict[str, Any] = {"type": kind, "capacity": 600, "cluster": {"hosts": 2}, **options}
    if kind is ClusterPrioritizedEpisodeReplayBuffer:
        buffer |= {"alpha": 0.6, "beta": 0.4}
    return (
        algorithm()
        .environment(environment)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=2)
        .reporting(min_sample_timesteps_per_iteration=100)
        .training(
            n_step=n_step,
            train_batch_size_per_learner=16,
            num_steps_sampled_before_learning_starts=50,
            replay_buffer_config=buffer,
        )
    )


@pytest.mark.parametrize(
    ("algorithm", "kind", "n_step"),
    [
        (DQNConfig, ClusterPrioritizedEpisodeReplayBuffer, 3),
        (DQNConfig, ClusterEpisodeReplayBuffer, (1, 4)),
        (SACConfig, ClusterPrioritizedEpisodeReplayBuffer, 2),
    ],
)
def test_algorithms_train_with_it(algorithm: Any, kind: Any, n_step: Any) -> None:
    """With several environments, as with the buffers of one process."""
    algo = config_of(algorithm, kind, n_step).build_algo()
    try:
        result = [algo.train() for _ in range(2)][-1]
        buffer = algo.local_replay_buffer
        assert type(buffer) is kind
        assert len(buffer.replay.hosts) == 2
        assert result["replay_buffer"]["num_env_steps_stored"] > 100
        assert result["learners"]["default_policy"]["qf_loss"] > 0
        buffer.close()
    finally:
        algo.stop()


def test_env_runners_add_their_episodes_themselves() -> None:
    """The process of the algorithm gets names and lengths, and draws the steps from the hosts."""
    config = config_of(DQNConfig, ClusterEpisodeReplayBuffer, 3, runners=2)
    algo = config.callbacks(AddAtRunners).build_algo()
    try:
        algo.train()
        buffer = algo.local_replay_buffer
        assert not buffer._lanes._lanes  # the env runners have the writers now
        environments = 2 * config.num_envs_per_env_runner
        assert 2 * buffer.replay._connection.plan.writers == environments + environments % 2
        for _ in range(3):
            algo.train()
        assert not buffer._lanes._lanes
        added = sum(sum(one.written) for one in buffer.replay._connection.abouts(10.0).values())
        assert added == buffer.get_added_timesteps() > 400
        writers = [one for _, one in buffer.replay.members() if one.kind == "actor" and one.alive]
        assert len({one.pid for one in writers}) == 2
        buffer.close()
    finally:
        algo.stop()


def test_a_cluster_in_a_configuration_is_the_same_cluster() -> None:
    """RLlib copies its configurations."""
    with ClusterReplay(100, {"x": {"shape": ()}}, writers=1, hosts=1) as replay:
        again = copy.deepcopy({"cluster": replay})["cluster"]
        with again.actor() as actor:
            actor.add(x=[1, 2])
        assert len(replay.learner()) == 2


def test_several_agents_are_refused_by_the_algorithm() -> None:
    """At the first steps, with the name of the buffer that takes them."""
    config = (
        DQNConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(num_env_runners=0)
        .training(replay_buffer_config={"type": EpisodeReplayBuffer, "capacity": 100})
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent}")
    )
    algo = config.build_algo()
    try:
        with pytest.raises(TypeError, match="RLlib's MultiAgentEpisodeReplayBuffer"):
            algo.train()
    finally:
        algo.stop()
