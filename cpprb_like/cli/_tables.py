"""Reports of ``inspect`` and ``verify`` as text: aligned tables, numbers with their units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cpprb_like.checkpoint import Verdict

__all__ = ["amount", "report", "table", "verdicts"]

Pairs = list[tuple[str, str]]


def amount(nbytes: int) -> str:
    """A number of bytes: ``"1.5 GiB"``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"


def plural(n: int, what: str) -> str:
    """``"1 row"``, ``"2,000 rows"``."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines of columns; those in ``right`` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ends = set(right)
    return [
        "  ".join(
            text.rjust(width) if number in ends else text.ljust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def clean(text: str) -> str:
    """Text of a file without characters that would move the cursor of a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def report(document: dict[str, Any]) -> str:
    """Report of ``inspect``."""
    lines: list[str] = []
    if document["kind"] == "checkpoint":
        lines += table(_head(document))
        for buffer in document["buffers"]:
            lines += ["", *_buffer(buffer)]
    elif document["kind"] == "data set":
        lines += table(_head_of_dataset(document))
        lines += ["", *_fields(document)]
    else:
        lines += table(_head_of_file(document))
        lines += ["", *_fields(document)]
        if document["is_nstep"]:
            lines += ["", "rows sum several steps, so the file does not tell of episodes"]
        else:
            lines += ["", *table(_statistics(document))]
    return "\n".join(map(clean, lines))


def _head(document: dict[str, Any]) -> Pairs:
    states = ", ".join(map(str, document["states"]))
    codecs = ", ".join("not compressed" if c == "none" else c for c in document["codecs"])
    files = f"{plural(document['files'], 'file')}, {amount(document['nbytes'])}"
    lines = [
        ("checkpoint", document["path"]),
        ("object", document["class"]),
        ("state", f"{document['state']} of {states}"),
        ("files", f"{files}, {codecs}" if codecs else files),
    ]
    if document["python_objects"]:
        lines.append(("objects", plural(document["python_objects"], "Python object")))
    if document["not_saved"]:
        lines.append(("not saved", ", ".join(document["not_saved"])))
    return lines


def _head_of_dataset(document: dict[str, Any]) -> Pairs:
    episodes = document["episodes"]
    parts = [f"{episodes['number']:,}"]
    parts += [f"{episodes[name]:,} {name}" for name in ("open", "cut") if episodes[name]]
    lines = [
        ("data set", document["path"]),
        ("format", document["format"]),
        ("files", f"{plural(document['files'], 'file')}, {amount(document['nbytes'])}"),
        ("rows", plural(document["rows"], "row")),
        ("episodes", "; ".join(parts)),
        ("their length", _spread(episodes["length"], "rows")),
    ]
    if document["reward"] is not None:
        what = f"{_spread(document['returns'])}, of complete episodes, by {document['reward']!r}"
        lines.append(("returns", what if document["returns"] else "no episode is complete"))
    if document["about"]:
        lines.append(("metadata", ", ".join(document["about"])))
    return lines + [("left out", text) for text in document["left_out"]]


def _head_of_file(document: dict[str, Any]) -> Pairs:
    lines = [
        ("cpprb file", document["path"]),
        ("size", amount(document["nbytes"])),
        ("rows", plural(document["rows"], "row")),
    ]
    if document["next_of"]:
        lines.append(("next_of", ", ".join(document["next_of"])))
    return [*lines, ("n-step", "yes" if document["is_nstep"] else "no")]


