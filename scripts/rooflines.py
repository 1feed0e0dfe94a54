"""What stands on each chart of a recorded GPU: roofs, dots, bars and the tables that hold every number of them.

No drawing here and nothing but Python's own library: scripts/plot_roofline.py draws these charts, scripts/report.py
makes them interactive, and scripts/evidence.py holds both to the recorded lines.

A folder such as profile/h200 may hold day30.jsonl (ceilings of every level), day44.jsonl (the ladder) with
day44-counters-inst.csv (the instructions that its kernels execute), day49.jsonl and day49-merged.jsonl (the kernels,
and their counters). A chart whose lines are not all there is left out, and it is said why.

Intensities are work over traffic: FLOP per byte (Williams, Waterman, Patterson, Roofline, CACM 2009), or for the
instruction roofline warp instructions per 32-byte transaction (Ding, Williams, An Instruction Roofline Model for GPUs,
PMBS 2019). A dot's own roof is min(flat, intensity x slope).
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import predict
import row_schema

ABOVE = 1.02  # times its own roof: what no kernel can honestly do
UNITS_OFF = 100  # times its own roof: no cache and no clock explains that
TRANSACTION = 32  # bytes of a sector, the unit in which L1, L2 and DRAM move data
WAVEFRONT = 128  # bytes that shared memory moves at once, the width of the same data path: four transactions

LEVELS = {
    "dram": "DRAM",
    "l2": "L2",
    "l1": "L1",
    "shared": "shared",
    "requested": "as requested",
    "ragged": "ragged shape",  # no level of memory, but told from the other dots in the same way
    "": "",
}

# After Paul Tol's "muted" scheme, made for readers with any kind of colour blindness; its light colours darker, so that
# they stand out, and in pairs, as the kernels come. Colour is never alone: each dot has its kernel's name beside it.
PALETTE = ("#332288", "#4FA3D1", "#117733", "#44AA99", "#882255", "#CC6677", "#AA4499", "#7D7D1E", "#C9A93A", "#5F6368")
INK = "#1f2328"  # of lines and letters, and of kernels beyond the palette

Record = dict[str, Any]


class Stop(Exception):
    """What is wrong with the recorded lines; its text is all that the user needs."""


class Lacking(Exception):
    """A chart cannot be made of what is recorded; the text says what is missing."""


@dataclass(frozen=True)
class Roof:
    """A line that no dot can pass: `rate` is y over x of a slope, or the y of a flat one."""

    name: str
    rate: float
    label: str  # with the rate in the unit that it was measured in
    source: str  # where it is recorded
    flat: bool = False
    main: bool = True  # False: shown for orientation, binds no dot of this chart


@dataclass(frozen=True)
class Dot:
    """A kernel at one level. `amount` is the traffic that x divides by, `work` what y counts, both of one launch."""

    kernel: str
    level: str
    x: float
    y: float
    work: float
    amount: float
    ms: float
    roof: float
    cause: str = ""  # why it lies above its own roof; empty if it does not
    meant: bool = False  # to lie above: it counts requested bytes, and counters show that caches served it

    @property
    def percent(self) -> float:
        """Of its own roof."""
        return 100 * self.y / self.roof


@dataclass
class Panel:
    """One pair of axes, both logarithmic."""

    title: str
    x_label: str
    y_label: str
    roofs: list[Roof] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    paths: list[list[Dot]] = field(default_factory=list)  # dots joined in this order
    arrows: bool = False  # by arrows: each step is a change of the kernel
    walls: list[tuple[float, str]] = field(default_factory=list)  # x, label
    references: list[Roof] = field(default_factory=list)  # lines that bind nothing
    fractions: bool = False  # x ticks as 1/32, 1/16, ...
    sizes: bool = False  # x ticks at powers of two, y linear from zero, and each path has its name at its end


@dataclass
class Rail:
    """Kernels that have no place on the axes, on a line of their own: GB/s of DRAM, with the ceiling."""

    title: str
    ceiling: Roof
    dots: list[Dot] = field(default_factory=list)  # x is GB/s


@dataclass
class Picture:
    """What every chart has: the names of its files, and what stands above it."""

    name: str  # of its files
    title: str
    about: str  # what a reader looks at, in one line
    device: str

    @property
    def dots(self) -> list[Dot]:
        """All dots; a chart of bars has none."""
        return []

    @property
    def impossible(self) -> list[Dot]:
        """The dots above their own roof."""
        return [dot for dot in self.dots if dot.cause]


@dataclass
class Chart(Picture):
    """Dots under roofs: what is drawn, and what stands under it."""

    panels: list[Panel]
    units: tuple[str, str, str, str]  # of work, amount, x and y in the table
    kernels: list[str]  # in the order of their colours
    rail: Rail | None = None
    notes: list[str] = field(default_factory=list)
    key: list[tuple[str, str]] = field(default_factory=list)  # sign and meaning, where dots have signs for names
    counts: bool = True  # work and amount are counts of one launch, in the table in millions
    black: tuple[str, ...] = ()  # kernels that are drawn in the colour of letters

    @property
    def dots(self) -> list[Dot]:
        """All dots, those on the rail last."""
        return [dot for panel in self.panels for dot in panel.dots] + (self.rail.dots if self.rail else [])

    @property
    def said(self) -> str:
        """What there is to say once it is written."""
        return f"{len(self.dots)} dots, {len(self.impossible)} above their roof"

    def color(self, kernel: str) -> str:
        """Return a kernel's colour, #rrggbb: black for those that come after the palette."""
        if kernel in self.black:
            return INK
        return (*PALETTE, INK)[min(self.kernels.index(kernel), len(PALETTE))]


