#!/usr/bin/env python3
"""Join a run of day 49 with the bytes that a profiler counted, and print both beside each other.

    ./roofline --json > run.jsonl
    ncu --csv --print-units base --clock-control none --metrics \\
      dram__bytes.sum,lts__t_sectors_srcunit_tex.sum,lts__t_bytes.sum,l1tex__t_bytes.sum \\
      ./roofline --profile > counters.csv
    ncu --csv --print-units base --clock-control none --metrics \\
      smsp__sass_thread_inst_executed_op_fadd_pred_on.sum,smsp__sass_thread_inst_executed_op_fmul_pred_on.sum,\\
      smsp__sass_thread_inst_executed_op_ffma_pred_on.sum ./roofline --profile > counters-inst.csv
    python3 merge_dram.py --json run.jsonl --ncu counters.csv counters-inst.csv --out merged.jsonl

The kernel's name (symbol) is the key, and the order is that of the export. Joined are the run's rows and access
patterns, its ceilings, and of the shapes that compete for a ceiling those that the export has. Per kernel: the bytes
that the algorithm requests from global memory (the model), the bytes that L1, L2 and DRAM moved (counted), FLOP per
byte of each, DRAM's rate over the CUDA-event time of the unprofiled run, and requested / DRAM. MB are 10^6 bytes. L2
bytes are the sectors that the SMs requested, times 32: lts__t_bytes, shown beside them, counts a sector twice that
crosses between the partitions of an A100's or H100's L2. L1 bytes are global and local memory, not shared. With the
instruction counters the FLOP model is held to the count: more than 1 % off is an error.

An export may be ncu's long form or the wide one of `--page raw`, in any units, with other output around the table and
with the columns of rules behind it. Digits may be grouped as any locale says: the numbers of a file decide together
which sign is decimal, and one that still may be read two ways is an error.

Kernels that the run does not know are named and left out. Of several launches of one kernel each is named and one
counts, the median by DRAM bytes: nothing is summed or averaged. What two files both hold is taken from the first, and
said.

Needs Python 3.9 and nothing else, and no GPU: this file can be carried off alone. A run of an older schema needs the
folder scripts beside that of the day as well. Exit code: 0 joined; 1 something is wrong, on stderr as path[:line]:
problem: way out, and nothing is written; 2 bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import errno
import functools
import gc
import json
import math
import os
import re
import stat
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
try:
    import row_schema  # lies in the folder named just above
except ImportError:  # carried off alone
    row_schema = None

EXIT_WRONG = 1

SCHEMA = 2  # of the runs that need nothing but this file

SECTOR = 32  # bytes
FLOAT = 4  # bytes; every kernel of day 49 is FP32

# The counters read here, under the name that each has in this file, and the units that each may come in.
DRAM, L2, L2_ALL, L1 = "dram__bytes.sum", "lts__t_sectors_srcunit_tex.sum", "lts__t_bytes.sum", "l1tex__t_bytes.sum"
READ, WRITE, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
FADD, FMUL, FFMA = (f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma"))
LEVELS = (DRAM, L2, L1)
# What the instruction roofline counts: key in the JSON lines, and the counters it is the sum of.
PER_WARP, PER_SECTOR = "smsp__inst_executed_op_{}_{}.sum", "l1tex__t_sectors_pipe_lsu_mem_{}_op_{}.sum"
PER_WAVEFRONT = "l1tex__data_pipe_lsu_wavefronts_mem_{}_op_{}.sum"
COUNTS = {
    "warp_instructions": ("smsp__inst_executed.sum",),
    "thread_instructions": ("smsp__thread_inst_executed_pred_on.sum",),
    "global_instructions": (PER_WARP.format("global", "ld"), PER_WARP.format("global", "st")),
    "global_sectors": (PER_SECTOR.format("global", "ld"), PER_SECTOR.format("global", "st")),
    "shared_instructions": (PER_WARP.format("shared", "ld"), PER_WARP.format("shared", "st")),
    "shared_wavefronts": (PER_WAVEFRONT.format("shared", "ld"), PER_WAVEFRONT.format("shared", "st")),
}
RENAMED = {"dram__bytes_op_read.sum": READ, "dram__bytes_op_write.sum": WRITE}  # on Blackwell


def _decimal(base: str) -> dict[str, float]:
    return {prefix + base: 1000.0**power for power, prefix in enumerate(("", "K", "M", "G", "T"))}


BYTE_UNITS = _decimal("byte")
TIME_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}  # in milliseconds
TIME_UNITS.update({"nsecond": 1e-6, "usecond": 1e-3, "msecond": 1.0, "second": 1e3})
INSTRUCTION_UNITS = {"": 1.0, **_decimal("inst")}
COUNT_UNITS = {**INSTRUCTION_UNITS, **_decimal("sector"), **_decimal("wavefront")}
UNITS = {
    **dict.fromkeys((DRAM, READ, WRITE, L2_ALL, L1), BYTE_UNITS),
    **{L2: {"": 1.0, **_decimal("sector")}, TIME: TIME_UNITS},
    **dict.fromkeys((FADD, FMUL, FFMA), INSTRUCTION_UNITS),
    **{metric: COUNT_UNITS for metrics in COUNTS.values() for metric in metrics},
}

Units = Mapping[str, Mapping[str, float]]  # by metric: the factors of the units that it may come in

# What a time in ms or a rate in GB/s or GFLOP/s can be: beyond, quotients of two are no finite numbers any more.
MEASURED = (1e-9, 1e15)
COUNTED = 2**63  # what no counter reaches, and what 64 bits with a sign do not hold
FLOP_TOLERANCE = 0.01  # counted against modelled
# Counters of different passes can disagree by a few per cent, and a kernel's start costs DRAM some kilobytes.
PASS_TOLERANCE = 0.05
SMALL = 1_000_000  # bytes
ABOVE = 1.02  # times a ceiling: no row can honestly read more

MISSING = {"", "n/a", "nan", "-nan", "inf", "-inf", "no data"}
PROFILE_AGAIN = "profile again (the header of merge_dram.py has the command)"
EXPORT_AGAIN = "profile or export it again with LC_ALL=C and --print-units base"
RUN_AGAIN = "write it again: ./roofline --json > RUN.jsonl"


class Stop(Exception):
    """Ends the program with exit code 1; its text is all that the user needs."""


def read_text(path: Path) -> str:
    """Return a file's text with plain line ends and without byte order marks: one that was put together may have more.

    Raises Stop: unreadable, empty, binary.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Stop(f"{path}: cannot be read: {error.strerror}: check the path") from None
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # what `>` writes in Windows PowerShell
    text = data.decode("utf-16" if utf16 else "utf-8-sig", "replace")
    if "\0" in text or re.search(r"[\x00-\x08\x0e-\x1a]", text[:10_000]):
        raise Stop(f"{path}: a binary file, not text: of a report, ncu --import X.ncu-rep --csv --page raw makes a CSV")
    if not text.strip():
        raise Stop(f"{path}: the file is empty: write it again (the header of merge_dram.py has the commands)")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n\ufeff", "\n")


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A kernel of the run: its record, FLOP and requested bytes of one launch, and bytes of its output if known."""

    record: dict[str, Any]
    label: str
    flop: int
    requested: int
    output: int | None
    copies: bool = False  # it requests each byte once, and by whole sectors

    @property
    def optional(self) -> bool:
        """Whether the export may lack it: of the shapes that compete for a ceiling, one is enough."""
        return self.record.get("record") == "shape"

    @property
    def symbol(self) -> str:
        """The kernel's name."""
        return self.record["symbol"]

    @property
    def ms(self) -> float:
        """One launch, by CUDA events, not profiled."""
        return self.record["ms"]


