"""What only a GPU can tell: for a person who has one, `python3 -m pytest scripts/tests/test_gpu.py`.

Needs nvcc and, beside Python's standard library, pytest. Each day is built by the line of its header, with code for the
card and with code that the driver has to translate; faults are planted in copies of the sources, and the program or
compute-sanitizer must find them; then racecheck looks at the sound days. Builds run side by side, programs do not.
CUDA_DAYS_GPU_LONG=1 runs the days as a reader does, timing too, where it is `--check` alone otherwise.
"""

import ctypes
import functools
import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import SOURCE_DIR, find_nvcc
from planting import CodeFault, planted

DAY30, DAY44, DAY49, DAY56 = DAYS = [
    "day30-roofline/roofline.cu",
    "day44-matmul/matmul_registers.cu",
    "day49-roofline/roofline.cu",
    "day56-graphs/graphs.cu",
]
PTX = [75, 80, 90]  # what the driver is left to translate
FIND_LEFT_OUT = {DAY30: 90, DAY44: 90}  # the code from which on the day leaves nothing out
BARRIER = "__syncthreads();"


@dataclass(frozen=True)
class Build:
    """One program: a day, the faults in it, and nvcc's options beside those of the header's line."""

    day: str
    faults: tuple = ()
    ptx: int = 0  # 0: code for the card
    defines: tuple = ()

    def __str__(self):
        words = [f"compute_{self.ptx}"] if self.ptx else []
        return " ".join([self.day[:5], *words, *(str(fault) for fault in self.faults)])

    def source(self, source_dir):
        """Return the day's source with the faults in it."""
        return functools.reduce(planted, self.faults, (source_dir / self.day).read_text())


# Each fault's kernel must be named with "past the end", and no other kernel may fail.
PAST_THE_END = [
    Build(
        DAY30,
        (
            CodeFault("vectorAdd", "a thread too many", "i < n", "i <= n"),
            CodeFault("triadFp64", "a thread too many", "i < n", "i <= n"),
            CodeFault("intensity", "a thread too many", "i >= count", "i > count"),
        ),
    ),
    Build(
        DAY49,
        (
            CodeFault("copyCoalesced", "a thread too many", "i < n", "i <= n"),
            CodeFault("vectorAdd", "a thread too many", "i < n", "i <= n"),
            CodeFault("vectorAddPermuted", "a thread too many", "i < n", "i <= n"),
            CodeFault("polynomialHorner", "a thread too many", "i >= n", "i > n"),
            CodeFault("copyFloat4x4", "a pack too many", ", n)", ", n + 1)"),
        ),
    ),
]
# Each of these programs must fail and name the kernel; others may see what it did to their memory.
NAMED = [
    Build(DAY49, (CodeFault("matmulNaive", "no row guard", "row >= d || column >= d", "column >= d"),)),
    Build(DAY49, (CodeFault("heatStepGlobal", "no row guard", "row >= g || column >= g", "column >= g"),)),
    Build(DAY49, (CodeFault("transposeNaive", "no row guard", "row < side && column < side", "column < side"),)),
    Build(
        DAY30,
        (
            CodeFault(
                "worth",
                "a tensor sum without its first element",
                "1.0 * v.d[0] + 2.0 * v.d[1]",
                "2.0 * v.d[1]",
                kernel="arithmeticPeak",
            ),
        ),
    ),
    Build(
        DAY30,
        (
            CodeFault(
                "worth",
                "two tensor sums in each other's place",
                "1.0 * v.d[0] + 2.0 * v.d[1]",
                "1.0 * v.d[1] + 2.0 * v.d[0]",
                kernel="arithmeticPeak",
            ),
        ),
    ),
    Build(
        DAY44,
        (
            CodeFault(
                "storeFour",
                "no column guard",
                "row < g.m && column + e < g.n",
                "row < g.m",
                kernel="matmulGuardedSmall",
            ),
        ),
    ),
    Build(DAY56, (CodeFault("mapStreams", "a thread too many", "i < n", "i <= n", kernel="applyScaleBias"),)),
]
# What --check or else racecheck must find, on a card with wgmma.
UNORDERED = [
    Build(DAY30, (CodeFault("warpgroupPeak", f"without barrier {k + 1}", BARRIER, "", nth=k, of=2),)) for k in range(2)
]

# For racecheck: day 44's name says which of its kernels share memory; cuBLAS's own are none of ours.
SANITIZE = ("-DCUDA_DAYS_SANITIZE",)
KERNELS = {DAY44: ["--kernel-name", "kernel_substring=matmul"]}

SOUND = [Build(day, ptx=ptx) for day in DAYS for ptx in (0, *PTX)]
FOR_SANITIZER = [Build(day, defines=SANITIZE) for day in DAYS]