@dataclass(frozen=True)
class Step:
    """A cause on the way from the ceiling down to what was measured, both in percent of the ceiling."""

    name: str
    before: float
    after: float
    why: str  # what the step follows from, with the figures
    source: str  # where those are recorded

    @property
    def change(self) -> str:
        """Percent of the ceiling, with its sign. A plus is no loss: the causes together explain more than was lost."""
        return f"{self.after - self.before:+.2f}".replace("-0.00", "0.00").replace("+0.00", "0.00")


@dataclass
class Losses(Picture):
    """What a kernel loses on the way from the ceiling to what was measured, cause by cause."""

    ceiling: Roof  # its rate is 100 %
    measured: Step  # from nothing
    steps: list[Step]  # each begins where the one before ends
    notes: list[str]

    @property
    def said(self) -> str:
        """What there is to say once it is written."""
        return f"{len(self.steps)} steps down to {self.measured.after:.2f} %"


# ---- recorded lines --------------------------------------------------------------------------------------------------


class Recorded:
    """The JSON lines of a folder, read when they are needed, with the names of the newest schema."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._files: dict[str, list[Record]] = {}

    def lines(self, name: str, *kinds: str) -> list[Record]:
        """Return a file's records of these kinds. Raises Lacking if there is no such file, Stop if it is damaged."""
        if name not in self._files:
            path = self.folder / name
            if not path.is_file():
                raise Lacking(f"no {name}")
            records: list[Record] = []
            version = None
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                try:
                    record = json.loads(line)
                    version = record.get("schema") if record["record"] == "run" else version
                    records.append(row_schema.up_to_date(record, version))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise Stop(f"{path}:{number}: not a recorded line ({error}): restore the file") from None
            self._files[name] = records
        return [record for record in self._files[name] if record["record"] in kinds]

    def some(self, name: str, *kinds: str) -> list[Record]:
        """Return as `lines`, but raise Lacking if there are none."""
        found = self.lines(name, *kinds)
        if not found:
            raise Lacking(f"no {' or '.join(kinds)} line in {name}")
        return found

    def device(self, name: str) -> str:
        """Return a line about the card that a file comes from."""
        run = self.some(name, "run")[0]
        return f"{run['device']}, {run['sms']} SMs, {run['l2_bytes'] / 2**20:.0f} MiB L2"

    def ceiling(self, level: str, kind: str) -> Record:
        """Return the ceiling that day 30 measured for a level and kind. Raises Lacking."""
        for record in self.lines("day30.jsonl", "ceiling"):
            if (record.get("level"), record.get("kind")) == (level, kind):
                return record
        raise Lacking(f"no ceiling of level {level} and kind {kind} in day30.jsonl")

    def best(self, name: str, metric: str) -> Record:
        """Return the highest ceiling of a metric in a file. Raises Lacking."""
        found = [record for record in self.lines(name, "ceiling") if record["metric"] == metric]
        if not found:
            raise Lacking(f"no ceiling in {name} whose metric is {metric}")
        return max(found, key=lambda record: record["value"])

    def instructions(self, name: str, symbol: str) -> dict[str, float]:
        """Return the counters of a kernel's first launch in an export. Raises Lacking, and Stop if it is damaged."""
        path = self.folder / name
        if not path.is_file():
            raise Lacking(f"no {name}")
        try:
            launches = predict.read_counters(path)
        except predict.Stop as stop:
            raise Stop(str(stop)) from None
        for launch in launches:
            if predict.split_name(launch.kernel)[0] == symbol:
                return launch.values
        raise Lacking(f"no launch of {symbol} in {name}")

    def dram_copy(self) -> tuple[Record, str]:
        """Return the copy ceiling and its file: day 30's, or day 49's own. Raises Lacking."""
        try:
            return self.ceiling("dram", "copy"), "day30.jsonl"
        except Lacking:
            return self.best("day49.jsonl", "gbps"), "day49.jsonl"


def shown(value: float) -> str:
    """Return a number with four digits that count, and no exponent: "65731", "15.06"; a whole one as it is."""
    if value == int(value):
        return str(int(value))
    digits = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 9)}f}"


def millions(value: float) -> str:
    """Return a count in millions."""
    return f"{value / 1e6:.{1 if value >= 1e5 or not value else 3}f}"


def slope(record: Record, source: str, name: str, per: float = 1.0) -> Roof:
    """Return the slope of a bandwidth in GB/s. `per` bytes are one transaction on the x axis; 1 for FLOP per byte."""
    rate = record["value"] / per
    more = f" = {shown(rate)} G/s x {per:.0f} B" if per != 1 else ""
    return Roof(name, rate, f"{name} {shown(record['value'])} {record['unit']}{more}", source_of(record, source))


