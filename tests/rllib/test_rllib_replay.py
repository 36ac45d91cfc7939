"""The buffers for RLlib, held against RLlib's own over the same episodes; and training with them.

In a run of their own, as all tests that start Ray's processes; that these listen on the loopback
alone is for tests/datasets/test_ray.py.
"""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from optional import need
from rllib_episodes import (
    Runner,
    draw_from,
    fill,
    first_number,
    number_starts,
    places,
    same,
    same_episode,
)

torch = need("torch", "RLlib's modules are PyTorch's")

from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer as Theirs
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as TheirsPrioritized

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.integrations.rllib import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
KINDS = ("vector", "image", "nest")
GAMMA = 0.9


# ---------------------------------------------------------------------- the same transitions


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_uniform_transitions_are_those_of_rllib(kind: str, n_step: int) -> None:
    """Of the same start, with as many steps of the return as there are."""
    ours, theirs = EpisodeReplayBuffer(10_000, seed=1), Theirs(10_000)
    fill(kind, ours, theirs, seed=n_step)
    where = places(theirs)
    assert len(ours) == len(theirs) == len(where)
    assert ours.get_num_episodes() == theirs.get_num_episodes()
    items = ours.sample(400, n_step=n_step, gamma=GAMMA, sample_episodes=True)
    assert len({(item.id_, item.t_started) for item in items}) > 100
    short = 0
    for item in items:
        place = where[item.id_, item.t_started]
        left = len(theirs.episodes[theirs._indices[place][0]]) - item.t_started
        draw_from(theirs, place)
        steps = min(n_step, left)  # where there are fewer RLlib's says n_step all the same
        short += steps < n_step
        (expected,) = theirs.sample(1, n_step=steps, gamma=GAMMA, sample_episodes=True)
        same_episode(item, expected, named=True)
        assert item.get_extra_model_outputs("weights") == [1.0]
    assert (short > 0) == (n_step > 1)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_prioritized_transitions_are_those_of_rllib(kind: str, n_step: int) -> None:
    """Of the same start, with its importance-sampling weight."""
    ours = PrioritizedEpisodeReplayBuffer(10_000, alpha=0.6, seed=1)
    theirs = TheirsPrioritized(10_000, alpha=0.6)
    fill(kind, ours, theirs)
    where, starts = places(theirs), number_starts(theirs)
    find = theirs._sum_segment.find_prefixsum_idx
    for _ in range(30):  # the same priorities in both
        items = ours.sample(16, n_step=1)
        priorities = ours.rng.random(16)
        ours.update_priorities(priorities)
        theirs._last_sampled_indices = [
            theirs._indices[where[starts[first_number(item)]]][2] for item in items
        ]
        theirs.update_priorities(priorities)
    for item in ours.sample(400, n_step=n_step, gamma=GAMMA, beta=0.4):
        id_, t = starts[first_number(item)]
        left = len(theirs.episodes[theirs.episode_id_to_index[id_]]) - t
        draw_from(theirs, where[id_, t])
        (expected,) = theirs.sample(1, n_step=min(n_step, left), gamma=GAMMA, beta=0.4)
        expected.extra_model_outputs = {
            key: expected.extra_model_outputs[key] for key in ("n_step", "weights")
        }
        same_episode(item, expected, named=False)
        np.testing.assert_allclose(
            item.get_extra_model_outputs("weights"),
            expected.get_extra_model_outputs("weights"),
            rtol=1e-12,
        )
    theirs._sum_segment.find_prefixsum_idx = find


@pytest.mark.parametrize("kind", KINDS)
def test_infos_and_model_outputs_are_those_of_the_step(kind: str) -> None:
    """They are given if they are asked for; arrays in place of lists, too."""
    ours, theirs = EpisodeReplayBuffer(10_000, store_infos=True, seed=1), Theirs(10_000)
    fill(kind, ours, theirs)
    options = {"include_infos": True, "include_extra_model_outputs": True, "to_numpy": True}
    for item in ours.sample(50, n_step=1, sample_episodes=True, **options):
        episode = theirs.episodes[theirs.episode_id_to_index[item.id_]]
        t = item.t_started
        assert item.is_numpy
        assert item.get_infos() == episode.get_infos(slice(t, t + 2))
        found = item.get_extra_model_outputs("logits")[0]
        same(found, episode.get_extra_model_outputs("logits", t))


