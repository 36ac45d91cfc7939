"""``Hindsight``: hindsight experience replay (HER), as a layer of a view.

Each step is stored once; goals are relabelled when a batch is drawn. Not here: which rows are drawn
(the samplers), where episodes begin and end (``_store.episode_index``), which row gives the new
goal (``_goals``), and cpprb's HER, which stores copies (``compat.cpprb._hindsight``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Moment, Ring
from cpprb_like._store import casting
from cpprb_like._store.column import Column
from cpprb_like._store.episode_index import EpisodeIndex
from cpprb_like._store.schema import Field, Schema
from cpprb_like.schedules import Schedule, check
from cpprb_like.views._frame_stacks import StackReader
from cpprb_like.views._goals import EPISODE, FINAL, FUTURE, RANDOM, choose_rows
from cpprb_like.views._layer import Layer
from cpprb_like.views._rows import RowReader, read_fields

__all__ = [
    "Goals",
    "Hindsight",
    "Relabelling",
    "Rows",
    "Strategy",
    "alike",
    "check_callable",
    "column_of",
    "finite_column",
    "is_goal",
    "kind",
    "read_field",
    "read_strategy",
]

Array = NDArray[Any]
Slots = NDArray[np.intp]
Batch = dict[str, Array]
Strategy = Literal["future", "final", "episode", "random"]
RewardFunc = Callable[[Array, Array, Mapping[str, Array]], ArrayLike]

STRATEGIES = {"future": FUTURE, "final": FINAL, "episode": EPISODE, "random": RANDOM}
OWN_NAME = "relabelled"
GOALS = (
    "desired_goal",  # a field of its own
    "obs.desired_goal",  # part of an observation, as GymnasiumRecorder names it
    "obs_desired_goal",  # and as create_env_dict does with dict_names="prefix"
)
NEXT = "next_"


class Hindsight(Layer):
    """Hindsight experience replay (HER; Andrychowicz et al., 2017).

    Some of the drawn rows are relabelled: they get a goal that was achieved later in the episode,
    and the reward for that goal. It works with any sampler and any number of environments. Episodes
    end as in any buffer: by a field such as ``terminated``, or by ``on_episode_end()``.

    Parameters
    ----------
    reward_func : callable
        ``reward_func(achieved, goal, rows)`` returns the rewards of n steps, shape ``(n,)`` or
        ``(n, 1)``. ``achieved`` are the achieved goals and ``goal`` the relabelled ones, both of
        shape ``(n, *shape)``; ``rows`` maps all fields to arrays of n rows, which are copied when
        they are asked for: single frames, also beside ``FrameStacks``. ``compute_reward`` of
        Gymnasium-Robotics can be passed as it is.
    goal : str or iterable of str, optional
        Fields of the desired goal, all of the same dtype and shape. By default ``desired_goal``, or
        ``obs.desired_goal`` as ``GymnasiumRecorder`` names it. The goal in the next observation is
        relabelled as well: with ``x`` also ``next_x``, if there is such a field, and with
        ``next_x`` also ``x``.
    achieved : str, optional
        Field of the achieved goal after the step. By default ``next_achieved_goal``, or
        ``next_obs.achieved_goal`` beside ``obs.desired_goal``.
    reward : str
        Reward field.
    strategy : {"future", "final", "episode", "random"}
        The step whose achieved goal becomes the new goal, drawn uniformly: ``"future"``, of the
        steps of the episode from the row itself on; ``"final"``, its last step; ``"episode"``, of
        all its steps; ``"random"``, of all steps in the buffer.
    relabel_ratio : float or schedule
        Probability that a row is relabelled, 0 to 1. The time of a schedule is the number of
        batches drawn so far. 0.8 is four relabelled rows for each original one.
    goal_func : callable, optional
        ``goal_func(values)`` computes n goals from n values of the field ``achieved``, such as
        positions from states. By default the values are the goals.
    terminated_func : callable, optional
        Called like ``reward_func``; returns n bools: whether the step reaches the new goal and
        terminates the episode. They go into the field ``terminated``, which is otherwise unchanged.
    terminated : str
        Field for ``terminated_func``.
    relabelled : bool
        Add the column ``relabelled``, bool: which rows were relabelled.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; or, by ``view``, the buffer has no such fields. The
        message names it. By ``sample``: a schedule gives a ratio that is not in 0 to 1, or a
        function gives another shape, a value that the field cannot hold, or a reward that is not
        finite.

    Notes
    -----
    Steps are stored once, with their original goal and reward: relabelling costs no memory, and
    each batch is relabelled anew. Of relabelled rows only the fields named above change.

    With ``NStep`` the rewards of all n steps are computed for the new goal and summed. Where
    ``terminated_func`` says that a step terminates the episode, the n-step return ends there, and
    next values and ``discount`` are those of that step. With ``Sequences`` all rows of a sequence
    get the same goal, which ``"future"`` takes from the first row of the sequence on; with
    ``across_episodes`` each episode in it has its own.

    Of an unfinished episode the steps so far count; of one whose first steps were overwritten, the
    remaining ones. If nothing tells the buffer where episodes end, all steps of an environment are
    one episode.

    With ``fields`` only these fields are read, and of relabelled rows what the functions ask for:
    ``reward_func`` is called if the reward is among them, ``terminated_func`` if a field that it
    changes is. If a function raises, ``out`` may have been written to.

    Cost: that of the batch, and about 10 ns for each row added since the last batch; the first
    batch looks at all rows. With ``NStep`` the functions get n rows for each relabelled one. Where
    nearly all rows of an episode are absent (``add_where``), about ``2 * sqrt(m)`` of its m rows
    are looked at for each new goal. Memory: 4 bytes a row, and 32 bytes or a few times that for
    each episode. Random numbers come from the buffer's generator.

    Source: Andrychowicz, Wolski, Ray, Schneider, Fong, Welinder, McGrew, Tobin, Abbeel and Zaremba
    (2017), "Hindsight Experience Replay", sections 3 and 4.5. There k new goals are stored for each
    step, so that a drawn row is relabelled with probability ``k / (k + 1)``. With n-step returns:
    Yang, Lyu, Yang, Ya, Luo, Luo, Li and Li (2021), "Bias-reduced Multi-step Hindsight Experience
    Replay", section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Hindsight
    >>> fields = {name: {"shape": 2} for name in ("obs", "achieved_goal", "desired_goal")}
    >>> fields |= {"act": {"shape": ()}, "rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(1000, fields, next_of=("obs", "achieved_goal"), seed=0)
    >>> def reward(achieved, goal, rows):
    ...     return np.where(np.linalg.norm(achieved - goal, axis=-1) < 0.5, 0.0, -1.0)
    >>> her = rb.view(Hindsight(reward, relabel_ratio=1.0))
    >>> for i in range(3):
    ...     at, to = [i, 0.0], [i + 1, 0.0]
    ...     _ = rb.add(obs=at, next_obs=to, achieved_goal=at, next_achieved_goal=to,
    ...                desired_goal=[9, 9], act=0.0, rew=-1.0, done=i == 2)
    >>> batch = her.sample(64)
    >>> np.unique(batch["desired_goal"], axis=0).tolist()
    [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    >>> reached = (batch["next_achieved_goal"] == batch["desired_goal"]).all(axis=1)
    >>> bool((batch["rew"] == np.where(reached, 0.0, -1.0)).all())
    True
    """

    def __init__(
        self,
        reward_func: RewardFunc,
        *,
        goal: str | Iterable[str] | None = None,
        achieved: str | None = None,
        reward: str = "rew",
        strategy: Strategy = "future",
        relabel_ratio: float | Schedule = 0.8,
        goal_func: Callable[[Array], ArrayLike] | None = None,
        terminated_func: RewardFunc | None = None,
        terminated: str = "terminated",
        relabelled: bool = False,
    ) -> None:
        check_callable("reward_func", reward_func)
        check_callable("goal_func", goal_func, optional=True)
        check_callable("terminated_func", terminated_func, optional=True)
        check("relabel_ratio", relabel_ratio, 0, 1)
        self.reward_func = reward_func
        self.goal = goal if isinstance(goal, str) or not isinstance(goal, Iterable) else tuple(goal)
        self.achieved = achieved
        self.reward = reward
        self.strategy = read_strategy(strategy)
        self.relabel_ratio = relabel_ratio
        self.goal_func = goal_func
        self.terminated_func = terminated_func
        self.terminated = terminated
        self.relabelled = bool(relabelled)


class Goals:
    """The fields of a buffer that a ``Hindsight`` reads and writes.

    Parameters
    ----------
    layer : Hindsight
        The options.
    schema : Schema
        The fields of the buffer.
    """

    def __init__(self, layer: Hindsight, schema: Schema) -> None:
        fields = {field.name: field for field in schema.fields}
        self.layer = layer
        self.fields = _read_goals(layer.goal, fields)
        achieved = layer.achieved
        if achieved is None:
            achieved = _achieved_beside(self.fields[0].name)
        self.achieved = read_field("achieved", achieved, fields)
        if layer.goal_func is None and not alike(self.achieved, self.fields[0]):
            raise ValueError(
                f"achieved: expected a field like {self.fields[0].name!r}, "
                f"{kind(self.fields[0])}, or goal_func; {achieved!r} is {kind(self.achieved)}"
            )
        self.reward = _read_number_field("reward", layer.reward, fields)
        self.terminated: Field | None = None
        if layer.terminated_func is not None:
            self.terminated = _read_number_field("terminated", layer.terminated, fields)
        changed = [field.name for field in (*self.fields, self.reward, self.terminated) if field]
        if len(set(changed)) < len(changed) or achieved in changed:
            raise ValueError(
                "goal, achieved, reward, terminated: expected different fields, "
                f"got {[*changed, achieved]}"
            )
        self.changed = frozenset(changed)
        if layer.relabelled and OWN_NAME in fields:
            raise ValueError(f"relabelled: the buffer has a field {OWN_NAME!r}")
        self.asked: set[str] = set()  # fields that the functions asked for in earlier batches


@dataclass
class Rows:
    """The rows of a batch of single rows or of sequences, without padding.

    ``places`` are their places in the batch flattened to one axis of rows; ``slots`` their slots.
    ``runs`` numbers, from 0 on, the runs of rows that share a goal: those of one episode in a
    sequence.
    """

    places: Slots
    slots: Slots
    runs: Slots
    per_item: int  # rows of an item of the batch

    @staticmethod
    def alone(slots: Slots) -> Rows:
        """One row in each item."""
        every = np.arange(len(slots), dtype=np.intp)
        return Rows(every, slots, every, 1)

    @staticmethod
    def of_sequences(slots: Slots, there: NDArray[np.bool_], begins: NDArray[np.bool_]) -> Rows:
        """The rows of sequences; ``begins`` is true where an episode begins."""
        per_item = there.shape[1]
        begins = begins.copy()
        begins[:, :1] = True
        places = np.flatnonzero(there)
        runs = (np.cumsum(begins.ravel()) - 1)[places].astype(np.intp)
        return Rows(places, np.ascontiguousarray(slots.ravel()[places]), runs, per_item)


class Relabelling:
    """Relabelling of one batch: goals are chosen while it is read, and written into it afterwards.

    Parameters
    ----------
    goals : Goals
        What is changed.
    ratio : float
        Probability that a row is relabelled.
    columns : tuple of Column, optional
        The columns of the batch; all.
    single : frozenset of str
        The columns that hold the first row of each sequence only.
    reader : RowReader or StackReader
        Reads transitions of one step, or n-step.
    """

    def __init__(
        self,
        goals: Goals,
        ratio: float,
        columns: tuple[Column, ...] | None,
        single: frozenset[str],
        reader: RowReader | StackReader,
    ) -> None:
        self.goals = goals
        self.ratio = ratio
        self.single = single
        self.reader = reader
        self.nstep = reader.nstep
        names = {column.name for column in columns or reader.ring.columns}
        layer, nstep = goals.layer, reader.nstep
        self.fields = [field for field in goals.fields if field.name in names]
        self.sets_reward = goals.reward.name in names
        self.sets_end = goals.terminated is not None and goals.terminated.name in names
        # The step that terminates the episode cuts the n-step return.
        cut = nstep is not None and (
            nstep.discount or names & {*nstep.rewards, *nstep.last_step_fields}
        )
        self.asks_ends = layer.terminated_func is not None and (self.sets_end or bool(cut))
        self.calls_functions = self.sets_reward or self.asks_ends
        self.names = names

    # ------------------------------------------------------------------ while rows are read

    def choose(
        self,
        index: EpisodeIndex,
        rng: np.random.Generator,
        rows: Rows,
        steps: Slots | None,
        batch: Batch,
        still: Callable[[], bool],
    ) -> bool:
        """Choose the rows to relabel and read their new goals; false if rows were overwritten.

        ``steps`` is the number n of steps by row, if it varies. ``still()`` is whether the drawn
        rows can still be drawn.
        """
        ring, goals = self.reader.ring, self.goals
        moment = ring.now()
        firsts = np.flatnonzero(np.diff(rows.runs, prepend=-1))
        changed_runs = np.flatnonzero(rng.random(len(firsts)) < self.ratio)
        number = np.full(len(firsts), -1, np.intp)  # of a run: that of its goal
        number[changed_runs] = np.arange(len(changed_runs))
        at = np.cumsum(np.diff(rows.runs, prepend=-1) != 0) - 1 if len(firsts) else rows.runs
        chosen = np.flatnonzero(number[at] >= 0)
        self.places = rows.places[chosen]
        self.per_item = rows.per_item
        self.owners = number[at[chosen]]
        slots = np.ascontiguousarray(rows.slots[chosen])
        given = np.ascontiguousarray(rows.slots[firsts[changed_runs]])
        strategy = STRATEGIES[goals.layer.strategy]
        others = choose_rows(index, given, rng, strategy)
        if self.fields or self.calls_functions:
            name = goals.achieved.name
            self.reached = read_fields(ring, others, {name})[name]
        self._open_windows(slots, None if steps is None else steps[chosen])
        self._read_more(moment, batch, still)
        return ring.holds(moment, others)

    def _open_windows(self, slots: Slots, steps: Slots | None) -> None:
        """Find the n-step windows of the relabelled rows."""
        self.slots, n = slots, len(slots)
        most = 1 if self.nstep is None else self.nstep.size
        self.window, self.lengths = slots.reshape(n, 1), np.ones(n, np.intp)
        if most > 1:
            self.window, counts, _ = self.reader.ring.windows(slots, 0, most - 1)
            self.lengths = (
                1 + counts[:, 1] if steps is None else np.minimum(1 + counts[:, 1], steps)
            )
        self.within = np.arange(most) < self.lengths[:, np.newaxis]

    def _read_more(self, moment: Moment, batch: Batch, still: Callable[[], bool]) -> None:
        """Read fields outside of the batch that the functions asked for in earlier batches."""
        slots = np.ascontiguousarray(self.window[self.within])
        in_batch: Batch = {}
        if self.window.shape[1] == 1:  # the rows of the batch are those of the functions
            in_batch = {
                name: values
                for name, values in batch.items()
                if name in self.names and name not in self.single | self.reader.stacked
            }
        wanted: set[str] = set()
        if self.calls_functions:
            wanted = {self.goals.achieved.name, *self.goals.asked.copy()} - in_batch.keys()
            wanted -= {field.name for field in self.goals.fields}
        more = read_fields(self.reader.ring, slots, wanted)
        self.rows = RelabelledRows(
            self.reader.ring, moment, slots, self.places, in_batch, more, self.goals.asked, still
        )

    # ------------------------------------------------------------------ when all is read

    def write(self, batch: Batch) -> bool:
        """Write new goals, rewards and end flags into the batch.

        False if a function asked for a field that had not been read, of rows overwritten since.
        """
        if len(self.places) == 0 or not (self.fields or self.calls_functions):
            return True
        self.rows.batch = {name: self._rows_of(batch[name]) for name in self.rows.batch}
        try:
            self._write(batch)
        except Exception:
            if self.rows.are_gone:
                return False
            raise
        return not self.rows.are_gone

    def marks(self, n: int) -> NDArray[np.bool_]:
        """Which rows of a batch of n items were relabelled."""
        marks = np.zeros(n * self.per_item, np.bool_)
        marks[self.places] = True
        return marks if self.per_item == 1 else marks.reshape(n, self.per_item)

    def _rows_of(self, column: Array) -> Array:
        """A column of the batch by row; it shares its memory."""
        return column if self.per_item == 1 else column.reshape(-1, *column.shape[2:])

    def _put(self, batch: Batch, name: str, values: Array, at: Slots | None = None) -> None:
        """Write values of the relabelled rows, or of those ``at`` among them, into the batch."""
        places = self.places if at is None else self.places[at]
        if name in self.single:
            first = np.flatnonzero(places % self.per_item == 0)
            batch[name][places[first] // self.per_item] = values[first]
        else:
            self._rows_of(batch[name])[places] = values

    def _write(self, batch: Batch) -> None:
        goals, rows, reached = self.goals, self.rows, self.reached
        layer, goal = goals.layer, goals.fields[0]
        if layer.goal_func is not None:
            reached = column_of("goal_func", layer.goal_func(reached), len(reached), goal)
        for field in self.fields:
            self._put(batch, field.name, reached[self.owners])
        if not self.calls_functions:
            return
        new = np.repeat(reached[self.owners], self.lengths, axis=0)
        n = len(new)
        achieved = rows.stored(goals.achieved.name)
        if layer.goal_func is not None:
            achieved = column_of("goal_func", layer.goal_func(achieved), n, goal)
        rows.goals = {field.name: new for field in goals.fields}
        rewards = ends = None
        # Copies for the caller's functions, so that they can do with them what they like.
        if self.sets_reward:
            found = layer.reward_func(achieved.copy(), new.copy(), rows)
            rewards = finite_column("reward_func", found, n, goals.reward)
        if self.asks_ends and layer.terminated_func is not None and goals.terminated is not None:
            found = layer.terminated_func(achieved.copy(), new.copy(), rows)
            ends = finite_column("terminated_func", found, n, goals.terminated)
        self._write_steps(batch, rewards, ends)

    def _write_steps(self, batch: Batch, rewards: Array | None, ends: Array | None) -> None:
        """Write rewards, end flags and discounts, as n-step returns where such are read."""
        goals, lengths = self.goals, self.lengths
        over = None
        if ends is not None:
            over = np.zeros(self.within.shape, np.bool_)
            over[self.within] = ends.reshape(len(ends), -1)[:, 0] != 0
            lengths = np.where(over.any(axis=1), over.argmax(axis=1) + 1, lengths)
            self._write_cut(batch, lengths)
        every = np.arange(len(lengths))
        first = np.cumsum(self.lengths) - self.lengths  # of the rows of each window
        last = first + lengths - 1
        if rewards is not None:
            self._put(batch, goals.reward.name, self._sum(rewards, lengths))
        if ends is not None and self.sets_end and goals.terminated is not None:
            name = goals.terminated.name
            is_last = self.nstep is not None and name in self.nstep.last_step_fields
            self._put(batch, name, ends[last if is_last else first])
        if over is not None and self.nstep is not None and self.nstep.discount:
            factor = np.where(over[every, lengths - 1], 0.0, self.nstep.gamma**lengths)
            shape = (-1, *self.nstep.discount_shape)
            self._put(batch, "discount", factor.astype(np.float32).reshape(shape))

    def _write_cut(self, batch: Batch, lengths: Slots) -> None:
        """Read the rows again whose n-step window ends earlier for the new goal."""
        cut = np.flatnonzero(lengths < self.lengths)
        if self.nstep is None or len(cut) == 0:
            return
        several = {*self.nstep.rewards, *self.nstep.last_step_fields} & self.names
        columns = tuple(
            column
            for column in self.reader.ring.columns
            if column.name in several - self.goals.changed
        )
        steps = lengths.astype(np.intp)[cut]
        found = self.reader.take(np.ascontiguousarray(self.slots[cut]), None, steps, columns)
        self.rows.check()
        for column in columns:
            self._put(batch, column.name, found[column.name], cut)

    def _sum(self, rewards: Array, lengths: Slots) -> Array:
        """The n-step returns of the rewards; or the rewards, where single steps are read."""
        nstep = self.nstep
        if (
            self.within.shape[1] == 1
            or nstep is None
            or self.goals.reward.name not in nstep.rewards
        ):
            alone: Array = rewards[np.cumsum(self.lengths) - self.lengths]
            return alone
        field = self.goals.reward
        precision = np.result_type(field.dtype, np.float64)
        steps = np.zeros((*self.within.shape, *field.shape), precision)
        steps[self.within] = rewards
        powers = nstep.gamma ** np.arange(steps.shape[1], dtype=precision)
        counted = np.arange(steps.shape[1]) < lengths[:, np.newaxis]
        shape = (*counted.shape, *(1,) * len(field.shape))
        total = np.where(counted.reshape(shape), steps * powers.reshape(-1, *shape[2:]), 0.0)
        return casting.cast(total.sum(axis=1), field.dtype)


class RelabelledRows(Mapping[str, Array]):
    """Relabelled rows, for the user's functions.

    A field is copied when it is asked for, and read first if that was not done.
    """

    def __init__(
        self,
        ring: Ring,
        moment: Moment,
        slots: Slots,
        places: Slots,
        batch: Batch,
        more: Batch,
        asked: set[str],
        still: Callable[[], bool],
    ) -> None:
        self.ring = ring
        self.moment = moment
        self.slots = slots
        self.places = places
        self.batch = batch
        self.more = more  # of these rows, fields that are not in the batch
        self.goals: Batch = {}
        self.asked = asked
        self.still = still
        self.are_gone = False

    def check(self) -> None:
        """Note whether the rows were overwritten since they were chosen."""
        self.are_gone |= not (self.ring.holds(self.moment, self.slots) and self.still())

    def stored(self, name: str) -> Array:
        """A copy of a field."""
        if name in self.goals:
            return self.goals[name].copy()
        if name in self.batch:
            return self.batch[name][self.places]
        if name not in self.more:
            were_gone, self.are_gone = self.are_gone, True
            self.more |= read_fields(self.ring, self.slots, {name})
            self.are_gone = were_gone
            self.check()
        return self.more[name].copy()

    def __getitem__(self, name: str) -> Array:
        if name not in self:
            raise KeyError(f"{name!r} is none of the fields {list(self)}")
        self.asked.add(name)
        return self.stored(name)

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in self.ring.columns)

    def __iter__(self) -> Iterator[str]:
        return (column.name for column in self.ring.columns)

    def __len__(self) -> int:
        return len(self.ring.columns)


# ---------------------------------------------------------------------- checks


def check_callable(name: str, value: object, *, optional: bool = False) -> None:
    """Raise ``TypeError`` unless the value is a function."""
    if not (callable(value) or (optional and value is None)):
        raise TypeError(f"{name}: expected a function, got {value!r}")


def read_strategy(strategy: object) -> str:
    """A key of ``STRATEGIES``."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise ValueError(f"strategy: expected one of {list(STRATEGIES)}, got {strategy!r}")
    return strategy


def read_field(option: str, name: object, fields: dict[str, Field]) -> Field:
    """The field of a name that was given as ``option``."""
    if not isinstance(name, str) or name not in fields:
        raise ValueError(f"{option}: expected one of the fields {list(fields)}, got {name!r}")
    return fields[name]


def _read_number_field(option: str, name: object, fields: dict[str, Field]) -> Field:
    field = read_field(option, name, fields)
    if not field.is_single or field.dtype.kind not in "biuf":
        raise ValueError(f"{option}: expected a field of one number, {name!r} is {kind(field)}")
    return field


def _read_goals(goal: object, fields: dict[str, Field]) -> list[Field]:
    """The fields of the goal, with those in next observations."""
    if goal is None:
        goal = next((name for name in GOALS if name in fields), None)
        if goal is None:
            raise ValueError(
                f"goal: expected the name of a field, got None, and none of {list(fields)} is "
                f"called {' or '.join(GOALS)}"
            )
    names: list[Any] = (
        [goal] if isinstance(goal, str) or not isinstance(goal, Iterable) else list(goal)
    )
    if not names:
        raise ValueError("goal: expected at least one field, got none")
    found = [read_field("goal", name, fields) for name in names]
    if len(set(names)) < len(names):
        raise ValueError(f"goal: expected different fields, got {names}")
    for name in names:
        partner = name.removeprefix(NEXT) if name.startswith(NEXT) else NEXT + name
        if partner in fields and partner not in names:
            found.append(fields[partner])
            names.append(partner)
    for field in found[1:]:
        if not alike(field, found[0]):
            raise ValueError(
                f"goal: expected fields alike, {found[0].name!r} is {kind(found[0])} and "
                f"{field.name!r} {kind(field)}"
            )
    _refuse_stale_goals(names, fields)
    return found


def _refuse_stale_goals(goals: Iterable[str], fields: Iterable[str]) -> None:
    """Raise ``ValueError`` if a field has a goal's name elsewhere, but would not be relabelled."""
    stale = sorted(set(fields) - set(goals), key=str)
    stale = [name for name in stale if _last_part(name) in {_last_part(goal) for goal in goals}]
    if stale:
        raise ValueError(
            f"goal: {stale} would keep the old goal beside the new one of {list(goals)}; name all "
            "fields of the goal, or give those that are none another name"
        )


def is_goal(name: object) -> bool:
    """Whether a field of this name is a goal, whatever its place in an observation."""
    return isinstance(name, str) and _last_part(name) in ("goal", "desired_goal")


def _last_part(name: str) -> str:
    """The last part of a nested name, without ``next_``: ``next_obs.a.goal`` -> ``goal``."""
    return name.rpartition(".")[2].removeprefix(NEXT)


def _achieved_beside(goal: str) -> str:
    """The default field of the achieved goal beside a field of the desired goal."""
    name = goal.removeprefix(NEXT)
    place = name.removesuffix("desired_goal") if name.endswith("desired_goal") else ""
    return f"{NEXT}{place}achieved_goal"


def alike(field: Field, other: Field) -> bool:
    """Whether values of one field are values of the other."""
    return (field.dtype, field.shape) == (other.dtype, other.shape)


def kind(field: Field) -> str:
    """Dtype and shape, for messages."""
    return f"{field.dtype} of shape {field.shape}"


def column_of(source: str, values: object, n: int, field: Field) -> Array:
    """The result of a user's function for n rows, as values of a field."""
    shape = (n, *field.shape)
    try:
        array = casting.as_array(values, field.dtype, one_item=field.is_single)
        if array.shape == shape or (field.is_single and array.shape in ((n,), (n, 1))):
            return casting.cast(array.reshape(shape), field.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{source}: expected {field.dtype} for field {field.name!r}: {error}"
        ) from error
    raise ValueError(
        f"{source}: expected shape {(n,) if field.is_single else shape}, one value for each of "
        f"{n} rows, got {array.shape}"
    )


def finite_column(source: str, values: object, n: int, field: Field) -> Array:
    """As ``column_of``, and every number is finite."""
    array = column_of(source, values, n, field)
    finite = np.isfinite(array).reshape(n, -1).all(axis=1)
    if not finite.all():
        wrong = int(np.flatnonzero(~finite)[0])
        raise ValueError(
            f"{source}: expected finite numbers, got {array[wrong]} for row {wrong} of {n}"
        )
    return array
