#!/usr/bin/env python3
"""Draw which outputs of day 44's product a block, a warp and a lane own, and which addresses lanes share.

    scripts/draw_tiles.py           writes day44-matmul/tiles.svg, 800 pixels wide
    scripts/draw_tiles.py --check   writes nothing; fails if the file is not what would be drawn

The picture follows from formulas alone, those of Tile, ThreadCoordinates and forEachFour in
day44-matmul/matmul_registers.cu, which stand here once more; scripts/tests/test_draw_tiles.py compiles the originals
and compares every output.

Exit code: 0 done, or the file is up to date; 1 it is not, or something is wrong; 2 bad usage.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plot_roofline import FAINT, SOFT, WIDTH, svg_of
from rooflines import INK, PALETTE, Stop
from sync_common import flush_stdout, say_failed, write_whole

if TYPE_CHECKING:  # the formulas need no matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = Path(__file__).resolve().parent.parent / "day44-matmul" / "tiles.svg"
LANES = 32


# ---- who owns what, as in day44-matmul/matmul_registers.cu -----------------------------------------------------------


@dataclass(frozen=True)
class Tiles:
    """The tiles of some rungs: a block's outputs are m x n, a warp is 64 wide, a thread has 8 x out_n (Tile)."""

    rungs: str
    structures: tuple[str, ...]  # in the program
    m: int
    n: int
    out_n: int
    out_m: int = 8
    warp_n: int = 64

    @property
    def lanes_n(self) -> int:
        """Return how many lanes of a warp lie beside each other (Tile::kLanesN)."""
        return self.warp_n // self.out_n

    @property
    def lanes_m(self) -> int:
        """Return how many lanes of a warp lie below each other (Tile::kLanesM)."""
        return LANES // self.lanes_n

    @property
    def warp_m(self) -> int:
        """Return how many rows of outputs a warp has (Tile::kWarpM)."""
        return self.out_m * self.lanes_m

    @property
    def warps_m(self) -> int:
        """Return how many warps of a block lie below each other (Tile::kWarpsM)."""
        return self.m // self.warp_m

    @property
    def warps(self) -> int:
        """Return how many warps a block has."""
        return self.warps_m * (self.n // self.warp_n)

    def lane_at(self, lane: int) -> tuple[int, int]:
        """Return a lane's row and column among the lanes of its warp (laneM, laneN of ThreadCoordinates)."""
        tall = self.lanes_m == 8
        lane_m = (lane >> 1 & 1) | (lane >> 2 & (6 if tall else 2))
        lane_n = (lane & 1) | (lane >> 1 & 2) | (0 if tall else lane >> 2 & 4)
        return lane_m, lane_n

    def warp_at(self, warp: int) -> tuple[int, int]:
        """Return the first row and column of a warp in its block (ThreadCoordinates)."""
        return warp % self.warps_m * self.warp_m, warp // self.warps_m * self.warp_n

    def row_of(self, lane: int, i: int) -> int:
        """Return the row within the warp of a lane's outputs i (Tile::rowOf)."""
        return 4 * self.lane_at(lane)[0] + i // 4 * 4 * self.lanes_m + i % 4

    def column_of(self, lane: int, j: int) -> int:
        """Return the column within the warp of a lane's outputs j (forEachFour)."""
        return 4 * self.lane_at(lane)[1] + j // 4 * 4 * self.lanes_n + j % 4

    def output(self, warp: int, lane: int, i: int, j: int) -> tuple[int, int]:
        """Return row and column in the block of output i, j of a lane of a warp."""
        row, column = self.warp_at(warp)
        return row + self.row_of(lane, i), column + self.column_of(lane, j)


TILES = (
    Tiles("Rungs 7 and 8", ("WarpTiles", "DoubleBuffered"), 128, 128, 8),
    Tiles("Rung 10", ("Balanced",), 128, 256, 16),
)


# ---- the picture -----------------------------------------------------------------------------------------------------

SHOWN_WARP, SHOWN_LANE = 5, 13  # neither lies in a corner, in any of TILES
OUTPUT, A, B = PALETTE[0], PALETTE[5], PALETTE[1]
LINE = "#c4cbd3"  # between the squares of a tile: seen, and weaker than what is written in them
# In points: a square of four rows and four columns in each of the pictures. They are the same for all TILES, so that
# sizes can be compared.
IN_BLOCK, IN_WARP, IN_THREAD = 2.1, 15.0, 21.0
GAP = 3.0  # between the squares of a thread, which do not lie together
STRIP = 6.0  # how thick the operands are
BLOCK_LEFT, WARP_LEFT, THREAD_LEFT, LANES_LEFT = 14.0, 210.0, 494.0, 74.0
SMALL, TEXT = 6.5, 7.5


def tint(color: str, share: float) -> str:
    """Return a colour thinned with white."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)


class Picture:
    """A picture in points, from its upper left corner."""

    def __init__(self, axes: Axes):
        self.axes = axes

    def box(self, x: float, y: float, width: float, height: float, **look: Any) -> None:
        """Draw a rectangle; without an edge if none is given."""
        from matplotlib.patches import Rectangle

        look = {"facecolor": "none", "edgecolor": "none", "linewidth": 0.6, "clip_on": False, **look}
        self.axes.add_patch(Rectangle((x, y), width, height, **look))

    def lines(self, xs: list[float], ys: list[float], **look: Any) -> None:
        """Draw a grid from the first to the last of these coordinates, as one path: that keeps the file small."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        ends = [end for x in xs for end in ((x, ys[0]), (x, ys[-1]))]
        ends += [end for y in ys for end in ((xs[0], y), (xs[-1], y))]
        outline = Outline(ends, [Outline.MOVETO, Outline.LINETO] * (len(ends) // 2))
        look = {"edgecolor": LINE, "linewidth": 0.5, "zorder": 2, **look}
        self.axes.add_patch(PathPatch(outline, facecolor="none", clip_on=False, **look))

    def text(self, x: float, y: float, text: str, points: float = TEXT, **look: Any) -> None:
        """Write a text on the line y, from x on."""
        self.axes.text(x, y, text, **{"fontsize": points, "zorder": 4, **look})

    def label(self, x: float, y: float, text: str, points: float = SMALL, **look: Any) -> None:
        """Write a text around x, y."""
        self.text(x, y, text, points, ha="center", va="center_baseline", **look)


def stretch(first: int, count: int = 4) -> str:
    """Return a stretch of rows or columns as text."""
    return f"{first}–{first + count - 1}"


def draw_block(picture: Picture, tiles: Tiles, top: float) -> None:
    """Draw a block and its numbered warps."""
    scale = IN_BLOCK / 4
    left, width, height = BLOCK_LEFT, tiles.warp_n * scale, tiles.warp_m * scale
    for warp in range(tiles.warps):
        row, column = tiles.warp_at(warp)
        x, y, shown = left + column * scale, top + row * scale, warp == SHOWN_WARP
        picture.box(x, y, width, height, edgecolor=INK, facecolor=FAINT if shown else "none")
        picture.label(x + width / 2, y + height / 2, str(warp), TEXT, weight="bold" if shown else "normal")
    below = top + tiles.m * scale + 12
    picture.text(left, below, f"{tiles.warps} warps of {tiles.warp_m} × {tiles.warp_n}", SMALL, color=SOFT)


def draw_warp(picture: Picture, tiles: Tiles, top: float) -> None:
    """Draw a warp with the lane that owns each square, and the loads of A and of B beside it."""
    left, rows, columns = WARP_LEFT, tiles.warp_m // 4, tiles.warp_n // 4
    width, height = columns * IN_WARP, rows * IN_WARP
    above, beside = top - STRIP - 3, left - STRIP - 3
    for row in {tiles.row_of(SHOWN_LANE, i) // 4 for i in range(tiles.out_m)}:
        picture.box(left, top + row * IN_WARP, width, IN_WARP, facecolor=tint(A, 0.3))
        picture.box(beside, top + row * IN_WARP, STRIP, IN_WARP, facecolor=A)
    for column in {tiles.column_of(SHOWN_LANE, j) // 4 for j in range(tiles.out_n)}:
        picture.box(left + column * IN_WARP, top, IN_WARP, height, facecolor=tint(B, 0.3))
        picture.box(left + column * IN_WARP, above, IN_WARP, STRIP, facecolor=B)
    for lane in range(LANES):
        for i in range(0, tiles.out_m, 4):
            for j in range(0, tiles.out_n, 4):
                x = left + tiles.column_of(lane, j) // 4 * IN_WARP
                y = top + tiles.row_of(lane, i) // 4 * IN_WARP
                shown = lane == SHOWN_LANE
                if shown:
                    picture.box(x, y, IN_WARP, IN_WARP, facecolor=OUTPUT, zorder=1.5)
                color = "#ffffff" if shown else INK
                picture.label(x + IN_WARP / 2, y + IN_WARP / 2, str(lane), color=color)
    xs, ys = [left + i * IN_WARP for i in range(columns + 1)], [top + i * IN_WARP for i in range(rows + 1)]
    picture.lines(xs, ys)
    picture.lines(xs, [above, above + STRIP])
    picture.lines([beside, beside + STRIP], ys)
    # Each load of a warp is one stretch of the operand.
    xs, ys = xs[:: tiles.lanes_n], ys[:: tiles.lanes_m]
    strong = {"edgecolor": INK, "linewidth": 0.9, "zorder": 3}
    picture.lines(xs, ys, **strong)
    picture.lines(xs, [above, above + STRIP], **strong)
    picture.lines([beside, beside + STRIP], ys, **strong)
    for load, x in enumerate(xs[:-1]):
        text = f"columns {stretch(load * 4 * tiles.lanes_n, 4 * tiles.lanes_n)}"
        picture.label(x + tiles.lanes_n * IN_WARP / 2, above - 6, text, color=SOFT)
    for load, y in enumerate(ys[:-1]):
        text = f"rows {stretch(load * 4 * tiles.lanes_m, 4 * tiles.lanes_m)}"
        middle = y + tiles.lanes_m * IN_WARP / 2
        picture.text(
            beside - 6, middle, text, SMALL, color=SOFT, rotation=90, ha="center", va="center", rotation_mode="default"
        )
    picture.text(left + width + 5, above + STRIP, "B", weight="bold")
    picture.label(beside + STRIP / 2, top + height + 7, "A", TEXT, weight="bold")


def draw_thread(picture: Picture, tiles: Tiles, top: float) -> None:
    """Draw the outputs of one lane as squares, with the rows and columns of the warp where they lie."""
    left, step = THREAD_LEFT, IN_THREAD + GAP
    across, down = tiles.out_n // 4, tiles.out_m // 4
    for i in range(down):
        y = top + i * step
        picture.box(left - STRIP - 3, y, STRIP, IN_THREAD, facecolor=A)
        row = stretch(tiles.row_of(SHOWN_LANE, 4 * i))
        picture.text(left - STRIP - 6, y + IN_THREAD / 2, row, SMALL, color=SOFT, ha="right", va="center_baseline")
        for j in range(across):
            x = left + j * step
            picture.box(x, y, IN_THREAD, IN_THREAD, facecolor=OUTPUT)
            edges = [IN_THREAD * part / 4 for part in range(5)]
            picture.lines([x + edge for edge in edges], [y + edge for edge in edges], edgecolor="#ffffff")
    for j in range(across):
        x = left + j * step
        picture.box(x, top - STRIP - 3, IN_THREAD, STRIP, facecolor=B)
        picture.label(x + IN_THREAD / 2, top - STRIP - 9, stretch(tiles.column_of(SHOWN_LANE, 4 * j)), color=SOFT)
    below = top + down * step + 9
    loads = f"{down} loads of A, {across} of B"
    picture.text(left - STRIP - 3, below, loads, SMALL, color=SOFT)
    picture.text(left - STRIP - 3, below + 10, f"and {tiles.out_m * tiles.out_n} FMAs a step of k", SMALL, color=SOFT)


def draw_lanes(picture: Picture, tiles: Tiles, top: float) -> None:
    """Draw from where on each lane reads with the first load of A and with the first of B."""
    width, height = (WIDTH - 14 - LANES_LEFT) / LANES, 13.0
    rows = (
        ("lane", OUTPUT, lambda lane: lane),
        ("A, from row", tint(A, 0.45), lambda lane: tiles.row_of(lane, 0)),
        ("B, from column", tint(B, 0.45), lambda lane: tiles.column_of(lane, 0)),
    )
    for place, (name, color, value) in enumerate(rows):
        y = top + place * height
        picture.text(14, y + height / 2, name, SMALL, va="center_baseline")
        edges = [LANES_LEFT]
        for found, lanes in itertools.groupby(range(LANES), value):  # neighbours with one address have one box
            left, right = edges[-1], edges[-1] + len(list(lanes)) * width
            if found == value(SHOWN_LANE):
                picture.box(left, y, right - left, height, facecolor=color)
            dark = color == OUTPUT and found == SHOWN_LANE
            picture.label((left + right) / 2, y + height / 2, str(found), color="#ffffff" if dark else INK)
            edges.append(right)
        picture.lines(edges, [y, y + height])


def height_of(tiles: Tiles) -> float:
    """Return the height of what draw_tiles draws."""
    return 58 + tiles.warp_m / 4 * IN_WARP + 32 + 3 * 13


def draw_tiles(picture: Picture, tiles: Tiles, top: float) -> None:
    """Draw block, warp, thread and loads of some rungs."""
    heading = f"{tiles.rungs}: a thread has {tiles.out_m} × {tiles.out_n} outputs"
    picture.text(14, top + 10, heading, 9.5, weight="bold")
    titles = top + 28
    picture.text(BLOCK_LEFT, titles, f"Block: {tiles.m} × {tiles.n} outputs")
    warp = f"Warp {SHOWN_WARP}: {tiles.warp_m} × {tiles.warp_n} outputs; each square is one lane's 4 × 4"
    picture.text(WARP_LEFT, titles, warp)
    picture.text(THREAD_LEFT - STRIP - 3, titles, f"Lane {SHOWN_LANE}: {tiles.out_m} × {tiles.out_n} outputs")
    grids = top + 58
    draw_block(picture, tiles, grids)
    draw_warp(picture, tiles, grids)
    draw_thread(picture, tiles, grids)
    below = grids + tiles.warp_m / 4 * IN_WARP + 26
    picture.text(14, below, "The four values that each lane reads with its first load of A and of B in a step of k")
    draw_lanes(picture, tiles, below + 6)


TITLE = "Day 44: which outputs a block, a warp and a lane own"
ABOUT = (
    "Rows and columns are counted from the warp's first. Heavy lines separate the 128-bit loads of A and of B.",
    "Lanes i and i ^ 1 read the same rows of A, i and i ^ 2 the same columns of B: a load takes 2 wavefronts, not 4.",
)


def figure_of() -> Figure:
    """Return the picture, in the style that is set."""
    from matplotlib.figure import Figure

    head, between, foot = 58, 24, 14
    height = head + sum(map(height_of, TILES)) + between * (len(TILES) - 1) + foot
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="#ffffff")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    picture = Picture(axes)
    picture.text(14, 20, TITLE, 12, weight="bold")
    for line, text in enumerate(ABOUT):
        picture.text(14, 34 + 11 * line, text, 8, color=SOFT)
    top = head
    for tiles in TILES:
        draw_tiles(picture, tiles, top)
        top += height_of(tiles) + between
    return figure


def to_svg() -> bytes:
    """Return the picture as SVG. Raises Stop without matplotlib."""
    return svg_of(figure_of, TITLE)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file differs")
    parser.add_argument("--out", type=Path, default=FILE, help="the file (default: day44-matmul/tiles.svg)")
    options = parser.parse_args(arguments)
    try:
        data = to_svg()
        if not options.check:
            write_whole(options.out, data)
            print(f"{options.out}: drawn")
        elif not options.out.exists() or options.out.read_bytes() != data:
            raise Stop(f"{options.out}: not what would be drawn: scripts/draw_tiles.py draws it")
        flush_stdout()
    except Stop as stop:
        print(stop, file=sys.stderr)
        return 1
    except OSError as error:
        say_failed(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
