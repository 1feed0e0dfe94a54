#!/usr/bin/env python3
"""Write what opens a day in Compiler Explorer, whose CUDA compilers run programs on Tesla T4 machines.

  godbolt.py DAY          the body of a request to its link shortener, to stdout or --out:
                            python3 scripts/godbolt.py day49 --out body.json
                            curl -H 'Content-Type: application/json' -d @body.json https://godbolt.org/api/shortener
                          The answer holds the short link. Nothing is sent by this script.
  godbolt.py DAY --url    a link that carries the whole source in itself, for sources that are small enough
  godbolt.py --check      fails if a README's /clientstate/ link carries another source than the day's file, or if a
                          day's source has grown to 160 KiB

DAY is a day's folder, program or number. The body has one editor with the source, one compiler with the options of the
day's own build line, and one pane that runs the program. The site's API documentation (docs/API.md of its repository)
gives the form: `POST /api/shortener`, `GET /clientstate/<base64>`. A short link (/z/...) says nothing about what it
opens, so --check cannot look into one.

Exit code: 0 done; 1 a link or a source is wrong, or a link would be too long; 2 bad usage.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import re
import sys
import urllib.parse
import zlib
from pathlib import Path

from resources import ROOT, Problem, build_line, find_days
from sync_common import BadSource, flush_stdout, say_failed, write_whole
from sync_common import read_source as read_text

SITE = "https://godbolt.org"
# The site's id of nvcc 13.0.2, the release that profile/t4/resources.txt is recorded with. The ids are in the list
# `group.nvcc.compilers` of etc/config/cuda.amazon.properties in the site's repository; `GET /api/compilers/cuda` lists
# those of today.
COMPILER = "nvcc130u2"
MAX_URL = 8000  # characters; the servers in front of the site refuse request lines above 8 KiB
MAX_SOURCE = 160 * 1024  # bytes; a limit of ours: the site takes far more

# The form of the site's state, as far as this script writes it or meets it in a README: the type of every field, and
# which must be there. The site ignores what it does not know, so a misspelt field would be lost without a word.
COMPILER_FORM = {
    "id": (str, True),
    "options": (str, True),
    "libs": (list, False),
    "filters": (dict, False),
    "tools": (list, False),
    "specialoutputs": (list, False),
}
EXECUTOR_FORM = {
    "compiler": (dict, True),
    "arguments": ((str, list), False),
    "stdin": (str, False),
    "compilerVisible": (bool, False),
    "compilerOutputVisible": (bool, False),
    "argumentsVisible": (bool, False),
    "stdinVisible": (bool, False),
    "wrap": (bool, False),
}
SESSION_FORM = {
    "id": (int, True),
    "language": (str, True),
    "source": (str, True),
    "compilers": (list, True),
    "executors": (list, False),
    "conformanceview": ((dict, bool), False),
    "filename": (str, False),
}
STATE_FORM = {"sessions": (list, True), "trees": (list, False)}


def validate(state: object) -> None:
    """Raise Problem if `state` is not a state of the site: an unknown, missing or wrongly typed field is named."""

    def fits(value: object, form: dict, where: str) -> None:
        if not isinstance(value, dict):
            raise Problem(f"{where} is no JSON object")
        for name in value:
            if name not in form:
                raise Problem(f"{where} has a field '{name}', which the site does not know; it knows {', '.join(form)}")
        for name, (kind, needed) in form.items():
            if name not in value:
                if needed:
                    raise Problem(f"{where} lacks the field '{name}'")
            elif not isinstance(value[name], kind) or (isinstance(value[name], bool) and kind is int):
                raise Problem(f"{where}: '{name}' is of the wrong type: {value[name]!r:.60}")

    fits(state, STATE_FORM, "the state")
    if not state["sessions"]:
        raise Problem("the state has no session, so no editor would open")
    for number, session in enumerate(state["sessions"], start=1):
        where = f"session {number}"
        fits(session, SESSION_FORM, where)
        for compiler in session["compilers"]:
            fits(compiler, COMPILER_FORM, f"{where}, compiler")
        for executor in session.get("executors", []):
            fits(executor, EXECUTOR_FORM, f"{where}, executor")
            fits(executor["compiler"], COMPILER_FORM, f"{where}, executor, compiler")


def read_source(path: Path) -> str:
    """Return a source as the site gets it. Raises Problem if it has 160 KiB or more, or is not plain UTF-8."""
    data = path.read_bytes()
    if len(data) >= MAX_SOURCE:
        raise Problem(
            f"{path} has {len(data)} bytes; a day stays below {MAX_SOURCE}, so that it can be pasted anywhere"
        )
    try:
        return read_text(path)
    except BadSource as bad:
        raise Problem(str(bad)) from None


def state_of(path: Path, compiler: str = COMPILER, arguments: str = "") -> dict:
    """Return the site's state for a day: editor, compiler with the day's own flags for a T4, and a run of it."""
    flags, libraries = build_line(path)
    # -lineinfo is for profilers; here it would only swell the assembly.
    options = " ".join([*(flag for flag in flags if flag != "-lineinfo"), "-arch=sm_75", *libraries])
    chosen = {"id": compiler, "options": options, "libs": []}
    state = {
        "sessions": [
            {
                "id": 1,
                "language": "cuda",
                "source": read_source(path),
                "compilers": [chosen],
                "executors": [{"compiler": chosen, "arguments": arguments, "stdin": ""}],
            }
        ]
    }
    validate(state)
    return state


def url_of(state: dict) -> str:
    """Return the /clientstate/ link of a state. Raises Problem, with the way out, above MAX_URL characters."""
    data = json.dumps(state, separators=(",", ":")).encode("utf-8")
    # Escaped, because base64 has '/', '+' and '='.
    url = f"{SITE}/clientstate/{urllib.parse.quote(base64.b64encode(data).decode('ascii'), safe='')}"
    if len(url) > MAX_URL:
        raise Problem(
            f"the link would have {len(url)} characters, and above {MAX_URL} the site's servers refuse it. Use the "
            f"shortener: without --url this script writes the body for POST {SITE}/api/shortener"
        )
    return url


def state_in(link: str) -> dict:
    """Return the state that a link carries behind /clientstate/: base64 of JSON, which may be deflated.

    Raises Problem if it carries none.
    """
    text = urllib.parse.unquote(link).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        if data[:1] != b"{":
            data = zlib.decompress(data)
        state = json.loads(data.decode("utf-8"))
    except (binascii.Error, zlib.error, ValueError) as error:
        raise Problem(f"carries no state that can be read ({error})") from error
    validate(state)
    return state


LINK = re.compile(r"https?://(?:[\w-]+\.)*godbolt\.org/clientstate/([\w%+/=-]*)")


def check_day(root: Path, day: Path) -> list[str]:
    """Return what is wrong with a day: its size, and the links in its README (file, line, the link's beginning)."""
    problems = []
    source = None
    try:
        source = read_source(root / day)
    except Problem as problem:
        problems.append(str(problem))
    readme = root / day.parent / "README.md"
    if source is None or not readme.is_file():
        return problems
    again = f"python3 scripts/godbolt.py {day.parent.name} --url"
    for number, line in enumerate(readme.read_text(encoding="utf-8").splitlines(), start=1):
        for found in LINK.finditer(line):
            where = f"{day.parent / 'README.md'}:{number}: {found[0]:.60}..."
            try:
                carried = [session["source"] for session in state_in(found[1])["sessions"]]
            except Problem as problem:
                problems.append(f"{where} {problem}; make it again: {again}")
                continue
            if carried != [source]:
                problems.append(f"{where} carries another source than {day}; make it again: {again}")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("day", nargs="?", metavar="DAY", help="with --check: this day alone (default: all)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--url", action="store_true", help="print the link that carries the source")
    what.add_argument("--check", action="store_true", help="check the READMEs' links and the sources' sizes")
    parser.add_argument("--out", type=Path, help="write to this file instead of stdout")
    parser.add_argument("--compiler", default=COMPILER, help=f"the site's compiler id (default: {COMPILER})")
    parser.add_argument("--arguments", default="", help="what the program is run with there, as --arguments=--check")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.day and not options.check:
        parser.error("which day? its folder, program or number")
    root = options.root.resolve()
    try:
        days = find_days(root, [options.day] if options.day else None)
        if options.check:
            problems = [problem for day in days for problem in check_day(root, day)]
            if problems:
                raise Problem("\n".join(problems))
            return 0
        if len(days) > 1:
            raise Problem(f"'{options.day}' fits {', '.join(map(str, days))}; name one of these", 2)
        state = state_of(root / days[0], options.compiler, options.arguments)
        text = (url_of(state) if options.url else json.dumps(state)) + "\n"
        if options.out:
            write_whole(options.out, text, [root / days[0]])
        else:
            sys.stdout.write(text)
            flush_stdout()
    except Problem as problem:
        print(f"scripts/godbolt.py: {problem}", file=sys.stderr)
        return problem.code
    except OSError as error:
        say_failed(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
