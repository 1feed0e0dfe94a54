# SPDX-License-Identifier: MIT
"""The backend must find what a GPU hides: every planted fault fails and names kernel, block and thread.

CXX picks the compiler (g++ by default); CUDA_DAYS_ASAN=1 builds with AddressSanitizer and UBSan.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
BACKEND = TESTS.parent
ASAN = os.environ.get("CUDA_DAYS_ASAN") == "1"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Return a function that builds a .cu of this folder and gives the program's path."""
    folder = tmp_path_factory.mktemp("backend")
    compiler = [os.environ.get("CXX", "g++"), "-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{BACKEND}"]
    if ASAN:
        compiler += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    backend = folder / "cuda_runtime.o"
    subprocess.run([*compiler, "-c", BACKEND / "cuda_runtime.cpp", "-o", backend], check=True)
    built = {}

    def build_one(name):
        if name not in built:
            lowered = folder / f"{name}.cpp"
            subprocess.run(
                [sys.executable, BACKEND / "lower.py", TESTS / f"{name}.cu", "-o", lowered],
                check=True,
            )
            program = folder / name
            subprocess.run(
                [*compiler, lowered, backend, "-lboost_context", "-pthread", "-o", program],
                check=True,
            )
            built[name] = program
        return built[name]

    return build_one


@pytest.fixture
def run(build):
    """Return a function that runs faults.cu with one fault and variables of the backend."""

    def run_one(fault, program="faults", **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_DAYS_CPU_")}
        environment |= {f"CUDA_DAYS_CPU_{name.upper()}": value for name, value in variables.items()}
        return subprocess.run(
            [build(program), fault], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run_one


def test_the_sound_program_passes(run):
    result = run("none", seed="1", leaks="1")
    assert (result.returncode, result.stdout, result.stderr) == (0, "running none\n", "")


@pytest.mark.parametrize("fault", ["missing-barrier", "unwritten-shared", "unwritten-device", "skip"])
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_wrong_results_show(run, fault, seed):
    variables = {"skip": "mirror"} if fault == "skip" else {}
    result = run(fault, seed=seed, **variables)
    assert result.returncode == 1
    wrong = r"got \d" if fault == "missing-barrier" else r"got -?nan"
    assert re.search(r"(?:mirror|mirrorShort|readAt): element \d+: ", result.stdout)
    assert fault == "missing-barrier" or re.search(wrong, result.stdout)


WHERE = r"block \(2, 0, 0\), thread \(7, 0, 0\)"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("write-past-end", rf"kernel writeAt, {WHERE}: writes 40 bytes past the end of an allocation of 1536 bytes"),
        ("read-past-end", rf"kernel readAt, {WHERE}: reads 0 bytes past the end of an allocation of 1536 bytes"),
        (
            "write-before-start",
            rf"kernel writeAt, {WHERE}: writes 20000 bytes before the start of an allocation of 1536 bytes",
        ),
        (
            "use-after-free",
            r"kernel readAt, block \(\d, 0, 0\), thread \(\d+, 0, 0\): "
            r"reads byte \d+ of a freed allocation of 4000 bytes",
        ),
        (
            "return-before-barrier",
            r"kernel returnBeforeBarrier, block \(1, 0, 0\): thread \(\d+, 0, 0\) waits at the barrier in "
            r"\S*faults\.cu:\d+, thread \(5, 0, 0\) returned without reaching it",
        ),
        (
            "barrier-in-branch",
            r"kernel barrierInBranch, block \(1, 0, 0\): (?=.*thread \(5, 0, 0\))thread \(\d+, 0, 0\) waits at the "
            r"barrier in \S*faults\.cu:\d+, thread \(\d+, 0, 0\) at the one in \S*faults\.cu:\d+",
        ),
        (
            "warp-against-barrier",
            r"kernel warpAgainstBarrier, block \(1, 0, 0\): thread \(\d+, 0, 0\) waits at the barrier in \S+, "
            r"thread \(\d+, 0, 0\) waits at the __shfl_xor_sync with mask 0xffffffff in \S*faults\.cu:\d+",
        ),
        (
            "different-masks",
            r"kernel differentMasks, block \(1, 0, 0\): thread \(0, 0, 0\) waits at the __shfl_xor_sync with mask "
            r"0xffffffff in \S+, thread \(5, 0, 0\) waits at the __shfl_xor_sync with mask 0x000000ff in \S+",
        ),
        (
            "mask-without-caller",
            r"kernel maskWithoutCaller, block \(1, 0, 0\), thread \(5, 0, 0\): calls __shfl_xor_sync in \S+ "
            r"with mask 0xffffffdf, which leaves this thread out",
        ),
    ],
)
def test_faults_are_named(run, fault, message):
    result = run(fault)
    assert result.returncode == 1, result.stderr
    assert re.search(f"^CPU backend: {message}$", result.stderr, re.MULTILINE), result.stderr
    assert result.stdout == f"running {fault}\n"  # what was printed before is not lost


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("write-slack-after", "past the end of an allocation of 1532 bytes, at byte 1532"),
        ("write-slack-before", "before the start of an allocation of 1536 bytes, at byte -8"),
    ],
)
def test_writes_into_the_slack_are_found_after_the_launch(run, fault, message):
    result = run(fault)
    assert result.returncode == 1
    if ASAN:  # which sees the write itself
        assert f"the sanitizer stopped kernel writeAt, {WHERE}".replace("\\", "") in result.stderr
    else:
        assert f"CPU backend: kernel writeAt wrote {message}\n" in result.stderr


