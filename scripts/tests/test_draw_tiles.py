"""scripts/draw_tiles.py: its formulas are those of the program, and the picture shows them and is up to date."""

import importlib
import re
import subprocess
import sys
import xml.etree.ElementTree
from collections import Counter
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
SCRIPT = SCRIPTS / "draw_tiles.py"
sys.path.insert(0, str(SCRIPTS))
DRAW = importlib.import_module("draw_tiles")

DAY = "day44-matmul/matmul_registers.cu"
# Where in the program stands who owns which output: the first line of each piece, and what ends it.
PIECES = (
    ("enum class Guard {", "\n};\n"),
    ("template <class Sizes>\nstruct Tile : Sizes {", "\n};\n"),
    ("template <class T>\nstruct ThreadCoordinates {", "\n};\n"),
    ("template <class T, class Use>\n__device__ void forEachFour(", "\n}\n"),
    ("struct WarpTiles {", "\n};\n"),
    ("struct DoubleBuffered : WarpTiles {", "\n};\n"),
    ("struct WideThreads : DoubleBuffered {", "\n};\n"),
    ("struct Balanced : WideThreads {", "\n};\n"),
)
# Prints the sizes of a block, and of each four outputs: thread, which four of its own, row and column.
MAIN = """
template <class Sizes>
void print() {
  using T = Tile<Sizes>;
  std::printf("%d %d %d %d %d\\n", T::kM, T::kN, T::kOutM, T::kOutN, T::kThreads);
  for (threadIdx.x = 0; threadIdx.x < T::kThreads; ++threadIdx.x)
    forEachFour<T>(ThreadCoordinates<T>(), [](int n, int row, int column) {
      std::printf("%d %d %d %d\\n", threadIdx.x, n, row, column);
    });
}
"""


def pieces_of(day):
    """Return what of the program says who owns which output."""
    text, pieces = day.read_text(encoding="utf-8"), []
    for head, end in PIECES:
        assert text.count(head) == 1, f"{day} has no longer one {head!r}"
        start = text.index(head)
        pieces.append(text[start : text.index(end, start) + len(end)])
    return "\n".join(pieces)


def program_says(cxx, folder, pieces, structure):
    """Return the sizes and the owner of each four outputs, as pieces of the program compiled for the CPU say."""
    source = folder / "tiles.cpp"
    head = "#include <algorithm>\n#include <cstdio>\n#define __device__\nstruct {\n  int x;\n} threadIdx;\n"
    source.write_text(f"{head}{pieces}{MAIN}int main() {{ print<{structure}>(); }}\n", encoding="utf-8")
    subprocess.run([cxx, "-std=c++17", source, "-o", folder / "tiles"], check=True)
    done = subprocess.run([folder / "tiles"], stdout=subprocess.PIPE, encoding="utf-8", check=True)
    first, *rest = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    return first, Counter(rest)


def script_says(tiles):
    """Return the same as the script has it."""
    fours = Counter(
        (32 * warp + lane, (i * tiles.out_n + j) // 4, *tiles.output(warp, lane, i, j))
        for warp in range(tiles.warps)
        for lane in range(32)
        for i in range(tiles.out_m)
        for j in range(0, tiles.out_n, 4)
    )
    return (tiles.m, tiles.n, tiles.out_m, tiles.out_n, 32 * tiles.warps), fours


SHOWN = [(tiles, structure) for tiles in DRAW.TILES for structure in tiles.structures]


@pytest.mark.parametrize(("tiles", "structure"), SHOWN, ids=[structure for _, structure in SHOWN])
def test_the_formulas_are_those_of_the_program(tiles, structure, cxx, source_dir, tmp_path):
    assert program_says(cxx, tmp_path, pieces_of(source_dir / DAY), structure) == script_says(tiles)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("(lane >> 1 & 1) | (lane >> 2", "(lane >> 2 & 1) | (lane >> 1", 0),
        ("(lane & 1) | (lane >> 1 & 2)", "(lane & 3)", 1),
        ("(tall ? 6 : 2)", "2", 1),
        ("lane >> 2 & 4)", "lane >> 1 & 4)", 0),
        ("warp % T::kWarpsM * T::kWarpM", "warp / T::kWarpsN * T::kWarpM", 0),
        ("i / 4 * 4 * kLanesM + i % 4", "i", 1),
        ("at.column + j * T::kLanesN", "at.column + j", 0),
        ("kM = 128, kN = 128", "kM = 256, kN = 128", 0),
        ("kN = 256", "kN = 128", 1),
        ("kOutN = 16", "kOutN = 8", 1),
    ],
)
def test_another_program_is_seen(old, new, place, cxx, source_dir, tmp_path):
    pieces = pieces_of(source_dir / DAY)
    assert pieces.count(old) == 1
    tiles = DRAW.TILES[place]
    assert program_says(cxx, tmp_path, pieces.replace(old, new), tiles.structures[0]) != script_says(tiles)


def test_the_loop_reads_where_the_outputs_lie(source_dir):
    """The loads that are drawn are those of a thread's rows and columns, as far apart as its outputs are."""
    text = (source_dir / DAY).read_text(encoding="utf-8")
    assert "readWide(inA[set], fromA, 4 * T::kLanesM);" in text
    assert "readWide(inB[set], fromB, 4 * T::kLanesN);" in text


@pytest.mark.parametrize("tiles", DRAW.TILES, ids=lambda tiles: tiles.rungs)
def test_every_output_of_a_block_is_of_one_warp_lane_i_and_j(tiles):
    owned = Counter(
        tiles.output(warp, lane, i, j)
        for warp in range(tiles.warps)
        for lane in range(32)
        for i in range(tiles.out_m)
        for j in range(tiles.out_n)
    )
    assert owned == Counter((row, column) for row in range(tiles.m) for column in range(tiles.n))