def flat(record: Record, source: str, name: str, main: bool = True) -> Roof:
    """Return the flat roof of a rate."""
    label = f"{name} {shown(record['value'])} {record['unit']}"
    return Roof(name, record["value"], label, source_of(record, source), flat=True, main=main)


def source_of(record: Record, name: str) -> str:
    """Return the place of a record."""
    return f"{name}: {record['record']} {record['variant']}"


def place(kernel: str, level: str, work: float, amount: float, ms: float, roofs: Iterable[Roof], **facts: Any) -> Dot:
    """Return a kernel's dot under the slope and the lowest flat roof that bind it, both given in `roofs`.

    Work and amount are of one launch, x is work / amount, y giga work per second.
    """
    x, y = work / amount, work / ms * 1e-6
    flats = [roof.rate for roof in roofs if roof.flat and roof.main]
    slopes = [roof.rate * x for roof in roofs if not roof.flat and roof.main]
    roof = min(flats + slopes)
    flat_binds = bool(flats) and roof == min(flats)
    cause = why_above(level, y / roof, flat_binds, **facts) if y > ABOVE * roof else ""
    # What DRAM moved for it has its own dot, with its own cause if that lies above.
    moved = (facts.get("merged") or {}).get("dram_bytes", math.inf)
    meant = level == "requested" and cause.startswith("cache-resident") and y * moved / amount <= ABOVE * roof
    return Dot(kernel, level, x, y, work, amount, ms, roof, cause, meant)


def why_above(level: str, ratio: float, flat_binds: bool, merged: Record | None = None) -> str:
    """Return the likely cause of a dot above its own roof, `ratio` times as high, from what was counted."""
    counted = merged or {}
    if ratio >= UNITS_OFF:
        return "units: so far above, that work, bytes or time must be in another unit"
    if flat_binds:
        return "clock: it ran at a higher clock than the ceiling, or its work is counted too high"
    if level == "requested":
        return "cache-resident: caches served bytes that this count takes for DRAM's"
    if level == "dram" and counted.get("dram_write_bytes", 0) > ABOVE * counted.get("output_bytes", float("inf")):
        return "dirty lines: DRAM wrote more than this kernel's output, so some are an earlier launch's"
    if level == "dram" and counted.get("dram_fits_l2"):
        return "cache-resident: counted with cold caches, timed with warm ones"
    return "ceiling low: this level moves more than its ceiling's kernel did"


# ---- the charts ------------------------------------------------------------------------------------------------------

FLOP_UNITS = ("MFLOP", "MB", "FLOP/byte", "GFLOP/s")
X_FLOP, Y_FLOP = "FLOP per byte", "GFLOP/s"


def kernels_of(recorded: Recorded) -> list[Record]:
    """Return the rows of day 49. Its access patterns are none: they have their place among the walls."""
    return recorded.some("day49.jsonl", "row")


def counted_kernels(recorded: Recorded) -> list[Record]:
    """Return the merged lines of those kernels, in the same order. Raises Lacking, also if one is missing."""
    merged = {record["symbol"]: record for record in recorded.some("day49-merged.jsonl", "merged")}
    rows = kernels_of(recorded)
    missing = [row["symbol"] for row in rows if row["symbol"] not in merged]
    if missing:
        raise Lacking(f"no merged line of {', '.join(missing)} in day49-merged.jsonl")
    return [merged[row["symbol"]] for row in rows]


def with_counts(records: list[Record], *keys: str) -> list[Record]:
    """Return the records, and raise Lacking if one lacks a key."""
    for record in records:
        for key in keys:
            if key not in record:
                raise Lacking(f"no {key} of {record['symbol']} in day49-merged.jsonl: it joined no such counter")
    return records


def on_rail(record: Record, level: str, amount: float, ceiling: Roof) -> Dot:
    """Return the dot of a kernel on the rail: x and y are GB/s, of DRAM or as requested."""
    rate = amount / record["ms"] * 1e-6
    cause = why_above(level, rate / ceiling.rate, False, record) if rate > ABOVE * ceiling.rate else ""
    return Dot(record["variant"], level, rate, rate, record["flop"], amount, record["ms"], ceiling.rate, cause)


def dram(recorded: Recorded) -> Chart:
    """Day 49's kernels by the bytes that DRAM moved, beside those that they request, under that run's own ceilings."""
    name = "day49.jsonl"
    rows = kernels_of(recorded)
    try:
        merged = counted_kernels(recorded)
    except Lacking:
        merged = []
    copy = slope(recorded.best(name, "gbps"), name, "DRAM copy")
    fma = flat(recorded.best(name, "gflops"), name, "FMA")
    panel = Panel("", X_FLOP, Y_FLOP, [copy, fma])
    rail = Rail("Without FLOP, on a rail of their own: GB/s that DRAM moved", copy)
    counted = {record["symbol"]: record for record in merged}
    for row in rows:
        if row["flop"] and row["requested_bytes"]:
            work, amount, facts = row["flop"], row["requested_bytes"], counted.get(row["symbol"])
            panel.dots.append(place(row["variant"], "requested", work, amount, row["ms"], panel.roofs, merged=facts))
    for record in merged:
        if record["flop"] and record["dram_bytes"]:
            amount = record["dram_bytes"]
            panel.dots.append(
                place(record["variant"], "dram", record["flop"], amount, record["ms"], panel.roofs, merged=record)
            )
        else:
            rail.dots.append(on_rail(record, "dram", record["dram_bytes"], copy))
    if not merged:  # nothing was counted: the requested bytes must do
        rail.title = "Without FLOP, on a rail of their own: GB/s that they request"
        others = [row for row in rows if not (row["flop"] and row["requested_bytes"])]
        rail.dots += [on_rail(row, "requested", row["requested_bytes"], copy) for row in others]
    kernels = [row["variant"] for row in rows]
    about = "Each kernel twice: by the bytes that DRAM moved, and by the bytes that its algorithm requests"
    if not merged:
        about = "By the bytes that each kernel's algorithm requests; no counters are recorded"
    return Chart(
        "", "DRAM roofline", about, recorded.device(name), [panel], FLOP_UNITS, kernels, rail if rail.dots else None
    )


