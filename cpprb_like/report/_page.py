"""The page of a report: HTML that loads nothing else, for light and dark screens of any width."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cpprb_like.report import text
from cpprb_like.report._charts import Picture, bars, curve, data_uri, number, shares, spark
from cpprb_like.report._findings import CHECKS

STYLE = """
&{--ink:#1d2733;--soft:#5b6775;--page:#f6f7f9;--card:#fff;--edge:#dde2e8;--blue:#2f6fb2;
--band:#2f6fb233;--warn:#9a5b00;--warnback:#fff4df;--good:#1f7a4d;--goodback:#e5f5ec;
color:var(--ink);background:var(--page);font:15px/1.45 system-ui,sans-serif;padding:16px}
@media(prefers-color-scheme:dark){&{--ink:#e4e9ef;--soft:#9aa7b5;--page:#12171d;--card:#1b222b;
--edge:#313b47;--blue:#6db0f5;--band:#6db0f53d;--warn:#f2b65c;--warnback:#33280f;--good:#6fd09f;
--goodback:#14301f}}
& main{max-width:1120px;margin:0 auto}
& h1{font-size:1.5rem;margin:0}& h2{font-size:1.2rem;margin:28px 0 8px}
& h3{font-size:1rem;margin:0 0 6px}& p{margin:4px 0}
& .soft,& small{color:var(--soft)}
& .cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(320px,100%),1fr));gap:12px;
margin:12px 0}
& .wide{grid-template-columns:repeat(auto-fill,minmax(min(440px,100%),1fr))}
& .tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;
margin:12px 0}
& .card{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:12px;
overflow-x:auto}
& .tiles b{display:block;font-size:1.3rem;font-weight:600}
& .finding{border-left:5px solid var(--warn);background:var(--warnback);margin:8px 0}
& .finding b{color:var(--warn)}
& .note{border-left:5px solid var(--blue);margin:8px 0}
& .good{border-left:5px solid var(--good);background:var(--goodback)}& .good b{color:var(--good)}
& code{font:.92em ui-monospace,monospace;overflow-wrap:anywhere}
& table{border-collapse:collapse;color:inherit}& .fields{width:100%}
& th{color:var(--soft);font-weight:500}
& td,& th{padding:5px 12px 5px 0;border-bottom:1px solid var(--edge)}
& td,& th{text-align:left;white-space:nowrap}
& td.n,& th.n{text-align:right;font-variant-numeric:tabular-nums}
& .block{margin:12px 0}& .frames{display:flex;flex-wrap:wrap;gap:8px}& figure{margin:0;
text-align:center}
& figure img{width:112px;image-rendering:pixelated;border:1px solid var(--edge);display:block}
& .chart{width:100%;max-width:520px;display:block}& .spark{width:140px;height:30px;display:block}
& text{font:11px system-ui,sans-serif;fill:var(--soft)}
& .bar,& .dot{fill:var(--blue)}& .band{fill:var(--band)}
& .line{fill:none;stroke:var(--blue);stroke-width:1.8}
& .grid{stroke:var(--edge)}& .axis{stroke:var(--soft)}
& .part{stroke:var(--ink);stroke-width:1}& .part0{fill:var(--blue)}
& .part1{fill:url(#cpprb-lines)}& .part2{fill:url(#cpprb-dots)}
& .part3{fill:var(--edge)}& .none{fill:none}
& .stroke{stroke:var(--ink)}& .point{fill:var(--ink)}
@media(max-width:640px){&{padding:8px}& thead{display:none}
& .fields tr{display:grid;grid-template-columns:1fr 1fr;padding:8px 0;
border-bottom:1px solid var(--edge)}
& .fields td:first-child,& .fields td:last-child{grid-column:1/3}
& .fields td{border:0;padding:1px 8px 1px 0;text-align:left!important;white-space:normal}
& .fields td[data-of]::before{content:attr(data-of) " ";color:var(--soft)}}
""".replace("&", ".cpprb-report.cpprb-report")  # as many classes as Jupyter names
PATTERNS = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="cpprb-lines" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<path class="stroke" d="M0 6L6 0"/></pattern>'
    '<pattern id="cpprb-dots" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<circle class="point" cx="3" cy="3" r="1.2"/></pattern></defs></svg>'
)
COLUMNS = ("dtype", "shape", "bytes a step", "least", "greatest", "mean", "std", "NaN, inf")


def page(
    document: dict[str, Any], pictures: Mapping[str, Sequence[Picture]], *, whole: bool = True
) -> str:
    """The HTML page of a description; with ``whole=False`` the part that a notebook shows.

    ``document`` is ``Description.to_dict()``; ``pictures`` has frames by path of the buffer.
    """
    title = document.get("path") or document.get("class") or "report"
    body = "".join(_body(document, pictures, html.escape(text.clean(str(title)))))
    style = f"<style>{STYLE}</style>"
    inner = f'<div class="cpprb-report">{PATTERNS}<main>{body}</main></div>'
    if not whole:
        return style + inner
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{html.escape(text.clean(str(title)))}</title>{style}"
        f"<style>body{{margin:0}}.cpprb-report{{min-height:100vh;box-sizing:border-box}}</style></head>"
        f"<body>{inner}</body></html>\n"
    )


def _body(
    document: dict[str, Any], pictures: Mapping[str, Sequence[Picture]], title: str
) -> Iterator[str]:
    buffers = document["buffers"]
    facts = [document["kind"], document.get("format"), document.get("class")]
    if not document.get("path"):
        facts = [document.get("name"), document.get("program")]
    facts += [document.get("described_at"), document.get("version")]
    yield f"<h1>{title}</h1>"
    yield f'<p class="soft">{html.escape(text.clean(", ".join(map(str, filter(None, facts)))))}</p>'
    if not buffers:
        yield '<p class="card">There are no rows that can be read.</p>'
    for buffer in buffers:
        if buffer["path"]:
            yield f"<h2><code>{html.escape(text.clean(buffer['path']))}</code></h2>"
        options = [] if buffer["class"] == document.get("class") else [buffer["class"]]
        options += _options(buffer)
        yield f'<p class="soft">{html.escape(text.clean(", ".join(options)))}</p>'
        yield from _tiles(buffer, document.get("stats", {}))
        if buffer["rows"]:
            yield from _findings(buffer["findings"])
        else:
            yield '<section class="card">There are no rows yet.</section>'
        charts = list(_charts(buffer))
        yield f'<div class="cards{" wide" if len(charts) in (2, 4) else ""}">'
        for heading, chart, note in charts:
            yield f'<section class="card"><h3>{heading}</h3>{chart}<small>{note}</small></section>'
        yield "</div>"
        yield from _fields(buffer)
        for name, frames in pictures.get(buffer["path"], ()):
            yield f'<section class="card block"><h3>Frames of <code>{html.escape(name)}</code></h3>'
            yield '<div class="frames">'
            for slot, image in frames:
                alt = f"{html.escape(name)} in slot {slot}"
                yield f'<figure><img alt="{alt}" src="{data_uri(image)}">'
                yield f"<small>slot {slot}</small></figure>"
            yield "</div></section>"
    counters = {
        name: value
        for name, value in document.get("stats", {}).items()
        if value not in (None, "", {}) and value == value  # NaN: of no draw
    }
    if counters:
        yield '<h2>Counters</h2><div class="card"><table>'
        for name, value in counters.items():
            shown = number(value) if isinstance(value, int | float) else html.escape(str(value))
            yield f'<tr><td>{html.escape(str(name))}</td><td class="n">{shown}</td></tr>'
        yield "</table></div>"


def _options(buffer: dict[str, Any]) -> Iterator[str]:
    """The options of a buffer, each as a few words."""
    yield f"sampler {buffer['sampler']}"
    yield text.plural(buffer["n_envs"], "environment")
    if nstep := buffer["nstep"]:
        yield f"{nstep['size']}-step returns, gamma {nstep['gamma']:g}"
    for name in ("next_of", "stack_compress", "layers"):
        if buffer.get(name):
            yield f"{name.replace('_', ' ')} {', '.join(buffer[name])}"


def _tiles(buffer: dict[str, Any], stats: Mapping[str, float]) -> Iterator[str]:
    episodes, returns, ages = buffer["episodes"], buffer["returns"], buffer["ages"]
    length = episodes["length"] or {}
    tiles = [
        ("rows", f"{buffer['rows']:,}", f"of {buffer['capacity']:,}"),
        ("memory", text.amount(buffer["nbytes"]), f"{buffer['nbytes_per_step']:,} bytes a step"),
        ("episodes", f"{episodes['number']:,}", f"{episodes['complete']:,} complete"),
        ("length, mean", number(length.get("mean")), _span(length)),
        ("return, mean", number((returns or {}).get("mean")), _span(returns or {})),
        ("age, mean", number((ages or {}).get("mean")), "steps since added"),
    ]
    of_draws = ".".join(filter(None, (buffer["path"], "age_at_draw_p50")))
    if of_draws in stats:
        tiles[-1] = (*tiles[-1][:2], f"median at the draw {number(stats[of_draws])}")
    if priorities := buffer["priorities"]:
        size = priorities["effective_sample_size"]
        tiles.append(("effective rows", number(size), "by priority"))
    yield '<div class="tiles">'
    for name, value, note in tiles:
        yield f'<div class="card"><small>{name}</small><b>{value}</b><small>{note}</small></div>'
    yield "</div>"


def _span(found: Mapping[str, float]) -> str:
    return f"{number(found['min'])} to {number(found['max'])}" if found else "unknown"


def _findings(found: Sequence[Mapping[str, str]]) -> Iterator[str]:
    if not found:
        yield (
            '<section class="card good"><b>✓ Nothing looks wrong.</b> '
            f"{len(CHECKS)} checks of the rows found nothing.</section>"
        )
    for one in found:
        field = f" <code>{html.escape(text.clean(one['field']))}</code>" if one["field"] else ""
        kind, mark = ("finding", "⚠") if one["severity"] == "alarm" else ("note", "i")
        yield (
            f'<section class="card {kind}"><b>{mark} {one["name"].replace("-", " ")}</b>{field}: '
            f"{html.escape(text.clean(one['message']))}."
            f'<p class="soft">Look at: {html.escape(text.clean(one["look_at"]))}.</p></section>'
        )


def _charts(buffer: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Heading, chart and note of each chart."""
    series, drawable = buffer["series"], buffer["rows"]
    over = "mean, and least to greatest as a band"
    if "returns" in series:
        reward = html.escape(buffer["reward"] or "")
        yield "Returns of episodes", curve("returns", series["returns"]), f"sum of {reward}; {over}"
    if "lengths" in series:
        how = "terminated {terminated:,}, truncated {truncated:,}".format(**buffer["episodes"])
        yield "Lengths of episodes", curve("lengths", series["lengths"]), f"steps; {over}; {how}"
    not_drawn = buffer["not_drawn"]
    absent = next(iter(not_drawn.values())) if list(not_drawn)[:1] == [ABSENT] else 0
    drawable -= sum(not_drawn.values()) - absent
    empty = max(0, buffer["capacity"] - drawable - sum(not_drawn.values()))
    parts = [("can be drawn", drawable), *not_drawn.items()]
    yield "Rows", shares("rows", [*parts, ("empty", empty)] if empty else parts), ""
    if "weights" in series:
        found = buffer["priorities"]
        note = f"{found['rows']:,} rows weigh as much as {number(found['effective_sample_size'])}"
        yield (
            "Weights of rows by priority",
            bars("weights of rows", series["weights"]),
            f"log10; draws: {note} with equal weights",
        )
    if "draws" in series:
        note = f"{buffer['draws']['never']:,} rows were never drawn"
        yield "Draws of each row", bars("draws", series["draws"]), note


ABSENT = "no step, or of a deleted episode"


def _fields(buffer: dict[str, Any]) -> Iterator[str]:
    yield '<h2>Fields</h2><div class="card block"><table class="fields"><thead><tr><th>field</th>'
    for name in COLUMNS:
        yield f'<th class="{"" if name in ("dtype", "shape") else "n"}">{name}</th>'
    yield "<th>values</th></tr></thead>"
    for one in buffer["fields"]:
        odd = one.get("nan", 0) + one.get("inf", 0)
        cells = [one["dtype"], str(tuple(one["shape"])), f"{one['nbytes_per_step']:,}"]
        cells += [number(one.get(name)) for name in ("min", "max", "mean", "std")]
        cells += [f"{odd:,}" if "nan" in one else "-"]
        yield f"<tr><td><code>{html.escape(text.clean(one['name']))}</code></td>"
        for name, cell in zip(COLUMNS, cells, strict=True):
            kind = "" if name in ("dtype", "shape") else ' class="n"'
            yield f'<td{kind} data-of="{name}">{html.escape(cell)}</td>'
        found = buffer["series"]["histograms"].get(one["name"])
        yield f"<td>{spark(one['name'], found) if found else ''}</td></tr>"
    partly = [one for one in buffer["fields"] if one.get("rows_read", 0) < buffer["rows"]]
    yield "</table>"
    if any("rows_read" in one for one in partly):
        names = ", ".join(
            f"{one['name']} {one['rows_read']:,}" for one in partly if "rows_read" in one
        )
        yield f"<small>Rows read of large fields: {html.escape(names)}.</small>"
    yield "</div>"