@pytest.mark.parametrize("tiles", DRAW.TILES, ids=lambda tiles: tiles.rungs)
def test_lanes_share_addresses_as_the_picture_says(tiles):
    for lane in range(32):
        assert tiles.row_of(lane, 0) == tiles.row_of(lane ^ 1, 0)
        assert tiles.column_of(lane, 0) == tiles.column_of(lane ^ 2, 0)


class Recorder:
    """Takes what a picture would draw, and keeps what is written into its boxes."""

    def __init__(self):
        self.labels = []

    def label(self, x, y, text, *_, **__):
        self.labels.append((x, y, text))

    def box(self, *_, **__):
        pass

    lines = text = box


@pytest.mark.parametrize("tiles", DRAW.TILES, ids=lambda tiles: tiles.rungs)
def test_numbers_stand_where_their_outputs_lie(tiles):
    owner = {tiles.output(0, lane, i, j): lane for lane in range(32) for i in range(8) for j in range(tiles.out_n)}
    recorder = Recorder()
    DRAW.draw_warp(recorder, tiles, 0)
    shown = {
        (int(y / DRAW.IN_WARP) * 4, int((x - DRAW.WARP_LEFT) / DRAW.IN_WARP) * 4): int(text)
        for x, y, text in recorder.labels
        if text.isdigit()
    }
    assert shown == {(row, column): lane for (row, column), lane in owner.items() if row % 4 == column % 4 == 0}

    recorder = Recorder()
    DRAW.draw_block(recorder, tiles, 0)
    scale = DRAW.IN_BLOCK / 4
    for x, y, text in recorder.labels:
        row, column = y / scale - tiles.warp_m / 2, (x - DRAW.BLOCK_LEFT) / scale - tiles.warp_n / 2
        assert (row, column) == pytest.approx(tiles.warp_at(int(text)))
    assert len(recorder.labels) == tiles.warps

    recorder = Recorder()
    DRAW.draw_lanes(recorder, tiles, 0)
    width = (DRAW.WIDTH - 14 - DRAW.LANES_LEFT) / 32
    for lane in range(32):
        for place, value in ((0, lane), (1, tiles.row_of(lane, 0)), (2, tiles.column_of(lane, 0))):
            middle = DRAW.LANES_LEFT + (lane + 0.5) * width
            row = [(abs(x - middle), int(text)) for x, y, text in recorder.labels if int(y / 13) == place]
            assert min(row)[0] <= width / 2 + 1e-6 and value in [text for far, text in row if far <= width / 2 + 1e-6]


# ---- the file --------------------------------------------------------------------------------------------------------


def run(*arguments, code=0, **more):
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, encoding="utf-8", check=False, **more
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The picture, drawn by another process."""
    pytest.importorskip("matplotlib", reason="no matplotlib: scripts/lessons test installs it")
    path = tmp_path_factory.mktemp("drawn") / "tiles.svg"
    assert run("--out", path).stdout == f"{path}: drawn\n"
    return path


def test_the_picture_is_up_to_date(drawn, source_dir):
    assert (source_dir / "day44-matmul/tiles.svg").read_bytes() == drawn.read_bytes(), "scripts/draw_tiles.py draws it"
    assert DRAW.to_svg() == drawn.read_bytes()


def test_check_writes_nothing_and_sees_another_file(drawn, tmp_path):
    copy = tmp_path / "tiles.svg"
    said = f"{copy}: not what would be drawn: scripts/draw_tiles.py draws it\n"
    assert run("--check", "--out", copy, code=1).stderr == said and not copy.exists()
    copy.write_bytes(drawn.read_bytes())
    run("--check", "--out", copy)
    copy.write_bytes(drawn.read_bytes().replace(b"</svg>", b"</svg> "))
    before = copy.read_bytes()
    assert run("--check", "--out", copy, code=1).stderr == said and copy.read_bytes() == before


def test_the_picture_is_opaque_800_pixels_wide_and_without_a_date(drawn):
    """Opaque, as the charts are: it reads the same on a dark page."""
    text = drawn.read_text(encoding="utf-8")
    assert xml.etree.ElementTree.fromstring(text).get("width") == "600pt"
    assert re.search(r'<g id="patch_1">\s*<path d="[^"]*" style="fill: #ffffff"', text)
    assert not re.search(r"20[0-9]{2}-[01][0-9]|dc:date|matplotlib\.org", text)
    assert len(text) < 300_000


def test_no_text_lies_on_another_or_sticks_out(drawn):
    """Measured by matplotlib, in the figure from which the file is made."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(importlib.import_module("plot_roofline").STYLE):
        figure = DRAW.figure_of()
        FigureCanvasAgg(figure)
        renderer = figure.canvas.get_renderer()
        boxes = [(text.get_text(), text.get_window_extent(renderer).extents.tolist()) for text in figure.axes[0].texts]
    assert len(boxes) > 400
    for place, (text, (left, low, right, high)) in enumerate(boxes):
        assert left > 10 and right < DRAW.WIDTH - 10 and low > 4, text
        for other, (x0, y0, x1, y1) in boxes[:place]:
            # An em is higher than the digits in it: a point of it may lie in the next line's.
            assert min(right, x1) <= max(left, x0) or min(high, y1) - max(low, y0) <= 1, (text, other)


def test_a_missing_matplotlib_is_named(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('planted')\n", encoding="utf-8")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert "matplotlib is missing" in run("--check", code=1, env=environment).stderr


def test_bad_usage(tmp_path):
    run("--draw", code=2)
    assert "No such file" in run("--out", tmp_path / "none" / "tiles.svg", code=1).stderr
