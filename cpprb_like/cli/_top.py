"""The look of ``top`` at a running replay: counts, rates and members, read without a trace.

Each look attaches to the replay and leaves it again, so the memory of a job that has ended is not
held. Of a buffer in a file only the header is read.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from cpprb_like._files.peek import counts_of
from cpprb_like.processes import SharedReplay

RATES = "adds", "episodes", "draws", "samples", "updates"
Look = dict[str, Any]


def look(name: str) -> Look:
    """What a shared replay of this name, or a buffer in files of this prefix, is like now."""
    path = Path(name)
    file = path if path.suffix == ".dat" else path.with_name(f"{path.name}.dat")
    found: Look
    if file.is_file():
        found = {"kind": "mapped buffer", "stats": counts_of(file), "members": []}
    else:
        replay = SharedReplay.attach(name)
        try:
            members = [asdict(member) for member in replay.members()]
            found = {"kind": "shared replay", "stats": replay.stats(), "members": members}
        finally:
            replay.close()
    return {"name": name, "time": time.time(), **found}


def rates(before: Look | None, now: Look) -> dict[str, float]:
    """Changes of counts a second between two looks."""
    if before is None or now["time"] <= before["time"]:
        return {}
    seconds = now["time"] - before["time"]
    return {
        f"{key}_per_second": (now["stats"][key] - before["stats"][key]) / seconds
        for key in RATES
        if key in now["stats"] and key in before["stats"]
    }


def shown(now: Look) -> Group:
    """Tables of a look, with its ``rates``."""
    title = f"{now['kind']} {now['name']}, {time.strftime('%X', time.localtime(now['time']))}"
    counts = Table("", "", title=title, title_justify="left", show_header=False)
    for key, value in {**now["stats"], **now.get("rates", {})}.items():
        counts.add_row(key.replace("_", " "), _number(value))
    parts: list[Table] = [counts]
    if now["members"]:
        members = Table("member", "process", "state", "rows", "last row", "updates", "late")
        for one in now["members"]:
            members.add_row(
                f"{one['kind']} {one['number']}",
                str(one["pid"]),
                "alive" if one["alive"] else "ended",
                _number(one["rows"]) if one["kind"] == "actor" else "",
                "" if one["age"] is None else f"{one['age']:.1f} s ago",
                _number(one["updates"]) if one["kind"] == "learner" else "",
                _number(one["late_updates"]) if one["kind"] == "learner" else "",
            )
        parts.append(members)
    return Group(*parts)


def _number(value: float) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.3g}"
        if value < 1
        else f"{value:,.1f}"
    )
