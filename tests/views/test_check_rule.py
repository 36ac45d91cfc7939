"""``check_rule``: it passes what is sound, and names the promise that a rule breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpprb_like.testing import check_rule
from cpprb_like.views import Among, AtMost, NStep, Rule


class ByReward(Rule):
    """The simplest rule."""

    def follows(self, fields: Any) -> Any:
        del fields
        return ["rew"]

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return np.maximum(rows["rew"], 0)


class Mean(ByReward):
    """Looks at other rows."""

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["rew"] > rows["rew"].mean()


class Negative(ByReward):
    """Gives masses below 0."""

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["rew"]


class Unsaid(ByReward):
    """Reads a field that it does not follow."""

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["obs"][:, 0] > 0


class Newer(ByReward):
    """Holds a state, and has the masses of rows grow with the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def open(self, rows: Any) -> Any:
        del rows
        return type(self)()

    def masses(self, rows: Any, slots: Any) -> Any:
        self.calls += 1
        return np.full(len(slots), 2.0**self.calls)

    def moved(self) -> None:
        """No row."""


class Remembering(Newer):
    """Does not see that a row was updated."""

    def __init__(self) -> None:
        self.known: dict[int, float] = {}

    def masses(self, rows: Any, slots: Any) -> Any:
        pairs = zip(slots.tolist(), np.abs(rows["rew"]).tolist(), strict=True)
        return [self.known.setdefault(slot, value) for slot, value in pairs]


class Alone(Newer):
    """Loses what it was told of when it is copied."""

    def open(self, rows: Any) -> Any:
        del rows
        return self

    def __getstate__(self) -> Any:
        return {"calls": 7}

    def masses(self, rows: Any, slots: Any) -> Any:
        del rows
        return np.full(len(slots), float(self.calls == 0))

    def state(self) -> Any:
        return 0


class BySlot(Newer):
    """Counts draws by slot, so that a new row inherits them."""

    def __init__(self) -> None:
        self.counts, self.used = np.zeros(100, int), np.empty(0, np.intp)

    def masses(self, rows: Any, slots: Any) -> Any:
        del rows
        return self.counts[slots] < 2

    def drawn(self, slots: Any) -> None:
        self.counts[slots] += 1
        self.used = np.append(self.used, slots)

    def moved(self) -> Any:
        slots, self.used = self.used, self.used[:0]
        return slots, self.counts[slots] < 2

    def state(self) -> Any:
        return self.counts.copy()

    def restore(self, state: Any) -> None:
        self.counts = state.copy()


class Forgetful(BySlot):
    """Counts draws, but not in saves."""

    def state(self) -> None:
        """Nothing."""


class Silent(BySlot):
    """Counts draws, but does not say which masses they change."""

    moved = Rule.moved


class Taking(BySlot):
    """Counts a row that is given back as drawn once more."""

    def given_back(self, slots: Any) -> None:
        self.drawn(np.append(slots, slots))


@pytest.mark.parametrize(
    "make", [ByReward, lambda: Among(lambda rows: rows["rew"] > 0, "rew"), lambda: AtMost(2)]
)
def test_sound_rules_pass(make: Any) -> None:
    """Those of the package, with and without counts, and the simplest one."""
    check_rule(make)


@pytest.mark.parametrize(
    ("make", "promise"),
    [
        (Mean, "follows from its values"),
        (Negative, "finite numbers of at least 0; it raised"),
        (Unsaid, "masses works.*KeyError: 'obs'"),
        (Newer, "those of a view that is made now"),
        (Remembering, "those of a view that is made now"),
        (Alone, "a copy of a view, or a pickled one, has the same masses"),
        (BySlot, "a new row has not been drawn, whatever row its slot had before"),
        (Forgetful, "a copy of a view, or a pickled one, knows what was drawn"),
        (Taking, "given_back has rows drawn again as before"),
        (Silent, "moved tells each mass that a draw changed"),
    ],
)
def test_a_broken_promise_is_named(make: Any, promise: str) -> None:
    """With the rule and the buffer."""
    with pytest.raises(AssertionError, match=rf"^{make.__name__}\(.*, \d+ rows.*{promise}"):
        check_rule(make)


def test_what_is_no_rule_is_refused() -> None:
    """By its type."""
    with pytest.raises(TypeError, match="expected a callable, got 3"):
        check_rule(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a callable that makes a Rule, got NStep"):
        check_rule(lambda: NStep(3))  # type: ignore[arg-type,return-value]
