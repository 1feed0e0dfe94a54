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
CUBLAS = BACKEND / "cublas.cpp"  # a library of its own
OTHERS = [CUBLAS, BACKEND / "trace.cpp", BACKEND / "traffic.cpp"]  # for --trace: test_trace.py
ASAN = os.environ.get("CUDA_DAYS_ASAN") == "1"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Return a function that builds a .cu of this folder and gives the program's path."""
    folder = tmp_path_factory.mktemp("backend")
    compiler = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{BACKEND}"]
    if ASAN:
        compiler += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    libraries = ["-lboost_context", "-pthread"]
    objects = {}
    built = {}

    def compile_all(sources):
        for source in sources:
            objects[source] = folder / f"{source.stem}.o"
        running = [subprocess.Popen([*compiler, "-c", source, "-o", objects[source]]) for source in sources]
        assert [process.wait() for process in running] == [0] * len(running)

    compile_all([source for source in sorted(BACKEND.glob("*.cpp")) if source not in OTHERS])

    def build_one(name):
        if name not in built:
            if name.startswith("cublas") and CUBLAS not in objects:
                probe = [*compiler, "-include", "cblas.h", "-x", "c++", "-", "-lopenblas", "-o", folder / "probe"]
                if subprocess.run(
                    probe, input="int main() { openblas_get_corename(); }", text=True, check=False
                ).returncode:
                    pytest.skip("no OpenBLAS: on Debian and Ubuntu, libopenblas-dev")
                libraries.insert(0, "-lopenblas")
                compile_all([CUBLAS])
            lowered = folder / f"{name}.cpp"
            subprocess.run(
                [sys.executable, BACKEND / "lower.py", TESTS / f"{name}.cu", "-o", lowered],
                check=True,
            )
            program = folder / name
            subprocess.run([*compiler, lowered, *objects.values(), *libraries, "-o", program], check=True)
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
            r".*faults\.cu:\d+, thread \(5, 0, 0\) returned without reaching it",
        ),
        (
            "barrier-in-branch",
            r"kernel barrierInBranch, block \(1, 0, 0\): (?=.*thread \(5, 0, 0\))thread \(\d+, 0, 0\) waits at the "
            r"barrier in .*faults\.cu:\d+, thread \(\d+, 0, 0\) at the one in .*faults\.cu:\d+",
        ),
        (
            "warp-against-barrier",
            r"kernel warpAgainstBarrier, block \(1, 0, 0\): thread \(\d+, 0, 0\) waits at the barrier in .+, "
            r"thread \(\d+, 0, 0\) waits at the __shfl_xor_sync with mask 0xffffffff in .*faults\.cu:\d+",
        ),
        (
            "different-masks",
            r"kernel differentMasks, block \(1, 0, 0\): thread \(0, 0, 0\) waits at the __shfl_xor_sync with mask "
            r"0xffffffff in .+, thread \(5, 0, 0\) waits at the __shfl_xor_sync with mask 0x000000ff in .+",
        ),
        (
            "mask-without-caller",
            r"kernel maskWithoutCaller, block \(1, 0, 0\), thread \(5, 0, 0\): calls __shfl_xor_sync in .+ "
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
        ("dynamic-past-end", "writes 0 bytes past the end of its 256"),
        ("dynamic-before-start", "writes 5000 bytes before the start of its 256"),
    ],
)
def test_accesses_around_dynamic_shared_memory_are_named(run, fault, message):
    result = run(fault)
    assert result.returncode == 1
    line = rf"CPU backend: kernel writeDynamicAt, {WHERE}: {message} bytes of dynamic shared memory"
    assert re.search(f"^{line}$", result.stderr, re.MULTILINE), result.stderr


def test_dynamic_shared_memory_that_the_launch_does_not_give_is_named(run):
    result = run("dynamic-none")
    assert result.returncode == 1
    assert re.search(
        r"kernel writeDynamicAt, block \(\d, 0, 0\), thread \(\d+, 0, 0\): writes \d+ bytes past the end of its 0 ",
        result.stderr,
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dynamic-slack-after", "wrote 4 bytes past the end of its 260"),
        ("dynamic-slack-before", "wrote 8 bytes before the start of its 256"),
    ],
)
def test_writes_close_to_dynamic_shared_memory_are_found_after_the_block(run, fault, message):
    result = run(fault)
    assert result.returncode == 1
    line = f"CPU backend: kernel writeDynamicAt, block (2, 0, 0): {message} bytes of dynamic shared memory\n"
    assert line in result.stderr


