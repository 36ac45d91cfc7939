"""``Host``: calls to a host that have an end, whether its process lives, restarts or is gone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, ObjectLostError, RayActorError

from cpprb_like._machine.waiting import PAUSE

# The process of an actor has ended, or an answer was lost with its node before it came to this one.
GONE = RayActorError, ObjectLostError
# Seconds of such errors after which an actor is not started again: meanwhile Ray raises another
# error, or keeps the call.
ENDED = 1.0

Method = TypeVar("Method", bound=Callable[..., Any])


class Unknown(Exception):  # noqa: N818 (an answer, no error of a user)
    """The host does not know the writer or learner, after a restart or a long silence."""


def answers(method: Method) -> Method:
    """Return ``Unknown`` from a method of a host, as Ray prints errors without a waiting caller.

    This decorator comes outside ``ray.method``: Ray reads the options of a method from the function
    that it wraps.
    """

    @wraps(method)
    def answer(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Unknown as unknown:
            return unknown

    return cast("Method", answer)


def answer_of(reference: Any, timeout: float) -> Any:
    """The answer to a call; raises ``Unknown`` if that is the answer."""
    found = ray.get(reference, timeout=timeout)
    if isinstance(found, Unknown):
        raise found
    return found


@dataclass(frozen=True)
class Host:
    """A host of a cluster, for other processes.

    Attributes
    ----------
    number : int
        Number of the host, from 0 on.
    actor : ActorHandle
        Handle of the ``ShardHost``. The handle stays valid when Ray restarts the process.
    """

    number: int
    actor: Any

    def begin(self, method: str, *arguments: Any) -> Any:
        """The object reference of a call."""
        return getattr(self.actor, method).remote(*arguments)

    def call(self, method: str, *arguments: Any, timeout: float) -> Any:
        """The answer to a call, which is repeated while the host restarts.

        Raises ``TimeoutError`` after ``timeout`` seconds, ``RuntimeError`` when the host has ended
        with its cluster, and the errors of the call.
        """
        return call(self.actor, method, *arguments, timeout=timeout, name=str(self))

    def __str__(self) -> str:
        return f"host {self.number}"


def call(actor: Any, method: str, *arguments: Any, timeout: float, name: str = "ledger") -> Any:
    """The answer of an actor that Ray starts again: see ``Host.call``."""
    until, died_at = time.monotonic() + timeout, math.inf
    while True:
        left = until - time.monotonic()
        try:
            return answer_of(getattr(actor, method).remote(*arguments), max(0.0, left))
        except (GetTimeoutError, *GONE) as error:
            now = time.monotonic()
            died_at = min(died_at, now) if isinstance(error, ActorDiedError) else math.inf
            if now > died_at + ENDED:
                raise RuntimeError(
                    f"{name}: the cluster was closed, or its process cannot start: {_short(error)}"
                ) from error
            if left <= 0:
                raise TimeoutError(
                    f"{name}: no answer to {method} in {timeout:g} s: {_short(error)}"
                ) from error
        time.sleep(PAUSE)


def _short(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0]
