#!/usr/bin/env python3
"""Copy the shared blocks of common/lesson.cuh into the days that use them.

A day is one standalone file, so it cannot include what the days share. That is written once, in common/lesson.cuh, in
blocks between the lines `// common: NAME` and `// end common: NAME`. A day's .cu with the same two lines gets the
block's text between them, verbatim.

Without an argument, every day*/*.cu is brought up to date. With --check nothing is written, and a copy that differs is
reported with its file, block and line.

Exit code: 0 all copies are (now) up to date; 1 a copy differs (--check), or markers are wrong; 2 bad usage.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MASTER = Path("common/lesson.cuh")
DAYS = "day*/*.cu"
MARKER = re.compile(r"// (?P<end>end )?common: (?P<name>\S+)\r?")
# A line that someone meant as a marker: if it is none, its block would silently go stale.
ALMOST_MARKER = re.compile(r"\s*//\s*(end\s+)?common\s*:", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    """One marked block: `first` and `last` are the indices of its first line and of its end marker."""

    name: str
    first: int
    last: int


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, nothing lost: carriage returns stay, the last item follows the last newline."""
    return path.read_bytes().decode("utf-8").split("\n")


def find_blocks(lines: list[str], shown_path: Path) -> tuple[list[Block], list[str]]:
    """Return the blocks of a file in order, and what is wrong with its markers."""
    blocks: list[Block] = []
    problems: list[str] = []
    opened: tuple[str, int] | None = None  # name and line number of the marker that is open

    for number, line in enumerate(lines, start=1):
        where = f"{shown_path}:{number}"
        marker = MARKER.fullmatch(line)
        if not marker:
            if ALMOST_MARKER.match(line):
                problems.append(
                    f"{where}: {line.strip()!r} is not a marker; write '// common: NAME' or '// end common: NAME' "
                    "alone on the line, from its first column"
                )
            continue
        name = marker["name"]
        if not marker["end"]:
            if opened:
                problems.append(f"{where}: block '{name}' opens inside '{opened[0]}' (line {opened[1]})")
            elif name in (block.name for block in blocks):
                problems.append(f"{where}: block '{name}' is there already; keep one")
            opened = (name, number)
        elif not opened:
            problems.append(f"{where}: end of block '{name}', which is not open")
        else:
            if name != opened[0]:
                problems.append(f"{where}: end of block '{name}', but open is '{opened[0]}' (line {opened[1]})")
            blocks.append(Block(opened[0], opened[1], number - 1))
            opened = None
    if opened:
        problems.append(f"{shown_path}:{opened[1]}: block '{opened[0]}' has no '// end common: {opened[0]}'")
    return blocks, problems


def check_against_master(blocks: list[Block], master: dict[str, list[str]], shown_path: Path) -> list[str]:
    """Return what is wrong with a day's choice of blocks: unknown names, another order than the master's."""
    problems = []
    order = list(master)
    previous: Block | None = None
    for block in blocks:
        where = f"{shown_path}:{block.first}"
        if block.name not in master:
            problems.append(f"{where}: {MASTER} has no block '{block.name}'; it has {', '.join(order) or 'none'}")
            continue
        if previous and order.index(block.name) < order.index(previous.name):
            problems.append(f"{where}: block '{block.name}' comes after '{previous.name}', in {MASTER} before it")
        previous = block
    return problems


def with_copies(lines: list[str], blocks: list[Block], master: dict[str, list[str]]) -> list[str]:
    """Return a day's lines with the text of every block taken from the master."""
    result: list[str] = []
    done = 0
    for block in blocks:
        result += lines[done : block.first] + master[block.name]
        done = block.last
    return result + lines[done:]


def describe_drift(lines: list[str], blocks: list[Block], master: dict[str, list[str]], shown_path: Path) -> list[str]:
    """Return, for each block that differs, its file, first differing line and name, followed by the difference."""
    reports = []
    for block in blocks:
        copy, original = lines[block.first : block.last], master[block.name]
        if copy == original:
            continue
        same = len(os.path.commonprefix([copy, original]))
        diff = difflib.unified_diff(copy, original, str(shown_path), f"{MASTER}, block '{block.name}'", lineterm="")
        report = [f"{shown_path}:{block.first + same + 1}: block '{block.name}' differs from {MASTER}", *diff]
        reports.append("\n".join(report))
    return reports


def write_whole(path: Path, text: str) -> None:
    """Write or replace a file in one step, so that no reader and no interruption meets half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8"))
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a copy differs")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="folder that holds common/ and the days (default: the repository)",
    )
    options = parser.parse_args(arguments)

    if not (options.root / MASTER).is_file():
        print(f"{options.root / MASTER} does not exist; --root names the folder that holds it", file=sys.stderr)
        return 1
    master_lines = read_lines(options.root / MASTER)
    master_blocks, problems = find_blocks(master_lines, MASTER)
    master = {block.name: master_lines[block.first : block.last] for block in master_blocks}

    days = []
    for path in sorted(options.root.glob(DAYS)):
        shown_path = path.relative_to(options.root)
        lines = read_lines(path)
        blocks, wrong = find_blocks(lines, shown_path)
        problems += wrong or check_against_master(blocks, master, shown_path)
        days.append((path, shown_path, lines, blocks))
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1

    drifted = False
    for path, shown_path, lines, blocks in days:
        if options.check:
            for report in describe_drift(lines, blocks, master, shown_path):
                print(report, file=sys.stderr)
                drifted = True
        else:
            wanted = with_copies(lines, blocks, master)
            if wanted != lines:
                write_whole(path, "\n".join(wanted))
                print(f"{shown_path}: brought up to date with {MASTER}")
    if drifted:
        print("scripts/sync_common.py without --check brings them up to date.", file=sys.stderr)
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