@functools.cache
def capability():
    """Return the first card's compute capability as 10 * major + minor; None without a usable card."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    calls = [
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(device), 0),
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device),  # COMPUTE_CAPABILITY_MAJOR
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device),
    ]
    return None if any(call() != 0 for call in calls) else 10 * major.value + minor.value


pytestmark = [
    pytest.mark.skipif(capability() is None, reason="no usable GPU: libcuda gives no device"),
    pytest.mark.skipif(find_nvcc() is None, reason="no nvcc (CUDACXX, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda)"),
]


@functools.cache
def known_to_nvcc():
    """Return what nvcc can build, as "compute_75"."""
    return subprocess.run([find_nvcc(), "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()


def why_not(build):
    """Return why this program cannot be built or run here; None if it can."""
    if build in UNORDERED and capability() != 90:
        return "wgmma is for sm_90a alone"
    if build.ptx > capability():
        return f"the card is sm_{capability()}"
    if build.ptx and f"compute_{build.ptx}" not in known_to_nvcc():
        return f"this nvcc does not know compute_{build.ptx}"
    return None


def command_of(build, source, program):
    """Return the words of the header's build line, with this build's code and names."""
    line = re.search(r"//\s+build: (nvcc .*)", source.read_text())[1]
    words = shlex.split(line)[1:]
    arch = f"sm_{capability()}" + ("a" if capability() == 90 else "")
    code = ["-gencode", f"arch=compute_{build.ptx},code=compute_{build.ptx}"] if build.ptx else [f"-arch={arch}"]
    result = [find_nvcc()]
    for word in words:
        name = {Path(build.day).name: str(source), Path(build.day).stem: str(program)}.get(word, word)
        result += code if word.startswith("-arch=") else [name]
    return [*result, *build.defines]


@pytest.fixture(scope="session")
def program(request, tmp_path_factory):
    """Return a function that gives a build's program. All that the chosen tests need are built side by side."""
    folder = tmp_path_factory.mktemp("gpu")
    chosen = [item.callspec.params.get("build") for item in request.session.items if hasattr(item, "callspec")]
    wanted = dict.fromkeys(build for build in chosen if isinstance(build, Build))

    def make(number, build):
        source, binary = folder / f"{number}.cu", folder / str(number)
        source.write_text(build.source(SOURCE_DIR))
        done = subprocess.run(command_of(build, source, binary), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{build}: {done.stdout}{done.stderr}"
        return binary

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        made = {b: pool.submit(make, n, b) for n, b in enumerate(wanted) if why_not(b) is None}

        def give(build):
            reason = why_not(build)
            if reason:
                pytest.skip(reason)
            return made[build].result()

        yield give
        for future in made.values():
            future.cancel()


def run(*words, timeout=150):
    """Run a program; return its exit code and all that it printed."""
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout


def failed(output):
    """Return which kernels' checks failed."""
    return set(re.findall(r"^FAILED (\w+)", output, re.MULTILINE))


@pytest.fixture(scope="session")
def sanitizer():
    """Return compute-sanitizer; a test that needs it is skipped where there is none."""
    beside = str(Path(find_nvcc()).resolve().parent)
    found = shutil.which("compute-sanitizer", path=beside) or shutil.which("compute-sanitizer")
    if not found:
        pytest.skip(f"no compute-sanitizer in {beside} or in PATH")
    return found


@pytest.mark.parametrize("build", SOUND, ids=str)
def test_a_day_is_right_and_says_what_runs(build, program):
    binary = program(build)
    whole = os.environ.get("CUDA_DAYS_GPU_LONG") == "1"
    code, output = run(binary, *([] if whole else ["--check"]))
    assert code == 0, output
    assert f"code for sm_{capability()}" in output
    if build.ptx and build.ptx != capability():
        assert f"code for sm_{capability()}, translated from compute_{build.ptx} by the driver" in output
    if build.ptx and build.ptx < min(capability(), FIND_LEFT_OUT.get(build.day, 0)):
        assert re.search("^left out", output, re.IGNORECASE | re.MULTILINE), output


@pytest.mark.parametrize("build", PAST_THE_END, ids=lambda build: build.day[:5])
def test_writes_past_the_end_are_caught(build, program):
    code, output = run(program(build), "--check")
    assert code == 1, output
    for fault in build.faults:
        assert re.search(rf"^FAILED {fault.shown_by} .*past the end", output, re.MULTILINE), f"{fault}:\n{output}"
    assert failed(output) == {fault.shown_by for fault in build.faults}


@pytest.mark.parametrize("build", NAMED, ids=str)
def test_a_planted_fault_is_caught(build, program):
    code, output = run(program(build), "--check")
    assert code == 1, output
    # A write far outside may end the program instead.
    assert re.search(rf"^(FAILED|.*kernel) {build.faults[0].shown_by}\b", output, re.MULTILINE), output


@pytest.mark.parametrize("build", UNORDERED, ids=str)
def test_a_barrier_taken_out_is_caught(build, program, sanitizer):
    binary = program(build)
    code, output = run(binary, "--check")
    if code == 0:  # the warps kept their order: racecheck does not need them to lose it
        words = ["--tool", "racecheck", "--error-exitcode", "1", "--kernel-name", "kernel_substring=warpgroupPeak"]
        code, output = run(sanitizer, *words, binary, "--check")
    assert code == 1, output
    assert "warpgroupPeak" in output


@pytest.mark.parametrize("build", FOR_SANITIZER, ids=lambda build: build.day[:5])
def test_racecheck_finds_nothing_in_a_day(build, program, sanitizer):
    words = ["--tool", "racecheck", "--error-exitcode", "1", *KERNELS.get(build.day, [])]
    code, output = run(sanitizer, *words, program(build), "--check")
    assert code == 0, output
    assert "RACECHECK SUMMARY: 0 hazards" in output
