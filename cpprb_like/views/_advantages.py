"""``Advantages``: a layer with the advantage and the return of each row.

Both depend on all later rows of the episode, so they are computed for all rows at once. Not here:
the pass over the rows (``_reverse_pass``).
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.arrays import Array, Batch, Floats, Slots
from cpprb_like._arguments.checks import as_discount, as_int
from cpprb_like._arguments.foreign_arrays import read_argument
from cpprb_like._arguments.narrow_dtypes import kind_of
from cpprb_like._core import FLAG_ABSENT, FLAG_END, FLAG_TERMINATED, Ring
from cpprb_like._fields.derived import REWARD_NAMES
from cpprb_like._fields.field import NEXT
from cpprb_like._rows.column import Column
from cpprb_like.views._layer import Fields, Layer, ViewedRows, set_options
from cpprb_like.views._reverse_pass import reverse_pass
from cpprb_like.views._rows import read_fields
from cpprb_like.views._windows import Windows

Estimate = Callable[[Mapping[str, Array]], Any]
NAMES = ("advantage", "return")
NO_NEXT = (
    "has no next values, from which the last rows of truncated and unfinished episodes bootstrap: "
    "expected next_of={0!r} of the buffer, or next_value, such as "
    "lambda rows: critic(rows['next_obs'])"
)


class Advantages(Layer):
    """Advantages and returns for policy gradients: GAE, lambda-returns, returns-to-go and V-trace.

    Batches have two more float32 columns of shape ``(batch_size,)``: ``advantage``, and ``return``,
    the target of the value function. The first draw after a change of rows computes them for all
    rows. Later draws look them up: once for a rollout, whatever the number of epochs.

    - GAE, the default. With ``delta = r + gamma * V(next) - V`` it is
      ``advantage = delta + gamma * lam * (advantage of the next row)``. ``return`` is
      ``advantage + V``, the lambda-return. With ``lam=1`` it is the return-to-go.
    - V-trace, with ``target_logp``. ``return`` is ``v_s``, and ``advantage`` is
      ``rho * (r + gamma * v_(s+1) - V)``.
    - ``value=None`` with ``lam=1``: both are the discounted sum of the rewards to the end of the
      episode, terminated or truncated.

    ``V(next)`` is 0 where the episode was terminated. Where it was truncated or has not ended, it
    is the value of the next observation of the row itself, never that of the next episode.

    Parameters
    ----------
    gamma, lam : float
        Discount factor and lambda, each 0 to 1.
    value : str, callable or None
        Field with the value of each observation. Or a function: ``value(rows)`` returns a number
        for each of n rows, shape ``(n,)`` or ``(n, 1)``. ``rows["obs"]`` is a field of these rows,
        shape ``(n, *shape)``. Fields are read when they are asked for.
    next_value : str or callable, optional
        Value of each next observation. A field, by default ``next_<value>``, which
        ``next_of="value"`` stores once. Or a function as ``value``, such as
        ``lambda rows: critic(rows["next_obs"])``: it is called for the last rows of episodes only.
        If ``value`` is a function, the default is the same function, where ``rows["obs"]`` is
        ``next_obs``, and so on.
    rew : str, optional
        Field of rewards, one number each. By default ``rew``, ``reward`` or ``rewards``.
    target_logp : callable, optional
        Log-probability of the stored action under the current policy: a function as ``value``.
    logp : str
        Field with the log-probability of the action under the policy that took it.
    rho_bar, c_bar : float
        V-trace: greatest importance ratios, positive, ``rho_bar >= c_bar``.
    batch_size : int
        Maximum number of rows in a call of a function.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: the buffer has no such fields, or no
        value of next observations, or functions are given and the rows are those of several
        processes. By a draw: a field or a function has something else than one finite number for
        each row, or an episode has not ended and ``value`` is None.

    Notes
    -----
    Rows change by ``add``, ``update``, deletion and ``clear``, not by priorities. Functions are not
    called again because a network has learned: a new view, ``rb.view(Advantages(...))``, computes
    anew. If other threads overwrite rows meanwhile, functions are called again while these threads
    wait. Learners of several processes take fields only, no functions.

    Cost: after a change some 10 ns for each row of the buffer if all is stored in fields of their
    own, else up to 80 ns and the functions. Later draws: a look-up. Memory: 8 bytes a row, and
    during the computation 8 more for each function.

    Sources: Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized
    Advantage Estimation", equation 16. Espeholt et al. (2018), "IMPALA", section 4.1; ``lam`` in
    V-trace as in its remark 2.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Advantages
    >>> fields = {"obs": {"shape": ()}, "rew": {"shape": ()}, "value": {"shape": ()}}
    >>> fields["terminated"] = {"shape": (), "dtype": bool}
    >>> rb = ReplayBuffer(100, fields, next_of="obs", seed=0)
    >>> for t in range(3):
    ...     _ = rb.add(obs=t, next_obs=t + 1, rew=1, value=3 - t, terminated=t == 2)
    >>> view = rb.view(Advantages(0.5, 1.0, next_value=lambda rows: 4 - rows["next_obs"]))
    >>> batch = next(view.epoch(3, shuffle=False))
    >>> batch["advantage"].tolist(), batch["return"].tolist()
    ([-1.25, -0.5, 0.0], [1.75, 1.5, 1.0])
    """

    def __init__(
        self,
        gamma: float = 0.99,
        lam: float = 0.95,
        *,
        value: str | Estimate | None = "value",
        next_value: str | Estimate | None = None,
        rew: str | None = None,
        target_logp: Estimate | None = None,
        logp: str = "logp",
        rho_bar: float = 1.0,
        c_bar: float = 1.0,
        batch_size: int = 4096,
    ) -> None:
        self.gamma, self.lam = as_discount("gamma", gamma), as_discount("lam", lam)
        for option, source in (("value", value), ("next_value", next_value)):
            if not (source is None or isinstance(source, str) or callable(source)):
                raise TypeError(f"{option}: expected a field or a function, got {source!r}")
        if value is None and (next_value is not None or self.lam != 1.0):
            raise ValueError(
                "value: without values expected lam=1 and no next_value, got "
                f"lam={lam} and next_value={next_value!r}"
            )
        if not (target_logp is None or callable(target_logp)):
            raise TypeError(f"target_logp: expected a function, got {target_logp!r}")
        self.value, self.next_value, self.rew = value, next_value, rew
        self.target_logp, self.logp = target_logp, logp
        for option, bound in (("rho_bar", rho_bar), ("c_bar", c_bar)):
            given: object = bound
            if isinstance(given, bool) or not isinstance(given, numbers.Real):
                raise TypeError(f"{option}: expected a number, got {bound!r}")
        if not 0 < c_bar <= rho_bar:
            raise ValueError(f"c_bar: expected 0 < c_bar <= rho_bar, {rho_bar}, got {c_bar}")
        self.rho_bar, self.c_bar = float(rho_bar), float(c_bar)
        self.batch_size = as_int("batch_size", batch_size, 1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_options(self, Advantages, state)

    def open(self, rows: ViewedRows) -> Layer:
        return _OfRows(self, rows)


class _OfRows(Layer):
    """Advantages and returns of all rows of a ring, or of several, from one change to the next."""

    # The moment before the newest computation, and what it gave by number of the row.
    _computed: tuple[Any, Array] | None = None

    def __init__(self, layer: Advantages, rows: ViewedRows) -> None:
        self._layer, self._ring = layer, rows.ring
        self._columns = {one.name: one for one in rows.ring.columns if not one.is_entry}
        for option, field in rows.schema.near_ends():
            raise ValueError(
                f"Advantages: field {field.name!r} ends no episode, so advantages would run on "
                f"into the next one; say {option}={field.name!r} of the buffer if it does, or "
                f"{option}=False if no field does"
            )
        # Where numbers of rows come from: a field, or a function.
        self._sources: dict[str, str | Estimate] = {"rew": self._rewards(layer.rew)}
        if layer.value is not None:
            self._sources |= {"value": layer.value, "next_value": self._following(layer)}
        if layer.target_logp is not None:
            self._sources |= {"target_logp": layer.target_logp, "logp": layer.logp}
        self._in_place: dict[str, Column] = {}  # fields that the pass itself reads
        for option, name in self._sources.items():
            if not (isinstance(name, str) or isinstance(self._ring, Ring)):
                raise ValueError(
                    f"{option}: expected a field, got a function, during whose calls other "
                    "processes overwrite the rows of a learner; store its values with each step, "
                    "or keep rollouts in a ReplayBuffer"
                )
            if isinstance(name, str):
                column = self._column(option, name)
                is_float = column in rows.ring.stored_columns and column.dtype.char in "fd"
                if is_float and option != "logp":
                    self._in_place[option] = column

    def _rewards(self, name: str | None) -> str:
        known = [name for name in self._columns if name in REWARD_NAMES]
        if name is None and len(known) != 1:
            raise ValueError(
                f"Advantages: expected rew, the field of rewards, as {known or 'none'} of the "
                f"fields {list(self._columns)} are called {' or '.join(map(repr, REWARD_NAMES))}"
            )
        return known[0] if name is None else name

    def _following(self, layer: Advantages) -> str | Estimate:
        """Where values of next observations come from."""
        if layer.next_value is not None:
            return layer.next_value
        if not isinstance(layer.value, str):
            assert layer.value is not None
            return layer.value
        if layer.value in self._columns and NEXT + layer.value not in self._columns:
            raise ValueError(f"value: field {layer.value!r} {NO_NEXT.format(layer.value)}")
        return NEXT + layer.value

    def _column(self, option: str, name: str) -> Column:
        """The field of this name, which must have one number for each row."""
        column: Column | None = self._columns.get(name)
        if column is None:
            known = list(self._columns)
            raise ValueError(f"{option}: expected one of the fields {known}, got {name!r}")
        if kind_of(column.dtype) not in "biuf" or column.axis or column.shape not in ((), (1,)):
            raise ValueError(
                f"{option}: expected a field of one number, {name!r} is {column.dtype} of shape "
                f"{column.shape}"
            )
        return column

    def reads(self, fields: Fields) -> list[str]:  # noqa: ARG002
        """See ``Layer.reads``."""
        return [name for name in self._sources.values() if isinstance(name, str)]

    def columns(self, fields: Fields) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
        for name in NAMES:
            if name in fields:
                raise ValueError(f"Advantages: {name!r} is a further column of the view")
        return dict.fromkeys(NAMES, (np.float32, ()))

    def fill(self, windows: Windows, wanted: Fields) -> Batch:  # noqa: ARG002
        while True:
            computed = self._computed
            if computed is None or not self._ring.is_now(computed[0]):
                # Later rows may be added or overwritten meanwhile. Advantages of a drawn row depend
                # on it and on younger rows, so they are valid if it is, which the view checks.
                # None meanwhile: an error leaves a part of new results. Arrays are written to again
                # by the one thread that takes them.
                old = vars(self).pop("_computed", None)
                computed = self._ring.now(), self._compute(windows, old and old[1])
                self._computed = computed
            batch = {
                name: values.take(windows.slots)
                for name, values in zip(NAMES, computed[1], strict=True)
            }
            if self._computed is computed:
                return batch  # else another thread has begun to write its results there

    def _compute(self, windows: Windows, results: Array | None) -> Array:
        """Advantages and returns of all rows, shape (2, rows): by slot, or number of the row."""
        is_one = isinstance(self._ring, Ring)
        bits = 0 if is_one else self._ring.bits
        shape = 2, self._ring.capacity << bits
        if results is None or results.shape != shape:
            results = np.zeros(shape, np.float32)
        for number, ring in [(0, self._ring)] if is_one else self._ring.usable_rings:
            if ring.stored:
                self._pass(ring, windows, results[:, number :: 1 << bits], number, bits)
        return results

    def _pass(self, ring: Ring, windows: Windows, out: Array, number: int, bits: int) -> None:
        """Write advantages and returns of the rows of one ring, by slot."""
        layer, stop, sources = self._layer, ring.written, dict[str, Any](self._in_place)
        if len(sources) < len(self._sources) or layer.value is None:
            flags = ring.flags()
            rows = (flags & FLAG_ABSENT == 0).nonzero()[0]
            # By time steps, the newest one first: which environments have a row.
            present = np.roll(flags & FLAG_ABSENT == 0, -(stop % ring.capacity))
            steps = np.pad(present, (-len(flags) % ring.n_envs, 0)).reshape(-1, ring.n_envs)[::-1]
            newest = stop - (1 + steps.argmax(axis=0)) * ring.n_envs + np.arange(ring.n_envs)
            is_last = flags & FLAG_END != 0
            is_last[newest[steps.any(axis=0)] % ring.capacity] = True
            is_last &= flags & (FLAG_ABSENT | FLAG_TERMINATED & ~FLAG_END) == 0
            last = is_last.nonzero()[0]
            unfinished = int((flags[last] & FLAG_END == 0).sum())
            if layer.value is None and unfinished:
                raise ValueError(
                    f"value: {unfinished} episode(s) have not ended, and without values their "
                    "returns are not known; expected a value, or on_episode_end() of the buffer"
                )
            for option, source in self._sources.items():
                if option not in sources:
                    asked = last if option == "next_value" and callable(source) else rows
                    sources[option] = np.zeros(ring.capacity)
                    sources[option][asked] = self._read(option, asked << bits | number, windows)
        ratios = None
        if layer.target_logp is not None:
            differences = sources["target_logp"] - sources["logp"]
            if not (differences < np.inf).all():
                raise ValueError("target_logp, logp: expected log-probabilities, got NaN or inf")
            ratios = np.exp(np.minimum(differences, 700.0))  # greater ones overflow
        if not reverse_pass(
            ring,
            stop,
            *out,
            rewards=sources["rew"],
            values=sources.get("value"),
            following=sources.get("next_value"),
            follows_all=isinstance(self._sources.get("next_value"), str),
            ratios=ratios,
            gamma=layer.gamma,
            lam=layer.lam,
            rho_bar=layer.rho_bar,
            c_bar=layer.c_bar,
        ):
            rows = (ring.flags() & FLAG_ABSENT == 0).nonzero()[0]
            wrong = rows[~np.isfinite(out[:, rows]).all(axis=0)]
            if len(wrong):  # else another process has overwritten the row
                self._refuse(ring, sources, wrong)

    def _refuse(self, ring: Ring, sources: dict[str, Any], slots: Slots) -> NoReturn:
        """Raise the error for rows whose advantage or return is not finite."""
        for option, source in sources.items():
            name: Any = self._sources[option]
            values = (
                source[slots]
                if source is not self._in_place.get(option)
                else (read_fields(ring, slots, (name,))[name].reshape(len(slots)))
            )
            wrong = np.flatnonzero(~np.isfinite(values))
            if len(wrong):
                raise ValueError(
                    f"{option}: expected finite numbers in field {name!r}, got "
                    f"{values[wrong[0]]} in slot {slots[wrong[0]]}"
                )
        raise ValueError(
            f"rew, value: expected sums that float32 can hold, got a greater one in slot {slots[0]}"
        )

    def _read(self, option: str, rows: Slots, windows: Windows) -> Floats:
        """Numbers of rows: of a field, or of a function that gets at most ``batch_size`` rows."""
        source, size, found = self._sources[option], self._layer.batch_size, np.empty(len(rows))
        if isinstance(source, str):
            found[:] = read_fields(self._ring, rows, (source,))[source].reshape(len(rows))
            return found
        follows = option == "next_value" and self._layer.next_value is None
        for start in range(0, len(rows), size):
            chunk = rows[start : start + size]
            given = source(FieldsOfRows(windows, chunk, tuple(self._columns), follows))
            values = read_argument(option, given)
            shape = (len(chunk),)
            if kind_of(values.dtype) not in "biuf" or values.shape not in (shape, (*shape, 1)):
                raise ValueError(
                    f"{option}: expected one number for each row, shape {shape}, got "
                    f"{values.dtype} of shape {values.shape}"
                )
            found[start : start + size] = values.reshape(shape)
        if option != "target_logp" and not np.isfinite(found).all():
            wrong = found[~np.isfinite(found)][0]
            raise ValueError(f"{option}: expected finite numbers, got {wrong}")
        return found


class FieldsOfRows(Mapping[str, Array]):
    """Fields of rows, for the functions of ``Advantages``. Each is read when it is asked for.

    With ``follows`` a field holds the next values of the rows. Other fields are missing then.
    """

    def __init__(
        self, windows: Windows, rows: Slots, fields: tuple[str, ...], follows: bool
    ) -> None:
        self._windows, self._rows, self._follows = windows, rows, follows
        stored = {name: NEXT + name if follows else name for name in fields}
        self._stored = {name: one for name, one in stored.items() if one in fields}
        self._values: Batch = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._stored:
            if self._follows:
                raise KeyError(f"value: field {name!r} {NO_NEXT.format(name)}")
            raise KeyError(f"{name!r} is none of the fields {list(self)}")
        if name not in self._values:
            stored = self._stored[name]
            self._values[name] = self._windows.take(self._rows, (stored,))[stored]
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)
