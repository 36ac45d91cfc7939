"""Findings: what looks wrong with the rows of a buffer.

Each check is a function of ``Facts`` that yields findings. Thresholds are such that runs of the
usual environments, with random and with trained agents, give none. Not here: what is read
(``_facts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cpprb_like.report._facts import LENGTH, MOST_WIDTH, NEXT, Array, Facts, FieldFacts

FEW = 100  # fewer rows than this show no pattern
NO_END = 10_000  # steps of each environment without an end, where no jump shows one
NO_REWARD = 20_000  # rows that all have the same reward, or 500 episodes
FROZEN_RUN = 200
STRIDES = 256
MOST_COMPARED = 20_000
BOX_SHARE = 0.75  # elements within the range of first observations: a new one exceeds a few
MANY_RUNS = 50  # stretches with one value of a column that moves
MOST_COPIES = 8  # times that each row is stored
MOST_JUMPS = 64  # jumps after which copies are looked for
MOST_FIRST = 1 << 18  # elements of first observations that are compared with one another
SPLITS = 16
LEAST_DISTANCE = 0.4  # between distributions of first observations
LEAST_EVIDENCE = 2.6  # that distance, times the root of how many there are: 3e-6 by chance
BRIGHTER = 20.0


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
    severity : str
        ``"alarm"``; or ``"note"`` for what many sound programs have too.
    """

    name: str
    field: str
    message: str
    look_at: str
    severity: str = "alarm"


Found = Iterator[tuple[str, ...]]  # field, message, what to look at, and "note" for a note


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
        is_told = is_told or one in _constant_parts(facts)
        if one.is_constant and len(one.rows) >= FEW and not is_told:
            yield name, f"all {len(one.rows):,} rows have the same value", _ALIASED


def _constant_parts(facts: Facts) -> list[FieldFacts]:
    """Observations that stay the same in at least 100 rows, if there are others that do not."""
    found = [one for one in facts.observations if one.is_constant and len(one.rows) >= FEW]
    return found if len(found) < len(facts.observations) else []


def _constant_columns(facts: Facts) -> Found:
    for one in _constant_parts(facts):
        yield one.name, f"all {len(one.rows):,} rows have the same value", _MEANT, "note"
    for one in facts.observations + facts.actions:
        is_odd = one.is_constant or one.nan or one.inf  # which other checks name
        if one.has_columns and not is_odd and len(one.rows) >= FEW:
            columns = np.flatnonzero(one.least == one.greatest)
            if len(columns):
                message = f"{_named('column', columns)} of {one.shape[0]} {_VERB[len(columns) > 1]}"
                message += f" one value in all {len(one.rows):,} rows"
                yield one.name, message, _MEANT, "note"


_MEANT = "whether that is meant, as of a goal or of padding; or a sensor, or a joint, is dead"
_VERB = "has", "have"


