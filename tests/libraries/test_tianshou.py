"""The buffer for Tianshou, held against its own: the same batches, the same training."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
need("tianshou")

import gymnasium

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Tianshou's imports warn of other packages
    from tianshou.algorithm.algorithm_base import policy_within_training_step
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, Collector
    from tianshou.data import PrioritizedVectorReplayBuffer as TheirPrioritizedVectorReplayBuffer
    from tianshou.data import ReplayBuffer as TheirReplayBuffer
    from tianshou.data import VectorReplayBuffer as TheirVectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net

    from cpprb_like.integrations.tianshou import PrioritizedVectorReplayBuffer, VectorReplayBuffer

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # Tianshou's own
N_ENVS = 3


class Steps:
    """Steps of several environments, some of which pause."""

    def __init__(self, kind: str) -> None:
        self.kind, self.rng = kind, np.random.default_rng(0)
        self.now = [self.draw() for _ in range(N_ENVS)]

    def draw(self) -> Any:
        if self.kind == "dict":
            return {"at": self.rng.random(3), "seen": self.rng.integers(0, 255, (2, 2), np.uint8)}
        return self.rng.random(4).astype(np.float32)

    def __call__(self) -> tuple[Any, Any]:
        ids = np.flatnonzero(self.rng.random(N_ENVS) < 0.8)
        if len(ids) == 0:
            ids = np.array([1])
        before = [self.now[env] for env in ids]
        after = [self.draw() for _ in ids]
        terminated, truncated = self.rng.random((2, len(ids))) < 0.1
        for place, env in enumerate(ids):
            ended = terminated[place] or truncated[place]
            self.now[env] = self.draw() if ended else after[place]

        def stacked(values: list[Any]) -> Any:
            return (
                Batch.stack([Batch(one) for one in values])
                if self.kind == "dict"
                else np.stack(values)
            )

        batch = Batch(
            obs=stacked(before), obs_next=stacked(after), act=self.rng.integers(0, 2, len(ids)),
            rew=self.rng.random(len(ids)), terminated=terminated, truncated=truncated,
            info=Batch(number=self.rng.integers(0, 9, len(ids))),
        )  # fmt: skip
        return batch, ids


def assert_same(theirs: Any, ours: Any) -> None:
    """Two batches have the same entries of the same types."""
    assert set(theirs.get_keys()) == set(ours.get_keys())
    for key in theirs.get_keys():
        one, other = theirs[key], ours[key]
        if isinstance(one, Batch):
            assert_same(one, other)
        else:
            assert np.asarray(one).dtype == np.asarray(other).dtype, key
            np.testing.assert_array_equal(one, other, err_msg=key)


@pytest.mark.parametrize("size", [64, 160])
@pytest.mark.parametrize("length", [1, 4])
def test_many_environments_may_end_at_once(size: int, length: int) -> None:
    """Each episode ends in its own part of the buffer, of whose rows it may take all."""
    envs = 16
    options: Any = {"stack_num": 3, "random_seed": 5}
    theirs = TheirVectorReplayBuffer(size, envs, **options)
    ours = VectorReplayBuffer(size, envs, **options)
    rng = np.random.default_rng(0)
    for t in range(30):
        after = rng.random((envs, 4)).astype(np.float32)
        ended = np.full(envs, t % length == length - 1)
        step = Batch(
            obs=after - 1, obs_next=after, act=np.arange(envs), rew=rng.random(envs),
            terminated=ended & (t % 2 == 0), truncated=ended & (t % 2 == 1), info=Batch(),
        )  # fmt: skip
        for one, other in zip(theirs.add(step), ours.add(copy.deepcopy(step)), strict=True):
            np.testing.assert_array_equal(one, other)
        drawn, rows = theirs.sample(40)
        own, own_rows = ours.sample(40)
        np.testing.assert_array_equal(rows, own_rows)
        assert_same(drawn, own)


@pytest.mark.parametrize("kind", ["array", "dict"])
@pytest.mark.parametrize("stack_num", [1, 3])
def test_batches_are_those_of_their_own_buffer(kind: str, stack_num: int) -> None:
    """Of the same seed, before and after it is full; with stacks, slices and single rows."""
    theirs = TheirVectorReplayBuffer(60, N_ENVS, stack_num=stack_num, random_seed=5)
    ours = VectorReplayBuffer(60, N_ENVS, stack_num=stack_num, random_seed=5)
    steps = Steps(kind)
    for t in range(120):
        batch, ids = steps()
        expected = theirs.add(copy.deepcopy(batch), buffer_ids=ids)
        for one, other in zip(expected, ours.add(batch, buffer_ids=ids), strict=True):
            np.testing.assert_array_equal(one, other)
        assert len(theirs) == len(ours)
        if t % 20 == 5:
            (one, indices), (other, same) = theirs.sample(16), ours.sample(16)
            np.testing.assert_array_equal(indices, same)
            assert_same(one, other)
            assert_same(theirs[:], ours[:])
            assert_same(theirs[int(indices[0])], ours[int(indices[0])])
    again = pickle.loads(pickle.dumps(ours))
    assert_same(theirs.sample(9)[0], again.sample(9)[0])
    ours.reset()
    assert len(ours) == 0
    ours.add(*steps())


@pytest.mark.parametrize("kind", ["array", "dict"])
@pytest.mark.parametrize("stack_num", [1, 3])
@pytest.mark.parametrize("weight_norm", [True, False])
def test_prioritized_batches_are_those_of_their_own_buffer(
    kind: str, stack_num: int, weight_norm: bool
) -> None:
    """The same draws, weights and updates, with NumPy's state at the same place."""
    options: Any = {"alpha": 0.6, "beta": 0.4, "weight_norm": weight_norm, "stack_num": stack_num}
    theirs = TheirPrioritizedVectorReplayBuffer(60, N_ENVS, **options)
    ours = PrioritizedVectorReplayBuffer(60, N_ENVS, **options)
    steps, rng = Steps(kind), np.random.default_rng(1)
    for t in range(120):
        batch, ids = steps()
        theirs.add(copy.deepcopy(batch), buffer_ids=ids)
        ours.add(batch, buffer_ids=ids)
        if t % 20 == 5:
            np.random.seed(t)
            one, indices = theirs.sample(16)
            np.random.seed(t)
            other, same = ours.sample(16)
            np.testing.assert_array_equal(indices, same)
            assert_same(one, other)
            errors = rng.random(16)
            for buffer in (theirs, ours):
                buffer.update_weight(indices, errors)
            for rows in (slice(None), slice(2, 5), int(indices[0]), indices[::-1]):
                assert_same(theirs[rows], ours[rows])
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again[indices].weight, ours[indices].weight)
    ours.set_beta(0.0)
    assert (ours.sample(9)[0].weight == 1).all()
    ours.reset()
    assert ours.weight.reduce() == 0
    batch, ids = steps()
    ours.add(batch, buffer_ids=ids)
    assert set(ours.sample(9)[1] // 20) <= set(ids)


@pytest.mark.parametrize(("option", "value"), [("alpha", 0.0), ("alpha", -1), ("beta", -0.1)])
def test_wrong_exponents_are_refused(option: str, value: float) -> None:
    """With the name of the option."""
    options: dict[str, Any] = {"alpha": 0.6, "beta": 0.4, option: value}
    with pytest.raises(ValueError, match=f"{option}: expected"):
        PrioritizedVectorReplayBuffer(60, N_ENVS, **options)


def test_rows_in_any_order_are_those_of_their_own_buffer() -> None:
    """Negative numbers count from the end; others are an error."""
    theirs, ours = TheirVectorReplayBuffer(30, N_ENVS), VectorReplayBuffer(30, N_ENVS)
    steps = Steps("array")
    for _ in range(60):
        batch, ids = steps()
        theirs.add(copy.deepcopy(batch), buffer_ids=ids)
        ours.add(batch, buffer_ids=ids)
    for rows in ([29, 0, 15, 3, 3, 12], [-1, 2, -30], [[5, 28], [11, 0]], [], -1):
        indices = np.array(rows, np.int64)
        assert_same(Batch(found=theirs[indices].obs_next), Batch(found=ours[indices].obs_next))
    for wrong in ([30], [0, -31], [5, 100, 2]):
        with pytest.raises(IndexError):
            ours[np.array(wrong)]


def test_numbers_that_would_change_are_refused() -> None:
    """Integers of 64 bits were cast to those of 32 by their last bits."""
    ours = VectorReplayBuffer(60, 1)
    step: dict[str, Any] = {
        "act": np.zeros(1), "rew": np.ones(1), "terminated": np.zeros(1, bool),
        "truncated": np.zeros(1, bool),
    }  # fmt: skip
    small, large = np.array([[7]], np.int32), np.array([[2**32 + 7]])
    ours.add(Batch(obs=small, obs_next=small, **step))
    with pytest.raises(ValueError, match="'obs'"):
        ours.add(Batch(obs=large, obs_next=small, **step))
    assert len(ours) == 1
    ours.add(Batch(obs=small.astype(np.int64), obs_next=small, **step))
    assert ours[:].obs.tolist() == [[7], [7]]


def test_what_is_refused_changes_nothing() -> None:
    """Observations of another shape, or of other parts."""
    ours, steps = VectorReplayBuffer(60, N_ENVS), Steps("array")
    batch, ids = steps()
    ours.add(batch, ids)
    size = len(ours)
    for wrong in (batch.obs[:, :2], batch.obs + 1j, {"at": batch.obs}):
        bad = Batch(**{key: batch[key] for key in batch.get_keys()})
        bad.obs = wrong
        with pytest.raises((TypeError, ValueError)):
            ours.add(bad, ids)
    assert len(ours) == size
    assert sum(len(ring) for ring in ours._rings) == size
    for method in ("save_hdf5", "load_hdf5", "from_data", "set_batch"):
        with pytest.raises(NotImplementedError, match="would miss the observations"):
            getattr(ours, method)("")


@pytest.mark.parametrize("kind", ["array", "dict"])
@pytest.mark.parametrize("stack_num", [1, 3])
def test_masks_stand_for_their_rows(kind: str, stack_num: int) -> None:
    """A mask was read as the slots 0 and 1."""
    theirs = TheirVectorReplayBuffer(60, N_ENVS, stack_num=stack_num)
    ours = VectorReplayBuffer(60, N_ENVS, stack_num=stack_num)
    steps = Steps(kind)
    for _ in range(8):
        batch, ids = steps()
        theirs.add(copy.deepcopy(batch), buffer_ids=ids)
        ours.add(batch, buffer_ids=ids)
    mask = np.zeros(60, bool)
    mask[[1, 3, 22, 41]] = True
    assert_same(theirs[np.flatnonzero(mask)], ours[mask])
    for key in ("obs", "obs_next", "info"):
        one, other = theirs.get(np.flatnonzero(mask), key), ours.get(mask, key)
        assert_same(Batch(found=one), Batch(found=other))
    if stack_num == 1:
        assert_same(theirs[mask], ours[mask])
    for wrong in (mask[:59], [True]):
        with pytest.raises(IndexError):
            ours[wrong]
    with pytest.raises(IndexError, match="slots"):
        ours[19]


@pytest.mark.parametrize("kind", ["array", "dict"])
def test_nothing_else_passes_for_observations(kind: str) -> None:
    """Tianshou's own array of them, which is read past this class, came out as zeros."""
    ours, steps = VectorReplayBuffer(60, N_ENVS), Steps(kind)
    for _ in range(3):
        for _ in range(8):
            batch, ids = steps()
            ours.add(batch, buffer_ids=ids)
        for buffer in (ours, pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
            part = buffer.buffers[1]
            for read in (
                lambda part=part: part[:],
                lambda part=part: part.sample(3),
                lambda part=part: part.get(0, "obs"),
                lambda part=part: part.obs[0],
                lambda part=part: np.ravel(part.obs),
                lambda part=part: part.obs + 1,
                lambda part=part: TheirReplayBuffer(50).update(part),
                lambda buffer=buffer: TheirReplayBuffer(50).update(buffer),
            ):
                with pytest.raises(NotImplementedError, match="not in Tianshou's arrays"):
                    read()
            assert "<observations" in repr(buffer)
            assert len(part.rew) == 20
        ours.reset()


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_collector_fills_it_and_training_is_the_same(prioritized: bool) -> None:
    """DQN on CartPole, three-step returns: the same parameters as with their own buffer."""
    options = {"alpha": 0.6, "beta": 0.4} if prioritized else {}

    def train(make: Any) -> Any:
        np.random.seed(0)
        torch.manual_seed(0)
        envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(4)])
        envs.seed(0)
        net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[64, 64])
        space = gymnasium.make("CartPole-v1").action_space
        policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
        for one in (space, policy.action_space):
            one.seed(0)
        algorithm = DQN(
            policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.95,
            n_step_return_horizon=3, target_update_freq=100,
        )  # fmt: skip
        collector = Collector(
            algorithm, envs, make(5000, 4, random_seed=1, **options), exploration_noise=True,
            raise_on_nan_in_buffer=False,
        )  # fmt: skip
        collector.reset()
        for _ in range(30):
            with policy_within_training_step(policy):
                collector.collect(n_step=32)
                for _ in range(8):
                    algorithm.update(collector.buffer, 64)
        return torch.cat([values.detach().ravel() for values in net.parameters()])

    theirs, ours = (
        (TheirPrioritizedVectorReplayBuffer, PrioritizedVectorReplayBuffer)
        if prioritized
        else (TheirVectorReplayBuffer, VectorReplayBuffer)
    )
    assert torch.equal(train(theirs), train(ours))
