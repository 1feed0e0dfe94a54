#!/usr/bin/env python3
"""Set the traffic that a CPU build predicts beside the counters of a profiler.

    cmake --preset cpu-trace && cmake --build --preset cpu-trace
    build/cpu-trace/day49-roofline/roofline --trace --card h200 --json > predicted.jsonl
    scripts/predict.py --day 49 --trace predicted.jsonl --ncu profile/h200/day49-counters.csv

profile/<gpu>/dayNN-predicted.jsonl holds the launches of such a trace without its source lines, which move with every
comment: grep '"record":"traffic"'. scripts/evidence.py charts makes dayNN-predicted.txt of it, which READMEs show.

Joins each launch of the trace with the launch of the same kernel in the export: by name, by template arguments where
both have them, and by order where there are several. Prints what warps ask of global and shared memory, and the bytes
that L1, L2 and DRAM move (MB are 10^6 bytes), predicted and measured; x is predicted / measured. A figure that is off
by more than 10 % gets a sentence. One that nobody has explained is an error: the day's day.json is where sentences
stand, under "off".

The export is what merge_dram.py of day 49 reads, but with --print-units base alone, as scripts/profile.sh writes it.
Exit code: 0 printed; 1 something is wrong, on stderr; 2 bad usage.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from counters import UNITS, merge_dram
from day_facts import BadFacts, Facts, facts_of
from sync_common import flush_stdout, say_failed

EXIT_WRONG = 1
ROOT = Path(__file__).resolve().parents[1]
OFF = 0.10  # what calls for a sentence
SMALL_BYTES = 1_000_000  # of DRAM: what a kernel's start costs is no longer little beside it
SECTOR_BYTES = 32

METRIC = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"

# What is compared: name, keys of the trace whose sum it is, counters whose sum it is, and what one of them counts. The
# counters take asynchronous copies to shared memory for loads, and not for stores to shared memory.
QUANTITIES = {
    "load requests": (("global_load_requests", "global_async_copy_requests"), (METRIC.format("requests", "ld"),), 1),
    "load sectors": (("global_load_sectors", "global_async_copy_sectors"), (METRIC.format("sectors", "ld"),), 1),
    "store requests": (("global_store_requests",), (METRIC.format("requests", "st"),), 1),
    "store sectors": (("global_store_sectors",), (METRIC.format("sectors", "st"),), 1),
    "wavefronts": (
        ("shared_load_wavefronts", "shared_store_wavefronts"),
        (WAVEFRONTS.format("ld"), WAVEFRONTS.format("st")),
        1,
    ),
    "L1": (("l1_bytes",), ("l1tex__t_bytes.sum",), 1),
    "L2": (("l2_bytes",), ("lts__t_sectors_srcunit_tex.sum",), SECTOR_BYTES),
    "DRAM": (("dram_read_bytes", "dram_write_bytes"), ("dram__bytes.sum",), 1),
}
LEVELS = ("L1", "L2", "DRAM")


Stop = merge_dram.Stop  # ends the program with exit code 1; its text says what is wrong


@dataclass
class Counted:
    """One launch of the export: its kernel as the profiler writes it, its grid and block, and its counters."""

    kernel: str
    shape: tuple[str, str]
    values: dict[str, float]


@dataclass
class Pair:
    """A launch of both sides, and its name in the tables."""

    label: str
    predicted: dict
    counted: Counted

    def figures(self, quantity: str) -> tuple[float, float]:
        """Return what was predicted and what was measured. Raises Stop if the export lacks the counter."""
        keys, metrics, unit = QUANTITIES[quantity]
        missing = [metric for metric in metrics if metric not in self.counted.values]
        if missing:
            raise Stop(f"{self.label}: the export has no {missing[0]}")
        predicted = sum(self.predicted.get(key, 0) for key in keys)
        return predicted, unit * sum(self.counted.values[metric] for metric in metrics)

    def ratio(self, quantity: str) -> float | None:
        """Return predicted / measured; None where both are nothing, or too little to tell from noise."""
        predicted, measured = self.figures(quantity)
        if max(predicted, measured) <= (SMALL_BYTES if quantity == "DRAM" else 0):
            return None
        return predicted / measured if measured else float("inf")


# ---- both sides ------------------------------------------------------------------------------------------------------


def read_trace(path: Path) -> list[dict]:
    """Return the launches of a trace, in order. Raises Stop: unreadable, no trace, or one with findings."""
    again = "write it with PROGRAM --trace --card NAME --json"
    launches = []
    for number, line in enumerate(merge_dram.read_text(path).rstrip("\n").split("\n"), start=1):
        try:
            record = merge_dram.strict_json(line)
            if not isinstance(record, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise Stop(f"{path}:{number}: no line of a trace, or cut off ({error}): {again}") from None
        if record.get("record") == "finding":
            raise Stop(f"{path}:{number}: kernel {record.get('kernel')}, {record.get('what')}: correct it first")
        if record.get("record") == "traffic":
            _refuse_damaged(record, f"{path}:{number}", again)
            launches.append(record)
    if not launches:
        raise Stop(f"{path}: no launch in it: {again}")
    return launches


def _refuse_damaged(record: dict, where: str, again: str) -> None:
    """Raise Stop if a launch lacks what is read of it, or has it in another form."""
    counts = ["traced", "blocks", "compulsory_bytes", *(key for keys, _, _ in QUANTITIES.values() for key in keys)]
    good = {
        **dict.fromkeys(("kernel", "card"), lambda value: isinstance(value, str)),
        **dict.fromkeys(("grid", "block"), lambda value: isinstance(value, list)),
        **dict.fromkeys(counts, lambda value: type(value) is int and value >= 0),
    }
    optional = {"global_async_copy_requests", "global_async_copy_sectors"}  # of kernels that copy so
    for key, is_good in good.items():
        if not is_good(record.get(key)) and not (key in optional and key not in record):
            raise Stop(f"{where}: {key} is {record.get(key)!r}: {again}")


def read_counters(path: Path) -> list[Counted]:
    """Return the launches of an export, in order. Raises Stop: unreadable, no export, or units that are scaled."""
    launches: dict[tuple[str, str], Counted] = {}
    for table in merge_dram.parse_export(merge_dram.read_text(path), path, units=UNITS):
        for launch in table:
            one = launches.setdefault((launch.id, launch.kernel), Counted(launch.kernel, launch.shape, {}))
            one.values.update({metric: merge_dram.to_base(launch, metric) for metric in launch.texts})
    return list(launches.values())


def split_name(kernel: str) -> tuple[str, str]:
    """Return a kernel's symbol and its template arguments, spelled alike for both sides.

    "void scale<(int)4, (bool)1>(float *)" and "scale<4, true>" both give ("scale", "4,1").
    """
    text = re.sub(r"\((?:\w+|anonymous namespace)\)(?:::)?", "", kernel.removeprefix("void "))  # casts: (int)4, (Mode)0
    symbol, opened, rest = text.partition("<")
    if not opened or "(" in symbol:
        return symbol.partition("(")[0].strip(), ""
    depth, end = 1, 0
    while depth and end < len(rest):
        depth += {"<": 1, ">": -1}.get(rest[end], 0)
        end += 1
    arguments = rest[: end - 1].replace(" ", "").replace("true", "1").replace("false", "0")
    return symbol.strip(), arguments


def join(trace: list[dict], counted: list[Counted]) -> tuple[list[Pair], list[str]]:
    """Return the launches that both sides have, in the trace's order, and a sentence for each that is not compared."""
    pairs, notes = [], []
    left = list(counted)
    names = [split_name(record["kernel"]) for record in trace]
    for record, (symbol, arguments) in zip(trace, names):
        several = [name for name in names if name[0] == symbol]
        label = symbol if len(several) == 1 else f"{symbol}<{arguments}>" if arguments else symbol
        for candidate in left:
            other, its = split_name(candidate.kernel)
            if other == symbol and its == arguments:
                break
        else:
            notes.append(f"{label}: the export has no such launch.")
            continue
        left.remove(candidate)
        shape = tuple(f"({', '.join(map(str, record[key]))})" for key in ("grid", "block"))
        if shape != candidate.shape:
            notes.append(f"{label}: traced with grid {shape[0]}, profiled with {candidate.shape[0]}: not compared.")
            continue
        pairs.append(Pair(label, record, candidate))
    notes += [f"{split_name(launch.kernel)[0]}: not in the trace." for launch in left]
    if not pairs:
        raise Stop("no launch of the trace is in the export: do they belong to the same day and card?")
    return pairs, notes


