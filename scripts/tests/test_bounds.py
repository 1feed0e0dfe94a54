"""scripts/bounds.py: recorded runs pass, and every kind of impossible line that is planted in them is named."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
H200 = SCRIPTS.parent / "profile" / "h200"
FIXTURES = Path(__file__).parent / "data"
sys.path.insert(0, str(SCRIPTS))
BOUNDS = importlib.import_module("bounds")
ROW_SCHEMA = importlib.import_module("row_schema")

# Runs on an H200, so that figures recorded anew change no test of what is planted.
DAY30 = FIXTURES / "ingest/levels-day30-h200.jsonl"
DAY44 = FIXTURES / "ingest/day44-h200.jsonl"
DAY49 = FIXTURES / "ingest/day49-h200.jsonl"
ROOFLINE = FIXTURES / "roofline/day49.jsonl"
DAY56 = FIXTURES / "ingest/day56-h200.jsonl"


def lines_of(path):
    """Return line number and record of each line, with the names of the newest schema."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return list(enumerate((ROW_SCHEMA.up_to_date(record, records[0].get("schema")) for record in records), start=1))


def planted(path, change, **has):
    """Return a run's lines with the first record that has these values changed, and its line number."""
    lines = lines_of(path)
    number, record = next((number, record) for number, record in lines if has.items() <= record.items())
    record.update(change(record) if callable(change) else change)
    return lines, number


def only(lines, number):
    """Return what is said of the one line that is impossible, which must be this one."""
    found = BOUNDS.impossible(lines)
    assert [line for line, _ in found] == [number], found
    return found[0][1]


