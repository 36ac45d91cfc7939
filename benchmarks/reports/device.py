"""The tables of docs/benchmarks-device.md: calls on the CPU beside peers, and bytes of a row."""

from __future__ import annotations

from typing import Any

from .wording import grid, quantity, where

OURS = "cpprb_like"


def device_tables(results: dict[str, Any]) -> str:
    """What ``device.py`` found, and on what."""
    names = [*results["cases"][0]["seconds"]]
    calls = [["call", "environments", *names, "ours / best other"]]
    for case in results["cases"]:
        seconds = case["seconds"]
        least = min(one for name, one in seconds.items() if not name.startswith(OURS))
        calls.append(
            [
                f"`{case['call']}` of {case['rows']:,}",
                f"{case['envs']:,}",
                *(quantity(seconds[name], "s") for name in names),
                f"{seconds[OURS] / least:.2f}",
            ]
        )
    nbytes = [["fields of", "FastTD3", "ours", "share", "ours, for long episodes", "share"]]
    for found in results["nbytes"]:
        ours = [
            [f"{found[name]:,.1f}", f"{found[name] / found['fast_td3']:.3f}"]
            for name in ("ours", "ours_long")
        ]
        nbytes.append([found["task"], f"{found['fast_td3']:,}", *ours[0], *ours[1]])
    packages = ", ".join(f"{name} {release}" for name, release in results["packages"].items())
    machine = results["machine"]
    load = "" if machine["load"] is None else f", load {machine['load'][0]:.1f}"
    about = (
        f"{results['rows']:,} rows, medians of turns in one process with one thread. Measured on "
        f"{where(machine)}{load}; {packages}; {machine['date']}."
    )
    return "\n\n".join([grid(calls), about, grid(nbytes)])
