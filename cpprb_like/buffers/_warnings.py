"""Warnings about options that are valid but seldom intended.

Not here: options that raise an error (``_fields.schema``, ``_fields.derived``).
"""

from __future__ import annotations

from collections.abc import Mapping

from cpprb_like._arguments.checks import warn
from cpprb_like._arguments.narrow_dtypes import name_of
from cpprb_like._core import FLAG_TRUNCATED
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.schema import Schema


def warn_of_rows(options: CheckedOptions, given: object) -> None:
    """Warn of suspicious options of rows, and of the user's option ``Nstep``."""
    for option, field in options.schema.near_ends():  # names like those of end flags
        if field.can_end or name_of(field.dtype) is not None:
            warn(
                f"field {field.name!r} ends no episode: say {option}={field.name!r} if it does, or "
                f"{option}=False if no field does"
            )
    if options.nstep is not None:
        says = not isinstance(given, Mapping) or "discount" in given
        warn_of_short_windows(options.nstep, options.schema, says_discount=says)


def warn_of_short_windows(nstep: NStepReturns, schema: Schema, *, says_discount: bool) -> None:
    """Warn of n-step returns whose bootstrap discount is not in the batch.

    Before a truncation a window has fewer than n steps, and the next value is still used.
    ``says_discount``: whether the options request or refuse the column ``discount``.
    """
    ends = schema.end_fields()
    names = [schema.names[number] for number, _, sets, _ in ends if sets == FLAG_TRUNCATED]
    ending = {schema.names[number] for number, *_ in ends}
    bootstraps = nstep.size > 1 and not ending.issuperset(nstep.last_step_fields)
    if names and bootstraps and not says_discount:
        warn(
            f"Nstep: rows before a truncation ({names[0]!r}) sum fewer than {nstep.size} steps, "
            "and batches do not say how many: give discount as True, and multiply the next value "
            "by the column discount; or as False, if nothing is bootstrapped"
        )
