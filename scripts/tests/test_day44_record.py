"""What day 44 takes from its recorded run, rates of its dispatch and counts of its early rungs, and what it claims."""

import csv
import json
import re
import subprocess
import sys

import pytest

RUN = "profile/h200/day44.jsonl"
EARLY = ["matmulSharedTiled", "matmulRegTile1d", "matmulRegTile2d", "matmulRegTile2dVec4"]


@pytest.fixture(scope="module")
def day(source_dir):
    return source_dir / "day44-matmul"


@pytest.fixture(scope="module")
def products(source_dir):
    """The recorded products by shape and variant, but for those of a launch loop."""
    rows = [json.loads(line) for line in (source_dir / RUN).read_text().splitlines()]
    found = {}
    for row in rows:
        if row["record"] == "gemm" and "launch loop" not in row.get("note", ""):
            found.setdefault((row["m"], row["n"], row["k"]), {})[row["variant"]] = row
    return found


def rates(day, *arguments):
    return subprocess.run([sys.executable, day / "rates.py", *arguments], capture_output=True, text=True, timeout=60)


def test_the_rates_in_the_source_are_those_of_the_recorded_run(day):
    result = rates(day, "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_rate_that_is_off_is_found_and_put_right(day, tmp_path):
    source = tmp_path / "day.cu"
    text = (day / "matmul_registers.cu").read_text()
    off = re.sub(r"(KERNEL\(matmulSplitK\), )[\d.]+", r"\g<1>0.5", text)
    source.write_text(off)
    found = rates(day, "--check", "--source", source)
    assert found.returncode == 1 and "matmulSplitK: 0.5 in the source" in found.stdout
    assert source.read_text() == off
    assert rates(day, "--source", source).returncode == 0
    assert rates(day, "--check", "--source", source).returncode == 0


@pytest.mark.parametrize(
    ("lines", "problem"),
    [("", "no gemm lines"), ("{", "line 1: not JSON"), ('{"record":"run"}', "no gemm lines")],
)
def test_a_run_without_rates_is_refused(day, tmp_path, lines, problem):
    run = tmp_path / "run.jsonl"
    run.write_text(lines)
    result = rates(day, "--check", "--run", run)
    assert result.returncode == 1 and problem in result.stderr and "Traceback" not in result.stderr


def counted(source_dir):
    """Shared loads and wavefronts for a warp's FMA, by kernel, as the counters of the recorded run have them."""
    sums = {}
    for name in ("day44-counters.csv", "day44-counters-inst.csv"):
        with (source_dir / "profile" / "h200" / name).open(newline="") as file:
            for row in csv.DictReader(file):
                kernel = re.match(r"\w+", row["Kernel Name"])[0]
                sums.setdefault(kernel, {})[row["Metric Name"]] = float(row["Metric Value"])
    shared = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"
    ffma = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
    return {
        kernel: (values[f"{shared}ld.sum"] + values[f"{shared}st.sum"]) / (values[ffma] / 32)
        for kernel, values in sums.items()
        if kernel in EARLY
    }


def test_the_wavefronts_of_the_early_rungs_are_those_that_were_counted(day, source_dir):
    text = (day / "matmul_registers.cu").read_text()
    for kernel, wavefronts in counted(source_dir).items():
        row = re.search(rf"KERNEL\({kernel}\),\s*{{([^}}]*)}}", text)[1]
        assert float(row.split(",")[-1]) == pytest.approx(wavefronts, rel=0.02), kernel


@pytest.mark.parametrize(
    ("size", "best", "without_sm80"),
    [(512, 135, 107), (1024, 121, 118), (2048, 103, 102), (4096, 103.5, 102), (8192, 105, 102.5)],
)
def test_the_ladder_passes_cublas(products, size, best, without_sm80):
    """In percent of cuBLAS, to the half percent by which two runs differ; rungs 1 to 12 need no more than sm_75."""
    rungs = {
        int(variant.split()[0]): row["cublas_percent"]
        for variant, row in products[(size, size, size)].items()
        if variant[0].isdigit()
    }
    assert max(rungs.values()) >= best - 0.5
    assert max(percent for rung, percent in rungs.items() if rung <= 12) >= without_sm80 - 0.5


def test_uneven_shapes(products):
    """A ragged shape is no slower than cuBLAS, skinny ones are within a factor of 3."""
    assert products[(4097, 4095, 4093)]["sgemm()"]["cublas_percent"] >= 100
    for shape in [(4096, 1, 4096), (5, 7, 2049), (129, 257, 8191)]:
        assert products[shape]["sgemm()"]["cublas_percent"] >= 100 / 3, shape


def test_the_dispatch_takes_what_is_fastest(products):
    """To within 3 %, of the kernels that were timed at a shape."""
    for shape, rows in products.items():
        fastest = min(row["ms"] for row in rows.values() if row["symbol"].startswith("matmul"))
        assert rows["sgemm()"]["ms"] <= 1.03 * fastest, shape
