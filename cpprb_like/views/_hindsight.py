"""``Hindsight``: hindsight experience replay (HER), as a layer of a view.

Each step is stored once, and goals are relabelled when a batch is drawn. Not here: which rows are
drawn (the samplers), where episodes begin and end (``_rows.episode_index``), which row gives the
new goal (``samplers._starts``), and cpprb's HER, which stores copies (``compat.cpprb._hindsight``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._arguments.narrow_dtypes import kind_of
from cpprb_like._fields import casting
from cpprb_like._fields.field import NEXT, Field
from cpprb_like.schedules import Schedule, check, value_at
from cpprb_like.views._layer import IS_PAD, Fields, Layer, ViewedRows, as_names
from cpprb_like.views._rows import discounted_sums
from cpprb_like.views._sequences import put_rows
from cpprb_like.views._windows import STRATEGIES, Strategy, Windows

__all__ = [
    "Goals",
    "Hindsight",
    "Relabelling",
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

RewardFunc = Callable[[Array, Array, Mapping[str, Array]], ArrayLike]

OWN_NAME = "relabelled"
GOALS = (
    "desired_goal",  # a field of its own
    "obs.desired_goal",  # part of an observation, as GymnasiumRecorder names it
    "obs_desired_goal",  # and as create_env_dict does with dict_names="prefix"
)


class Hindsight(Layer):
    """Hindsight experience replay (HER; Andrychowicz et al., 2017).

    Some of the drawn rows are relabelled: they get a goal that was achieved later in the episode,
    and the reward for that goal. Any sampler and any number of environments work. Episodes end as
    in any buffer: by a field such as ``terminated``, or by ``on_episode_end()``.

    Parameters
    ----------
    reward_func : callable
        ``reward_func(achieved, goal, rows)`` returns the rewards of n steps, shape ``(n,)`` or
        ``(n, 1)``. ``achieved`` are the achieved goals and ``goal`` the relabelled ones, both of
        shape ``(n, *shape)``. ``rows`` maps each field to an array of n rows, which is copied at
        each access. With ``FrameStacks`` it still has single frames. ``compute_reward`` of
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
        The step whose achieved goal becomes the new goal. ``"future"`` draws uniformly from the row
        itself and later steps of its episode, ``"episode"`` from all steps of the episode, and
        ``"random"`` from all steps in the buffer. ``"final"`` is the last step of the episode.
    relabel_ratio : float or schedule
        Probability that a row is relabelled, 0 to 1. The time of a schedule is the number of
        batches drawn so far. 0.8 means four relabelled rows for each original one.
    goal_func : callable, optional
        ``goal_func(values)`` computes n goals from n values of the field ``achieved``, such as
        positions from states. By default the values are the goals.
    terminated_func : callable, optional
        Called like ``reward_func``. Returns n bools for the field ``terminated``: whether the step
        reaches the new goal and terminates the episode. By default the field is unchanged.
    terminated : str
        Field for ``terminated_func``.
    relabelled : bool
        Add the bool column ``relabelled``: whether the row was relabelled.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: the buffer has no such fields. The
        message names the parameter. By ``sample``: a schedule gives a ratio outside 0 to 1, or a
        function gives a wrong shape, a value that the field cannot hold, or a reward that is not
        finite.

    Notes
    -----
    Steps are stored once, with their original goal and reward: relabelling costs no memory, and
    each batch gets other goals. In relabelled rows only the fields named above change.

    With ``NStep`` the rewards of all n steps are computed for the new goal and summed. Where
    ``terminated_func`` says that a step terminates the episode, the n-step return ends there.
    Next values and ``discount`` then come from that step. With ``Sequences`` all rows of a sequence
    share a goal, and ``"future"`` draws it from the first row of the sequence on. With
    ``across_episodes`` each episode of a sequence has its own goal.

    An unfinished episode counts with its steps so far. An episode whose first steps were
    overwritten counts with the remaining steps. If the buffer knows no episode ends, all steps of
    an environment are one episode.

    With ``fields`` only these fields are read, and in relabelled rows the fields that the functions
    read. ``reward_func`` is called if ``fields`` has the reward, ``terminated_func`` if ``fields``
    has a field that it changes. If a function raises, ``out`` may have been written to.

    Cost: the batch, and about 10 ns for each row added since the last batch; the first batch looks
    at all rows. With ``NStep`` the functions get n rows for each relabelled one. If nearly all of
    the m rows of an episode are absent (``add_where``), each new goal looks at about
    ``2 * sqrt(m)`` of them. Memory: 4 bytes a row, and for each episode 32 bytes or a few times
    that. Random numbers come from the buffer's generator.

    Source: Andrychowicz et al. (2017), "Hindsight Experience Replay", sections 3 and 4.5. There k
    new goals are stored for each step, so that a drawn row is relabelled with probability
    ``k / (k + 1)``. With n-step returns: Yang et al. (2021), "Bias-reduced Multi-step Hindsight
    Experience Replay", section 3.

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
        self.goal = as_names(goal)
        self.achieved = achieved
        self.reward = reward
        self.strategy = read_strategy(strategy)
        self.relabel_ratio = relabel_ratio
        self.goal_func = goal_func
        self.terminated_func = terminated_func
        self.terminated = terminated
        self.relabelled = bool(relabelled)

    def open(self, rows: ViewedRows) -> Layer:
        return Goals(self, rows)


