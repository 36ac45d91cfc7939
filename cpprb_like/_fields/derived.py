"""The options ``next_of``, ``stack_compress`` and ``Nstep`` as frozen specs.

Not here: how the values are stored (``schema``, ``chained``) and read (``views._rows``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cpprb_like._arguments.checks import as_discount, as_int, as_whole, warn
from cpprb_like._arguments.narrow_dtypes import kind_of
from cpprb_like._fields.axes import axes_of, check_axes
from cpprb_like._fields.field import Field
from cpprb_like._fields.schema import Schema, Stack, read_names

__all__ = [
    "MOST_FRAMES",
    "NStepReturns",
    "check_next",
    "check_nstep",
    "derive",
    "likely_axis",
    "read_nstep",
]

MOST_FRAMES = 256  # most frames of a stack
REWARD_NAMES = ("rew", "reward", "rewards")
MAX_STEPS = 1 << 20  # most steps of an n-step return
PLAUSIBLE = range(2, 17)  # usual numbers of frames, where two axes may be that of the frames
COLOURS = 3  # values of a pixel
NSTEP_KEYS = ("size", "gamma", "rew", "next", "discount")


@dataclass(frozen=True)
class NStepReturns:
    """n-step returns: discounted sums of rewards, and the fields to bootstrap from."""

    size: int  # n, or the greatest n
    gamma: float  # discount factor
    rewards: tuple[str, ...]  # fields to sum
    last_step_fields: tuple[str, ...]  # fields read from the last of the n steps
    discount: bool  # whether batches have the column of the bootstrap discount
    discount_shape: tuple[int, ...]  # shape of a row of that column


def derive(schema: Schema, next_of: object, stack_compress: object) -> Schema:
    """The schema with next values that are not stored, and frame stacks stored as single frames.

    ``ReplayBuffer`` has these options. Raises ``TypeError`` or ``ValueError`` if an option names an
    unknown field, or a field that does not fit.
    """
    schema = _with_next(schema, _read_names("next_of", next_of, schema))
    check_next(schema)
    axes: dict[str, object]
    if isinstance(stack_compress, Mapping):
        _read_stacks(list(stack_compress), schema)
        axes = dict(stack_compress)
    else:
        names = _read_stacks(stack_compress, schema)
        shapes = {field.name: field.shape for field in schema.fields}
        axes = {name: likely_axis(shapes[name]) if shapes[name] else -1 for name in names}
    by_name = {field.name: field for field in schema.fields}
    stacks = [_read_stack(by_name[name], axis) for name, axis in axes.items()]
    # Next values of ``next_of`` are not stored: naming them too, as cpprb needs, changes nothing.
    following = dict(schema.next_of)
    stacks = [one for one in stacks if one.name not in following]
    for stack in stacks if not isinstance(stack_compress, Mapping) else ():
        if fits_both_axes(by_name[stack.name].shape):
            _warn_of_axis(stack.name, by_name[stack.name].shape)
    return replace(schema, stacks=tuple(stacks))


def _read_names(option: str, names: Any, schema: Schema) -> list[str]:
    if names is None:
        return []
    if isinstance(names, Mapping) and names:
        raise TypeError(f"{option}: expected names of fields, got {names!r}")
    given = read_names(option, names, schema.names)
    for field in schema.declared:
        if field.name in given and field.dtype.hasobject:
            raise ValueError(
                f"{option}: field {field.name!r} holds Python objects; expected numbers"
            )
    if len(set(given)) != len(given):
        raise ValueError(f"{option}: expected each name once, got {given}")
    return given


def _read_stacks(names: Any, schema: Schema) -> list[str]:
    given = _read_names("stack_compress", names, schema)
    for field in schema.declared:
        if field.name in given:
            refuse_axes("stack_compress", field)
            _refuse_counts("stack_compress", field)
    return given


def _refuse_counts(option: str, field: Field) -> None:
    """Raise ``ValueError`` if values count items of their own row, and may be of another one."""
    if field.counts is not None:
        raise ValueError(
            f"{option}: field {field.name!r} counts items of axis {field.counts!r} in its "
            "own row; expected a field without counts"
        )


def check_next(schema: Schema) -> None:
    """Raise ``ValueError`` unless the fields of ``next_of``, and their axes, go together."""
    fields = {field.name: field for field in schema.declared}
    sources = [fields[source] for _, source in schema.next_of]
    taken = {source.following.axis for source in sources if source.is_ragged}
    named = {source.name for source in sources}
    for axis, names in axes_of(schema.without_next).items():
        if axis in taken:
            raise ValueError(
                f"field {names[0]!r}: axis {axis!r} is that of the next values of other fields; "
                "expected another name of the axis"
            )
        missing = [name for name in names if name not in named]
        if missing and len(missing) < len(names):
            raise ValueError(
                f"next_of: expected all fields of axis {axis!r} or none, as they have one length; "
                f"{missing} are missing: name them too, or give them an axis of their own"
            )
    for source in sources:
        if not source.is_ragged:
            _refuse_counts("next_of", source)
        elif source.counts is not None and source.following.counts not in taken:
            raise ValueError(
                f"next_of: field {source.name!r} counts items of axis {source.counts!r}, whose "
                "fields have no next values; name them too"
            )
    check_axes(schema.declared)


def refuse_axes(option: str, field: Field) -> None:
    """Raise ``ValueError`` if a field that ``option`` names has a named axis."""
    if field.is_ragged:
        what = "a text" if field.is_text else f"of shape {field.declared_shape}"
        raise ValueError(
            f"{option}: field {field.name!r} is {what}, which differs from row to row; "
            "expected a field of one shape"
        )


def _with_next(schema: Schema, names: list[str]) -> Schema:
    fields = list(schema.fields)
    pairs = []
    for name in names:
        (source,) = [field for field in fields if field.name == name]
        following = source.following
        declared = [field for field in fields if field.name == following.name]
        if declared and declared[0] != following:
            raise ValueError(
                f"next_of={name!r}: field {following.name!r} is declared with "
                f"{declared[0].declared_dtype} of shape {declared[0].declared_shape}; expected "
                f"{following.declared_dtype} of shape {following.declared_shape} like {name!r}, or "
                "no declaration"
            )
        if not declared:
            fields.append(following)
        pairs.append((following.name, name))
    both = [following for following, _ in pairs if following in names]
    if both:
        raise ValueError(f"next_of: {both} are next values themselves")
    return replace(schema, fields=tuple(fields), next_of=tuple(pairs))


def _read_stack(field: Field, axis: object) -> Stack:
    number = as_int(f"stack_compress[{field.name!r}]", axis)
    ndim = len(field.shape)
    if ndim == 0 or not -ndim <= number < ndim:
        raise ValueError(
            f"stack_compress: field {field.name!r} of shape {field.shape} has no axis {number}"
        )
    number %= ndim
    depth = field.shape[number]
    if not 1 <= depth <= MOST_FRAMES:
        raise ValueError(
            f"stack_compress: field {field.name!r}: expected 1 to {MOST_FRAMES} frames along axis "
            f"{number}, got {depth}"
        )
    return Stack(field.name, number, depth)


def _warn_of_axis(name: str, shape: tuple[int, ...]) -> None:
    last = len(shape) - 1
    warn(
        f"stack_compress={name!r}: of shape {shape} the first axis or the last may be that of the "
        f"frames; the last is taken, as in cpprb. stack_compress={{{name!r}: {last}}} says so, "
        f"{{{name!r}: 0}} takes the first. With the wrong axis each stack is stored whole"
    )


def likely_axis(shape: tuple[int, ...]) -> int:
    """Probable axis of the frames in a stack, first or last, for a shape of at least one axis.

    Gymnasium puts the frames first, as in ``(4, 84, 84)``, and most others last, as in
    ``(84, 84, 4)``. The result is the first axis if its length is a plausible number of frames, and
    the last axis has an implausible length, or is a side of a square frame, or has the number of
    colours of a pixel.
    """
    first, last = shape[0], shape[-1]
    if first not in PLAUSIBLE or len(shape) == 1:
        return len(shape) - 1
    is_square = len(shape) == 3 and shape[1] == last != first
    has_colours = len(shape) > COLOURS and last == COLOURS != first
    return 0 if last not in PLAUSIBLE or is_square or has_colours else len(shape) - 1


def fits_both_axes(shape: tuple[int, ...]) -> bool:
    """Whether the shape does not say which of the first and the last axis is that of the frames."""
    first, last = shape[0], shape[-1]
    if len(shape) == 1 or first not in PLAUSIBLE or last not in PLAUSIBLE:
        return False
    if len(shape) == 3:
        return (shape[1] == first) == (shape[1] == last)
    return len(shape) == 2 or (first == COLOURS) == (last == COLOURS)


def read_nstep(options: object, schema: Schema) -> NStepReturns | None:
    """The option ``Nstep`` of ``ReplayBuffer``.

    Raises ``TypeError`` or ``ValueError`` if the option is no dict, or names an unknown field or a
    reward that is no float. Also if it omits rewards or next values and field names are ambiguous.
    """
    if options is None or options is False or (isinstance(options, Mapping) and not options):
        return None
    if not isinstance(options, Mapping):
        raise TypeError(f"Nstep: expected a dict such as {{'size': 3}}, got {options!r}")
    unknown = [key for key in options if key not in NSTEP_KEYS]
    if unknown or "size" not in options:
        raise ValueError(
            f"Nstep: expected size and some of {list(NSTEP_KEYS[1:])}, got {options!r}"
        )
    size = as_whole("Nstep['size']", options["size"], 1)
    if size > MAX_STEPS:
        raise ValueError(f"Nstep['size']: expected 1 to {MAX_STEPS} steps, got {size}")
    given = options.get("rew")
    rewards = _read_names("Nstep['rew']", _rewards(schema) if given is None else given, schema)
    for field in schema.declared:
        if field.name in rewards:
            refuse_axes("Nstep['rew']", field)
        if field.name in rewards and kind_of(field.dtype) != "f":
            raise ValueError(
                f"Nstep['rew']: expected fields of floats, got {field.name!r} of {field.dtype}"
            )
    given = options.get("next")
    if given is None:
        given = [name for name in _nexts(schema) if name not in rewards]
    last_step_fields = _read_names("Nstep['next']", given, schema)
    both = [name for name in last_step_fields if name in rewards]
    if both:
        raise ValueError(f"Nstep: {both} are both 'rew' and 'next'")
    for option, field in schema.near_ends():
        remedy = f"say {option}={field.name!r} if it does, or {option}=False if no field does"
        if not field.can_end:
            shape = field.declared_shape
            remedy = f"expected one bool or number, got shape {shape}, or {option}=False"
        raise ValueError(
            f"Nstep: field {field.name!r} ends no episode, so that n-step returns would run on "
            f"into the next one; {remedy}"
        )
    ends = [schema.names[number] for number, *_ in schema.end_fields()]
    summed = [name for name in ends if name in rewards]
    if summed:
        raise ValueError(f"Nstep['rew']: {summed} end episodes; expected rewards")
    _check_axes_of_last_step(schema, last_step_fields)
    discount = options.get("discount", False)
    if not isinstance(discount, bool):
        raise TypeError(f"Nstep['discount']: expected a bool, got {discount!r}")
    if discount and "discount" in schema.names:
        raise ValueError("Nstep['discount']: there is a field of this name")
    shapes = {field.shape for field in schema.fields if field.name in rewards}
    return NStepReturns(
        size,
        as_discount("Nstep['gamma']", options.get("gamma", 0.99)),
        tuple(rewards),
        (*last_step_fields, *(name for name in ends if name not in last_step_fields)),
        discount,
        (1,) if (1,) in shapes else (),
    )


def check_nstep(nstep: NStepReturns | None, schema: Schema) -> None:
    """Raise ``ValueError`` unless n-step returns of a pickle or a file fit the fields."""
    if nstep is None:
        return
    as_int("Nstep['size']", nstep.size, 1)
    as_discount("Nstep['gamma']", nstep.gamma)
    if nstep.discount_shape not in ((), (1,)):
        raise ValueError(f"Nstep: {nstep.discount_shape} is no shape of a discount")
    unknown = [
        name for name in (*nstep.rewards, *nstep.last_step_fields) if name not in schema.names
    ]
    if unknown:
        raise ValueError(f"Nstep: needs the fields {unknown}; there are {list(schema.names)}")
    for field in schema.declared:
        if field.name in nstep.rewards:
            refuse_axes("Nstep", field)
    _check_axes_of_last_step(schema, nstep.last_step_fields)
    kinds = {field.name: kind_of(field.dtype) for field in schema.fields}
    wrong = [name for name in nstep.rewards if kinds[name] != "f" or name in nstep.last_step_fields]
    if wrong:
        raise ValueError(f"Nstep: {wrong} cannot be summed")


def _check_axes_of_last_step(schema: Schema, last_step_fields: Collection[str]) -> None:
    """Raise ``ValueError`` if an axis would have fields of two rows, and so two lengths."""
    for field in schema.declared:
        for axis in schema.axes:
            if axis.name not in (field.axis, field.counts):
                continue
            is_last = field.name in last_step_fields
            other = next((n for n in axis.fields if (n in last_step_fields) != is_last), None)
            if other is not None:
                one, two = (field.name, other) if is_last else (other, field.name)
                (last,) = [each for each in schema.declared if each.name == one]
                own, remedies = f"next_{axis.name}", []
                if last.axis == axis.name:
                    shape = tuple(own if n == axis.name else n for n in last.declared_shape)
                    remedies.append(f"shape {shape} and room for {own!r}")
                if last.counts == axis.name:
                    remedies.append(f"counts={own!r}")
                raise ValueError(
                    f"Nstep: {one!r} comes from the last of the steps and {two!r} from the first, "
                    f"so their lengths of axis {axis.name!r} differ; declare {one!r} with "
                    f"{' and '.join(remedies)}"
                )


def _rewards(schema: Schema) -> list[str]:
    """Default of ``Nstep['rew']``: the only field with the name of a reward."""
    found = [name for name in schema.names if name in REWARD_NAMES]
    for field in schema.declared:
        if field.name in found:
            refuse_axes("Nstep['rew']", field)
    ends = [number for number, *_ in schema.end_fields()]
    floats = [
        field
        for number, field in enumerate(schema.declared)
        if kind_of(field.dtype) == "f" and number not in ends and not field.is_ragged
    ]
    if not floats:
        return []  # no field can be summed
    if len(found) != 1:
        raise ValueError(
            "Nstep: expected 'rew', the fields of rewards to be summed up ([] for none), as "
            f"{'none' if not found else 'more than one'} of the fields {list(schema.names)} is "
            f"called {' or '.join(map(repr, REWARD_NAMES))}"
        )
    return found


def _nexts(schema: Schema) -> list[str]:
    """Default of ``Nstep['next']``: each ``next_x`` with a field ``x``."""
    found = [name for name in schema.names if name.startswith("next_")]
    alone = [name for name in found if name.removeprefix("next_") not in schema.names]
    if alone:
        raise ValueError(
            f"Nstep: expected 'next', the fields that come from the last of the steps ([] for "
            f"none): of {alone} it is not clear, as nothing but the name says that they are next "
            "values"
        )
    return found
