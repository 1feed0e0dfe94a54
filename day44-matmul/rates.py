#!/usr/bin/env python3
"""Put the rates that day 44's sgemm() chooses by into matmul_registers.cu, as a recorded run has them.

A kernel's rate is what it does of the FMA ceiling where all SMs have work: `fma_percent` over `wave_percent` of its
rows in the run, the best of those shapes where nearly as many SMs have work as at any of them. It is the last number of
the kernel's row in makeRows().

    day44-matmul/rates.py            # from profile/h200/day44.jsonl
    day44-matmul/rates.py --check    # writes nothing: exit code 1 where a rate is off by more than --tolerance

Two runs of a card differ by a percent or two, and a rate that changes makes a recorded run stale; so a rate that is off
by no more than --tolerance is left as it is.

Exit code: 0 all is well or written; 1 a rate is off, or the run or the source is not what this expects; 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "matmul_registers.cu"
RUN = HERE.parent / "profile" / "h200" / "day44.jsonl"
NEARLY = 0.95  # of the largest share of SMs with work: at such shapes the rate counts
ROW = re.compile(r"(KERNEL\((\w+)\),[^\n]*?(?:\n[^\n]*?)?)(\d\.\d+)(\)?\}?,\n)")


def rates_of(run: Path) -> dict[str, float]:
    """Return each kernel's rate, a share of the FMA ceiling, from a run. Raises ValueError for one that has none."""
    shares: dict[str, list[tuple[float, float]]] = {}
    for number, line in enumerate(run.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{run}, line {number}: not JSON: {error}") from None
        if row.get("record") == "gemm" and row["symbol"].startswith("matmul") and "wave_percent" in row:
            shares.setdefault(row["symbol"], []).append((row["wave_percent"], row["fma_percent"]))
    if not shares:
        raise ValueError(f"{run}: no gemm lines with wave_percent: record day 44 again")
    rates = {}
    for symbol, pairs in shares.items():
        most = max(wave for wave, _ in pairs)
        rates[symbol] = max(fma / wave for wave, fma in pairs if wave >= NEARLY * most)
    return rates


def written(text: str) -> dict[str, float]:
    """Return the rates that the source has, by kernel."""
    table = text[text.index("vector<Row> makeRows()") :]
    table = table[: table.index("\n}\n")]
    return {match[2]: float(match[3]) for match in ROW.finditer(table)}


def with_rates(text: str, rates: dict[str, float], tolerance: float) -> tuple[str, list[str]]:
    """Return the source with every rate that is off put right, and a sentence for each of them."""
    changed = []

    def put(match: re.Match) -> str:
        symbol, old = match[2], float(match[3])
        if symbol not in rates:
            raise ValueError(f"the run has no row of {symbol}, whose rate the source has")
        if abs(rates[symbol] - old) <= tolerance:
            return match[0]
        changed.append(f"{symbol}: {old:g} in the source, {rates[symbol]:.3f} in the run")
        return f"{match[1]}{rates[symbol]:.3f}{match[4]}"

    start = text.index("vector<Row> makeRows()")
    end = text.index("\n}\n", start)
    return text[:start] + ROW.sub(put, text[start:end]) + text[end:], changed


def main() -> int:
    """Read the arguments, and check or write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=RUN, help="a run's JSON lines (default: profile/h200/day44.jsonl)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the program (default: the one beside this script)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="what a rate may be off (default: 0.02)")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    try:
        text = arguments.source.read_text(encoding="utf-8")
        new, changed = with_rates(text, rates_of(arguments.run), arguments.tolerance)
    except (OSError, ValueError) as error:
        print(f"rates.py: {error}", file=sys.stderr)
        return 1
    for sentence in changed:
        print(sentence)
    if changed and not arguments.check:
        whole = arguments.source.with_suffix(".new")
        whole.write_text(new, encoding="utf-8")
        os.replace(whole, arguments.source)
    return 1 if changed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