class Goals(Layer):
    """The fields of a buffer that a ``Hindsight`` reads and writes."""

    def __init__(self, layer: Hindsight, rows: ViewedRows) -> None:
        fields = {field.name: field for field in rows.schema.declared}
        self.layer = layer
        self.nstep = rows.nstep
        self.most = 1 if rows.nstep is None else rows.nstep.size
        self.names = tuple(fields)
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
        self.changed = [*self.fields, self.reward]
        if self.terminated is not None:
            self.changed.append(self.terminated)
        changed = [field.name for field in self.changed]
        if len(set(changed)) < len(changed) or achieved in changed:
            raise ValueError(
                "goal, achieved, reward, terminated: expected different fields, "
                f"got {[*changed, achieved]}"
            )
        if layer.relabelled and OWN_NAME in fields:
            raise ValueError(f"relabelled: the buffer has a field {OWN_NAME!r}")
        # Other columns of n-step returns, which end where a new goal terminates the episode.
        self.cut: list[str] = []
        self.cuts_discount = self.sums_reward = False
        if rows.nstep is not None and self.terminated is not None:
            self.cuts_discount = rows.nstep.discount
            self.sums_reward = self.most > 1 and self.reward.name in rows.nstep.rewards
            ahead = {*rows.nstep.rewards, *rows.nstep.last_step_fields} - set(changed)
            self.cut = [name for name in self.names if name in ahead and self.most > 1]
            ragged = [name for name in self.cut if fields[name].is_ragged]
            if ragged:
                raise ValueError(
                    f"terminated_func: field {ragged[0]!r} has values of any length, which are "
                    "those of the last step; expected NStep(next=...) without it"
                )
        # Fields that functions have read of relabelled rows. Draws read these fields with the rows,
        # as rows may be overwritten before a function is called.
        self.asked: set[str] = set()

    def reads(self, fields: Fields) -> list[str]:  # noqa: ARG002
        """See ``Layer.reads``: goals are made of what was achieved."""
        return [self.achieved.name]

    def changes(self, fields: Fields) -> list[str]:  # noqa: ARG002
        """See ``Layer.changes``: also n-step returns that end earlier."""
        names = [*self.cut, "discount"] if self.cuts_discount else self.cut
        return [*(field.name for field in self.changed), *names]

    def columns(self, fields: Fields) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
        """See ``Layer.columns``: ``relabelled``, and n-step returns that end earlier."""
        for field in self.changed:
            if fields[field.name] != (field.dtype, field.shape):
                raise ValueError(
                    f"Hindsight: expected {field.name!r} as it is stored, {kind(field)}, and no "
                    f"layer that makes it {fields[field.name]}"
                )
        for name in self.cut:
            if name + IS_PAD in fields:
                raise ValueError(
                    f"terminated_func: it would end n-step returns earlier, and {name + IS_PAD!r} "
                    f"not follow; expected no Offsets of {name!r}"
                )
        names = [*self.cut, "discount"] if self.cuts_discount else self.cut
        found: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {name: fields[name] for name in names}
        if self.layer.relabelled:
            found[OWN_NAME] = np.bool_, ()
        return found

    def fill(self, windows: Windows, wanted: Fields) -> Callable[[], Batch]:
        """See ``Layer.fill``: rows are chosen and read here, functions are called afterwards."""
        ratio = value_at(self.layer.relabel_ratio, windows.draws, "relabel_ratio", 0, 1)
        return Relabelling(self, windows, wanted, ratio).columns