def test_reads_close_to_dynamic_shared_memory_give_poison(run):
    result = run("dynamic-slack-read")
    assert result.returncode == 1
    assert "readDynamicAt: element 135: got nan, want 1\n" in result.stdout


def test_the_sound_pipeline_passes(run):
    for seed in ("1", "2"):
        assert run("pipeline-none", seed=seed, leaks="1").returncode == 0


@pytest.mark.parametrize("fault", ["pipeline-wait", "pipeline-barrier", "pipeline-early-copy"])
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_what_a_pipeline_lacks_shows(run, fault, seed):
    result = run(fault, seed=seed)
    assert result.returncode == 1
    assert re.search(r"sumTiles: element \d+: got ", result.stdout)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("copy-size", "copies 4, 8 or 16 bytes at a time"),
        ("copy-zeros", "fills more bytes with zeros than it copies"),
        ("copy-alignment", "needs both addresses aligned to the size of the copy"),
        ("copy-from-shared", "has a source that does not lie in an allocation of device memory"),
        ("copy-from-past-end", "has a source that does not lie in an allocation of device memory"),
        ("copy-to-device", "has a destination that does not lie in the block's shared memory"),
        ("copy-past-shared", "has a destination that does not lie in the block's shared memory"),
    ],
)
def test_bad_copies_are_named(run, fault, message):
    result = run(fault)
    assert result.returncode == 1
    line = rf"CPU backend: kernel copyBadly, {WHERE}: __pipeline_memcpy_async in .*faults\.cu:\d+ {message}"
    assert re.search(f"^{line}$", result.stderr, re.MULTILINE), result.stderr


def test_a_copy_that_nobody_waits_for_is_named(run):
    result = run("copy-no-wait")
    assert result.returncode == 1
    assert re.search(
        rf"kernel copyBadly, {WHERE}: returned with 1 asynchronous copies that it never waited for, the first from "
        r".*faults\.cu:\d+\n",
        result.stderr,
    )


@pytest.mark.parametrize(("fault", "matrix"), [("past-end", "C"), ("host-pointer", "B")])
def test_matrices_outside_device_memory_are_named(run, fault, matrix):
    result = run(fault, program="cublas_test")
    assert result.returncode == 1
    assert (
        f"CPU backend: cublasGemmEx: {matrix}, 8 x 8 with leading dimension 8, takes 256 bytes that do not lie in one "
        "allocation of device memory\n"
    ) in result.stderr


def test_library_calls_are_logged_and_skipped_like_kernels(run):
    assert run("none", program="cublas_test", leaks="1").returncode == 0
    result = run("none", program="cublas_test", log="1", skip="cublasGemmEx")
    assert (result.returncode, result.stdout) == (1, "cublasGemmEx: got -nan, want 8\n")
    assert result.stderr == "CPU backend: launch cublasGemmEx m 8 n 8 k 8 op NN skipped\n"
    result = run("none", program="cublas_test", skip="cublasSgemm")
    assert result.returncode == 1
    assert 'names "cublasSgemm", and no kernel of that name was launched' in result.stderr


def test_an_openblas_that_computes_wrong_products_is_named(build, tmp_path):
    source, library = tmp_path / "wrong.cpp", tmp_path / "wrong.so"
    source.write_text('extern "C" void cblas_sgemm() {}\n')
    subprocess.run([os.environ.get("CXX", "g++"), "-shared", "-fPIC", source, "-o", library], check=True)
    result = subprocess.run(
        [build("cublas_test"), "none"],
        env=os.environ | {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1
    assert re.search(
        r"OpenBLAS's kernels for \"\w+\" compute wrong products on this processor; set OPENBLAS_CORETYPE", result.stderr
    )


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
    told = run("leak-graph")
    assert "CPU backend: 1 stream(s) never destroyed\n" in told.stderr
    assert "CPU backend: 1 graph(s) never destroyed\n" in told.stderr


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("device", "t5", "t4, a100, h100, h200, no-driver, no-gpu, old-driver, other-arch, too-old, small, translated"),
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
    assert f"free {16 << 20}" in result.stdout


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
