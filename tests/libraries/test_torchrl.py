"""The buffer for TorchRL: what comes out is what a collector put in, and an agent learns."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch")
need("torchrl")
tensordict = need("tensordict")

from tensordict import TensorDict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRL's imports warn of TorchRL
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, SerialEnv, StepCounter, TransformedEnv
    from torchrl.modules import EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

from cpprb_like.errors import NotEnoughDataError
from cpprb_like.integrations.torchrl import TensorDictReplayBuffer
from cpprb_like.samplers import Prioritized

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # TorchRL's own


def steps(n: int, n_envs: int = 1, start: int = 0) -> Any:
    """Numbered steps whose next observation is that of the following step."""
    count = torch.arange(start, start + n, dtype=torch.float32)[:, None]
    if n_envs > 1:
        count = count + 1000 * torch.arange(n_envs)[:, None, None]
    done = count.long() % 5 == 4
    root_done = {"done": torch.zeros_like(done), "terminated": torch.zeros_like(done)}
    following = {
        "observation": count + 1, "pixels": {"left": (count + 1).byte()},
        "reward": count, "terminated": done, "truncated": torch.zeros_like(done), "done": done,
    }  # fmt: skip
    root = {
        "observation": count,
        "pixels": {"left": count.byte()},
        "action": count.long(),
        **root_done,
    }
    return TensorDict({**root, "next": following}, count.shape[:-1])


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("compress", [False, True])
def test_what_goes_in_comes_out(n_envs: int, compress: bool) -> None:
    """Nested entries, each of its type; rows that were overwritten are gone."""
    rb = TensorDictReplayBuffer(30, batch_size=200, n_envs=n_envs, compress=compress, seed=0)
    for start in range(0, 60, 4):
        rb.extend(steps(4, n_envs, start))
    assert len(rb) == 30
    assert rb.write_count == 60 * n_envs
    batch = rb.sample()
    assert set(batch.keys(True, True)) == set(steps(1).keys(True, True))
    number = batch["observation"]
    assert (number % 1000 >= 60 - 30 // n_envs).all()
    assert len(number.unique()) == 30
    expected = TensorDict({name: batch[name] for name in ("observation", "action")}, [200])
    assert (expected["action"] == number.long()).all()
    assert (batch["pixels", "left"] == number.byte()).all()
    assert (batch["next", "observation"] == number + 1).all()
    assert (batch["next", "done"] == (number.long() % 5 == 4)).all()
    assert batch["next", "done"].dtype == torch.bool


def test_n_step_returns() -> None:
    """Rewards are summed up to the end of the episode, and ``gamma`` is what bootstraps."""
    rb = TensorDictReplayBuffer(30, n_steps=3, gamma=0.5, seed=0)
    rb.extend(steps(20))
    batch = rb.sample(100)
    number = batch["observation"].ravel()
    left = (4 - number % 5).clamp(max=2)
    expected = sum(0.5**k * (number + k) * (k <= left) for k in range(3))
    torch.testing.assert_close(batch["next", "reward"].ravel(), expected)
    assert (batch["next", "observation"].ravel() == number + left + 1).all()
    ended = batch["next", "terminated"].ravel()
    gamma = torch.where(ended, 0.0, 0.5**3)
    torch.testing.assert_close(batch["gamma"].ravel(), gamma)


def test_priorities_come_back() -> None:
    """By index, from the entry that a loss writes; without priorities nothing happens."""
    rb = TensorDictReplayBuffer(30, batch_size=64, sampler=Prioritized(alpha=1.0, eps=0.0), seed=0)
    rb.extend(steps(20))
    batch = rb.sample()
    assert batch["priority_weight"].shape == batch["index"].shape == (64,)
    batch["td_error"] = (batch["observation"] == 7).float().requires_grad_()
    rb.update_tensordict_priority(batch)
    rb.update_priority(torch.arange(20), (torch.arange(20) == 7).float())
    assert (rb.sample(50)["observation"] == 7).all()
    plain = TensorDictReplayBuffer(30, seed=0)
    plain.extend(steps(20))
    plain.update_tensordict_priority(plain.sample(5))


def test_what_is_refused_changes_nothing() -> None:
    """Other entries, other shapes, no steps."""
    rb = TensorDictReplayBuffer(30, seed=0)
    with pytest.raises(ValueError, match="nothing was added yet"):
        rb.sample(4)
    rb.add(steps(1)[0])
    with pytest.raises(ValueError, match="expected a batch_size"):
        rb.sample()
    for wrong in (steps(2).exclude("action"), steps(2).set("more", torch.zeros(2))):
        with pytest.raises(TypeError, match=r"action|more"):
            rb.extend(wrong)
    with pytest.raises(ValueError, match=r"expected shape \(T,\)"):
        rb.extend(steps(2, 3))
    with pytest.raises(ValueError, match=r"expected shape \(3, T\)"):
        TensorDictReplayBuffer(30, n_envs=3).extend(steps(2))
    assert len(rb) == 1
    again = pickle.loads(pickle.dumps(rb))
    assert (again.sample(3) == rb.sample(3)).all()
    rb.empty()
    with pytest.raises(NotEnoughDataError):
        rb.sample(1)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_an_agent_learns_from_a_collector(n_envs: int) -> None:
    """DQN on CartPole, with priorities, compressed next observations and vector environments."""
    torch.manual_seed(0)
    np.random.seed(0)

    def make() -> Any:
        return TransformedEnv(
            GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter()
        )

    env: Any = make() if n_envs == 1 else SerialEnv(n_envs, make)
    env.set_seed(0)
    layers = [torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)]
    network = torch.nn.Sequential(*layers)
    actor = QValueActor(
        network, spec=make().action_spec, action_space="categorical", in_keys=["observation"]
    )
    greedy = EGreedyModule(env.action_spec, annealing_num_steps=3000, eps_end=0.05)
    policy = tensordict.nn.TensorDictSequential(actor, greedy)
    loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, tau=0.02)
    optimizer = torch.optim.Adam(loss.parameters(), 2e-3)
    rb = TensorDictReplayBuffer(
        10_000, batch_size=64, n_envs=n_envs, sampler=Prioritized(), compress=True, seed=0
    )
    collector = Collector(env, policy, frames_per_batch=64, total_frames=6_000)
    lengths = []
    for data in collector:
        rb.extend(data)
        greedy.step(data.numel())
        ended = data["next", "done"]
        lengths += data["next", "step_count"][ended].tolist()
        if len(rb) < 500:
            continue
        for _ in range(16):
            batch = rb.sample()
            losses = loss(batch)
            optimizer.zero_grad()
            losses["loss"].backward()
            optimizer.step()
            target.step()
            rb.update_tensordict_priority(batch)
    collector.shutdown()
    assert np.mean(lengths[:20]) < 40
    assert np.mean(lengths[-20:]) > 70
