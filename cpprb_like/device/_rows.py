"""``Rows``: adds, draws and reads the rows of a replay on a device, for any array library.

The functions take a state, a dict of arrays, and return a state: new arrays for JAX, the same ones,
written in place, for PyTorch. All shapes follow from arguments and never from values. Here is no
loop over rows and no branch on a value, so programs are compiled once.

A row is known by its *slot*, ``step % steps * n_envs + environment``. The *link* of a row says
where its next values are: in the next row of its environment, among the pending values of the
newest step, or among the finals. So each field is read by one gather. Not here: checks of arguments
(``_plan``), and what users call (``_torch``, ``_jax``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cpprb_like._core import FLAG_END, FLAG_TERMINATED, FLAG_TRUNCATED
from cpprb_like.device._plan import DeviceField, Plan
from cpprb_like.device._readings import Reading, Stacks
from cpprb_like.device._weights import Weights, last_of
from cpprb_like.samplers import Prioritized
from cpprb_like.schedules import check

State = dict[str, Any]
Batch = dict[str, Any]
UNKNOWN = 64  # flag of a truncated row whose next values are not those of its episode
# Candidates of a draw of n rows, in case that some are refused: n, a share of n, and a number.
# Windows of several rows are refused more often than single rows.
SHARE_OF_ROWS, SHARE_OF_WINDOWS, SPARE = 8, 1, 64
NO_ROWS = "no row can be drawn: none that was tried has the steps and next values that it needs"


class Rows:
    """The rows of a plan. ``xp`` has the array functions of a library."""

    def __init__(self, xp: Any, plan: Plan) -> None:
        self.xp, self.plan = xp, plan
        self.laps = xp.most // plan.size - 1  # numbers of passes over the ring, which repeat
        if self.laps < 2:
            raise ValueError(f"size: expected at most {xp.most // 3} rows, got {plan.size}")
        self.envs = xp.arange(plan.n_envs)
        self.weights: Weights | None = None
        if isinstance(plan.sampler, Prioritized):
            is_single = plan.sampler.weights_dtype.itemsize == 4
            self.weights = Weights(xp, plan.size, xp.float if is_single else xp.wide)

    def init(self) -> State:
        """The state without rows."""
        xp, plan = self.xp, self.plan
        state: State = {
            # The step that is written next, the steps that are stored, and the pass over the ring.
            **{name: xp.full((), 0, xp.count) for name in ("cursor", "stored", "lap")},
            "wrapped": xp.full((), False, xp.bool),  # whether steps were overwritten
            "flags": xp.full((plan.size,), 0, xp.byte),
            "values": {
                field.name: xp.full((plan.rows_of(field), *field.shape), 0, field.dtype)
                for field in plan.stored
            },
        }
        if plan.sources:
            state |= {
                "links": xp.full((plan.size + 1,), 0, xp.index),
                # The slots of the finals' rows; the last place is that of unknown next values.
                "owners": xp.full((plan.finals + 2,), -1, xp.index),
                "final": xp.full((), 0, xp.count),  # the place of the next final
            }
        if self.weights is not None:
            state |= self._no_weights()
        return state

    # ------------------------------------------------------------------ adding

    def block(self, step: Mapping[str, Any], final: Any) -> tuple[Batch, Any]:
        """The checked values of ``add`` with axes (T, n_envs, ...), and the flags of the rows."""
        xp, plan = self.xp, self.plan
        shape = (plan.check_step(step), plan.n_envs)
        block = {one.name: step[one.name].reshape(*shape, *one.shape) for one in plan.fields}
        flags = xp.full(shape, 0, xp.byte)
        for name, sets, clears in plan.ends:
            flags = xp.where(
                (block[name] != 0).reshape(shape), flags & (255 - clears) | sets, flags
            )
        if final is True:
            return block, flags
        if not plan.ends:
            raise ValueError("final: expected end fields, such as terminated and truncated")
        if not isinstance(final, bool) and not hasattr(final, "dtype"):
            raise TypeError(f"final: expected a bool or an array, got {type(final).__name__}")
        if final is False:
            known = xp.full(shape, False, xp.bool)
        elif final.dtype != xp.bool or tuple(final.shape) not in (shape, shape[shape[0] == 1 :]):
            raise ValueError(
                f"final: expected bools of shape {shape}, got {final.dtype} of shape "
                f"{tuple(final.shape)}"
            )
        else:
            known = final.reshape(shape)
        is_cut = (flags & FLAG_TERMINATED) == FLAG_END
        return block, xp.where(is_cut & ~known, flags | UNKNOWN, flags)

    def add(self, state: State, block: Batch, flags: Any) -> State:
        """Write steps of all environments, in pieces whose next values all have room."""
        plan, count = self.plan, flags.shape[0]
        most = min(plan.steps, plan.finals // plan.n_envs) if plan.sources else plan.steps
        for start in range(0, count, most):
            piece = {name: values[start : start + most] for name, values in block.items()}
            state = self._add(state, piece, flags[start : start + most])
        return state

    def _add(self, state: State, step: Batch, flags: Any) -> State:
        xp, plan = self.xp, self.plan
        state = {**state, "values": dict(state["values"])}
        values, n, count = state["values"], plan.n_envs, flags.shape[0]
        times = (state["cursor"] + xp.arange(count)) % plan.steps
        slots = (times[:, None] * n + self.envs).reshape(-1)
        if plan.sources:
            self._link(state, step, flags.reshape(-1), slots)
        for field in plan.stored:
            values[field.name] = xp.put_steps(values[field.name], times, step[field.name])
        state["flags"] = xp.put(state["flags"], slots, flags.reshape(-1))
        if self.weights is not None:
            largest = state["largest"] + xp.full(slots.shape, 0, self.weights.dtype)
            unknown = (flags.reshape(-1) & UNKNOWN) == UNKNOWN
            state |= self.weights.put(state, slots, xp.where(unknown, 0, largest))
        after = state["cursor"] + count
        lap = (state["lap"] + after // plan.steps) % self.laps
        state["lap"] = xp.keep(state["lap"], lap)
        stored = state["stored"] + count
        state["wrapped"] = xp.keep(state["wrapped"], state["wrapped"] | (stored > plan.steps))
        state["stored"] = xp.keep(state["stored"], stored.clip(None, plan.steps))
        state["cursor"] = xp.keep(state["cursor"], after % plan.steps)
        return state

    def _link(self, state: State, step: Batch, flags: Any, slots: Any) -> None:
        """Link new rows, and the rows before them, to their next values.

        The next values of a row are the values of the row after it, if these are the same bytes.
        Others go to the finals, in place of the oldest ones.
        """
        xp, plan, values = self.xp, self.plan, state["values"]
        n, size = plan.n_envs, plan.size
        unknown = size + n + plan.finals + 1  # a link, which stays
        previous = (slots - n) % size
        promised, differs = {}, None
        for following, source in plan.sources.items():
            new = step[following]
            waiting = values[source][size : size + n][None]
            promised[following] = waiting if len(new) == 1 else xp.cat([waiting, new[:-1]])
            differ = xp.differ(promised[following], step[source])
            differs = differ if differs is None else differs | differ
        is_later = xp.arange(len(slots)) >= n
        differs = differs & (is_later | (state["stored"] > 0))
        number = differs.cumsum(0)
        places = xp.where(differs, (state["final"] + number - 1) % plan.finals, plan.finals)
        after = xp.cat([slots[n:], self.envs + size])
        before = previous
        if len(slots) == size:  # the row before the first ones is overwritten by the last ones
            before = xp.where(is_later, previous, size)
        after = xp.where((flags & UNKNOWN) == UNKNOWN, unknown, after)
        links = xp.put(state["links"], slots, xp.cast(after, xp.index))
        here = xp.where(differs, places + (size + n), slots)
        here = xp.where(xp.take(links, previous) == unknown, unknown, here)
        if self.weights is not None:  # rows whose finals are overwritten now
            owners = xp.cast(xp.take(state["owners"], places), xp.count)
            is_lost = xp.take(links, owners.clip(0)) == places + (size + n)
            lost = xp.where(differs & (owners >= 0) & is_lost, owners, size)
            state |= self.weights.put(state, lost, xp.full(lost.shape, 0, self.weights.dtype))
        state["links"] = xp.put(links, before, xp.cast(here, xp.index))
        state["owners"] = xp.put(state["owners"], places, xp.cast(previous, xp.index))
        state["final"] = xp.keep(state["final"], (state["final"] + number[-1]) % plan.finals)
        for following, source in plan.sources.items():
            rows = promised[following].reshape(len(slots), *promised[following].shape[2:])
            kept = xp.put(values[source], places, rows, start=size + n)
            values[source] = xp.put_block(kept, size, step[following][-1])

    def knows_next(self, state: State, slots: Any) -> Any:
        """Whether the next values of stored rows are there, and of the same episode."""
        xp, plan = self.xp, self.plan
        if not plan.sources:
            return (xp.take(state["flags"], slots) & UNKNOWN) == 0
        places = xp.take(state["links"], slots) - (plan.size + plan.n_envs)
        return (places < 0) | (xp.take(state["owners"], places.clip(0)) == slots)

    def _ends(self, state: State, slots: Any) -> Any:
        """Whether episodes end at rows."""
        return (self.xp.take(state["flags"], slots) & FLAG_END) == FLAG_END

    def _begins(self, state: State, slots: Any) -> Any:
        """Whether episodes begin at rows, as far as the rows before them are stored."""
        is_oldest = self._age(state, slots) == 0
        follows_end = self._ends(state, (slots - self.plan.n_envs) % self.plan.size)
        return self.xp.where(is_oldest, ~state["wrapped"], follows_end)

    def _age(self, state: State, slots: Any) -> Any:
        """Steps between the oldest stored one and those of rows."""
        oldest = state["cursor"] - state["stored"]
        return (slots // self.plan.n_envs - oldest) % self.plan.steps

    def end_episodes(self, state: State) -> State:
        """End the open episodes of all environments as truncated. Their next values stay."""
        xp, plan = self.xp, self.plan
        slots = (state["cursor"] - 1) % plan.steps * plan.n_envs + self.envs
        flags = xp.take(state["flags"], slots)
        is_open = ((flags & FLAG_END) == 0) & (state["stored"] > 0)
        flags = xp.where(is_open, flags | FLAG_TRUNCATED, flags)
        return {**state, "flags": xp.put(state["flags"], slots, flags)}

    def clear(self, state: State) -> State:
        """Forget all rows. Handles of the rows before stay those of no row."""
        xp = self.xp
        state = {**state, "stored": xp.keep(state["stored"], state["stored"] * 0)}
        state["wrapped"] = xp.keep(state["wrapped"], state["wrapped"] & False)
        if self.weights is not None:
            for name, new in self._no_weights().items():
                state[name] = xp.keep(state[name], new)
        return state

    def _no_weights(self) -> State:
        """The state of priorities without rows: a new row has priority 1."""
        sampler, weights = self.plan.sampler, self.weights
        assert weights is not None
        assert isinstance(sampler, Prioritized)
        first = (1.0 + sampler.eps) ** sampler.alpha
        return {
            **weights.init(),
            "largest": self.xp.full((), first, weights.dtype),
        }

    # ------------------------------------------------------------------ drawing

    def sample(
        self,
        state: State,
        reading: Reading,
        n: int,
        names: str | Iterable[str] | None,
        indexes: bool,
        beta: Any,
        random: Any,
    ) -> tuple[Batch, Any]:
        """A batch of n rows, and whether there was a row to draw. ``beta`` is a number or array."""
        fields = reading.fields(names)
        sampler = self.plan.sampler
        if isinstance(sampler, Prioritized):
            beta = sampler.beta if beta is None else beta
            if not hasattr(beta, "shape"):
                check("beta", beta, 0)
            elif beta.shape != () or not self.xp.is_float(beta):
                raise ValueError(f"beta: expected one float, got {beta.dtype} of {beta.shape}")
        elif beta is not None:
            raise TypeError("beta: expected Prioritized as the sampler")
        slots, most, there = self.draw(state, reading, n, reading.bootstraps(fields), random)
        batch = self.read(state, reading, fields, slots, most)
        if self.weights is not None:
            batch |= self.of_priorities(state, reading, slots, beta)
        if indexes or self.weights is not None:
            batch["indexes"] = self.handles(state, slots)
        return batch, there

    def draw(
        self, state: State, reading: Reading, n: int, bootstraps: bool, random: Any
    ) -> tuple[Any, Any, Any]:
        """Draw n rows: their slots, most steps of their n-step returns, and whether one was found.

        More candidates than n are drawn, and the first n that can be drawn are taken. If there are
        fewer, these repeat.
        """
        xp, plan, size = self.xp, self.plan, self.plan.size
        steps, begin = state["stored"], state["cursor"] - state["stored"]
        if reading.before:  # the oldest rows lack frames, once steps were overwritten
            low = xp.where(state["wrapped"], reading.before, 0)
            steps, begin = steps - low, begin + low
        count = (steps - reading.ahead if reading.ahead else steps) * plan.n_envs
        first = begin * plan.n_envs
        refuses = reading.may_refuse or self.weights is not None
        refuses = refuses or (bootstraps and bool(plan.sources or plan.ends))
        share = SHARE_OF_ROWS if reading.is_single else SHARE_OF_WINDOWS
        m = n * reading.stride * (share + 1) // share + SPARE if refuses else n
        if self.weights is None:
            slots = (random.below(m, count.clip(1)) + first) % size
        else:
            slots = self._draw_by_weight(state, n, m, first % size, count, random)
        most = None
        if reading.least < reading.most:
            most = reading.most - random.below(m * reading.rows, reading.most - reading.least + 1)
            most = most.reshape(m, reading.rows)
        if not refuses:
            return slots, most, count > 0
        usable = self._usable(state, reading, slots, most, bootstraps)
        if self.weights is not None:  # rounding may lead out of the interval
            usable = usable & ((slots - first) % size < count)
            usable = usable & (xp.take(state["level_0"], slots) > 0)
        ranks = usable.cumsum(0)
        found = ranks[-1]
        picked = xp.searchsorted(ranks, xp.arange(n) % found.clip(1) + 1).clip(None, m - 1)
        most = None if most is None else xp.take(most, picked)
        return xp.take(slots, picked), most, (found > 0) & (count > 0)

    def _draw_by_weight(
        self, state: State, n: int, m: int, first: Any, count: Any, random: Any
    ) -> Any:
        """Draw m rows of an interval of slots by their weights, the first n by strata."""
        xp, weights, sampler = self.xp, self.weights, self.plan.sampler
        assert weights is not None
        assert isinstance(sampler, Prioritized)
        size = self.plan.size
        end = (first + count.clip(0)) % size
        bounds = weights.before(state, xp.cat([first.reshape(1), end.reshape(1)]))
        total = weights.total(state)
        length = bounds[1] - bounds[0]
        is_whole = (count > 0) & (end <= first)
        length = xp.where(is_whole, length + total, length).clip(0)
        units = random.unit(m, xp.wide)
        if sampler.stratified:
            stratum = xp.arange(m)
            units = xp.where(stratum < n, (stratum + units) / n, units)
        targets = units * length + bounds[0]
        targets = xp.where(targets >= total, targets - total, targets)
        return weights.find(state, targets, random)

    def _usable(
        self, state: State, reading: Reading, slots: Any, most: Any, bootstraps: bool
    ) -> Any:
        """Whether each candidate can be drawn, given that the steps around it are stored."""
        xp, plan = self.xp, self.plan
        if reading.is_single and not reading.is_sequence and bootstraps:
            return self.knows_next(state, slots)
        usable = xp.full(slots.shape, True, xp.bool)
        rows, there, last, _ = self.windows(state, reading, slots, most)
        if reading.least_rows > 1:
            usable = usable & (there.sum(1) >= reading.least_rows)
        if reading.stride > 1:
            step = slots // plan.n_envs
            lap = xp.where(step < state["cursor"], state["lap"], state["lap"] - 1)
            on_stride = (lap * plan.steps + step) % reading.stride == 0
            usable = usable & (on_stride | self._begins(state, slots))
        if bootstraps:
            sound = self.knows_next(state, last)
            if reading.nstep is not None and not reading.last_fields >= plan.sources.keys():
                sound = sound & self.knows_next(state, rows)
            usable = usable & (sound | ~there).all(1)
        return usable

    def windows(
        self, state: State, reading: Reading, slots: Any, most: Any
    ) -> tuple[Any, Any, Any, Any]:
        """The rows of items, shape (m, rows), whether they belong to it, and their n-step returns.

        Of n-step returns: their last rows, and their numbers of rows, which ``most`` limits.
        """
        xp, plan = self.xp, self.plan
        width = reading.rows + reading.most - 1
        rows = (slots[:, None] + xp.arange(width) * plan.n_envs) % plan.size
        there = xp.full((len(slots), reading.rows), True, xp.bool)
        length = xp.full(there.shape, 1, xp.count)
        own = rows[:, : reading.rows]
        ends = self._ends(state, rows)
        if reading.rows > 1 and not reading.across:
            passed = ends[:, : reading.rows - 1].cumsum(1) == 0
            there = xp.cat([there[:, :1], passed], 1)
        goes = xp.full(there.shape, True, xp.bool)
        for k in range(1, reading.most):
            goes = goes & ~ends[:, k - 1 : k - 1 + reading.rows]
            length = length + (goes if most is None else goes & (k < most))
        last = (own + (length - 1) * plan.n_envs) % plan.size
        return own, there, last, length

    # ------------------------------------------------------------------ reading

    def read(
        self, state: State, reading: Reading, fields: tuple[DeviceField, ...], slots: Any, most: Any
    ) -> Batch:
        """The batch of rows that can be drawn."""
        xp, _plan = self.xp, self.plan
        rows: Any = slots
        there: Any = None
        last: Any = slots
        length: Any = None
        if not reading.is_single or reading.is_sequence:
            rows, there, last, length = self.windows(state, reading, slots, most)
        if not reading.is_sequence and length is not None:
            rows, last, length = rows[:, 0], last[:, 0], length[:, 0]
        stacks = reading.stacks
        batch: Batch = {}
        for field in fields:
            name, first = field.name, reading.is_sequence and field.name in reading.first_only
            ends, starts = (last, rows) if not first else (last[:, 0], rows[:, 0])
            if name in stacks:
                upto = ends if name in reading.last_fields else starts
                column = self._stacked(state, stacks[name], name, upto, reading)
            elif reading.nstep is not None and name in reading.nstep.rewards:
                steps = length[:, 0] if first else length
                column = self._summed(state, field, reading, starts, steps)
            else:
                column = self._at(state, name, ends if name in reading.last_fields else starts)
            batch[name] = column if first else self._padded(column, there, reading)
        if reading.nstep is not None and reading.nstep.discount:
            powers = xp.take(reading.powers, length)
            flags = xp.take(state["flags"], last)
            found = xp.where((flags & FLAG_TERMINATED) == FLAG_TERMINATED, 0, powers)
            found = xp.cast(found, xp.float).reshape(*length.shape, *reading.nstep.discount_shape)
            first = "discount" in reading.first_only
            batch["discount"] = found[:, 0] if first else self._padded(found, there, reading)
        if reading.across:
            batch["is_first"] = self._begins(state, rows)
        elif reading.is_sequence:
            batch["mask"] = there
        return batch

    def _at(self, state: State, name: str, rows: Any) -> Any:
        """A field of rows, as it was added."""
        source = self.plan.sources.get(name)
        if source is None:
            return self.xp.take(state["values"][name], rows)
        return self.xp.take(state["values"][source], self.xp.take(state["links"], rows))

    def _padded(self, column: Any, there: Any, reading: Reading) -> Any:
        """A column of sequences with zeros behind the ends of episodes."""
        if not reading.is_sequence or reading.across or reading.rows == 1:
            return column
        is_there = there.reshape(*there.shape, *[1] * (column.ndim - 2))
        return self.xp.where(is_there, column, self.xp.full((), 0, column.dtype))

    def _summed(
        self, state: State, field: DeviceField, reading: Reading, rows: Any, length: Any
    ) -> Any:
        """n-step returns, summed from the first step on."""
        xp, plan = self.xp, self.plan
        assert reading.nstep is not None
        first = xp.take(state["values"][field.name], rows)
        total = xp.cast(first, xp.wide)
        steps = length.reshape(*length.shape, *[1] * len(field.shape))
        for k in range(1, reading.most):
            power = reading.gammas[k]
            later = xp.take(state["values"][field.name], (rows + k * plan.n_envs) % plan.size)
            if power:
                total = xp.where(steps > k, total + power * xp.cast(later, xp.wide), total)
        return xp.where(steps > 1, xp.cast(total, field.dtype), first)

    def _stacked(self, state: State, stack: Stacks, name: str, rows: Any, reading: Reading) -> Any:
        """Stacks of the frames of an episode up to given rows, or up to their next values."""
        xp, plan = self.xp, self.plan
        is_next = name != stack.source
        depth = stack.depth - is_next
        age = self._age(state, rows)
        goes, back, frames, missing = age >= 0, age * 0, [], []
        for k in range(depth):
            if k:
                before = (rows - k * plan.n_envs) % plan.size
                goes = goes & (age >= k) & ~self._ends(state, before)
                back = back + goes
            frames.append((rows - back * plan.n_envs) % plan.size)
            missing.append(~goes)
        found = self._at(state, stack.source, _stack(xp, frames[::-1])) if frames else None
        if found is not None and reading.pads_with_zeros:
            is_padding = _stack(xp, missing[::-1])
            is_padding = is_padding.reshape(*is_padding.shape, *[1] * (found.ndim - rows.ndim - 1))
            found = xp.where(is_padding, xp.full((), 0, found.dtype), found)
        if is_next:
            newest = self._at(state, name, rows)
            newest = newest.reshape(*rows.shape, 1, *newest.shape[rows.ndim :])
            found = newest if found is None else xp.cat([found, newest], rows.ndim)
        return xp.moveaxis(found, rows.ndim, rows.ndim + stack.axis)

    def stats(self, state: State) -> dict[str, Any]:
        """Counts of a state: see ``DeviceReplay.stats``."""
        xp, plan = self.xp, self.plan
        arrays = {**state, **state["values"]}
        del arrays["values"]
        found = {"size": plan.size, "stored": state["stored"] * plan.n_envs}
        found["nbytes"] = sum(one.nbytes for one in arrays.values())
        if plan.sources:
            slots = xp.arange(plan.size)
            lost = (self._age(state, slots) < state["stored"]) & ~self.knows_next(state, slots)
            found |= {"finals": plan.finals, "lost": lost.sum()}
        return found

    # ------------------------------------------------------------------ handles and priorities

    def handles(self, state: State, slots: Any) -> Any:
        """Numbers of rows that stay those of no other row until the ring was passed very often."""
        xp, plan = self.xp, self.plan
        lap = xp.where(slots // plan.n_envs < state["cursor"], state["lap"], state["lap"] - 1)
        return lap % self.laps * plan.size + slots

    def slots_of(self, state: State, handles: Any) -> Any:
        """The slots of handles, ``size`` for rows that are gone."""
        slots = handles % self.plan.size
        is_there = self._age(state, slots) < state["stored"]
        is_there = is_there & (self.handles(state, slots) == handles)
        return self.xp.where(is_there, slots, self.plan.size)

    def update(self, state: State, handles: Any, fields: Batch) -> State:
        """Set fields of rows; rows that are gone are skipped, and the last of equal rows counts."""
        xp = self.xp
        for name, value in fields.items():
            self.plan.check_batch(name, value, len(handles))
        slots, places = last_of(xp, self.slots_of(state, handles), self.plan.size)
        values = dict(state["values"])
        for name, new in fields.items():
            values[name] = xp.put(values[name], slots, xp.take(new, places))
        return {**state, "values": values}

    def update_priorities(self, state: State, handles: Any, priorities: Any) -> tuple[State, Any]:
        """Set the priorities of rows, and say whether all were right.

        Wrong ones, and those of rows that are gone, are skipped.
        """
        xp, sampler = self.xp, self.plan.sampler
        if self.weights is None or not isinstance(sampler, Prioritized):
            raise TypeError("update_priorities: expected Prioritized as the sampler")
        if priorities.shape != handles.shape or not xp.is_float(priorities):
            raise ValueError(
                f"priorities: expected floats of shape {tuple(handles.shape)}, got "
                f"{priorities.dtype} of shape {tuple(priorities.shape)}"
            )
        weights = (xp.cast(priorities, self.weights.dtype) + sampler.eps) ** sampler.alpha
        is_right = (priorities >= 0) & (weights >= 0) & (weights <= self.weights.most)
        slots, size = self.slots_of(state, handles), self.plan.size
        weighs = is_right & self.knows_next(state, slots.clip(None, size - 1))
        slots = xp.where(weighs, slots, size)
        changed = self.weights.put_last(state, slots, weights)
        greatest = xp.where(slots < size, weights, 0)
        largest = xp.cat([greatest, state["largest"].reshape(1)]).max()
        largest = xp.keep(state["largest"], largest)
        return {**state, **changed, "largest": largest}, is_right.all()

    def of_priorities(self, state: State, reading: Reading, slots: Any, beta: Any) -> Batch:
        """The columns of a prioritized draw: importance-sampling weights, and probabilities."""
        xp, sampler = self.xp, self.plan.sampler
        assert isinstance(sampler, Prioritized)
        assert self.weights is not None
        weights = xp.take(state["level_0"], slots)
        plain = not (reading.ahead or reading.before or reading.is_sequence)
        unit = state["least"].min() if plain and sampler.weights == "all" else weights.min()
        found = {"weights": (weights / unit) ** -beta}
        if sampler.probabilities:
            found["probabilities"] = xp.cast(weights, xp.wide) / self.weights.total(state)
        return found


def _stack(xp: Any, rows: list[Any]) -> Any:
    """Arrays of one shape along a new last axis."""
    return xp.cat([one.reshape(*one.shape, 1) for one in rows], rows[0].ndim)
