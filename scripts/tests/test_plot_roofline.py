"""scripts/plot_roofline.py and scripts/rooflines.py: what stands where, what is refused, and pictures that repeat."""

import importlib
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from charts_data import BEST, EXECUTED, FFMA, FMA_LOADS, add, edit, fill, records, write_executed

SCRIPTS = Path(__file__).resolve().parents[1]
SCRIPT = SCRIPTS / "plot_roofline.py"
sys.path.insert(0, str(SCRIPTS))
ROOFLINES = importlib.import_module("rooflines")
PLOT = importlib.import_module("plot_roofline")

NAMES = list(ROOFLINES.CHARTS)
WITH_DOTS = [name for name in NAMES if name != "day44-losses"]
FLOP_CHARTS = ("day49-dram", "day49-hierarchical")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with every day recorded, which no test changes."""
    return fill(tmp_path_factory.mktemp("recorded") / "h200")


@pytest.fixture
def folder(tmp_path):
    """A folder with every day recorded, for one test to change."""
    return fill(tmp_path / "h200")


@pytest.fixture(scope="module")
def drawn(recorded):
    """The files of every chart by name."""
    pytest.importorskip("matplotlib", reason="no matplotlib: scripts/lessons test installs it")
    return PLOT.files_of(recorded)


def chart(folder, name):
    charts, lacking = ROOFLINES.charts_of(folder)
    return next((chart for chart in charts if chart.name == name), None) or pytest.fail(f"{name}: {lacking[name]}")


def dot(chart, kernel, level):
    found = [dot for dot in chart.dots if (dot.kernel, dot.level) == (kernel, level)]
    assert len(found) == 1, (kernel, level, found)
    return found[0]


def run(*arguments, code=0):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done


# ---- what stands on the charts ---------------------------------------------------------------------------------------


def test_every_chart_can_be_made(recorded):
    charts, lacking = ROOFLINES.charts_of(recorded)
    assert [chart.name for chart in charts] == NAMES and lacking == {}


@pytest.mark.parametrize("name", [*FLOP_CHARTS, "day49-instruction"])
def test_ten_kernels_in_ten_marks_out(recorded, name):
    kernels = [row["variant"] for row in records(recorded / "day49.jsonl", "row")]
    assert len(kernels) == 10
    for level in {dot.level for dot in chart(recorded, name).dots} - {"requested", "l1", "l2"}:
        marked = [dot.kernel for dot in chart(recorded, name).dots if dot.level == level]
        assert sorted(marked) == sorted(kernels)


@pytest.mark.parametrize("name", FLOP_CHARTS)
def test_kernels_without_flop_stand_on_the_rail_and_nowhere_else(recorded, name):
    made = chart(recorded, name)
    assert [dot.kernel for dot in made.rail.dots] == ["transpose, naive", "transpose, tiled"]
    assert not {dot.kernel for dot in made.rail.dots} & {dot.kernel for panel in made.panels for dot in panel.dots}
    naive = made.rail.dots[0]
    assert naive.x == pytest.approx(539_390_976 / 0.962047994e6) and naive.percent == pytest.approx(13.36, abs=0.05)


def test_a_kernel_that_moved_no_byte_of_dram_is_not_lost(folder):
    edit(folder / "day49-merged.jsonl", lambda record: {**record, "dram_bytes": 0}, symbol="matmulNaive")
    made = chart(folder, "day49-dram")
    assert dot(made, "matmul, naive", "dram") in made.rail.dots and dot(made, "matmul, naive", "dram").x == 0


def test_without_counters_the_requested_bytes_must_do_and_it_is_said(folder):
    (folder / "day49-merged.jsonl").unlink()
    made = chart(folder, "day49-dram")
    assert len(made.dots) == 10 and {dot.level for dot in made.dots} == {"requested"}
    assert "no counters are recorded" in made.about and "request" in made.rail.title
    assert [dot.kernel for dot in made.rail.dots] == ["transpose, naive", "transpose, tiled"]


def test_places_of_dots(recorded):
    made = chart(recorded, "day49-dram")
    naive = dot(made, "matmul, naive", "dram")
    assert naive.x == pytest.approx(2 * 512**3 / 2_103_040)
    assert naive.y == pytest.approx(2 * 512**3 / 0.0580444468e6)
    assert naive.roof == pytest.approx(66037.2611)  # right of the ridge
    add_ = dot(made, "vector add", "dram")
    assert add_.roof == pytest.approx(4196.00859 * add_.x)
    requested = dot(made, "matmul, naive", "requested")
    assert (requested.y, requested.percent) == (naive.y, pytest.approx(441.29, abs=0.01))


def test_levels_have_their_own_roofs(recorded):
    made = chart(recorded, "day49-hierarchical")
    for level, ceiling in (("l1", 32633.8), ("l2", 9040.6), ("dram", 4200.3)):
        one = dot(made, "vector add", level)
        assert one.roof == pytest.approx(ceiling * one.x)
    assert len({dot(made, "stencil, global", level).y for level in ("l1", "l2", "dram")}) == 1


def test_levels_are_read_through_level_and_kind(folder):
    edit(folder / "day30.jsonl", lambda record: {**record, "variant": f"name {record['ms']}"}, record="ceiling")
    roofs = {roof.name: roof.rate for roof in chart(folder, "day49-hierarchical").panels[0].roofs}
    assert roofs == {"L1 read": 32633.8, "L2 read": 9040.6, "DRAM copy": 4200.3, "FP32 FMA": 66319.1} | {
        "FP32 without FMA": 33115.4
    }


def test_transactions_of_the_instruction_roofline(recorded):
    made = chart(recorded, "day49-instruction")
    tiled = dot(made, "matmul, tiled 16", "l1")
    assert tiled.amount == 68_157_440 / 32 + 4 * (6_295_068 + 560_642)
    assert tiled.work == 15_785_984
    assert tiled.roof == pytest.approx(32633.8 / 32 * tiled.x)
    assert dot(made, "transpose, naive", "l2").x == pytest.approx(52_428_800 / 75_497_472)


def test_walls_by_definition_and_kernels_beside_them(recorded):
    made = chart(recorded, "day49-walls")
    of_global, of_shared = made.panels
    assert [x for x, _ in of_global.walls] == [1, 1 / 4, 1 / 32]
    assert [x for x, _ in of_shared.walls] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]
    places = {dot.kernel: dot.x for dot in of_global.dots}
    assert places["vector add"] == pytest.approx(1 / 4) and places["vector add, stride 32"] == pytest.approx(1 / 32)
    assert places["transpose, naive"] == pytest.approx(2 / 36)
    assert {dot.kernel for dot in of_shared.dots} == {
        *("transpose, tiled", "matmul, tiled 16", "block reduction", "stencil, tiled")
    }


def add_patterns(folder):
    """Add access patterns of both kinds of memory."""
    row = records(folder / "day49.jsonl", "row")[0]
    merged = next(line for line in records(folder / "day49-merged.jsonl", "merged") if line["symbol"] == row["symbol"])
    none = {"global_instructions": 0, "global_sectors": 0, "shared_instructions": 0, "shared_wavefronts": 0}
    for level, ways, counts in (
        ("global", 32, {"global_instructions": 1000, "global_sectors": 32_000}),
        ("shared", 4, {"shared_instructions": 1000, "shared_wavefronts": 4000}),
    ):
        same = {"variant": f"{level} {ways}", "symbol": f"{level}Micro", "flop": 0}
        add(folder / "day49.jsonl", {**row, **same, "record": "pattern", "level": level, "transactions": ways})
        add(folder / "day49-merged.jsonl", {**merged, **same, **none, **counts})


def test_access_patterns_stand_among_the_walls_alone(folder):
    add_patterns(folder)
    of_global, of_shared = chart(folder, "day49-walls").panels
    assert [dot.x for dot in of_global.dots if dot.kernel == "global 32"] == [1 / 32]
    assert [dot.x for dot in of_shared.dots if dot.kernel == "shared 4"] == [1 / 4]
    for name in (*FLOP_CHARTS, "day49-instruction"):
        assert len({dot.kernel for dot in chart(folder, name).dots}) == 10


def test_the_ladder_in_order_at_each_size_where_all_rungs_ran(recorded):
    made = chart(recorded, "day44-ladder")
    assert [panel.title for panel in made.panels] == ["512 cubed", "1024 cubed", "2048 cubed"]
    for panel in made.panels:
        assert panel.arrows and [dot.kernel.split()[0] for dot in panel.paths[0]] == [str(n) for n in range(3, 13)]
        assert [roof.name for roof in panel.references] == ["cuBLAS"]
    best = dot_of_size(made.panels[2], "10 8 x 16, cp.async")
    assert (best.x, best.y) == (pytest.approx(40.96), pytest.approx(51714.1935, rel=1e-6))


def test_the_library_of_the_ladder_is_cublas_in_the_mode_that_the_rungs_run_beside(folder):
    """Not the pedantic mode, nor a launch loop, however fast these are."""
    rows = [row for row in records(folder / "day44.jsonl", "gemm") if (row["variant"], row["m"]) == ("cuBLAS", 512)]
    (row,) = (row for row in rows if "note" not in row)
    faster = {"value": 3 * row["value"]}
    add(folder / "day44.jsonl", {**row, **faster, "note": "launch loop"})
    edit(folder / "day44.jsonl", lambda record: {**record, **faster}, variant="cuBLAS, pedantic")
    (library,) = chart(folder, "day44-ladder").panels[0].references
    assert (library.rate, library.source) == (row["value"], "day44.jsonl: gemm cuBLAS")
    edit(folder / "day44.jsonl", lambda record: None, variant="cuBLAS")
    assert chart(folder, "day44-ladder").panels[0].references == []


def dot_of_size(panel, kernel):
    return next(dot for dot in panel.dots if dot.kernel == kernel)


def test_without_day_30_the_ladder_takes_the_copy_of_day_49(folder):
    (folder / "day30.jsonl").unlink()
    assert chart(folder, "day44-ladder").panels[0].roofs[0].source == "day49.jsonl: ceiling ceiling-copy"


def test_the_measured_curve_and_the_scaling(recorded):
    curve = chart(recorded, "day30-curve")
    assert len(curve.dots) == len(records(recorded / "day30.jsonl", "curve")) == 12
    for made, line in zip(curve.dots, records(recorded / "day30.jsonl", "curve")):
        assert (made.x, made.percent) == (
            pytest.approx(line["intensity"], rel=1e-3),
            pytest.approx(line["percent"], 0.01),
        )
    scaling = chart(recorded, "day30-scaling")
    assert [[dot.x for dot in path] for path in scaling.panels[0].paths] == [[1, 2, 4, 8, 16, 32, 64, 128, 132]] * 2
    assert scaling.panels[0].paths[1][-1].percent == pytest.approx(100 * 65703.2 / 66319.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("day30.jsonl", {"day49-hierarchical": "no day30.jsonl", "day30-curve": "no day30.jsonl"}),
        (
            "day44.jsonl",
            {name: "no day44.jsonl" for name in ("day44-ladder", "day44-sizes", "day44-losses")},
        ),
        ("day44-counters-inst.csv", {"day44-losses": "no day44-counters-inst.csv"}),
        ("day49-merged.jsonl", {"day49-instruction": "no day49-merged.jsonl", "day49-walls": "no day49-merged.jsonl"}),
    ],
)
def test_what_is_not_recorded_is_said(folder, name, said):
    (folder / name).unlink()
    charts, lacking = ROOFLINES.charts_of(folder)
    assert said.items() <= lacking.items()
    assert len(charts) + len(lacking) == len(NAMES)


def test_a_ceiling_that_is_missing_is_named(folder):
    edit(folder / "day30.jsonl", lambda record: None, level="l2", kind="read")
    assert ROOFLINES.charts_of(folder)[1]["day49-hierarchical"] == (
        "no ceiling of level l2 and kind read in day30.jsonl"
    )


def test_counters_that_were_not_joined_are_named(folder):
    edit(folder / "day49-merged.jsonl", lambda record: {k: v for k, v in record.items() if k != "warp_instructions"})
    assert "no warp_instructions of vectorAdd" in ROOFLINES.charts_of(folder)[1]["day49-instruction"]


# ---- against cuBLAS, size by size ------------------------------------------------------------------------------------


def paths_of(made):
    """Return the percent of each kernel of the chart of sizes, by size."""
    return {path[0].kernel: {dot.x: dot.y for dot in path} for path in made.panels[0].paths}


def test_sizes_have_the_rungs_from_8_and_what_sgemm_took(recorded):
    made = chart(recorded, "day44-sizes")
    paths = paths_of(made)
    rows = records(recorded / "day44.jsonl", "gemm")
    assert list(paths) == [
        *("8 double buffers", "9 slices of k", "10 8 x 16, cp.async", "11 two tiles ahead", "12 clusters"),
        "sgemm()",
    ]
    assert list(paths["8 double buffers"]) == [512, 1024, 2048, 4096, 8192]
    assert list(paths["12 clusters"]) == [512, 1024, 2048]
    for kernel, percents in paths.items():
        for size, percent in percents.items():
            (row,) = (
                row
                for row in rows
                if (row["variant"], row["m"], row["n"]) == (kernel, size, size)
                and "launch loop" not in row.get("note", "")
            )
            assert percent == row["cublas_percent"]
    assert [(line.rate, line.flat) for line in made.panels[0].references] == [(100.0, True)]
    assert {kernel for kernel in made.kernels if made.color(kernel) == ROOFLINES.INK} == {
        *("sgemm()", "sgemm(), 4097 x 4095 x 4093")
    }


def test_a_launch_loop_is_not_in_the_picture_of_sizes(folder):
    before = chart(folder, "day44-sizes")
    loop = {"cublas_percent": 999.0, "fma_percent": 99.0}
    edit(folder / "day44.jsonl", lambda row: {**row, **loop}, variant="sgemm()", note="12 clusters, launch loop")
    assert chart(folder, "day44-sizes") == before
    edit(folder / "day44.jsonl", lambda row: {**row, **loop}, variant="sgemm()", note="12 clusters")
    assert chart(folder, "day44-sizes") != before


def test_the_one_large_ragged_shape_is_a_dot_of_its_own(folder):
    (row,) = (
        row for row in records(folder / "day44.jsonl", "gemm") if row["variant"] == "sgemm()" and row["m"] == 4097
    )
    add(
        folder / "day44.jsonl",
        {**row, "m": 5, "n": 7, "k": 2049},
        {**row, "variant": "packed", "symbol": "matmulPacked"},
    )
    made = chart(folder, "day44-sizes")
    (ragged,) = (dot for dot in made.dots if dot.level)
    assert (ragged.kernel, ragged.level) == ("sgemm(), 4097 x 4095 x 4093", "ragged")
    assert (ragged.x, ragged.y) == (pytest.approx(4095, abs=0.01), row["cublas_percent"])
    assert not any(ragged in path for path in made.panels[0].paths)
    edit(folder / "day44.jsonl", lambda row: None, variant="sgemm()", m=4097)
    assert all(not dot.level for dot in chart(folder, "day44-sizes").dots)


def test_percent_of_cublas_has_the_fma_ceiling_for_a_roof(folder):
    made = dot_of_size(chart(folder, "day44-sizes").panels[0], "8 double buffers")
    row = next(row for row in records(folder / "day44.jsonl", "gemm") if row["variant"] == "8 double buffers")
    assert (made.work, made.percent) == (row["value"], pytest.approx(row["fma_percent"]))
    assert made.amount == pytest.approx(row["value"] / row["cublas_percent"] * 100)
    edit(folder / "day44.jsonl", lambda row: {**row, "fma_percent": 103.0}, variant="8 double buffers", m=512)
    (above,) = chart(folder, "day44-sizes").impossible
    assert (above.kernel, above.x, above.cause.partition(":")[0]) == ("8 double buffers", 512, "clock")


@pytest.mark.parametrize("key", ["cublas_percent", "fma_percent"])
def test_a_size_without_its_percent_is_said(folder, key):
    without = lambda row: {name: value for name, value in row.items() if name != key}  # noqa: E731 (as the others here)
    edit(folder / "day44.jsonl", without, variant="8 double buffers", m=1024)
    assert ROOFLINES.charts_of(folder)[1]["day44-sizes"] == (
        f"no {key} of 8 double buffers at 1024 x 1024 x 1024 in day44.jsonl"
    )


def test_one_size_is_no_chart_of_sizes(folder):
    edit(folder / "day44.jsonl", lambda row: row if row["m"] == 512 else None, record="gemm")
    assert "at two sizes in day44.jsonl" in ROOFLINES.charts_of(folder)[1]["day44-sizes"]


def test_names_at_the_ends_of_lines_do_not_overlap(drawn):
    """Nor at any place where several lines end close together: each name has its row."""
    svg = drawn["day44-sizes.svg"].decode()
    places = re.findall(r"<!-- ((?:[0-9]+ |sgemm)[^>]*?) -->\s*<g [^>]*translate\(([0-9.]+) ([0-9.]+)\)", svg)
    names = [(name, float(x), float(y)) for name, x, y in places if "4097" not in name]
    assert len(names) == 6
    for name, x, y in names:
        for other, its_x, its_y in names:
            assert name == other or abs(x - its_x) > 50 or abs(y - its_y) > 7.5, (name, other)


# ---- what the best rung loses ----------------------------------------------------------------------------------------


def changes(made):
    return {step.name: step.after - step.before for step in made.steps}


def test_steps_lead_from_the_ceiling_to_what_was_measured(recorded):
    made = chart(recorded, "day44-losses")
    (row,) = (
        row for row in records(recorded / "day44.jsonl", "gemm") if BEST.items() <= row.items() and row["m"] == 8192
    )
    peak = next(line["value"] for line in records(recorded / "day44.jsonl", "ceiling") if line["variant"] == "fma-peak")
    assert made.about.startswith("10 8 x 16, cp.async at 8192 cubed")
    assert [step.name for step in made.steps] == ["waves", "shared loads", "other instructions", "rest"]
    assert made.steps[0].before == 100 and made.steps[-1].after == made.measured.after == row["fma_percent"]
    assert all(first.after == second.before for first, second in zip(made.steps, made.steps[1:]))
    waves, loads, others, _ = (step.after / step.before for step in made.steps)
    assert 128 * row["loads_per_fma"] == 6
    assert waves == pytest.approx(0.975) and loads == pytest.approx(FMA_LOADS[6] / peak)
    assert others == pytest.approx(40 / 41)
    assert sum(changes(made).values()) == pytest.approx(row["fma_percent"] - 100)


def test_the_table_of_losses_says_where_each_figure_is_recorded(recorded):
    rows = ROOFLINES.rows_of_losses(chart(recorded, "day44-losses"))
    assert [row[-1] for row in rows[1:]] == [
        "day44.jsonl: ceiling fma-peak",
        "day44.jsonl: gemm 10 8 x 16, cp.async at 8192 cubed",
        "day44.jsonl: ceiling fma-loads-6",
        "day44-counters-inst.csv: matmulTiled",
        "by difference",
        "day44.jsonl: gemm 10 8 x 16, cp.async at 8192 cubed",
    ]
    assert rows[4][3] == "0.0250 per FMA, counted at 2048 cubed"
    table = ROOFLINES.table(chart(recorded, "day44-losses"))
    assert "counted in a launch of size 2048 cubed" in table
    left = [float(row[2]) for row in rows[1:-1]]
    assert all(float(row[1]) == pytest.approx(b - a, abs=0.011) for row, a, b in zip(rows[2:], left, left[1:]))


def test_the_picture_of_losses_says_what_its_table_says(drawn, recorded):
    made = chart(recorded, "day44-losses")
    said = letters_of(drawn["day44-losses.svg"].decode())
    for step in made.steps:
        assert {step.name, step.change, step.why} <= set(said)
    assert {"FMA ceiling", "100.00", made.ceiling.label, "measured", "80.51", made.measured.why} <= set(said)


def test_loads_between_two_loops_are_interpolated_and_beyond_them_nothing_is_known(folder):
    def with_loads(loads):
        edit(folder / "day44.jsonl", lambda row: {**row, "loads_per_fma": loads / 128}, record="gemm", **BEST)

    with_loads(5)
    step = chart(folder, "day44-losses").steps[1]
    assert f"5 of 128 bits beside 128 FMAs leave {(FMA_LOADS[4] + FMA_LOADS[6]) // 2} GFLOP/s" in step.why
    assert step.source == "day44.jsonl: ceiling fma-loads-4 and -6"
    with_loads(0)
    assert chart(folder, "day44-losses").steps[1].source == "day44.jsonl: ceiling fma-loads-0"
    with_loads(8)
    assert ROOFLINES.charts_of(folder)[1]["day44-losses"] == (
        "the best rung has 8 shared loads beside 128 FMAs, and the loops in day44.jsonl have 0 to 6"
    )


def test_the_best_rung_is_the_fastest_at_the_largest_cube(folder):
    row = next(
        row for row in records(folder / "day44.jsonl", "gemm") if BEST.items() <= row.items() and row["m"] == 8192
    )
    faster = {"value": 2 * row["value"], "fma_percent": 99.0}
    add(
        folder / "day44.jsonl",
        {**row, **faster, "variant": "guarded, float4"},
        {**row, **faster, "m": 4096, "n": 4096, "k": 4096},
    )
    add(folder / "day44.jsonl", {**row, **faster, "m": 9000})
    assert chart(folder, "day44-losses").measured.after == row["fma_percent"]
    add(folder / "day44.jsonl", {**row, "variant": "13 faster", "value": row["value"] + 1, "fma_percent": 81.0})
    made = chart(folder, "day44-losses")
    assert made.about.startswith("13 faster at 8192 cubed") and made.measured.after == 81.0


def test_a_step_that_is_no_loss_is_shown_as_such(folder):
    edit(folder / "day44.jsonl", lambda row: {**row, "wave_percent": 80.0}, record="gemm", **BEST)
    made = chart(folder, "day44-losses")
    assert made.steps[-1].change.startswith("+") and "+" in ROOFLINES.rows_of_losses(made)[5][1]
    assert "A plus is no loss" in ROOFLINES.table(made)
    pytest.importorskip("matplotlib")
    svg = PLOT.to_svg(made).decode()
    assert made.steps[-1].change in letters_of(svg)
    assert len(re.findall("fill: #ffffff; stroke: #aa4499", svg)) == 1


def test_what_moves_no_percent_has_no_sign(folder):
    edit(folder / "day44.jsonl", lambda row: {**row, "wave_percent": 99.999}, record="gemm", **BEST)
    assert chart(folder, "day44-losses").steps[0].change == "0.00"


@pytest.mark.parametrize("key", ["symbol", "fma_percent", "wave_percent", "loads_per_fma"])
def test_a_rung_that_lacks_a_figure_is_said(folder, key):
    without = lambda row: {name: value for name, value in row.items() if name != key}  # noqa: E731 (as the others here)
    edit(folder / "day44.jsonl", without, record="gemm", m=8192, **BEST)
    assert ROOFLINES.charts_of(folder)[1]["day44-losses"] == (
        f"no {key} of 10 8 x 16, cp.async at 8192 cubed in day44.jsonl"
    )


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("fma-loads-[0-9]", "no ceiling fma-loads-0, -2, ... in day44.jsonl"), ("fma-peak", "no ceiling fma-peak in")],
)
def test_a_loop_that_was_not_timed_is_said(folder, pattern, said):
    edit(folder / "day44.jsonl", lambda row: None if re.fullmatch(pattern, row["variant"]) else row, record="ceiling")
    assert ROOFLINES.charts_of(folder)[1]["day44-losses"].startswith(said)


@pytest.mark.parametrize("metric", EXECUTED)
def test_a_counter_that_was_not_taken_is_said(folder, metric):
    others = {name: value for name, value in EXECUTED.items() if name != metric}
    write_executed(folder, {"matmulTiled(Gemm)": others})
    assert ROOFLINES.charts_of(folder)[1]["day44-losses"] == (
        f"no {metric} of 10 8 x 16, cp.async in day44-counters-inst.csv"
    )


def test_counters_of_another_kernel_or_size_do_not_count(folder):
    write_executed(folder, {"matmulTiledOld(Gemm)": EXECUTED})
    said = ROOFLINES.charts_of(folder)[1]["day44-losses"]
    assert said == "no launch of matmulTiled in day44-counters-inst.csv"
    ffma = next(iter(EXECUTED))
    write_executed(folder, {"matmulTiled(Gemm)": {**EXECUTED, ffma: FFMA // 3}})
    assert "as no cubed size in its lines has" in ROOFLINES.charts_of(folder)[1]["day44-losses"]
    write_executed(folder, {"void matmulTiled<8>(Gemm)": {**EXECUTED, ffma: FFMA + 1000}})
    assert "2048 cubed" in chart(folder, "day44-losses").steps[2].why


def test_damaged_counters_are_named(folder):
    (folder / "day44-counters-inst.csv").write_text("no export\n")
    assert "day44-counters-inst.csv" in run(folder, "--table", code=1).stderr


# ---- what no kernel can do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "change", "level", "cause"),
    [
        ("vectorAdd", {"dram_bytes": 1_200_000_000}, "dram", "ceiling low"),
        ("vectorAdd", {"dram_bytes": 1_200_000_000, "dram_write_bytes": 700_000_000}, "dram", "dirty lines"),
        ("matmulNaive", {"dram_bytes": 300_000_000}, "dram", "cache-resident"),
        ("polynomialHorner", {"ms": 0.5}, "dram", "clock"),
        ("vectorAdd", {"ms": 0.000236819196}, "dram", "units"),
        ("transposeTiled", {"dram_bytes": 1_400_000_000}, "dram", "ceiling low"),
    ],
)
def test_dots_above_their_roof_have_a_cause(folder, symbol, change, level, cause):
    edit(folder / "day49-merged.jsonl", lambda record: {**record, **change}, symbol=symbol)
    found = [dot for dot in chart(folder, "day49-dram").impossible if dot.level == level]
    assert len(found) == 1 and found[0].cause.startswith(f"{cause}: ")
    assert f"{found[0].kernel}, DRAM, {found[0].percent:.1f} %: {cause}: " in ROOFLINES.table(
        chart(folder, "day49-dram")
    )


def test_two_percent_above_is_not_above(folder):
    def at(percent):
        edit(folder / "day49-merged.jsonl", lambda record: {**record, "dram_bytes": per * percent}, symbol="vectorAdd")
        return [dot for dot in chart(folder, "day49-dram").impossible if dot.level == "dram"]

    per = 4196.00859e6 * 0.236819196 / 100
    assert not at(101.9) and at(102.1)


def test_requested_bytes_above_the_roof_are_listed(recorded):
    requested = [dot for dot in chart(recorded, "day49-dram").impossible if dot.level == "requested"]
    assert [dot.kernel for dot in requested] == ["matmul, naive", "stencil, global"]
    assert {dot.cause.partition(":")[0] for dot in requested} == {"cache-resident"}


def test_strict_fails_with_the_dots_and_their_cause(folder):
    edit(folder / "day49-merged.jsonl", lambda record: {**record, "dram_bytes": 1_200_000_000}, symbol="vectorAdd")
    done = run(folder, "--table", "--strict", code=1)
    assert done.stderr.startswith("day49-dram: vector add, DRAM: ") and "ceiling low" in done.stderr
    assert "as requested" not in done.stderr


def test_strict_passes_what_caches_served_by_the_counters_and_nothing_else(folder, source_dir):
    """The lesson of day 49 has two such rows, on every card."""
    run(folder, "--table", "--strict")
    run(source_dir / "profile/h200", "--table", "--strict")
    (requested,) = (dot for dot in chart(folder, "day49-dram").impossible if dot.kernel == "matmul, naive")
    assert requested.meant and requested.percent > 400
    # DRAM moved too much for that, or in a count that is a hundred times too high; or nothing was counted.
    edit(folder / "day49-merged.jsonl", lambda record: {**record, "dram_bytes": 300_000_000}, symbol="matmulNaive")
    assert "matmul, naive, as requested: 441.3 %" in run(folder, "--table", "--strict", code=1).stderr
    edit(folder / "day49-merged.jsonl", lambda record: {**record, "dram_bytes": 2_103_040}, symbol="matmulNaive")
    run(folder, "--table", "--strict")
    more = lambda row: {**row, "requested_bytes": 100 * row["requested_bytes"]}  # noqa: E731 (as the others here)
    edit(folder / "day49.jsonl", more, symbol="matmulNaive", record="row")
    assert "matmul, naive, as requested: 44129.3 %: units" in run(folder, "--table", "--strict", code=1).stderr
    (folder / "day49-merged.jsonl").unlink()
    assert "stencil, global, as requested" in run(folder, "--table", "--strict", code=1).stderr


# ---- tables and pictures ---------------------------------------------------------------------------------------------


def test_numbers_are_shown_with_four_digits():
    shown = ROOFLINES.shown
    assert [shown(value) for value in (65730.5, 3.938, 15.06, 0.0833333, 0, 128.0, 0.0052)] == [
        *("65730", "3.938", "15.06", "0.08333", "0", "128", "0.005200")
    ]


def letters_of(svg):
    """Return the texts of a picture. Its letters are shapes; what they say stands beside them as a comment."""
    return re.findall(r"<!-- (.*?) -->", svg)


def test_every_number_of_a_chart_stands_in_its_table(drawn, recorded):
    ticks = re.compile(r"[0-9.]+k?|1/[0-9]+")
    for name in NAMES:
        table = drawn[f"{name}.txt"].decode()
        panels = chart(recorded, name).panels if name in WITH_DOTS else []
        labels = [label for panel in panels for label in (panel.x_label, panel.y_label)]
        for text in letters_of(drawn[f"{name}.svg"].decode()):
            if re.search("[0-9]", text) and not ticks.fullmatch(text) and text not in labels:
                assert text in table, (name, text)
        for one in chart(recorded, name).dots:
            assert any(one.kernel in row and ROOFLINES.shown(one.x) in row for row in table.splitlines()), (name, one)


def test_every_kernel_is_named_beside_its_dots(drawn, recorded):
    for name in ("day49-dram", "day49-hierarchical", "day49-instruction", "day49-walls"):
        texts = letters_of(drawn[f"{name}.svg"].decode())
        for kernel in chart(recorded, name).kernels:
            assert kernel in texts, (name, kernel)


def test_pictures_are_whole_opaque_800_pixels_wide_and_without_a_date(drawn):
    for name in NAMES:
        text = drawn[f"{name}.svg"].decode()
        root = xml.etree.ElementTree.fromstring(text)
        assert root.get("width") == "600pt"
        assert re.search(r'<g id="patch_1">\s*<path d="[^"]*" style="fill: #ffffff"', text)
        assert not re.search(r"20[0-9]{2}-[01][0-9]|dc:date|matplotlib\.org", text)
        assert len(text) < 200_000


def test_the_same_lines_give_the_same_bytes_in_another_process(drawn, recorded, tmp_path):
    for out in ("a", "b"):
        run(recorded, "--out", tmp_path / out)
    for name, data in drawn.items():
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() == data, name


def test_another_figure_gives_another_picture(drawn, folder):
    edit(folder / "day49-merged.jsonl", lambda record: {**record, "dram_bytes": 600_000_000}, symbol="vectorAdd")
    changed = PLOT.files_of(folder, [chart(folder, "day49-dram")])
    assert all(drawn[name] != data for name, data in changed.items())


def axes_of(made):
    """Draw a chart's panels on axes and return those, with the ends of what draw_roofs drew."""
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert matplotlib
    figure = Figure(figsize=(8, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.1, 0.85, 0.85))
    PLOT.set_axes(axes, made.panels[0])
    PLOT.draw_roofs(PLOT.Space(figure, axes), made.panels[0])
    return figure, axes


