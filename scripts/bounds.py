"""What no run can have done: times and rates beyond what its own card can do, found in a run's lines.

Every bound comes from the run itself: its SMs, the SM clock that it measured, the ceilings that it recorded. What a day
explains is none of these: a row above 100 % of the copy ceiling requests bytes that caches serve.

The lines have the names of the newest schema: scripts/row_schema.py brings older ones up to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MARGIN = 1.02  # for the measurement of clock and time; the schema allows the ceilings as much

# Per SM and clock, the most of any architecture from sm_75 to sm_120: CUDA C++ Programming Guide, "Arithmetic
# Instructions" (results per clock; an FMA is two FLOP), and for the tensor cores the dense rates of the H100's and
# B200's data sheets over SMs and boost clock. A kind is found by the beginning of its name.
WORK = {
    "fp32": 256,
    "fp64": 128,
    "fp16x2": 512,
    "bf16x2": 512,
    "int32": 256,
    "tensor-fp16": 8192,
    "tensor-bf16": 8192,
    "tensor-tf32": 4096,
    "tensor-int8": 16384,
    "tensor-fp64": 256,
}
WARP_INSTRUCTIONS = 4  # one for each scheduler
L1_BYTES = 128  # what a warp of 32 lanes gets of 4 bytes each: all that an SM requests comes this way
L2_READ_BYTES = 64  # from L2 to one SM
CHAIN_BYTES = 8  # of day 56 and element: every path reads it and writes it, whatever else it moves

# No GPU's SM clock comes near; it stands in where a run measured none.
MOST_MHZ = 4000.0

RATES = {"gflops": "GFLOP/s", "gops": "GOP/s", "ginst": "Ginst/s", "gbps": "GB/s"}
Lines = Sequence[tuple[int, Mapping[str, Any]]]  # line number and record of each line of one run


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def positive(record: Mapping[str, Any], key: str) -> float:
    """Return a record's value if it is a number above zero, else 0."""
    value = record.get(key)
    return value if is_number(value) and value > 0 else 0.0


class Card:
    """What the card of one run can do, in giga per second, from its own lines; infinite where nothing is known."""

    def __init__(self, lines: Lines):
        records = [record for _, record in lines]
        run = next((record for record in records if record.get("record") == "run"), {})
        self.sms = positive(run, "sms") or math.inf
        clocks = [record["clock_mhz"] for record in records if 0 < positive(record, "clock_mhz") <= MOST_MHZ]
        # A kernel that draws little power may run faster than the one that measured a ceiling, up to the card's most.
        self.mhz = max([*clocks, *filter(None, [positive(run, "max_clock_mhz")])], default=MOST_MHZ)
        ceilings = [record for record in records if record.get("record") == "ceiling"]
        self.l2_read = max((positive(one, "value") for one in ceilings if is_of(one, "l2", "read")), default=0.0)
        # By kind of arithmetic: what the program says that the clock allows, at the highest that it measured. A row may
        # run at that, while the ceiling of a tensor core made the card slow down.
        self.theories: dict[Any, float] = {}
        for one in ceilings:
            if one.get("metric") in ("gflops", "gops") and one.get("level") in (None, "compute"):
                theory = positive(one, "theory") or positive(one, "value") * 100 / (positive(one, "percent") or 100)
                theory *= max(1.0, self.mhz / (positive(one, "clock_mhz") or self.mhz))
                kind = one.get("kind", "fp32-fma")
                self.theories[kind] = max(self.theories.get(kind, 0.0), theory, positive(one, "value"))
        # Below these nothing is impossible, whatever it is but arithmetic of another kind.
        low = min(clocks, default=MOST_MHZ)
        self.low_flop = min(self.allows(WORK["fp32"], low), self.theories.get("fp32-fma") or math.inf)
        self.low_bytes = min(self.allows(L2_READ_BYTES, low), self.l2_read or math.inf)

    def surely_can(self, record: Mapping[str, Any]) -> bool:
        """Tell quickly that nothing is wrong with a record, which is so for nearly all of millions."""
        get = record.get
        try:
            per_giga = 1e6 * record["ms"]
            return (
                0 < record["ms"] < math.inf
                and 0 < get("ms_min", 1) < math.inf
                and 0 < get("ms_max", 1) < math.inf
                and get("flop", 0) <= self.low_flop * min(per_giga, 1e6 * get("cublas_ms", math.inf))
                and (get("requested_bytes", 0) if get("record") != "path" else CHAIN_BYTES * get("n"))
                <= self.low_bytes * per_giga
                and get("level") != "compute"
                and get("metric") not in ("gops", "ginst")
                and (get("metric") != "gflops" or get("value") <= self.low_flop)
                and (get("metric") != "gbps" or get("value") <= self.low_bytes)
                and get("clock_mhz", 0) <= MOST_MHZ
            )
        except TypeError:  # some of it is no number
            return False

    def allows(self, per_clock: float, mhz: float = 0.0) -> float:
        """Return what all SMs do in a second, of what one does in a clock."""
        return self.sms * per_clock * (mhz or self.mhz) * 1e-3

    def arithmetic(self, record: Mapping[str, Any]) -> tuple[float, str]:
        """Return how fast a record's arithmetic may be, and why."""
        kind = record.get("kind") if record.get("level") == "compute" else "fp32-fma"
        if not isinstance(kind, str):
            return math.inf, ""
        work = next((work for name, work in WORK.items() if kind.startswith(name)), math.inf)
        mhz = positive(record, "clock_mhz")
        limit, why = self.allows(work, mhz), f"what {self.sms} SMs do at {mhz or self.mhz:.0f} MHz"
        theory = positive(record, "theory") or self.theories.get(kind, 0.0)
        if record.get("record") != "ceiling" and theory:
            return min(theory, limit), f"what the {kind} ceiling of its own run allows"
        return limit, why

    def memory(self, record: Mapping[str, Any]) -> tuple[float, str]:
        """Return how fast a record's bytes may come and go, and why."""
        mhz = positive(record, "clock_mhz") or self.mhz
        level, kind = record.get("level"), record.get("kind")
        if level == "dram" and self.l2_read:
            return self.l2_read, "what L2 delivered in its own run, and all that DRAM moves passes through it"
        read = level == "l2" and kind == "read"
        per_clock = L2_READ_BYTES if read else L1_BYTES
        return self.allows(per_clock, mhz), f"{self.sms} SMs of {per_clock} bytes a clock at {mhz:.0f} MHz"