@dataclass(frozen=True)
class Run:
    """A run of day 49: the run record (None in the plain form), the copy ceiling in GB/s, and the kernels in order."""

    record: dict[str, Any] | None
    copy_gbps: float
    rows: list[Row]


def strict_json(text: str) -> Any:
    """Parse JSON, but neither NaN, nor infinity, nor a key given twice. Raises ValueError."""

    def number(digits: str) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{digits[:20]} is not a finite number")
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"a key is there twice in {[key for key, _ in pairs]}")
        return dict(pairs)

    return json.loads(text, parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=members)


def take(record: dict[str, Any], where: str, key: str, kind: type = float) -> Any:
    """Return a key's value: a text, a measured number (float) or a count (int). Raises Stop that names it."""
    value = record.get(key)
    number = type(value) in (int, float)
    good = {
        str: isinstance(value, str) and bool(value),
        float: number and MEASURED[0] <= value <= MEASURED[1],
        int: number and value >= 0 and value == int(value),
    }
    if not good[kind]:
        words = {str: "a text", float: "a sensible number above zero", int: "a whole number"}[kind]
        name = record.get("variant") or record.get("record") or "this line"
        raise Stop(f"{where}: {key} of '{name}' is {value!r}, not {words}: {RUN_AGAIN}")
    return int(value) if kind is int else value


