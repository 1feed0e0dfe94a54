"""What day 44 takes from its recorded run, rates of its dispatch and counts of its early rungs, and what it claims."""

import csv
import json
import math
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


def on_tensor_cores(row):
    return row["symbol"].startswith("matmulTensor")


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


def share_run(tmp_path, *rows):
    """A run whose rows are (symbol, percent of which ceiling, percent), all with work on 80 % of the SMs."""
    run = tmp_path / "run.jsonl"
    shape = {"record": "gemm", "m": 2048, "n": 2048, "k": 2048, "wave_percent": 80.0}
    lines = [
        json.dumps({**shape, "symbol": symbol, **({key: percent} if key else {})}) for symbol, key, percent in rows
    ]
    run.write_text("".join(f"{line}\n" for line in lines))
    return run


def test_a_rate_on_tensor_cores_is_a_share_of_a_third_of_their_ceiling(day, tmp_path):
    source = tmp_path / "day.cu"
    row = "        {{KERNEL({0}), {{0}}}}, 0.500}},\n"
    rows = "".join(row.format(kernel) for kernel in ("matmulBalanced", "matmulTensorWgmma"))
    source.write_text(f"vector<Row> makeRows() {{\n{rows}\n}}\n")
    run = share_run(
        tmp_path,
        ("matmulBalanced", "fma_percent", 72.0),
        ("matmulTensorWgmma", "tensor_percent", 64.0),
        ("matmulTensorTruncated", "tensor_percent", 44.0),
        ("cublasGemmEx", None, 0),
    )
    found = rates(day, "--check", "--source", source, "--run", run)
    assert found.returncode == 1, found.stderr
    assert found.stdout.splitlines() == [
        "matmulBalanced: 0.5 in the source, 0.900 in the run",
        "matmulTensorWgmma: 0.5 in the source, 0.800 in the run",
    ]


def test_a_kernel_with_a_share_of_no_ceiling_is_refused(day, tmp_path):
    result = rates(day, "--check", "--run", share_run(tmp_path, ("matmulTensorMma", None, 0)))
    assert result.returncode == 1 and "matmulTensorMma at 2048 x 2048 x 2048 has a share of no" in result.stderr


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
        if variant[0].isdigit() and not on_tensor_cores(row)
    }
    assert max(rungs.values()) >= best - 0.5
    assert max(percent for rung, percent in rungs.items() if rung <= 12) >= without_sm80 - 0.5


# What three TF32 products must reach, in percent of cuBLAS in FP32. At 8192 the aim was 285, which was not reached.
BEST_ON_TENSOR_CORES_AT_8192 = 275
ON_TENSOR_CORES = {1024: (150, 150), 2048: (220, 130), 4096: (260, 130), 8192: (BEST_ON_TENSOR_CORES_AT_8192, 130)}
ACCURATE = ("16 three TF32 products", "17 wgmma", "18 wgmma, small tiles", "sgemmTensor()")
INPUTS = ("uniform", "wide", "positive")
each_size_on_tensor_cores = pytest.mark.parametrize("size", ON_TENSOR_CORES)


@each_size_on_tensor_cores
def test_three_products_pass_cublas_by_far(products, size):
    """The best of rungs 16 to 18, and what needs sm_80 alone; to half a percent."""
    rows = products[(size, size, size)]
    best, with_sm80 = ON_TENSOR_CORES[size]
    assert max(rows[rung]["cublas_percent"] for rung in ACCURATE[:3]) >= best - 0.5
    assert rows[ACCURATE[0]]["cublas_percent"] >= with_sm80 - 0.5


@each_size_on_tensor_cores
@pytest.mark.parametrize("variant", ACCURATE)
def test_three_products_are_no_less_exact_than_cublas(products, size, variant):
    row = products[(size, size, size)][variant]
    for inputs in INPUTS:
        assert row[f"rms_{inputs}"] <= 1.0, inputs
        assert row[f"max_{inputs}"] <= 1.0, inputs


@each_size_on_tensor_cores
def test_what_is_no_fp32_product_is_far_less_exact(products, size):
    """Sums that never leave the tensor cores, and one TF32 product; cuBLAS's emulation is none on this card."""
    rows = products[(size, size, size)]
    assert rows["16 never leaving"]["rms_positive"] >= 10
    for inputs in INPUTS:
        assert rows["cuBLAS, TF32"][f"rms_{inputs}"] >= 20, inputs
    assert "bit for bit cuBLAS in FP32" in rows["cuBLAS, emulated"]["note"]


def test_uneven_shapes(products):
    """A ragged shape is no slower than cuBLAS, skinny ones are within a factor of 3."""
    assert products[(4097, 4095, 4093)]["sgemm()"]["cublas_percent"] >= 100
    for shape in [(4096, 1, 4096), (5, 7, 2049), (129, 257, 8191)]:
        assert products[shape]["sgemm()"]["cublas_percent"] >= 100 / 3, shape


def test_the_dispatch_takes_what_is_fastest(products):
    """To within 3 %, of what was timed at a shape: sgemm() of the kernels of FMAs, sgemmTensor() of the others."""
    for shape, rows in products.items():
        kernels = [row for row in rows.values() if row["symbol"].startswith("matmul")]
        fastest = min(row["ms"] for row in kernels if not on_tensor_cores(row))
        assert rows["sgemm()"]["ms"] <= 1.03 * fastest, shape
        if "sgemmTensor()" in rows:
            accurate = [row for row in kernels if on_tensor_cores(row) and row["symbol"] != "matmulTensorTruncated"]
            assert rows["sgemmTensor()"]["ms"] <= 1.03 * min((row["ms"] for row in accurate), default=math.inf), shape