def hierarchical(recorded: Recorded) -> Chart:
    """The same kernels with one dot for each level that moves their bytes, under each level's ceiling."""
    merged = counted_kernels(recorded)
    source = "day30.jsonl"
    fma = flat(recorded.ceiling("compute", "fp32-fma"), source, "FP32 FMA")
    bandwidths = {
        "l1": slope(recorded.ceiling("l1", "read"), source, "L1 read"),
        "l2": slope(recorded.ceiling("l2", "read"), source, "L2 read"),
        "dram": slope(recorded.ceiling("dram", "copy"), source, "DRAM copy"),
    }
    panel = Panel("", X_FLOP, Y_FLOP, [*bandwidths.values(), fma])
    with contextlib.suppress(Lacking):  # for orientation alone
        panel.roofs.append(flat(recorded.ceiling("compute", "fp32-muladd"), source, "FP32 without FMA", main=False))
    rail = Rail("Without FLOP, on a rail of their own: GB/s that DRAM moved", bandwidths["dram"])
    for record in merged:
        on_axes = False
        for level, bandwidth in bandwidths.items():
            if record["flop"] and record[f"{level}_bytes"]:
                amount = record[f"{level}_bytes"]
                roofs = (bandwidth, fma)
                panel.dots.append(
                    place(record["variant"], level, record["flop"], amount, record["ms"], roofs, merged=record)
                )
                on_axes = True
        if not on_axes:
            rail.dots.append(on_rail(record, "dram", record["dram_bytes"], bandwidths["dram"]))
    kernels = [record["variant"] for record in merged]
    about = "Each kernel by the bytes that L1, L2 and DRAM moved, under the ceiling of each level"
    notes = ["Dots far apart: a cache between the levels served repeated requests. On top of each other: a stream."]
    device = recorded.device("day49-merged.jsonl")
    return Chart(
        "", "Hierarchical roofline", about, device, [panel], FLOP_UNITS, kernels, rail if rail.dots else None, notes
    )


INSTRUCTION_UNITS = ("M inst", "M trans", "inst/trans", "Ginst/s")


def transactions(record: Record, level: str) -> float:
    """Return the 32-byte transactions of a launch at a level. Those of L1 include shared memory's, on the same path."""
    count = record[f"{level}_bytes"] / TRANSACTION
    return count + record["shared_wavefronts"] * WAVEFRONT / TRANSACTION if level == "l1" else count


def instruction(recorded: Recorded) -> Chart:
    """Warp instructions per transaction of each level, where the kernels without FLOP have a place too."""
    merged = with_counts(counted_kernels(recorded), "warp_instructions", "shared_wavefronts")
    source = "day30.jsonl"
    issue = flat(recorded.ceiling("issue", "warp-instructions"), source, "Issue")
    bandwidths = {
        "l1": slope(recorded.ceiling("l1", "read"), source, "L1", TRANSACTION),
        "l2": slope(recorded.ceiling("l2", "read"), source, "L2", TRANSACTION),
        "dram": slope(recorded.ceiling("dram", "copy"), source, "DRAM", TRANSACTION),
    }
    panel = Panel("", "Warp instructions per 32-byte transaction", "Warp Ginst/s", [*bandwidths.values(), issue])
    for record in merged:
        for level, bandwidth in bandwidths.items():
            amount = transactions(record, level)
            if amount:
                work, roofs = record["warp_instructions"], (bandwidth, issue)
                panel.dots.append(place(record["variant"], level, work, amount, record["ms"], roofs, merged=record))
    kernels = [record["variant"] for record in merged]
    about = "Each kernel by the transactions of L1, L2 and DRAM; those without FLOP have a place here too"
    notes = ["L1 transactions are its sectors and, four for each wavefront of 128 bytes, those of shared memory."]
    device = recorded.device("day49-merged.jsonl")
    return Chart("", "Instruction roofline", about, device, [panel], INSTRUCTION_UNITS, kernels, None, notes)


# What an access pattern makes of one warp instruction, by definition: lanes x 4 bytes over 32-byte sectors, and lanes
# that meet in one of 32 banks.
GLOBAL_WALLS = [(1.0, "one address"), (1 / 4, "unit stride"), (1 / 32, "stride 8 or more, random")]
SHARED_WALLS = [(1.0, "no conflict"), *((1 / ways, f"{ways}-way") for ways in (2, 4, 8, 16, 32))]


