#!/usr/bin/env python3
"""Put a recorded GPU, or two side by side, on one HTML page that needs no network.

    scripts/report.py profile/h200 -o h200.html
    scripts/report.py profile/h200 profile/t4 -o both.html

The page has where everything comes from (manifest.json), the charts of scripts/rooflines.py to explore (a dot under the
pointer says kernel, level, bytes, intensity and share of its roof; levels and kernels switch on and off, for both cards
at once), every number of them as a table, and the tables of all days as they were recorded.

The charts are drawn by plotly.js, which the Python package plotly brings along, pinned in scripts/requirements.txt: it
is kept by its makers, has logarithmic axes and hover, and is one file that a page can hold. A policy in the page
forbids it to load anything.

Exit code: 0 written; 1 something is wrong with what is recorded; 2 bad usage.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from evidence import EXIT_WRONG, HISTORY, Stop, age_of, file_of, read_manifest, revisions_of
from rooflines import (
    INK,
    LEVELS,
    PALETTE,
    Chart,
    Dot,
    Losses,
    Panel,
    Picture,
    Rail,
    charts_of,
    millions,
    rows_of,
    rows_of_losses,
    shown,
    table,
)
from rooflines import Stop as BadLines
from sync_common import flush_stdout, say_failed, write_whole

ROOT = Path(__file__).resolve().parents[1]
MARKERS = {
    "dram": "circle",
    "l2": "square",
    "l1": "triangle-up",
    "shared": "cross",
    "requested": "diamond",
    "ragged": "diamond",
    "": "circle",
}
SIZES = {"l1": 15, "l2": 10, "dram": 8, "requested": 7}  # the smaller on top where they fall together
PROVENANCE = {
    "utc": "recorded",
    "revision": "revision",
    "flags": "flags",
    "driver": "driver",
    "toolkit": "CUDA Toolkit",
    "host_compiler": "host compiler",
    "profiler": "Nsight Compute",
    "counters": "counters",
    "uuid": "GPU",
}

NUMBER = re.compile(r"[+-]?[0-9]+([.][0-9]+)?")

STYLE = """
:root { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #1f2328; background: #f6f8fa; }
body { margin: 0; padding: 1.5rem; }
main { display: grid; grid-template-columns: repeat(var(--cards), minmax(0, 1fr)); gap: 1.5rem; max-width: 1800px;
  margin: auto; }
h1 { max-width: 1800px; margin: 0 auto 1rem; font-size: 1.6rem; } h2 { font-size: 1.35rem; margin: 0; }
h3 { font-size: 1.1rem; margin: 0; } p { margin: .2rem 0 .8rem; color: #59636e; }
section, article > header { background: #fff; border: 1px solid #d1d9e0; border-radius: 8px; padding: 1rem 1.2rem;
  margin-bottom: 1.2rem; }
table { border-collapse: collapse; font-size: .82rem; } .wide { overflow-x: auto; }
th, td { padding: .15rem .7rem .15rem 0; text-align: left; vertical-align: top; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tbody tr:nth-child(odd) { background: #f6f8fa; } .wrap td { white-space: normal; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: .74rem; line-height: 1.35; background: #f6f8fa; padding: .8rem; border-radius: 6px; }
summary { cursor: pointer; color: #0550ae; margin: .4rem 0; }
.panels { display: grid; grid-template-columns: repeat(var(--panels), minmax(0, 1fr)); }
.plot { height: 430px; } .rail { height: 110px; }
.switches { display: flex; flex-wrap: wrap; gap: .2rem .9rem; font-size: .85rem; margin: .3rem 0; }
.switches i { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .3em; }
"""

SCRIPT = """
'use strict';
const figures = JSON.parse(document.getElementById('figures').textContent);
const hidden = {};  // by chart: the levels and kernels that are switched off

function visible(name, trace) {
  const off = hidden[name] || new Set();
  return !(off.has('level ' + trace.meta.level) || off.has('kernel ' + trace.meta.kernel));
}

function draw(box) {
  const figure = figures[box.dataset.figure];
  for (const trace of figure.data) if (trace.meta) trace.visible = visible(box.dataset.chart, trace);
  Plotly.newPlot(box, figure.data, figure.layout, {displaylogo: false, responsive: true, displayModeBar: false});
  box.dataset.drawn = 'yes';
}

// A chart is drawn when it comes near the window: the page opens at once, however many there are.
const watcher = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { watcher.unobserve(entry.target); draw(entry.target); }
}, {rootMargin: '300px'});
document.querySelectorAll('.plot').forEach(box => watcher.observe(box));

document.addEventListener('change', event => {
  const {chart, what} = event.target.dataset;
  if (!what) return;
  const off = hidden[chart] = hidden[chart] || new Set();
  event.target.checked ? off.delete(what) : off.add(what);
  for (const twin of document.querySelectorAll('input'))
    if (twin.dataset.chart === chart && twin.dataset.what === what) twin.checked = event.target.checked;
  for (const box of document.querySelectorAll('.plot[data-drawn]')) {
    if (box.dataset.chart !== chart) continue;
    const traces = box.data.map((trace, place) => [trace, place]).filter(([trace]) => trace.meta);
    Plotly.restyle(box, {visible: traces.map(([trace]) => visible(chart, trace))}, traces.map(([, place]) => place));
  }
});
"""


def text_of(chart: Chart, dot: Dot, on_rail: bool = False) -> str:
    """Return what a dot says under the pointer, with the figures as the table has them."""
    work, amount, x, y = chart.units
    count = millions if chart.counts else shown
    lines = [f"<b>{html.escape(dot.kernel)}</b>"]
    lines += [f"level {LEVELS[dot.level]}"] if dot.level else []
    lines += [f"{count(dot.amount)} {'MB' if on_rail else amount}", f"{dot.ms:.4f} ms"]
    lines += [f"{shown(dot.x)} GB/s"] if on_rail else [f"{shown(dot.x)} {x}", f"{shown(dot.y)} {y}"]
    lines.append(f"{dot.percent:.1f} % of its roof")
    lines += [f"<i>{html.escape(dot.cause)}</i>"] if dot.cause else []
    return "<br>".join(lines)


def dot_traces(chart: Chart, dots: list[Dot], on_rail: bool = False) -> list[dict[str, Any]]:
    """Return a trace for each kernel and level, so that each can be switched off."""
    groups: dict[tuple[str, str], list[Dot]] = {}
    for dot in dots:
        groups.setdefault((dot.kernel, dot.level), []).append(dot)
    order = list(SIZES)
    traces = []
    for (kernel, level), group in sorted(
        groups.items(), key=lambda item: order.index(item[0][1]) if item[0][1] in order else 0
    ):
        color = chart.color(kernel)
        hollow = ["-open" if dot.cause else "" for dot in group]
        marker = {
            "symbol": [MARKERS[level] + end for end in hollow],
            "size": [SIZES.get(level, 9) + (4 if end else 0) for end in hollow],
            "color": color,
            "opacity": 1,
            "line": {"width": [2.5 if end else 1 for end in hollow], "color": [color if e else "#fff" for e in hollow]},
        }
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [dot.x for dot in group],
                "y": [0 if on_rail else dot.y for dot in group],
                "text": [text_of(chart, dot, on_rail) for dot in group],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": marker,
                "meta": {"kernel": kernel, "level": level},
                "name": kernel,
            }
        )
    return traces


def line(xs: list[float], ys: list[float], **style: Any) -> dict[str, Any]:
    """Return a line that says nothing under the pointer."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "hoverinfo": "skip",
        "line": {"color": INK, "width": 2, **style},
    }


AXIS = {"gridcolor": "#e4e7eb", "linecolor": "#59636e", "ticks": "outside", "zeroline": False}
LAYOUT = {
    "showlegend": False,
    "hovermode": "closest",
    "paper_bgcolor": "#fff",
    "plot_bgcolor": "#fff",
    "font": {"color": INK, "size": 12},
    "hoverlabel": {"align": "left", "bgcolor": "#fff"},
}


def panel_figure(chart: Chart, panel: Panel) -> dict[str, Any]:
    """Return a panel as a figure of plotly.js."""
    flats = [roof.rate for roof in panel.roofs if roof.flat]
    slopes = [roof.rate for roof in panel.roofs if not roof.flat]
    xs = [dot.x for dot in panel.dots] + [x for x, _ in panel.walls]
    xs += [max(flats) / min(slopes)] if slopes and flats else []
    ys = [dot.y for dot in panel.dots] + flats
    left, right, low, high = min(xs) / 2, max(xs) * 2, min(ys) / 2, max(ys) * 2
    if panel.sizes:
        left, right, low, high = min(xs) / 1.2, max(xs) * 1.2, 0, max(ys) * 1.08
    data, notes = [], []
    for roof in [*panel.roofs, *panel.references]:
        style = {} if roof.main and roof not in panel.references else {"dash": "dot", "width": 1}
        if roof.flat:
            start = max(left, roof.rate / max(slopes)) if slopes and roof in panel.roofs else left
            data.append(line([start, right], [roof.rate] * 2, **style))
            at = (right, roof.rate, "right", "bottom")
        else:
            start, end = max(left, low / roof.rate), min(right, max(ys) / roof.rate)
            data.append(line([start, end], [start * roof.rate, end * roof.rate], **style))
            x = start * (end / start) ** 0.06
            at = (x, x * roof.rate, "left", "top")
        notes.append(annotation(roof.label, *at))
        if panel.sizes:
            notes[-1]["y"] = roof.rate
    for kernel in dict.fromkeys(dot.kernel for dot in panel.dots):
        same = [dot for dot in panel.dots if dot.kernel == kernel]
        if len({dot.level for dot in same}) > 1:
            data.append(line([dot.x for dot in same], [dot.y for dot in same], width=1, color=chart.color(kernel)))
            data[-1]["meta"] = {"kernel": kernel, "level": ""}
    for x, text in panel.walls:
        data.append(line([x, x], [low, high], dash="dot", width=1, color="#59636e"))
        notes.append({**annotation(text, x, high, "right", "top"), "textangle": -90})
    for path in panel.paths:
        color = chart.color(path[0].kernel) if panel.sizes else "#59636e"
        data.append(line([dot.x for dot in path], [dot.y for dot in path], width=1, color=color))
        if panel.sizes:  # a line goes where its kernel's dots go
            data[-1]["meta"] = {"kernel": path[0].kernel, "level": ""}
    if panel.arrows:
        for path in panel.paths:
            for first, second in zip(path, path[1:]):
                notes.append(arrow(first, second))
    axes = {
        "xaxis": log_axis(left, right, panel.x_label, panel.fractions or panel.sizes),
        "yaxis": percent_axis(high, panel.y_label) if panel.sizes else log_axis(low, high, panel.y_label),
    }
    title = {"title": {"text": panel.title, "font": {"size": 13}}} if panel.title else {}
    margin = {"l": 62, "r": 12, "t": 34 if panel.title else 12, "b": 46}
    layout = {**LAYOUT, **axes, **title, "margin": margin, "annotations": notes}
    return {"data": data + dot_traces(chart, panel.dots), "layout": layout}


def percent_axis(high: float, label: str) -> dict[str, Any]:
    """Return a linear axis from zero."""
    return {**AXIS, "range": [0, high], "dtick": 20, "title": {"text": label}}


def log_axis(low: float, high: float, label: str, powers_of_two: bool = False) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at the powers of ten, or of two: 1/2, 1, 2."""
    ticks: dict[str, Any] = {"dtick": 1 if math.log10(high / low) > 2 else "D2"}
    if powers_of_two:
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        texts = [f"1/{2**-power}" if power < 0 else str(2**power) for power in powers]
        ticks = {"tickvals": [2.0**power for power in powers], "ticktext": texts}
    return {**AXIS, "type": "log", "range": [math.log10(low), math.log10(high)], "title": {"text": label}, **ticks}


def annotation(text: str, x: float, y: float, x_anchor: str, y_anchor: str) -> dict[str, Any]:
    """Return a text at a place of logarithmic axes."""
    place = {"x": math.log10(x), "y": math.log10(y), "xanchor": x_anchor, "yanchor": y_anchor}
    look = {"showarrow": False, "font": {"size": 10.5}, "bgcolor": "rgba(255,255,255,0.8)"}
    return {**place, **look, "text": html.escape(text)}


def arrow(first: Dot, second: Dot) -> dict[str, Any]:
    """Return the head of an arrow from one dot to the next."""
    places = {
        "x": math.log10(second.x),
        "y": math.log10(second.y),
        "ax": math.log10(first.x),
        "ay": math.log10(first.y),
    }
    look = {"arrowhead": 2, "arrowsize": 1.2, "arrowwidth": 1, "arrowcolor": "#59636e", "standoff": 5}
    return {**places, "axref": "x", "ayref": "y", "text": "", "showarrow": True, **look}


def rail_figure(chart: Chart, rail: Rail) -> dict[str, Any]:
    """Return the rail as a figure of plotly.js."""
    highest = max([rail.ceiling.rate, *(dot.x for dot in rail.dots)]) * 1.08
    data = [line([0, highest], [0, 0], color="#e4e7eb", width=4), line([rail.ceiling.rate] * 2, [-1, 1])]
    place = {"x": rail.ceiling.rate, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    note = {**place, "text": html.escape(rail.ceiling.label), "showarrow": False, "font": {"size": 10.5}}
    axes = {
        "xaxis": {**AXIS, "range": [0, highest], "title": {"text": rail.title, "font": {"size": 11}}},
        "yaxis": {"range": [-1, 1], "visible": False, "fixedrange": True},
    }
    layout = {**LAYOUT, **axes, "margin": {"l": 62, "r": 12, "t": 24, "b": 46}, "annotations": [note]}
    return {"data": data + dot_traces(chart, rail.dots, on_rail=True), "layout": layout}


def losses_figure(chart: Losses) -> dict[str, Any]:
    """Return what a kernel loses as a figure of plotly.js: a bar for each cause, hollow if it is no loss."""
    data, notes = [], []
    for place, step in enumerate(chart.steps):
        color = PALETTE[2 * place % len(PALETTE)]
        said = [f"<b>{html.escape(step.name)}</b>", f"{step.change} %, {step.after:.2f} % left", html.escape(step.why)]
        marker = {"color": "#fff" if step.after > step.before else color, "line": {"color": color, "width": 1.5}}
        bar = {"type": "bar", "orientation": "h", "y": [step.name], "x": [step.after - step.before]}
        bar.update(base=[step.before], width=[0.6], marker=marker)
        data.append({**bar, "customdata": ["<br>".join(said)], "hovertemplate": "%{customdata}<extra></extra>"})
        at = {"x": min(step.before, step.after), "y": step.name, "xanchor": "right"}
        notes.append({**at, "text": f"{step.change} ", "showarrow": False})
    ends = [end for step in chart.steps for end in (step.before, step.after)]
    steps = [step.name for step in chart.steps]
    data += [line([at, at], [steps[0], steps[-1]], width=1, dash="dot") for at in (100, chart.measured.after)]
    axes = {
        "xaxis": {**AXIS, "range": [min(ends) - 5, max(ends) + 1], "title": {"text": "% of the FMA ceiling"}},
        "yaxis": {**AXIS, "autorange": "reversed", "automargin": True},
    }
    margin = {"l": 62, "r": 12, "t": 12, "b": 46}
    layout = {**LAYOUT, **axes, "margin": margin, "barmode": "overlay", "annotations": notes}
    return {"data": data, "layout": layout}


# ---- the page --------------------------------------------------------------------------------------------------------


def html_table(rows: list[list[str]], attributes: str = "") -> str:
    """Return rows of plain text as a table, the heading first."""

    def cells(row: list[str], tag: str) -> str:
        marked = [' class="number"' if NUMBER.fullmatch(cell) else "" for cell in row]
        return "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for cell, mark in zip(row, marked))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows[1:])
    return f"<table{attributes}><thead><tr>{cells(rows[0], 'th')}</tr></thead><tbody>{body}</tbody></table>"


def details(summary: str, inside: str, is_open: bool = False) -> str:
    """Return a part of the page that opens on demand."""
    return f"<details{' open' if is_open else ''}><summary>{html.escape(summary)}</summary>{inside}</details>"


def switches(chart: Chart) -> str:
    """Return a chart's switches for levels and kernels."""

    def one(kind: str, value: str, label: str, color: str = "") -> str:
        attributes = f'data-chart="{chart.name}" data-what="{html.escape(f"{kind} {value}")}"'
        sign = f'<i style="background:{color}"></i>' if color else ""
        return f'<label><input type="checkbox" checked {attributes}>{sign}{html.escape(label)}</label>'

    levels = [level for level in LEVELS if level and any(dot.level == level for dot in chart.dots)]
    kernels = [kernel for kernel in chart.kernels if any(dot.kernel == kernel for dot in chart.dots)]
    rows = ["".join(one("level", level, LEVELS[level]) for level in levels)] if len(levels) > 1 else []
    rows += ["".join(one("kernel", kernel, kernel, chart.color(kernel)) for kernel in kernels)] if kernels[1:] else []
    return "".join(f'<div class="switches">{row}</div>' for row in rows)


class Page:
    """What is put together: HTML of each card, and the figures, which the script finds by number."""

    def __init__(self) -> None:
        self.cards: list[str] = []
        self.figures: list[dict[str, Any]] = []

    def plot(self, chart: Picture, figure: dict[str, Any], more: str = "") -> str:
        """Add a figure and return its place in the page."""
        self.figures.append(figure)
        return f'<div class="plot {more}" data-chart="{chart.name}" data-figure="{len(self.figures) - 1}"></div>'

    def add_card(self, folder: Path) -> None:
        """Add a recorded folder. Raises Stop."""
        if not (folder / "manifest.json").is_file():
            raise Stop(f"{folder}: no manifest.json, so nothing is recorded there: name a folder such as profile/h200")
        manifest = read_manifest(folder, str(folder))
        if manifest.get("cards"):
            raise Stop(
                f"{folder}: holds several cards, a page shows one or two: scripts/bench_ingest.py report --fleet"
            )
        try:
            note = f", {revisions_of(manifest['days'].values())}" if manifest["state"] == HISTORY else ""
            charts, lacking = charts_of(folder, note)
        except BadLines as wrong:
            raise Stop(str(wrong)) from None
        parts = [self.provenance(manifest)]
        parts += [self.chart(chart) for chart in charts]
        if lacking:
            rows = [["chart", "what is not recorded"], *map(list, lacking.items())]
            parts.append(f"<section><h3>Not drawn</h3>{html_table(rows)}</section>")
        parts += [self.day(folder, int(day)) for day in manifest["days"]]
        self.cards.append(f'<article data-device="{html.escape(manifest["device"])}">{"".join(parts)}</article>')

    def provenance(self, manifest: dict) -> str:
        """Return where everything on a card comes from."""
        days = manifest["days"]
        rows = [["", *(f"day {day}" for day in days)]]
        rows.append(["source", *(entry["source"] for entry in days.values())])
        rows += [[label, *(entry[key] for entry in days.values())] for key, label in PROVENANCE.items()]
        commands = "\n".join(command for entry in days.values() for command in entry["commands"])
        files = [["file", "bytes", "SHA-256"]]
        files += [[name, str(entry["bytes"]), entry["sha256"]] for name, entry in manifest["files"].items()]
        age = age_of(manifest, ROOT)
        said = f"Where every figure below comes from{f': {age}' if age else ''}."
        return (
            f"<header><h2>{html.escape(manifest['device'])}</h2><p>{html.escape(said)}</p>"
            f'<div class="wide">{html_table(rows, " class=wrap")}</div>'
            + details("Commands", f"<pre>{html.escape(commands)}</pre>")
            + details("Files", f'<div class="wide">{html_table(files)}</div>')
            + "</header>"
        )

    def chart(self, chart: Chart | Losses) -> str:
        """Return a chart with its switches and its table."""
        if isinstance(chart, Losses):
            return self.section(chart, self.plot(chart, losses_figure(chart)), rows_of_losses(chart))
        panels = "".join(self.plot(chart, panel_figure(chart, panel)) for panel in chart.panels)
        rail = self.plot(chart, rail_figure(chart, chart.rail), "rail") if chart.rail else ""
        plots = f'<div class="panels" style="--panels:{len(chart.panels)}">{panels}</div>{rail}'
        return self.section(chart, switches(chart) + plots, rows_of(chart))

    def section(self, chart: Chart | Losses, inside: str, rows: list[list[str]]) -> str:
        """Return what stands around a chart: title, notes and its table."""
        numbers = f'<div class="wide">{html_table(rows)}</div>'
        return (
            f'<section id="{chart.name}"><h3>{html.escape(chart.title)}</h3><p>{html.escape(chart.about)}</p>{inside}'
            + "".join(f"<p>{html.escape(note)}</p>" for note in chart.notes)
            + details("Every number of this chart", numbers + f"<pre>{html.escape(table(chart))}</pre>")
            + "</section>"
        )

    def day(self, folder: Path, day: int) -> str:
        """Return the table of a day as it was recorded, and what the compiler said."""
        text = (folder / file_of(day, ".txt")).read_text(encoding="utf-8")
        resources = folder / file_of(day, "-resources.txt")
        parts = f"<section><h3>Day {day}</h3><pre>{html.escape(text)}</pre>"
        if resources.is_file():
            said = html.escape(resources.read_text(encoding="utf-8"))
            parts += details("Registers, spills and occupancy", f"<pre>{said}</pre>")
        return f"{parts}</section>"

    def to_html(self, plotly_js: str) -> str:
        """Return the whole page."""
        figures = json.dumps(self.figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        library = plotly_js.replace("</script", "<\\/script")
        scripts = [f"\n{library}\n", SCRIPT]
        allowed = " ".join(f"'sha256-{digest(script)}'" for script in scripts)
        policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>cuda-days: recorded</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE}</style></head><body><h1>cuda-days: what was recorded</h1>"
            f'<main style="--cards:{len(self.cards)}">{"".join(self.cards)}</main>'
            f'<script type="application/json" id="figures">{figures}</script>'
            + "".join(f"<script>{script}</script>" for script in scripts)
            + "</body></html>\n"
        )


def digest(script: str) -> str:
    """Return a script's digest as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def make_page(folders: list[Path]) -> str:
    """Return the page of one or two folders. Raises Stop."""
    page = Page()
    for folder in folders:
        page.add_card(folder)
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise Stop(
            "the Python package plotly is missing, which brings the charting library: scripts/lessons test sets up "
            "build/venv, then use build/venv/bin/python; or python3 -m pip install -r scripts/requirements.txt"
        ) from None
    return page.to_html(get_plotlyjs())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="recorded folder, such as profile/h200")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="PAGE.html", help="the page to write")
    options = parser.parse_args(arguments)
    if len(options.folders) > 2:
        parser.error("one card, or two side by side")
    try:
        text = make_page(options.folders)
        write_whole(options.out, text, (file for folder in options.folders for file in folder.iterdir()))
        print(f"{options.out}: {len(text.encode('utf-8')) / 1e6:.1f} MB")
        flush_stdout()
    except Stop as stop:
        print(stop, file=sys.stderr)
        return EXIT_WRONG
    except OSError as error:
        say_failed(error)
        return EXIT_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
