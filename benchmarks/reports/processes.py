"""The tables of docs/processes.md: replays that processes share, beside others and a buffer."""

from __future__ import annotations

from typing import Any

from .wording import digits, grid, quantity

__all__ = ["processes_tables"]

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


def processes_tables(results: dict[str, Any]) -> str:
    """What ``processes.py`` found, and on what."""
    parts = []
    for case, name in CASES.items():
        parts += [
            (
                f"Steps that each of 1, 2 or 4 actors adds a second, *{name}*, alone and beside a "
                f"learner that draws batches of {BATCHES[case]} as fast as it can:"
            ),
            grid(_rates(results, case)),
        ]
    parts += [
        "From a call of `add` to the moment when a learner can draw the step, median:",
        grid(_latencies(results)),
        (
            "A learner's calls, in times of those of one buffer with as many rows, while nobody "
            "adds; the least of many turns:"
        ),
        grid(_draws(results)),
        "Against the targets:",
        "\n".join(_targets(results)),
        _people(results),
    ]
    return "\n\n".join(parts)


def _find(results: dict[str, Any], package: str, case: str, what: str, actors: int) -> Any:
    """One measurement; an empty one if there is none."""
    wanted = {"package": package, "case": case, "what": what, "actors": actors}
    for one in results["cases"]:
        if wanted.items() <= one.items():
            return one
    return {}


def _number(one: dict[str, Any], key: str) -> str:
    return digits(one[key]) if key in one else NONE


def _rates(results: dict[str, Any], case: str) -> list[list[str]]:
    head = [
        "",
        *(f"{n} alone" for n in ACTORS),
        *(f"{n} beside" for n in ACTORS),
        *(f"batches beside {n}" for n in ACTORS),
    ]
    rows = [head]
    for package, name in NAMES.items():
        alone = [_find(results, package, case, "adds", n) for n in ACTORS]
        beside = [_find(results, package, case, "beside", n) for n in ACTORS]
        if not any([*alone, *beside]):
            continue
        rows.append(
            [
                name,
                *(_number(one, "adds") for one in alone),
                *(_number(one, "adds") for one in beside),
                *(_number(one, "batches") for one in beside),
            ]
        )
    return rows


def _latencies(results: dict[str, Any]) -> list[list[str]]:
    rows = [["", *CASES.values()]]
    for package in (OURS, CPPRB, REVERB):
        found = [_find(results, package, case, "latency", 1) for case in CASES]
        if not any(found):
            continue
        rows.append(
            [
                NAMES[package],
                *(quantity(one["latency"], "s") if "latency" in one else NONE for one in found),
            ]
        )
    return rows


def _draws(results: dict[str, Any]) -> list[list[str]]:
    shards = [f"{n} shard{'s' if n > 1 else ''}" for n in SHARDS]
    rows = [["", "rows", "a buffer", *shards]]
    for case, name in CASES.items():
        found = _find(results, OURS, case, "draws", 0)
        for sampler, what in (
            ("uniform", "sample"),
            ("prioritized", "sample"),
            ("prioritized", "update"),
        ):
            for n in DRAWN:
                key = f"{sampler} {{}} {what} {n}"
                if key.format(0) not in found:
                    continue
                buffer = found[key.format(0)]
                called = "update_priorities" if what == "update" else f"{sampler} `sample`"
                rows.append(
                    [
                        f"{name}: {called.replace('update_priorities', '`update_priorities`')}",
                        str(n),
                        quantity(buffer, "s"),
                        *(f"{found[key.format(k)] / buffer:.2f}" for k in SHARDS),
                    ]
                )
    return rows


def _targets(results: dict[str, Any]) -> list[str]:
    """What was aimed at, and what was found: the worst of 1, 2 and 4 actors, or shards."""

    def least(package: str, case: str, of: str = OURS) -> float:
        pairs = [
            (_find(results, of, case, "adds", n), _find(results, package, case, "adds", n))
            for n in ACTORS
        ]
        return min(
            (a["adds"] / b["adds"] for a, b in pairs if "adds" in a and "adds" in b), default=0
        )

    lines = []
    for case, name in CASES.items():
        slower = 1 / max(least(ALONE, case), 1e-9)
        lines.append(_target(f"`add` of {name}, in times of one process's", slower, 1.5, most=True))
        for peer in (CPPRB, REVERB):
            faster = least(peer, case)
            if faster:
                lines.append(_target(f"`add` of {name}, times as fast as {peer}'s", faster, 50))
    found = _find(results, OURS, "small", "draws", 0)
    for sampler in ("uniform", "prioritized"):
        key = f"{sampler} {{}} sample 256"
        if key.format(0) in found:
            slower = max(found[key.format(n)] for n in SHARDS) / found[key.format(0)]
            what = f"{sampler} `sample(256)` of small steps, in times of a buffer's"
            lines.append(_target(what, slower, 1.3, most=True))
    two = [_find(results, package, "images", "adds", 2) for package in (OURS, COPY)]
    if all("adds" in one for one in two):
        share = two[0]["adds"] / two[1]["adds"]
        lines.append(
            _target("images of two actors, in times of what copying alone does", share, 0.8)
        )
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
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['system']}"
    failed = [
        f"{NAMES[package]} was not measured." for package in (CPPRB, REVERB) if package not in about
    ]
    for one in results["cases"]:
        if "error" in one:
            which = f"{one['what']} of {CASES[one['case']]} with {one['actors']} actors"
            failed.append(f"{NAMES[one['package']]}, {which}: {one['error']}.")
    return " ".join([f"Measured on {where}, {machine['date']}; {versions}.", *failed])
