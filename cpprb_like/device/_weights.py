"""``Weights``: sums of the weights of rows, for prioritized draws on a device.

A tree of fan-out 64: each node is the sum of 64 children, and up to 4,096 nodes are the top. A sum
is always added up from its children, so errors do not grow. In float32 the probability of a row has
an error of at most about ``2**-18`` of that of its 64 neighbours. Not here: which rows are drawn.

Source of the draws: Schaul et al. (2016), "Prioritized Experience Replay", section 3.3 and
appendix B.2.1.
"""

from __future__ import annotations

from typing import Any

State = dict[str, Any]

FAN = 64
TOP = 4096  # most nodes of the top


class Weights:
    """The arithmetic of a tree over ``size`` rows. Its state are arrays, leaves first."""

    def __init__(self, xp: Any, size: int, dtype: Any) -> None:
        self.xp, self.size, self.dtype = xp, size, dtype
        self.most = (
            float(xp.finfo(dtype).max) / size
        )  # greatest weight of a row: all sums are finite
        # There is at least one more leaf than rows: ``size`` stands for no row, and weighs 0.
        self.widths = [(size // FAN + 1) * FAN]
        while self.widths[-1] > TOP:
            nodes = self.widths[-1] // FAN
            self.widths.append((nodes + FAN - 1) // FAN * FAN)

    def init(self) -> State:
        """The state without weights: levels, leaves first, and the least weight of each block."""
        xp, blocks = self.xp, self.widths[0] // FAN
        levels = [xp.full((width,), 0, dtype=self.dtype) for width in self.widths]
        found = {f"level_{k}": level for k, level in enumerate(levels)}
        return {**found, "least": xp.full((blocks,), float("inf"), dtype=self.dtype)}

    def _levels(self, state: State) -> list[Any]:
        return [state[f"level_{k}"] for k in range(len(self.widths))]

    def put(self, state: State, slots: Any, weights: Any) -> State:
        """Set the weights of slots: the changed part of the state.

        Equal slots have equal weights, and ``size``, which stands for no row, has weight 0.
        """
        xp, levels = self.xp, self._levels(state)
        found = {"level_0": xp.put(levels[0], slots, xp.cast(weights, self.dtype))}
        for k, nodes in enumerate(self.widths):
            slots = slots // FAN
            block = xp.take(found[f"level_{k}"].reshape(nodes // FAN, FAN), slots)
            if k == 0:
                weighs = xp.where(block > 0, block, float("inf"))
                found["least"] = xp.put(state["least"], slots, xp.least(weighs))
            if k + 1 < len(levels):
                found[f"level_{k + 1}"] = xp.put(levels[k + 1], slots, block.sum(1))
        return found

    def put_last(self, state: State, slots: Any, weights: Any) -> State:
        """``put`` for slots that repeat: the last weight of a slot counts."""
        slots, places = last_of(self.xp, slots, self.size)
        weights = self.xp.where(slots < self.size, self.xp.take(weights, places), 0)
        return self.put(state, slots, weights)

    def before(self, state: State, slots: Any) -> Any:
        """The sum of the weights of all rows before each slot, 0 to ``size``."""
        xp, levels = self.xp, self._levels(state)
        found = xp.full(slots.shape, 0, dtype=xp.wide)
        for level in levels[:-1]:
            block = xp.take(level.reshape(-1, FAN), slots // FAN)
            is_before = xp.arange(FAN) < (slots % FAN)[:, None]
            found = found + xp.cast(xp.where(is_before, block, 0).sum(1), xp.wide)
            slots = slots // FAN
        top = xp.cast(levels[-1], xp.wide)
        return found + xp.take(top.cumsum(0) - top, slots)

    def total(self, state: State) -> Any:
        """The sum of all weights."""
        return self.xp.cast(self._levels(state)[-1], self.xp.wide).sum()

    def find(self, state: State, targets: Any, random: Any) -> Any:
        """The row of each target, from 0 to less than the total: the first whose sum exceeds it.

        Where targets are float32, a random number below their precision is added at each level, so
        that all rows of a large tree can be drawn.
        """
        xp, levels = self.xp, self._levels(state)
        top = xp.cast(levels[-1], xp.wide)
        sums = top.cumsum(0)
        last = xp.searchsorted(sums, sums[-1:])  # the last node that weighs more than 0
        nodes = xp.searchsorted(sums, targets, side="right")
        nodes = xp.where(nodes < len(top), nodes, last)
        rest = targets - xp.take(sums - top, nodes)
        for level in levels[-2::-1]:
            block = xp.take(level.reshape(-1, FAN), nodes)
            sums = block.cumsum(1)
            if not xp.is_wide:  # 23 digits are random; what passes the end begins anew
                rest = rest + random.unit(len(rest), xp.wide) * (top.sum() * 2.0**-23)
                rest = xp.where(sums[:, -1] > 0, rest % sums[:, -1], 0)
            child = (sums <= xp.cast(rest, self.dtype)[:, None]).sum(1)
            last = (sums < sums[:, -1:]).sum(1)
            child = xp.where(child < FAN, child, last)
            rest = (rest - xp.cast(xp.along(sums - block, child[:, None], 1)[:, 0], xp.wide)).clip(
                0
            )
            nodes = nodes * FAN + child
        return nodes


def last_of(xp: Any, slots: Any, none: int) -> tuple[Any, Any]:
    """Slots in ascending order and their places; all but the last of equal ones are ``none``."""
    places = xp.argsort(slots)
    slots = xp.take(slots, places)
    is_last = xp.cat([slots[:-1] != slots[1:], xp.full((1,), True, dtype=xp.bool)])
    return xp.where(is_last, slots, none), places