@pytest.mark.parametrize("capacity", [1, 7, 50])
@pytest.mark.parametrize("cls", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_transitions_stay_right_while_steps_are_written_over(cls: Any, capacity: int) -> None:
    """The newest steps are there, and no return goes beyond what is stored."""
    ours, theirs = cls(capacity, seed=1), Theirs(10**6)
    runner = Runner("vector")
    for n_steps in (*range(1, 25), *[1] * 20):
        chunks = runner(n_steps, end=0.2)
        if not chunks:
            continue
        ours.add(chunks)
        theirs.add(chunks)
        assert len(ours) == min(capacity, len(theirs))
        episodes = {episode.id_: episode for episode in theirs.episodes}
        starts = number_starts(theirs)
        for item in ours.sample(20, n_step=(1, 5), gamma=GAMMA, sample_episodes=True):
            id_, t = starts[first_number(item)]
            episode = episodes[id_]
            n = int(item.get_extra_model_outputs("n_step")[0])
            assert 1 <= n <= 4
            same(item.get_observations(1), episode.get_observations(t + n))
            rewards = episode.get_rewards(slice(t, t + n))
            expected = sum(GAMMA**k * value for k, value in enumerate(rewards))
            np.testing.assert_allclose(item.get_rewards(), [expected])
            assert item.is_terminated == (t + n == len(episode) and episode.is_terminated)
            assert item.is_truncated == (t + n == len(episode) and episode.is_truncated)
    newest = {(entry.id_, entry.t) for entry in ours._episodes.values()}
    assert newest <= {(episode.id_, episode.t) for episode in theirs.episodes}
    assert ours.get_num_episodes() == len(newest)
    assert sum(entry.rows for entry in ours._episodes.values()) == len(ours)
    assert ours.get_added_timesteps() == theirs.get_added_timesteps()
    ends = {entry.last for entry in ours._episodes.values()}
    assert set(ours._ends) == ends


def test_ranges_of_steps_are_drawn_evenly() -> None:
    """The second number of a range is not in it, as in RLlib's buffer."""
    buffer = EpisodeReplayBuffer(1000, seed=0)
    runner = Runner("vector", n_envs=1)
    buffer.add(runner(900, end=0.0))
    items = buffer.sample(3000, n_step=(2, 5), sample_episodes=True)
    counts = np.bincount([item.get_extra_model_outputs("n_step")[0] for item in items])
    assert counts[2:].min() > 900
    assert counts[:2].sum() < 20  # at the end
    assert len(counts) == 5


# ---------------------------------------------------------------------- priorities


def test_steps_are_drawn_in_proportion_to_their_priorities() -> None:
    """``p ** alpha``, and weights that make up for it, of chunks that alternate."""
    alpha, beta = 0.7, 0.5
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=alpha, seed=0)
    runner = Runner("vector")
    buffer.add(runner(4))
    buffer.add(runner(4), weight=3.0)
    n = len(buffer)
    rng = np.random.default_rng(1)
    priorities: dict[int, float] = {}
    for _ in range(40):
        items = buffer.sample(16)
        values = rng.uniform(0.1, 5.0, 16)
        buffer.update_priorities(values)
        priorities |= {first_number(item): value for item, value in zip(items, values, strict=True)}
    assert len(priorities) == n
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


def test_new_steps_get_the_greatest_priority() -> None:
    """The greatest that there was, which no step need have any more."""
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=1.0, seed=0)
    runner = Runner("vector", n_envs=1)
    buffer.add(step_of(runner))
    for priority in (9.0, 0.5):
        buffer.sample(1)
        buffer.update_priorities([priority])
    buffer.add(step_of(runner))
    items = buffer.sample(300, beta=1.0)
    weights = {item.get_extra_model_outputs("weights")[0] for item in items}
    assert sorted(weights) == pytest.approx([0.5 / 9.0, 1.0])


def step_of(runner: Runner) -> list[Any]:
    """A chunk of one step of an episode that goes on."""
    while not (chunks := runner(1, end=0.0)):
        pass
    return chunks