def walls(recorded: Recorded) -> Chart:
    """Loads and stores per transaction, of global and of shared memory, beside the walls that access patterns set.

    With those of the kernels stand, in black, those of the patterns themselves.
    """
    counts = ("global_instructions", "global_sectors", "shared_instructions", "shared_wavefronts")
    # A pattern is about one kind of memory, the kernels may use both.
    levels = {row["symbol"]: row.get("level") for row in recorded.some("day49.jsonl", "row", "pattern")}
    merged = [record for record in recorded.some("day49-merged.jsonl", "merged") if record["symbol"] in levels]
    with_counts(merged, *counts)
    source = "day30.jsonl"
    issue = flat(recorded.ceiling("issue", "warp-instructions"), source, "Issue")
    l1 = slope(recorded.ceiling("l1", "read"), source, "L1", TRANSACTION)
    shared = slope(recorded.ceiling("shared", "read"), source, "Shared", WAVEFRONT)
    y_label = "Warp loads and stores, Ginst/s"
    panels = [
        Panel("Global memory", "Instructions per sector (32 bytes)", y_label, [l1, issue], walls=GLOBAL_WALLS),
        Panel("Shared memory", "Instructions per wavefront (128 bytes)", y_label, [shared, issue], walls=SHARED_WALLS),
    ]
    of_panel = zip(panels, ("l1", "shared"), ("global", "shared"), counts[::2], counts[1::2])
    for panel, level, memory, work_key, amount_key in of_panel:
        panel.fractions = True
        for record in merged:
            work, amount = record[work_key], record[amount_key]
            if work and amount and levels[record["symbol"]] in (None, memory):
                panel.dots.append(place(record["variant"], level, work, amount, record["ms"], panel.roofs))
    kernels = [record["variant"] for record in merged]
    device = recorded.device("day49-merged.jsonl")
    about = "Where access patterns put a warp's loads and stores, by definition and as counted"
    return Chart("", "Load and store walls", about, device, panels, INSTRUCTION_UNITS, kernels)


def rung_of(record: Record) -> tuple[str, str] | None:
    """Return the number and name of a rung of day 44's ladder ("3 shared tile"), or None for any other row."""
    number, _, name = record["variant"].partition(" ")
    return (number, name) if number.isdigit() and name else None


def ladder(recorded: Recorded) -> Chart:
    """Day 44's rungs as a path under the roofline, at each size at which all of them ran."""
    name = "day44.jsonl"
    fma = flat(recorded.best(name, "gflops"), name, "FMA")
    record, source = recorded.dram_copy()
    copy = slope(record, source, "DRAM copy")
    rungs: dict[str, str] = {}
    sizes: dict[tuple[int, int, int], list[Record]] = {}
    library: dict[tuple[int, int, int], Record] = {}
    for row in recorded.some(name, "gemm"):
        size = row["m"], row["n"], row["k"]
        rung = rung_of(row)
        if rung and "intensity" in row:
            rungs[rung[0]] = rung[1]
            sizes.setdefault(size, []).append(row)
        elif row["variant"] == "cuBLAS" and "note" not in row:  # in the mode that the rungs are sampled in turn with
            library[size] = row
    most = max(map(len, sizes.values()), default=0)
    if most < 2:
        raise Lacking(f"no two rungs of one size in {name}")
    panels = []
    for size in sorted(size for size, rows in sizes.items() if len(rows) == most):
        title = f"{size[0]} cubed" if len(set(size)) == 1 else " x ".join(map(str, size))
        panel = Panel(title, "FLOP per requested byte", Y_FLOP, [copy, fma])
        for row in sizes[size]:
            # The ladder counts requested bytes; x is recorded, so the bytes follow from it.
            amount = row["flop"] / row["intensity"]
            panel.dots.append(place(row["variant"], "requested", row["flop"], amount, row["ms"], panel.roofs))
        panel.paths, panel.arrows = [list(panel.dots)], True
        if size in library:
            panel.references.append(flat(library[size], name, "cuBLAS", main=False))
        panels.append(panel)
    kernels = [f"{number} {text}" for number, text in rungs.items()]
    return Chart(
        "",
        "The ladder of day 44, rung by rung",
        "One idea more at each arrow; x is what a rung requests from global memory, most of which caches serve",
        recorded.device(name),
        panels,
        FLOP_UNITS,
        kernels,
        key=list(rungs.items()),
    )


def curve(recorded: Recorded) -> Chart:
    """Day 30's copy with more and more arithmetic in it: the roofline as the card itself draws it."""
    name = "day30.jsonl"
    copy = slope(recorded.ceiling("dram", "copy"), name, "DRAM copy")
    fma = flat(recorded.ceiling("compute", "fp32-fma"), name, "FP32 FMA")
    panel = Panel("", X_FLOP, Y_FLOP, [copy, fma])
    kernel = "copy with FMAs"
    for row in recorded.some(name, "curve"):
        panel.dots.append(place(kernel, "dram", row["flop"], row["requested_bytes"], row["ms"], panel.roofs))
    panel.dots.sort(key=lambda dot: dot.x)
    panel.paths = [list(panel.dots)]
    about = "One copy with more and more FMAs in it: the knee is round, and here is by how much"
    return Chart("", "The roofline, measured", about, recorded.device(name), [panel], FLOP_UNITS, [kernel])


