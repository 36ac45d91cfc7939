"""``Rows``: adds, draws and reads the rows of a replay on a device, for any array library.

The functions take a state, a dict of arrays, and return a state: new arrays for JAX, the same ones,
written in place, for PyTorch. All shapes follow from arguments and never from values. Here is no
loop over rows and no branch on a value, so programs are compiled once.

Rows are numbered as they are written. A clear goes on at the next multiple of ``size``. The *slot*
of a row is its number modulo ``size``, and its number, which may repeat for JAX, its handle. The
*link* of a row says where its next values are: in the next row of its environment, or among the
finals. So each field is read by one gather. Not here: checks of arguments (``_plan``), and what
users call (``_torch``, ``_jax``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from cpprb_like._core import FLAG_END, FLAG_TERMINATED, FLAG_TRUNCATED
from cpprb_like.device._plan import DeviceField, Plan
from cpprb_like.device._readings import Reading
from cpprb_like.device._weights import Weights, last_of
from cpprb_like.samplers import Prioritized
from cpprb_like.schedules import check

State = dict[str, Any]
Batch = dict[str, Any]
Block = dict[Any, Any]
UNKNOWN = 64  # flag of a row whose next values are lost, or not of its episode
ABSENT = 128  # flag of a row without a step, which ``from_host`` makes; greatest of all
# Candidates of a draw of n rows, in case that some are refused: n, a share of n, and a number.
# Windows of several rows are refused more often than single rows.
SHARE_OF_ROWS, SHARE_OF_WINDOWS, SPARE = 8, 1, 64
NO_ROWS = "no row can be drawn: none that was tried has the steps and next values that it needs"


class Rows:
    """The rows of a plan. ``xp`` has the array functions of a library."""

    def __init__(self, xp: Any, plan: Plan) -> None:
        self.xp, self.plan = xp, plan
        laps = xp.most // plan.size - 1
        if laps < 2:
            raise ValueError(f"size: expected at most {xp.most // 3} rows, got {plan.size}")
        self.period = laps * plan.size  # numbers of rows, which then repeat
        self.envs = xp.arange(plan.n_envs)
        self.no_flags = xp.full((), 0, dtype=xp.byte)
        self.end_flags = [
            (name, xp.full((), sets, dtype=xp.byte), clears > 0) for name, sets, clears in plan.ends
        ]
        self.weights: Weights | None = None
        if isinstance(plan.sampler, Prioritized):
            is_single = plan.sampler.weights_dtype.itemsize == 4
            self.weights = Weights(xp, plan.size, xp.float if is_single else xp.wide)

    def init(self) -> State:
        """The state without rows."""
        xp, plan = self.xp, self.plan
        state: State = {
            "written": xp.full((), 0, dtype=xp.count),  # number of the row that is written next
            "stored": xp.full(
                (), 0, dtype=xp.count
            ),  # rows since the last clear, at most size + n_envs
            "flags": xp.full((plan.size + 1,), 0, dtype=xp.byte),
            "values": {
                name: xp.full((plan.rows_of(name), plan.widths[name]), 0, dtype=fields[0].dtype)
                for name, fields in plan.tables.items()
            },
        }
        if plan.sources:
            state |= {
                "links": xp.full((plan.size + 1,), -1, dtype=xp.index),
                # Each environment has a ring of finals. One is that of its newest row.
                "newest": xp.arange(plan.n_envs),
                "owners": xp.full(
                    (plan.room + 1,), plan.size, dtype=xp.index
                ),  # slots of their rows
            }
        if self.weights is not None:
            state |= self._no_weights()
        return state

    # ------------------------------------------------------------------ adding

    def block(self, step: Mapping[str, Any], final: Any) -> tuple[Block, Any]:
        """The checked values of ``add``, of shape (T * n_envs, numbers), and the flags of the rows.

        The next values of a table have the key ``("next", name)``.
        """
        xp, plan = self.xp, self.plan
        shape = (plan.check_step(step), plan.n_envs)
        block: Block = {}
        for name, fields in plan.tables.items():
            block[name] = xp.rows([step[one.name] for one in fields], prod(shape))
        for name, fields in plan.following.items():
            block["next", name] = xp.rows([step[one.name] for one in fields], prod(shape))
        flags: Any = None
        for name, flag, overrides in self.end_flags:
            is_end = step[name] if step[name].dtype == xp.bool else step[name] != 0
            others = flags if overrides and flags is not None else self.no_flags
            ended = xp.where(is_end.reshape(-1), flag, others)
            flags = ended if flags is None or overrides else flags | ended
        if flags is None:
            flags = xp.full((prod(shape),), 0, dtype=xp.byte)
        if final is True:
            return block, flags
        if not plan.ends:
            raise ValueError("final: expected end fields, such as terminated and truncated")
        if not isinstance(final, bool) and not hasattr(final, "dtype"):
            raise TypeError(f"final: expected a bool or an array, got {type(final).__name__}")
        is_cut = (flags & FLAG_TERMINATED) == FLAG_END
        if final is not False:
            if final.dtype != xp.bool or tuple(final.shape) not in (shape, shape[shape[0] == 1 :]):
                raise ValueError(
                    f"final: expected bools of shape {shape}, got {final.dtype} of shape "
                    f"{tuple(final.shape)}"
                )
            is_cut = is_cut & ~final.reshape(-1)
        return block, xp.where(is_cut, flags | UNKNOWN, flags)

    def add(self, state: State, block: Block, flags: Any) -> State:
        """Write steps of all environments, in pieces whose next values all have room."""
        plan = self.plan
        most = min(plan.size, plan.room) if plan.sources else plan.size
        if flags.shape[0] <= most:
            return self._add(state, block, flags)
        for start in range(0, flags.shape[0], most):
            piece = {name: values[start : start + most] for name, values in block.items()}
            state = self._add(state, piece, flags[start : start + most])
        return state

    def _add(self, state: State, step: Block, flags: Any) -> State:
        xp, plan = self.xp, self.plan
        count = flags.shape[0]
        state = {**state, "values": dict(state["values"])}
        values = state["values"]
        slots = state["written"] % plan.size + self.envs
        if count > plan.n_envs:
            slots = (slots[:1] + xp.arange(count)) % plan.size
        if plan.sources:
            self._link(state, step, slots)
        state["flags"] = xp.put_steps(state["flags"], slots, flags, plan.n_envs)
        for name in plan.tables:
            values[name] = xp.put_steps(values[name], slots, step[name], plan.n_envs)
        if self.weights is not None:
            weights = xp.where(flags < UNKNOWN, state["largest"], 0)
            state |= self.weights.put(state, slots, weights)
        state["written"] = xp.advance(state["written"], count, period=self.period)
        state["stored"] = xp.advance(state["stored"], count, most=plan.size + plan.n_envs)
        return state

    def _link(self, state: State, step: Block, slots: Any) -> None:
        """Link new rows, and the rows before them, to their next values.

        The next values of a row go to the place of a final. If those of the row after it are the
        same bytes, this is their link, and the place is free again.
        """
        xp, plan, values = self.xp, self.plan, state["values"]
        n, size, room, is_block = plan.n_envs, plan.size, plan.room, len(slots) > plan.n_envs
        waiting = state["newest"] + size
        differs = None
        for name in plan.following:
            promised = xp.take(values[name], waiting)
            if is_block:
                promised = xp.cat([promised, step["next", name][:-n]])
            differ = xp.differ(promised, step[name])
            differs = differ if differs is None else differs | differ
        assert differs is not None
        steps = differs.reshape(-1, n).cumsum(0) if is_block else differs
        finals = ((state["newest"] + steps * n) % room).reshape(-1)
        places = finals + size
        newest, last, before = places, finals, waiting
        if is_block:
            newest, last, before = places[-n:], finals[-n:], xp.cat([waiting, places[:-n]])
        here = xp.cast(xp.where(differs, before, slots), xp.index)
        links = xp.put_steps(state["links"], (slots - n) % size, here, n)
        here = xp.cast(newest, xp.index)
        links = xp.put_steps(links, slots[-n:] if is_block else slots, here, n)
        state["newest"] = xp.keep(state["newest"], last)
        if is_block:  # a place that is free again has the values of the last step that takes it
            is_last = xp.cat([differs[n:], xp.full((n,), True, dtype=xp.bool)])
            finals = xp.where(is_last, finals, room)
            places = finals + size
        # Rows whose finals are overwritten now lose them. ``_add`` flags new rows in their slots.
        owners = xp.take(state["owners"], finals)
        is_lost = xp.take(links, owners) == places
        lost = xp.cast(xp.where(is_lost, owners, size), xp.count)
        flags = state["flags"]
        state["flags"] = xp.put(flags, lost, xp.take(flags, lost) | UNKNOWN)
        state["owners"] = xp.put(state["owners"], finals, xp.cast(slots, xp.index))
        state["links"] = links
        if self.weights is not None:
            state |= self.weights.put(state, lost, xp.full(lost.shape, 0, dtype=self.weights.dtype))
        for name in plan.following:
            values[name] = xp.put(values[name], places, step["next", name])

    def _ends(self, state: State, slots: Any) -> Any:
        """Whether episodes end at rows."""
        return (self.xp.take(state["flags"], slots) & FLAG_END) == FLAG_END

    def _begins(self, state: State, slots: Any) -> Any:
        """Whether episodes begin at rows, as far as the rows before them are stored."""
        is_oldest = self._age(state, slots) == 0
        follows_end = self._ends(state, (slots - self.plan.n_envs) % self.plan.size)
        return self.xp.where(is_oldest, state["stored"] <= self.plan.size, follows_end)

    def _age(self, state: State, slots: Any) -> Any:
        """Steps between the oldest stored one and those of rows."""
        stored = state["stored"].clip(None, self.plan.size)
        return (slots + stored - state["written"]) % self.plan.size // self.plan.n_envs

    def end_episodes(self, state: State) -> State:
        """End the open episodes of all environments as truncated. Their next values stay."""
        xp, plan = self.xp, self.plan
        slots = (state["written"] - plan.n_envs + self.envs) % plan.size
        flags = xp.take(state["flags"], slots)
        is_open = ((flags & FLAG_END) == 0) & (state["stored"] > 0)
        flags = xp.where(is_open, flags | FLAG_TRUNCATED, flags)
        return {**state, "flags": xp.put(state["flags"], slots, flags)}

    def clear(self, state: State) -> State:
        """Forget all rows. Handles of the rows before stay those of no row."""
        xp, written = self.xp, state["written"]
        rest = -written % self.plan.size
        state = {**state, "written": xp.advance(written, rest, period=self.period)}
        state["stored"] = xp.keep(state["stored"], state["stored"] * 0)
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
            "largest": self.xp.full((), first, dtype=weights.dtype),
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
        xp, plan = self.xp, self.plan
        before, ahead = reading.before * plan.n_envs, reading.ahead * plan.n_envs
        stored = state["stored"].clip(1, plan.size)  # at least 1, as it divides
        count, there = stored, state["stored"]
        if before:  # the oldest rows lack frames, once steps were overwritten
            before = xp.where(state["stored"] > plan.size, before, 0)
        is_part = reading.before or reading.ahead
        if is_part:
            there = state["stored"].clip(None, plan.size) - before - ahead
            count = there.clip(1)
        refuses = reading.may_refuse or self.weights is not None or "absent" in state
        refuses = refuses or (bootstraps and bool(plan.sources or plan.ends))
        share = SHARE_OF_ROWS if reading.is_single else SHARE_OF_WINDOWS
        m = n * reading.stride * (share + 1) // share + SPARE if refuses else n
        first = (state["written"] - stored + before) % plan.size if is_part else None
        if self.weights is None:
            slots = random.below(m, count)
            if is_part:
                slots = (slots + first) % plan.size
        else:
            slots = self._draw_by_weight(state, n, m, first, there, random)
        columns = [slots]
        if reading.least < reading.most:
            most = reading.most - random.below(m * reading.rows, reading.most - reading.least + 1)
            columns.append(most.reshape(m, reading.rows))
        if refuses:
            usable = self._usable(state, reading, *columns, bootstraps=bootstraps)
            if self.weights is not None:
                usable = usable & (xp.take(state["level_0"], slots) > 0)
                if is_part:  # rounding may lead out of the interval
                    usable = usable & ((slots - first) % plan.size < there)
            ranks = usable.cumsum(0)
            places, found = ranks * usable, ranks[-1]  # place 0 is for those that are refused
            picked = xp.arange(n) % found.clip(1) + 1
            for k, column in enumerate(columns):
                chosen = xp.put(
                    xp.full((m + 1, *column.shape[1:]), 0, dtype=column.dtype), places, column
                )
                columns[k] = xp.take(chosen, picked)
            there = there * found
        return columns[0], columns[1] if columns[1:] else None, there > 0

    def _draw_by_weight(
        self, state: State, n: int, m: int, first: Any, count: Any, random: Any
    ) -> Any:
        """Draw m rows by weight, the first n by strata; of an interval, if ``first`` is given."""
        xp, weights, sampler = self.xp, self.weights, self.plan.sampler
        assert weights is not None
        assert isinstance(sampler, Prioritized)
        total = weights.total(state)
        units = random.unit(m, xp.wide)
        if sampler.stratified:
            stratum = xp.arange(m)
            units = xp.where(stratum < n, (stratum + units) / n, units)
        if first is None:
            return weights.find(state, units * total, random)
        end = (first + count.clip(0)) % self.plan.size
        bounds = weights.before(state, xp.cat([first.reshape(1), end.reshape(1)]))
        length = bounds[1] - bounds[0]
        is_split = (count > 0) & (end <= first)
        length = xp.where(is_split, length + total, length).clip(0)
        targets = units * length + bounds[0]
        targets = xp.where(targets >= total, targets - total, targets)
        return weights.find(state, targets, random)

    def _usable(
        self, state: State, reading: Reading, slots: Any, most: Any = None, *, bootstraps: bool
    ) -> Any:
        """Whether each candidate can be drawn, given that the steps around it are stored."""
        xp, plan = self.xp, self.plan
        flags = state["flags"]
        usable = xp.take(flags, slots) < ABSENT if "absent" in state else slots >= 0
        if reading.is_single and not reading.is_sequence:
            return xp.take(flags, slots) < UNKNOWN if bootstraps else usable
        rows, there, last, _ = self.windows(state, reading, slots, most)
        if reading.least_rows > 1:
            usable = usable & (there.sum(1) >= reading.least_rows)
        if reading.stride > 1:
            on_stride = self.handles(state, slots) // plan.n_envs % reading.stride == 0
            usable = usable & (on_stride | self._begins(state, slots))
        if bootstraps:
            sound = xp.take(flags, last) < UNKNOWN
            if reading.nstep is not None and not reading.last_fields >= plan.sources.keys():
                sound = sound & (xp.take(flags, rows) < UNKNOWN)
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
        there = xp.full((len(slots), reading.rows), True, dtype=xp.bool)
        length = xp.full(there.shape, 1, dtype=xp.count)
        own = rows[:, : reading.rows]
        ends = self._ends(state, rows)
        if reading.rows > 1 and not reading.across:
            passed = ends[:, : reading.rows - 1].cumsum(1) == 0
            there = xp.cat([there[:, :1], passed], 1)
        goes = xp.full(there.shape, True, dtype=xp.bool)
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
        xp = self.xp
        there: Any = None  # no windows
        length: Any = None
        rows = last = slots
        if not reading.is_single or reading.is_sequence:
            rows, there, last, length = self.windows(state, reading, slots, most)
            if not reading.is_sequence:
                rows, last, length = rows[:, 0], last[:, 0], length[:, 0]
        whole = (rows, last, length)
        firsts = (rows[:, 0], last[:, 0], length[:, 0]) if reading.first_only else whole
        values = Values(self, state)
        batch: Batch = {}
        for field in fields:
            name, is_first = field.name, field.name in reading.first_only
            starts, ends, steps = firsts if is_first else whole
            upto = ends if name in reading.last_fields else starts
            if name in reading.stacks:
                column = self._stacked(state, values, name, upto, reading)
            elif reading.nstep is not None and name in reading.nstep.rewards:
                column = self._summed(values, field, reading, starts, steps)
            else:
                column = values.at(name, upto)
            batch[name] = column if is_first else self._padded(column, there, reading)
        if reading.nstep is not None and reading.nstep.discount:
            is_first = "discount" in reading.first_only
            _, ends, steps = firsts if is_first else whole
            terminates = (xp.take(state["flags"], ends) & FLAG_TERMINATED) == FLAG_TERMINATED
            column = xp.where(terminates, 0, xp.take(reading.powers, steps))
            column = xp.cast(column, xp.float).reshape(*steps.shape, *reading.nstep.discount_shape)
            batch["discount"] = column if is_first else self._padded(column, there, reading)
        if reading.across:
            batch["is_first"] = self._begins(state, rows)
        elif reading.is_sequence:
            batch["mask"] = there
        return batch

    def _padded(self, column: Any, there: Any, reading: Reading) -> Any:
        """A column of sequences with zeros behind the ends of episodes."""
        if not reading.is_sequence or reading.across or reading.rows == 1:
            return column
        is_there = there.reshape(*there.shape, *[1] * (column.ndim - 2))
        return self.xp.where(is_there, column, self.xp.full((), 0, dtype=column.dtype))

    def _summed(
        self, values: Values, field: DeviceField, reading: Reading, rows: Any, length: Any
    ) -> Any:
        """n-step returns, summed from the first step on."""
        xp, plan = self.xp, self.plan
        first = values.at(field.name, rows)
        total = xp.cast(first, xp.wide)
        steps = length.reshape(*length.shape, *[1] * len(field.shape))
        for k in range(1, reading.most):
            if power := reading.gammas[k]:
                later = values.at(field.name, (rows + k * plan.n_envs) % plan.size)
                total = xp.where(steps > k, total + power * xp.cast(later, xp.wide), total)
        return xp.where(steps > 1, xp.cast(total, field.dtype), first)

    def _stacked(self, state: State, values: Values, name: str, rows: Any, reading: Reading) -> Any:
        """Stacks of the frames of an episode up to given rows, or up to their next values."""
        xp, plan, stack = self.xp, self.plan, reading.stacks[name]
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
        found = values.at(stack.source, _stack(xp, frames[::-1])) if frames else None
        if found is not None and reading.pads_with_zeros:
            is_padding = _stack(xp, missing[::-1])
            is_padding = is_padding.reshape(*is_padding.shape, *[1] * (found.ndim - rows.ndim - 1))
            found = xp.where(is_padding, xp.full((), 0, dtype=found.dtype), found)
        if is_next:
            newest = values.at(name, rows)
            newest = newest.reshape(*rows.shape, 1, *newest.shape[rows.ndim :])
            found = newest if found is None else xp.cat([found, newest], rows.ndim)
        return xp.moveaxis(found, rows.ndim, rows.ndim + stack.axis)

    def stats(self, state: State) -> dict[str, Any]:
        """Counts of a state: see ``DeviceReplay.stats``."""
        xp, plan = self.xp, self.plan
        stored = state["stored"].clip(None, plan.size)
        arrays = {**state, **state["values"]}
        del arrays["values"]
        found = {"size": plan.size, "stored": stored}
        found["nbytes"] = sum(one.nbytes for one in arrays.values())
        is_stored = self._age(state, xp.arange(plan.size)) * plan.n_envs < stored
        is_absent = is_stored & (state["flags"][:-1] >= ABSENT)
        if "absent" in state:
            found["stored"] = stored - is_absent.sum()
        if plan.sources:
            lost = is_stored & (state["flags"][:-1] >= UNKNOWN) & ~is_absent
            found |= {"finals": plan.finals, "lost": lost.sum()}
        return found

    # ------------------------------------------------------------------ handles and priorities

    def handles(self, state: State, slots: Any) -> Any:
        """The numbers of the rows of slots."""
        newest = state["written"] - 1
        return self.xp.wrap(newest - (newest - slots) % self.plan.size, self.period)

    def slots_of(self, state: State, handles: Any) -> Any:
        """The slots of handles, ``size`` for rows that are gone."""
        size = self.plan.size
        age = (state["written"] - 1 - handles) % self.period
        is_there = age < state["stored"].clip(None, size)
        return self.xp.where(is_there, handles % size, size)

    def update(self, state: State, handles: Any, fields: Batch) -> State:
        """Set fields of rows; rows that are gone are skipped, and the last of equal rows counts."""
        xp = self.xp
        for name, value in fields.items():
            self.plan.check_batch(name, value, len(handles))
        slots, places = last_of(xp, self.slots_of(state, handles), self.plan.size)
        values = dict(state["values"])
        for name, new in fields.items():
            field = self.plan.named[name]
            rows = xp.take(new, places).reshape(len(slots), -1)
            values[field.table] = xp.put_columns(values[field.table], slots, field.start, rows)
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
        weighs = is_right & (xp.take(state["flags"], slots) < UNKNOWN)
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


class Values:
    """Fields of rows. A table is read once for all of its fields, as long as this object lives."""

    def __init__(self, rows: Rows, state: State) -> None:
        self.xp, self.plan, self.state = rows.xp, rows.plan, state
        self._rows: dict[Any, Any] = {}

    def at(self, name: str, slots: Any) -> Any:
        """A field of rows, as it was added."""
        field = self.plan.named[name]
        key = field.table, field.name in self.plan.sources, id(slots)
        if key not in self._rows:
            places = self.xp.take(self.state["links"], slots) if key[1] else slots
            # The slots are kept, so that no other ones have their id.
            self._rows[key] = self.xp.take(self.state["values"][field.table], places), slots
        return self.xp.columns(self._rows[key][0], field.start, field.shape)


def _stack(xp: Any, rows: list[Any]) -> Any:
    """Arrays of one shape along a new last axis."""
    return xp.cat([one.reshape(*one.shape, 1) for one in rows], rows[0].ndim)
