"""Findings: what looks wrong with the rows of a buffer.

Each check is a function of ``Facts`` that yields findings. Thresholds are such that runs of the
usual environments, with random and with trained agents, give none. Not here: what is read
(``_facts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cpprb_like.report._facts import LENGTH, NEXT, Array, Facts, FieldFacts

FEW = 100  # fewer rows than this show no pattern
NO_END = 10_000  # steps of each environment without an end, where no jump shows one
NO_REWARD = 20_000  # rows that all have the same reward, or 500 episodes
FROZEN_RUN = 200
STRIDES = 256
MOST_COMPARED = 20_000
BOX_SHARE = 0.75  # elements within the range of first observations: a new one exceeds a few
MOST_WIDTH = 1024  # elements of an observation that is compared with first ones


class Finding(NamedTuple):
    """Something in the rows that looks wrong.

    Attributes
    ----------
    name : str
        One of ``CHECKS``.
    field : str
        The field; empty if it is about rows.
    message : str
        What was found, with numbers.
    look_at : str
        What to check in the program that added the rows.
    """

    name: str
    field: str
    message: str
    look_at: str


Found = Iterator[tuple[str, str, str]]  # field, message, what to look at


def _not_finite(facts: Facts) -> Found:
    for one in facts.fields.values():
        if one.nan or one.inf:
            slot = int(facts.rows.slots[one.first_odd])
            message = f"{one.nan:,} NaN and {one.inf:,} infinite values; the first in slot {slot}"
            yield (
                one.name,
                message,
                "where they come from: one of them in a batch makes the loss NaN",
            )


def _constant(facts: Facts) -> Found:
    left_out = {facts.reward, *facts.ends}
    for name, one in facts.fields.items():
        is_next = name.startswith(NEXT) and name.removeprefix(NEXT) in facts.fields
        is_told = one.dtype.kind == "b" or one.nan or is_next or name in left_out or one.axis
        if one.is_constant and len(one.rows) >= FEW and not is_told:
            yield name, f"all {len(one.rows):,} rows have the same value", _ALIASED


def _frozen(facts: Facts) -> Found:
    observations, pairs = facts.observations, list(facts.pairs)
    for one in observations:
        if one.is_constant or len(one.rows) < FROZEN_RUN:
            continue
        longest = _longest_run(one, facts.rows.n_envs)
        least = max(FROZEN_RUN, len(one.rows) // facts.rows.n_envs // 10)
        if len(observations) > 1:  # one of several may be a goal, which stays for an episode
            least = max(least, 1 + max((one.length for one in facts.episodes), default=0))
        if longest >= least:
            yield one.name, f"the same value in {longest:,} steps on end", _ALIASED
    if pairs and len({len(one.rows) for one, _ in pairs}) == 1:
        inner = ~facts.rows.ends[pairs[0][0].rows]
        same = np.all([one.hashes == following.hashes for one, following in pairs], axis=0)[inner]
        moving = [one.name for one, _ in pairs if not one.is_constant]
        if moving and len(same) >= FEW and same.mean() >= 0.99:
            message = f"equals its next value in {same.mean():.1%} of all steps within episodes"
            yield moving[0], message, _ALIASED


_ALIASED = (
    "whether the environment, or a wrapper, returns the same array each time and overwrites it, or "
    "a sensor does not answer"
)


def _longest_run(one: FieldFacts, n_envs: int) -> int:
    """The longest run of rows of an environment that have the same value."""
    streams = one.rows % n_envs
    order = np.argsort(streams, kind="stable")
    values, streams = one.hashes[order], streams[order]
    changes = np.flatnonzero((values[1:] != values[:-1]) | (streams[1:] != streams[:-1]))
    return int(np.diff([-1, *changes, len(values) - 1]).max())


def _no_reward_signal(facts: Facts) -> Found:
    complete = [one for one in facts.episodes if one.complete]
    rewards = facts.rewards
    if np.ptp(rewards) if len(rewards) else True:
        return
    if len(rewards) < NO_REWARD and len(complete) < 500:
        return
    value = float(rewards[0])
    lengths = {one.length for one in complete}
    if value and (len(lengths) != 1 or len(complete) < 2 or any(one.truncated for one in complete)):
        return  # the length of an episode is what tells good from bad
    message = f"{value:g} in each of {len(rewards):,} rows"
    yield (
        facts.reward or "",
        message,
        "whether it is passed on: nothing tells good actions from bad ones",
    )


def _reward_scale(facts: Facts) -> Found:
    name, one = facts.reward or "", facts.fields.get(facts.reward or "")
    sizes = np.abs(facts.rewards)
    if one is None or len(sizes) < FEW or not sizes.any():
        return
    if len(one.sampled) == len(one.rows) and (message := _uneven(facts, one)):
        yield name, message, "whether an environment, or a part of the run, has another scale"
        return
    typical, rms = float(np.median(sizes[sizes > 0])), float(np.sqrt((sizes**2).mean()))
    if rms >= 200 or typical >= 500:
        message = f"a reward is typically {typical:,.4g}, and its root mean square {rms:,.4g}"
        yield name, message, "scaling or clipping of rewards: such targets make a loss explode"


def _uneven(facts: Facts, one: FieldFacts) -> str:
    """The message about rewards of several scales; empty for one scale."""
    inner = ~facts.rows.ends[one.rows]  # a goal may be worth far more than any other step
    values = np.nan_to_num(np.abs(one.sampled.reshape(-1).astype(np.float64)), posinf=0.0)[inner]
    sizes = np.unique(values[values > 1e-3])
    if len(sizes) > 1 and (ratios := sizes[1:] / sizes[:-1]).max() >= 200:
        n = int((values >= sizes[1:][ratios.argmax()]).sum())
        if n <= len(values) // 5:
            return f"{n:,} rewards are {ratios.max():,.0f} times as large as the others"
    blocks = [np.array_split(values, 64)] if len(values) >= 64 * 8 else []
    streams = one.rows[inner] % facts.rows.n_envs
    if facts.rows.n_envs > 1:
        blocks.append([values[streams == env] for env in range(facts.rows.n_envs)])
    for parts in blocks:
        scales = np.array([np.sqrt((part**2).mean()) for part in parts if part.any()])
        if len(scales) > 1 and max(scales.max() / np.median(scales), _jump(scales)) >= 100:
            return f"its size goes from {scales.min():.4g} to {scales.max():.4g} between parts"
    return ""


def _jump(scales: Array) -> float:
    """The ratio of the means of the first and the second half, or its inverse."""
    first, second = (float(half.mean()) for half in np.array_split(scales, 2))
    return max(first / second, second / first)


def _no_end(facts: Facts) -> Found:
    steps = int(facts.rows.present.sum()) // facts.rows.n_envs
    jumps, _ = _jumps(facts)
    if not facts.rows.ends.any() and (jumps >= 2 or steps >= NO_END):
        how = (
            f"the end flags {facts.ends} are never set" if facts.ends else "no field ends episodes"
        )
        after = f", although observations jump {jumps:,} times" if jumps else ""
        message = f"no episode ends in {steps:,} steps of each environment{after}: {how}"
        yield "", message, f"the end flags that are added: {_CROSSED}"


def _unmarked_end(facts: Facts) -> Found:
    jumps, name = _jumps(facts)
    if jumps >= 3 and facts.rows.ends.any():
        message = f"is {jumps:,} times not the value of the row after, and no end is marked there"
        yield name, message, f"whether time limits and resets are stored as ends: {_CROSSED}"


_CROSSED = "n-step returns, sequences and targets go on beyond an end that is not marked"


def _jumps(facts: Facts) -> tuple[int, str]:
    """Number of rows without an end whose next value is not that of the next row, and the field.

    0 if no field has such rows, or if at least half of its rows are such.
    """
    for one, following in facts.pairs:
        before, after = facts.following(one)
        inner = ~facts.rows.ends[one.rows[before]]
        jumps = int((following.hashes[before] != one.hashes[after])[inner].sum())
        if jumps and jumps < 0.5 * inner.sum():
            return jumps, following.name
    return 0, ""


def _time_limit(facts: Facts) -> Found:
    complete = [one for one in facts.episodes if one.complete]
    if len(complete) < 5 or any(one.truncated for one in complete):
        return
    lengths = np.array([one.length for one in complete])
    longest = int(lengths.max())
    n, near = int((lengths == longest).sum()), int((lengths >= longest - 5).sum())
    if longest >= 25 and n >= max(3, len(complete) // 20) and n > near / 2:
        message = f"{n:,} of {len(complete):,} episodes terminate after exactly {longest:,} steps"
        look_at = "whether a time limit ends them: it is truncation, after which targets bootstrap"
        yield (facts.ends or [""])[0], message, look_at


def _lost_final(facts: Facts) -> Found:
    is_found = False
    for one, following in facts.pairs:
        before, after = facts.following(one)
        at_end = facts.rows.ends[one.rows[before]]
        same = following.hashes[before[at_end]] == one.hashes[after[at_end]]
        if len(same) >= 5 and same.mean() >= 0.9 and not one.is_constant:
            message = f"is that of the row after in {same.mean():.0%} of {len(same):,} episode ends"
            look_at = (
                "whether a vector environment has reset already: its final observation is "
                "info['final_obs']; or whether the step of its reset was added too"
            )
            is_found = True
            yield following.name, message, look_at
        elif share := _share_in_range(facts, one, following):
            is_found = True
            yield following.name, f"is like {_FIRST.format(share)}", _RESET_WITHIN_STEP
    if not is_found and (share := _share_of_equal(facts)):
        names = [following.name for one, following in facts.pairs if not one.is_constant]
        yield names[0], f"equals {_FIRST.format(share)}", _RESET_WITHIN_STEP


_FIRST = "the first observation of an episode in {:.0%} of episode ends"
_RESET_WITHIN_STEP = (
    "whether the environment resets itself within step: its final observation is lost then, or in "
    "info['final_obs']"
)


def _ends_and_begins(facts: Facts, one: FieldFacts) -> tuple[Array, Array] | None:
    """Whether each row of a field ends an episode, and whether it is the first of one.

    None for a constant field, and for fewer than 20 ends, first rows or rows without an end.
    """
    ends, begins = facts.rows.ends[one.rows], np.zeros(len(one.rows), np.bool_)
    before, after = facts.following(one)
    begins[after[ends[before]]] = True
    is_few = min(begins.sum(), ends.sum(), (~ends).sum()) < 20
    return None if is_few or one.is_constant else (ends, begins)


def _share_of_equal(facts: Facts) -> float:
    """The share of ends whose next observation equals a first observation.

    0.0 for a small share, or if many other next observations do, too. Observations of several
    fields are equal if all of their fields are.
    """
    pairs = [pair for pair in facts.pairs if not pair[0].is_constant]
    if not pairs or len({len(one.rows) for one, _ in pairs}) > 1:
        return 0.0
    rows = _ends_and_begins(facts, pairs[0][0])
    if rows is None:
        return 0.0
    ends, begins = rows
    obs, nexts = np.zeros((2, len(ends)), np.uint64)
    keys = np.random.default_rng(2).integers(2**64, size=len(pairs), dtype=np.uint64) | 1
    for key, (one, following) in zip(keys, pairs, strict=True):
        obs += key * one.hashes
        nexts += key * following.hashes
    is_first = np.isin(nexts, obs[begins])
    share, others = float(is_first[ends].mean()), is_first[~ends].mean()
    is_lost = (share >= 0.9 and others <= 0.3) or (share >= 0.5 and others <= 0.01)
    return share if is_lost else 0.0


def _share_in_range(facts: Facts, one: FieldFacts, following: FieldFacts) -> float:
    """The share of ends whose next values are like first observations; 0.0 if few are.

    Such values lie within the range of first observations, and other next values do not. They
    differ from the value of their row by more than a step usually does.
    """
    rows, values = _ends_and_begins(facts, one), _values(one, following)
    if rows is None or values is None:
        return 0.0
    (ends, begins), (obs, nexts) = rows, values
    first = obs[begins]
    inside = (nexts >= first.min(axis=0)) & (nexts <= first.max(axis=0))
    is_first = inside.mean(axis=1) >= BOX_SHARE
    moves = np.abs(nexts - obs).mean(axis=1)
    is_far = moves[ends] > np.quantile(moves[~ends], 0.95)
    share = float(is_first[ends].mean())
    is_lost = share >= 0.9 and is_first[~ends].mean() <= 0.3 and is_far.mean() >= 0.8
    return share if is_lost else 0.0


def _values(one: FieldFacts, following: FieldFacts) -> tuple[Array, Array] | None:
    """Values and next values of all rows, flat.

    None unless all values are finite floats, at most ``MOST_WIDTH`` in a row.
    """
    n, width = len(one.rows), int(np.prod(one.shape))
    is_whole = len(one.sampled) == n == len(following.sampled)
    if one.dtype.kind != "f" or not is_whole or not 0 < width <= MOST_WIDTH:
        return None
    obs, nexts = (found.sampled.reshape(n, width).astype("f8") for found in (one, following))
    return (obs, nexts) if np.isfinite(obs).all() and np.isfinite(nexts).all() else None


def _order(facts: Facts) -> Found:
    for one, following in facts.pairs:
        own, share = facts.rows.n_envs, _share_that_follows(facts, one, following, None)
        is_aliased = bool((one.hashes == following.hashes).mean() >= 0.99)
        if share is None or share >= 0.5 or is_aliased:  # ``_frozen`` has the latter
            continue
        shares = {
            stride: _share_that_follows(facts, one, following, stride) or 0.0
            for stride in range(1, STRIDES + 1)
            if stride != own
        }
        best = max(shares, key=lambda stride: shares[stride])
        if shares[best] >= 0.5:
            message = (
                f"is the value of {one.name!r} {best} rows later and not {own}: the axes of time "
                "and environments are swapped, or their number is wrong"
            )
            yield following.name, message, f"n_envs={own}, and the first axis of what is added"
        elif share < 0.01:
            message = f"is never the value of {one.name!r} in the row after"
            look_at = "whether rows are added in the order of time: n-step returns go by it"
            yield following.name, message, look_at


def _share_that_follows(
    facts: Facts, one: FieldFacts, following: FieldFacts, stride: int | None
) -> float | None:
    """The share of steps within episodes whose next value is the value ``stride`` rows later.

    By default in the next row of the environment. None for few steps.
    """
    before, after = facts.following(one, stride)
    before, after = before[:MOST_COMPARED], after[:MOST_COMPARED]
    inner = ~facts.rows.ends[one.rows[before]]
    if inner.sum() < FEW // 2:
        return None
    return float((following.hashes[before] == one.hashes[after])[inner].mean())


def _swapped_axes(facts: Facts) -> Found:
    for one in facts.fields.values():
        axis = one.channels
        if axis is None or len(one.sampled) < 4 or one.is_constant:
            continue
        n = one.shape[axis] if len(one.shape) == 3 else 1
        height, width = (side for k, side in enumerate(one.shape) if k != axis)
        frames = one.sampled[np.linspace(0, len(one.sampled) - 1, 16).astype(int)].reshape(16, -1)
        frames = frames.astype(np.float32)
        first, last = (width, height * width), (width * n, 1)
        if n == 1:
            is_odd = _change(frames, height) < 0.6 * _change(frames, width)
            if height != width and is_odd:
                yield one.name, "neighbours are alike with height and width swapped", _RESHAPED
            continue
        own, other = (last, first) if axis == 2 else (first, last)
        is_odd = _change(frames, other[0]) < 0.6 * _change(frames, own[0])
        if is_odd and _change(frames, other[1]) < 0.8 * _change(frames, own[1]):
            where = "first" if axis == 2 else "last"
            yield one.name, f"neighbours are alike with the channels {where}", _RESHAPED


_RESHAPED = (
    "whether axes were reshaped: np.moveaxis or np.transpose moves an axis, reshape does not"
)


def _change(frames: Array, lag: int) -> float:
    """Mean absolute difference of elements that are ``lag`` places apart."""
    return float(np.abs(frames[:, lag:] - frames[:, :-lag]).mean())


def _stacks(facts: Facts) -> Found:
    for stack in facts.rows.buffer.schema.stacks:
        one = facts.fields[stack.name]
        values = _newest(facts, stack.name)
        if one.is_constant or stack.depth < 2 or values is None:
            continue
        frames, inner = values
        moved = np.moveaxis(frames, stack.axis + 1, 1)
        before, after = moved[:-1, 1:][inner], moved[1:, :-1][inner]
        shifts = (before == after).reshape(len(before), -1).all(axis=1).mean()
        if shifts < 0.1:
            axis = stack.axis - len(one.shape)
            message = f"no stack is the one before, shifted along axis {axis} by one frame"
            yield one.name, message, "the axis and the order of the frames: the newest is last"


def _newest(facts: Facts, name: str) -> tuple[Array, Array] | None:
    """The newest rows of environment 0, and which steps between them are within an episode."""
    rows = facts.rows
    stop = len(rows) - (len(rows) - 1) % rows.n_envs if len(rows) else 0
    start = max(0, stop - 1 - 256 * rows.n_envs) // rows.n_envs * rows.n_envs
    piece = slice(start, stop, rows.n_envs)
    there, ends = rows.present[piece], rows.ends[piece]
    inner = there[:-1] & there[1:] & ~ends[:-1]
    return (rows.read(piece, (name,))[name], inner) if inner.sum() >= 10 else None


def _beyond(facts: Facts) -> Found:
    for name, (low, high) in facts.ranges.items():
        one = facts.fields[name]
        if len(one.finite) and (one.least.min() < low or one.greatest.max() > high):
            message = (
                f"from {one.least.min():g} to {one.greatest.max():g}, beyond {low:g} to {high:g}"
            )
            yield name, message, "whether it is stored before it is scaled or clipped"


def _clipped(facts: Facts) -> Found:
    for one in facts.actions:
        if one.dtype.kind != "f" or len(one.rows) < FEW or one.nan or one.inf:
            continue
        at_bound = (one.sampled == one.least) | (one.sampled == one.greatest)
        share = float(at_bound.mean())
        if share >= 0.3 and len(np.unique(one.sampled[~at_bound])) >= 16:
            message = f"{share:.0%} of its values are its least or its greatest value"
            yield one.name, message, "the scale of actions: the agent's are clipped to the bounds"


def _zero_priorities(facts: Facts) -> Found:
    weights = facts.weights
    if weights is not None and len(weights) and not weights.all():
        n = int((weights == 0).sum())
        message = f"{n:,} of {len(weights):,} rows have priority 0 and are never drawn"
        yield "", message, "eps of the sampler, and what update_priorities is given"


def _collapsed_priorities(facts: Facts) -> Found:
    found = facts.statistics["priorities"]
    if found is not None and found["rows"] >= 10 * FEW:
        size = found["effective_sample_size"] or 0.0
        if size < 0.01 * found["rows"]:
            message = f"the effective sample size is {size:,.1f} of {found['rows']:,} rows"
            yield "", message, "TD errors of the rows with the greatest priorities, and alpha"


def _weights_shape(facts: Facts) -> Found:
    one = facts.fields.get(facts.reward or "")
    if one is not None and one.shape == (1,) and facts.weights is not None and len(facts.weights):
        message = (
            "has shape (1,): a batch of n rows has it as (n, 1) and weights as (n,), and their "
            "product is (n, n)"
        )
        look_at = "the loss: weights[:, None] is right there; or declare the field with shape ()"
        yield one.name, message, look_at


def _duplicates(facts: Facts) -> Found:
    rows = facts.rows
    whole = [one for one in facts.fields.values() if len(one.rows) == int(rows.present.sum())]
    keys = np.random.default_rng(1).integers(2**64, size=len(rows) + 1, dtype=np.uint64) | 1
    if not whole or not rows.ends.any():
        return
    order = np.flatnonzero(rows.present)
    by_row = np.zeros(len(rows), np.uint64)
    for key, one in zip(keys, whole, strict=False):
        by_row[order] += one.hashes * key
    order = order[np.argsort(order % rows.n_envs, kind="stable")]
    stream, values = order % rows.n_envs, by_row[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = rows.ends[order[:-1]] | (stream[1:] != stream[:-1])
    starts = np.flatnonzero(begins)
    place = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    changes = np.ones(len(order), np.int64)
    changes[1:] = values[1:] != values[:-1]
    sums = np.add.reduceat(values * keys[place], starts)
    information = np.add.reduceat(changes, starts)
    least = 9 if any(one.dtype.kind == "f" for one in facts.observations if one in whole) else 40
    sums = sums[information >= least]
    n = len(sums) - len(np.unique(sums))
    if n:
        message = f"{n:,} of {len(starts):,} episodes are step for step those of another one"
        yield "", message, "whether files were added twice, or environments have the same seed"


def _empty(facts: Facts) -> Found:
    for one in facts.fields.values():
        if one.axis and len(one.rows) and one.least == 0:
            share = float((one.sampled == 0).mean())
            message = f"{share:.1%} of all rows have no items of axis {one.axis!r}"
            yield one.name, message, "whether a row without items is meant: a mean of it is NaN"


def _same_length(facts: Facts) -> Found:
    for one in facts.fields.values():
        if one.axis and one.is_constant and len(one.rows) >= FEW and one.least > 0:
            message = f"all {len(one.rows):,} rows have {int(one.least)} items of axis {one.axis!r}"
            yield one.name, message, "whether rows are padded, or cut, before they are added"


def _left(facts: Facts) -> Found:
    ring = facts.rows.buffer.ring
    for items in ring.items:
        if items.left:
            message = (
                f"{items.left:,} rows left early, as the room of axis {items.axis!r} was full: "
                f"{len(ring):,} rows are there, and the capacity is {ring.size:,}"
            )
            yield LENGTH + items.axis, message, f"room={{{items.axis!r}: {items.room:,}}}"


_CHECKS: dict[str, Callable[[Facts], Found]] = {
    "not-finite": _not_finite,
    "constant": _constant,
    "frozen": _frozen,
    "no-reward-signal": _no_reward_signal,
    "reward-scale": _reward_scale,
    "no-end": _no_end,
    "unmarked-end": _unmarked_end,
    "time-limit-as-end": _time_limit,
    "lost-final-observation": _lost_final,
    "order-of-rows": _order,
    "swapped-axes": _swapped_axes,
    "stack-does-not-shift": _stacks,
    "out-of-range": _beyond,
    "clipped-actions": _clipped,
    "priority-zero": _zero_priorities,
    "collapsed-priorities": _collapsed_priorities,
    "weights-shape": _weights_shape,
    "duplicate-episodes": _duplicates,
    "empty-rows": _empty,
    "same-length": _same_length,
    "rows-leave-early": _left,
}
CHECKS = tuple(_CHECKS)


def findings(facts: Facts) -> list[Finding]:
    """What the checks find, in their order."""
    with np.errstate(all="ignore"):
        return [Finding(name, *one) for name, check in _CHECKS.items() for one in check(facts)]
