#!/usr/bin/env python3
"""Copy the shared blocks of common/lesson.cuh into the days that use them.

A day is one standalone file, so it cannot include what the days share. That is written once, in common/lesson.cuh, in
blocks between the lines `// common: NAME` and `// end common: NAME`. A day's .cu with the same two lines gets the
block's text between them, verbatim.

Without an argument, every day*/*.cu is brought up to date. With --check nothing is written, and a copy that differs is
reported with its file, block and line.

Exit code: 0 all copies are (now) up to date; 1 a copy differs (--check), or markers or a file's encoding are wrong;
2 bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MASTER = Path("common/lesson.cuh")
DAYS = "day*/*.cu"
MARKER = re.compile(r"// (?P<end>end )?common: (?P<name>\S+)")
# A line that someone meant as a marker: if it is none, its block would silently go stale.
ALMOST_MARKER = re.compile(r"\s*//\s*(end\s+)?common\s*:", re.IGNORECASE)


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let an OSError from within name `path`: one from a full disk, or from a temporary file beside it, does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def flush_stdout() -> None:
    """Let stdout take what was printed. Raises OSError: it cannot, or is closed, which print() does not mind."""
    if not sys.stdout:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout.flush()


def say_failed(error: OSError) -> None:
    """Say on stderr which file, or stdout, an OSError is of. For the end of a program, which has flushed stdout.

    What stdout has not taken is thrown away: Python would try once more on its way out, and end with 120.
    """
    print(f"{error.filename or 'stdout'}: {error.strerror or error}", file=sys.stderr)
    if not error.filename and sys.stdout:
        with contextlib.suppress(OSError):
            sys.stdout.close()


@dataclass(frozen=True)
class Block:
    """One marked block: `first` and `last` are the indices of its first line and of its end marker."""

    name: str
    first: int
    last: int


class BadSource(Exception):
    """A source that is not UTF-8 text with plain line ends; the text says where, what is wrong, and the way out."""


def read_source(path: Path) -> str:
    """Return the text of a source. Raises BadSource: not UTF-8, a byte order mark, carriage returns; and OSError.

    A file that an editor or a paste turned into another form is refused and not mended on the way: what is compiled,
    checked and sent elsewhere has to be the same bytes.
    """
    data = path.read_bytes()
    marks = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
    found = next((name for mark, name in marks.items() if data.startswith(mark)), None)
    if found:
        raise BadSource(f"{path}:1: starts with a byte order mark ({found}): save it as UTF-8 without BOM")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadSource(
            f"{path}:{line}: is not UTF-8 (byte {data[error.start]:#04x}), maybe Latin-1: save it as UTF-8, or "
            "iconv -f LATIN1 -t UTF-8 FILE >NEW"
        ) from None
    if "\r" in text:
        line = text.count("\n", 0, text.index("\r")) + 1
        raise BadSource(
            f"{path}:{line}: has a carriage return, the line end of Windows, and the days have plain newlines: save it "
            "with line ends LF, or tr -d '\\r' <FILE >NEW"
        )
    return text


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


def same_start(first: list[str], second: list[str]) -> int:
    """Return how many items two lists have in common from their start."""
    return next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))


def describe_drift(lines: list[str], blocks: list[Block], master: dict[str, list[str]], shown_path: Path) -> list[str]:
    """Return, for each block that differs, its file, first differing line and name, followed by the difference."""
    reports = []
    for block in blocks:
        copy, original = lines[block.first : block.last], master[block.name]
        if copy == original:
            continue
        same = same_start(copy, original)
        diff = difflib.unified_diff(copy, original, str(shown_path), f"{MASTER}, block '{block.name}'", lineterm="")
        report = [f"{shown_path}:{block.first + same + 1}: block '{block.name}' differs from {MASTER}", *diff]
        reports.append("\n".join(report))
    return reports


KINDS = {stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a fifo"}


@contextlib.contextmanager
def replacing(path: Path, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """Give an empty file to fill, and put it in the place of `path` at the end, or throw it away where that fails.

    So no reader and no interruption meets half of it. A link stays, and what it leads to is written; a file that is
    there keeps its mode. Raises OSError that names `path`: it is no regular file, or one of the `inputs`; the disk is
    full, the folder takes no file.
    """

    def refuse(what: str) -> OSError:
        return OSError(errno.EINVAL, what, str(path))

    target = Path(os.path.realpath(path))
    if target.is_symlink():  # what it leads to leads back
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    with naming(path):
        there = target.stat() if target.exists() else None
    if there and not stat.S_ISREG(there.st_mode):
        kind = KINDS.get(stat.S_IFMT(there.st_mode), "of another kind")
        raise refuse(f"is {kind} and not a regular file: name one, or one to be made")
    if there and any(os.path.samestat(there, other.stat()) for other in inputs if other.exists()):
        raise refuse("is read here, and would be overwritten: name another file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with naming(path):
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # less the umask, as any new file
        try:
            if there:
                os.chmod(temporary, stat.S_IMODE(there.st_mode))
            yield temporary
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: str | bytes, inputs: Iterable[Path] = ()) -> None:
    """Write or replace a file in one step, text as UTF-8. Raises OSError as `replacing` does."""
    with replacing(path, inputs) as temporary, open(temporary, "wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


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
    try:
        master_lines = read_source(options.root / MASTER).split("\n")
    except BadSource as bad:
        print(bad, file=sys.stderr)
        return 1
    master_blocks, problems = find_blocks(master_lines, MASTER)
    master = {block.name: master_lines[block.first : block.last] for block in master_blocks}

    days = []
    for path in sorted(options.root.glob(DAYS)):
        shown_path = path.relative_to(options.root)
        try:
            lines = read_source(path).split("\n")
        except BadSource as bad:
            problems.append(str(bad))
            continue
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