@pytest.mark.parametrize("bad", [[1.0] * 7, [np.nan] * 8, [np.inf] * 8])
def test_bad_priorities_are_refused(bad: list[float]) -> None:
    """Another number of them than of the last draw, or such as are none."""
    buffer = PrioritizedEpisodeReplayBuffer(100, seed=0)
    fill("vector", buffer, calls=2)
    buffer.sample(8)
    with pytest.raises(ValueError, match="priorit"):
        buffer.update_priorities(bad)
    buffer.update_priorities([-1.0] * 8)  # RLlib raises them to its least
    with pytest.raises(ValueError, match=r"expected shape \(0,\)"):
        buffer.update_priorities([1.0] * 8)


# ---------------------------------------------------------------------- sequences


@pytest.mark.parametrize("lookback", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_those_of_rllib(kind: str, lookback: int) -> None:
    """Of the same start, with the steps before it."""
    ours, theirs = EpisodeReplayBuffer(10_000, seed=1), Theirs(10_000)
    fill(kind, ours, theirs)
    where = places(theirs)
    options: Any = {"n_step": 1, "batch_length_T": 5, "lookback": lookback, "sample_episodes": True}
    items = ours.sample(300, min_batch_length_T=1, **options)
    assert 300 <= sum(len(item) + 1 for item in items) < 306
    for item in items:
        draw_from(theirs, where[item.id_, item.t_started])
        (expected,) = theirs.sample(1, **options)
        for name in ("observations", "actions", "rewards"):
            found, there = getattr(item, name), getattr(expected, name)
            assert found.lookback == min(lookback, item.t_started)
            same(list(found.data), _as_items(there.data))
        for name in ("is_terminated", "is_truncated", "t_started"):
            assert getattr(item, name) == getattr(expected, name)
        logits = expected.extra_model_outputs["logits"]
        same(item.extra_model_outputs["logits"].data, list(logits.data))
        assert len(item.extra_model_outputs["n_step"]) == len(item)
        assert len(item) > 1


def _as_items(data: Any) -> list[Any]:
    """Nested arrays as a list of values."""
    if isinstance(data, dict):
        parts = {key: _as_items(value) for key, value in data.items()}
        return [
            dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)
        ]
    if isinstance(data, tuple):
        return list(zip(*map(_as_items, data), strict=True))
    return list(data)


@pytest.mark.parametrize("length", [1, 4, 30])
def test_rows_of_arrays_are_those_of_rllib(length: int) -> None:
    """With final observations, and further episodes where one stops."""
    ours, theirs = EpisodeReplayBuffer(10_000, seed=1), Theirs(10_000)
    fill("vector", ours, theirs)
    where, starts = places(theirs), number_starts(theirs)
    batch = ours.sample(batch_size_B=40, batch_length_T=length)
    assert batch["obs"].shape == (40, length, 2)
    for row in range(40):
        drawn = iter(
            [
                where[starts[int(batch["obs"][row, place, 0])]]
                for place in np.flatnonzero(batch["is_first"][row])
            ]
        )
        theirs.rng = SimpleNamespace(integers=lambda *_, drawn=drawn: next(drawn))
        expected = theirs.sample(batch_size_B=1, batch_length_T=length)
        assert list(batch) == list(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name][row], values[0], err_msg=name)


# ---------------------------------------------------------------------- state and metrics


