"""The slow, obvious twin of views: every episode is a list of steps, read one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from combinations import GAMMA, Cell, reward, step
from own_layers import ReturnsToGo

from cpprb_like import ReplayBuffer
from cpprb_like.views import (
    Advantages,
    Among,
    FrameStacks,
    Hindsight,
    Layer,
    NStep,
    Offsets,
    Sequences,
)

Array = npt.NDArray[Any]
Values = dict[str, Any]


@dataclass(eq=False)
class Episode:
    """Steps of one environment, in time order."""

    steps: list[Step] = field(default_factory=list)
    over: bool = False


@dataclass(eq=False)  # a step is found by what it is, and not by its values
class Step:
    """What was added, and where it belongs."""

    values: Values
    episode: Episode
    place: int  # in its episode
    row: int  # of the ring


class History:
    """Random episodes, added to a buffer and to a list."""

    def __init__(self, rb: ReplayBuffer, rng: np.random.Generator) -> None:
        self.rb, self.rng = rb, rng
        self.rows: list[Step | None] = []  # None was absent
        self.numbered: dict[int, Step] = {}
        self.open = [Episode() for _ in range(rb.n_envs)]
        self.streams: list[list[Step]] = [[] for _ in range(rb.n_envs)]
        self.count = 0
        self.stack = np.zeros((3, 2), np.float32)

    def play(self, n: int) -> None:
        """Add so many time steps."""
        for _ in range(n):
            present = self.rng.random(self.rb.n_envs) < (0.8 if self.rb.n_envs > 1 else 1.1)
            rows = [self.step(env, bool(there)) for env, there in enumerate(present)]
            if self.rb.n_envs > 1:
                names = rows[0]
                block: Values = {
                    name: [row[name] for row in rows]
                    if name == "tokens"
                    else np.stack([np.asarray(row[name]) for row in rows])
                    for name in names
                }
                self.rb.add_where(present, **block)
            else:
                self.rb.add(**rows[0])
            if self.rng.random() < 0.03:
                self.rb.on_episode_end()
                for episode in self.open:
                    episode.over = bool(episode.steps)

    def step(self, env: int, there: bool) -> Values:
        """The next step of an environment; of no meaning if it is absent."""
        if self.open[env].over:
            self.open[env] = Episode()
        episode = self.open[env]
        chance = self.rng.random()
        end = "terminated" if chance < 0.07 else "truncated" if chance < 0.14 else None
        values = step(self.count, end, not episode.steps, self.stack)
        names = self.rb.fields
        values = {name: values[name] for name in names if name in values}
        if not there:
            self.rows.append(None)
            values["terminated"] = values["truncated"] = False
            return values
        if "stacked" in values:
            self.stack = values["stacked"]
        self.count += 1
        kept = Step(values, episode, len(episode.steps), len(self.rows))
        self.rows.append(kept)
        self.numbered[values["id"]] = kept
        self.streams[env].append(kept)
        episode.steps.append(kept)
        episode.over = bool(end)
        return values

    def by_id(self) -> dict[int, Step]:
        """The steps by number."""
        return self.numbered


class Reading:
    """How a view reads, said once more."""

    def __init__(self, cell: Cell, layers: tuple[Layer, ...], history: History) -> None:
        self.history, self.cell = history, cell
        found: dict[type, Any] = {type(layer): layer for layer in layers}
        self.sequences: Sequences | None = found.get(Sequences)
        self.goals: Hindsight | None = found.get(Hindsight)
        stacks: FrameStacks | None = found.get(FrameStacks)
        self.depth = 1 if stacks is None else stacks.depths["obs"]
        self.is_stacked = stacks is not None
        nstep: NStep | None = found.get(NStep)
        sizes = nstep.size if nstep is not None else (2, 2) if cell.option == "Nstep" else None
        self.sizes = (1, 1) if sizes is None else sizes
        self.has_discount = sizes is not None
        returns = found.get(ReturnsToGo)
        self.is_chosen = found[Among].by if Among in found else None
        self.horizon = 0 if returns is None else returns.horizon
        self.gains: Advantages | None = found.get(Advantages)
        self.offsets: Offsets | None = found.get(Offsets)
        self.back, self.ahead = self.depth - 1, max(self.sizes[1], self.horizon) - 1
        for name, offsets in {} if self.offsets is None else self.offsets.offsets.items():
            last = self.sizes[1] - 1 if name == "next_obs" else 0
            self.back = max(self.back, -min(offsets))
            self.ahead = max(self.ahead, max(offsets) + last)

    # ---- which rows can be drawn ----------------------------------------------------------

    def can_start(self, first: Step) -> bool:
        """Whether all that the view reads of a row is there, and it is one to choose from."""
        if self.is_chosen is not None and not self.is_chosen(first.values):
            return False
        ring, more = self.history.rb.ring, self.ahead
        steps, oldest = first.episode.steps, ring.first
        behind = len(steps) - first.place
        if self.sequences is None:
            enough = behind > more or first.episode.over
        elif self.sequences.across_episodes:
            stream = self.history.streams[first.row % ring.n_envs]
            enough = len(stream) - stream.index(first) >= self.sequences.rows + more
        else:
            least = self.sequences.burn_in + 1
            enough = behind >= self.sequences.rows + more or (
                first.episode.over and behind >= least
            )
        if self.sequences is not None and self.sequences.stride > 1:
            on_stride = first.row // ring.n_envs % self.sequences.stride == 0
            enough &= on_stride or (first.place == 0 and self.is_known(first, oldest))
        known = first
        for _ in range(self.back):
            if known.place == 0 and self.is_known(known, oldest):
                break
            if known.place == 0 or steps[known.place - 1].row < oldest:
                return False
            known = steps[known.place - 1]
        return bool(enough)

    def is_known(self, first: Step, oldest: int) -> bool:
        """Whether the buffer can know that an episode begins here."""
        before = first.row - self.history.rb.n_envs
        return before >= oldest or before < 0

    # ---- what is read ----------------------------------------------------------------------

    def check(self, item: Values) -> None:
        """An item of a batch is what the steps say."""
        steps = self.history.by_id()
        ids = np.atleast_1d(item["id"])
        first = steps[int(ids[0])]
        assert self.can_start(first), f"row {first.values['id']} cannot be drawn"
        if self.sequences is None:
            self.check_row(item, first, self.goal_of(item, [first]))
            return
        rows, length = [first], self.sequences.rows
        stream = self.history.streams[first.row % self.history.rb.n_envs]
        if self.sequences.across_episodes:
            start = stream.index(first)
            rows = stream[start : start + length]
            begins = [self.begins(row) for row in rows]
            assert item["is_first"].tolist() == begins
        else:
            rows = first.episode.steps[first.place : first.place + length]
            assert item["mask"].tolist() == [k < len(rows) for k in range(length)]
        runs: list[list[int]] = []
        for k, row in enumerate(rows):
            if k == 0 or row.episode is not rows[k - 1].episode:
                runs.append([])
            runs[-1].append(k)
        single = self.sequences.first_only
        for run in runs:
            here = {
                name: values if name == single else values[run]
                for name, values in item.items()
                if name not in ("mask", "is_first", "weights", "indexes", "probabilities")
            }
            goal = self.goal_of(here, [rows[k] for k in run])
            for place, k in enumerate(run):
                got = {
                    name: values if name == single and k == 0 else values[place]
                    for name, values in here.items()
                    if name != single or k == 0
                }
                self.check_row(got, rows[k], goal)
        for name, values in item.items():
            if np.shape(values)[:1] == (length,) and name not in ("row_indexes", single):
                assert not np.any(values[len(rows) :]), f"padding of {name}"

    def begins(self, row: Step) -> bool:
        """Whether the buffer knows that an episode begins at a row."""
        return row.place == 0 and self.is_known(row, self.history.rb.ring.first)

    def goal_of(self, item: Values, rows: list[Step]) -> float | None:
        """The new goal of rows, which is one that was reached from the first of them on."""
        marks = np.atleast_1d(item.get("relabelled", False))
        assert marks.all() or not marks.any()
        if not marks[0]:
            return None
        goals = np.unique(item["goal"])
        assert len(goals) == 1
        later = rows[0].episode.steps[rows[0].place :]
        assert float(goals[0]) in {row.values["achieved"] for row in later}
        return float(goals[0])

    def check_row(self, got: Values, first: Step, goal: float | None) -> None:
        """A row is the transition of one of the numbers of steps that may have been drawn."""
        for size in range(self.sizes[0], self.sizes[1] + 1):
            expected = self.row(first, size, goal)
            wrong = [
                name
                for name, value in expected.items()
                if name in got and not np.array_equal(np.asarray(value, got[name].dtype), got[name])
            ]
            if not wrong:
                return
        told = [f"{name}: expected {expected[name]}, got {got[name]}" for name in wrong]
        raise AssertionError(f"row {first.values['id']}, goal {goal}: {told}")

    def row(self, first: Step, size: int, goal: float | None) -> Values:
        """A transition of so many steps, for a goal."""
        window = first.episode.steps[first.place : first.place + size]
        rewards = [row.values["rew"] for row in window]
        over = window[-1].values["terminated"]
        if goal is not None:
            ends = [row.values["achieved"] == goal for row in window]
            if any(ends):
                window = window[: ends.index(True) + 1]
            over = any(ends)
            rewards = [float(reward(*self.asked(row, goal))[0]) for row in window]
        last, values = window[-1], dict(first.values)
        values["rew"] = sum(GAMMA**k * rew for k, rew in enumerate(rewards[: len(window)]))
        values["terminated"], values["truncated"] = over, last.values["truncated"]
        values["next_achieved"] = last.values.get("next_achieved")
        if self.horizon:
            later = first.episode.steps[first.place : first.place + self.horizon]
            values["return_to_go"] = sum(
                GAMMA**k * row.values["rew"] for k, row in enumerate(later)
            )
        if self.gains is not None:
            values |= advantages(first, self.gains.gamma, self.gains.lam)
        if "tokens" in values:
            values["tokens"] = code(values["tokens"])
        values["obs"] = self.stacked(first, 0)
        values["next_obs"] = self.stacked(last, 1)
        for name, offsets in {} if self.offsets is None else self.offsets.offsets.items():
            row = last if name == "next_obs" else first
            values |= self.at_offsets(name, row, offsets)
        if goal is not None:
            values["goal"] = goal
        if self.has_discount:
            values["discount"] = 0.0 if over else GAMMA ** len(window)
        return {name: value for name, value in values.items() if value is not None}

    def at_offsets(self, name: str, row: Step, offsets: tuple[int, ...]) -> Values:
        """A field at offsets from a row, and which of them are padding."""
        assert self.offsets is not None
        steps, at = row.episode.steps, [row.place + offset for offset in offsets]
        values = [np.asarray(one.values[name]) for one in steps]
        if name == "next_obs":  # it goes on with ``obs``
            values.insert(0, np.asarray(steps[0].values["obs"]))
            at = [place + 1 for place in at]
        found = [values[min(max(place, 0), len(values) - 1)] for place in at]
        is_pad = [not 0 <= place < len(values) for place in at]
        if self.offsets.padding == "zeros":
            pairs = zip(found, is_pad, strict=True)
            found = [np.zeros_like(value) if padded else value for value, padded in pairs]
        return {name: np.stack(found), f"{name}_is_pad": np.array(is_pad)}

    @staticmethod
    def asked(row: Step, goal: float) -> tuple[Array, Array, dict[str, Array]]:
        ids = np.array([row.values["id"]])
        return np.array([row.values["achieved"]]), np.array([goal]), {"id": ids}

    def stacked(self, row: Step, ahead: int) -> Array:
        """The newest frames up to a row, or up to the one that follows it."""
        frames = [one.values["obs"] for one in row.episode.steps[: row.place + 1]]
        if ahead:
            frames.append(row.values["next_obs"])
        if not self.is_stacked:
            return np.asarray(frames[-1])
        frames = [frames[0]] * self.depth + frames
        return np.stack(frames[-self.depth :], axis=-1)


def advantages(row: Step, gamma: float, lam: float) -> Values:
    """The advantage and the lambda-return of a row whose value is ``achieved``."""
    total = 0.0
    for one in reversed(row.episode.steps[row.place :]):
        value, following = one.values["achieved"], one.values["next_achieved"]
        if one.values["terminated"]:
            following = 0.0
        total = one.values["rew"] + gamma * following - value + gamma * lam * total
    return {"advantage": total, "return": total + row.values["achieved"]}


def code(tokens: Array) -> int:
    """A number that says which values of any length a row has."""
    assert tokens.tolist() == list(range(tokens[:1].sum(), tokens[:1].sum() + len(tokens)))
    return int(tokens[0]) * 100 + len(tokens) if len(tokens) else 0


def coded(batch: dict[str, Array]) -> dict[str, Array]:
    """A batch with a number for the values of any length of each row."""
    others = {name: values for name, values in batch.items() if name[:2] != "T_"}
    tokens = others.pop("tokens", None)
    if tokens is None:
        return others
    if "T_mask" in batch:
        lead = tokens.shape[:-1]
        mask = batch["T_mask"].reshape(-1, tokens.shape[-1])
        rows = [row[here] for row, here in zip(tokens.reshape(mask.shape), mask, strict=True)]
        assert not tokens[~batch["T_mask"]].any()
    else:
        lead, offsets = batch["id"].shape, batch["T_offsets"]
        rows = np.split(tokens, offsets[1:-1]) if len(offsets) > 1 else []
        assert batch["T_segments"].tolist() == [k for k, row in enumerate(rows) for _ in row]
    return others | {"tokens": np.array([code(row) for row in rows], np.int64).reshape(lead)}


def items(batch: dict[str, Array]) -> list[Values]:
    """The items of a batch."""
    batch = coded(batch)
    n = len(next(iter(batch.values())))
    return [{name: values[k] for name, values in batch.items()} for k in range(n)]