def read_run(path: Path) -> Run:
    """Read the JSON lines of one run of day 49. Raises Stop if they are no such run, or a check in it failed.

    Beside the program's lines, each with its `record`, it takes plain ones without: the two ceilings and the rows as in
    the lesson. Those say nothing of checks, card and L2, and the ceilings' FLOP and bytes follow from their rates.
    """
    records = []
    for number, line in enumerate(read_text(path).rstrip("\n").split("\n"), start=1):
        where = f"{path}:{number}"
        try:
            record = strict_json(line)
            if not isinstance(record, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise Stop(f"{where}: not a JSON line, or cut off ({error}): {RUN_AGAIN}") from None
        records.append((where, record))
    if row_schema:
        version = records[0][1].get("schema")
        records = [(where, row_schema.up_to_date(record, version)) for where, record in records]
    first = records[0][1]
    header = first if "record" in first else None
    if header:
        _refuse_other_runs(records)
    elif any("record" in record for _, record in records):
        raise Stop(f"{path}:1: no run record, although other lines have one: the start is cut off: {RUN_AGAIN}")

    kinds: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for where, record in records:
        kinds.setdefault(record["record"] if header else _plain_kind(record), []).append((where, record))

    ceilings = {take(record, where, "variant", str): (where, record) for where, record in kinds.get("ceiling", [])}
    for variant in ("ceiling-copy", "ceiling-fma"):
        if variant not in ceilings:
            raise Stop(f"{path}: no {variant}: not a run of day 49, or cut off: {RUN_AGAIN}")
    copy_gbps = take(ceilings["ceiling-copy"][1], ceilings["ceiling-copy"][0], "value")

    checked = {}  # elements of the output, which are all compared
    for where, record in kinds.get("check", []):
        if record.get("size") == "full":
            key = take(record, where, "symbol", str), take(record, where, "variant", str)
            checked[key] = take(record, where, "checked", int)

    # A ceiling for which shapes compete is one of them. A shape without a check is no kernel of this program, and one
    # that shares its symbol cannot be told from others in the export.
    shapes = kinds.get("shape", [])
    shaped = [take(record, where, "symbol", str) for where, record in shapes]
    joined = kinds.get("row", []) + kinds.get("pattern", [])
    joined += [item for item in ceilings.values() if take(item[1], item[0], "symbol", str) not in shaped]
    joined += [
        (where, record)
        for (where, record), symbol in zip(shapes, shaped)
        if shaped.count(symbol) == 1 and (symbol, take(record, where, "variant", str)) in checked
    ]
    timed = {take(record, where, "symbol", str) for where, record in joined + shapes}
    lost = sorted({symbol for symbol, _ in checked} - timed)
    if lost:
        raise Stop(f"{path}: kernel missing in the run: {', '.join(lost)}, checked and not timed: {RUN_AGAIN}")
    rows: dict[str, Row] = {}
    for where, record in joined:
        symbol, variant = take(record, where, "symbol", str), take(record, where, "variant", str)
        if symbol in rows:
            raise Stop(f"{where}: a second row of {symbol}, the key of the join: {RUN_AGAIN}")
        if header and (symbol, variant) not in checked:
            raise Stop(f"{where}: {symbol} ('{variant}') has no check of full size in this run: {RUN_AGAIN}")
        output = checked[symbol, variant] * FLOAT if header else None
        take(record, where, "ms")
        if header or "flop" in record:
            flop = take(record, where, "flop", int)
            requested = take(record, where, "requested_bytes" if header else "bytes", int)
        else:
            amount = round(take(record, where, "value") * record["ms"] * 1e6)
            flop, requested = (amount, 0) if record.get("metric") == "gflops" else (0, amount)
        shape = record.get("record") == "shape"
        copies = shape or (not header and record.get("metric") == "gbps")
        rows[symbol] = Row(record, f"copy, {variant}" if shape else variant, flop, requested, output, copies)
    if not kinds.get("row"):
        raise Stop(f"{path}: no row of a kernel: cut off: {RUN_AGAIN}")
    return Run(header, copy_gbps, list(rows.values()))


def _plain_kind(record: dict[str, Any]) -> str:
    return "row" if "flop" in record else str(record.get("variant")).split("-")[0]


def _refuse_other_runs(records: list[tuple[str, dict[str, Any]]]) -> None:
    """Raise Stop if these records are not one run of day 49 on a GPU with all checks passed."""
    where, header = records[0]
    if header.get("record") != "run":
        raise Stop(f"{where}: a '{header.get('record')}' record where the run record should be: {RUN_AGAIN}")
    if header.get("day") != 49:
        raise Stop(f"{where}: a run of day {header.get('day')}: give one of day 49: ./roofline --json > RUN.jsonl")
    if type(header.get("schema")) is not int or header["schema"] != SCHEMA:
        known = row_schema.known_versions() if row_schema else f"{SCHEMA} alone, older ones with the folder scripts"
        raise Stop(f"{where}: schema {header.get('schema')}, this script knows {known}: take the one of its revision")
    if header.get("backend") == "cpu":
        raise Stop(f"{where}: a run of the CPU build: no counters of a GPU belong to it: run the GPU build")
    take(header, where, "l2_bytes", int)
    take(header, where, "device", str)
    for where, record in records[1:]:
        if not isinstance(record.get("record"), str):
            raise Stop(f"{where}: a line without its record, although the first has one: {RUN_AGAIN}")
        if record["record"] == "run":
            raise Stop(f"{where}: a second run: give the lines of one")
        if record["record"] == "check" and record.get("ok") is not True:
            what = f"{record.get('symbol')} ('{record.get('variant')}', {record.get('size')})"
            raise Stop(f"{where}: the check of {what} failed, its figures mean nothing: correct it and {RUN_AGAIN}")


# ---- the export ------------------------------------------------------------------------------------------------------


@dataclass
class Launch:
    """One profiled launch: the row's ID, its kernel, its shape, and the counters as text, unit and place."""

    id: str
    kernel: str  # as the export has it
    symbol: str
    shape: tuple[str, str]  # grid and block, empty if the export has none
    cc: str
    path: Path
    texts: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # by metric: value, unit, line
    comma: bool | None = False  # whether the texts have a decimal comma; None: nothing in the export tells
    units: Units = field(default_factory=lambda: UNITS)


@functools.cache
def symbol_of(kernel: str) -> str:
    """Return a kernel's name alone: without return type, namespaces, template arguments and parameters.

    symbol_of("void copyVector<float4, (int)1>(const T1 *, T1 *, int)") is "copyVector".
    """
    text = re.sub(r"(?:\(anonymous namespace\)|<unnamed>|`anonymous namespace')::", "", kernel)
    plain, angle, paren = "", 0, 0
    for letter in text:
        if angle and letter in "()":
            paren += 1 if letter == "(" else -1
        elif letter == "<" and not paren:
            angle += 1
        elif letter == ">" and not paren and angle:
            angle -= 1
        elif not angle:
            if letter == "(":
                break
            plain += letter
    return plain.split()[-1].rpartition("::")[2] if plain.strip() else kernel


Table = dict[str, list[Launch]]  # the launches of one table, by symbol


def read_export(path: Path, wanted: Collection[str]) -> list[Table]:
    """Return the tables of an export by symbol: one, or more where exports were put into one file.

    Raises Stop as parse_export does, and for a file that is unreadable, empty or binary.
    """
    tables = []
    for launches in parse_export(read_text(path), path, wanted):
        by_symbol: Table = {}
        for launch in launches:
            by_symbol.setdefault(launch.symbol, []).append(launch)
        tables.append(by_symbol)
    return tables


def parse_export(
    text: str, path: Path, wanted: Collection[str] | None = None, units: Units = UNITS
) -> list[list[Launch]]:
    """Return the tables of an export's text, each the launches in their order, with the counters that `units` names.

    Raises Stop with `path`: no export, a row cut off or damaged, no row at all, an error that the profiler reports, and
    a counter without value or with an unknown unit, of a kernel that is `wanted` (by symbol; None: all are).
    """
    lines = text.rstrip("\n").split("\n")
    tables: list[tuple[int, list[str], str, list[tuple[int, str]]]] = []  # header: line, fields, delimiter; its rows
    starts: tuple[str, ...] = ()  # how a row of this table starts: ID first, quoted or not; ncu quotes
    for number, line in enumerate(lines, start=1):
        if line.startswith(starts):
            tables[-1][3].append((number, line))
        elif line.startswith(("==ERROR==", "ERR_NVGPUCTRPERM")):
            advice = "the host lets only administrators read the counters: run ncu as root"
            advice = advice if "ERR_NVGPUCTRPERM" in line else f"put that right and {PROFILE_AGAIN}"
            raise Stop(f"{path}:{number}: the profiler reports: {line[:200]}: {advice}")
        elif re.match(r'"ID"[,;\t]|ID[,;\t]', line):
            quote = '"' if line[0] == '"' else ""
            delimiter = line[2 + 2 * len(quote)]
            fields = next(csv.reader([line], delimiter=delimiter))
            if "Kernel Name" in fields:
                tables.append((number, fields, delimiter, []))
                starts = (quote * 2 + delimiter, *(quote + digit for digit in "0123456789"))
    if not tables:
        hint = PROFILE_AGAIN
        if lines[0].startswith("{"):
            hint = "these are JSON lines, which --json takes"
        elif "No kernels were profiled" in text:
            hint = f"ncu says that no kernels were profiled: {PROFILE_AGAIN}"
        raise Stop(f'{path}: not an export of ncu --csv, no line starts with "ID" and names "Kernel Name": {hint}')
    if lines[-1].startswith(starts) and not text.endswith(("\n", '"')):
        raise Stop(f"{path}:{len(lines)}: the last row has no end, the file is cut off: {PROFILE_AGAIN}")
    passes = [_read_table(path, units, *table) for table in tables]
    if not any(passes):
        line = tables[0][0]
        raise Stop(f"{path}:{line}: no row under the header, nothing profiled or the file cut off: {PROFILE_AGAIN}")
    launches = [launch for table in passes for launch in table]
    comma = decimal_comma(launches)
    for launch in launches:
        launch.comma = comma
        if wanted is None or launch.symbol in wanted:
            for metric, (text, unit, _) in launch.texts.items():
                if unit not in units[metric] or not text[:1].isdigit():
                    to_base(launch, metric)  # which raises, unless the text starts with a blank
    return passes


def _read_table(
    path: Path, units_of: Units, header_line: int, header: list[str], delimiter: str, rows: list[tuple[int, str]]
) -> list[Launch]:
    """Return the launches of one table in order; `rows` are line numbers and lines. Raises Stop."""
    place = {name: column for column, name in enumerate(header)}
    long = "Metric Name" in place
    for name in ("Metric Value", "Metric Unit") if long else ():
        if name not in place:
            raise Stop(f'{path}:{header_line}: the header has no "{name}": {PROFILE_AGAIN}')
    used = [(RENAMED.get(name, name), column) for name, column in place.items() if RENAMED.get(name, name) in units_of]
    kernel_at, process_at = place["Kernel Name"], place.get("Process ID")
    shape_at = [place[name] for name in ("Grid Size", "Block Size") if name in place]
    cc_at = place.get("CC")
    units: list[str] | None = None
    launches: dict[tuple[str, str], Launch] = {}
    for number, fields in _split(path, header_line, len(header), delimiter, rows):
        if not fields[0]:
            if not long and units is None:
                units = fields
                continue
            raise Stop(f"{path}:{number}: a row without ID: {PROFILE_AGAIN}")
        key = (fields[process_at] if process_at is not None else "", fields[0])
        launch = launches.get(key)
        if launch is None:
            shape = (fields[shape_at[0]], fields[shape_at[1]]) if len(shape_at) == 2 else ("", "")
            cc = fields[cc_at] if cc_at is not None else ""
            kernel = fields[kernel_at]
            launch = launches[key] = Launch(fields[0], kernel, symbol_of(kernel), shape, cc, path, units=units_of)
        elif not long or launch.kernel != fields[kernel_at]:
            raise Stop(f"{path}:{number}: ID {fields[0]} is there again, first for {launch.symbol}: {PROFILE_AGAIN}")
        if long:
            name = fields[place["Metric Name"]]
            name = RENAMED.get(name, name)
            if name in launch.texts:
                raise Stop(
                    f"{path}:{number}: {name} of ID {fields[0]}, {launch.symbol}, is there twice: {PROFILE_AGAIN}"
                )
            if name in units_of:
                launch.texts[name] = (fields[place["Metric Value"]], fields[place["Metric Unit"]], number)
            continue
        if units is None:
            raise Stop(f"{path}:{number}: no row of units under the header of the wide form: {PROFILE_AGAIN}")
        launch.texts = {name: (fields[column], units[column], number) for name, column in used}
    return list(launches.values())


def _split(
    path: Path, header_line: int, width: int, delimiter: str, rows: list[tuple[int, str]]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and fields of each row. Raises Stop at one that is cut off: a row is one line."""
    reader = csv.reader((line for _, line in rows), delimiter=delimiter, strict=True)
    for number, line in rows:
        try:
            fields = next(reader)
        except (csv.Error, StopIteration):
            fields = []
        if len(fields) != width or reader.line_num > len(rows) or rows[reader.line_num - 1][0] != number:
            raise Stop(
                f"{path}:{number}: cut off or damaged, not the {width} fields of line {header_line}: "
                f"{line[:60]!r}: {PROFILE_AGAIN}"
            )
        yield number, fields


# ---- numbers ---------------------------------------------------------------------------------------------------------


NUMBER = re.compile(r"(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
OTHER_SEPARATORS = re.compile(r"[\s\u00a0\u202f'\u2019]")  # of thousands, none of which can be decimal
SWAPPED = str.maketrans(",.", ".,")


def shows_comma(text: str) -> bool | None:
    """Return whether a number by itself shows a decimal comma; None if it may be read either way.

    "1.234,5" and "1.234.567" and "18,25" do; "1,234.5" and "1,234,567" and "18.25" do not; "1,234" may be either.
    """
    text = OTHER_SEPARATORS.sub("", text)
    comma, point = text.count(","), text.count(".")
    if not comma + point or not re.fullmatch(r"[0-9][0-9.,]*", text):
        return None
    if comma and point:
        return text.rfind(",") > text.rfind(".")
    if comma + point > 1:
        return point > 1
    before, after = re.split("[.,]", text)
    return comma == 1 if len(after) != 3 or len(before) > 3 or before == "0" else None


def is_count(unit: str) -> bool:
    """Return whether a unit counts things one by one, so that its numbers are whole. Times are not counts."""
    return unit == "byte" or COUNT_UNITS.get(unit) == 1


def decimal_comma(launches: list[Launch]) -> bool | None:
    """Return whether an export writes a decimal comma; None if no number in it tells.

    The first number that shows it decides. A whole number of bytes, sectors or instructions shows it too: in "1.234
    byte" the point can only group.
    """
    for launch in launches:
        for text, unit, _ in launch.texts.values():
            shows = shows_comma(text)
            if shows is None and is_count(unit) and re.fullmatch(r"[1-9][0-9]{0,2}[.,][0-9]{3}", text):
                shows = "." in text
            if shows is not None:
                return shows
    return None


def to_number(text: str, comma: bool) -> float | None:
    """Return the number of a text, None if it is none, has the other decimal sign, or is beyond all counting."""
    if comma:
        text = text.translate(SWAPPED)
    if not NUMBER.fullmatch(text):
        text = OTHER_SEPARATORS.sub("", text)
        if not NUMBER.fullmatch(text):
            return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def to_base(launch: Launch, metric: str) -> float:
    """Return a counter in bytes, sectors, instructions or milliseconds.

    Raises Stop: no value, no number, a number that may be read two ways, part of a count, its unit.
    """
    text, unit, line = launch.texts[metric]
    value, factor = to_number(text, bool(launch.comma)), launch.units[metric].get(unit)
    where = f"{launch.path}:{line}: {metric} of {launch.symbol}"
    if launch.comma is None and value != to_number(text, True):
        raise Stop(
            f"{where} reads '{text}', thousands or a fraction, and no number of this export tells which: {EXPORT_AGAIN}"
        )
    if value is not None and factor is not None:
        if value != int(value) and is_count(unit):
            raise Stop(f"{where} reads '{text}', and a count is whole: numbers of two locales? {EXPORT_AGAIN}")
        if value * factor >= COUNTED:
            raise Stop(f"{where} reads '{text[:40]}', more than any counter holds: {PROFILE_AGAIN}")
        return value * factor
    if text.replace("(!)", "").strip().lower() in MISSING:
        raise Stop(f"{where} reads '{text}', no value: this GPU may not count it, or the pass failed: {PROFILE_AGAIN}")
    if value is None:
        sign = "comma" if launch.comma else "point"
        raise Stop(f"{where} reads '{text[:40]}', no count with a decimal {sign}, as others here have: {EXPORT_AGAIN}")
    known = ", ".join(name or "none" for name in launch.units[metric])
    raise Stop(f"{where} has the unknown unit '{unit}', not one of {known}: profile with --print-units base")


# ---- the join --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """A kernel with what was counted for it: `counted` by metric, in bytes, sectors, instructions or milliseconds."""

    row: Row
    counted: dict[str, float]
    launches: int  # the most that one export has of it
    l2_size: int | None  # bytes that the L2 cache holds

    @property
    def dram(self) -> int:
        """Bytes that DRAM moved."""
        return round(self.counted[DRAM])

    @property
    def l2(self) -> int:
        """Bytes that the SMs requested from L2."""
        return round(self.counted[L2] * SECTOR)

    @property
    def l1(self) -> int:
        """Bytes that L1 looked up, of global and local memory."""
        return round(self.counted[L1])

    @property
    def dram_gbps(self) -> float:
        """GB/s of DRAM over the time of the unprofiled run."""
        return self.dram / self.row.ms * 1e-6

    @property
    def requested_per_dram(self) -> float | None:
        """Requested over moved bytes; None if DRAM moved none."""
        return self.row.requested / self.dram if self.dram else None

    @property
    def flop_counted(self) -> int | None:
        """FADD + FMUL + 2 FFMA, if they were counted."""
        if FFMA not in self.counted:
            return None
        return round(self.counted[FADD] + self.counted[FMUL] + 2 * self.counted[FFMA])

    @property
    def writes_may_stay(self) -> bool | None:
        """Whether so little is written that it may be in L2, not DRAM, when the kernel ends; None if L2 is unknown."""
        return None if self.l2_size is None or self.row.output is None else self.row.output < 2 * self.l2_size

    @property
    def fits_l2(self) -> bool | None:
        """Whether L2 could hold all that DRAM moved, so that a warm launch moves less; None if L2 is unknown."""
        return None if self.l2_size is None else self.dram <= self.l2_size

    def intensity(self, level: int) -> float | None:
        """Return FLOP per byte of a level; None without FLOP, or without a byte."""
        return self.row.flop / level if self.row.flop and level else None

    def disorder(self) -> str:
        """Return why the intensities are not L1 <= L2 <= DRAM, that is bytes L1 >= L2 >= DRAM; empty if they are."""
        reasons = []
        if self.l2 > self.l1:
            more = f"L2 moved {_times(self.l2, self.l1)} what L1 did"
            if self.l2 <= self.l1 * (1 + PASS_TOLERANCE):
                reasons.append(f"{more}: passes disagree by a few per cent, or units were rounded")
            else:
                reasons.append(f"{more}: no cache does that: count both again in one pass")
        if self.dram > self.l2:
            more = f"DRAM moved {_times(self.dram, self.l2)} what the SMs requested from L2"
            if self.dram <= self.l2 * (1 + PASS_TOLERANCE):
                reasons.append(f"{more}: passes disagree by a few per cent, or units were rounded")
            elif self.dram <= self.l2 + SMALL:
                reasons.append(f"{more}, less than 1 MB more: code, constants and page tables, into emptied caches")
            elif self.row.requested and self.l2 >= 2 * self.row.requested:
                reasons.append(
                    f"{more}: they request single 32-byte sectors ({_times(self.l2, self.row.requested)} the bytes "
                    "they need), DRAM delivers 64 bytes, and a partly written sector is read before it is written back"
                )
            else:
                reasons.append(f"{more}: data fetched again, or others' lines written back while it ran")
        return "; ".join(reasons)


def _times(more: int, less: int) -> str:
    return f"{more / less:.2f} x" if less else f"{more} bytes against no byte of"


def join(run: Run, passes: list[Table], paths: str) -> tuple[list[Joined], list[str]]:
    """Join by symbol: return the kernels in the run's order and what the user must be told. Raises Stop.

    `passes` are the tables of all exports; `paths` names the exports in messages.
    """
    found: dict[str, int] = {}
    for table in passes:
        for symbol, launches in table.items():
            found[symbol] = found.get(symbol, 0) + len(launches)
    rows = [row for row in run.rows if row.symbol in found]
    if not rows:
        names = ", ".join(list(found)[:5])
        raise Stop(f"{paths}: an export of another program: it has {names}, no kernel of day 49: {PROFILE_AGAIN}")
    lost = [row.symbol for row in run.rows if row not in rows and not row.optional]
    shapes = [row.symbol for row in run.rows if row.optional]
    if shapes and not found.keys() & set(shapes):
        lost.append(" or ".join(shapes))
    if lost:
        raise Stop(f"{paths}: kernel missing in the export: {', '.join(lost)}: let ncu see all of roofline --profile")
    order = list(found)
    rows.sort(key=lambda row: order.index(row.symbol))
    wanted = [row.symbol for row in rows]
    notes = []
    others = [f"{symbol} ({count})" for symbol, count in found.items() if symbol not in wanted]
    if others:
        more = f" and {len(others) - 8} more" if len(others) > 8 else ""
        notes.append(f"Not in the run, left out (launches): {', '.join(others[:8])}{more}.")

    l2_size = run.record["l2_bytes"] if run.record else None
    kernels, lacking, doubled = [], {}, {}
    for row in rows:
        counted: dict[str, float] = {}
        origin: dict[str, Path] = {}
        most = 1
        for table in passes:
            launches = table.get(row.symbol)
            if not launches:
                continue
            most = max(most, len(launches))
            launch, note = choose(launches)
            notes += [note] if note else []
            _refuse_other_card(run, launch)
            for metric in launch.texts:
                value = to_base(launch, metric)
                if metric in counted:
                    _refuse_other_value(row.symbol, metric, counted[metric], value, origin[metric], launch.path)
                    doubled.setdefault((metric, launch.path, origin[metric]), []).append(row.symbol)
                else:
                    counted[metric], origin[metric] = value, launch.path
        counts = (FADD, FMUL, FFMA)
        needed = LEVELS + (counts if any(metric in counted for metric in counts) else ())
        for metric in needed:
            if metric not in counted:
                lacking.setdefault(metric, []).append(row.symbol)
        kernels.append(Joined(row, counted, most, l2_size))
    if lacking:
        raise Stop(
            "\n".join(
                f"{paths}: metric missing: {metric}, for {_names(symbols, wanted)}: "
                f"ncu --metrics must name it; --ncu takes several files"
                for metric, symbols in lacking.items()
            )
        )
    for (metric, second, first), symbols in doubled.items():
        if metric != TIME:
            notes.append(f"{metric} of {_names(symbols, wanted)} is also in {second}: {first} counts.")
    for kernel in kernels:
        _refuse_other_size(kernel)
    return kernels, notes


def _names(symbols: list[str], all_symbols: list[str]) -> str:
    return f"all {len(symbols)} kernels" if len(symbols) == len(all_symbols) else ", ".join(symbols)


def choose(launches: list[Launch]) -> tuple[Launch, str]:
    """Return the launch that counts, of a kernel in one table, and if there are more a sentence that names them all.

    It is the (lower) median by DRAM bytes, or where those were not counted by the first counter there is. Raises Stop
    if the launches differ in signature or shape.
    """
    if len(launches) == 1:
        return launches[0], ""
    symbol, path = launches[0].symbol, launches[0].path
    kinds = {(launch.kernel, launch.shape): launch for launch in reversed(launches)}
    if len(kinds) > 1:
        shown = [f"ID {one.id} {one.kernel} grid {one.shape[0]} block {one.shape[1]}" for one in kinds.values()]
        raise Stop(
            f"{path}: {len(launches)} launches of {symbol} that are not the same: {'; '.join(shown[:4])}: profile "
            "roofline --profile, which launches each once, or choose with ncu --launch-skip and --launch-count"
        )
    metric = next((name for name in UNITS if name in launches[0].texts), None)
    ranked = sorted(
        (
            (to_base(launch, metric) if metric in launch.texts else math.inf, place)
            for place, launch in enumerate(launches)
        )
    )
    chosen = launches[ranked[(len(ranked) - 1) // 2][1]]
    ids = [launch.id for launch in launches]
    listed = ", ".join(ids) if len(ids) <= 8 else f"{', '.join(ids[:7])}, ... {ids[-1]}"
    span = f", the median by DRAM ({ranked[0][0] / 1e6:.1f} to {ranked[-1][0] / 1e6:.1f} MB)" if metric == DRAM else ""
    return chosen, f"{symbol}: {len(ids)} launches in {path} (ID {listed}), not summed: ID {chosen.id} counts{span}."


def _refuse_other_card(run: Run, launch: Launch) -> None:
    ours = run.record.get("cc") if run.record else None
    if ours and launch.cc and launch.cc != ours:
        raise Stop(
            f"{launch.path}: {launch.symbol} ran on a GPU of compute capability {launch.cc}, the run on one of {ours}: "
            "profile on the card that wrote the run"
        )


def _refuse_other_value(symbol: str, metric: str, first: float, second: float, path: Path, other: Path) -> None:
    size = {**dict.fromkeys(UNITS, 1), L2: SECTOR}[metric]
    apart = abs(first - second)
    if metric != TIME and apart > PASS_TOLERANCE * max(first, second) and apart * size > SMALL:
        raise Stop(
            f"{other}: {metric} of {symbol} is {second:.0f}, but {first:.0f} in {path}: "
            "give only exports of the same build and size"
        )


def _refuse_other_size(kernel: Joined) -> None:
    """Raise Stop if FLOP or bytes show that run and export are not of the same program."""
    row, counted = kernel.row, kernel.flop_counted
    if counted is not None and abs(counted - row.flop) > FLOP_TOLERANCE * row.flop:
        off = f"{100 * (counted / row.flop - 1):+.1f} %" if row.flop else "no FLOP expected"
        raise Stop(
            f"{row.symbol}: {counted} FLOP counted (FADD + FMUL + 2 FFMA), {row.flop} modelled, {off}: run and export "
            "are of different sizes or builds, or the model is wrong: profile the build that wrote the run"
        )
    # Each byte is requested once and by whole sectors, so L1 must see what the model says.
    if row.copies and abs(kernel.l1 - row.requested) > PASS_TOLERANCE * row.requested:
        raise Stop(
            f"{row.symbol}: L1 saw {kernel.l1 / 1e6:.1f} MB where the run requests {row.requested / 1e6:.1f} MB, each "
            "byte once: run and export are of different sizes: profile the build that wrote the run"
        )


# ---- what comes out --------------------------------------------------------------------------------------------------


def to_record(kernel: Joined, copy_gbps: float) -> dict[str, Any]:
    """Return a kernel's JSON line. Bytes and FLOP are of one launch; what is unknown or undefined has no key."""
    kept = ("day", "variant", "symbol", "ms", "ms_min", "ms_max", "samples", "batch")
    row, counted = kernel.row, kernel.counted
    record: dict[str, Any] = {"record": "merged", **{key: row.record[key] for key in kept if key in row.record}}
    fields = {
        "flop": row.flop,
        "requested_bytes": row.requested,
        "metric": "dram_gbps",
        "value": kernel.dram_gbps,
        "unit": "GB/s",
        "percent": 100 * kernel.dram_gbps / copy_gbps,
        "ceiling": "copy",
        "dram_bytes": kernel.dram,
        "dram_read_bytes": counted.get(READ),
        "dram_write_bytes": counted.get(WRITE),
        "l2_bytes": kernel.l2,
        "lts_bytes": counted.get(L2_ALL),
        "l1_bytes": kernel.l1,
        "output_bytes": row.output,
        "intensity_l1": kernel.intensity(kernel.l1),
        "intensity_l2": kernel.intensity(kernel.l2),
        "intensity_dram": kernel.intensity(kernel.dram),
        "requested_per_dram": kernel.requested_per_dram,
        "flop_counted": kernel.flop_counted,
        "profiled_ms": counted.get(TIME),
        "launches": kernel.launches,
        "writes_may_stay_in_l2": kernel.writes_may_stay,
        "dram_fits_l2": kernel.fits_l2,
        "order": kernel.disorder() or None,
    }
    for key, metrics in COUNTS.items():
        if all(metric in counted for metric in metrics):
            fields[key] = sum(counted[metric] for metric in metrics)
    for key, value in fields.items():
        if value is not None:
            whole = key.endswith("_bytes") or key in COUNTS
            record[key] = round(value) if whole else float(f"{value:.9g}") if isinstance(value, float) else value
    return record


def _intensity(kernel: Joined, level: int) -> str:
    if not kernel.row.flop:
        return "no FLOP"
    value = kernel.intensity(level)
    return "no byte" if value is None else f"{value:.3f}" if value < 1e4 else f"{value:.3g}"


def to_text(run: Run, kernels: list[Joined], notes: list[str]) -> str:
    """Return the two tables and what there is to say about them."""
    out = []
    if run.record:
        record = run.record
        cache = f"{record['l2_bytes'] / 2**20:.1f} MiB L2"
        out.append(f"{record['device']}, {cache}, copy ceiling {run.copy_gbps:.1f} GB/s")
    else:
        out.append(f"Copy ceiling {run.copy_gbps:.1f} GB/s. The run does not say which card, its L2, or its checks.")
    out += ["", "Bytes of one launch, in MB: requested by the algorithm, and counted by the hardware"]
    above = [kernel for kernel in kernels if kernel.dram_gbps > ABOVE * run.copy_gbps]
    width = max(len("kernel"), *(len(kernel.row.label) for kernel in kernels))
    heads = ("request MB", "DRAM MB", "L2 MB", "lts__t MB", "L1 MB")
    out.append(f"{'kernel':{width}} {' '.join(f'{head:>10}' for head in heads)} request/DRAM")
    for kernel in kernels:
        sizes = [kernel.row.requested, kernel.dram, kernel.l2, kernel.counted.get(L2_ALL), kernel.l1]
        cells = ["-" if size is None else f"{size / 1e6:.{1 if size >= 1e5 or not size else 3}f}" for size in sizes]
        ratio = "-" if kernel.requested_per_dram is None else f"{kernel.requested_per_dram:.3f}"
        marks = {"w": kernel.writes_may_stay, "c": kernel.fits_l2, "!": kernel.disorder(), "^": kernel in above}
        shown = " ".join(mark for mark, is_so in marks.items() if is_so)
        line = f"{kernel.row.label:{width}} {' '.join(f'{cell:>10}' for cell in cells)} {ratio:>12}  {shown}"
        out.append(line.rstrip())

    out += ["", "FLOP per byte of each level, and DRAM's rate over the time of the unprofiled run"]
    heads = ("L1", "L2", "DRAM")
    out.append(f"{'kernel':{width}} {' '.join(f'{head:>8}' for head in heads)}      ms DRAM GB/s % copy symbol")
    for kernel in kernels:
        cells = " ".join(f"{_intensity(kernel, level):>8}" for level in (kernel.l1, kernel.l2, kernel.dram))
        rates = f"{kernel.row.ms:7.4f} {kernel.dram_gbps:9.1f} {100 * kernel.dram_gbps / run.copy_gbps:6.1f}"
        out.append(f"{kernel.row.label:{width}} {cells} {rates} {kernel.row.symbol}")

    remarks = []
    if any(kernel.writes_may_stay for kernel in kernels):
        remarks.append(
            "w  Writes may stay in L2: the output is smaller than 2 x L2, and what is still in L2 when the kernel ends "
            "is not in DRAM MB."
        )
    if any(kernel.fits_l2 for kernel in kernels):
        remarks.append(
            "c  DRAM MB would fit in L2: by default the profiler empties the caches first, while the timed launches "
            "find them warm and move less than DRAM GB/s says."
        )
    for kernel in kernels:
        if kernel.disorder():
            name = kernel.row.symbol
            remarks.append(f"!  {name}: FLOP per byte is not L1 <= L2 <= DRAM: {kernel.disorder()}.")
    if above:
        remarks.append(
            f"^  DRAM GB/s above the copy ceiling: {', '.join(kernel.row.symbol for kernel in above)}: the ceiling is "
            "too low, or the timed launches found data in L2 that the profiled one fetched."
        )
    remarks.append("L2 MB is what the SMs requested; lts__t MB also counts traffic between the L2's partitions.")
    remarks.append(_flop_sentence(kernels))
    out.append("")
    for remark in remarks + notes:
        indent = "   " if remark[1:3] == "  " else ""
        out += textwrap.wrap(remark, 96, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(out) + "\n"


def _flop_sentence(kernels: list[Joined]) -> str:
    counted = [kernel for kernel in kernels if kernel.flop_counted is not None]
    if not counted:
        return "FLOP are modelled, not counted: give the export of the instruction counters too."
    others = [kernel for kernel in counted if kernel.flop_counted != kernel.row.flop]
    same = f"{len(counted) - len(others)} of {len(kernels)}"
    text = f"FLOP counted (FADD + FMUL + 2 FFMA) are exactly those modelled for {same}"
    for kernel in others:
        text += f"; {kernel.row.symbol} {100 * ((kernel.flop_counted or 0) / kernel.row.flop - 1):+.2g} %"
    return text + "."


def write_whole(path: Path, text: str) -> None:
    """Write or replace a file in one step, so that no reader and no interruption meets half of it. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def merge(options: argparse.Namespace) -> tuple[str, str]:
    """Read and join; return the table and the JSON lines. Raises Stop."""
    if options.out and options.out.exists():
        if not options.out.is_file():
            raise Stop(f"{options.out}: --out is not a regular file: name a file")
        for path in (options.json, *options.ncu):
            if path.exists() and options.out.samefile(path):
                raise Stop(f"{options.out}: --out would overwrite what is read: name another file")
    run = read_run(options.json)
    wanted = {row.symbol for row in run.rows}
    passes = [table for path in options.ncu for table in read_export(path, wanted)]
    kernels, notes = join(run, passes, ", ".join(map(str, options.ncu)))
    records = [run.record] if run.record else []
    records += [to_record(kernel, run.copy_gbps) for kernel in kernels]
    lines = "".join(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records)
    return to_text(run, kernels, notes), lines


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="RUN.jsonl", help="what roofline --json printed")
    parser.add_argument("--ncu", type=Path, required=True, nargs="+", metavar="COUNTERS.csv", help="what ncu printed")
    parser.add_argument("--out", type=Path, metavar="MERGED.jsonl", help="write the joined rows as JSON lines")
    options = parser.parse_args(arguments)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed
        stream.reconfigure(errors="backslashreplace")  # a path or a kernel may have letters that the terminal has not
    gc.disable()  # looking for cycles among a hundred thousand launches, of which there are none, doubles the time
    target: Path | str = "stdout"
    try:
        text, lines = merge(options)
        if not sys.stdout:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.write(text)
        sys.stdout.flush()
        if options.out:
            target = options.out
            write_whole(options.out, lines)
    except Stop as stop:
        print(stop, file=sys.stderr)
        return EXIT_WRONG
    except OSError as error:
        print(f"{target}: cannot be written: {error.strerror}: nothing was", file=sys.stderr)
        with contextlib.suppress(OSError, AttributeError):
            sys.stdout.close()  # or Python tries once more on its way out, and says so
        return EXIT_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