def scaling(recorded: Recorded) -> Chart:
    """Day 30's copy and FMA kernels on one SM, two, four, ... all: what fills the memory, what fills the arithmetic."""
    name = "day30.jsonl"
    ceilings = {
        "copy": recorded.ceiling("dram", "copy"),
        "fp32-fma": recorded.ceiling("compute", "fp32-fma"),
    }
    everything = Roof("ceiling", 100.0, "100 % of the ceiling", f"{name}: ceiling", flat=True)
    panel = Panel("", "SMs at work", "% of the ceiling", [everything])
    series: dict[str, list[Dot]] = {}
    rows = recorded.some(name, "scaling")
    for row in rows:
        record = ceilings.get(row["kind"])
        if not record:
            raise Lacking(f"no ceiling to set the scaling of {row['kind']} under")
        percent = 100 * row["value"] / record["value"]
        label = f"{row['kind']}, of {shown(record['value'])} {record['unit']}"
        cause = why_above("", percent / 100, True) if percent > 100 * ABOVE else ""
        series.setdefault(label, []).append(
            Dot(label, "", row["sms"], percent, row["value"], row["sms"], row["ms"], 100.0, cause)
        )
    for dots in series.values():
        dots.sort(key=lambda dot: dot.x)
        panel.dots += dots
        panel.paths.append(dots)
    most = max(row["sms"] for row in rows)
    panel.references.append(Roof("in proportion", 100 / most, "in proportion to the SMs", "by definition"))
    units = ("GB/s, GFLOP/s", "SMs", "SMs", "%")
    about = "The copy bends where memory fills up; the arithmetic takes every SM"
    return Chart("", "How many SMs it takes", about, recorded.device(name), [panel], units, list(series), counts=False)


FIRST_RUNG_OF_SIZES = 8  # those before it are far below, and not timed at every size
RAGGED = (4097, 4095, 4093)  # the shape beside the cubes that is large enough to be set beside them


def sizes(recorded: Recorded) -> Chart:
    """Day 44's rungs and sgemm() in percent of cuBLAS, from the smallest to the largest cube."""
    name = "day44.jsonl"
    library = Roof("cuBLAS", 100.0, "cuBLAS", f"{name}: cublas_ms of each gemm line", flat=True, main=False)
    panel = Panel("", "m = n = k", "% of cuBLAS", references=[library], sizes=True)
    paths: dict[str, list[Dot]] = {}
    ragged = []
    for row in recorded.some(name, "gemm"):
        kernel, shape = row["variant"], (row["m"], row["n"], row["k"])
        rung = rung_of(row)
        dispatched = kernel == "sgemm()" and "launch loop" not in row.get("note", "")
        if not dispatched and not (rung and int(rung[0]) >= FIRST_RUNG_OF_SIZES):
            continue
        lacks = [key for key in ("cublas_percent", "fma_percent") if not row.get(key)]
        if lacks:
            raise Lacking(f"no {lacks[0]} of {kernel} at {shape_text(shape)} in {name}")
        if len(set(shape)) == 1:
            paths.setdefault(kernel, []).append(in_percent_of_cublas(row, kernel, ""))
        elif dispatched and shape == RAGGED:
            ragged.append(in_percent_of_cublas(row, f"{kernel}, {shape_text(shape)}", "ragged"))
    if max((len(dots) for dots in paths.values()), default=0) < 2:
        raise Lacking(f"no kernel from rung {FIRST_RUNG_OF_SIZES} upwards at two sizes in {name}")
    panel.paths = [sorted(dots, key=lambda dot: dot.x) for dots in paths.values()]
    panel.dots = [dot for path in panel.paths for dot in path] + ragged
    notes = [
        "cuBLAS was timed anew in turn with each kernel, so its rate differs from row to row.",
        "A kernel's roof is the FMA ceiling, here in percent of cuBLAS.",
    ]
    if ragged:
        notes.append("The ragged shape stands at the cube root of its m n k.")
    others = [kernel for kernel in dict.fromkeys(dot.kernel for dot in panel.dots) if kernel[0].isdigit()]
    black = tuple(kernel for kernel in dict.fromkeys(dot.kernel for dot in panel.dots) if kernel not in others)
    return Chart(
        "",
        "Against cuBLAS, size by size",
        "Each kernel where it takes part; sgemm() picks one for the shape, or a guarded one where no tile fits",
        recorded.device(name),
        [panel],
        ("GFLOP/s", "cuBLAS GFLOP/s", "m = n = k", "% of cuBLAS"),
        [*others, *black],
        notes=notes,
        counts=False,
        black=black,
    )


def shape_text(shape: tuple[int, int, int]) -> str:
    """Return a shape as "4097 x 4095 x 4093"."""
    return " x ".join(map(str, shape))


def in_percent_of_cublas(row: Record, kernel: str, level: str) -> Dot:
    """Return the dot of a gemm line; its roof is the FMA ceiling, which the line has its share of."""
    rate, percent = row["value"], row["cublas_percent"]
    above = row["fma_percent"] / 100
    cause = why_above("", above, True) if above > ABOVE else ""
    size = (row["m"] * row["n"] * row["k"]) ** (1 / 3)
    # A cube's root is a whole number, which the power misses by its rounding.
    size = round(size) if row["m"] == row["n"] == row["k"] else size
    return Dot(kernel, level, size, percent, rate, 100 * rate / percent, row["ms"], percent / above, cause)