def _buffer(buffer: dict[str, Any]) -> Iterator[str]:
    callers = " (a class of the caller's)" if buffer["class_of_caller"] else ""
    lines = [
        ("buffer", buffer["path"] or "the object itself"),
        ("class", buffer["class"] + callers),
        ("rows", f"{buffer['rows']:,}; {buffer['written']:,} written"),
        ("capacity", plural(buffer["capacity"], "row")),
        ("environments", str(buffer["n_envs"])),
        ("memory", f"{amount(buffer['nbytes'])} when it is loaded, without its sampler"),
        ("episodes end", ", ".join(buffer["ends"]) or "by on_episode_end only"),
    ]
    options = ("next_of", "stack_compress")
    lines += [(option, ", ".join(buffer[option])) for option in options if buffer[option]]
    if buffer["nstep"] is not None:
        nstep = buffer["nstep"]
        lines.append(("n-step", f"{nstep['size']} steps, gamma {nstep['gamma']}"))
    lines.append(("sampler", buffer["sampler"]))
    yield from table([*lines, *_statistics(buffer)])
    yield ""
    yield from _fields(buffer)


def _fields(document: dict[str, Any]) -> list[str]:
    rows = [("field", "dtype", "shape", "bytes/step", "total")]
    for field in document["fields"]:
        shape = "(" + ", ".join(map(str, field["shape"])) + ("," * (len(field["shape"]) == 1)) + ")"
        each, total = str(field["nbytes_per_step"]), amount(field["nbytes"])
        rows.append((field["name"], field["dtype"], shape, each, total))
    total = amount(sum(field["nbytes"] for field in document["fields"]))
    rows.append(("all fields", "", "", str(document["nbytes_per_step"]), total))
    return table(rows, right=(3, 4))


def _statistics(found: dict[str, Any]) -> Pairs:
    episodes = found["episodes"]
    ended = f"{episodes['terminated']:,} terminated, {episodes['truncated']:,} truncated"
    lines = [
        ("age of rows", _spread(found["ages"], "time steps")),
        ("episodes", f"{episodes['number']:,}; {episodes['complete']:,} complete, {ended}"),
        ("their length", _spread(episodes["length"], "rows")),
    ]
    if found["reward"] is not None:
        what = f"{_spread(found['returns'])}, of complete episodes, by {found['reward']!r}"
        lines.append(("returns", what if found["returns"] else "no episode is complete"))
    if found["priorities"] is not None:
        lines += _priorities(found["priorities"])
    return lines


def _spread(spread: dict[str, Any] | None, unit: str = "") -> str:
    if spread is None:
        return "no rows"
    text = ", ".join(f"{name} {_number(spread[name])}" for name in ("mean", "min", "max"))
    return f"{text} {unit}".rstrip()


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _priorities(found: dict[str, Any]) -> Pairs:
    size, n = _number(found["effective_sample_size"]), found["rows"]
    share = "" if not n else f" ({(found['effective_sample_size'] or 0) / n:.1%})"
    lines = []
    if found["quantiles"] is None:
        lines.append(("priorities", "not known: alpha is 0" if n else "no rows"))
    else:
        quantiles = [f"{float(q):.0%} {_number(v)}" for q, v in found["quantiles"].items()]
        lines += [("priorities", _spread(found)), ("quantiles", ", ".join(quantiles))]
    lines.append(("effective size", f"{size} of {plural(n, 'row')}{share}"))
    return lines


def verdicts(found: list[Verdict]) -> str:
    """Report of ``verify``."""
    lines = []
    for verdict in found:
        words = "OK" if verdict.is_in_order else "DAMAGED"
        files = f"{plural(verdict.files, 'file')}, {amount(verdict.nbytes)}"
        lines.append(f"state {verdict.number}: {words}" + (f"  {files}" if verdict.files else ""))
        damage = [("", each.name, each.content, each.message) for each in verdict.damage]
        lines += table(damage) if damage else []
        for ring, (lost, rows) in verdict.lost.items():
            where = f" of buffer {ring}" if len(verdict.lost) > 1 or ring else ""
            lines.append(f"  lost: {lost:,} of {plural(rows, 'row')}{where}")
        if verdict.fatal:
            lines.append(f"  cannot be loaded: {verdict.fatal}")
        elif verdict.damage:
            lines.append("  load(folder, salvage=True) loads the rest")
    return "\n".join(map(clean, lines))
