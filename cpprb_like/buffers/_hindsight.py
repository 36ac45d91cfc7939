"""Hindsight experience replay: what was reached later in an episode becomes the goal of a step.

Every step is stored once; other goals are put into a batch when it is drawn. Not here: which rows
are drawn (``samplers._base``, ``samplers._prioritized``), where episodes begin and end
(``_store.episode_index``), and cpprb's way, which stores copies (``compat.cpprb._hindsight``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Moment, Ring
from cpprb_like._store import casting
from cpprb_like._store.column import Column
from cpprb_like._store.gather import new_array, take
from cpprb_like._store.schema import Field
from cpprb_like.buffers._prioritized import PrioritizedReplayBuffer
from cpprb_like.buffers._replay import Batch, ReplayBuffer
from cpprb_like.samplers._base import Extra, Slots
from cpprb_like.schedules import Schedule, check, value_at
from cpprb_like.views._goals import EPISODE, FINAL, FUTURE, RANDOM, choose_rows
from cpprb_like.views._view import read_rows

__all__ = [
    "Hindsight",
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


class Hindsight:
    """Batches of a buffer, a share of whose rows get another goal and the reward for that.

    Parameters
    ----------
    buffer : ReplayBuffer
        Where steps are added, each with the goal that the agent had. Any sampler, one environment
        or many; without ``Nstep``. Its episodes end as those of any buffer: by a field such as
        ``done``, or by ``on_episode_end()``.
    reward_func : callable
        ``reward_func(achieved, goal, rows)`` gives the rewards of n steps, shape ``(n,)`` or
        ``(n, 1)``: ``achieved`` is what each step achieved, ``goal`` its new goal, both of shape
        ``(n, *shape)``, and ``rows`` a mapping of all fields to arrays of n rows, copied when they
        are asked for. So ``compute_reward`` of Gymnasium-Robotics will do as it is.
    goal : str or iterable of str, optional
        Fields that get the new goal: one, or several of the same dtype and shape. By default
        ``desired_goal``, or ``obs.desired_goal`` as ``GymnasiumRecorder`` names it. The goal in the
        next observation belongs to it and gets the new one as well: of each name ``x`` also
        ``next_x``, if there is such a field, and of ``next_x`` also ``x``.
    achieved : str, optional
        Field of what each step achieved, that is, after the step. By default
        ``next_achieved_goal``, or ``next_obs.achieved_goal`` beside ``obs.desired_goal``.
    reward : str
        Field that gets the new reward.
    strategy : {"future", "final", "episode", "random"}
        Which step gives the new goal: of the episode of the row, one from the row itself on, the
        last one, or any; or any step of the buffer, of whatever episode.
    share : float or schedule
        Which part of the rows gets another goal, 0 to 1: each row with this probability. The time
        of a schedule is the number of batches drawn so far. 0.8 is four new goals for one old.
    goal_func : callable, optional
        ``goal_func(values)`` makes n goals of n values of the field ``achieved``, such as positions
        of states. By default the values are goals.
    terminated_func : callable, optional
        Called as ``reward_func``; gives which of the steps reach their new goal and end there, n
        bools, for the field ``terminated``. By default that stays as it is.
    terminated : str
        See ``terminated_func``.

    Attributes
    ----------
    buffer, strategy, share
        As given.
    draws : int
        Batches drawn so far.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; the message names it.

    Notes
    -----
    All steps are stored once, with the goal and the reward that they had: other goals cost no
    memory, and each batch gets new ones. Rows that keep their goal keep all their values. Of those
    that get another, only the fields named above change.

    An episode that has not ended is what there is of it so far, and of one whose first steps were
    overwritten the rest counts. If nothing tells the buffer that an episode ends, then all steps of
    an environment are one.

    Cost: that of the batch, and in proportion to the rows added since the last batch, about 10 ns
    for each; the first batch looks at all rows. Where nearly all rows of an episode are absent
    (``add_where``), about ``2 * sqrt(m)`` of its m rows are looked at for each new goal. Memory: 4
    bytes a row, and in proportion to the episodes in the buffer, 32 bytes or a few times that for
    each. What draws at random is the buffer's generator.

    Any number of threads may add to the buffer and draw; of draws at the same time two may count as
    one. It is pickled and copied with its buffer, which takes functions that can be pickled.

    Source: Andrychowicz, Wolski, Ray, Schneider, Fong, Welinder, McGrew, Tobin, Abbeel and Zaremba
    (2017), "Hindsight Experience Replay", sections 3 and 4.5. There k new goals are stored for each
    step; drawn from such a buffer, a row has a new goal with probability ``k / (k + 1)``.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.buffers import Hindsight
    >>> fields = {name: {"shape": 2} for name in ("obs", "achieved_goal", "desired_goal")}
    >>> fields |= {"act": {"shape": ()}, "rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(1000, fields, next_of=("obs", "achieved_goal"), seed=0)
    >>> def reward(achieved, goal, rows):
    ...     return np.where(np.linalg.norm(achieved - goal, axis=-1) < 0.5, 0.0, -1.0)
    >>> her = Hindsight(rb, reward, share=1.0)
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
        buffer: ReplayBuffer,
        reward_func: RewardFunc,
        *,
        goal: str | Iterable[str] | None = None,
        achieved: str | None = None,
        reward: str = "rew",
        strategy: Strategy = "future",
        share: float | Schedule = 0.8,
        goal_func: Callable[[Array], ArrayLike] | None = None,
        terminated_func: RewardFunc | None = None,
        terminated: str = "terminated",
    ) -> None:
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"buffer: expected a ReplayBuffer, got {type(buffer).__name__}")
        if buffer.is_Nstep():
            raise ValueError(
                "buffer: expected one without Nstep; rewards are computed anew for single steps"
            )
        check_callable("reward_func", reward_func)
        check_callable("goal_func", goal_func, optional=True)
        check_callable("terminated_func", terminated_func, optional=True)
        self.strategy = read_strategy(strategy)
        check("share", share, 0, 1)
        self.share = share
        fields = {field.name: field for field in buffer.schema.fields}
        self._goals = _read_goals(goal, fields)
        if achieved is None:
            achieved = _achieved_beside(self._goals[0].name)
        self._achieved = read_field("achieved", achieved, fields)
        if goal_func is None and not alike(self._achieved, self._goals[0]):
            raise ValueError(
                f"achieved: expected a field like {self._goals[0].name!r}, "
                f"{kind(self._goals[0])}, or goal_func; {achieved!r} is {kind(self._achieved)}"
            )
        self._reward = _read_number_field("reward", reward, fields)
        self._terminated: Field | None = None
        if terminated_func is not None:
            self._terminated = _read_number_field("terminated", terminated, fields)
        changed = [field.name for field in (*self._goals, self._reward, self._terminated) if field]
        if len(set(changed)) < len(changed) or achieved in changed:
            raise ValueError(
                "goal, achieved, reward, terminated: expected different fields, "
                f"got {[*changed, achieved]}"
            )
        self.buffer = buffer
        self.reward_func = reward_func
        self.goal_func = goal_func
        self.terminated_func = terminated_func
        self.draws = 0
        self._asked: set[str] = set()  # fields that the functions ever asked for

    # ------------------------------------------------------------------ sampling

    def sample(
        self,
        batch_size: int,
        beta: float | Schedule | None = None,
        *,
        replace: bool = True,
        out: Batch | None = None,
        fields: str | Iterable[str] | None = None,
        relabelled: bool = False,
    ) -> Batch:
        """Draw rows, a share of them with another goal.

        Parameters
        ----------
        batch_size, replace, out, fields
            As for ``ReplayBuffer.sample``. If a function of the caller's raises, ``out`` may have
            been written to.
        beta : float or schedule, optional
            As for ``PrioritizedReplayBuffer.sample``, if the buffer is one.
        relabelled : bool
            Add the column ``relabelled``, shape ``(batch_size,)``, bool: which rows got another
            goal.

        Returns
        -------
        dict of ndarray
            As from ``sample`` of the buffer, ``weights`` and ``indexes`` included.

        Raises
        ------
        NotEnoughDataError
            As ``ReplayBuffer.sample``. It is a ``ValueError``.
        TypeError, ValueError, MemoryError
            As ``sample`` of the buffer; or ``beta`` is given and the buffer has no priorities; or
            ``relabelled`` is, and the buffer has such a field; or a schedule gives a share that is
            not in 0 to 1; or a function gives another shape, a value that the field cannot hold, or
            a reward that is not finite.

        Notes
        -----
        With ``fields`` it reads these fields, and of the rows that get another goal what the
        functions ask for: ``reward_func`` is called if the reward is asked for, and
        ``terminated_func`` if ``terminated`` is.

        Examples
        --------
        >>> from cpprb_like import ReplayBuffer
        >>> from cpprb_like.buffers import Hindsight
        >>> cell = {"shape": (), "dtype": int}
        >>> rb = ReplayBuffer(10, {"at": cell, "goal": cell, "rew": {"shape": ()}}, seed=0)
        >>> rb.add(at=[1, 2, 3], goal=[7, 7, 7], rew=[0, 0, 0])
        0
        >>> her = Hindsight(rb, lambda at, goal, rows: at == goal, goal="goal", achieved="at",
        ...                 strategy="final", share=0.5)
        >>> batch = her.sample(3, relabelled=True)
        >>> batch["goal"].tolist(), batch["relabelled"].tolist()
        ([3, 3, 7], [True, True, False])
        """
        buffer = self.buffer
        draw: Callable[..., tuple[Slots, Extra]] = buffer.sampler.draw
        if beta is not None:
            if not isinstance(buffer, PrioritizedReplayBuffer):
                raise TypeError("beta: expected no value, for the buffer has no priorities")
            draw = partial(draw, beta=beta)
        if relabelled and OWN_NAME in buffer.schema.names:
            raise ValueError(f"relabelled: the buffer has a field {OWN_NAME!r}")
        share = value_at(self.share, self.draws, "share", 0, 1)
        columns = buffer._columns(fields)
        n = buffer._check_batch_size(batch_size, columns)
        arrays = None
        if out is not None:
            chosen = [column.name for column in columns or buffer.ring.columns]
            arrays = dict(zip(chosen, buffer._arrays_of(out, n, columns), strict=True))
        while True:
            one = _Draw(self, share, columns)
            batch = buffer._sample(draw, n, replace, arrays, one.take, columns)
            if one.relabel(batch):
                break
        if relabelled:
            marks = np.zeros(n, np.bool_)
            marks[one.places] = True
            batch[OWN_NAME] = marks
        self.draws += 1
        if out is None:
            return batch
        out.update({name: values for name, values in batch.items() if name not in chosen})
        return out

    # ------------------------------------------------------------------ state

    def __repr__(self) -> str:
        return (
            f"Hindsight({type(self.buffer).__name__}, strategy={self.strategy!r}, "
            f"share={self.share})"
        )