# ---- what is printed -------------------------------------------------------------------------------------------------


def times(ratio: float | None) -> str:
    """Return a ratio as a cell."""
    return "-" if ratio is None else f"{ratio:.3f}"


def ask_table(pairs: list[Pair], width: int) -> list[str]:
    """Return the lines of the table of requests, sectors and wavefronts."""
    head = f"{'kernel':{width}}{'loads':>12}{'x':>6}{'sect.':>6}{'x':>6}{'stores':>12}{'x':>6}{'sect.':>6}{'x':>6}"
    lines = [head + f"{'wavefronts':>14}{'x':>7}"]
    for pair in pairs:
        line = f"{pair.label:{width}}"
        for kind in ("load", "store"):
            requests, sectors = pair.figures(f"{kind} requests")[0], pair.figures(f"{kind} sectors")[0]
            each = f"{sectors / requests:.2f}" if requests else "-"
            line += f"{requests:>12,}{times(pair.ratio(f'{kind} requests')):>6}"
            line += f"{each:>6}{times(pair.ratio(f'{kind} sectors')):>6}"
        lines.append(line + f"{pair.figures('wavefronts')[0]:>14,}{times(pair.ratio('wavefronts')):>7}")
    return lines


def level_table(pairs: list[Pair], width: int) -> list[str]:
    """Return the lines of the table of bytes."""
    lines = [f"{'':{width}}{'':11}" + "".join(f"  {level:-^25}" for level in LEVELS)]
    lines.append(f"{'kernel':{width}}{'compulsory':>11}" + f"{'predicted':>11}{'measured':>10}{'x':>6}" * len(LEVELS))
    for pair in pairs:
        line = f"{pair.label:{width}}{pair.predicted['compulsory_bytes'] / 1e6:>11.2f}"
        for level in LEVELS:
            predicted, measured = pair.figures(level)
            line += f"{predicted / 1e6:>11.2f}{measured / 1e6:>10.2f}{times(pair.ratio(level)):>6}"
        lines.append(line)
    return lines