def test_an_address_near_no_allocation_keeps_the_default_signal(run):
    result = run("null")
    assert result.returncode == -11 or ASAN
    assert re.search(
        r"kernel writeNull, block \(\d, 0, 0\), thread \(3, 0, 0\): |sanitizer stopped kernel writeNull",
        result.stderr,
    ) or (ASAN and "null pointer" in result.stderr)


@pytest.mark.skipif(ASAN, reason="AddressSanitizer's larger stacks hold what overflows a plain one")
def test_a_stack_too_deep_is_named(run):
    result = run("deep-stack")
    assert result.returncode == 1
    assert "its local variables need more than the 64 KiB of stack" in result.stderr


@pytest.mark.parametrize("name", ["mirror", "mirror<true>", "mirror< true >"])
def test_skips_go_by_symbol_or_full_name(run, name):
    result = run("skip", skip=name, log="1")
    assert result.returncode == 1
    assert "CPU backend: launch mirror<true> grid (6, 1, 1) block (64, 1, 1) skipped\n" in result.stderr


@pytest.mark.parametrize("skip", ["mirrors", "mirror<false>", "mirror,nobody"])
def test_a_skip_that_matches_no_launch_fails(run, skip):
    result = run("leak" if "," not in skip else "none", skip=skip)
    assert result.returncode == 1
    assert f'names "{skip.split(",")[-1]}", and no kernel of that name was launched' in result.stderr


def test_the_log_names_every_launch(run):
    result = run("none", log="1", seed="5")
    assert result.returncode == 0
    assert result.stderr == "CPU backend: launch mirror<true> grid (6, 1, 1) block (64, 1, 1)\n"


def test_leaks_are_told_and_fail_on_request(run):
    told = run("leak")
    assert (told.returncode, told.stderr) == (0, "CPU backend: 2 allocation(s) never freed\n")
    assert run("leak", leaks="1").returncode == 1


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("device", "t5", "t4, no-driver, no-gpu, old-driver, other-arch, small"),
        ("seed", "12x", "whole number"),
        ("seed", "-1", "whole number"),
        ("log", "yes", "0 or 1"),
    ],
)
def test_bad_values_are_named(run, variable, value, named):
    result = run("none", **{variable: value})
    assert result.returncode == 1
    assert f'CUDA_DAYS_CPU_{variable.upper()} is "{value}"' in result.stderr
    assert named in result.stderr


@pytest.mark.parametrize(
    ("device", "line"),
    [
        (
            "no-driver",
            "driver 0, count 0 cudaErrorInsufficientDriver, attributes cudaErrorInsufficientDriver, "
            "launch cudaErrorInsufficientDriver, free 0",
        ),
        (
            "old-driver",
            "driver 11040, count 0 cudaErrorInsufficientDriver, attributes cudaErrorInsufficientDriver, "
            "launch cudaErrorInsufficientDriver, free 0",
        ),
        (
            "no-gpu",
            "driver 13000, count 0 cudaErrorNoDevice, attributes cudaErrorNoDevice, launch cudaErrorNoDevice, free 0",
        ),
        (
            "other-arch",
            "driver 13000, count 1 cudaSuccess, attributes cudaErrorNoKernelImageForDevice, "
            "launch cudaErrorNoKernelImageForDevice, free 17179869184",
        ),
    ],
)
def test_pretended_states(run, device, line):
    result = run("describe", device=device)
    assert result.returncode == 0
    assert line in result.stdout


def test_the_small_device_has_little_free(run):
    result = run("describe", device="small", skip="mirror")
    assert result.returncode == 0
    assert f"free {64 << 20}" in result.stdout


def test_the_order_follows_the_seed(run):
    def order(**variables):
        result = run("", program="backend_test", **variables)
        assert result.returncode == 0, result.stdout + result.stderr
        return next(line for line in result.stdout.splitlines() if line.startswith("order ")), result.stderr

    first, quiet = order(seed="1")
    assert "seed" not in quiet
    assert order(seed="1")[0] == first
    assert order(seed="2")[0] != first
    drawn, told = order()
    seed = re.search(r"CUDA_DAYS_CPU_SEED=(\d+) repeats it", told)
    assert seed
    assert order(seed=seed.group(1))[0] == drawn
