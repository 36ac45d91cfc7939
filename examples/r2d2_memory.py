"""R2D2: a recurrent agent that has to remember what it saw at the beginning.

Algorithm: R2D2 (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
  Learning"): sequences with stored states and burn-in, prioritized by their largest and mean
  errors. One actor, and a small GRU in place of the paper's LSTM.
Environment: a T-maze. A cue is seen in the first step. A corridor of 12 steps follows, and then the
  agent turns left or right: 1 for the side of the cue, -1 for the other.
Score: at least 0.9 (mean return of 100 episodes); an agent without memory has 0.
Time: 1 to 2 minutes on one core.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

from cpprb_like import GymnasiumRecorder, Prioritized, ReplayBuffer, Sequences, sequence_priorities
from cpprb_like.typing import FieldSpec

CORRIDOR, HIDDEN = 12, 32
BATCH, LENGTH, BURN_IN = 32, 10, 4  # sequences, their steps, steps that warm up the state
GAMMA, TAU, LEARNING_RATE = 0.98, 0.01, 2e-3
WARM_UP, LEARN_EVERY = 500, 2  # steps


class TMaze(gymnasium.Env[Any, Any]):
    """Observations: cue left, cue right, corridor, junction. Actions: left, right."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """A new cue."""
        super().reset(seed=seed)
        self.side, self.at = int(self.np_random.integers(2)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step along the corridor; in the last one the action counts."""
        over = self.at == CORRIDOR
        reward = (1.0 if action == self.side else -1.0) if over else 0.0
        self.at += not over
        return self._seen(), reward, over, False, {}

    def _seen(self) -> Any:
        seen = np.zeros(4, np.float32)
        seen[self.side if self.at == 0 else 3 if self.at == CORRIDOR else 2] = 1
        return seen


class Network(nn.Module):  # type: ignore[misc]
    """Q of both actions, of an observation and of what was seen before."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(4, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Q for each step, shape (n, steps, 2), and the state after the last one, (n, HIDDEN)."""
        hidden, state = self.memory(obs, state[None].contiguous())
        return self.head(hidden), state[0]


def train(seed: int, steps: int, *, forget: bool) -> tuple[Network, list[tuple[int, float]]]:
    """Act, store, draw sequences, learn; the network, and step and return of each evaluation."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = GymnasiumRecorder(TMaze())
    # The state of the network before each step is a field like others.
    fields: dict[str, FieldSpec] = {**env.env_dict, "state": {"shape": HIDDEN}}
    buffer = env.attach(ReplayBuffer(steps, fields, sampler=Prioritized(0.9), seed=seed))
    view = buffer.view(Sequences(LENGTH, burn_in=BURN_IN, first_only="state"))
    batches = view.batches(BATCH, beta=0.6, to="torch")
    network = Network()
    slow = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    curve, every = [(0, 0.0)], max(2, min(1_000, steps // 6 // 2 * 2))
    obs, _ = env.reset(seed=seed)
    state = torch.zeros(1, HIDDEN)
    for step in (bar := trange(1, steps + 1, unit="step", mininterval=0.5)):
        before = state
        with torch.no_grad():
            values, state = network(torch.as_tensor(obs)[None, None], state)
        explores = rng.random() < max(0.1, 1 - 4 * step / steps)
        action = int(rng.integers(2)) if explores else int(values[0, 0].argmax())
        obs, _, terminated, truncated, _ = env.step(action, state=before[0].numpy())
        if terminated or truncated or forget:
            state = torch.zeros(1, HIDDEN)
        if step < WARM_UP or step % LEARN_EVERY:
            continue

        batch = next(batches)
        # The state that was stored is from an older network. Some steps without gradients bring
        # it up to date; errors count from there on, and where the sequence has steps at all.
        with torch.no_grad():
            warm = batch.obs[:, :BURN_IN]
            _, state_of = network(warm, batch.state)
            _, slow_state = slow(warm, batch.state)
            learned = slice(BURN_IN, None)
            first = batch.obs[:, BURN_IN : BURN_IN + 1]
            _, following_state = network(first, state_of)
            _, slow_following = slow(first, slow_state)
            best = network(batch.next_obs[:, learned], following_state)[0].argmax(2, keepdim=True)
            value = slow(batch.next_obs[:, learned], slow_following)[0].gather(2, best)[..., 0]
            goes_on = 1 - batch.terminated[:, learned].float()
            target = batch.rew[:, learned] + GAMMA * goes_on * value
        values, _ = network(batch.obs[:, learned], state_of)
        chosen = values.gather(2, batch.act[:, learned, None])[..., 0]
        mask = batch.mask[:, learned]
        errors = (chosen - target) * mask
        loss = (batch.weights[:, None] * errors**2).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        view.update_priorities(
            batch.indexes, sequence_priorities(errors.detach().numpy(), mask.numpy(), eta=0.9)
        )
        with torch.no_grad():
            for one, other in zip(slow.parameters(), network.parameters(), strict=True):
                one.lerp_(other, TAU)
        if step % every == 0:
            curve.append((step, evaluate(network, 50, forget=forget)))
            bar.set_postfix_str(f"return {curve[-1][1]:.2f}")
    return network, curve


def evaluate(network: Network, episodes: int, *, forget: bool) -> float:
    """Mean return without exploration."""
    env, total = TMaze(), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        state, over = torch.zeros(1, HIDDEN), False
        while not over:
            with torch.no_grad():
                values, state = network(torch.as_tensor(obs)[None, None], state)
            if forget:
                state = torch.zeros(1, HIDDEN)
            obs, reward, over, _, _ = env.step(int(values[0, 0].argmax()))
            total += float(reward)
    return total / episodes


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="R2D2 in a T-maze.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6_000, help="environment steps")
    parser.add_argument("--forget", action="store_true", help="act without memory")
    parser.add_argument("--quick", action="store_true", help="too few steps to learn")
    parser.add_argument("--picture", type=Path, default=Path("r2d2_memory.png"))
    options = parser.parse_args()
    steps, episodes = (1_000, 10) if options.quick else (options.steps, 100)
    torch.set_num_threads(1)

    network, curve = train(options.seed, steps, forget=options.forget)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="R2D2 in a T-maze", xlabel="step", ylabel="return, 50 episodes")
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    score = evaluate(network, episodes, forget=options.forget)
    print(f"score: {score:.2f} (mean return of {episodes} episodes)")


if __name__ == "__main__":
    main()