class _Draw:
    """The rows of one batch: some or all columns, while they are read and relabelled."""

    places: Slots  # of the rows that get another goal
    reached: Array  # what was achieved that becomes their goals, if a column needs it
    goals: list[Field]  # of the columns
    reward: Field | None
    ends: Field | None
    rows: _Relabelled

    def __init__(self, view: Hindsight, share: float, columns: tuple[Column, ...] | None) -> None:
        self.view = view
        self.share = share
        self.columns = columns
        self.goals, self.reward, self.ends = view._goals, view._reward, view._terminated
        if columns is not None:
            names = {column.name for column in columns}
            self.goals = [field for field in self.goals if field.name in names]
            self.reward = self.reward if self.reward.name in names else None
            self.ends = self.ends if self.ends is not None and self.ends.name in names else None
        self.calls_functions = self.reward is not None or self.ends is not None

    def take(self, slots: Slots, arrays: list[Array] | None) -> Batch | None:
        """The rows as stored, and what others achieved in place of some; None if those are gone."""
        view, rng, ring = self.view, self.view.buffer.rng, self.view.buffer.ring
        moment = ring.now()
        self.places = np.flatnonzero(rng.random(len(slots)) < self.share)
        changed = slots[self.places]
        others = choose_rows(view.buffer._episodes, changed, rng, STRATEGIES[view.strategy])
        achieved = view._achieved.name
        if self.goals or self.calls_functions:
            self.reached = _read(ring, others, {achieved})[achieved]
        reading = view.buffer._reading(None, None, self.columns)
        if reading is None:
            batch = take(ring, slots, arrays, self.columns)
        else:
            batch = reading(slots, arrays)
        more: Batch = {}
        if self.calls_functions and self.columns is not None:
            needed = {achieved, *view._asked.copy()} - batch.keys()
            more = _read(ring, changed, needed - {field.name for field in view._goals})
        self.rows = _Relabelled(ring, moment, changed, self.places, batch, more, view._asked)
        return batch if ring.holds(moment, others) else None

    def relabel(self, batch: Batch) -> bool:
        """Write the new goals, and what follows from them, into some rows of the batch.

        False if a function asked for a field that had not been read, of rows that are gone.
        """
        if len(self.places) == 0 or not (self.goals or self.calls_functions):
            return True
        self.rows.batch = batch
        try:
            self._write(batch)
        except Exception:
            if self.rows.are_gone:
                return False
            raise
        return not self.rows.are_gone

    def _write(self, batch: Batch) -> None:
        view, n, goal, reached = self.view, len(self.places), self.view._goals[0], self.reached
        if view.goal_func is not None:
            reached = column_of("goal_func", view.goal_func(reached), n, goal)
        for field in self.goals:
            batch[field.name][self.places] = reached
        if not self.calls_functions:
            return
        rows = self.rows
        achieved = rows.stored(view._achieved.name)
        if view.goal_func is not None:
            achieved = column_of("goal_func", view.goal_func(achieved), n, goal)
        rows.more |= {field.name: reached for field in view._goals if field not in self.goals}
        if self.reward is not None:
            # Copies for the caller's functions, so that they can do with them what they like.
            found = view.reward_func(achieved.copy(), reached.copy(), rows)
            rewards = finite_column("reward_func", found, n, self.reward)
        if self.ends is not None and view.terminated_func is not None:
            found = view.terminated_func(achieved.copy(), reached.copy(), rows)
            batch[self.ends.name][self.places] = finite_column(
                "terminated_func", found, n, self.ends
            )
        if self.reward is not None:
            batch[self.reward.name][self.places] = rewards