WARP = 32  # lanes
FMAS_OF_LOOP = 128  # of a step of the loops fma-loads-*, beside so many 128-bit shared loads as their name says
EXECUTED, SHARED_LOADS = "smsp__inst_executed.sum", "smsp__inst_executed_op_shared_ld.sum"


def losses(recorded: Recorded) -> Losses:
    """What day 44's best rung loses at the largest cube: each cause's share of what the causes before it leave."""
    name, export = "day44.jsonl", "day44-counters-inst.csv"
    rungs = [row for row in recorded.some(name, "gemm") if rung_of(row) and row["m"] == row["n"] == row["k"]]
    if not rungs:
        raise Lacking(f"no rung at a cubed size in {name}")
    best = max(rungs, key=lambda row: (row["m"], row["value"]))
    kernel, size = best["variant"], best["m"]
    for key in ("symbol", "fma_percent", "wave_percent", "loads_per_fma"):
        if key not in best:
            raise Lacking(f"no {key} of {kernel} at {size} cubed in {name}")
    rates = {record["variant"]: record["value"] for record in recorded.some(name, "ceiling")}
    if "fma-peak" not in rates:
        raise Lacking(f"no ceiling fma-peak in {name}")
    ceiling = Roof("FMA", rates["fma-peak"], f"{shown(rates['fma-peak'])} GFLOP/s", f"{name}: ceiling fma-peak", True)
    source = f"{name}: gemm {kernel} at {size} cubed"

    waves = best["wave_percent"] / 100
    causes = [("waves", waves, f"{100 * waves:.2f} % of the SMs have work, over the run", source)]
    loads = FMAS_OF_LOOP * best["loads_per_fma"]
    rate, loops = rate_beside_loads(rates, loads, name)
    why = f"{shown(loads)} of 128 bits beside {FMAS_OF_LOOP} FMAs leave {shown(rate)} GFLOP/s"
    causes.append(("shared loads", rate / ceiling.rate, why, f"{name}: ceiling {loops}"))
    share, others, counted_size = issue_share(recorded.instructions(export, best["symbol"]), rungs, kernel, export)
    why = f"{others:.4f} per FMA, counted at {counted_size} cubed"
    causes.append(("other instructions", share, why, f"{export}: {best['symbol']}"))

    steps, left = [], 100.0
    for cause, kept, why, where in causes:
        steps.append(Step(cause, left, left * kept, why, where))
        left *= kept
    measured = best["fma_percent"]
    steps.append(Step("rest", left, measured, "what no figure here explains", "by difference"))
    gains = any(step.after > step.before for step in steps)
    return Losses(
        "",
        "What the best rung loses",
        f"{kernel} at {size} cubed, in percent of the FMA ceiling",
        recorded.device(name),
        ceiling,
        Step("measured", 0.0, measured, f"{shown(best['value'])} GFLOP/s", source),
        steps,
        [
            "Each step takes its share of what the steps before it leave.",
            "Other instructions are neither FFMA nor shared loads; each is taken for one issue slot, as an FMA is.",
            f"They were counted in a launch of size {counted_size} cubed.",
            "The loops with shared loads have some too: what both have is counted twice, and makes the rest smaller.",
            *(["A plus is no loss: the causes together explain more than was lost."] if gains else []),
        ],
    )


def rate_beside_loads(rates: dict[str, float], loads: float, name: str) -> tuple[float, str]:
    """Return what the loops fma-loads-* reach beside so many loads, and the loops. Raises Lacking.

    Between two loops it is interpolated; beyond the last one nothing is measured.
    """
    found = [(re.fullmatch("fma-loads-([0-9]+)", variant), rate) for variant, rate in rates.items()]
    measured = sorted((int(match[1]), rate) for match, rate in found if match)
    if not measured:
        raise Lacking(f"no ceiling fma-loads-0, -2, ... in {name}")
    for count, rate in measured:
        if count == loads:
            return rate, f"fma-loads-{count}"
    for (fewer, high), (more, low) in zip(measured, measured[1:]):
        if fewer < loads < more:
            part = (loads - fewer) / (more - fewer)
            return high + (low - high) * part, f"fma-loads-{fewer} and -{more}"
    raise Lacking(
        f"the best rung has {shown(loads)} shared loads beside {FMAS_OF_LOOP} FMAs, and the loops in {name} have "
        f"{measured[0][0]} to {measured[-1][0]}"
    )


def issue_share(counters: dict[str, float], rungs: list[Record], kernel: str, export: str) -> tuple[float, float, int]:
    """Return FFMA over FFMA and other instructions, the others for an FFMA, and the size at which they were counted.

    Others are neither FFMA nor shared loads. Raises Lacking.
    """
    for metric in (predict.merge_dram.FFMA, SHARED_LOADS, EXECUTED):
        if metric not in counters:
            raise Lacking(f"no {metric} of {kernel} in {export}")
    threads_ffma = counters[predict.merge_dram.FFMA]
    # One FMA for each product, but for the few that a kernel adds to move its sums.
    counted = [row["m"] for row in rungs if abs(threads_ffma / row["m"] ** 3 - 1) < 0.01]
    if not counted:
        raise Lacking(f"{kernel} has {shown(threads_ffma)} FFMA in {export}, as no cubed size in its lines has")
    ffma = threads_ffma / WARP
    others = counters[EXECUTED] - ffma - counters[SHARED_LOADS]
    return ffma / (ffma + others), others / ffma, counted[0]


