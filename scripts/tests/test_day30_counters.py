"""What day 30's records say of each other.

The models against the recorded hardware counters: FLOP of every arithmetic, and the bytes that reach the L2. And every
time against the check that came before it, at the size that was timed.
"""

import json
from pathlib import Path

import predict
import pytest
from row_schema import up_to_date

PROFILE = Path(__file__).resolve().parents[2] / "profile"
FOLDERS = sorted(path.parent for path in PROFILE.glob("*/day30-counters.csv"))
SECTOR = 32
TOLERANCE = 1e-3  # what a thread does before and after its loop
# FLOP of one instruction of a thread; those of half precision work on pairs.
FLOP = {"fadd": 1, "fmul": 1, "ffma": 2, "dadd": 1, "dmul": 1, "dfma": 2}
HALF_FLOP = {"hadd": 2, "hmul": 2, "hfma": 4}


def launches_of(folder, ending):
    """Return the launches of an export in order: a kernel's name without its arguments, and its counters."""
    launches = predict.read_counters(folder / f"day30-{ending}")
    return [(predict.split_name(launch.kernel)[0], launch.values) for launch in launches]


def flop_of(counters, halves):
    """Return the FLOP that counters say. HFMA2 also sets registers: it counts only where `halves` are the work."""
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    kinds = {**FLOP, **HALF_FLOP} if halves else FLOP
    return sum(flop * counters[name.format(operation)] for operation, flop in kinds.items())


def all_lines(folder):
    """Return the recorded lines, with the names of the newest schema."""
    lines = [json.loads(line) for line in (folder / "day30.jsonl").read_text().splitlines()]
    return [up_to_date(line, lines[0]["schema"]) for line in lines]


def lines_of(folder, *kinds):
    return [line for line in all_lines(folder) if line["record"] in kinds]


def compare(lines, launches):
    """Return (variant, modelled FLOP, counted) for lines and launches that stand in one order."""
    assert len(lines) == len(launches)
    names = [line["variant"] for line in lines]
    counted = [flop_of(counters, "16x2" in name) for name, (_, counters) in zip(names, launches)]
    return list(zip(names, [line["flop"] for line in lines], counted))


def flop_pairs(folder):
    """Return (variant, modelled FLOP, counted) for every launch with FLOP outside the tensor cores."""
    launches = launches_of(folder, "counters-inst.csv")
    peaks = [launch for launch in launches if launch[0] == "arithmeticPeak"][:-1]  # the last is the issue row
    ceilings = [line for line in lines_of(folder, "ceiling") if line["symbol"] == "arithmeticPeak"]
    pairs = compare([line for line in ceilings if line["level"] == "compute"], peaks)
    under = lines_of(folder, "curve", "row")
    pairs += compare(under, launches[-len(under) :])
    return [pair for pair in pairs if pair[1] > 0 and "tensor" not in pair[0]]


def is_off(variant, model, counted):
    # Without fusion, pairs of halves multiply and add by an FMA each: the hardware counts 2 FLOP for one that is meant.
    expected = 2 * model if "16x2-muladd" in variant else model
    return abs(counted / expected - 1) > TOLERANCE


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


def test_counted_flop_are_the_model(folder):
    pairs = flop_pairs(folder)
    assert len(pairs) >= 8 + 12 + 5
    assert [pair for pair in pairs if is_off(*pair)] == []


def test_half_the_steps_would_show(folder):
    pairs = flop_pairs(folder)
    assert all(is_off(variant, model, counted / 2) for variant, model, counted in pairs)


def test_the_l2_gets_what_was_requested(folder):
    launches = launches_of(folder, "counters.csv")
    past_l1, rotating, _ = [counters for name, counters in launches if name == "readSlices"]
    requested = next(line["requested_bytes"] for line in lines_of(folder, "shape") if line["variant"] == "l2-read")
    sectors = "lts__t_sectors_srcunit_tex.sum"
    assert past_l1[sectors] * SECTOR == pytest.approx(requested, rel=TOLERANCE)
    assert rotating[sectors] * SECTOR < 0.95 * requested  # requests of several SMs merged: why that row is no ceiling


TIMED = {"ceiling", "shape", "sweep", "curve", "scaling", "row"}  # a plateau repeats the time of a row of the sweep


def check_of(line):
    """Return the variant of the check that a timed line must have had: the program names it by what it launches."""
    if line["record"] in ("ceiling", "shape"):
        return f"{line['variant']}, {line['shape']}"
    ends = {"sweep": "", "curve": ", float4 x 1", "scaling": f", {line.get('sms')} SMs", "row": ", plain"}
    return line["variant"] + ends[line["record"]]


def unproven(lines):
    """Return the variants that were timed without a passed check at the full size before them."""
    proven, missing = set(), []
    for line in lines:
        if line["record"] == "check" and line["size"] == "full" and line["ok"]:
            proven.add(line["variant"])
        elif line["record"] in TIMED and check_of(line) not in proven:
            missing.append(check_of(line))
        elif line["record"] == "plateau" and line["ms"] not in [
            other["ms"] for other in lines if other["record"] == "sweep"
        ]:
            missing.append(line["variant"])
    return missing


def test_all_that_was_timed_was_proven_before(folder):
    lines = all_lines(folder)
    if "ptx" not in lines[0]:
        pytest.skip("recorded by a program that did not prove all before; record it again")
    assert unproven(lines) == []
    timed = [line for line in lines if line["record"] in TIMED]
    assert {line["samples"] for line in timed if line["record"] in ("ceiling", "row")} == {21}
    assert {line["samples"] for line in timed if line["record"] not in ("ceiling", "row")} <= {5, 21}


def test_a_time_without_its_check_shows():
    check = {"record": "check", "variant": "scaling-copy, 4 SMs", "size": "full", "ok": True}
    row = {"record": "scaling", "variant": "scaling-copy", "sms": 4, "ms": 1.0}
    assert unproven([check, row]) == []
    for lines in (
        [row, check],
        [{**check, "ok": False}, row],
        [{**check, "size": "ragged"}, row],
        [{**check, "variant": "x"}, row],
    ):
        assert unproven(lines) == ["scaling-copy, 4 SMs"]