class Relabelling:
    """New goals for rows of one batch: which rows get them, and the columns of the batch."""

    def __init__(self, goals: Goals, windows: Windows, wanted: Fields, ratio: float) -> None:
        self.goals = goals
        self.windows = windows
        self.wanted = wanted
        self.nstep = goals.nstep
        self.is_several = goals.most > 1
        self.fields = [field for field in goals.fields if field.name in wanted]
        self.sets_reward = goals.reward.name in wanted
        self.sets_end = goals.terminated is not None and goals.terminated.name in wanted
        cut = [name for name in goals.cut if name in wanted] if goals.cut else []
        self.asks_ends = self.sets_end or (
            goals.terminated is not None
            and (goals.cuts_discount or cut != [] or (self.sets_reward and goals.sums_reward))
        )
        self.calls_functions = self.sets_reward or self.asks_ends
        given = self._choose(ratio)
        others = windows.others(goals.layer.strategy, given)
        achieved = goals.achieved.name
        if self.fields or self.calls_functions:
            self.reached = windows.take(others, (achieved,))[achieved]
        asked = self._open_windows() if self.is_several else self.slots
        in_batch = frozenset[str]() if self.is_several else windows.stored
        self.rows = RelabelledRows(goals, windows, asked, self.numbers, in_batch)
        early = {achieved, *goals.asked.copy()} - in_batch
        if self.calls_functions and early:
            self.rows.more = windows.take(asked, early)
        # Columns of each row of the windows, for returns that end early.
        self.steps = windows.take_steps(asked, cut) if cut else {}

    def _choose(self, ratio: float) -> Slots:
        """Choose the rows to relabel; returns the slots of those for which goals are drawn."""
        windows = self.windows
        begins, rng = windows.begins, windows.rng
        self.owners: Slots | None = None  # by row: the number of its goal
        if begins is None:
            self.numbers = (rng.random(len(windows.slots)) < ratio).nonzero()[0]
            self.slots = windows.slots.take(self.numbers)
            return self.slots
        firsts = np.flatnonzero(begins)  # rows of one episode in one item share a goal
        is_changed = rng.random(len(firsts)) < ratio
        runs = np.cumsum(begins) - 1
        self.numbers = is_changed[runs].nonzero()[0]
        self.owners = (np.cumsum(is_changed) - 1)[runs[self.numbers]]
        self.slots = windows.slots[self.numbers]
        given: Slots = windows.slots[firsts[is_changed]]
        return given

    def _open_windows(self) -> Slots:
        """Slots of all rows in the n-step windows of the rows to relabel."""
        self.lengths = self.windows.steps[self.numbers]
        self.within = np.arange(self.goals.most) < self.lengths[:, np.newaxis]
        asked: Slots = self.windows.step_rows[self.numbers, : self.goals.most][self.within]
        return asked

    # ------------------------------------------------------------------ when the batch is read

    def columns(self) -> Batch:
        """The columns of the batch with new goals, rewards and ends."""
        values = self.windows.values
        self.batch = {name: values[name] for name in self.wanted if name != OWN_NAME}
        if len(self.numbers) and (self.fields or self.calls_functions):
            self._write()
        if self.goals.layer.relabelled:
            marks = self.batch[OWN_NAME] = np.zeros(len(self.windows), np.bool_)
            marks[self.numbers] = True
        return self.batch

    def _write(self) -> None:
        goals, rows, reached = self.goals, self.rows, self.reached
        layer, goal = goals.layer, goals.fields[0]
        if layer.goal_func is not None:
            reached = column_of("goal_func", layer.goal_func(reached), len(reached), goal)
        new = reached if self.owners is None else reached[self.owners]
        for field in self.fields:
            put_rows(self.batch[field.name], self.numbers, new)
        if not self.calls_functions:
            return
        if self.is_several:
            new = np.repeat(new, self.lengths, axis=0)
        n = len(new)
        achieved = rows.stored(goals.achieved.name)
        if layer.goal_func is not None:
            achieved = column_of("goal_func", layer.goal_func(achieved), n, goal)
        rows.goals = {field.name: new for field in goals.fields}
        rewards = ends = None
        # Copies for the caller's functions, which may write to them.
        if self.sets_reward:
            found = layer.reward_func(achieved.copy(), new.copy(), rows)
            rewards = finite_column("reward_func", found, n, goals.reward)
        if self.asks_ends:
            assert layer.terminated_func is not None
            assert goals.terminated is not None
            found = layer.terminated_func(achieved.copy(), new.copy(), rows)
            ends = finite_column("terminated_func", found, n, goals.terminated)
        lengths: Any = 1
        first: Any = slice(None)  # the only row of each window
        last = first
        if self.is_several:
            lengths, first = self.lengths, np.cumsum(self.lengths) - self.lengths
            if ends is not None:
                lengths = self._cut(ends, first)
            last = first + lengths - 1
        if rewards is not None:
            name = goals.reward.name
            self.batch[name][self.numbers] = self._sum(name, rewards, first, lengths)
        if ends is None:
            return
        nstep = self.nstep
        if self.sets_end and goals.terminated is not None:
            name = goals.terminated.name
            is_last = nstep is not None and name in nstep.last_step_fields
            self.batch[name][self.numbers] = ends[last if is_last else first]
        if nstep is not None and nstep.discount:
            is_over = ends.reshape(n, -1)[last, 0] != 0
            factor = np.where(is_over, 0.0, nstep.gamma**lengths).astype(np.float32)
            self.batch["discount"][self.numbers] = factor.reshape(-1, *nstep.discount_shape)

    def _cut(self, ends: Array, first: Slots) -> Slots:
        """Shorten n-step returns that the new goal terminates; return their numbers of steps.

        ``ends`` has a value for each row of all windows, ``first`` the place of each first row.
        """
        over = np.zeros(self.within.shape, np.bool_)
        over[self.within] = ends.reshape(len(ends), -1)[:, 0] != 0
        lengths = np.where(over.any(axis=1), over.argmax(axis=1) + 1, self.lengths)
        cut = np.flatnonzero(lengths < self.lengths)
        for name, values in self.steps.items() if len(cut) else ():
            if self.nstep and name in self.nstep.last_step_fields:
                found = values[first + lengths - 1]
            else:
                found = self._sum(name, values, first, lengths)
            put_rows(self.batch[name], self.numbers[cut], found[cut])
        return lengths

    def _sum(self, name: str, values: Array, first: Any, lengths: Any) -> Array:
        """n-step returns of a reward field; for another field the values of the first rows."""
        nstep = self.nstep
        if nstep is None or name not in nstep.rewards or not self.is_several:
            alone: Array = values[first]
            return alone
        steps = np.zeros((*self.within.shape, *values.shape[1:]), values.dtype)
        steps[self.within] = values
        return discounted_sums(steps, np.arange(self.goals.most) < lengths[:, None], nstep.gamma)