@pytest.mark.parametrize(
    "path",
    [*sorted(H200.parent.glob("*/day*.jsonl")), *sorted(FIXTURES.glob("*/*.jsonl"))],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_what_was_recorded_is_possible(path):
    assert BOUNDS.impossible(lines_of(path)) == []


def times(factor, *keys):
    """Return a change that multiplies these keys."""
    return lambda record: {key: record[key] * factor for key in keys}


RATE = ("value",)
TIME = ("ms", "ms_min", "ms_max")


CEILING = {"record": "ceiling"}
FMA = "what the fp32-fma ceiling of its own run allows"
L1 = "132 SMs of 128 bytes a clock"


@pytest.mark.parametrize(
    ("path", "change", "has", "said"),
    [
        (DAY44, times(700, *RATE), {"record": "gemm"}, ["GFLOP/s are more than 66", FMA]),
        (DAY44, times(1 / 700, *TIME), {"record": "gemm"}, ["GFLOP/s are more than", FMA]),
        (DAY44, {"cublas_ms": 1e-6}, {"record": "gemm"}, ["GFLOP/s are more than", FMA]),
        (DAY44, times(1.1, *RATE), CEILING, ["ceiling fma-peak: ", "what 132 SMs do at 19"]),
        (DAY44, times(700, *RATE, "theory"), CEILING, ["what 132 SMs do at 19"]),
        (ROOFLINE, times(1 / 700, *TIME), {"record": "row", "symbol": "matmulTiled"}, [FMA]),
        (DAY49, times(1 / 100, *TIME), {"record": "row", "symbol": "vectorAdd"}, ["GB/s are more than", L1]),
        (DAY49, times(10, *RATE), {**CEILING, "variant": "ceiling-copy"}, ["GB/s are more than", L1]),
        (DAY30, times(3, *RATE), {**CEILING, "variant": "dram-copy"}, ["what L2 delivered in its own run"]),
        (DAY30, times(3, *RATE), {"record": "shape", "level": "dram"}, ["what L2 delivered in its own run"]),
        (DAY30, times(2, *RATE), {**CEILING, "variant": "l2-read"}, ["132 SMs of 64 bytes a clock"]),
        (DAY30, times(1.1, *RATE), {**CEILING, "variant": "l1-read"}, [L1]),
        (DAY30, times(1.1, *RATE), {**CEILING, "variant": "shared-read"}, [L1]),
        (DAY30, times(1.1, *RATE), {"record": "sweep"}, [L1]),
        (DAY30, times(1.1, *RATE), {**CEILING, "variant": "compute-fp64-fma"}, ["what 132 SMs do at 19"]),
        (DAY30, times(3, *RATE), {**CEILING, "variant": "compute-int32-mad"}, ["GOP/s are more than", "132 SMs"]),
        (DAY30, times(1.1, *RATE), {**CEILING, "variant": "issue-warp-instructions"}, ["4 warp instructions a clock"]),
        (DAY30, times(200, *RATE), {"record": "scaling", "kind": "fp32-fma", "sms": 1}, [FMA]),
        (DAY30, times(700, *RATE), {"record": "curve"}, [FMA]),
        (DAY56, {"n": 2**24, "ms": 0.0005, "ms_min": 0.0005}, {"record": "path", "quantity": "gpu"}, ["GB/s", L1]),
        (DAY49, {"ms": 0}, {"record": "row"}, ["row vector add: ms is 0, and a time is finite and above zero"]),
        (DAY49, {"ms_min": -0.25}, {"record": "row"}, ["ms_min is -0.25"]),
        (DAY49, {"ms_max": math.inf}, {"record": "row"}, ["ms_max is inf"]),
        (DAY49, {"ms": math.nan}, {"record": "row"}, ["ms is nan"]),
        (DAY44, {"cublas_ms": 0}, {"record": "gemm"}, ["cublas_ms is 0"]),
        (DAY30, {"clock_mhz": 1.98e6}, {**CEILING, "variant": "dram-read"}, ["clock_mhz is 1.98e+06, and no SM runs"]),
    ],
)
def test_a_planted_line_is_named_with_its_bound(path, change, has, said):
    lines, number = planted(path, change, **has)
    text = only(lines, number)
    for part in said:
        assert part in text


def test_two_percent_above_is_the_measurement():
    lines, number = planted(DAY44, {}, record="gemm")
    theory = next(record["theory"] for _, record in lines if record["record"] == "ceiling")
    record = dict(lines)[number]
    record["value"] = 1.019 * theory
    assert BOUNDS.impossible(lines) == []
    record["value"] = 1.021 * theory
    assert only(lines, number)


def test_a_row_may_run_at_the_highest_clock_of_its_run():
    """The card slowed down while a ceiling ran: what it does at its full clock is possible, and no more than that."""
    lines, _ = planted(DAY30, {}, record="run")
    ceiling = next(record for _, record in lines if record.get("variant") == "compute-tensor-fp16-wgmma")
    theory = ceiling["value"] * 100 / ceiling["percent"] * 1980 / ceiling["clock_mhz"]
    shape = {key: ceiling[key] for key in ceiling if key not in ("percent", "clock_mhz")} | {
        "record": "shape",
        "flop": 0,
    }
    assert ceiling["clock_mhz"] < 1800 and theory > 1.1 * ceiling["value"]
    assert BOUNDS.impossible([*lines, (99, {**shape, "value": theory})]) == []
    assert only([*lines, (99, {**shape, "value": 1.03 * theory})], 99)


def test_requested_bytes_that_caches_serve_are_explained():
    """Vector add asks for more than the copy ceiling moves where its arrays lie in L2: its percentage says so."""
    lines, _ = planted(DAY49, lambda row: {key: row[key] / 3 for key in TIME} | {"percent": 243.0}, symbol="vectorAdd")
    assert BOUNDS.impossible(lines) == []


def test_a_run_without_a_measured_clock_has_the_bound_of_any_gpu():
    lines = lines_of(DAY56)
    assert not any("clock_mhz" in record for _, record in lines)
    lines, number = planted(DAY56, times(100, *RATE), record="ceiling")
    assert "132 SMs of 128 bytes a clock at 4000 MHz" in only(lines, number)


def test_lines_that_are_odd_otherwise_do_no_harm():
    lines = [(1, {"record": "run"}), (2, {"record": "row", "variant": ["a"], "ms": 1, "flop": "many", "bytes": None})]
    assert BOUNDS.impossible(lines) == []
    lines = [(1, {"record": "row", "ms": "0.1"})]
    assert "ms is '0.1'" in only(lines, 1)
