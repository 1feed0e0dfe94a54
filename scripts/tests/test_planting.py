"""Faults must be planted where they say, or not at all; and those for a GPU must fit the days' sources."""

import os
import subprocess
import sys

import pytest
import test_gpu
from planting import CodeFault, bodies_of, planted, switchable

SOURCE = """
__device__ int twice(int i);  // { not this one
__global__ void first(int* out, int n) {
  const int i = threadIdx.x;
  if (i  /* thread */ <
      n) out[i] = '{';  // if (i < n) {
  __syncthreads();
}
void host() { first<<<1, 2>>>(out, n); if (first(i < n)) return; }
__global__ void second(int* out, int n) { if (i < n) out[i] = twice(i); }
"""


def test_a_fault_lies_in_its_function_alone():
    fault = CodeFault("first", "a thread too many", "if ($i < $n)", "if ($i <= $n)")
    assert planted(SOURCE, fault) == SOURCE.replace(
        "if (i  /* thread */ <\n      n) out[i] = '", "if (i <= n) out[i] = '"
    )
    [(first, last)] = bodies_of(SOURCE, "second")
    assert SOURCE[first : last + 1] == "{ if (i < n) out[i] = twice(i); }"


@pytest.mark.parametrize(
    ("function", "old", "says"),
    [
        ("first", "if (j < n)", "must be 1 times in first, and is 0 times"),
        ("first", "out", "must be 1 times in first, and is 2 times"),
        ("second", "$i < $i", "is 0 times"),
        ("third", "i", "no function third is defined"),
    ],
)
def test_a_fault_that_does_not_fit_is_refused(function, old, says):
    source = SOURCE.replace("twice(i);", "twice(out[0]);") if old == "out" else SOURCE
    fault = CodeFault(function if old != "out" else "second", "", old, "")
    with pytest.raises(AssertionError, match=says.replace("in first", f"in {fault.function}")):
        planted(source, fault)


def test_one_program_holds_several_faults():
    faults = [
        CodeFault("second", "", "i < n", "i <= n"),
        CodeFault("first", "", "__syncthreads()", "static_cast<void>(0)"),
    ]
    source = switchable(SOURCE, faults)
    assert "if ((kPlanted == 1 ? (i <= n) : (i < n))) out[i] = twice(i);" in source
    assert "(kPlanted == 2 ? (static_cast<void>(0)) : (__syncthreads()));" in source
    with pytest.raises(AssertionError, match="overlap"):
        switchable(SOURCE, faults[:1] * 2)


GPU_FAULTS = [
    (build.day, fault)
    for build in (*test_gpu.PAST_THE_END, *test_gpu.NAMED, *test_gpu.UNORDERED)
    for fault in build.faults
]


@pytest.mark.parametrize(("day", "fault"), GPU_FAULTS, ids=str)
def test_a_fault_for_a_gpu_fits_its_day(day, fault, source_dir):
    source = (source_dir / day).read_text()
    assert planted(source, fault) != source


@pytest.mark.parametrize("day", test_gpu.DAYS)
def test_the_days_with_these_faults_still_compile(day, source_dir, cxx, tmp_path):
    source = (source_dir / day).read_text()
    for fault in {fault.function: fault for of, fault in GPU_FAULTS if of == day}.values():
        source = planted(source, fault)
    (tmp_path / "day.cu").write_text(source)
    cpu = source_dir / "common" / "cpu"
    subprocess.run([sys.executable, cpu / "lower.py", tmp_path / "day.cu", "-o", tmp_path / "day.cpp"], check=True)
    subprocess.run([cxx, "-std=c++17", "-fsyntax-only", "-w", "-I", cpu, tmp_path / "day.cpp"], check=True)


@pytest.mark.parametrize("day", test_gpu.DAYS)
def test_the_build_line_takes_other_code_and_names(day, source_dir, monkeypatch, tmp_path):
    monkeypatch.setattr(test_gpu, "capability", lambda: 90)
    monkeypatch.setattr(test_gpu, "find_nvcc", lambda: "/opt/nvcc")
    build = test_gpu.Build(day, ptx=80, defines=("-DX",))
    words = test_gpu.command_of(build, source_dir / day, tmp_path / "day")
    library = ["-lcublas"] if day == test_gpu.DAY44 else []
    assert words == [
        *["/opt/nvcc", "-std=c++17", "-O3", "-gencode", "arch=compute_80,code=compute_80", "-lineinfo"],
        *["-o", str(tmp_path / "day"), str(source_dir / day), *library, "-DX"],
    ]
    own = test_gpu.command_of(test_gpu.Build(day), source_dir / day, tmp_path / "day")
    assert own[3] == "-arch=sm_90a"


def test_without_a_gpu_all_of_it_is_skipped(source_dir):
    if test_gpu.capability() is not None:
        pytest.skip("there is a GPU here")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", source_dir / "scripts/tests/test_gpu.py"]
    done = subprocess.run(words, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 77, done.stdout + done.stderr