def _named(what: str, numbers: Array, most: int = 8) -> str:
    """The numbers of columns or environments as words, at most the first few."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    first = ", ".join(map(str, numbers[:most]))
    return f"{what}s {first}" + (f" and {len(numbers) - most} more" * (len(numbers) > most))


def _frozen(facts: Facts) -> Found:
    observations, pairs = facts.observations, list(facts.pairs)
    episode = max((one.length for one in facts.episodes), default=0)
    for one in observations:
        if one.is_constant or len(one.rows) < FROZEN_RUN:
            continue
        least = max(FROZEN_RUN, len(one.rows) // facts.rows.n_envs // 10)
        # One of several may be a goal, which stays for an episode; of an agent at a wall may all.
        is_of_episodes = len(observations) > 1 or (
            one.dtype.kind != "f" and 2 * episode < len(one.rows) // facts.rows.n_envs
        )
        by_field = max(least, is_of_episodes * (episode + 1))
        steps, first, last = _runs(one.hashes, one.rows % facts.rows.n_envs)
        if (is_long := steps >= by_field).any():
            message = f"the same value in {steps.max():,} steps on end"
            if _is_at_rest(facts, one, one.rows[first[is_long]], one.rows[last[is_long]]):
                yield one.name, message, _BEGUN, "note"
            else:
                yield one.name, message, _ALIASED
        elif one.has_columns:
            yield from _frozen_columns(facts, one, least, episode)
    if pairs and len({len(one.rows) for one, _ in pairs}) == 1:
        inner = ~facts.rows.ends[pairs[0][0].rows]
        same = np.all([one.hashes == following.hashes for one, following in pairs], axis=0)[inner]
        moving = [one.name for one, _ in pairs if not one.is_constant]
        if moving and len(same) >= FEW and same.mean() >= 0.99:
            message = f"equals its next value in {same.mean():.1%} of all steps within episodes"
            yield moving[0], message, _ALIASED


def _frozen_columns(facts: Facts, one: FieldFacts, least: int, episode: int) -> Found:
    """Columns that stay the same for ten times as long as they do anywhere else.

    Several such stretches count if they go on beyond ends of episodes.
    """
    places = one.rows[one.rows % one.spacing == 0]
    found: dict[str, dict[int, int]] = {"alarm": {}, "note": {}}  # longest stretches of columns
    for column, values in enumerate(one.sampled.T):
        runs, first, last = _runs(values, places % facts.rows.n_envs)
        runs, first, last = runs * one.spacing, places[first], places[last]
        is_long = (runs >= least) & (facts.episode_of[first] != facts.episode_of[last])
        if not is_long.any():
            is_of_episodes = len(runs) <= 2 * len(facts.episodes)  # such as a goal
            is_long[runs.argmax()] = runs.max() >= max(least, is_of_episodes * (episode + 1))
        others = runs[~is_long]
        if not is_long.any() or len(others) < MANY_RUNS or len(np.unique(values)) < 16:
            continue
        if runs[is_long].min() >= 10 * others.max():
            is_note = _is_at_rest(
                facts, one, first[is_long], last[is_long], slice(column, column + 1)
            )
            found["note" if is_note else "alarm"][column] = int(runs.max())
    for severity, steps in found.items():
        if steps:
            message = (
                f"{_named('column', np.array([*steps]))} of {one.shape[0]} {_VERB[len(steps) > 1]}"
            )
            message += (
                f" the same value in {max(steps.values()):,} steps on end, and elsewhere in few"
            )
            look_at = _BEGUN if severity == "note" else "whether a sensor, or a joint, stopped"
            yield one.name, message, look_at, severity


def _is_at_rest(
    facts: Facts, one: FieldFacts, first: Array, last: Array, columns: slice = slice(None)
) -> bool:
    """Whether stretches of rows have the value with which most other episodes begin.

    As a door that the agent cannot open yet. If all episodes begin within the stretches: whether an
    environment comes back to their value.
    """
    places, begun = _first_observations(facts, one)
    n_envs = facts.rows.n_envs
    is_other = np.ones(len(places), np.bool_)
    for start, stop in zip(first, last, strict=True):
        is_own = places % n_envs == start % n_envs
        is_other &= ~(is_own & (start <= places) & (places <= stop))
    held = facts.rows.read(first, (one.name,))[one.name].reshape(len(first), -1)[:, columns]
    if not is_other.any():
        comes_back = len(np.unique(first % n_envs)) < len(first)
        return len(begun) > 0 and comes_back and bool((held == held[0]).all())
    begun = begun.reshape(len(begun), -1)[is_other][:, columns]
    return all((begun == value).all(axis=1).mean() >= 0.5 for value in held)


def _first_observations(facts: Facts, one: FieldFacts) -> tuple[Array, Array]:
    """Places of rows that begin an episode, oldest first, and their values; some of many."""
    order, begins = facts.by_stream
    firsts = np.sort(order[begins])
    n = min(len(firsts), max(1, MOST_FIRST // math.prod(one.shape)))
    chosen = firsts[np.linspace(0, len(firsts) - 1, n).astype(int)]
    return chosen, facts.rows.read(chosen, (one.name,))[one.name]


_BEGUN = (
    "whether that is meant, as it is the value with which episodes begin: a door that is not "
    "opened; or an agent, a sensor or a joint is stuck"
)
_ALIASED = (
    "whether the environment, or a wrapper, returns the same array each time and overwrites it, or "
    "a sensor does not answer"
)


def _runs(values: Array, streams: Array) -> tuple[Array, Array, Array]:
    """All runs of rows of an environment that have the same value: length, first and last row."""
    order = np.argsort(streams, kind="stable")
    values, streams = values[order], streams[order]
    changes = (values[1:] != values[:-1]) | (streams[1:] != streams[:-1])
    first, last = np.ones((2, len(values)), np.bool_)
    first[1:] = last[:-1] = changes
    return np.flatnonzero(last) - np.flatnonzero(first) + 1, order[first], order[last]


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
        if one.is_constant:
            continue
        before, after = facts.following(one)
        at_end = facts.rows.ends[one.rows[before]]
        firsts = one.hashes[after[at_end]]
        is_first = np.isin(following.hashes[before], firsts)
        same = following.hashes[before] == one.hashes[after]
        if lost := _share_lost(facts, one.rows[before], at_end, same, is_first, 5, 0.9):
            message = f"is that of the row after in {lost[0]:.0%} of {lost[1]:,} {lost[2]}"
            look_at = (
                "whether a vector environment has reset already: its final observation is "
                "info['final_obs']; or whether the step of its reset was added too"
            )
            is_found = True
            yield following.name, message, look_at
        elif lost := _lost_in_range(facts, one, following):
            is_found = True
            yield following.name, f"is like {_FIRST.format(*lost)}", _RESET_WITHIN_STEP
    if not is_found and (lost := _lost_and_equal(facts)):
        names = [following.name for one, following in facts.pairs if not one.is_constant]
        yield names[0], f"equals {_FIRST.format(*lost)}", _RESET_WITHIN_STEP


_FIRST = "the first observation of an episode in {:.0%} of {:,} {}"
_RESET_WITHIN_STEP = (
    "whether the environment resets itself within step: its final observation is lost then, or in "
    "info['final_obs']"
)
_KINDS = "truncations", "terminations"


def _share_lost(
    facts: Facts,
    places: Array,
    ends: Array,
    is_lost: Array,
    is_first: Array,
    least: int,
    share: float,
) -> tuple[float, int, str] | None:
    """The share, the number and the name of the ends that are lost; None if too few are.

    ``ends`` says which rows end an episode. All ends are judged first, then those of each kind, of
    each environment, and of each kind in each environment. In each group that counts there are at
    least ``least`` ends, and more if ``is_first`` is set in other rows of these episodes, too; if
    it is in most of them, none counts: as of an agent that stands where it began.
    """
    n_envs, episodes = facts.rows.n_envs, facts.episode_of[places]
    terminates = np.zeros(len(episodes) and episodes.max() + 1, np.int64)
    terminates[episodes[ends]] = facts.rows.terminated[places[ends]]
    for by_kind, by_env in ((0, 0), (1, 0), (0, 1), (1, 1)):
        groups = by_kind * n_envs * terminates[episodes] + by_env * (places % n_envs)
        n, lost, others, usual = (
            np.bincount(groups[rows], weights, 2 * n_envs)
            for rows, weights in (
                (ends, None),
                (ends, is_lost[ends]),
                (~ends, None),
                (~ends, is_first[~ends]),
            )
        )
        usual_share = usual / np.maximum(1, others)
        is_rare = (usual_share <= 0.5) & (usual_share**lost < 1e-6)
        found = np.flatnonzero((n >= least) & (lost >= share * n) & is_rare)
        if len(found):
            found = found[found // n_envs == found[0] // n_envs]  # of one kind
            name = _KINDS[found[0] // n_envs] if by_kind else "episode ends"
            if by_env:
                name += f" of {_named('environment', found % n_envs)}"
            return float(lost[found].sum() / n[found].sum()), int(n[found].sum()), name
    return None


def _ends_and_begins(facts: Facts, one: FieldFacts) -> tuple[Array, Array] | None:
    """Whether each row of a field ends an episode, and whether it is the first of one.

    None for a constant field, and for fewer than 20 ends, first rows or rows without an end.
    """
    ends, begins = facts.rows.ends[one.rows], np.zeros(len(one.rows), np.bool_)
    before, after = facts.following(one)
    begins[after[ends[before]]] = True
    is_few = min(begins.sum(), ends.sum(), (~ends).sum()) < 20
    return None if is_few or one.is_constant else (ends, begins)


def _lost_and_equal(facts: Facts) -> tuple[float, int, str] | None:
    """The ends whose next observation equals a first observation: see ``_share_lost``.

    None also if many other next observations do, too. Observations of several fields are equal if
    all of their fields are.
    """
    pairs = [pair for pair in facts.pairs if not pair[0].is_constant]
    if not pairs or len({len(one.rows) for one, _ in pairs}) > 1:
        return None
    rows = _ends_and_begins(facts, pairs[0][0])
    if rows is None:
        return None
    ends, begins = rows
    obs, nexts = np.zeros((2, len(ends)), np.uint64)
    keys = np.random.default_rng(2).integers(2**64, size=len(pairs), dtype=np.uint64) | 1
    for key, (one, following) in zip(keys, pairs, strict=True):
        obs += key * one.hashes
        nexts += key * following.hashes
    is_first = np.isin(nexts, obs[begins])
    others = float(is_first[~ends].mean())
    if others > 0.3:
        return None
    share = 0.5 if others <= 0.01 else 0.9
    return _share_lost(facts, pairs[0][0].rows, ends, is_first, is_first, 20, share)


def _lost_in_range(
    facts: Facts, one: FieldFacts, following: FieldFacts
) -> tuple[float, int, str] | None:
    """The ends whose next values are like first observations: see ``_share_lost``.

    Such values lie within the range of first observations, and other next values do not. They
    differ from the value of their row by more than a step usually does.
    """
    rows, values = _ends_and_begins(facts, one), _values(one, following)
    if rows is None or values is None:
        return None
    (ends, begins), (obs, nexts) = rows, values
    first = obs[begins]
    inside = (nexts >= first.min(axis=0)) & (nexts <= first.max(axis=0))
    is_first = inside.mean(axis=1) >= BOX_SHARE
    if is_first[~ends].mean() > 0.3:
        return None
    moves = np.abs(nexts - obs).mean(axis=1)
    is_far = moves > np.quantile(moves[~ends], 0.95)
    return _share_lost(facts, one.rows, ends, is_first & is_far, is_first, 20, 0.8)


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
        if share is None or share >= 0.5:
            continue
        if (one.hashes == following.hashes).mean() >= 0.99:  # ``_frozen`` has these
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
        moves = one.least < one.greatest
        if not moves.any():
            continue
        values = one.sampled[:, moves]
        at_bound = (values == one.least[moves]) | (values == one.greatest[moves])
        share = float(at_bound.mean())
        if share >= 0.3 and len(np.unique(values[~at_bound])) >= 16:
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
    rows, (order, _), values = facts.rows, facts.by_stream, facts.row_hashes
    if not facts.whole or not rows.ends.any():
        return
    keys = np.random.default_rng(1).integers(2**64, size=len(rows) + 1, dtype=np.uint64) | 1
    stream = order % rows.n_envs
    begins = np.ones(len(order), np.bool_)
    begins[1:] = rows.ends[order[:-1]] | (stream[1:] != stream[:-1])
    starts = np.flatnonzero(begins)
    place = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    changes = np.ones(len(order), np.int64)
    changes[1:] = values[1:] != values[:-1]
    sums = np.add.reduceat(values * keys[place], starts)
    if len(np.unique(sums)) == len(sums):
        return
    is_long = np.add.reduceat(changes, starts) >= _least_copied(facts)
    begun = facts.hashes_of([one for one in facts.whole if one in facts.observations])[starts]
    _, episode, copies = np.unique(sums[is_long], return_inverse=True, return_counts=True)
    _, first, alike = np.unique(begun[is_long], return_inverse=True, return_counts=True)
    # Where others begin alike too, the next episode has to be a copy too: a policy may be fixed.
    is_copy = (copies[episode] > 1) & (copies[episode] == alike[first])
    pairs = np.where(episode[:-1] != episode[1:], episode[:-1] * len(copies) + episode[1:], -1)
    _, pair, twice = np.unique(pairs, return_inverse=True, return_counts=True)
    in_order = (pairs >= 0) & (twice[pair] > 1)
    is_copy[:-1] |= in_order
    is_copy[1:] |= in_order
    n = int(is_copy.sum()) - len(np.unique(episode[is_copy]))
    if n > 0:
        message = f"{n:,} of {len(starts):,} episodes are step for step those of another one"
        again = episode[is_copy] * rows.n_envs + stream[starts][is_long][is_copy]
        is_often = bool(np.unique(again, return_counts=True)[1].max() > 2)
        look_at = "whether files were added twice, or environments have the same seed"
        look_at += "; a fixed policy repeats an episode whose seed comes again" * is_often
        yield "", message, look_at, "note" if is_often else "alarm"


def _least_copied(facts: Facts) -> int:
    """The number of equal steps on end that do not come about by chance.

    There are more where a row comes after several other rows, as where states are few; the row
    before a copy of a row is a copy, too.
    """
    values, episodes = facts.row_hashes, facts.episode_of[facts.by_stream[0]]
    inner = (episodes[1:] == episodes[:-1]) & (values[1:] != values[:-1])
    after, before = values[1:][inner], values[:-1][inner]
    _, number, times = np.unique(after, return_inverse=True, return_counts=True)
    _, first = np.unique(after * np.uint64(3) + before, return_index=True)
    n = int((times > 1).sum())
    return 40 if (times[number[first]] > 1).sum() > 1.1 * n else 9


def _rows_twice(facts: Facts) -> Found:
    (order, _), values = facts.by_stream, facts.row_hashes
    is_known = not all(one.is_constant for one in facts.observations if one in facts.whole)
    if not (is_known and len(values)):
        return
    runs, _, _ = _runs(values, order % facts.rows.n_envs)
    times = int(np.median(runs))
    if len(runs) >= FEW and 1 < times <= MOST_COPIES and (runs == times).mean() >= 0.9:
        message = f"each row is stored {times} times on end"
        yield "", message, "whether add is called again for a step, or runs ahead of the sensors"
        return
    jumps = _places_of_jumps(facts)
    again = int((values[jumps] == values[jumps + 1]).sum())
    if again >= max(3, len(jumps) / 2):
        message = f"{again:,} rows are the same as the row before, whose next values are others"
        yield "", message, "whether add is called again for a step, as after an error"
    elif len(jumps):
        least = _least_copied(facts)
        if n := sum(_is_copied(facts, jump, least) for jump in jumps[:MOST_JUMPS]):
            message = (
                f"{n:,} parts of the run are there twice; next values do not lead to the row after"
            )
            yield "", message, "whether a part was added twice, as after the restart of a worker"


def _places_of_jumps(facts: Facts) -> Array:
    """Places in ``by_stream`` of rows without an end whose next value is not that of the next row.

    Those of the first field with next values that has such rows.
    """
    order, _ = facts.by_stream
    place = np.zeros(len(facts.rows), np.int64)
    place[order] = np.arange(len(order))
    for one, following in facts.pairs:
        before, after = facts.following(one)
        is_jump = ~facts.rows.ends[one.rows[before]]
        is_jump &= following.hashes[before] != one.hashes[after]
        if is_jump.any():
            return np.sort(place[one.rows[before[is_jump]]])
    return np.empty(0, np.int64)


def _is_copied(facts: Facts, jump: int, least: int) -> bool:
    """Whether the rows that begin after a jump, or those that end before it, are there again."""
    values = facts.row_hashes
    for run in (values[jump + 1 :][:least], values[: jump + 1][-least:]):
        moves = (run[1:] != run[:-1]).sum()
        if len(run) == least and moves >= least // 2:  # an agent may stand for long
            starts = np.flatnonzero(values[: len(values) - least + 1] == run[0])
            for step in range(1, least):
                starts = starts[values[starts + step] == run[step]]
            if len(starts) > 1:
                return True
    return False


def _changed_normalization(facts: Facts) -> Found:
    for one in facts.observations:
        if one.dtype.kind != "f" or one.is_constant:
            continue
        message = ""
        if one.has_columns and one in facts.whole:
            places, values = _first_observations(facts, one)
            if len(places) and (at := _change_point(values.astype(np.float64))):
                message = f"first observations are distributed otherwise from row {places[at]:,} on"
        elif one.channels is not None:
            sizes = np.abs(one.sampled.reshape(len(one.sampled), -1)).mean(axis=1)
            for at in _splits(len(sizes)):
                low, high = sorted(float(np.median(part)) for part in (sizes[:at], sizes[at:]))
                if low > 0 and high / low >= BRIGHTER:
                    message = f"pixels are {high / low:,.0f} times as large in a part of the run"
        if message:
            yield one.name, message, "whether the normalization changes there, or the environment"


def _splits(n: int) -> list[int]:
    """Places at which a run may be parted."""
    return np.unique(np.linspace(0, n, SPLITS + 1).astype(int)[1:-1]).tolist() if n > SPLITS else []


def _change_point(values: Array) -> int:
    """The place from which on at least half of the columns have another distribution; 0 for none.

    Distributions of values, and of distances from the median, are compared by the greatest
    difference of their distribution functions. Constant columns are left out.
    """
    values = values[:, values.min(axis=0) < values.max(axis=0)]
    found, best, n = 0, LEAST_EVIDENCE, len(values)
    orders = []
    for one in (values, np.abs(values - np.median(values, axis=0))):
        order = np.argsort(one, axis=0)
        orders.append((order, np.diff(np.take_along_axis(one, order, 0), axis=0) > 0))
    for at in _splits(n) if values.size else []:
        distances = np.zeros(values.shape[1])
        for order, is_step in orders:
            before = np.cumsum(order < at, axis=0)[:-1]
            after = np.arange(1, n)[:, None] - before
            gaps = np.abs(before / at - after / (n - at))
            distances = np.maximum(distances, np.where(is_step, gaps, 0.0).max(axis=0))
        distance = float(np.median(distances))
        if distance >= LEAST_DISTANCE and distance * math.sqrt(at * (n - at) / n) > best:
            found, best = at, distance * math.sqrt(at * (n - at) / n)
    return found


def _empty(facts: Facts) -> Found:
    for one in facts.fields.values():
        if one.axis and len(one.rows) and one.least == 0:
            share = float((one.sampled == 0).mean())
            message = f"{share:.1%} of all rows have no items of axis {one.axis!r}"
            yield one.name, message, "whether a row without items is meant: a mean of it is NaN"


def _same_length(facts: Facts) -> Found:
    texts = {one.axis for one in facts.rows.buffer.schema.declared if one.is_text}  # as one task
    for one in facts.fields.values():
        is_judged = one.axis and one.axis not in texts and len(one.rows) >= FEW
        if is_judged and one.is_constant and one.least > 0:
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


def _few_by_rule(facts: Facts) -> Found:
    n, left, each = facts.rules or (0, 0, "")
    if 100 * left < n:
        together = f"; together {left:,}" if each.count(" leaves ") > 1 else ""
        which = "" if n == int(facts.rows.present.sum()) else " with a start for the layers"
        look_at = "whether so few are meant: a batch has the same rows many times"
        look_at = look_at if " leaves " in each else "this error, which draws raise too"
        yield "", f"of {n:,} rows{which} {each}{together}", look_at


_CHECKS: dict[str, Callable[[Facts], Found]] = {
    "not-finite": _not_finite,
    "constant": _constant,
    "constant-column": _constant_columns,
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
    "duplicate-rows": _rows_twice,
    "changed-normalization": _changed_normalization,
    "empty-rows": _empty,
    "same-length": _same_length,
    "rows-leave-early": _left,
    "few-rows-by-rule": _few_by_rule,
}
CHECKS = tuple(_CHECKS)
BECAUSE = {  # what a finding explains
    "duplicate-rows": {"unmarked-end", "order-of-rows"},
    "frozen": {"changed-normalization"},
}


def findings(facts: Facts) -> list[Finding]:
    """What the checks find, in their order."""
    with np.errstate(all="ignore"):
        found = [Finding(name, *one) for name, check in _CHECKS.items() for one in check(facts)]
    alarms = [one.name for one in found if one.severity == "alarm"]
    explained = {other for name in alarms for other in BECAUSE.get(name, ())}
    return [one for one in found if one.name not in explained]