class RelabelledRows(Mapping[str, Array]):
    """Relabelled rows, for the user's functions.

    A field is copied at each access. It comes from the batch for names of ``in_batch``, else from
    the ring, at the first access if it was not read before.
    """

    def __init__(
        self,
        goals: Goals,
        windows: Windows,
        slots: Slots,
        numbers: Slots,
        in_batch: frozenset[str],
    ) -> None:
        self._names = goals.names
        self._asked = goals.asked
        self._windows = windows
        self._slots = slots
        self._numbers = numbers
        self._in_batch = in_batch
        self.more: Batch = {}  # fields of these rows that are not in the batch
        self.goals: Batch = {}

    def stored(self, name: str) -> Array:
        """Copy of a field's values in these rows; for a goal field, the new values."""
        if name in self.goals:
            return self.goals[name].copy()
        if name in self._in_batch:
            return self._windows.values[name].take(self._numbers, axis=0)
        if name not in self.more:
            self._asked.add(name)
            self.more |= self._windows.take(self._slots, (name,))
        return self.more[name].copy()

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(f"{name!r} is none of the fields {list(self)}")
        return self.stored(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# ---------------------------------------------------------------------- checks


def check_callable(name: str, value: object, *, optional: bool = False) -> None:
    """Raise ``TypeError`` unless the value is a function."""
    if not (callable(value) or (optional and value is None)):
        raise TypeError(f"{name}: expected a function, got {value!r}")


def read_strategy(strategy: object) -> Strategy:
    """A key of ``STRATEGIES``."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise ValueError(f"strategy: expected one of {list(STRATEGIES)}, got {strategy!r}")
    return cast("Strategy", strategy)


def read_field(option: str, name: object, fields: dict[str, Field]) -> Field:
    """The field with the name given as ``option``."""
    if not isinstance(name, str) or name not in fields:
        raise ValueError(f"{option}: expected one of the fields {list(fields)}, got {name!r}")
    if fields[name].is_ragged:
        raise ValueError(
            f"{option}: expected a field of one shape, {name!r} is {kind(fields[name])}"
        )
    return fields[name]


def _read_number_field(option: str, name: object, fields: dict[str, Field]) -> Field:
    field = read_field(option, name, fields)
    if not field.is_single or kind_of(field.dtype) not in "biuf":
        raise ValueError(f"{option}: expected a field of one number, {name!r} is {kind(field)}")
    return field


def _read_goals(goal: object, fields: dict[str, Field]) -> list[Field]:
    """The fields of the goal, next values included."""
    if goal is None:
        goal = next((name for name in GOALS if name in fields), None)
        if goal is None:
            raise ValueError(
                f"goal: expected the name of a field, got None, and none of {list(fields)} is "
                f"called {' or '.join(GOALS)}"
            )
    names: list[Any] = list(goal) if isinstance(goal, tuple) else [goal]
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
    """Raise ``ValueError`` for a field that is a goal by name but would not be relabelled."""
    stale = sorted(set(fields) - set(goals), key=str)
    stale = [name for name in stale if _last_part(name) in {_last_part(goal) for goal in goals}]
    if stale:
        raise ValueError(
            f"goal: {stale} would keep the old goal beside the new one of {list(goals)}; name all "
            "fields of the goal, or give those that are none another name"
        )


def is_goal(name: object) -> bool:
    """Whether a field of this name is a goal, in any part of an observation."""
    return isinstance(name, str) and _last_part(name) in ("goal", "desired_goal")


def _last_part(name: str) -> str:
    """The last part of a nested name, without ``next_``: ``next_obs.a.goal`` -> ``goal``."""
    return name.rpartition(".")[2].removeprefix(NEXT)


def _achieved_beside(goal: str) -> str:
    """Default name of the achieved goal for a field of the desired goal."""
    name = goal.removeprefix(NEXT)
    place = name.removesuffix("desired_goal") if name.endswith("desired_goal") else ""
    return f"{NEXT}{place}achieved_goal"


def alike(field: Field, other: Field) -> bool:
    """Whether two fields have the same dtype and shape."""
    return (field.dtype, field.shape) == (other.dtype, other.shape)


def kind(field: Field) -> str:
    """Dtype and shape of a field, for messages."""
    return f"{field.declared_dtype} of shape {field.declared_shape}"


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
    """``column_of``; raises ``ValueError`` unless every number is finite."""
    array = column_of(source, values, n, field)
    finite = np.isfinite(array)
    if not finite.all():
        wrong = int(np.flatnonzero(~finite.reshape(n, -1).all(axis=1))[0])
        raise ValueError(
            f"{source}: expected finite numbers, got {array[wrong]} for row {wrong} of {n}"
        )
    return array
