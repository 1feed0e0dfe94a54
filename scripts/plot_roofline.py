#!/usr/bin/env python3
"""Draw the rooflines of a recorded GPU, and print every number that stands on them.

    scripts/plot_roofline.py profile/h200            writes the charts and their tables into that folder
    scripts/plot_roofline.py profile/h200 --table    prints the tables and writes nothing (needs no matplotlib)
    scripts/plot_roofline.py profile/h200 --strict   also fails if a dot lies above its own roof by more than 2 %

Meant to lie above, and no failure, is a count of the bytes that a kernel requests, where the counters show that DRAM
moved no more than it can: caches served the rest.

Each chart is NAME.svg, 800 pixels wide, and NAME.txt with the table: dayNN-what. The same lines give the same bytes.
A chart whose lines are not recorded yet is named with what is missing. What stands on the charts: scripts/rooflines.py.

Colour is the kernel and the sign is the level. A hollow dot is what no kernel can do, and has a cause in the table; a
small diamond is the count of bytes that the algorithm requests. Kernels without FLOP stand on a rail of their own. Of
the bars of what a kernel loses, a hollow one is no loss.

Exit code: 0 done; 1 something is wrong, or with --strict a dot lies above its roof and is not meant to; 2 bad usage.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflines import (
    CHARTS,
    INK,
    LEVELS,
    PALETTE,
    Chart,
    Dot,
    Losses,
    Panel,
    Picture,
    Rail,
    Roof,
    Step,
    Stop,
    charts_of,
    table,
)
from sync_common import flush_stdout, say_failed, write_whole

if TYPE_CHECKING:  # drawing alone needs it, the tables do not
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 600  # points, which a browser shows as 800 pixels
SOFT, FAINT, SHADE = "#59636e", "#e4e7eb", "#f6f8fa"
MARKERS = {"dram": "o", "l2": "s", "l1": "^", "shared": "P", "requested": "D", "ragged": "D", "": "o"}
# In points. Where levels fall together, the smaller sign lies on top and all can be seen.
SIZES = {"l1": 10.4, "l2": 6.0, "dram": 4.2, "requested": 3.6}
SIZE = 6.4  # where there is one level, or one and what was requested
STYLE = {
    "svg.hashsalt": "cuda-days",  # names in the file follow from what they name, not from chance
    "svg.fonttype": "path",  # the same letters on every machine
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}

Box = tuple[float, float, float, float]  # left, bottom, right, top in points


# ---- axes ------------------------------------------------------------------------------------------------------------


def limits(panel: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ranges of x and y: all dots and walls, the highest ridge, and room for labels."""
    if panel.sizes:
        xs, ys = [dot.x for dot in panel.dots], [dot.y for dot in panel.dots]
        return (min(xs) / 1.2, max(xs) * 2.2), (0, max(ys) * 1.08)
    flats = [roof.rate for roof in panel.roofs if roof.flat]
    slopes = [roof.rate for roof in panel.roofs if not roof.flat]
    xs = [dot.x for dot in panel.dots] + [x for x, _ in panel.walls]
    ys = [dot.y for dot in panel.dots]
    if flats and slopes:
        xs.append(max(flats) / min(slopes))  # the last ridge: every roof bends within the picture
    xs += [max(xs) * 1.2]
    x_low, x_high = min(xs) / 1.9, max(xs) * 1.9
    top = max(flats + ys) * (6 if panel.walls else 2)  # their labels hang from the top
    return (x_low, x_high), (min(ys) / 2, top)