def is_of(record: Mapping[str, Any], level: str, kind: str) -> bool:
    """Tell whether a record is of a level and kind."""
    return record.get("level") == level and record.get("kind") == kind


def impossible(lines: Lines) -> list[tuple[int, str]]:
    """Return (line number, what it says and what the bound is) of each line of one run that cannot be.

    `lines` are the run's records with their line numbers, the run record among them.
    """
    found: list[tuple[int, str]] = []
    card = Card(lines)
    for number, record in lines:
        if "ms" not in record or card.surely_can(record):
            continue
        name = f"{record.get('record')} {record.get('variant')}"
        for key in ("ms", "ms_min", "ms_max", "cublas_ms"):
            if key in record and not positive(record, key):
                found.append((number, f"{name}: {key} is {record[key]!r}, and a time is finite and above zero"))
        if positive(record, "clock_mhz") > MOST_MHZ:
            what = f"clock_mhz is {record['clock_mhz']:.6g}, and no SM runs at more than {MOST_MHZ:.0f} MHz"
            found.append((number, f"{name}: {what}"))
        for unit, rate, (limit, why) in rates_of(record, card):
            if not rate <= limit * MARGIN:
                text = f"{rate:.6g} {unit} are more than {limit:.6g} {unit}, {why}, and 2 % for the measurement"
                found.append((number, f"{name}: {text}"))
                break
    return found


def rates_of(record: Mapping[str, Any], card: Card) -> list[tuple[str, float, tuple[float, str]]]:
    """Return unit, rate and bound of all that a record says: its value, and its work over its time."""
    ms, metric, value = positive(record, "ms"), record.get("metric"), positive(record, "value")
    flop, moved = positive(record, "flop"), positive(record, "requested_bytes")
    rates = []
    if flop and record.get("level") != "issue":
        times = [time for time in (ms, positive(record, "cublas_ms")) if time]
        if times:
            rates.append(("GFLOP/s", flop / min(times) * 1e-6, card.arithmetic(record)))
    if metric in ("gflops", "gops"):
        rates.append((RATES[metric], value, card.arithmetic(record)))
    elif metric == "ginst":
        limit = card.allows(WARP_INSTRUCTIONS, positive(record, "clock_mhz"))
        rates.append(
            (RATES[metric], value, (limit, f"{card.sms} SMs of {WARP_INSTRUCTIONS} warp instructions a clock"))
        )
    elif metric == "gbps":
        rates.append((RATES[metric], value, card.memory(record)))
    if record.get("record") == "path" and record.get("quantity") == "gpu":
        moved = CHAIN_BYTES * positive(record, "n")
    if moved and ms:
        rates.append(("GB/s", moved / ms * 1e-6, card.memory(record)))
    return rates
