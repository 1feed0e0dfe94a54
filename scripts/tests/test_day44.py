"""What day 44 decides without a GPU, and the short list of shapes that it checks under compute-sanitizer."""

import os
import re
import subprocess

import pytest
from days import launches, symbol_of
from planting import exchanged
from test_mutations import build_day

DAY = "day44-matmul/matmul_registers"
WHOLE = [str(rung) for rung in range(1, 15)]  # the kernels of whole tiles that the CPU build runs
ANY_SHAPE = ["guarded, float4", "packed", "guarded, small", "sgemm()", "cuBLAS", "cuBLAS, pedantic"]

pytestmark = pytest.mark.skipif(
    os.environ.get("CUDA_DAYS_BACKEND", "cpu") != "cpu", reason="the CPU build pretends devices"
)


@pytest.fixture(scope="module")
def short(source_dir, build_dir, cxx, tmp_path_factory):
    """The day with -DCUDA_DAYS_SANITIZE; without arguments it runs common/cpu/tests/dispatch_cases.cu instead."""
    day = f"{DAY}.cu"
    source = exchanged((source_dir / day).read_text(), "", "int main(", "int dayMain(", day)
    source = "#define CUDA_DAYS_SANITIZE\n" + source
    source += (source_dir / "common" / "cpu" / "tests" / "dispatch_cases.cu").read_text()
    return build_day(source, tmp_path_factory.mktemp("day44"), source_dir, build_dir, cxx)


def run(program, *arguments, **extra):
    return subprocess.run(
        [program, *arguments], env={**os.environ, **extra}, capture_output=True, text=True, timeout=600
    )


def test_decisions(short):
    """Dispatch, the sentence on what is left out and the bound of rates, for cards, codes and shapes."""
    result = run(short)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr


def test_short_list_meets_every_rung(short):
    """Each rung of whole tiles without and with gaps between rows, each other path on any shape, aligned and not."""
    result = run(short, "--check")
    assert result.returncode == 0, result.stdout + result.stderr
    checks = re.findall(r"^\w+ +(\S.*?)  +(\d+x\d+x\d+) (\w+)(?: (gaps|aligned))? .* ok$", result.stdout, re.MULTILINE)
    assert len(checks) < 330, "racecheck must end in 120 s"
    for numbers in ("integer", "uniform"):
        met = {(variant, size, layout) for variant, size, kind, layout in checks if kind == numbers}
        for rung in WHOLE:
            assert {layout for variant, _, layout in met if variant.split()[0] == rung} == {"", "aligned"}, rung
        for path in ANY_SHAPE:
            assert (path, "132x260x36", "aligned") in met, path
            if path != "guarded, float4":  # takes aligned rows alone
                assert (path, "127x129x17", "gaps") in met, path
        assert ("few columns", "3x3x431", "gaps") in met


def test_translated_code_leaves_out_what_it_lacks(build_dir):
    """A build for sm_75 on an H200, where the driver translates: two kernels less, and a sentence that names them."""
    needy = ["matmulAsyncWide", "matmulTwoAhead"]  # asynchronous copies
    order = [symbol_of(kernel) for kernel in launches(DAY, "--profile")]
    assert set(needy) < set(order)
    result = run(
        build_dir / DAY,
        "--profile",
        CUDA_DAYS_CPU_DEVICE="translated",
        CUDA_DAYS_CPU_LOG="1",
        CUDA_DAYS_CPU_SKIP=",".join(kernel for kernel in order if kernel not in needy),
    )
    assert result.returncode == 0, result.stderr
    launched = [line.split()[3] for line in result.stderr.splitlines() if line.startswith("CPU backend: launch ")]
    assert not set(needy) & set(launched)
    assert len(launched) == len(order) - 2
    assert len(re.findall(r"needs sm_80 code$", result.stdout, re.MULTILINE)) == 2
    assert len(re.findall(r"needs sm_90 code$", result.stdout, re.MULTILINE)) == 1
    (sentence,) = re.findall(r"^Left out.*$", result.stdout, re.MULTILINE)
    for part in ("13 8 x 16, cp.async", "14 two tiles ahead", "15 clusters", "-arch=sm_90a"):
        assert part in sentence


def test_a_t4_leaves_nothing_out(build_dir):
    skip = ",".join(map(symbol_of, launches(DAY, "--profile")))
    result = run(build_dir / DAY, "--profile", CUDA_DAYS_CPU_DEVICE="t4", CUDA_DAYS_CPU_SKIP=skip)
    assert result.returncode == 0, result.stderr
    assert "Left out" not in result.stdout
    assert re.search(r"^15 clusters .* needs sm_90$", result.stdout, re.MULTILINE)


def test_copies_have_the_order_of_the_stream(source_dir):
    """cudaMemcpy is ordered with the default stream, for which the days' streams do not wait."""
    assert not re.search(r"\bcudaMemcpy\(", (source_dir / f"{DAY}.cu").read_text())
