# SPDX-License-Identifier: MIT
"""A trace must count what can be counted by hand, find planted faults, and predict what the recorded counters read."""

import json
import os
import re
import subprocess

import predict
import pytest
from day_facts import facts_of


@pytest.fixture(scope="session")
def programs(source_dir, tmp_path_factory):
    """Return the folder of a build with --trace: the cases of this folder and day 49, in paths that hold blanks."""
    folder = tmp_path_factory.mktemp("cpu trace")
    checkout = tmp_path_factory.mktemp("a checkout") / "cuda days"
    checkout.symlink_to(source_dir)
    cmake = os.environ.get("CMAKE", "cmake")
    options = ["-DCUDA_DAYS_BACKEND=cpu", "-DCUDA_DAYS_TRACE=ON", "-DCUDA_DAYS_NVCC="]
    build = [cmake, "--build", folder, "--parallel", "2", "--target", "trace_cases", "day49-roofline"]
    for command in ([cmake, "-S", checkout, "-B", folder, *options], build):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "CUDA_DAYS_TRACE needs GCC" in done.stderr:
            pytest.skip("the compiler is not GCC: set CXX=g++")
        assert done.returncode == 0, done.stdout + done.stderr
    assert f'"{checkout}/common' in (folder / "tests" / "trace_cases.cpp").read_text()  # not where the link leads
    return folder


@pytest.fixture(scope="session")
def trace(programs):
    """Return a function that traces one case: exit code, records, stderr."""

    def run(case, *options):
        words = [programs / "tests" / "trace_cases", case, "--trace", "--json", *options]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return run


def traffic(trace, case, *options):
    """Return the record of the one launch of a sound case."""
    code, records, said = trace(case, *options)
    assert (code, said) == (0, "")
    return next(record for record in records if record["record"] == "traffic")


# Of one warp's load: sectors of 32 bytes, bytes requested, distinct bytes.
GLOBAL = {
    "stride0": (1, 128, 4),
    "stride1": (4, 128, 128),
    "stride2": (8, 128, 128),
    "stride8": (32, 128, 128),
    "stride32": (32, 128, 128),
    "misaligned": (5, 128, 128),
    "halfWarp": (2, 64, 64),
    "wholeFloat4": (16, 512, 512),
    "membersOfFloat4": (16, 512, 512),
    "doubles": (8, 256, 256),
}


