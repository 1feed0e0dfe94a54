"""Faults planted in the days' kernels: each must make the CPU build exit 1 and name the kernel.

A fault is one exact replacement in a day's source, so the test also fails, saying so, when the text it
replaces is no longer there. The mutated source goes through the same lowering as the day and is linked
with the CPU backend that the build made.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
from days import OTHER_KERNELS, PROFILE_ORDER


@dataclass(frozen=True)
class Fault:
    """One planted fault: `old` (exactly once in the source) becomes `new`, and `kernel` must be named."""

    name: str
    kernel: str
    old: str
    new: str


ADD = "out[i] = a[i] + b[i];\n}\n\n// Day 11"
FAULTS = {
    "day49-roofline/roofline.cu": [
        Fault("add NaN", "vectorAdd", ADD, ADD.replace("a[i] + b[i]", "a[i] + NAN")),
        Fault("add infinity", "vectorAdd", ADD, ADD.replace("a[i] + b[i]", "a[i] + INFINITY")),
        Fault("add minus infinity", "vectorAdd", ADD, ADD.replace("a[i] + b[i]", "a[i] - INFINITY")),
        Fault("add off by one", "vectorAdd", ADD, ADD.replace("b[i]", "b[i ^ 1]")),
        Fault(
            "add stores past the end",
            "vectorAdd",
            f"if (i < n) {ADD}",
            f"if (i <= n) {ADD}",
        ),
        Fault(
            "add walks no permutation",
            "vectorAddPermuted",
            "column * kStride + blockIdx.y;",
            "column * kStride % n + 0 * blockIdx.y;",
        ),
        Fault(
            "copy leaves the tail unwritten",
            "copyCoalesced",
            "if (i < n) out[i] = in[i];",
            "if (i < n - 1) out[i] = in[i];",
        ),
        Fault(
            "wide copy stores past the end",
            "copyVector",
            "if (i < count) out[i] = held[k];",
            "out[i] = held[k];",
        ),
        Fault(
            "wide copy skips its last load",
            "copyVector",
            "if (i < count) held[k] = in[i];",
            "if (i < count && k < 3) held[k] = in[i];",
        ),
        Fault(
            "half of the library's copy",
            "cudaMemcpyAsync",
            "at.out, at.index, at.out.bytes(),",
            "at.out, at.index, at.out.bytes() / 2,",
        ),
        Fault(
            "transpose swaps its store",
            "transposeNaive",
            "out[static_cast<std::size_t>(column) * side + row]",
            "out[static_cast<std::size_t>(row) * side + column]",
        ),
        Fault(
            "transpose swaps the tile's indices",
            "transposeTiled",
            "tile[threadIdx.x][threadIdx.y];",
            "tile[threadIdx.y][threadIdx.x];",
        ),
        Fault(
            "transpose without its barrier",
            "transposeTiled",
            "  __syncthreads();\n  column = blockIdx.y",
            "  column = blockIdx.y",
        ),
        Fault(
            "matmul without the barrier before use",
            "matmulTiled",
            "    __syncthreads();\n    for (int k = 0; k < kMatmulTile",
            "    for (int k = 0; k < kMatmulTile",
        ),
        Fault(
            "matmul without the barrier after use",
            "matmulTiled",
            "    __syncthreads();  // nobody may",
            "    // nobody may",
        ),
        Fault(
            "matmul skips the last k",
            "matmulNaive",
            "for (int k = 0; k < d; ++k) sum +=",
            "for (int k = 0; k < d - 1; ++k) sum +=",
        ),
        Fault(
            "reduction without a barrier in its loop",
            "reduceSequentialAddressing",
            "sum[threadIdx.x + stride];\n    __syncthreads();",
            "sum[threadIdx.x + stride];",
        ),
        Fault(
            "reduction with a barrier that only some reach",
            "reduceSequentialAddressing",
            "sum[threadIdx.x] += sum[threadIdx.x + stride];\n    __syncthreads();",
            "{ sum[threadIdx.x] += sum[threadIdx.x + stride]; __syncthreads(); }",
        ),
        Fault(
            "reduction reads past the end",
            "reduceSequentialAddressing",
            "sum[threadIdx.x] = i < n ? in[i] : 0.0f;",
            "sum[threadIdx.x] = in[i];",
        ),
        Fault(
            "stencil with a wrong constant",
            "heatStepGlobal",
            "east - 4.0f * centre",
            "east - 4.001f * centre",
        ),
        Fault(
            "stencil takes the ring for inside",
            "heatStepGlobal",
            "onRing(row, column, g) ? in[i] :",
            "onRing(row, column, g) && row > 0 ? in[i] :",
        ),
        Fault(
            "stencil reads shared memory nobody wrote",
            "heatStepTiled",
            "cell < kApronX * kApronY; cell += kBlock",
            "cell < kApronX * kApronY - kApronX; cell += kBlock",
        ),
        Fault(
            "polynomial one step short",
            "polynomialHorner",
            "for (int k = 0; k < kDegree; ++k) y =",
            "for (int k = 1; k < kDegree; ++k) y =",
        ),
        Fault(
            "half the FMA steps",
            "fmaPeak",
            "step < steps; step += kUnroll",
            "step < steps; step += 2 * kUnroll",
        ),
    ]
}
pytestmark = pytest.mark.skipif(
    os.environ.get("CUDA_DAYS_BACKEND", "cpu") != "cpu", reason="planted faults run on the CPU build"
)


def run_check(program, **extra):
    """Runs `program --check`; returns exit code and everything it printed."""
    result = subprocess.run(
        [program, "--check"],
        env={**os.environ, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    return result.returncode, result.stdout


def assert_fails_naming(kernel, code, output):
    assert code == 1, f"exit code {code}, expected 1:\n{output}"
    assert re.search(rf"(FAILED|kernel) {kernel}\b", output), f"{kernel} is not named:\n{output}"


@pytest.mark.parametrize(
    ("day", "fault"),
    [(day, fault) for day, faults in FAULTS.items() for fault in faults],
    ids=lambda v: getattr(v, "name", ""),
)
def test_planted_fault_is_caught(day, fault, source_dir, build_dir, cxx, tmp_path):
    source = (source_dir / day).read_text()
    assert source.count(fault.old) == 1, (
        f"the text of fault '{fault.name}' must be in {day} exactly once: update the fault"
    )
    mutated = tmp_path / "mutated.cu"
    mutated.write_text(source.replace(fault.old, fault.new))
    lowered = tmp_path / "mutated.cpp"
    cpu = source_dir / "common" / "cpu"
    subprocess.run([sys.executable, cpu / "lower.py", mutated, "-o", lowered], check=True)
    program = tmp_path / "mutated"
    flags = ["-std=c++17", "-O2", "-march=native", "-w", "-I", cpu]
    if os.environ.get("CUDA_DAYS_ASAN") == "1":  # as the backend in this build folder was
        flags += ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=null"]
    libraries = [build_dir / "libcpu_backend.a", "-lboost_context", "-pthread"]
    subprocess.run([cxx, *flags, lowered, *libraries, "-o", program], check=True)
    assert_fails_naming(fault.kernel, *run_check(program))


@pytest.mark.parametrize(
    ("program", "kernel"),
    [(day, kernel) for day, kernels in PROFILE_ORDER.items() for kernel in kernels + OTHER_KERNELS[day]],
    ids=str,
)
def test_skipped_launch_is_caught(program, kernel, build_dir):
    assert_fails_naming(kernel, *run_check(build_dir / program, CUDA_DAYS_CPU_SKIP=kernel))