@pytest.mark.parametrize(
    "name", ["day30-curve", "day44-ladder", "day49-dram", "day49-hierarchical", "day49-instruction"]
)
def test_roofs_reach_the_right_edge_and_carry_their_unit(recorded, name):
    made = chart(recorded, name)
    figure, axes = axes_of(made)
    right = axes.get_xlim()[1]
    lines = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    for roof in made.panels[0].roofs:
        ends = [(xs, ys) for xs, ys in lines if ys[-1] == pytest.approx(roof.rate * (1 if roof.flat else xs[-1]))]
        assert ends, roof
        if roof.flat:
            assert any(xs[1] == right for xs, _ in ends)
    texts = [text.get_text() for text in figure.texts]
    for roof in made.panels[0].roofs:
        unit = ("Ginst/s" if name == "day49-instruction" else "GFLOP/s") if roof.flat else "GB/s"
        assert f"{unit}" in next(text for text in texts if text.startswith(roof.name))


def test_axes_come_from_the_data(recorded, folder):
    before = PLOT.limits(chart(recorded, "day49-dram").panels[0])
    edit(folder / "day49-merged.jsonl", lambda record: {**record, "dram_bytes": 2**40}, symbol="vectorAddPermuted")
    after = PLOT.limits(chart(folder, "day49-dram").panels[0])
    assert after[0][0] < before[0][0] / 10 and after[0][1] == before[0][1]
    for name in WITH_DOTS:
        for panel in chart(recorded, name).panels:
            (left, right), (low, high) = PLOT.limits(panel)
            assert all(left < dot.x < right and low < dot.y < high for dot in panel.dots)


