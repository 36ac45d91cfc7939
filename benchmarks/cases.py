"""Every case: what is done, how often, with how many rows, and what is promised of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from budgets import PLAIN, Ahead, AtMost, Budget, Limit
from data import KINDS

__all__ = ["EFFORTS", "Case", "Effort", "cases"]

MICRO = 1e-6
FIXED_COST = 3.0 * MICRO  # that a call of sample may take besides its rows
STACKED_NBYTES = 7300  # that a step of a stacked pair may take; its frame takes 7056
HUNDRED_MILLION = 100_000_000
LARGE = 5e8  # bytes, of which not all contenders' memory has room at once


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    turn_seconds: float
    case_seconds: float  # no further round after so long
    rows: int  # of the buffers of small steps
    wide_rows: int
    image_rows: int
    leaves: int  # of the trees of weights, and rows of the buffers that have one
    saved_nbytes: int  # of the buffers of images that are saved
    growth: tuple[int, ...]
    batches: tuple[int, ...]
    learner_rows: int  # of pairs of stacked images, that a learner waits for
    learner_steps: int  # with batches of 32
    whole: bool = True  # False: no imports, and no memory of images

    def rows_of(self, kind: str) -> int:
        """Rows of a buffer of such steps."""
        return {"small": self.rows, "wide": self.wide_rows, "images": self.image_rows}[kind]


EFFORTS = {
    "full": Effort(
        rounds=41,
        turn_seconds=0.005,
        case_seconds=15.0,
        rows=1_000_000,
        wide_rows=100_000,
        image_rows=10_000,
        leaves=1 << 20,
        saved_nbytes=2_000_000_000,
        growth=(10_000, 100_000, 1_000_000, 10_000_000, HUNDRED_MILLION),
        batches=(32, 256, 1024, 16384),
        learner_rows=4_000,
        learner_steps=60,
    ),
    "quick": Effort(
        rounds=9,
        turn_seconds=0.002,
        case_seconds=2.0,
        rows=1_000_000,
        wide_rows=100_000,
        image_rows=5_000,
        leaves=1 << 20,
        saved_nbytes=2_000_000_000,
        growth=(10_000, 1_000_000),
        batches=(32, 256),
        learner_rows=2_000,
        learner_steps=20,
        whole=False,
    ),
    # To see that everything runs: the numbers say nothing.
    "smoke": Effort(
        rounds=3,
        turn_seconds=0.0002,
        case_seconds=0.5,
        rows=10_000,
        wide_rows=1_000,
        image_rows=200,
        leaves=1 << 13,
        saved_nbytes=5_000_000,
        growth=(10_000,),
        batches=(32, 256),
        learner_rows=200,
        learner_steps=4,
    ),
}


@dataclass(frozen=True)
class Case:
    """One line of the table: an operation that contenders do, with its parameters."""

    group: str
    name: str
    operation: str
    parameters: dict[str, Any] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    unit: str = "s"  # of the numbers; seconds are printed in what suits them
    alone: bool = False  # fresh processes, ours and one peer at a time: memory counts


def cases(effort: Effort) -> Iterator[Case]:
    """All cases, those that share a buffer one behind the other."""
    for group in (_small, _wide, _images, _growth, _prioritized, _trees, _readings, _rest, _memory):
        yield from group(effort)


def _small(effort: Effort) -> Iterator[Case]:
    kind = {"kind": "small", "rows": effort.rows}
    group = "Adding"
    yield Case(group, "add 1 small step", "add_one", kind, (AtMost(2), Ahead(20)))
    yield Case(group, "add 1 small step, NumPy scalars", "add_one_numpy", kind, (AtMost(2),))
    yield Case(group, "add 1 small step, float64 to convert", "add_one_double", kind)
    yield Case(group, "add 64 small steps", "add_many", kind | {"n": 64}, (AtMost(2), Ahead()))
    yield Case(
        group, "add 1024 small steps", "add_many", kind | {"n": 1024}, (AtMost(1.5), Ahead())
    )
    yield Case(
        group, "add from 16 environments", "add_envs", kind | {"envs": 16, "n": 16}, (Ahead(),)
    )
    # Beside a method with these arguments and no body, which takes about 50 ns: 1 us, and 2 us.
    for name, n_envs, mode, times in (
        ("record 1 step of CartPole", 0, "DISABLED", 20),
        ("record a step of 16 CartPoles", 16, "NEXT_STEP", 40),
        ("record a step of 16 CartPoles, SAME_STEP", 16, "SAME_STEP", 40),
        ("record a step of 16 CartPoles, DISABLED", 16, "DISABLED", 40),
    ):
        steps = {"rows": effort.rows, "envs": n_envs, "mode": mode}
        yield Case(group, name, "record", steps, (AtMost(times), Ahead()))
    group = "Sampling"
    yield Case(group, "sample 0: the cost of the call", "sample_none", kind, (Limit(FIXED_COST),))
    for n in effort.batches:
        budgets: tuple[Budget, ...] = (Ahead(),)
        if n == 256:
            budgets = (AtMost(1.5, plus=FIXED_COST), Ahead(10))
        yield Case(group, f"sample {n} small steps", "sample", kind | {"n": n}, budgets)
    yield Case(
        group, "sample 256 small steps, as tensors", "sample_tensors", kind | {"n": 256}, (Ahead(),)
    )
    yield Case(group, "sample 256 distinct small steps", "sample_distinct", kind | {"n": 256})
    yield Case(group, "sample 256 small steps into a batch", "sample_into", kind | {"n": 256})


def _wide(effort: Effort) -> Iterator[Case]:
    kind = {"kind": "wide", "rows": effort.wide_rows}
    for n in effort.batches:
        yield Case("Sampling", f"sample {n} wide steps", "sample", kind | {"n": n}, (Ahead(),))


def _images(effort: Effort) -> Iterator[Case]:
    kind = {"kind": "images", "rows": effort.image_rows}
    yield Case("Adding", "add 1 pair of images", "add_one", kind, (Ahead(),))
    for n in effort.batches:
        yield Case(
            "Sampling",
            f"sample {n} pairs of images",
            "sample",
            kind | {"n": n},
            (AtMost(1.15), Ahead()) if n == 32 else (Ahead(),),
            alone=n * KINDS["images"].nbytes > LARGE,
        )
    yield Case(
        "Sampling",
        "sample 32 pairs of images, torch loaded",
        "sample_torch_loaded",
        kind | {"n": 32},
        (AtMost(1.15),),
    )


def _growth(effort: Effort) -> Iterator[Case]:
    for rows in effort.growth:
        yield Case(
            "Growth",
            f"sample 256 of {rows:.0e} small steps",
            "sample",
            {"kind": "small", "rows": rows, "n": 256},
            (AtMost(1.5, plus=FIXED_COST), Ahead()),
            alone=rows * KINDS["small"].nbytes > LARGE,
        )


def _prioritized(effort: Effort) -> Iterator[Case]:
    rows = {"rows": effort.leaves}
    group = "Priorities"
    yield Case(
        group, "prioritized: add 1 step", "prioritized_add", rows, (AtMost(1.2, PLAIN), Ahead(20))
    )
    yield Case(group, "prioritized: add 1 step with its priority", "prioritized_add_given", rows)
    yield Case(group, "prioritized: sample 256", "prioritized_draw", rows, (Ahead(),))
    yield Case(group, "prioritized: new priorities of 256", "prioritized_update", rows, (Ahead(),))
    yield Case(
        group,
        "prioritized: sample 256, new priorities",
        "prioritized_cycle",
        rows,
        (AtMost(2), Ahead(6), Ahead(8, "cpprb")),
    )


def _trees(effort: Effort) -> Iterator[Case]:
    for n in (32, 256, 1024):
        tree = {"leaves": effort.leaves, "n": n}
        budgets = (Ahead(), Ahead(2.5, "tianshou"), Ahead(2.5, "torchrl"))
        yield Case("Trees", f"tree: find {n} leaves", "tree_find", tree, budgets)
        yield Case("Trees", f"tree: set {n} leaves", "tree_set", tree, budgets)
        yield Case("Trees", f"tree: set {n} leaves, sums and least", "tree_set_both", tree, budgets)


def _readings(effort: Effort) -> Iterator[Case]:
    rows = {"rows": effort.rows}
    group = "n-step"
    yield Case(group, "3-step: add 1 step", "nstep_add", rows, (Ahead(),))
    yield Case(group, "3-step: sample 256", "nstep_sample", rows, (AtMost(2, PLAIN), Ahead()))
    group = "Sequences"
    steps = {"rows": effort.rows, "n": 64, "length": 80}
    yield Case(group, "sequences of steps, 64 x 80", "sequences", steps, (AtMost(1.5), Ahead()))
    yield Case(
        group,
        "sequences of steps, 64 x 80, across episodes",
        "sequences_across",
        steps,
        (AtMost(1.5),),
    )
    frames = {"rows": 4 * effort.image_rows, "n": 16, "length": 20}
    yield Case(
        group, "sequences of frames, 16 x 20", "frame_sequences", frames, (AtMost(1.5), Ahead())
    )
    for order, frames_first in (("last", False), ("first", True)):
        stacks = {"rows": effort.image_rows, "frames_first": frames_first}
        group = "Stacked frames"
        yield Case(
            group, f"stacked pairs, frames {order}: add 1", "stacked_add", stacks, (Ahead(),)
        )
        yield Case(
            group,
            f"stacked pairs, frames {order}: sample 32",
            "stacked_sample",
            stacks | {"n": 32},
            (AtMost(1.15), Ahead()),
        )
        yield Case(
            group,
            f"stacked pairs, frames {order}: memory of a step",
            "stacked_nbytes",
            stacks,
            (Limit(STACKED_NBYTES),),
            unit="B",
        )
    yield Case(
        group,
        "stacked pairs, frames last, C-contiguous: sample 32",
        "stacked_sample_contiguous",
        {"rows": effort.image_rows, "frames_first": False, "n": 32},
        (Ahead(),),
    )


def _rest(effort: Effort) -> Iterator[Case]:
    rows = {"rows": effort.rows}
    group = "Training loop"
    yield Case(group, "DQN on CartPole: an environment step", "loop_step", {}, (Ahead(),))
    yield Case(group, "DQN on CartPole: of it in the buffer", "loop_in_buffer", {}, (Ahead(),))
    group = "Files"
    yield Case(group, "save small steps", "save", rows)  # a crash of the machine may cost it
    yield Case(group, "save small steps, to the disk", "save_synchronised", rows)
    yield Case(group, "load small steps", "load", rows, (Ahead(),))
    images = {"nbytes": effort.saved_nbytes}
    size = f"{effort.saved_nbytes / 1e9:g} GB of images"
    yield Case(group, f"save {size}", "save_large", images, (AtMost(2),))
    yield Case(group, f"load {size}", "load_large", images, (AtMost(2),))
    yield Case(
        group, f"save {size} again, 1 % new", "save_again", images, (Ahead(20, "first save"),)
    )
    if effort.whole:
        yield Case(group, "import", "import_time", {}, (Ahead(),))
        yield Case(group, "import, and a first batch", "first_batch_time", {}, (Ahead(),))


def _memory(effort: Effort) -> Iterator[Case]:
    group = "Memory"
    kinds = {"small": "small step"} | ({"images": "pair of images"} if effort.whole else {})
    for kind, what in kinds.items():
        declared = KINDS[kind].nbytes
        yield Case(
            group,
            f"memory of a {what}, as its repr says",
            "memory_said",
            {"kind": kind, "rows": effort.rows_of(kind)},
            (Limit(1.05 * (declared + 16)),),
            unit="B",
        )
        yield Case(
            group,
            f"memory of a {what}",
            "memory",
            {"kind": kind, "rows": effort.rows_of(kind)},
            unit="B",
            alone=True,
        )
        yield Case(
            group,
            f"memory of a {what}, the most compact way",
            "memory_compact",
            {"kind": kind, "rows": effort.rows_of(kind)},
            unit="B",
            alone=True,
        )
