"""The micro-tile of day 44's rungs 4 to 6, which a reader may change: what compiles is right, all else says why not."""

import os
import re
import subprocess
import sys

import pytest
from planting import exchanged, small_source
from test_mutations import build_day

DAY = "day44-matmul/matmul_registers.cu"
SIZE = 256  # the one size of whole tiles in the short list
RUNGS = {"4": "matmulRegTile1d", "5": "matmulRegTile2d", "6": "matmulRegTile2dVec4"}

pytestmark = pytest.mark.skipif(
    os.environ.get("CUDA_DAYS_BACKEND", "cpu") != "cpu", reason="the knob is compiled for the CPU build"
)


def with_knob(source_dir, thread_m, thread_n):
    old, new = "kThreadM = 8, kThreadN = 8;", f"kThreadM = {thread_m}, kThreadN = {thread_n};"
    return exchanged(small_source(DAY, source_dir), "", old, new, DAY)


@pytest.mark.parametrize(("thread_m", "thread_n"), [(4, 4), (4, 8), (8, 4), (8, 8), (8, 16)])
def test_a_micro_tile_that_is_offered_is_right(thread_m, thread_n, source_dir, build_dir, cxx, tmp_path):
    """Every element of rungs 4 to 6, without and with gaps between rows, in blocks whose tile follows the knob."""
    program = build_day(with_knob(source_dir, thread_m, thread_n), tmp_path, source_dir, build_dir, cxx)
    result = subprocess.run(
        [program, "--check"],
        env={**os.environ, "CUDA_DAYS_CPU_SEED": "1", "CUDA_DAYS_CPU_LOG": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    passed = re.findall(rf"^(\w+) +([456]) .*? {SIZE}x{SIZE}x{SIZE} .* ok$", result.stdout, re.MULTILINE)
    assert {(rung, kernel) for kernel, rung in passed} == set(RUNGS.items())
    log = r"^CPU backend: launch (\w+) grid \((\d+), (\d+), 1\) block \((\d+), 1, 1\)"
    launches = set(re.findall(log, result.stderr, re.MULTILINE))
    columns, lines = SIZE // (16 * thread_n), SIZE // (16 * thread_m)
    assert ("matmulRegTile1d", str(SIZE // 64), str(SIZE // (8 * thread_m)), "512") in launches
    for kernel in ("matmulRegTile2d", "matmulRegTile2dVec4"):
        assert (kernel, str(columns), str(lines), "256") in launches


@pytest.mark.parametrize(("thread_m", "thread_n"), [(2, 8), (4, 16), (8, 6), (16, 8)])
def test_any_other_micro_tile_is_refused_with_those_that_are_offered(thread_m, thread_n, source_dir, cxx, tmp_path):
    cu, lowered = tmp_path / "day.cu", tmp_path / "day.cpp"
    cu.write_text(with_knob(source_dir, thread_m, thread_n))
    cpu = source_dir / "common" / "cpu"
    subprocess.run([sys.executable, cpu / "lower.py", cu, "-o", lowered], check=True)
    compiled = [cxx, "-std=c++17", "-w", "-fsyntax-only", "-I", cpu, lowered]
    result = subprocess.run(compiled, capture_output=True, text=True, timeout=600)
    assert result.returncode != 0
    assert "choose 4 x 4, 4 x 8, 8 x 4, 8 x 8 or 8 x 16 for kThreadM x kThreadN" in result.stderr