def number(value: float, fractions: bool = False) -> str:
    """Return the label of a tick: 0.1, 10, 10k, or 1/32."""
    if fractions and value < 1:
        return f"1/{round(1 / value)}"
    if value >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def set_axes(axes: Axes, panel: Panel) -> None:
    """Set scales, ranges, ticks and labels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MultipleLocator, NullFormatter, NullLocator

    x_range, y_range = limits(panel)
    y_scale = "linear" if panel.sizes else "log"
    axes.set(xscale="log", yscale=y_scale, xlim=x_range, ylim=y_range, xlabel=panel.x_label, ylabel=panel.y_label)
    for axis, (low, high) in ((axes.xaxis, x_range), (axes.yaxis, y_range)):
        if low == 0:
            axis.set_major_locator(MultipleLocator(20))
            continue
        decades = math.log10(high / low)
        fractions = panel.fractions and axis is axes.xaxis
        if fractions or panel.sizes:
            powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
            last = max(dot.x for dot in panel.dots) if panel.sizes else high
            axis.set_major_locator(FixedLocator([2.0**power for power in powers if 2.0**power <= last]))
            if panel.sizes:
                axis.set_minor_locator(NullLocator())
        else:
            axis.set_major_locator(LogLocator(base=10, subs=(1,) if decades > 2.5 else (1, 2, 5), numticks=20))
            axis.set_minor_locator(LogLocator(base=10, subs=range(2, 10), numticks=50))
        axis.set_major_formatter(FuncFormatter(lambda value, _, fractions=fractions: number(value, fractions)))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="major", length=3, width=0.6, labelsize=7.5)
    axes.tick_params(which="minor", length=1.5, width=0.4)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


# ---- labels: each where it covers least ------------------------------------------------------------------------------


class Space:
    """What is taken on a pair of axes, in points, and where a label covers least of it."""

    def __init__(self, figure: Figure, axes: Axes):
        self.figure, self.axes = figure, axes
        self.renderer = figure.canvas.get_renderer()
        self.scale = 72 / figure.dpi
        box = axes.get_window_extent(self.renderer)
        self.inside: Box = tuple(edge * self.scale for edge in (box.x0, box.y0, box.x1, box.y1))
        self.taken: list[tuple[Box, float]] = []  # box and how bad it is to cover it

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point of the axes, in points."""
        px, py = self.axes.transData.transform((x, y))
        return px * self.scale, py * self.scale

    def take(self, box: Box, weight: float = 1.0) -> None:
        """Mark a box as taken."""
        self.taken.append((box, weight))

    def take_line(self, start: tuple[float, float], end: tuple[float, float], weight: float = 0.5) -> None:
        """Mark a line between two points (in points) as taken."""
        steps = max(2, int(math.dist(start, end) / 4))
        for step in range(steps + 1):
            x, y = (a + (b - a) * step / steps for a, b in zip(start, end))
            self.take((x - 1.5, y - 1.5, x + 1.5, y + 1.5), weight)

    def size(self, text: str, points: float, **font: Any) -> tuple[float, float]:
        """Return width and height of a text."""
        from matplotlib.font_manager import FontProperties

        width, height, _ = self.renderer.get_text_width_height_descent(text, FontProperties(size=points, **font), False)
        return width * self.scale, height * self.scale

    def cost(self, box: Box) -> float:
        """Return how much of what is taken a box covers, in square points, and how far it sticks out."""
        left, bottom, right, top = box
        covered = 0.0
        for (w, s, e, n), weight in self.taken:
            if w < right and e > left and s < top and n > bottom:
                covered += weight * (min(right, e) - max(left, w)) * (min(top, n) - max(bottom, s))
        x0, y0, x1, y1 = self.inside
        out = max(0, x0 - left) + max(0, right - x1) + max(0, y0 - bottom) + max(0, top - y1)
        return covered + 40 * out