def test_hollow_and_filled(recorded):
    pytest.importorskip("matplotlib")
    made = chart(recorded, "day49-dram")
    _, axes = axes_of(made)
    for one in (dot(made, "matmul, naive", "requested"), dot(made, "matmul, naive", "dram")):
        PLOT.draw_dot(axes, made, one.x, one.y, one)
        face, edge = axes.lines[-1].get_markerfacecolor(), axes.lines[-1].get_markeredgecolor()
        assert (face, edge)[:: 1 if one.cause else -1] == ("#ffffff", made.color("matmul, naive"))


def brightness(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def test_colours_stand_out_from_the_background():
    assert len(set(ROOFLINES.PALETTE)) == 10
    for color in ROOFLINES.PALETTE:
        assert 1.05 / (brightness(color) + 0.05) > 2, color  # and no text has a kernel's colour alone
    for color in (PLOT.INK, PLOT.SOFT):
        assert 1.05 / (brightness(color) + 0.05) > 4.5, color


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_and_says_what_is_missing(folder):
    pytest.importorskip("matplotlib")
    (folder / "day30.jsonl").unlink()
    output = run(folder).stdout
    assert "day49-dram.svg, .txt: 18 dots, 2 above their roof" in output
    assert "day49-walls: not drawn: no day30.jsonl" in output
    assert "day44-losses.svg, .txt: 4 steps down to 80.51 %" in output
    assert sorted(path.stem for path in folder.glob("*.svg")) == [
        *("day44-ladder", "day44-losses", "day44-sizes", "day49-dram")
    ]


def test_the_tables_need_no_matplotlib(folder, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('planted')\n")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, SCRIPT, folder]
    done = subprocess.run([*words, "--table"], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "DRAM copy 4196 GB/s" in done.stdout
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and "matplotlib is missing" in done.stderr


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "day44.jsonl").write_text('{"record":"run"\n'), "day44.jsonl:1: not a recorded line"),
        (
            lambda folder: edit(folder / "day49.jsonl", lambda r: {k: v for k, v in r.items() if k != "ms"}),
            "lacks 'ms'",
        ),
        (lambda folder: [path.unlink() for path in folder.glob("*.jsonl")], "no chart can be made"),
    ],
    ids=["cut off", "key missing", "nothing"],
)
def test_damage_is_named(folder, damage, said):
    damage(folder)
    assert said in run(folder, "--table", code=1).stderr


def test_bad_usage(tmp_path):
    assert "no such folder" in run(tmp_path / "none", code=1).stderr
    run(code=2)