@pytest.mark.parametrize("copied", ["state", "pickle"])
@pytest.mark.parametrize("cls", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
def test_a_restored_buffer_goes_on_as_the_other(cls: Any, copied: str) -> None:
    """The same draws, and chunks that go on with open episodes."""
    ours = cls(60, seed=1)
    runner = fill("nest", ours)
    if copied == "pickle":
        other = pickle.loads(pickle.dumps(ours))
    else:
        state = pickle.loads(pickle.dumps(ours.get_state()))
        other = cls(60, seed=2)
        fill("nest", other, seed=5)
        other.set_state(state)
    for _ in range(5):
        chunks = runner(3)
        items = []
        for buffer in (ours, other):
            buffer.add(copy.deepcopy(chunks))
            items.append(buffer.sample(30, n_step=(1, 4), sample_episodes=True))
            if cls is PrioritizedEpisodeReplayBuffer:
                buffer.update_priorities(np.linspace(1, 2, 30))
        for a, b in zip(*items, strict=True):
            same_episode(a, b, named=cls is EpisodeReplayBuffer)
    assert ours.get_num_episodes() == other.get_num_episodes()
    assert ours.get_sampled_timesteps() == other.get_sampled_timesteps()


def test_a_state_does_not_change_with_the_buffer() -> None:
    """Steps that are added later are not in it; and states of other buffers are refused."""
    ours = EpisodeReplayBuffer(100, seed=1)
    fill("vector", ours, calls=2)
    state, n = ours.get_state(), len(ours)
    fill("vector", ours, calls=2, seed=1)
    ours.set_state(state)
    assert len(ours) == n
    for other, found in (
        (EpisodeReplayBuffer(99), "capacity 99, got 100"),
        (PrioritizedEpisodeReplayBuffer(100), "PrioritizedEpisodeReplayBuffer"),
        (EpisodeReplayBuffer(100, store_infos=True), "store_infos: True here, False in the state"),
    ):
        with pytest.raises(ValueError, match=found):
            other.set_state(state)
    other = EpisodeReplayBuffer(100, seed=1)
    fill("nest", other, calls=1)
    before = other.get_state()
    with pytest.raises(ValueError, match=r"fields \(here, in the state\) differ: .*'obs'"):
        other.set_state(state)
    assert other.get_state() == before
    with pytest.raises(ValueError, match="expected that of a EpisodeReplayBuffer"):
        ours.set_state(Theirs(10).get_state())


@pytest.mark.parametrize(
    ("cls", "their_cls"),
    [(EpisodeReplayBuffer, Theirs), (PrioritizedEpisodeReplayBuffer, TheirsPrioritized)],
)
def test_metrics_are_those_of_rllib(cls: Any, their_cls: Any) -> None:
    """The same names, and what is added is counted alike."""
    found = []
    for buffer in (cls(10_000, seed=1), their_cls(10_000)):
        fill("vector", buffer)
        buffer.sample(30, n_step=1, sample_episodes=True)
        metrics = _flat(buffer.get_metrics())
        metrics["sampled"] = buffer.get_sampled_timesteps()
        found.append(metrics)
    ours, theirs = found
    assert list(ours) == list(theirs)
    for name in ours:
        if "per_sample" not in name and "utilization" not in name and "resample" not in name:
            assert ours[name] == theirs[name], name


def _flat(metrics: Any, prefix: str = "") -> dict[str, float]:
    """The values of nested metrics."""
    if not isinstance(metrics, dict):
        return {prefix: float(metrics.peek() if hasattr(metrics, "peek") else metrics)}
    return {
        name: value
        for key, part in metrics.items()
        for name, value in _flat(part, f"{prefix}/{key}").items()
    }


# ---------------------------------------------------------------------- refusals


def test_chunks_that_do_not_go_on_are_refused() -> None:
    """A chunk is missing, or the episode has ended; nothing is added."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    runner = Runner("vector", n_envs=1)
    buffer.add(runner(5, end=0.0))
    runner(5, end=0.0)
    n = len(buffer)
    with pytest.raises(ValueError, match="expected a chunk from time step"):
        buffer.add([*Runner("vector", seed=1)(3), *runner(5, end=0.0)])
    ended = SingleAgentEpisode(
        observations=[np.zeros(2, "f4")] * 2, actions=[np.int64(0)], rewards=[0.0],
        extra_model_outputs={"logits": [np.zeros(3, "f4")]}, terminated=True,
        len_lookback_buffer=0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="ended episode"):
        buffer.add([ended, ended])
    assert len(buffer) == n
    with pytest.raises(TypeError, match="one agent, got dict"):
        buffer.add({})


def test_values_of_other_shapes_are_refused() -> None:
    """Nothing is added, and the buffer goes on."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    runner = Runner("vector")
    buffer.add(runner(3))
    n = len(buffer)
    for kind in ("image", "nest"):
        with pytest.raises((ValueError, TypeError, LookupError)):
            buffer.add(Runner(kind)(3))
    chunks = runner(3)
    chunks[0].extra_model_outputs.pop("logits")
    with pytest.raises(ValueError, match="extra_model_outputs: expected"):
        buffer.add(chunks)
    assert len(buffer) == n
    assert len(buffer.sample(5, n_step=1, sample_episodes=True)) == 5


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"num_items": 3, "batch_size_B": 3}, "got both"),
        ({"num_items": 3, "n_step": 0}, "n_step"),
        ({"num_items": 3, "n_step": (3, 3)}, "range"),
        ({"num_items": 3, "include_infos": True}, "store_infos=True"),
        ({"num_items": 3, "n_step": 2, "batch_length_T": 4}, "1 for sequences"),
    ],
)
def test_bad_options_of_draws_are_refused(options: dict[str, Any], found: str) -> None:
    """With a message that names them."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    fill("vector", buffer, calls=2)
    with pytest.raises(ValueError, match=found):
        buffer.sample(sample_episodes=True, **options)


def test_nests_are_no_rows_of_arrays() -> None:
    """As there is no dict of arrays for them; episodes of them there are."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    fill("nest", buffer, calls=2)
    with pytest.raises(ValueError, match="sample_episodes=True"):
        buffer.sample(3)