@pytest.mark.parametrize("case", GLOBAL)
def test_sectors(trace, case):
    record = traffic(trace, case)
    stored = {"halfWarp": 64, "wholeFloat4": 512}.get(case, 128)
    assert (record["blocks"], record["traced"]) == (1, 1)
    assert (record["global_load_requests"], record["global_store_requests"]) == (1, 1)
    loaded = (record["global_load_sectors"], record["global_load_bytes"], record["compulsory_bytes"] - stored)
    assert loaded == GLOBAL[case]
    assert (record["global_store_sectors"], record["global_store_bytes"]) == (stored // 32, stored)
    assert record["l1_bytes"] == record["l2_bytes"] == 32 * (loaded[0] + stored // 32)


# Of one warp's read: wavefronts, and those of them that are due to conflicts.
SHARED = {
    "row": (1, 0),
    "column": (32, 31),
    "paddedColumn": (1, 0),
    "broadcast": (1, 0),
    "sharedStride2": (2, 1),
    "sharedStride4": (4, 3),
    "rowOfFloat2": (2, 0),
    "rowOfFloat4": (4, 0),
    "everyOtherFloat4": (8, 4),
    "pairsOfFloat4": (2, 0),
}


@pytest.mark.parametrize("case", SHARED)
def test_bank_conflicts(trace, case):
    record = traffic(trace, case)
    assert record["shared_load_requests"] == 1
    assert (record["shared_load_wavefronts"], record["shared_load_conflicts"]) == SHARED[case]
    assert (record["shared_store_wavefronts"], record["shared_store_conflicts"]) == (33, 0)


def test_l1_answers_what_was_read_before(trace):
    record = traffic(trace, "twice")
    assert (record["global_load_requests"], record["global_load_sectors"]) == (2, 8)
    assert (record["l1_bytes"], record["l2_bytes"]) == ((8 + 4) * 32, (4 + 4) * 32)


@pytest.mark.parametrize(("case", "sectors"), [("atomics", 1), ("floatAtomics", 2)])
def test_atomics(trace, case, sectors):
    record = traffic(trace, case)
    assert (record["global_atomic_requests"], record["global_atomic_sectors"]) == (1, sectors)
    assert record["global_load_requests"] == 0
    assert record["compulsory_bytes"] == {"atomics": 4, "floatAtomics": 64}[case]


def test_asynchronous_copies_pass_l1_by(trace):
    record = traffic(trace, "asyncCopies")
    assert (record["global_async_copy_requests"], record["global_async_copy_sectors"]) == (1, 16)
    assert (record["shared_async_copy_requests"], record["shared_async_copy_wavefronts"]) == (1, 4)


def test_few_blocks_are_traced_whole_and_many_by_a_sample(trace):
    few, many = traffic(trace, "copyBlocks"), traffic(trace, "copyManyBlocks", "--card", "t4")
    assert (few["blocks"], few["traced"]) == (16, 16)
    assert (many["blocks"], many["traced"]) == (10000, 128)
    for record in (few, many):
        assert record["global_load_requests"] == record["global_store_requests"] == record["blocks"] * 8
        assert record["global_load_sectors"] == record["blocks"] * 32
        assert record["compulsory_bytes"] == 2 * record["blocks"] * 1024
        assert record["l2_bytes"] == record["l1_bytes"] == 2 * record["blocks"] * 1024
    # All of it fits into the L2, so what was written is still there; of 20 MB through 4 MiB, half of these are.
    assert (few["dram_read_bytes"], few["dram_write_bytes"]) == (16 * 1024, 0)
    assert (many["dram_read_bytes"], many["dram_write_bytes"]) == (10240000, 10240000 - (4 << 20) // 2)


def test_lines_are_named(trace, source_dir):
    _, records, _ = trace("stride2")
    source = (source_dir / "common/cpu/tests/trace_cases.cu").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(source) if "void stride2(" in text)
    lines = {(r["line"], r["space"], r["access"], r["sectors"]) for r in records if r["record"] == "traffic-line"}
    assert lines == {(f"trace_cases.cu:{line}", "global", "load", 8), (f"trace_cases.cu:{line}", "global", "store", 4)}


AT = r"trace_cases\.cu:\d+"
THREAD = r"thread \(\d+, 0, 0\)"
FAULTS = {
    "raceBetweenWarps": rf"race: {THREAD} writes byte \d+ of a shared array at {AT}, {THREAD} reads it at {AT}",
    "raceInWarp": rf"race: {THREAD} writes byte \d+ of a shared array at {AT}, {THREAD} reads it at {AT}",
    "raceOfWrites": rf"race: {THREAD} writes byte \d+ of an allocation at {AT}, {THREAD} writes it at {AT}",
    "pastEnd": rf"outside: {THREAD} reads 4 bytes, \d+ past the end of an allocation of 16384 bytes, at {AT}",
    "beforeStart": rf"outside: {THREAD} writes 4 bytes, \d+ before the start of an allocation of 16384 bytes, at {AT}",
    "pastShared": rf"outside: {THREAD} writes 4 bytes, 0 past the end of a shared array of 128 bytes, at {AT}",
    "hostPointer": rf"outside: {THREAD} reads 4 bytes of the host's memory at {AT}",
    "unwrittenDevice": rf"unwritten: {THREAD} reads 4 bytes that nobody wrote at {AT}: byte \d+ of an allocation",
    "unwrittenShared": rf"unwritten: thread \(7, 0, 0\) reads 4 bytes that nobody wrote at {AT}: byte 28 of a shared",
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_found(trace, case):
    code, _, said = trace(case)
    assert code == 1
    kernel = "stride1" if case == "hostPointer" else case
    assert re.match(rf"CPU backend: kernel {kernel}, block \(0, 0, 0\): {FAULTS[case]}", said), said


def test_memory_that_a_static_constructor_took_is_known(trace):
    record = traffic(trace, "allocatedBefore")
    assert (record["global_load_requests"], record["global_load_sectors"]) == (1, 4)


def test_a_warp_operation_orders_its_lanes(trace):
    assert traffic(trace, "orderedInWarp")["shared_load_requests"] == 1


def test_without_trace_nothing_changes(programs):
    words = [programs / "day49-roofline" / "roofline", "--card", "t4"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown argument '--card'" in done.stderr


def test_an_unknown_card_is_refused(trace):
    code, _, said = trace("stride1", "--card", "gtx")
    assert code == 1
    assert '--card is "gtx"; it takes one of t4, a100, h100, h200' in said


# ---- day 49, against the counters of an H200

STREAMS = ["copyCoalesced", "vectorAdd", "transposeNaive", "transposeTiled", "polynomialHorner"]
STREAMS += ["vectorAddPermuted", "reduceSequentialAddressing"]


@pytest.fixture(scope="session")
def day49(programs, source_dir, tmp_path_factory):
    """Return the file of day 49's trace for an H200, and its pairs with the recorded counters.

    The trace of a kernel that was never recorded, which has no counters yet, is left out.
    """
    path = tmp_path_factory.mktemp("day49") / "day49-predicted.jsonl"
    words = [programs / "day49-roofline" / "roofline", "--trace", "--card", "h200", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines(keepends=True) if '"record":"traffic"' in line]
    counted = predict.read_counters(source_dir / "profile/h200/day49-counters.csv")
    recorded = {predict.split_name(launch.kernel)[0] for launch in counted}
    path.write_text("".join(line for line in lines if json.loads(line)["symbol"] in recorded))
    pairs, notes = predict.join(predict.read_trace(path), counted)
    assert notes == []
    return path, pairs


@pytest.mark.parametrize(
    ("quantity", "bar"),
    [*((f"{kind} {what}", 0.01) for kind in ("load", "store") for what in ("requests", "sectors")), ("L1", 0.02)],
)
def test_what_is_requested_is_what_is_counted(day49, quantity, bar):
    ratios = {pair.label: pair.ratio(quantity) for pair in day49[1]}
    assert {label: ratio for label, ratio in ratios.items() if ratio is not None and abs(ratio - 1) > bar} == {}


def test_dram_bytes_of_streams(day49):
    ratios = {pair.label: pair.ratio("DRAM") for pair in day49[1] if pair.label in STREAMS}
    assert len(ratios) == len(STREAMS)
    assert {label: ratio for label, ratio in ratios.items() if abs(ratio - 1) > 0.05} == {}


def test_the_recorded_prediction_is_what_the_source_gives(day49, source_dir):
    path = source_dir / "profile/h200/day49-predicted.jsonl"
    traced, kept = predict.read_trace(day49[0]), predict.read_trace(path)
    assert [now["kernel"] for now in traced] == [recorded["kernel"] for recorded in kept]
    for now, recorded in zip(traced, kept):
        now["launch"] = recorded["launch"]  # which a kernel that is not recorded yet would have moved
        figures = {key: value for key, value in recorded.items() if isinstance(value, int)}
        assert {**now, **figures} == recorded
        # Another compiler may move an access into a branch or out of it.
        assert {key: now[key] for key in figures} == pytest.approx(figures, rel=0.01), (
            f"{path}: {recorded['kernel']} is not what the source gives: scripts/predict.py --help says how to write it"
        )


def test_the_readme_says_why_where_they_part(day49, source_dir):
    text = predict.to_text(day49[0], source_dir / "profile/h200/day49-counters.csv", facts_of(source_dir, 49))
    for pair in day49[1]:
        for quantity in predict.QUANTITIES:
            ratio = pair.ratio(quantity)
            if ratio is not None and abs(ratio - 1) > 0.1:
                assert re.search(rf"\n{quantity} of [^:]*\b{pair.label}\s\({ratio:.2f}\)", text), (pair.label, quantity)


def test_a_figure_that_nobody_explained_is_an_error(day49, source_dir, tmp_path):
    off = tmp_path / "off.jsonl"
    lines = day49[0].read_text().splitlines(keepends=True)
    off.write_text("".join(re.sub(r'"l1_bytes":\d+', '"l1_bytes":1', line) for line in lines))
    with pytest.raises(predict.Stop, match="vectorAdd: L1 is off, x is 0.000\n(.*\n)*say why under 'off' of day49"):
        predict.to_text(off, source_dir / "profile/h200/day49-counters.csv", facts_of(source_dir, 49))