def label_dots(space: Space, groups: list[tuple[str, str, list[Dot]]], points: float) -> None:
    """Write each group's text beside one of its dots, where it covers least; `groups` has text, colour and dots."""
    directions = [(1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1)]
    for text, color, dots in groups:
        width, height = space.size(text, points)
        choices: list[tuple[float, Box, tuple[float, float], int]] = []
        for far in (6, 10, 15, 22, 32, 44):
            if choices and min(choices)[0] <= 1.6 * (far - 6):
                break  # from here on, being so far away alone costs more
            for x, y in (space.at(dot.x, dot.y) for dot in dots):
                for order, (dx, dy) in enumerate(directions):
                    reach = far * (0.75 if dx and dy else 1)
                    left = x + dx * reach - (0 if dx > 0 else width if dx < 0 else width / 2)
                    bottom = y + dy * reach - (0 if dy > 0 else height if dy < 0 else height / 2)
                    box = (left, bottom, left + width, bottom + height)
                    cost = space.cost((left - 1, bottom - 1, left + width + 1, bottom + height + 1))
                    near = nearest(box, x, y)
                    for part in (0.2, 0.4, 0.6, 0.8) if far > 6 else ():
                        px, py = x + (near[0] - x) * part, y + (near[1] - y) * part
                        if math.dist((px, py), (x, y)) > 5:  # nothing should stand between a dot and its name
                            cost += space.cost((px - 2, py - 2, px + 2, py + 2))
                    choices.append((cost + 1.6 * (far - 6) + 0.4 * order, box, (x, y), far))
        _, box, (x, y), far = min(choices, key=lambda choice: choice[0])
        space.take(box, 3)
        if far > 10:
            draw_line(space, (x, y), nearest(box, x, y), color)
        place_text(space, box[0], box[1], text, points, color=INK)


def label_ends(space: Space, ends: list[tuple[str, str, Dot]], points: float) -> None:
    """Write each text to the right of its dot, one below the other where dots are close; `ends` as in label_dots."""
    columns: dict[float, list[tuple[str, str, float, float]]] = {}
    for text, color, dot in ends:
        x, y = space.at(dot.x, dot.y)
        columns.setdefault(x, []).append((text, color, x, y))
    for column in columns.values():
        column.sort(key=lambda end: -end[3])
        heights = [y for *_, y in column]
        apart = space.size("0", points)[1] + 3
        for _ in range(200):  # two that are too close give way by half of it each, until none is
            for above in range(len(heights) - 1):
                lacking = apart - (heights[above] - heights[above + 1])
                if lacking > 0:
                    heights[above] += lacking / 2
                    heights[above + 1] -= lacking / 2
        for (text, color, x, y), level in zip(column, heights):
            width, height = space.size(text, points)
            left = x + 20
            draw_line(space, (x + 4, y), (left - 2, level), color)
            space.take((left, level - height / 2, left + width, level + height / 2), 3)
            place_text(space, left, level - height / 2, text, points, color=INK)


def nearest(box: Box, x: float, y: float) -> tuple[float, float]:
    """Return the point of a box that is nearest to a place."""
    return min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])