class _Relabelled(Mapping[str, Array]):
    """Some rows of a batch: each field is copied when it is asked for, and read if it was not."""

    def __init__(
        self,
        ring: Ring,
        moment: Moment,
        slots: Slots,
        places: Slots,
        batch: Batch,
        more: Batch,
        asked: set[str],
    ) -> None:
        self.ring = ring
        self.moment = moment
        self.slots = slots
        self.places = places
        self.batch = batch
        self.more = more  # of these rows, fields that are not in the batch
        self.asked = asked
        self.are_gone = False

    def stored(self, name: str) -> Array:
        """A copy of a field."""
        if name in self.batch:
            return self.batch[name][self.places]
        if name not in self.more:
            self.are_gone = True
            self.more |= _read(self.ring, self.slots, {name})
            self.are_gone = not self.ring.holds(self.moment, self.slots)
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


def _read(ring: Ring, slots: Slots, names: Collection[str]) -> Batch:
    """Some fields of rows, as they were added."""
    columns = [column for column in ring.columns if column.name in names]
    found = {column.name: new_array(ring, column, len(slots)) for column in columns}
    read_rows(ring, slots, found)
    return found


# ---------------------------------------------------------------------- checks


def check_callable(name: str, value: object, *, optional: bool = False) -> None:
    """Refuse what is no function."""
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
    """The fields of goals, with those of the goals in next observations."""
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
    """Raise ``ValueError`` if a field has the name of a goal in another place, and is none."""
    stale = sorted(set(fields) - set(goals), key=str)
    stale = [name for name in stale if _last_part(name) in {_last_part(goal) for goal in goals}]
    if stale:
        raise ValueError(
            f"goal: {stale} would keep the old goal beside the new one of {list(goals)}; name all "
            "fields of the goal, or give those that are none another name"
        )


def is_goal(name: object) -> bool:
    """Whether a field of this name can only be a goal."""
    return isinstance(name, str) and _last_part(name) in ("goal", "desired_goal")


def _last_part(name: str) -> str:
    """The name of a part of an observation, wherever that is: ``next_obs.a.goal`` is a goal."""
    return name.rpartition(".")[2].removeprefix(NEXT)


def _achieved_beside(goal: str) -> str:
    """What a step achieved, where its goal is called so."""
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
    """What a caller's function gave for n rows, as values of a field."""
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