CHARTS: dict[str, Callable[[Recorded], Chart | Losses]] = {
    "day30-curve": curve,
    "day30-scaling": scaling,
    "day44-ladder": ladder,
    "day44-sizes": sizes,
    "day44-losses": losses,
    "day49-dram": dram,
    "day49-hierarchical": hierarchical,
    "day49-instruction": instruction,
    "day49-walls": walls,
}


def charts_of(folder: Path, note: str = "") -> tuple[list[Chart | Losses], dict[str, str]]:
    """Return the charts that a folder's lines allow, and by name why each other one is not among them. Raises Stop.

    `note` stands on each behind the card, such as ", recorded at revision abc123".
    """
    recorded = Recorded(folder)
    charts, lacking = [], {}
    for name, make in CHARTS.items():
        try:
            chart = make(recorded)
        except Lacking as reason:
            lacking[name] = str(reason)
            continue
        except (KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
            what = (
                f"a recorded line lacks {error}" if isinstance(error, KeyError) else f"a recorded line is odd: {error}"
            )
            raise Stop(f"{folder}: {name}: {what}: record again: scripts/evidence.py record") from None
        chart.name = name
        chart.device += note
        charts.append(chart)
    return charts, lacking


# ---- tables ----------------------------------------------------------------------------------------------------------


def columns(rows: list[list[str]]) -> list[str]:
    """Return rows of cells as lines: the first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = [
        i > 0 and all(row[i].lstrip("+-")[:1].isdigit() or row[i] in ("", "-") for row in rows[1:])
        for i in range(len(widths))
    ]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric)]
        lines.append("  ".join(cells).rstrip())
    return lines


def rows_of(chart: Chart) -> list[list[str]]:
    """Return the table of a chart's dots, the heading first."""
    work, amount, x, y = chart.units
    several = len(chart.panels) > 1
    rows = [["kernel", *(["of"] if several else []), "level", work, amount, "ms", x, y, "its roof", "% of it", ""]]
    for panel in chart.panels:
        for dot in panel.dots:
            cells = [dot.kernel, *([panel.title] if several else []), LEVELS[dot.level] or "-"]
            count = millions if chart.counts else shown
            cells += [count(dot.work), count(dot.amount), f"{dot.ms:.4f}", shown(dot.x), shown(dot.y)]
            rows.append([*cells, shown(dot.roof), f"{dot.percent:.1f}", "above" if dot.cause else ""])
    return rows


def rows_of_losses(chart: Losses) -> list[list[str]]:
    """Return the table of a chart's steps, the heading first."""
    rows = [["", "change, %", "left, %", "by", "recorded in"]]
    rows.append(["FMA ceiling", "", "100.00", chart.ceiling.label, chart.ceiling.source])
    rows += [[step.name, step.change, f"{step.after:.2f}", step.why, step.source] for step in chart.steps]
    measured = chart.measured
    return [*rows, [measured.name, "", f"{measured.after:.2f}", measured.why, measured.source]]


def table(chart: Chart | Losses) -> str:
    """Return every number of a chart as text."""
    lines = [f"{chart.title}: {chart.device}", f"{chart.about}.", ""]
    if isinstance(chart, Losses):
        return "\n".join([*lines, *columns(rows_of_losses(chart)), "", *chart.notes]) + "\n"
    roofs = [["roof", "recorded in"]]
    for panel in chart.panels:
        of = f"{panel.title}: " if len(chart.panels) > 1 else ""
        roofs += [[roof.label, roof.source] for roof in panel.roofs]
        roofs += [[of + reference.label, reference.source] for reference in panel.references]
    lines += columns([row for place, row in enumerate(roofs) if row not in roofs[:place]])
    for panel in chart.panels:
        if panel.walls:
            heading = [f"walls of {panel.title[0].lower()}{panel.title[1:]}", chart.units[2]]
            lines += ["", *columns([heading, *([label, shown(x)] for x, label in panel.walls)])]
    lines += ["", *columns(rows_of(chart))]
    if chart.rail:
        rows = [["no FLOP, or no byte", "MB", "ms", "GB/s", "% of the ceiling", ""]]
        for dot in chart.rail.dots:
            cells = [dot.kernel, millions(dot.amount), f"{dot.ms:.4f}", shown(dot.x), f"{dot.percent:.1f}"]
            rows.append([*cells, "above" if dot.cause else ""])
        lines += ["", *columns(rows)]
    if chart.impossible:
        lines += ["", "Above their own roof by more than 2 %, so drawn hollow:"]
        for dot in chart.impossible:
            name = f"{dot.kernel}, {LEVELS[dot.level]}" if dot.level else dot.kernel
            lines.append(f"  {name}, {dot.percent:.1f} %: {dot.cause}")
    if chart.notes:
        lines += ["", *chart.notes]
    return "\n".join(lines) + "\n"