def draw_line(space: Space, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draw a thin line between two places given in points, and mark it as taken."""
    from matplotlib.lines import Line2D

    width, height = space.figure.get_size_inches() * 72
    xs, ys = [start[0] / width, end[0] / width], [start[1] / height, end[1] / height]
    space.figure.add_artist(Line2D(xs, ys, color=color, linewidth=0.6, alpha=0.8, zorder=3))
    space.take_line(start, end)


def place_text(space: Space, left: float, bottom: float, text: str, points: float, **more: Any) -> None:
    """Write a text with its lower left corner at a place given in points."""
    width, height = space.figure.get_size_inches() * 72
    space.figure.text(left / width, bottom / height, text, fontsize=points, va="bottom", **more)


def _font(points: float) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(size=points)


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def draw_roofs(space: Space, panel: Panel) -> None:
    """Draw slopes up to the highest flat roof, flats to the right edge, and shade what a kernel can reach."""
    axes = space.axes
    x_low, x_high = axes.get_xlim()
    if panel.sizes:  # behind the last dot stand the names
        x_high = max(dot.x for dot in panel.dots)
    y_low, y_high = axes.get_ylim()
    flats = [roof for roof in panel.roofs if roof.flat]
    slopes = [roof for roof in panel.roofs if not roof.flat]
    top = max((roof.rate for roof in flats), default=y_high)
    steepest = max((roof.rate for roof in slopes), default=None)
    if steepest and flats:
        ridge = top / steepest
        axes.fill([x_low, x_low, ridge, x_high, x_high], [y_low, steepest * x_low, top, top, y_low], SHADE, zorder=0.5)
    labels: list[tuple[Roof, tuple[float, float], tuple[float, float]]] = []
    for roof in [*panel.roofs, *panel.references]:
        bound = roof in panel.references
        if roof.flat:
            start = x_low if bound or not steepest else max(x_low, roof.rate / steepest)
            ends = (start, roof.rate), (x_high, roof.rate)
        else:
            start, end = max(x_low, y_low / roof.rate), min(x_high, top / roof.rate)
            ends = (start, roof.rate * start), (end, roof.rate * end)
        kind = {"linewidth": 1.5, "color": INK} if roof.main else {"linewidth": 1.0, "color": SOFT, "dashes": (4, 2.5)}
        if bound:
            kind = {"linewidth": 1.0, "color": SOFT, "dashes": (1.5, 2)}
        axes.plot([ends[0][0], ends[1][0]], [ends[0][1], ends[1][1]], zorder=2, solid_capstyle="butt", **kind)
        places = space.at(*ends[0]), space.at(*ends[1])
        space.take_line(*places)
        labels.append((roof, *places))
    for roof, start, end in labels:
        from_right, soft = roof.flat and not panel.sizes, not roof.main or roof in panel.references
        label_line(space, roof.label, start, end, from_right, soft)


def label_line(
    space: Space, text: str, start: tuple[float, float], end: tuple[float, float], from_right: bool, soft: bool
) -> None:
    """Write a text along a line, above or below it, where it covers least."""
    length, angle = math.dist(start, end), math.atan2(end[1] - start[1], end[0] - start[0])
    along, across = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))
    points = 7.5
    width, height = space.size(text, points)
    choices = []
    for side in (2.5, -height - 1.0):
        for step in range(25):
            begin = (length - width) * step / 24
            boxes = []
            for part in range(9):
                at = begin + width * part / 8
                x = start[0] + along[0] * at + across[0] * (side + height / 2)
                y = start[1] + along[1] * at + across[1] * (side + height / 2)
                boxes.append((x - height / 2, y - height / 2, x + height / 2, y + height / 2))
            far = 1 - step / 24 if from_right else step / 24
            cost = sum(map(space.cost, boxes)) + 8 * far + (0 if side > 0 else 6) + (200 if width > length else 0)
            choices.append((cost, begin, side, boxes))
    _, begin, side, boxes = min(choices, key=lambda choice: choice[0])
    for box in boxes:
        space.take(box, 2)
    figure_width, figure_height = space.figure.get_size_inches() * 72
    x = start[0] + along[0] * begin + across[0] * side
    y = start[1] + along[1] * begin + across[1] * side
    space.figure.text(
        x / figure_width,
        y / figure_height,
        text,
        fontsize=points,
        color=SOFT if soft else INK,
        rotation=math.degrees(angle),
        rotation_mode="anchor",
        ha="left",
        va="bottom",
    )


def size_of(chart: Chart, level: str) -> float:
    """Return the size of a level's sign on a chart."""
    stacked = {dot.level for dot in chart.panels[0].dots} & {"l1", "l2"} and len(chart.panels) == 1
    return SIZES.get(level, SIZE) if stacked or level == "requested" else SIZE


def draw_dot(axes: Axes, chart: Chart, x: float, y: float, dot: Dot) -> None:
    """Draw a dot: filled, or as a ring if it lies above its own roof."""
    level, color, hollow = dot.level if not chart.key else "", chart.color(dot.kernel), bool(dot.cause)
    axes.plot(
        [x],
        [y],
        linestyle="none",
        marker=MARKERS[level],
        markersize=size_of(chart, level) + (2 if hollow else 0),
        markerfacecolor="#ffffff" if hollow else color,
        markeredgecolor=color if hollow else "#ffffff",
        markeredgewidth=1.6 if hollow else 0.6,
        zorder=4 + 0.1 * ("l1", "l2", "shared", "", "dram", "requested", "ragged").index(level),
    )


def draw_panel(space: Space, chart: Chart, panel: Panel) -> None:
    """Draw one pair of axes: walls, roofs, paths, dots and labels."""
    axes = space.axes
    for dot in panel.dots:
        x, y = space.at(dot.x, dot.y)
        space.take((x - 4, y - 4, x + 4, y + 4), 2)
    for x, text in panel.walls:
        low, high = (space.at(x, y) for y in axes.get_ylim())
        axes.plot([x, x], axes.get_ylim(), color=SOFT, linewidth=0.9, dashes=(2, 2), zorder=1.5)
        space.take_line(low, high, 0.3)
        width, height = space.size(text, 7)
        left, top = high[0] - 2, high[1] - 3
        place_text(space, left, top - width, text, 7, rotation=90, color=SOFT, ha="right")
        space.take((left - height, top - width, left, top), 3)
    for path in panel.paths:
        for first, second in zip(path, path[1:]):
            space.take_line(space.at(first.x, first.y), space.at(second.x, second.y), 1.5 if panel.sizes else 0.35)
    draw_roofs(space, panel)
    signs = {f"{sign} {meaning}": sign for sign, meaning in chart.key}
    for path in panel.paths:
        for first, second in zip(path, path[1:]):
            if panel.arrows:
                draw_arrow(space, first, second, chart.color(second.kernel))
            else:
                color = chart.color(first.kernel)
                # What picks among the others runs on top of them: wide and behind, so that both are seen.
                under = {"linewidth": 4, "alpha": 0.25, "zorder": 2.5} if first.kernel in chart.black else {}
                style = {"linewidth": 1.1, "zorder": 3, **under}
                axes.plot([first.x, second.x], [first.y, second.y], color=color, **style)
    groups: dict[str, list[Dot]] = {}
    for dot in panel.dots:
        draw_dot(axes, chart, dot.x, dot.y, dot)
        groups.setdefault(dot.kernel, []).append(dot)
    for kernel, dots in groups.items():
        if len({dot.level for dot in dots}) > 1:
            xs, y = [dot.x for dot in dots], dots[0].y
            axes.plot([min(xs), max(xs)], [y, y], color=chart.color(kernel), linewidth=0.8, alpha=0.55, zorder=3)
            space.take_line(space.at(min(xs), y), space.at(max(xs), y), 0.3)
    if panel.sizes:
        label_ends(space, [(path[-1].kernel, chart.color(path[-1].kernel), path[-1]) for path in panel.paths], 7.5)
        groups = {kernel: dots for kernel, dots in groups.items() if dots[0].level}
    # A label goes to a dot that was measured, if there is one.
    texts = [
        (signs.get(kernel, kernel), chart.color(kernel), [dot for dot in dots if dot.level != "requested"] or dots)
        for kernel, dots in sorted(groups.items(), key=lambda item: -max(dot.y for dot in item[1]))
    ]
    label_dots(space, texts, 7.5 if not signs else 8)


def draw_arrow(space: Space, first: Dot, second: Dot, color: str) -> None:
    """Draw an arrow from one dot to the next; a long one is bent, so that there and back are two."""
    far = math.dist(space.at(first.x, first.y), space.at(second.x, second.y)) > 40
    space.axes.annotate(
        "",
        (second.x, second.y),
        (first.x, first.y),
        arrowprops={
            "arrowstyle": "-|>,head_length=0.36,head_width=0.17",
            "connectionstyle": f"arc3,rad={0.13 if far else 0}",
            "color": color,
            "linewidth": 1.0,
            "shrinkA": 3.5,
            "shrinkB": 3.8,
        },
        zorder=3,
    )


def draw_rail(space: Space, chart: Chart, rail: Rail) -> None:
    """Draw the rail: GB/s from zero to the ceiling."""
    axes = space.axes
    highest = max([rail.ceiling.rate, *(dot.x for dot in rail.dots)])
    axes.set(xlim=(0, highest * 1.08), ylim=(0, 1), yticks=[])
    axes.tick_params(length=3, width=0.6, labelsize=7.5)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.plot([0, highest * 1.08], [0.3, 0.3], color=FAINT, linewidth=3, zorder=1, solid_capstyle="butt")
    space.take_line(space.at(0, 0.3), space.at(highest * 1.08, 0.3))
    axes.plot([rail.ceiling.rate] * 2, [0, 1], color=INK, linewidth=1.5, zorder=2)
    space.take_line(space.at(rail.ceiling.rate, 0), space.at(rail.ceiling.rate, 1))
    right, top = space.at(rail.ceiling.rate, 1)
    width, height = space.size(rail.ceiling.label, 7.5)
    place_text(space, right - width - 4, top - height, rail.ceiling.label, 7.5)
    space.take((right - width - 4, top - height, right, top), 2)
    groups = []
    for dot in rail.dots:
        draw_dot(axes, chart, dot.x, 0.3, dot)
        x, y = space.at(dot.x, 0.3)
        space.take((x - 4, y - 4, x + 4, y + 4), 2)
        groups.append((dot.kernel, chart.color(dot.kernel), [Dot(**{**vars(dot), "y": 0.3})]))
    label_dots(space, groups, 7.5)


def draw_signs(figure: Figure, chart: Chart, left: float, bottom: float, height: float) -> None:
    """Draw the key in one line: the sign of each level, what hollow means; or the names that signs stand for."""
    from matplotlib.lines import Line2D

    width = figure.get_size_inches()[0] * 72
    renderer = figure.canvas.get_renderer()
    if chart.key:
        columns, rows = 5, math.ceil(len(chart.key) / 5)
        for place, (sign, meaning) in enumerate(chart.key):
            column, row = place // rows, place % rows
            x, y = left + column * (width - left - 14) / columns, bottom + (rows - 1 - row) * 12
            figure.text(
                x / width, y / height, sign, fontsize=7.5, weight="bold", color=chart.color(f"{sign} {meaning}")
            )
            figure.text((x + 14) / width, y / height, meaning, fontsize=7.5)
        return
    several = any(len({dot.level for dot in panel.dots}) > 1 for panel in chart.panels)
    levels = [level for level in LEVELS if level and any(dot.level == level for dot in chart.dots)]
    entries = [(level, LEVELS[level], False) for level in levels if several]
    if chart.impossible:
        entries.append((chart.impossible[0].level or "dram", "hollow: above its own roof, cause in the table", True))
    x = left
    for level, text, hollow in entries:
        size = size_of(chart, level) + (2 if hollow else 0)
        figure.add_artist(
            Line2D([x / width], [(bottom + 2.8) / height], linestyle="none", marker=MARKERS[level], markersize=size,
                   markerfacecolor="#ffffff" if hollow else SOFT, markeredgecolor=SOFT,
                   markeredgewidth=1.6 if hollow else 0.5)
        )  # fmt: skip
        figure.text((x + 8) / width, bottom / height, text, fontsize=7.5)
        text_width, _, _ = renderer.get_text_width_height_descent(text, _font(7.5), False)
        x += 8 + text_width * 72 / figure.dpi + 16


def draw_steps(figure: Figure, chart: Losses, height: float, top: float, row: float) -> None:
    """Draw a step a row: its name and what it follows from, and a bar from what is left before to what is after.

    The axis begins below what was measured, so the ceiling and what was measured are lines and no bars.
    """
    left, right = 230, 30
    rows = len(chart.steps) + 2
    ends = [end for step in chart.steps for end in (step.before, step.after)]
    low, high = 10 * math.floor((min(ends) - 7) / 10), max(100, *ends)
    bottom = top - rows * row
    axes = figure.add_axes((left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, rows * row / height))
    axes.set(xlim=(low, high + 0.5), ylim=(rows, 0), yticks=[], xlabel="% of the FMA ceiling")
    axes.grid(True, axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, width=0.6, labelsize=7.5)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    space = Space(figure, axes)

    def write(place: int, name: str, why: str, at: float, said: str, color: str) -> None:
        middle = top - (place + 0.5) * row
        place_text(space, 14, middle + 1, name, 8.5, weight="bold", color=color)
        place_text(space, 14, middle - 10, why, 7.5, color=SOFT)
        width, tall = space.size(said, 8)
        place_text(space, space.at(at, 0)[0] - width - 6, middle - tall / 2, said, 8)

    write(0, "FMA ceiling", chart.ceiling.label, 100, "100.00", INK)
    axes.plot([100, 100], [0.2, 1.5], color=INK, linewidth=1.5, solid_capstyle="butt", zorder=3)
    for place, step in enumerate(chart.steps, start=1):
        color = PALETTE[2 * (place - 1) % len(PALETTE)]
        write(place, step.name, step.why, min(step.before, step.after), step.change, color)
        draw_bar(axes, place, step, color)
        axes.plot([step.after] * 2, [place + 0.5, place + 1.5], color=SOFT, linewidth=0.8, zorder=1.5)
    measured = chart.measured
    write(rows - 1, measured.name, measured.why, measured.after, f"{measured.after:.2f}", INK)
    axes.plot([measured.after] * 2, [rows - 0.8, rows - 0.2], color=INK, linewidth=1.5, zorder=3)


def draw_bar(axes: Axes, place: int, step: Step, color: str) -> None:
    """Draw a step's bar: filled, or as an outline if it is no loss."""
    gain = step.after > step.before
    width = step.after - step.before
    face = "#ffffff" if gain else color
    axes.barh([place + 0.5], [width], 0.5, step.before, color=face, edgecolor=color, linewidth=1.2, zorder=3)


def to_svg(chart: Chart | Losses) -> bytes:
    """Return a chart as SVG. Raises Stop without matplotlib."""
    return svg_of(lambda: bars_figure(chart) if isinstance(chart, Losses) else dots_figure(chart), chart.title)


def svg_of(draw: Callable[[], Figure], title: str) -> bytes:
    """Return what `draw` draws, in the style of all pictures, as SVG. Raises Stop without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise Stop(
            "the Python package matplotlib is missing, which draws the charts: scripts/lessons test sets up "
            "build/venv, then use build/venv/bin/python; or python3 -m pip install -r scripts/requirements.txt"
        ) from None

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        stream = io.StringIO()
        draw().savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    return tidy(stream.getvalue()).encode("utf-8")


def new_figure(chart: Picture, height: float) -> Figure:
    """Return a figure with what stands above each chart."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="#ffffff")
    FigureCanvasAgg(figure)  # measures the texts
    figure.text(14 / WIDTH, 1 - 20 / height, chart.title, fontsize=12, weight="bold")
    figure.text(1 - 12 / WIDTH, 1 - 20 / height, chart.device, fontsize=8, color=SOFT, ha="right")
    figure.text(14 / WIDTH, 1 - 34 / height, chart.about, fontsize=8, color=SOFT)
    return figure


def bars_figure(chart: Losses) -> Figure:
    """Return a chart of bars."""
    head, row, foot = 46, 32, 36
    height = head + row * (len(chart.steps) + 2) + foot
    figure = new_figure(chart, height)
    draw_steps(figure, chart, height, height - head, row)
    return figure


def dots_figure(chart: Chart) -> Figure:
    """Return a chart of dots."""
    head, foot, gap = 46, 24 + (12 if len(chart.key) > 5 else 0), 58
    plot = 320 if len(chart.panels) > 1 else 360 if chart.panels[0].sizes else 300
    rail = 58 if chart.rail else 0
    titles = 16 if len(chart.panels) > 1 else 0
    height = head + titles + plot + 34 + rail + foot
    figure = new_figure(chart, height)
    left, right = 46, 12
    count = len(chart.panels)
    shared = count > 2  # the same y axis for all
    between = 14 if shared else gap - 10
    wide = (WIDTH - left - right - between * (count - 1)) / count
    ranges = [limits(panel)[1] for panel in chart.panels]
    for place, panel in enumerate(chart.panels):
        x = left + place * (wide + between)
        axes = figure.add_axes((x / WIDTH, (foot + rail + 34) / height, wide / WIDTH, plot / height))
        set_axes(axes, panel)
        if shared:
            axes.set_ylim(min(low for low, _ in ranges), max(high for _, high in ranges))
            if place:
                axes.set_ylabel("")
                axes.tick_params(axis="y", labelleft=False)
        if count > 1:
            axes.set_title(panel.title, fontsize=9, loc="left", pad=6)
        draw_panel(Space(figure, axes), chart, panel)
    if chart.rail:
        axes = figure.add_axes((left / WIDTH, (foot + 14) / height, (WIDTH - left - right) / WIDTH, 28 / height))
        draw_rail(Space(figure, axes), chart, chart.rail)
        figure.text(left / WIDTH, (foot + 46) / height, chart.rail.title, fontsize=7.5, color=SOFT)
    draw_signs(figure, chart, 18, 9, height)
    return figure


def tidy(svg: str) -> str:
    """Return an SVG that is the same from every machine.

    Its coordinates are in hundredths of a point: more cannot be seen, and the last of six digits may differ between two
    machines' logarithms. Letters are placed as matplotlib 3.10 does; 3.9, the last for Python 3.9, does it otherwise.
    """

    def rounded(match: re.Match) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda digits: f"{float(digits[0]):.2f}", match[0])

    svg = re.sub(r'(<use xlink:href="#DejaVu[^"]*") x="([^"]*)"/>', r'\1 transform="translate(\2 0)"/>', svg)
    return re.sub(r'\b(?:d|x|y|points)="[^"]*"|translate\([^)]*\)', rounded, svg)


