"""The slow, obvious twin of a learner: rows of shards in lists, one weight each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class ShardRow:
    """A row that an actor added."""

    number: int  # its id
    ends: bool  # its episode ends with it
    hidden: bool = False
    weight: float = -1.0  # below 0: the learner has not seen it


@dataclass
class ReferenceShards:
    """Shards that keep their newest ``capacity`` complete rows, and one learner's priorities."""

    n_shards: int
    capacity: int
    alpha: float
    eps: float
    nstep: int = 1
    n_envs: int = 1  # rows of environments alternate
    shards: list[list[ShardRow]] = field(default_factory=list)
    greatest: float = 1.0
    cleared: set[int] = field(default_factory=set)  # shards, since the learner looked
    given: int = 0  # priorities ...
    late: int = 0  # ... of rows that were gone

    def __post_init__(self) -> None:
        self.shards = [[] for _ in range(self.n_shards)]

    # ---- actors --------------------------------------------------------------------------

    def add(self, shard: int, row: ShardRow) -> None:
        self.shards[shard].append(row)

    def end_episode(self, shard: int) -> None:
        for row in self.shards[shard][-self.n_envs :]:
            row.ends = True

    def clear(self, shard: int) -> None:
        self.shards[shard] = []
        self.cleared.add(shard)

    # ---- the learner ---------------------------------------------------------------------

    def weigh(self, priority: float) -> float:
        return float((priority + self.eps) ** self.alpha)

    def follow(self) -> None:
        """See the rows that have come: they get the greatest weight."""
        if len(self.cleared) == self.n_shards:
            self.greatest = 1.0
        self.cleared = set()
        weight = self.weigh(self.greatest)
        for rows in self.shards:
            for row in rows:
                if row.weight < 0:
                    row.weight = weight

    def update(self, row: ShardRow, priority: float) -> None:
        """Set the priority of a row that was drawn, if it is there."""
        self.given += 1
        if any(row is other for rows in self.shards for other in self.living(rows)):
            row.weight = self.weigh(priority)
            self.greatest = max(self.greatest, priority)
        else:
            self.late += 1

    def living(self, rows: list[ShardRow]) -> list[ShardRow]:
        """The rows of a shard that can be drawn."""
        complete = [row for place, row in enumerate(rows) if self._is_complete(rows, place)]
        if self.nstep == 1:
            complete = rows[-self.capacity :]
        return [row for row in complete[-self.capacity :] if not row.hidden]

    def _is_complete(self, rows: list[ShardRow], place: int) -> bool:
        window = rows[place :: self.n_envs][: self.nstep]
        return len(window) == self.nstep or any(row.ends for row in window)

    def rows(self) -> dict[int, ShardRow]:
        """All rows that can be drawn, by id."""
        return {row.number: row for rows in self.shards for row in self.living(rows)}
