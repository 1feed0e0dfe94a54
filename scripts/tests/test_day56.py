"""Day 56 where its answers depend on more than its kernels: noise, other processes, the order of a graph's nodes.

`day56_driver.cpp` includes the lowered day whole and calls its own functions, so that no rule is written twice. What it
needs the runtime to answer (free memory, the order of a graph's nodes) it answers itself.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from planting import SMALLER, exchanged

pytestmark = pytest.mark.skipif(
    os.environ.get("CUDA_DAYS_BACKEND", "cpu") != "cpu", reason="the driver is built on the CPU backend"
)

QUANTITIES = ["submission", "gpu", "end to end"]
RUNS = 10_000
ALLOWED = RUNS // 500  # runs that may end otherwise than they would without noise
BOUND_BY_LAUNCHING = 1 << 18  # elements; up to there submission is most of what a graph saves

# A gate that gives up at once, and few graphs to look for a leak.
QUICK = {"kPatience = 1LL << 31": "kPatience = 1LL << 16", "kCycles = 1000": "kCycles = 20"}
# Sizes whose checks take no time.
SMALL = SMALLER["day56-graphs/graphs.cu"]
# A kernel in the middle of the chain that writes behind its output.
STRAY = {
    "mapStreams<kWidth>([](float v) { return gelu(v); }, n, out, in);": (
        "mapStreams<kWidth>([](float v) { return gelu(v); }, n, out, in);\n"
        "  if (blockIdx.x == 0 && threadIdx.x == 0) out[n] = 1;"
    )
}
# A toolkit without the header, whatever this machine has.
NO_NVTX = {"__has_include(<nvtx3/nvToolsExt.h>)": "__has_include(<no/such/header.h>)"}


def built(folder, source_dir, build_dir, cxx, edits, *flags):
    """Build the driver around the day, with pieces of its code exchanged; return the program."""
    cpu = source_dir / "common" / "cpu"
    source = (source_dir / "day56-graphs" / "graphs.cu").read_text(encoding="ascii")
    for old, new in edits.items():
        source = exchanged(source, "", old, new, "day 56")
    (folder / "day.cu").write_text(source, encoding="ascii")
    subprocess.run([sys.executable, cpu / "lower.py", folder / "day.cu", "-o", folder / "day.cpp"], check=True)
    flags = [*flags, "-std=c++17", "-O1", "-march=native", "-w", "-rdynamic", "-I", cpu, "-I", folder]
    if os.environ.get("CUDA_DAYS_ASAN") == "1":  # as the backend in this build folder was
        flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=null"]
    driver = source_dir / "scripts" / "tests" / "day56_driver.cpp"
    libraries = [build_dir / "libcpu_backend.a", "-lboost_context", "-pthread"]
    subprocess.run([cxx, *flags, driver, *libraries, "-o", folder / "driver"], check=True)
    return folder / "driver"


def run(program, *arguments, rows="", **extra):
    """Run the driver on rows of recorded noise; return exit code, stdout and stderr."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_LAUNCH_BLOCKING"}
    result = subprocess.run(
        [program, *map(str, arguments)],
        input=rows,
        env={**environment, **extra},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


@pytest.fixture(scope="module")
def driver(source_dir, build_dir, cxx, tmp_path_factory):
    """Return the driver around the day at its own sizes."""
    return built(tmp_path_factory.mktemp("driver"), source_dir, build_dir, cxx, QUICK)


@pytest.fixture(scope="module")
def bare_driver(source_dir, build_dir, cxx, tmp_path_factory):
    """Return a driver built without NVTX, with red zones, and with a kernel that writes behind its output."""
    edits = {**QUICK, **SMALL, **STRAY, **NO_NVTX}
    folder = tmp_path_factory.mktemp("bare")
    return built(folder, source_dir, build_dir, cxx, edits, "-DCUDA_DAYS_RED_ZONE=4096")


@pytest.fixture(scope="module")
def recorded_noise(source_dir):
    """Return a row for each size and time of the recorded run: what the driver draws its noise from.

    A row has the median and the spread (least, 5th and 95th percentile, greatest, in microseconds) of the launches,
    from the control, and of the graph, from the comparison with the launches. Below the 95th percentile the driver
    draws along these quantiles; above it the tail is heavier than the recorded one, a Pareto distribution with exponent
    2 whose width is the distance from there to the greatest sample, so that outliers come that 32 samples need not
    show.
    """
    rows = {}
    with (source_dir / "profile" / "h200" / "day56.jsonl").open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            if record["record"] == "path" and "verdict" in record:
                place = record["n"], QUANTITIES.index(record["quantity"])
                kind = "launches" if record["variant"] == record["against"] else "graph"
                least, greatest = 1e3 * record["ms_min"], 1e3 * record["ms_max"]
                rows.setdefault(place, {})[kind] = [record["value"], least, record["p5"], record["p95"], greatest]
    assert {quantity for _, quantity in rows} == set(range(len(QUANTITIES)))
    assert len(rows) == len(QUANTITIES) * len({size for size, _ in rows})
    assert all(row.keys() == {"launches", "graph"} for row in rows.values())
    return "".join(
        " ".join(map(str, [*place, *row["launches"], *row["graph"]])) + "\n" for place, row in sorted(rows.items())
    )


# ---- Noise


def verdicts_of(output):
    """Return (size, quantity, verdict without noise, runs in which it drowned) of each line of the driver's."""
    lines = re.findall(r"^verdict (\d+) (\d) (\S+) (\d+)$", output, re.MULTILINE)
    return [(int(size), int(quantity), verdict, int(untold)) for size, quantity, verdict, untold in lines]


@pytest.mark.parametrize("bursts", [0, 1], ids=["steady host", "host slow in bursts"])
@pytest.mark.parametrize("scale", [1, 3])
def test_noise_changes_no_run(driver, recorded_noise, scale, bursts):
    """Fewer than 1 run in 500 remarks on its controls, and none names the slower one as the faster.

    Nor does a difference that noise leaves alone drown in it. At three times the noise those of the two largest sizes
    may: they are a few percent there, and a verdict needs all of its interval beyond one.
    """
    code, output, _ = run(driver, "noise", RUNS, scale, bursts, rows=recorded_noise)
    assert code == 0
    runs, remarked, wrong = map(int, re.match(r"runs (\d+) remarked (\d+) wrong (\d+)\n", output).groups())
    assert runs == RUNS
    assert remarked < ALLOWED
    assert wrong == 0
    for size, _, _, untold in verdicts_of(output):
        if scale == 1 or size <= BOUND_BY_LAUNCHING:
            assert untold < ALLOWED, output


def test_the_verdicts_of_the_recorded_run_are_told(driver, recorded_noise):
    """The rule is no blind one: with three times the noise it tells the graph from the launches where these bind."""
    _, output, _ = run(driver, "noise", 1000, 3, 0, rows=recorded_noise)
    told = verdicts_of(output)
    assert len(told) == recorded_noise.count("\n")
    assert {verdict for _, _, verdict, _ in told} == {"graph"}
    assert sum(untold for size, *_, untold in told if size <= BOUND_BY_LAUNCHING) <= 2


def test_noise_is_told_beside_the_verdicts(driver, recorded_noise):
    """A control that is told from itself is called noise in its row, in its record and below the table."""
    controls = recorded_noise.count("\n")
    code, output, errors = run(driver, "disturbed", 5, rows=recorded_noise)
    assert (code, errors) == (0, "")
    assert f"noisy 1 of {controls}\n" in output
    noisy = r"^ *(\d+)  gpu +launches .* launches .* -0\.\d\d +-0\.\d\d +-0\.\d\d .* noise$"
    (size,) = re.findall(noisy, output, re.MULTILINE)
    assert f"\nNoise: in 1 of {controls} controls" in output
    records = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    of_controls = {(r["n"], r["quantity"]): r["verdict"] for r in records if r["variant"] == r["against"]}
    assert len(of_controls) == controls
    assert of_controls.pop((int(size), "gpu")) == "noise"
    assert set(of_controls.values()) == {"indistinguishable"}
    code, output, _ = run(driver, "disturbed", 0, rows=recorded_noise)
    assert code == 0
    assert f"noisy 0 of {controls}\n" in output
    assert "oise:" not in output


@pytest.mark.parametrize(("gave_up", "launches"), [(0, 2), (1, 3), (2, 4)])
def test_a_sample_behind_a_gate_that_gave_up_is_taken_anew(driver, gave_up, launches):
    code, output, errors = run(driver, "gate", gave_up)
    assert code == 0, errors
    assert output.startswith(f"launches {launches},")  # the last one is that of the time end to end


def test_a_gate_that_never_opens_stops_the_run(driver):
    code, _, errors = run(driver, "gate", 3)
    assert code == 1
    assert "the gate gave up 3 times" in errors


# ---- Other processes


@pytest.mark.parametrize(
    ("lost", "failed"),
    [
        ([0, 0, 0, 0, 0], 0),
        ([3, 0, 0, 0, 0], 0),  # a program that starts
        ([0, 100, 0, -100, 0], 0),
        ([0, 3, 0, 0, 3], 0),
        ([3, 3, 3, 3, 3], 1),  # a leak
        ([3, 3, -100, 3, 3], 1),  # and a program that ends meanwhile
    ],
)
def test_a_leak_is_what_most_rounds_lose(driver, lost, failed):
    code, output, errors = run(driver, "leaks", *lost)
    assert code == 0
    assert output.endswith(f"failed {failed} rounds 5\n")
    assert ("FAILED cudaGraphExecDestroy" in errors) == bool(failed)
    if failed:
        assert f"lost {', '.join(str(1024 * mib) for mib in lost)} KiB" in errors


# ---- The order of nodes, rates, surroundings


def test_nodes_may_come_in_any_order(driver):
    code, output, errors = run(driver, "reversed-nodes")
    assert code == 0, errors
    assert "failed 0\n" in output
    assert "graph, parameters set" in output


def test_an_impossible_rate_stops_the_run(driver):
    assert run(driver, "impossible", 40)[:2] == (0, "possible\n")  # 944 GB/s of 1000
    code, output, errors = run(driver, "impossible", 30)
    assert (code, output) == (1, "")
    assert "graph, n = 1048576, gpu reads 1258.3 GB/s, and this card cannot exceed 1000.0" in errors


def test_blocking_launches_are_refused_where_times_are_measured(driver):
    code, _, errors = run(driver, "table", CUDA_LAUNCH_BLOCKING="1")
    assert code == 1
    assert "CUDA_LAUNCH_BLOCKING=1" in errors
    assert "unset it" in errors
    for harmless in ("", "0"):  # goes on, to the GPU that is not there
        assert run(driver, "table", CUDA_LAUNCH_BLOCKING=harmless, CUDA_DAYS_CPU_DEVICE="no-gpu")[0] == 77


def test_blocking_launches_do_not_keep_the_checks_from_running(bare_driver):
    code, output, _ = run(bare_driver, "--check", CUDA_DAYS_CPU_SEED="1")
    assert run(bare_driver, "--check", CUDA_DAYS_CPU_SEED="1", CUDA_LAUNCH_BLOCKING="1")[:2] == (code, output)
    assert "holdStream" in output


def test_the_loaded_code_decides_on_programmatic_launches(bare_driver):
    """Code for sm_75 that the driver of an H200 translated has no wait in it."""
    sentence = "No programmatic variants: they need a card and code of sm_90 or later."
    for device, left_out in [("t4", True), ("translated", True), ("h200", False)]:
        code, output, errors = run(
            bare_driver,
            "--profile",
            CUDA_DAYS_CPU_DEVICE=device,
            CUDA_DAYS_CPU_LOG="1",
            CUDA_DAYS_CPU_SKIP="holdStream",
        )
        assert (sentence in output) == left_out, device
        assert ("applyGelu<1, true>" in errors) != left_out, device


def test_a_build_without_nvtx_says_so(bare_driver, driver):
    sentence = "No ranges are marked for the profiler: this was built without the header nvtx3/nvToolsExt.h."
    assert sentence in run(bare_driver, "--profile")[1]
    kernels = "applyScaleBias,applyGelu,applyAddResidual,applyClampRange,applyFused"
    assert sentence not in run(driver, "--profile", CUDA_DAYS_CPU_SKIP=kernels)[1]


def test_a_write_past_the_end_names_its_kernel(bare_driver):
    """The red zones are compared after a chain of four kernels, of which the second is to blame."""
    code, _, errors = run(bare_driver, "--check")
    assert code == 1
    failures = re.findall(r"^FAILED (\w+) \(([^,]+).*?\): (.*)$", errors, re.MULTILINE)
    assert ("applyGelu", "launches") in {(symbol, variant) for symbol, variant, _ in failures}
    assert {symbol for symbol, *_ in failures} == {"applyGelu"}
    assert all("wrote 0 bytes past the end of a buffer of" in message for *_, message in failures)