def test_nests_of_arrays_join_lists() -> None:
    """Chunks that were turned into arrays are added as those of lists are."""
    buffers = EpisodeReplayBuffer(100, seed=0), EpisodeReplayBuffer(100, seed=0)
    runner = Runner("nest")
    for _ in range(5):
        chunks = runner(4)
        buffers[0].add(chunks)
        buffers[1].add([chunk.to_numpy() for chunk in chunks])
    items = [buffer.sample(50, n_step=3, sample_episodes=True) for buffer in buffers]
    for a, b in zip(*items, strict=True):
        same_episode(a, b, named=True)


def test_an_empty_buffer_has_nothing_to_draw() -> None:
    """Nor one whose episodes are all shorter than what is asked for."""
    for buffer in (EpisodeReplayBuffer(), PrioritizedEpisodeReplayBuffer()):
        assert len(buffer) == 0
        buffer.add([])
        with pytest.raises(NotEnoughDataError):
            buffer.sample(3, n_step=1, sample_episodes=True)
    buffer = EpisodeReplayBuffer(100)
    fill("vector", buffer, calls=2)
    with pytest.raises(NotEnoughDataError, match="more than 90"):
        buffer.sample(3, n_step=1, batch_length_T=99, min_batch_length_T=90, sample_episodes=True)


# ---------------------------------------------------------------------- training


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("algorithm", "kind", "n_step"),
    [
        (DQNConfig, PrioritizedEpisodeReplayBuffer, 3),
        (DQNConfig, EpisodeReplayBuffer, (1, 4)),
        (DQNConfig, "cpprb_like.integrations.rllib.PrioritizedEpisodeReplayBuffer", 1),
        (SACConfig, PrioritizedEpisodeReplayBuffer, 2),
    ],
)
def test_algorithms_train_with_it(algorithm: Any, kind: Any, n_step: Any) -> None:
    """As a class or by its path, with several environments."""
    environment = "CartPole-v1" if algorithm is DQNConfig else "Pendulum-v1"
    config = (
        algorithm()
        .environment(environment)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .reporting(min_sample_timesteps_per_iteration=100)
        .training(
            n_step=n_step,
            train_batch_size_per_learner=16,
            num_steps_sampled_before_learning_starts=50,
            replay_buffer_config={"type": kind, "capacity": 150, "alpha": 0.6, "beta": 0.4}
            if kind is not EpisodeReplayBuffer
            else {"type": kind, "capacity": 150},
        )
    )
    algo = config.build_algo()
    try:
        result = [algo.train() for _ in range(2)][-1]
        buffer = algo.local_replay_buffer
        assert type(buffer).__module__ == "cpprb_like.integrations.rllib"
        assert len(buffer) == 150
        assert result["replay_buffer"]["num_env_steps_stored"] > 100
        assert result["learners"]["default_policy"]["qf_loss"] > 0
        algo.train()
        assert buffer.get_added_timesteps() > 250
    finally:
        algo.stop()