def sentence_for(pair: Pair, quantity: str, facts: Facts) -> str | None:
    """Return why a figure is off, if anybody knows: by the counters themselves, or by the day's day.json."""
    predicted, measured = pair.figures(quantity)
    conflicts = [pair.counted.values.get(CONFLICTS.format(op), 0) for op in ("ld", "st")]
    needed = measured - sum(conflicts)
    if quantity == "wavefronts" and needed and abs(predicted / needed - 1) <= 0.01:
        return (
            f"The counter has {sum(conflicts):,.0f} wavefronts more than the addresses call for, and counts them as "
            "bank conflicts: loads that return and stores take turns at the banks. "
            f"Without them x is {predicted / needed:.3f}."
        )
    symbol = split_name(pair.predicted["kernel"])[0]
    reasons = [off["why"] for off in facts.off if off["quantity"] == quantity and re.fullmatch(off["kernels"], symbol)]
    return reasons[0] if reasons else None


def to_text(trace: Path, export: Path, facts: Facts) -> str:
    """Return the tables and sentences of a day. Raises Stop, also where a figure is off and has no sentence."""
    launches = read_trace(trace)
    pairs, notes = join(launches, read_counters(export))
    width = max(len(pair.label) for pair in pairs) + 1
    sampled = sum(pair.predicted["traced"] < pair.predicted["blocks"] for pair in pairs)
    most = max(pair.predicted["traced"] for pair in pairs)
    lines = [
        f"Predicted from the source for card '{launches[0]['card']}', without a GPU, and measured by its counters; "
        "x is predicted / measured.",
        f"{len(pairs) - sampled} kernels traced whole, {sampled} by at most {most} of their blocks.",
        "",
        "What the warps ask: requests, sectors per request, wavefronts of shared memory",
        *ask_table(pairs, width),
        "",
        "What the levels move, MB",
        *level_table(pairs, width),
    ]
    said: dict[tuple[str, str], list[str]] = {}  # kernels, by quantity and sentence
    unexplained = []
    for pair in pairs:
        for quantity in QUANTITIES:
            ratio = pair.ratio(quantity)
            if ratio is None or abs(ratio - 1) <= OFF:
                continue
            sentence = sentence_for(pair, quantity, facts)
            if sentence is None:
                unexplained.append(f"{pair.label}: {quantity} is off, x is {ratio:.3f}")
            else:
                said.setdefault((quantity, sentence), []).append(f"{pair.label} ({ratio:.2f})")
    if unexplained:
        raise Stop("\n".join([*unexplained, f"say why under 'off' of {facts.folder}/day.json"]))
    sentences = [f"{quantity} of {', '.join(kernels)}: {sentence}" for (quantity, sentence), kernels in said.items()]
    for sentence in [*sentences, *notes]:
        lines += ["", *textwrap.wrap(sentence, 110, break_long_words=False)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--day", type=int, required=True, metavar="N", help="whose launches they are: 44 or 49, say")
    parser.add_argument("--trace", type=Path, required=True, metavar="TRACE.jsonl")
    parser.add_argument("--ncu", type=Path, required=True, metavar="COUNTERS.csv")
    options = parser.parse_args(arguments)
    try:
        print(to_text(options.trace, options.ncu, facts_of(ROOT, options.day)), end="")
        flush_stdout()
    except (Stop, BadFacts) as stop:
        print(stop, file=sys.stderr)
        return EXIT_WRONG
    except OSError as error:
        say_failed(error)
        return EXIT_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
