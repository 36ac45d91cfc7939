"""Every case: what is done, how often, with how many rows, and what is promised of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from budgets import CALL, HAND, PLAIN, Above, Ahead, AtMost, Budget, Limit
from data import KINDS
from items import AGENTS, GRAPHS, REASONING

STACKED_NBYTES = 7300  # that a step of a stacked pair may take; its frame takes 7056
HUNDRED_MILLION = 100_000_000
ANY_LENGTH = "Values of any length"  # a group, in which contenders are that are in no other
LARGE = 5e8  # bytes, of which not all contenders' memory has room at once


@dataclass(frozen=True)
class Effort:
    """How much is measured; by default all of it."""

    rounds: int = 41
    turn_seconds: float = 0.005
    case_seconds: float = 15.0  # no further round after so long
    rows: int = 1_000_000  # of the buffers of small steps
    wide_rows: int = 100_000
    image_rows: int = 10_000
    leaves: int = 1 << 20  # of the trees of weights, and rows of the buffers that have one
    graphs: int = 130_831  # of the buffers of graphs, as many as QM9 has: 200 MB
    answers: int = 8_192  # of the buffers of reasoning: 1,024 prompts with 8 answers each, 150 MB
    agents: int = 256  # of the buffers of tokens of agents: 120 MB
    saved_nbytes: int = 2_000_000_000  # of the buffers of images that are saved
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000, HUNDRED_MILLION)
    batches: tuple[int, ...] = (32, 256, 1024, 16384)
    learner_rows: int = 4_000  # of pairs of stacked images; a learner waits for batches up to 256
    learner_steps: int = 60  # with batches of 32
    whole: bool = True  # False: no imports, and no memory of images


EFFORTS = {
    "full": Effort(),
    "quick": Effort(
        rounds=9,
        turn_seconds=0.002,
        case_seconds=2.0,
        image_rows=5_000,
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
        graphs=1_000,
        answers=100,
        agents=10,
        saved_nbytes=5_000_000,
        growth=(10_000,),
        batches=(32, 256),
        learner_rows=300,
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
    steps = _small, _wide, _images, _growth, _prioritized, _trees, _readings
    for group in (*steps, _items, _rest, _memory):
        yield from group(effort)


def _case(
    group: str,
    name: str,
    operation: str,
    /,
    *budgets: Budget,
    unit: str = "s",
    alone: bool = False,
    **parameters: Any,
) -> Case:
    return Case(group, name, operation, parameters, budgets, unit, alone)


def _small(effort: Effort) -> Iterator[Case]:
    small: dict[str, Any] = {"kind": "small", "rows": effort.rows}
    add, sample = partial(_case, "Adding"), partial(_case, "Sampling")
    yield add("add 1 small step", "add_one", AtMost(2), Ahead(20), **small)
    yield add("add 1 small step, NumPy scalars", "add_one_numpy", AtMost(2), **small)
    yield add("add 1 small step, float64 to convert", "add_one_double", **small)
    for n, times in ((64, 2), (1024, 1.5)):
        yield add(f"add {n} small steps", "add_many", AtMost(times), Ahead(), **small, n=n)
    yield add("add from 16 environments", "add_envs", Ahead(), **small, envs=16, n=16)
    # Beside a method with these arguments and no body, which takes about 50 ns: 1 us, and 2 us.
    for name, envs, mode, times in (
        ("record 1 step of CartPole", 0, "DISABLED", 20),
        ("record a step of 16 CartPoles", 16, "NEXT_STEP", 40),
        ("record a step of 16 CartPoles, SAME_STEP", 16, "SAME_STEP", 40),
        ("record a step of 16 CartPoles, DISABLED", 16, "DISABLED", 40),
    ):
        yield add(name, "record", AtMost(times), Ahead(), rows=effort.rows, envs=envs, mode=mode)
    yield sample("sample 0: the cost of the call", "sample_none", AtMost(1, HAND), **small)
    for n in effort.batches:
        budgets = (AtMost(1.5, plus=CALL), Ahead(8)) if n == 256 else (Ahead(),)
        yield sample(f"sample {n} small steps", "sample", *budgets, **small, n=n)
    small["n"] = 256
    yield sample("sample 256 small steps, as tensors", "sample_tensors", Ahead(), **small)
    yield sample("sample 256 distinct small steps", "sample_distinct", **small)
    yield sample("sample 256 small steps into a batch", "sample_into", **small)


def _wide(effort: Effort) -> Iterator[Case]:
    wide: dict[str, Any] = {"kind": "wide", "rows": effort.wide_rows}
    for n in effort.batches:
        yield _case("Sampling", f"sample {n} wide steps", "sample", Ahead(), **wide, n=n)


def _images(effort: Effort) -> Iterator[Case]:
    images: dict[str, Any] = {"kind": "images", "rows": effort.image_rows}
    yield _case("Adding", "add 1 pair of images", "add_one", Ahead(), **images)
    sample = partial(_case, "Sampling")
    for n in effort.batches:
        budgets = (AtMost(1.15), Ahead()) if n == 32 else (Ahead(),)
        alone = n * KINDS["images"].nbytes > LARGE
        what = f"sample {n} pairs of images"
        yield sample(what, "sample", *budgets, **images, n=n, alone=alone)
    what = "sample 32 pairs of images, torch loaded"
    yield sample(what, "sample_torch_loaded", AtMost(1.15), **images, n=32)


def _growth(effort: Effort) -> Iterator[Case]:
    for rows in effort.growth:
        yield _case(
            *("Growth", f"sample 256 of {rows:.0e} small steps", "sample"),
            *(AtMost(1.5, plus=CALL), Ahead()),
            alone=rows * KINDS["small"].nbytes > LARGE,
            kind="small",
            rows=rows,
            n=256,
        )


def _prioritized(effort: Effort) -> Iterator[Case]:
    rows = effort.leaves
    for what, operation, *budgets in (
        ("add 1 step", "add", AtMost(1.2, PLAIN), Ahead(20)),
        ("add 1 step with its priority", "add_given"),
        ("sample 256", "draw", Ahead()),
        ("new priorities of 256", "update", Ahead()),
        ("sample 256, new priorities", "cycle", AtMost(2), Ahead(5), Ahead(8, "cpprb")),
    ):
        name, operation = f"prioritized: {what}", f"prioritized_{operation}"
        yield _case("Priorities", name, operation, *budgets, rows=rows)


def _trees(effort: Effort) -> Iterator[Case]:
    budgets = (Ahead(), Ahead(2.5, "tianshou"), Ahead(2.5, "torchrl"))
    for n in (32, 256, 1024):
        for what, operation in (
            (f"find {n} leaves", "tree_find"),
            (f"set {n} leaves", "tree_set"),
            (f"set {n} leaves, sums and least", "tree_set_both"),
        ):
            yield _case("Trees", f"tree: {what}", operation, *budgets, leaves=effort.leaves, n=n)


def _readings(effort: Effort) -> Iterator[Case]:
    rows = effort.rows
    yield _case("n-step", "3-step: add 1 step", "nstep_add", Ahead(), rows=rows)
    budgets = AtMost(1.5, plus=CALL), Ahead()
    yield _case("n-step", "3-step: sample 256", "nstep_sample", *budgets, rows=rows)
    sequences, what = partial(_case, "Sequences"), "sequences of steps, 64 x 80"
    steps: dict[str, Any] = {"rows": rows, "n": 64, "length": 80}
    budget = AtMost(1.5, plus=CALL)
    yield sequences(what, "sequences", budget, Ahead(), **steps)
    yield sequences(f"{what}, across episodes", "sequences_across", budget, **steps)
    frames: dict[str, Any] = {"rows": 4 * effort.image_rows, "n": 16, "length": 20}
    what = "sequences of frames, 16 x 20"
    yield sequences(what, "frame_sequences", AtMost(1.5), Ahead(), **frames)
    stacked = partial(_case, "Stacked frames")
    for order, first in (("last", False), ("first", True)):
        stacks: dict[str, Any] = {"rows": effort.image_rows, "frames_first": first}
        what, limit = f"stacked pairs, frames {order}", Limit(STACKED_NBYTES)
        yield stacked(f"{what}: add 1", "stacked_add", Ahead(), **stacks)
        yield stacked(f"{what}: sample 32", "stacked_sample", AtMost(1.15), Ahead(), **stacks, n=32)
        yield stacked(f"{what}: memory of a step", "stacked_nbytes", limit, **stacks, unit="B")
    what, stacks["frames_first"] = "stacked pairs, frames last, C-contiguous: sample 32", False
    yield stacked(what, "stacked_sample_contiguous", Ahead(), **stacks, n=32)


def _items(effort: Effort) -> Iterator[Case]:
    case = partial(_case, ANY_LENGTH)
    graphs: dict[str, Any] = {"kind": GRAPHS, "rows": effort.graphs}
    answers: dict[str, Any] = {"kind": REASONING, "rows": effort.answers}
    agents: dict[str, Any] = {"kind": AGENTS, "rows": effort.agents}
    yield case("add 1 graph", "item_add_graph", Above(1e-6), Ahead(10), **graphs)
    for of, n, what, *budgets in (
        # The same work in C is 8 times ahead of Arrow's.
        (graphs, 256, "graphs", Ahead(4), Ahead(10, "torchrl"), Ahead(10, "torch-geometric")),
        (answers, 64, "answers of up to 8,192 tokens", Ahead()),
        (agents, 8, "runs of agents, 57,000 tokens each", Ahead()),
    ):
        for layout in ("packed", "padded"):
            name = f"sample {n} {what}, {layout}"
            yield case(name, f"item_{layout}", AtMost(1.5), *budgets, **of, n=n)
        if of is answers:
            # A call of Python, and rows that leave for this one, cost 1 us beside 4 us of memcpy.
            add = "add 1 answer of 4,096 tokens"
            yield case(add, "item_add_answer", AtMost(1.3), Ahead(), **answers, length=4096)
    what = "memory of a graph above its values"
    yield case(what, "item_memory", Limit(24), **graphs, unit="B", alone=True)


def _rest(effort: Effort) -> Iterator[Case]:
    loop, files = partial(_case, "Training loop"), partial(_case, "Files")
    yield loop("DQN on CartPole: an environment step", "loop_step", Ahead())
    yield loop("DQN on CartPole: of it in the buffer", "loop_in_buffer", Ahead())
    yield files("save small steps", "save", rows=effort.rows)  # a crash of the machine may cost it
    yield files("save small steps, to the disk", "save_synchronised", rows=effort.rows)
    # A load checks the sum of the bytes and the flags of each row, and 45 bytes go into records
    # of 64. A file of another library is read without a look at a checksum.
    yield files("load small steps", "load", AtMost(5), rows=effort.rows)
    nbytes, size = effort.saved_nbytes, f"{effort.saved_nbytes / 1e9:g} GB of images"
    yield files(f"save {size}", "save_large", AtMost(2), nbytes=nbytes)
    yield files(f"load {size}", "load_large", AtMost(2), nbytes=nbytes)
    first = Ahead(20, "first save")
    yield files(f"save {size} again, 1 % new", "save_again", first, nbytes=nbytes)
    if effort.whole:
        yield files("import", "import_time", Ahead())
        yield files("import, and a first batch", "first_batch_time", Ahead())


def _memory(effort: Effort) -> Iterator[Case]:
    memory = partial(_case, "Memory", unit="B")
    kinds = {"small": "small step"} | ({"images": "pair of images"} if effort.whole else {})
    for kind, what in kinds.items():
        rows = effort.rows if kind == "small" else effort.image_rows
        of: dict[str, Any] = {"kind": kind, "rows": rows}
        limit, name = Limit(1.05 * (KINDS[kind].nbytes + 16)), f"memory of a {what}"
        yield memory(f"{name}, as its repr says", "memory_said", limit, **of)
        yield memory(name, "memory", **of, alone=True)
        yield memory(f"{name}, the most compact way", "memory_compact", **of, alone=True)
