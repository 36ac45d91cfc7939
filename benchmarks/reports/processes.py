"""The tables of docs/processes.md: replays that processes share, beside others and a buffer."""

from __future__ import annotations

from itertools import product
from typing import Any

from .wording import digits, grid, quantity, where

OURS, ALONE, COPY, CPPRB, REVERB = "cpprb_like", "one process", "copy", "cpprb", "reverb"
NAMES = {
    OURS: "`SharedReplay`",
    ALONE: "`ReplayBuffer`, one in each process",
    COPY: "NumPy's copy, in each process",
    CPPRB: "cpprb's `MPReplayBuffer`",
    REVERB: "Reverb",
}
CASES = {"small": "small steps", "images": "28 kB images"}
BATCHES = {"small": 256, "images": 32}
ACTORS = (1, 2, 4)
SHARDS = (1, 2, 4)
DRAWN = (32, 256, 1024)
NONE = "-"


Found = dict[tuple[str, str, str, int], dict[str, Any]]  # by package, case, what and actors


def processes_tables(results: dict[str, Any]) -> str:
    """The results of ``processes.py``, and the machine."""
    found = {
        (one["package"], one["case"], one["what"], one["actors"]): one for one in results["cases"]
    }
    parts = []
    for case, name in CASES.items():
        parts += [
            (
                f"Steps that each of 1, 2 or 4 actors adds a second, *{name}*, alone and beside a "
                f"learner that draws batches of {BATCHES[case]} as fast as it can:"
            ),
            grid(_rates(found, case)),
        ]
    parts += [
        "From a call of `add` to the moment when a learner can draw the step, median:",
        grid(_latencies(found)),
        (
            "A learner's calls, in times of those of one buffer with as many rows, while nobody "
            "adds; the least of many turns:"
        ),
        grid(_draws(found)),
        "Against the targets:",
        "\n".join(_targets(found)),
        _people(results),
    ]
    return "\n\n".join(parts)


def _rates(found: Found, case: str) -> list[list[str]]:
    columns = {"{} alone": ("adds",) * 2, "{} beside": ("beside", "adds")}
    columns["batches beside {}"] = ("beside", "batches")
    rows = [["", *(name.format(n) for name in columns for n in ACTORS)]]
    for package, name in NAMES.items():
        ones = [
            (found.get((package, case, what, n), {}), key)
            for what, key in columns.values()
            for n in ACTORS
        ]
        if any(one for one, _ in ones):
            rows.append([name, *(digits(one[key]) if key in one else NONE for one, key in ones)])
    return rows


def _latencies(found: Found) -> list[list[str]]:
    rows = [["", *CASES.values()]]
    for package in (OURS, CPPRB, REVERB):
        ones = [found.get((package, case, "latency", 1), {}) for case in CASES]
        if any(ones):
            cells = (quantity(one["latency"], "s") if "latency" in one else NONE for one in ones)
            rows.append([NAMES[package], *cells])
    return rows


def _draws(found: Found) -> list[list[str]]:
    shards = [f"{n} shard{'s' if n > 1 else ''}" for n in SHARDS]
    rows = [["", "rows", "a buffer", *shards]]
    calls = {
        "uniform {} sample": "uniform `sample`",
        "prioritized {} sample": "prioritized `sample`",
        "prioritized {} update": "`update_priorities`",
    }
    for (case, name), (call, called) in product(CASES.items(), calls.items()):
        ones = found.get((OURS, case, "draws", 0), {})
        for n in DRAWN:
            buffer, *drawn = (ones.get(f"{call.format(k)} {n}") for k in (0, *SHARDS))
            if buffer is not None:
                times = (f"{one / buffer:.2f}" for one in drawn)
                rows.append([f"{name}: {called}", str(n), quantity(buffer, "s"), *times])
    return rows


def _targets(found: Found) -> list[str]:
    """The targets and the results: the worst of 1, 2 and 4 actors, or shards."""

    def least(package: str, case: str) -> float:
        """How many times what another adds ours adds."""
        pairs = (
            (found.get((OURS, case, "adds", n), {}), found.get((package, case, "adds", n), {}))
            for n in ACTORS
        )
        return min(
            (a["adds"] / b["adds"] for a, b in pairs if "adds" in a and "adds" in b), default=0
        )

    lines = []
    for case, name in CASES.items():
        slower = 1 / max(least(ALONE, case), 1e-9)
        lines.append(
            _target(
                f"`add` of {name}, time relative to a `ReplayBuffer` in each process",
                slower,
                1.5,
                most=True,
            )
        )
        lines += [
            _target(f"`add` of {name}, speed relative to {peer}", faster, 50)
            for peer in (CPPRB, REVERB)
            if (faster := least(peer, case))
        ]
    drawn = found.get((OURS, "small", "draws", 0), {})
    for sampler in ("uniform", "prioritized"):
        key = f"{sampler} {{}} sample 256"
        if key.format(0) in drawn:
            slower = max(drawn[key.format(n)] for n in SHARDS) / drawn[key.format(0)]
            what = f"{sampler} `sample(256)` of small steps, in times of a buffer's"
            lines.append(_target(what, slower, 1.3, most=True))
    ours, copied = (found.get((package, "images", "adds", 2), {}) for package in (OURS, COPY))
    if "adds" in ours and "adds" in copied:
        what = "images of two actors, throughput relative to a plain copy"
        lines.append(_target(what, ours["adds"] / copied["adds"], 0.8))
    return lines


def _target(what: str, found: float, limit: float, *, most: bool = False) -> str:
    is_met = found <= limit if most else found >= limit
    bound = f"at {'most' if most else 'least'} {limit:g}"
    return f"- {what}: {digits(found)}, wanted {bound}: {'met' if is_met else '**missed**'}."


def _people(results: dict[str, Any]) -> str:
    machine, about = results["machine"], results["about"]
    versions = "; ".join(
        f"{NAMES[package]} with {one['release']}, CPython {one['python']}"
        for package, one in about.items()
        if package in (OURS, CPPRB, REVERB) and "release" in one
    )
    failed = [
        f"{NAMES[package]} was not measured." for package in (CPPRB, REVERB) if package not in about
    ]
    for one in results["cases"]:
        if "error" in one:
            which = f"{one['what']} of {CASES[one['case']]} with {one['actors']} actors"
            failed.append(f"{NAMES[one['package']]}, {which}: {one['error']}.")
    return " ".join([f"Measured on {where(machine)}, {machine['date']}; {versions}.", *failed])
