"""Policy gradients on tokens: a small transformer learns to sort digits from rewards alone.

Algorithm: GRPO (Shao et al. 2024, "DeepSeekMath") with a reward for each token, and with replay.
  Several answers to a prompt are sampled; the advantage of a token is its reward beside those of
  its group. Rollouts are drawn more than once, so the ratio of new to old probabilities is clipped
  as in PPO, with a wider clip upwards (Yu et al. 2025, "DAPO"), as right tokens are rare at first.
Environment: a prompt has 2 to 6 digits and "=". The answer is the same digits, sorted. Each right
  one has a reward of 1; the first wrong one ends the answer.
Score: at least 0.7 (share of 500 prompts with the right answer, without sampling); a network that
  has not learned has about 0.
Time: 2 minutes on one core.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import trange

from cpprb_like import ReplayBuffer
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Packed

DIGITS = (2, 6)  # of a prompt
EQUALS, TOKENS, LONGEST = 6, 7, 13  # the tokens 0 to 5 are digits; tokens of a rollout
WIDTH, HEADS, LAYERS = 64, 4, 2
PROMPTS, GROUP = 128, 4  # prompts of an iteration, answers to each
KEPT, BATCH, UPDATES = 2, 64, 12  # iterations that are kept, rollouts drawn, updates of each
LEAST_RATIO, GREATEST_RATIO, LEARNING_RATE = 0.8, 3.0, 1e-3

# A rollout: the tokens of prompt and answer, which of them were sampled, their log-probabilities
# at that time, and their advantages. All have the length T of the rollout.
FIELDS: dict[str, FieldSpec] = {
    "ids": {"shape": ("T",), "dtype": np.uint8},
    "sampled": {"shape": ("T",), "dtype": np.bool_},
    "logp": {"shape": ("T",)},
    "advantage": {"shape": ("T",)},
}


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Of shape (n, tokens, WIDTH)."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.layers(self.norms[1](x))


class Policy(nn.Module):  # type: ignore[misc]
    """A transformer: log-probabilities of the next token, at each token."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS))

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Of shape (n, tokens, TOKENS). The mask says which token attends to which one."""
        x = self.token(ids) + self.position(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x).log_softmax(-1)


def draw_tasks(rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
    """Prompts with their right answers, shape (n, LONGEST), and the lengths of the prompts."""
    texts, lengths = np.zeros((n, LONGEST), np.int64), rng.integers(DIGITS[0], DIGITS[1] + 1, n)
    for text, length in zip(texts, lengths, strict=True):
        digits = rng.integers(0, EQUALS, length)
        text[: 2 * length + 1] = [*digits, EQUALS, *np.sort(digits)]
    return torch.as_tensor(texts), torch.as_tensor(lengths + 1)


def answer(
    policy: Policy, right: Tensor, lengths: Tensor, *, greedy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, which of them were sampled, and their log-probabilities: shape (n, LONGEST)."""
    ids, sampled = right.clone(), torch.zeros(right.shape, dtype=torch.bool)
    logp, positions = torch.zeros(right.shape), torch.arange(LONGEST)
    causal = positions[:, None] >= positions
    for at in range(int(lengths.min()), LONGEST):
        goes_on = (at >= lengths) & (at < 2 * lengths - 1) & (ids == right).all(1)
        rows = goes_on.nonzero()[:, 0]
        with torch.no_grad():
            output = policy(ids[rows, :at], positions[:at], causal[:at, :at])[:, -1]
        token = output.argmax(1) if greedy else output.exp().multinomial(1)[:, 0]
        ids[rows, at], sampled[rows, at] = token, True
        logp[rows, at] = output.gather(1, token[:, None])[:, 0]
    return ids, sampled, logp


def train(seed: int, iterations: int) -> tuple[Policy, list[tuple[int, float]]]:
    """Sample, store, draw, learn; the policy, and the share of right answers as it learns."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    rows = KEPT * PROMPTS * GROUP
    buffer = ReplayBuffer(rows, FIELDS, room={"T": LONGEST * rows}, seed=seed)
    # The tokens of all rollouts of a batch lie one behind the other, without padding.
    wide = dict.fromkeys(("ids", "T_positions", "T_segments"), np.int64)
    view = buffer.view(Packed(positions=True, segments=True, dtypes=wide))
    batches = view.batches(BATCH, to="torch")

    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, iterations)
    curve, every = [(0, 0.0)], max(1, min(10, iterations // 5))
    for iteration in (bar := trange(1, iterations + 1, unit="iteration")):
        right, lengths = (one.repeat_interleave(GROUP, 0) for one in draw_tasks(rng, PROMPTS))
        ids, sampled, logp = answer(policy, right, lengths, greedy=False)
        # Answers of a group that have come to a token are the same up to there, so their mean is
        # what the policy can expect.
        group = (PROMPTS, GROUP)
        tried = sampled.float().unflatten(0, group)
        good = tried * (ids == right).unflatten(0, group)
        mean = good.sum(1, keepdim=True) / tried.sum(1, keepdim=True).clamp(1)
        advantage = (good - tried * mean) / (mean * (1 - mean) + 1e-4).sqrt()
        # Several rows in one call: all their items, and where each row begins.
        ends = lengths + sampled.sum(1)
        held = torch.arange(LONGEST) < ends[:, None]
        offsets = np.append(0, ends.cumsum(0))
        columns = {"ids": ids, "sampled": sampled, "logp": logp}
        columns["advantage"] = advantage.flatten(0, 1)
        buffer.add(**{name: (one[held], offsets) for name, one in columns.items()})

        for _ in range(UPDATES):
            b = next(batches)
            # A token attends to those before it, in its own rollout only.
            mask = (b.T_segments[:, None] == b.T_segments).tril()
            now = policy(b.ids[None], b.T_positions, mask)[0]
            # The output at a token is for the next one. The first token of a rollout was not
            # sampled, so nothing is learned across rollouts.
            now = now[:-1].gather(1, b.ids[1:, None])[:, 0]
            ratio, advantage = (now - b.logp[1:]).exp(), b.advantage[1:]
            clipped = ratio.clamp(LEAST_RATIO, GREATEST_RATIO)
            loss = -torch.minimum(ratio * advantage, clipped * advantage)[b.sampled[1:]].mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        if iteration % every == 0:
            curve.append((iteration, evaluate(policy, 100)))
            bar.set_postfix_str(f"right {curve[-1][1]:.2f}")
    return policy, curve


def evaluate(policy: Policy, n: int) -> float:
    """The share of prompts with the right answer, without sampling."""
    right, lengths = draw_tasks(np.random.default_rng(10_000), n)
    ids, _, _ = answer(policy, right, lengths, greedy=True)
    return float((ids == right).all(1).float().mean())


def main() -> None:
    """Train, draw the learning curve, evaluate."""
    parser = argparse.ArgumentParser(description="Sort digits by policy gradients.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--quick", action="store_true", help="too few iterations to learn")
    parser.add_argument("--picture", type=Path, default=Path("token_policy.png"))
    options = parser.parse_args()
    iterations, prompts = (2, 20) if options.quick else (options.iterations, 500)
    torch.set_num_threads(1)

    policy, curve = train(options.seed, iterations)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True), marker=".")
    axes.set(title="Sorting digits", xlabel="iteration", ylabel="share of right answers")
    axes.set(ylim=(-0.05, 1.05))
    figure.savefig(options.picture, dpi=110)
    print(f"Picture: {options.picture.resolve()}")
    print(
        f"score: {evaluate(policy, prompts):.2f} (share of {prompts} prompts with the right answer)"
    )


if __name__ == "__main__":
    main()