def files_of(folder: Path, charts: list[Chart | Losses] | None = None) -> dict[str, bytes]:
    """Return the charts and tables of a folder by file name. Raises Stop."""
    files = {}
    for chart in charts_of(folder)[0] if charts is None else charts:
        files[f"{chart.name}.svg"] = to_svg(chart)
        files[f"{chart.name}.txt"] = table(chart).encode("utf-8")
    return files


NAMES = tuple(f"{name}{ending}" for name in CHARTS for ending in (".svg", ".txt"))  # all that files_of may return


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recorded folder, such as profile/h200")
    parser.add_argument("--out", type=Path, help="where the files go (default: into the folder)")
    parser.add_argument("--table", action="store_true", help="print the tables alone")
    parser.add_argument(
        "--strict", action="store_true", help="fail if a dot lies above its own roof, and is not meant to"
    )
    options = parser.parse_args(arguments)
    try:
        if not options.folder.is_dir():
            raise Stop(f"{options.folder}: no such folder: name one such as profile/h200")
        charts, lacking = charts_of(options.folder)
        if not charts:
            reasons = "; ".join(sorted(set(lacking.values())))
            raise Stop(f"{options.folder}: no chart can be made: {reasons}: record: scripts/evidence.py record")
        if options.table:
            print("\n\n".join(table(chart) for chart in charts), end="")
        else:
            out = options.out or options.folder
            out.mkdir(parents=True, exist_ok=True)
            for name, data in files_of(options.folder, charts).items():
                write_whole(out / name, data)
            for chart in charts:
                print(f"{out / chart.name}.svg, .txt: {chart.said}")
            for name, reason in lacking.items():
                print(f"{name}: not drawn: {reason}")
        flush_stdout()
    except Stop as stop:
        print(stop, file=sys.stderr)
        return 1
    except OSError as error:
        say_failed(error)
        return 1
    above = [(chart, dot) for chart in charts for dot in chart.impossible if not dot.meant]
    if options.strict and above:
        for chart, dot in above:
            print(f"{chart.name}: {dot.kernel}, {LEVELS[dot.level]}: {dot.percent:.1f} %: {dot.cause}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
