#!/usr/bin/env python3
"""Record what the days measure on a GPU, prove that the records are whole, and set another run beside them.

  record   on a machine with a GPU: build the days for it, run them, write profile/<gpu>/ (each day whole or not at all)
  record-fleet  on one with several: run a day on each GPU alone and on all at once, write profile/<gpu>-x<number>/
  verify   fail if a recorded file was edited, is missing, too much or stale, or if a README shows anything else
  charts   write what follows from the recorded lines: the merged counters, the charts and their tables
  readme   write the recorded tables and the source snippets into the READMEs; --check only compares
  history  keep a folder as it is though the code moves on: of a card that is not at hand to be recorded again
  compare  run the days here (or take --from RUN.jsonl) and set each figure beside the recorded one

profile/<gpu>/manifest.json says where every file of its folder comes from: `days` holds for each recorded day the GPU,
driver, toolkit, date, revision and commands; `files` holds for each file its SHA-256, its number of bytes, four hex
digits per line (to name an edited line), the day's source and the digest of its *measured code*. A day's `timing` is
the digest of the timing code that it was measured with. scripts/source_code.py says what is in the two: what can change
a figure. Nobody needs a GPU to mend a message, a comment, a help text or the report.

The manifest of several GPUs has `cards`, their UUIDs; its lines are the files of scripts/fleet.py.

Its `state` is "current" or "history". A current folder is held to the code of today: where that has changed, verify
fails until it is recorded again. A history folder is held to itself alone: whole, unedited, its lines as the schema has
them. Where the code has changed since, verify says so and passes, and so do compare and the pages that show it.

What follows from the recorded lines has no entry in a current manifest: verify makes it again and compares every byte.
In a history folder it is listed with the rest, because the scripts move on with the code.

A README block stands between two marker lines, each alone on its line:
  <!-- begin recorded: profile/h200/day49.txt -->                <!-- end recorded -->
  <!-- begin snippet: day49-roofline/roofline.cu NAME -->        <!-- end snippet -->
A snippet is what stands between `// snippet: NAME` and `// end snippet: NAME` in the source.

Exit code: 0 fine; 1 something is wrong, one line each: path[:line]: problem: way out; 2 bad usage;
77 cannot run here (no GPU, no nvcc, or too little GPU memory).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import bench_ingest
import bounds
import counters
import fleet
import plot_roofline
import predict
import rooflines
import row_schema
import timeline
from day_facts import BadFacts, Facts, facts_of, find_facts, read_facts
from resources import find_nvcc, plain_locale
from source_code import measured_code, timing_code
from sync_common import MASTER, flush_stdout, same_start, say_failed, write_whole

EXIT_WRONG = 1
EXIT_USAGE = 2
EXIT_SKIPPED = 77  # the code that CTest and Automake read as a skip

MANIFEST_SCHEMA = 2
SCHEMA_FILE = "scripts/schema/row.schema.json"
A_SOURCE = re.compile(r"day[0-9]{2}-[\w-]+/[\w-]+\.cu")
READMES = ("README.md", "day[0-9][0-9]-*/README.md", "profile/README.md")
NOT_YET = "not yet recorded"
RUN_LIMIT_S = 1200  # a day takes seconds, under the profiler a minute or two: longer is a hang

# What two runs of one model may differ by beyond their own spread, which is 1 % for most rows of day 49. Its medians
# differed by up to 2.4 % between two runs on one H200 and by 1.3 % between two cards; others run hotter or slower.
MARGIN = 0.05

# The files that scripts/resources.py writes and checks: what the compiler says about a T4, without one.
COMPILE_TIME = ("t4", "resources.")

# What joins a day's lines with its counters, in the day's own folder; and all names of what may follow from the lines.
MERGER = "merge_dram.py"
FLEET_TABLE = "-fleet.txt"
DERIVED = re.compile(
    "|".join(["day[0-9]{2}-(merged[.]jsonl|(fleet|predicted)[.]txt)", *map(re.escape, plot_roofline.NAMES)])
)
# What a CPU build predicts of a day's kernels on this card. It needs no GPU, so that a test makes it again.
PREDICTION = re.compile("day([0-9]{2})-predicted[.]jsonl")

TIMELINE = "-timeline.json"

AGAIN = "record again on the GPU: scripts/evidence.py record"
AGAIN_FLEET = "record again on the GPUs: scripts/evidence.py record-fleet"
DRAW = "scripts/evidence.py charts writes it"
RESTORE = "restore the file, or " + AGAIN


class Stop(Exception):
    """Ends a command: the message goes to stderr, the code is the exit code."""

    def __init__(self, message: str, code: int = EXIT_WRONG):
        super().__init__(message)
        self.code = code


# ---- days and their build line ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Day:
    """One lesson: its day.json, and the words of its header's build line."""

    facts: Facts
    build_line: tuple[str, ...]  # nvcc ... -arch=sm_75 ... -o NAME NAME.cu

    @property
    def number(self) -> int:
        """Its number."""
        return self.facts.number

    @property
    def source(self) -> str:
        """Its source, relative to the repository."""
        return self.facts.source

    @property
    def program(self) -> str:
        """What is built of it."""
        return self.facts.program

    @property
    def flags(self) -> list[str]:
        """What shapes the code: the build line without nvcc, architecture, output and source."""
        names = ("-o", self.program, Path(self.source).name)
        return [word for word in self.build_line[1:] if word not in names and not word.startswith("-arch=")]


def file_of(day: int, ending: str) -> str:
    """Name a recorded file of a day: file_of(49, ".jsonl") gives day49.jsonl."""
    return f"day{day:02d}{ending}"


def read_day(root: Path, facts: Facts) -> Day:
    """Return the day of these facts. Raises Stop if its header has no build line that can be followed."""
    text = (root / facts.source).read_bytes().decode("utf-8", "replace")
    line = re.search(r"^//\s*build:\s*(nvcc .*)$", text, re.MULTILINE)
    words = tuple(line[1].split()) if line else ()
    name = f"{facts.program}.cu"
    expected = f"// build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o {facts.program} {name}"
    output = words[words.index("-o") + 1] if "-o" in words[:-1] else ""
    if output != facts.program or name not in words or not any(word.startswith("-arch=sm_") for word in words):
        raise Stop(f"{facts.source}: no build line in its header that can be followed: write '{expected}'")
    return Day(facts, words)


def find_days(root: Path, numbers: list[int] | None = None) -> list[Day]:
    """Return the days in order of number, all or those named. Raises Stop for a number that has no day, or two."""
    found: dict[int, Day] = {}
    try:
        for facts in find_facts(root):
            if facts.number in found:
                raise Stop(f"{facts.source}: day {facts.number} is {found[facts.number].source} too: keep one")
            found[facts.number] = read_day(root, facts)
    except BadFacts as bad:
        raise Stop(str(bad)) from None
    for number in numbers or []:
        if number not in found:
            raise Stop(f"day {number}: no such day: there is {', '.join(map(str, found)) or 'none'}", EXIT_USAGE)
    if not found:
        raise Stop("no day found: no folder dayNN-name has a day.json; --root names the folder that holds the days")
    return [found[number] for number in sorted(numbers or found)]


# ---- JSON lines ------------------------------------------------------------------------------------------------------


def strict_json(text: str) -> Any:
    """Parse JSON, and refuse what Python would let pass: NaN, infinities, a key given twice. Raises ValueError."""

    def number(digits: str) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{digits[:20]} is not a finite number")
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"the key '{twice[0]}' is there twice")
        return dict(pairs)

    return json.loads(text, parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=members)


Records = list[tuple[int, dict]]  # line number and object of each line of a run
Refusal = Callable[[dict], "str | None"]  # says what is wrong with the object of a line, or None


def refuse_minimally(record: dict) -> str | None:
    """Say what is wrong with a line's figures, or return None: what no schema can say, or where there is no schema."""
    if "value" in record and type(record["value"]) not in (int, float):
        return f"value is {record['value']!r}, no number"
    times = [record.get(key) for key in ("ms_min", "ms", "ms_max")]
    if "ms" in record and not (all(type(ms) in (int, float) for ms in times) and 0 < times[0] <= times[1] <= times[2]):
        return f"ms_min, ms, ms_max are {times}: they must be positive and in this order"
    size = [record.get(key) for key in ("m", "n", "k", "flop")]
    if all(type(count) is int for count in size) and size[3] != 2 * math.prod(size[:3]):
        return f"flop is {size[3]}, and must be 2 m n k, {2 * math.prod(size[:3])}"
    return None


def no_schema(error: Exception) -> Stop:
    """Return what to raise where the schema cannot be used."""
    return Stop(f"{SCHEMA_FILE}: {str(error).splitlines()[0]}: restore it, no JSON line can be checked without")


def read_schema(root: Path) -> tuple[dict, dict[str, dict]]:
    """Return the schema, and the reference to each type of record in it by name. Raises Stop."""
    try:
        schema = strict_json((root / SCHEMA_FILE).read_text(encoding="utf-8"))
        return schema, {kind["$ref"].rsplit("/", 1)[-1]: kind for kind in schema["oneOf"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise no_schema(error) from None


def read_reports(root: Path) -> dict[str, dict]:
    """Return what the schema says of each type of record whose values are compared between runs: its x-report."""
    schema, kinds = read_schema(root)
    try:
        return {name: schema["$defs"][name]["x-report"] for name in kinds if "x-report" in schema["$defs"][name]}
    except (KeyError, TypeError) as error:
        raise no_schema(error) from None


def schema_refusal(root: Path) -> Refusal | None:
    """Return the check against the schema, or None where jsonschema cannot be imported."""
    try:
        import jsonschema
    except ImportError:
        return None
    schema, kinds = read_schema(root)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise no_schema(error) from None
    # One validator for each type of record, because what is wrong with a row should not be told of all other types.
    validators = {name: jsonschema.Draft202012Validator({**schema, "oneOf": [kind]}) for name, kind in kinds.items()}

    def refuse(record: dict) -> str | None:
        if record["record"] not in validators:
            return f"the schema knows no such record, only {', '.join(validators)}"
        error = jsonschema.exceptions.best_match(validators[record["record"]].iter_errors(record))
        return None if error is None else f"the schema refuses {error.json_path}: {error.message[:200]}"

    return refuse


def name_of(record: dict) -> str:
    """Name a line for a message: its kind and variant."""
    return " ".join(str(record[key]) for key in ("record", "variant") if key in record)


def case_of(record: dict, reports: dict[str, dict]) -> list[str]:
    """Return the keys that tell a row of this type from another in one run; of an unknown type, day and variant."""
    return reports.get(record["record"], {}).get("case", ["day", "variant"])


def identity(record: dict, reports: dict[str, dict]) -> tuple[str, ...]:
    """Return what makes two lines of two runs the same row: the type of record and its case."""
    return (record["record"], *(str(record.get(key)) for key in case_of(record, reports)))


def row_name(record: dict, reports: dict[str, dict]) -> str:
    """Name a row for people, all of its case but the day: "gemm 3 shared tile 512x512x512, launch loop"."""
    more = [record[key] for key in case_of(record, reports) if key not in ("day", "variant") and key in record]
    sizes = "x".join(str(value) for value in more if not isinstance(value, str))
    texts = [value for value in more if isinstance(value, str)]
    return ", ".join([f"{record['record']} {record.get('variant')} {sizes}".rstrip(), *texts])


def read_run(data: bytes, shown: str, refuse: Refusal) -> Records:
    """Return the lines of one run, the run record first, with the names of the newest schema.

    Raises Stop that names every line that is not right.
    """
    records: Records = []
    problems = []
    version = None
    lines = data.split(b"\n")
    if lines.pop():
        problems.append(f"{shown}:{len(lines) + 1}: the last line has no end: the file is cut off")
    elif not lines:
        problems.append(f"{shown}:1: the file is empty")
    for number, line in enumerate(lines, start=1):
        where = f"{shown}:{number}"
        try:
            record = strict_json(line.decode("utf-8"))
            if not isinstance(record, dict) or not isinstance(record.get("record"), str):
                raise ValueError('no object with a text "record"')
        except (ValueError, RecursionError) as error:
            what = "not text (UTF-8)" if isinstance(error, UnicodeDecodeError) else f"not a JSON line: {error}"
            problems.append(f"{where}: {what}")
            continue
        if (record["record"] == "run") != (number == 1):
            problems.append(f"{where}: a run record must stand first and only there: one run of one card in a file")
        elif number == 1:
            version = record.get("schema")
            if not row_schema.is_readable(version):
                problems.append(f"{where}: schema {version}, this script knows {row_schema.known_versions()}")
                break
        record = row_schema.up_to_date(record, version)
        records.append((number, record))
        refusal = refuse(record) or refuse_minimally(record)
        if refusal:
            problems.append(f"{where}: {name_of(record)}: {refusal}")
    if problems:
        raise Stop("\n".join(problems))
    return records


# ---- the manifest ----------------------------------------------------------------------------------------------------

CURRENT, HISTORY = STATES = ("current", "history")
MANIFEST_KEYS = {"schema": int, "device": str, "days": dict, "files": dict}
DAY_KEYS = {
    **dict.fromkeys(
        ("source", "timing", "flags", "revision", "utc", "uuid", "driver", "toolkit", "host_compiler"), str
    ),
    **{"profiler": str, "counters": str, "resources": str, "commands": list},
}
FLEET_DAY_KEYS = {key: DAY_KEYS[key] for key in DAY_KEYS if key not in ("uuid", "profiler", "counters", "resources")}
FILE_KEYS = {"sha256": str, "bytes": int, "lines": str, "source": str, "code": str}


def line_marks(data: bytes) -> str:
    """Return four hex digits for every line: enough to name the line that was edited, and no proof of anything."""
    return "".join(hashlib.sha256(line).hexdigest()[:4] for line in data.splitlines(keepends=True))


def describe_file(data: bytes, source: str, code: str) -> dict:
    """Return a file's entry in the manifest."""
    digest = hashlib.sha256(data).hexdigest()
    return {"sha256": digest, "bytes": len(data), "lines": line_marks(data), "source": source, "code": code}


def read_manifest(folder: Path, shown: str) -> dict:
    """Return the manifest of a GPU's folder, its structure checked. Raises Stop."""
    shown = f"{shown}/manifest.json"
    try:
        manifest = strict_json((folder / "manifest.json").read_bytes().decode("utf-8"))
        if manifest["schema"] != MANIFEST_SCHEMA:
            version = manifest["schema"]
            raise Stop(f"{shown}: schema {version}, this script knows {MANIFEST_SCHEMA}: take the matching one")
        checks = [("manifest", manifest, MANIFEST_KEYS)]
        day_keys = FLEET_DAY_KEYS if manifest.get("cards") else DAY_KEYS
        checks += [(f"day {int(day)}", entry, day_keys) for day, entry in manifest["days"].items()]
        checks += [(name, entry, FILE_KEYS) for name, entry in manifest["files"].items()]
        for name, entry, keys in checks:
            for key, kind in keys.items():
                if not isinstance(entry[key], kind):
                    raise ValueError(f"{name}: {key} is not a {kind.__name__}")
            if "source" in keys and not A_SOURCE.fullmatch(entry["source"]):
                raise ValueError(f"{name}: the source '{entry['source']}' is not one of a day")
            if "/" in name:
                raise ValueError(f"{name}: a file of this folder has no '/' in its name")
        if manifest.get("state") not in STATES:
            raise ValueError(f"state is {manifest.get('state')!r}, and must be one of {', '.join(STATES)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Stop(f"{shown}: not a manifest ({type(error).__name__}: {error}): {RESTORE}") from None
    return manifest


def made_from_lines(name: str) -> bool:
    """Tell whether a file follows from recorded lines, or is predicted for their card."""
    return bool(DERIVED.fullmatch(name) or PREDICTION.fullmatch(name))


def timing_of(root: Path) -> str:
    """Return the digest of the timing code that the days share. Raises Stop if it cannot be found."""
    try:
        return timing_code(root)
    except ValueError as error:
        raise Stop(str(error)) from None


def changes_since(manifest: dict, shown: str, root: Path) -> list[tuple[str, str]]:
    """Return (source, what) for each way in which the days' code is no longer what a folder was recorded of."""
    changes = []
    for entry in manifest["days"].values():
        source = entry["source"]
        if not (root / source).is_file():
            continue  # told below, with its files
        try:
            flags = " ".join(read_day(root, read_facts(root, source.partition("/")[0])).flags)
        except (Stop, BadFacts) as bad:
            changes.append((source, str(bad)))
            continue
        if flags != entry["flags"]:
            changes.append((source, f"{source}: built with '{flags}', {shown} with '{entry['flags']}': {AGAIN}"))
    files = manifest["files"]
    for source, code in sorted({(entry["source"], entry["code"]) for entry in files.values()}):
        names = ", ".join(name for name, entry in files.items() if (entry["source"], entry["code"]) == (source, code))
        if not (root / source).is_file():
            changes.append((source, f"{source}: missing, and {shown} holds what it measured ({names}): restore it"))
        elif measured_code(root / source) != code:
            changes.append((source, f"{source}: its code changed since {shown} was recorded ({names}): {AGAIN}"))
    timing = timing_of(root)
    days = [day for day, entry in manifest["days"].items() if entry["timing"] != timing]
    if days:
        what = f"{MASTER}: its timing code changed since {shown} was recorded (day {', '.join(days)}): {AGAIN}"
        changes += [(manifest["days"][day]["source"], what) for day in days]
    return changes


def revisions_of(entries: Iterable[dict]) -> str:
    """Return what a reader needs to get at the code of some days of a manifest: "recorded at revision abc123"."""
    return f"recorded at revision {', '.join(sorted({entry['revision'] for entry in entries}))}"


def age_of(manifest: dict, root: Path, day: int | None = None) -> str:
    """Return what must stand beside figures of a folder, or of one of its days, because the code has moved on.

    Empty in a current folder, where changed code is an error, and in a history folder while the code is the same.
    """
    entries = [entry for number, entry in manifest["days"].items() if day is None or int(number) == day]
    if manifest["state"] == CURRENT:
        return ""
    changed = {source for source, _ in changes_since(manifest, "", root)}
    return f"{revisions_of(entries)}, the code has changed since" if changed & {e["source"] for e in entries} else ""


def unlisted(folder: Path, manifest: dict | None) -> list[str]:
    """Return the names of what lies in a GPU's folder and is neither in its manifest, nor follows from what is.

    A compile-time record belongs there too.
    """
    listed = {"manifest.json", *manifest["files"]} if manifest else set()
    gpu, prefix = COMPILE_TIME
    names = sorted(entry.name for entry in folder.iterdir())
    if manifest and manifest["state"] == CURRENT:
        names = [name for name in names if not made_from_lines(name)]
    return [name for name in names if name not in listed and not (folder.name == gpu and name.startswith(prefix))]


def describe_edit(name: str, data: bytes, entry: dict) -> str:
    """Say where and how a file differs from its manifest entry: "NAME:LINE: edited since ..."."""
    marks, recorded = (
        [lines[i : i + 4] for i in range(0, len(lines), 4)] for lines in (line_marks(data), entry["lines"])
    )
    line = same_start(marks, recorded)
    row = ""
    if name.endswith(".jsonl") and line < len(marks):
        variant = re.search(rb'"variant":"([^"]*)"', data.splitlines()[line])
        row = f" ({variant[1].decode('utf-8', 'replace')})" if variant else ""
    now, then = f"{len(marks)} lines, {len(data)} bytes", f"{len(recorded)} lines, {entry['bytes']} bytes"
    return f"{name}:{line + 1}: edited since it was recorded{row}: {now}, recorded were {then}: {RESTORE}"


def check_run(run: Records, shown: str, wanted: dict, reports: dict[str, dict]) -> list[str]:
    """Return why a run is no evidence.

    Its run record is not the `wanted` one, a check failed, nothing was timed, a figure is impossible, or two lines are
    the same row.
    """
    problems = []
    for key, value in wanted.items():
        if run[0][1].get(key) != value:
            problems.append(f"{shown}:1: {key} is {run[0][1].get(key)!r}, and must be {value!r}: {AGAIN}")
    for number, record in run:
        if record.get("ok") is False:
            problems.append(f"{shown}:{number}: {name_of(record)}: the check failed: correct the kernel and {AGAIN}")
    problems += [f"{shown}:{number}: impossible: {what}: {AGAIN}" for number, what in bounds.impossible(run)]
    first: dict[tuple, int] = {}  # line of each row
    for number, record in run:
        if "value" in record and first.setdefault(identity(record, reports), number) != number:
            line = first[identity(record, reports)]
            row = row_name(record, reports)
            problems.append(f"{shown}:{number}: {row}: the same row as line {line}: tell them apart and {AGAIN}")
    if not any("ms" in record for _, record in run):
        problems.append(f"{shown}: no timed row: {AGAIN}")
    return problems


def check_one_card(
    day: int, manifest: dict, contents: dict[str, bytes], shown: str, refuse: Refusal, reports: dict[str, dict]
) -> tuple[list[str], int]:
    """Return what is wrong with a day's files of one GPU, and how many JSON lines they have."""
    entry = manifest["days"][str(day)]
    endings = [".jsonl", ".txt", *(ending for ending, _ in counters.PASSES if entry["counters"] == "taken")]
    endings += ["-resources.txt"] * (entry["resources"] == "taken")
    endings += [TIMELINE] * (entry.get("timeline") == "taken")
    missing = [file_of(day, ending) for ending in endings if file_of(day, ending) not in manifest["files"]]
    problems = [f"{shown}/manifest.json: does not list {name}: {AGAIN}" for name in missing]
    name = file_of(day, ".jsonl")
    if name not in contents:
        return problems, 0
    wanted = {"day": day, "backend": "cuda", "device": manifest["device"]}
    wanted.update(uuid=entry["uuid"], revision=entry["revision"])
    try:
        run = read_run(contents[name], f"{shown}/{name}", refuse)
    except Stop as stop:
        return [*problems, *(f"{problem}: {RESTORE}" for problem in str(stop).splitlines())], 0
    return problems + check_run(run, f"{shown}/{name}", wanted, reports), len(run)


def check_fleet_day(
    day: int, manifest: dict, contents: dict[str, bytes], shown: str, refuse: Refusal, reports: dict[str, dict]
) -> tuple[list[str], int]:
    """Return what is wrong with a day's files of several GPUs, and how many JSON lines they have.

    Every launch must be whole, and every card must have run solo and together.
    """
    wanted = {"day": day, "backend": "cuda", "device": manifest["device"]}
    wanted["revision"] = manifest["days"][str(day)]["revision"]
    problems: list[str] = []
    launches: dict[str, list[dict]] = {}
    lines = 0
    for name in sorted(name for name in contents if name.startswith(file_of(day, "-")) and name.endswith(".jsonl")):
        where = f"{shown}/{name}"
        try:
            run = read_run(contents[name], where, refuse)
        except Stop as stop:
            problems += [f"{problem}: {RESTORE}" for problem in str(stop).splitlines()]
            continue
        lines += len(run)
        problems += check_run(run, where, wanted, reports)
        records = [record for _, record in run]
        if [record["record"] for record in records].count("fleet") != 1 or records[1]["record"] != "fleet":
            problems.append(f"{where}:2: a fleet record must stand second and only there: {AGAIN_FLEET}")
        elif records[0]["uuid"] not in manifest["cards"]:
            problems.append(f"{where}:1: {records[0]['uuid']} is none of the manifest's cards: {AGAIN_FLEET}")
        else:
            launches.setdefault(records[1]["launch"], []).append({**records[1], "uuid": records[0]["uuid"]})
    for there in launches.values():
        problems += [
            f"{shown}: day {day}, {there[0]['mode']}, launch {there[0]['launch']}: no {name}: {AGAIN_FLEET}"
            for name in fleet.missing(there)
        ]
    ran = {(record["mode"], record["uuid"]) for there in launches.values() for record in there}
    for mode in ("solo", "together"):
        lacking = [card for card in manifest["cards"] if (mode, card) not in ran]
        problems += [f"{shown}: day {day}: {card} has no run {mode}: {AGAIN_FLEET}" for card in lacking]
    return problems, lines


def wrong_name(folder: str, device: str, shown: str) -> list[str]:
    """Return what is wrong with the name of a folder: it is the model's, and may go on, as in h200-x2."""
    try:
        model = folder_name(device)
    except Stop:  # no letter of it may stand in a name: --gpu had to give one
        return []
    if folder == model or folder.startswith(f"{model}-"):
        return []
    return [
        f"{shown}: holds {device}, whose folder is {model}, or {model}-SOMETHING: name it so, with --gpu or by hand"
    ]


def run_marks(data: bytes) -> list[str]:
    """Return what tells a run from every other: its card and time, and a digest of its figures, whoever claims them."""
    lines = data.split(b"\n")
    try:
        run = json.loads(lines[0])
        card = f"GPU {run['uuid']}, day {run['day']}, {run['utc']}"
    except (ValueError, KeyError, TypeError):
        return []  # told elsewhere
    figures = sorted(line for line in lines[1:] if b'"ms"' in line)
    return [card, *([f"figures {hashlib.sha256(b''.join(figures)).hexdigest()[:12]}"] if figures else [])]


def find_copies(root: Path, folders: list[Path]) -> list[str]:
    """Return where a run lies in a second folder: one card's figures as another's."""
    first: dict[str, Path] = {}  # by mark, the file that has it
    problems = []
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            if made_from_lines(path.name):
                continue
            for mark in run_marks(path.read_bytes()):
                other = first.setdefault(mark, path)
                if other.parent != folder:
                    here, there = (one.relative_to(root).as_posix() for one in (path, other))
                    problems.append(f"{here}: the same run as {there} ({mark}): it stands in one folder: delete one")
                    break
    return problems


def check_folder(folder: Path, shown: str, root: Path, refuse: Refusal) -> tuple[list[str], int, int]:
    """Return what is wrong with one GPU's folder, and how many files and JSON lines it holds.

    `shown` is the folder's name in messages.
    """
    manifest = read_manifest(folder, shown)
    reports = read_reports(root)
    files = manifest["files"]
    problems = wrong_name(folder.name, manifest["device"], shown)
    problems += [f"{shown}/{name}: not in the manifest: delete it" for name in unlisted(folder, manifest)]
    lines = 0
    contents = {name: (folder / name).read_bytes() for name in files if (folder / name).is_file()}
    for name, entry in files.items():
        if name not in contents:
            problems.append(f"{shown}/{name}: missing: {RESTORE}")
        elif hashlib.sha256(contents[name]).hexdigest() != entry["sha256"]:
            problems.append(f"{shown}/{describe_edit(name, contents[name], entry)}")
        elif not contents[name]:
            problems.append(f"{shown}/{name}: was empty when it was recorded: {AGAIN}")

    for day in manifest["days"]:
        check_day = check_fleet_day if manifest.get("cards") else check_one_card
        found, lines_here = check_day(int(day), manifest, contents, shown, refuse, reports)
        problems, lines = problems + found, lines + lines_here

    for name in contents:
        if name.endswith(TIMELINE):
            problems += [f"{problem}: {RESTORE}" for problem in timeline.check_file(folder / name, f"{shown}/{name}")]

    if manifest["state"] == CURRENT:
        problems += dict.fromkeys(what for _, what in changes_since(manifest, shown, root))
    return problems, len(files), lines


# ---- what follows from the recorded lines ----------------------------------------------------------------------------


def merge_counters(folder: Path, shown: str, root: Path, manifest: dict) -> dict[str, bytes]:
    """Return the merged lines of each day that has counters and a script that joins them, by file name. Raises Stop."""
    merged = {}
    for day, entry in manifest["days"].items():
        script = root / Path(entry["source"]).parent / MERGER
        exports = [file_of(int(day), ending) for ending, _ in counters.PASSES]
        if entry.get("counters") != "taken" or not script.is_file():
            continue
        name = file_of(int(day), "-merged.jsonl")
        with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
            out = Path(temporary, name)
            words = ["--json", file_of(int(day), ".jsonl"), "--ncu", *exports, "--out", str(out)]
            done = subprocess.run(
                [sys.executable, str(script), *words],
                cwd=folder,
                env=plain_locale(),
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            if done.returncode != 0:
                said = done.stderr.strip() or f"{MERGER} ended with {done.returncode}"
                raise Stop(f"{shown}: {name} cannot be made: {said}")
            merged[name] = out.read_bytes()
    return merged


def compare_predictions(folder: Path, shown: str, root: Path) -> dict[str, bytes]:
    """Return the text that sets each day's prediction beside its counters, by file name. Raises Stop."""
    texts = {}
    for path in sorted(folder.iterdir()):
        match = PREDICTION.fullmatch(path.name)
        if not match:
            continue
        day = int(match[1])
        try:
            text = predict.to_text(path, folder / file_of(day, counters.PASSES[0][0]), facts_of(root, day))
        except (predict.Stop, BadFacts) as stop:
            raise Stop(f"{shown}/{path.name}: {str(stop).replace(str(folder), shown)}") from None
        texts[file_of(day, "-predicted.txt")] = text.encode()
    return texts


def fleet_table(folder: Path, day: int) -> bytes:
    """Return what scripts/bench_ingest.py report --fleet says of a day's runs. Raises Stop."""
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
        db = Path(temporary, "fleet.sqlite")
        try:
            bench_ingest.ingest(map(str, sorted(folder.glob(file_of(day, "-*.jsonl")))), db)
            return bench_ingest.as_table(bench_ingest.make_fleet_report(db)).encode("utf-8")
        except bench_ingest.Refused as refused:
            raise Stop(str(refused)) from None


def derive(folder: Path, shown: str, root: Path) -> dict[str, bytes]:
    """Return all that follows from the recorded lines of a GPU's folder, by file name. Raises Stop."""
    manifest = read_manifest(folder, shown)
    if manifest.get("cards"):
        return {file_of(int(day), FLEET_TABLE): fleet_table(folder, int(day)) for day in manifest["days"]}
    files = {**merge_counters(folder, shown, root, manifest), **compare_predictions(folder, shown, root)}
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
        read = (".jsonl", counters.PASSES[1][0])  # by the charts
        lines = {name: (folder / name).read_bytes() for name in manifest["files"] if name.endswith(read)}
        for name, data in {**lines, **files}.items():
            Path(temporary, name).write_bytes(data)
        note = f", {revisions_of(manifest['days'].values())}" if manifest["state"] == HISTORY else ""
        try:
            files.update(plot_roofline.files_of(Path(temporary), rooflines.charts_of(Path(temporary), note)[0]))
        except rooflines.Stop as stop:
            raise Stop(str(stop).replace(temporary, shown)) from None
    return files


def check_derived(folder: Path, shown: str, root: Path) -> list[str]:
    """Return how what lies in a GPU's folder differs from what follows from its recorded lines."""
    problems = []
    if read_manifest(folder, shown)["state"] == HISTORY:
        return []  # listed in the manifest like all else
    wanted = derive(folder, shown, root)
    there = {path.name for path in folder.iterdir() if DERIVED.fullmatch(path.name)}
    for name in sorted(there | set(wanted)):
        if name not in there:
            problems.append(f"{shown}/{name}: missing: {DRAW}")
        elif name not in wanted:
            problems.append(f"{shown}/{name}: follows from nothing that is recorded: delete it")
        elif (folder / name).read_bytes() != wanted[name]:
            problems.append(f"{shown}/{name}: not what the recorded lines give: {DRAW}")
    return problems


def recorded_folders(root: Path) -> list[Path]:
    """Return the folders of profile/ that hold a recorded GPU."""
    return sorted(path.parent for path in (root / "profile").glob("*/manifest.json") if path.parent.name[0] != ".")


def charts(options: argparse.Namespace) -> int:
    """Write what follows from the recorded lines: merged counters, charts and their tables. Returns the exit code."""
    for folder in recorded_folders(options.root):
        shown = f"profile/{folder.name}"
        if read_manifest(folder, shown)["state"] == HISTORY:
            continue
        wanted = derive(folder, shown, options.root)
        for path in sorted(folder.iterdir()):
            if DERIVED.fullmatch(path.name) and path.name not in wanted:
                path.unlink()
                print(f"{shown}/{path.name}: deleted, it follows from nothing that is recorded")
        for name, data in wanted.items():
            path = folder / name
            if not path.is_file() or path.read_bytes() != data:
                write_whole(path, data)
                print(f"{shown}/{name}: written")
    return 0


def history(options: argparse.Namespace) -> int:
    """Make folders history, with what follows from their lines made a last time. Returns the exit code.

    In a folder that is history already the scripts of today make it anew.
    """
    root: Path = options.root
    refuse = schema_refusal(root) or refuse_minimally
    for folder in options.folders:
        if not (folder / "manifest.json").is_file():
            raise Stop(f"{folder}: no manifest.json, so nothing is recorded there: name a folder such as profile/h200")
        folder = folder.resolve()
        shown = shown_name(folder, root)
        manifest = read_manifest(folder, shown)
        manifest["state"] = HISTORY
        manifest["files"] = {name: entry for name, entry in manifest["files"].items() if not made_from_lines(name)}
        with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
            staged = Path(temporary, folder.name)
            shutil.copytree(folder, staged)
            predicted = {path.name: path.read_bytes() for path in staged.iterdir() if PREDICTION.fullmatch(path.name)}
            for path in sorted(staged.iterdir()):
                if made_from_lines(path.name):
                    path.unlink()
            write_folder(staged, {}, manifest)
            problems, files, _ = check_folder(staged, shown, root, refuse)
            if problems:
                raise Stop("\n".join([*problems, f"{shown}: nothing was changed"]))
            write_folder(staged, predicted, manifest)
            made = {**predicted, **derive(staged, shown, root)}
            codes = {entry["source"]: entry["code"] for entry in manifest["files"].values()}
            for name, data in made.items():
                day = manifest["days"].get(str(int(name[3:5])))
                if day is None:
                    raise Stop(f"{shown}/{name}: its day is not recorded: delete it")
                manifest["files"][name] = describe_file(data, day["source"], codes[day["source"]])
            write_folder(staged, made, manifest)
            for path in folder.iterdir():
                if not (staged / path.name).exists():
                    path.unlink()
            for name in [*made, "manifest.json"]:
                write_whole(folder / name, (staged / name).read_bytes())
        print(f"{shown}: history, {files + len(made)} files, {revisions_of(manifest['days'].values())}")
    return 0


def verify(options: argparse.Namespace) -> int:
    """Check every folder of profile/ and every README block. Returns the exit code."""
    root: Path = options.root
    refuse = schema_refusal(root)
    if refuse is None:
        raise Stop(
            "the Python package jsonschema is missing, so no JSON line can be checked: "
            "scripts/lessons test sets up build/venv, then: build/venv/bin/python scripts/evidence.py verify"
        )
    problems: list[str] = []
    gpus = files = lines = blocks = 0
    notes = ""
    old = []
    for folder in sorted((root / "profile").glob("*")):
        shown = f"profile/{folder.name}"
        if not folder.is_dir():
            if folder.name != "README.md":
                problems.append(f"{shown}: belongs to no GPU: delete it")
        elif folder.name.startswith("."):
            problems.append(f"{shown}: left over from a recording that was interrupted: delete it")
        elif (folder / "manifest.json").is_file():
            try:
                found, files_here, lines_here = check_folder(folder, shown, root, refuse)
                found = found or check_derived(folder, shown, root)
                manifest = read_manifest(folder, shown)
                if manifest["state"] == HISTORY:
                    same = f"{revisions_of(manifest['days'].values())}, whose code is today's"
                    old.append(f"{shown}: history, {age_of(manifest, root) or same}")
                gpus, files, lines, problems = gpus + 1, files + files_here, lines + lines_here, problems + found
            except Stop as stop:
                problems.append(str(stop))
        elif unlisted(folder, None) or folder.name != COMPILE_TIME[0]:
            problems.append(f"{shown}: has no manifest.json, so nothing in it is evidence: delete it, or {AGAIN}")
        else:
            notes += f"; {folder.name}: run-time cells {NOT_YET}"
    problems += find_copies(root, recorded_folders(root))
    for path in find_readmes(root):
        page = fill_blocks(root, path)
        blocks, problems = blocks + page.blocks, problems + page.wrong + page.differing
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return EXIT_WRONG
    print(f"as recorded: {gpus} GPUs, {files} files, {lines} JSON lines, {blocks} README blocks{notes}")
    print("".join(f"{line}\n" for line in old), end="")
    return 0


# ---- README blocks ---------------------------------------------------------------------------------------------------

MARKER = re.compile(
    r"<!-- (?:begin (?P<begin>recorded|snippet): (?P<what>\S+(?: \S+)?)|end (?P<end>recorded|snippet)) -->"
)
ALMOST_MARKER = re.compile(r"<!--\s*(begin|end)\s*(recorded|snippet)", re.IGNORECASE)


def find_readmes(root: Path) -> list[Path]:
    """Return the READMEs that may hold blocks."""
    return [path for pattern in READMES for path in sorted(root.glob(pattern))]


def fenced(language: str, text: str) -> list[str]:
    """Return the lines of a Markdown code block; the fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", *text.rstrip("\n").split("\n"), fence]


def text_of(root: Path, name: str) -> str:
    """Return the text of a file. Raises Stop if it is none."""
    try:
        return (root / name).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise Stop(f"{name} is not text (UTF-8): restore it") from None


def recorded_block(root: Path, what: str) -> list[str]:
    """Return what stands in the block of a recorded file, such as profile/h200/day49.txt. Raises Stop."""
    parts = re.fullmatch(r"profile/(\w[\w.-]*)/(?:day([0-9]{2})\b)?[\w.-]+", what)
    folder = root / what.rpartition("/")[0]
    if parts and (root / what).is_file():
        age = ""
        if (folder / "manifest.json").is_file():
            with contextlib.suppress(Stop):  # verify says what is wrong with the manifest
                age = age_of(read_manifest(folder, folder.name), root, int(parts[2]) if parts[2] else None)
        note = [f"{age[0].upper()}{age[1:]}:", ""] if age else []
        return note + fenced("text", text_of(root, what))
    if not parts or not parts[2] or not list(root.glob(f"day{parts[2]}-*/*.cu")):
        raise Stop(f"no recorded file '{what}': write profile/GPU/dayNN.txt of a day that is there")
    days = read_manifest(folder, f"profile/{parts[1]}")["days"] if (folder / "manifest.json").is_file() else {}
    if str(int(parts[2])) in days:
        raise Stop(f"no recorded file '{what}': {parts[1]} has day {parts[2]}, but no such file of it")
    return [NOT_YET]


def snippet_block(root: Path, what: str) -> list[str]:
    """Return what stands in the block of a source snippet, such as "day49-roofline/roofline.cu NAME". Raises Stop."""
    source, _, name = what.partition(" ")
    if not name or not re.fullmatch(r"\w[\w./-]*", source) or ".." in source or not (root / source).is_file():
        raise Stop(f"no snippet '{what}': write FOLDER/SOURCE.cu NAME, with a source that is there")
    lines = text_of(root, source).split("\n")
    begins = [i for i, line in enumerate(lines) if line.strip() == f"// snippet: {name}"]
    ends = [i for i, line in enumerate(lines) if line.strip() == f"// end snippet: {name}"]
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0]:
        raise Stop(
            f"{source} has {len(begins)} '// snippet: {name}' and {len(ends)} '// end snippet: {name}': "
            "it needs one of each, in this order"
        )
    inside = [line for line in lines[begins[0] + 1 : ends[0]] if not re.match(r"\s*// (end )?snippet: ", line)]
    return fenced("cuda", "\n".join(inside))


@dataclass
class Page:
    """A README with every block as it must be."""

    text: str
    blocks: int
    wrong: list[str]  # what no filling puts right
    differing: list[str]  # blocks that are otherwise now


def fill_blocks(root: Path, readme: Path) -> Page:
    """Return a README as it must be, and what is wrong with the one that is there."""
    shown = readme.relative_to(root).as_posix()
    lines = text_of(root, shown).split("\n")
    filled: list[str] = []
    page = Page("", 0, [], [])
    opened = None  # line number and match of the open block's marker
    for number, line in enumerate(lines, start=1):
        marker = MARKER.fullmatch(line)
        if marker and marker["begin"] and not opened:
            opened = (number, marker)
            filled.append(line)
        elif marker and marker["end"] and opened and opened[1]["begin"] == marker["end"]:
            first, what = opened[0], opened[1]["what"]
            have = lines[first : number - 1]
            try:
                want = (recorded_block if marker["end"] == "recorded" else snippet_block)(root, what)
            except Stop as stop:
                page.wrong.append(f"{shown}:{first}: {stop}")
                want = have
            if have != want:
                at = first + 1 + same_start(have, want)
                page.differing.append(f"{shown}:{at}: not what {what} holds: scripts/evidence.py readme fills it in")
            page.blocks += 1
            filled += [*want, line]
            opened = None
        elif marker or ALMOST_MARKER.search(line):
            state = f"the block of line {opened[0]} is open" if opened else "no block is open"
            page.wrong.append(
                f"{shown}:{number}: no marker here ({state}): '{line.strip()}': write '<!-- begin recorded: FILE -->' "
                "and '<!-- end recorded -->', or '<!-- begin snippet: FILE NAME -->' and '<!-- end snippet -->', "
                "alone on their lines"
            )
        elif not opened:
            filled.append(line)
    if opened:
        page.wrong.append(f"{shown}:{opened[0]}: this block is never closed: add '<!-- end {opened[1]['begin']} -->'")
    page.text = "\n".join(filled)
    return page


def readme(options: argparse.Namespace) -> int:
    """Fill every README's blocks, or with --check report those that differ. Returns the exit code."""
    pages = {path: fill_blocks(options.root, path) for path in find_readmes(options.root)}
    problems = [problem for page in pages.values() for problem in page.wrong]
    if options.check:
        problems += [problem for page in pages.values() for problem in page.differing]
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return EXIT_WRONG
    for path, page in pages.items():
        if page.differing:
            write_whole(path, page.text)
            print(f"{path.relative_to(options.root).as_posix()}: filled in")
    return 0


# ---- the machine with the GPU ----------------------------------------------------------------------------------------


def output_of(command: list[str]) -> str:
    """Return what a command prints, or nothing if there is no such command or it hangs."""
    try:
        done = subprocess.run(command, env=plain_locale(), capture_output=True, timeout=60, check=False)
        return done.stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""


def first_of(pattern: str, command: list[str]) -> str:
    """Return the first group of `pattern` in what a command prints, or "unknown"."""
    found = re.search(pattern, output_of(command))
    return found[1].strip() if found else "unknown"


def revision_of(root: Path) -> str:
    """Return the revision as CMakeLists.txt asks git for it; "unknown" where there is no git or no repository."""
    if not (root / ".git").exists():  # git would answer for whatever repository lies around this folder
        return "unknown"
    return first_of("(.+)", ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"])


def capabilities(nvcc: str, folder: Path) -> list[str]:
    """Return the compute capabilities of the GPUs that the days can use, as "75"; builds gpus.cu in `folder`.

    The CUDA runtime is asked: nvidia-smi has no compute capability in drivers of branch 470, and lists hidden cards.
    """
    program = str(folder / "gpus")
    output_of([nvcc, "-o", program, str(Path(__file__).resolve().parent / "gpus.cu")])
    usable = re.findall(r"^gpu\t\d+\t(\d+)\.(\d)\t\S+\t\S+\tcudaSuccess\t", output_of([program]), re.MULTILINE)
    return sorted({major + minor for major, minor in usable if int(major + minor) >= 75}, key=int)


class Bench:
    """What builds and runs days on this machine's GPU, in a temporary folder.

    Raises Stop with 77 where there is no GPU or no nvcc.
    """

    def __init__(self, root: Path, folder: Path, arch: str | None, revision: str | None):
        self.root, self.folder = root, folder.resolve()
        nvcc = find_nvcc()
        if not nvcc:
            raise Stop("no nvcc here (CUDACXX, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda)", EXIT_SKIPPED)
        self.nvcc = nvcc
        # wgmma, without which Hopper's tensor cores do not reach their peak, is in sm_90a alone.
        self.archs = [arch] if arch else [one.replace("90", "90a") for one in capabilities(nvcc, self.folder)]
        if not self.archs:
            why = "the CUDA runtime sees none that it can use, from sm_75 on"
            raise Stop(f"no NVIDIA GPU here: {why} (scripts/lessons run says more)", EXIT_SKIPPED)
        self.revision = revision or revision_of(root)
        self.driver = first_of(r"^([\d.]+)", [*counters.SMI, "--query-gpu=driver_version"])
        self.toolkit = first_of(r"release [\d.]+, V([\d.]+)", [nvcc, "--version"])
        self.host_compiler = first_of("(.+)", [os.environ.get("NVCC_CCBIN") or "g++", "--version"])
        self.ncu = counters.find_ncu(nvcc)
        self.profiler = counters.version_of(self.ncu) if self.ncu else "none"

    def run(self, command: list[str], executable: str | None = None) -> subprocess.CompletedProcess:
        """Run a command in the temporary folder; bytes on stdout, text on stderr. Raises Stop if it hangs."""
        words = [executable or command[0], *command[1:]]
        try:
            done = subprocess.run(
                words, cwd=self.folder, env=plain_locale(), capture_output=True, timeout=RUN_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            what = shlex.join(command)
            raise Stop(f"{what}: not done after {RUN_LIMIT_S} s: does nvidia-smi still answer?") from None
        done.stderr = done.stderr.decode("utf-8", "replace").replace(f"{self.folder}/", "").strip()
        return done

    def build(self, day: Day) -> str:
        """Compile a day for this GPU, alone in the temporary folder. Returns the command. Raises Stop."""
        print(f"day {day.number:02d}: building for sm_{', sm_'.join(self.archs)}", flush=True)
        shutil.copyfile(self.root / day.source, self.folder / Path(day.source).name)
        flags = " ".join([*day.flags, *(f"sm_{arch}" for arch in self.archs)])
        wanted = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in self.archs]
        wanted += [f'-DCUDA_DAYS_REVISION="{self.revision}"', f'-DCUDA_DAYS_FLAGS="{flags}"']
        command = []
        for word in day.build_line:
            command += wanted if word.startswith("-arch=") else [word]
        done = self.run(command, self.nvcc)
        if done.returncode != 0:
            raise Stop(f"{day.source}: does not compile for sm_{', sm_'.join(self.archs)}:\n{done.stderr}")
        return shlex.join(command)

    def provenance(self, day: Day) -> dict[str, str]:
        """Return what a day's entry in the manifest says of its source, of now, and of this machine."""
        return {
            "source": day.source,
            "timing": timing_of(self.root),
            "flags": " ".join(day.flags),
            "revision": self.revision,
            "utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "driver": self.driver,
            "toolkit": self.toolkit,
            "host_compiler": self.host_compiler,
        }

    def measure(self, day: Day) -> tuple[str, bytes, bytes]:
        """Run a day's program once. Returns the command, the JSON lines and the table of that run.

        Raises Stop: 77 where the program skips, 1 if it fails.
        """
        lines = self.folder / file_of(day.number, ".jsonl")
        lines.unlink(missing_ok=True)
        done = self.run([f"./{day.program}", "--json-file", lines.name])
        if done.returncode != 0:
            raise failure(day, done)
        if not lines.is_file():
            raise Stop(f"{day.source}: {' '.join(done.args)} wrote no {lines.name}")
        return shlex.join(done.args), lines.read_bytes(), done.stdout

    def counters(self, day: Day) -> list[tuple[str, str, bytes]]:
        """Take the profiler passes. Returns (ending, command, export) of each. Raises Stop with why there are none."""
        if not day.facts.counters:
            raise Stop("counters are not part of this day")

        def run(words: list[str]) -> subprocess.CompletedProcess:
            done = self.run(words)
            done.stdout = done.stdout.decode("utf-8", "replace")
            return done

        try:
            _, names = counters.preflight(self.ncu, run)
            taken, lacking = counters.take(self.ncu, f"./{day.program}", names, run)
        except counters.Refused as refused:
            raise Stop(refused.why) from None
        if lacking:
            print(f"day {day.number:02d}: not counted, this chip has no such counter: {', '.join(lacking)}", flush=True)
        return [(ending, command, rows.encode("utf-8")) for ending, command, rows in taken]

    def resources(self, day: Day) -> list[tuple[str, str, bytes]]:
        """Ask scripts/resources.py what the compiler says about a day's kernels. Returns and raises as `counters`."""
        words = [
            "scripts/resources.py",
            "show",
            "--day",
            str(day.number),
            "--arch",
            *(arch.rstrip("a") for arch in self.archs),
        ]
        script = self.root / words[0]
        if not script.is_file():
            raise Stop("there is no scripts/resources.py")
        done = self.run([sys.executable, str(script), *words[1:], "--root", str(self.root), "--nvcc", self.nvcc])
        if done.returncode != 0:
            raise Stop(f"scripts/resources.py ended with {done.returncode}: {done.stderr}".replace(f"{self.root}/", ""))
        return [("-resources.txt", shlex.join(words), done.stdout)]

    def timeline(self, day: Day) -> list[tuple[str, str, bytes]]:
        """Record the timeline of a day's --profile. Returns and raises as `counters`."""
        try:
            return [
                (
                    TIMELINE,
                    f"scripts/timeline.py record ./{day.program}",
                    timeline.record(self.folder / day.program).encode("utf-8"),
                )
            ]
        except timeline.Stop as stop:
            raise Stop(str(stop)) from None


def failure(day: Day, done: subprocess.CompletedProcess) -> Stop:
    """Return what to raise for a day's program that did not end with 0: 77 if it skipped, otherwise 1."""
    skipped = done.returncode == EXIT_SKIPPED
    what = "cannot run here" if skipped else f"failed with exit code {done.returncode}"
    message = f"{day.source}: {' '.join(done.args)} {what}: {done.stderr or 'it says no more'}"
    return Stop(message, EXIT_SKIPPED if skipped else EXIT_WRONG)


# ---- record ----------------------------------------------------------------------------------------------------------


def folder_name(device: str) -> str:
    """Return the folder of a GPU model: "NVIDIA H200" gives h200, "Tesla T4" t4. Raises Stop if nothing is left."""
    words = [word for word in re.split(r"[^a-z0-9]+", device.lower()) if word not in ("", "nvidia", "tesla", "geforce")]
    if not words:
        raise Stop(f"the device name {device!r} makes no folder name: give one with --gpu")
    return "-".join(words)


def record_day(bench: Bench, day: Day) -> tuple[dict[str, bytes], dict, str]:
    """Build and run one day. Returns its files by name, its entry in the manifest's `days`, and the GPU's name."""
    commands = [bench.build(day)]
    files = {}

    def keep(ending: str, data: bytes) -> str:
        name = file_of(day.number, ending)
        files[name] = data
        print(f"day {day.number:02d}: {name}, {len(data)} bytes", flush=True)
        return name

    def keep_if_possible(what: str, take: Callable[[], list[tuple[str, str, bytes]]]) -> str:
        try:
            for ending, command, data in take():
                commands.append(f"{command} > {keep(ending, data)}")
            return "taken"
        except Stop as stop:
            print(f"day {day.number:02d}: {what} not taken: {stop}", flush=True)
            return f"not taken: {str(stop).splitlines()[0]}"

    command, lines, table = bench.measure(day)
    name = keep(".jsonl", lines)
    commands.append(f"{command} > {keep('.txt', table)}")
    run = read_run(lines, f"{day.source}: {name}", refuse_minimally)[0][1]
    entry = {
        **bench.provenance(day),
        "uuid": str(run.get("uuid")),
        "profiler": bench.profiler,
        "counters": keep_if_possible("counters", lambda: bench.counters(day)),
        "resources": keep_if_possible("resources", lambda: bench.resources(day)),
        "commands": commands,
    }
    if day.facts.timeline:
        entry["timeline"] = keep_if_possible("timeline", lambda: bench.timeline(day))
    return files, entry, str(run.get("device"))


def write_folder(folder: Path, contents: dict[str, bytes], manifest: dict) -> None:
    """Write a GPU's files and, last, its manifest in order of day and name."""
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    ordered = {
        **manifest,
        "days": dict(sorted(manifest["days"].items(), key=lambda item: int(item[0]))),
        "files": dict(sorted(manifest["files"].items())),
    }
    (folder / "manifest.json").write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


def keep_others(target: Path, shown: str, manifest: dict) -> dict[str, bytes]:
    """Return the files of other days that the folder holds already, and add their entries to the new manifest.

    Raises Stop rather than lose or mix anything: a folder of another device, an unlisted file.
    """
    if not target.exists():
        return {}
    old = read_manifest(target, shown) if (target / "manifest.json").is_file() else None
    strangers = unlisted(target, old)
    if strangers:
        raise Stop(f"{shown}/{strangers[0]}: not in the manifest, so it would be lost: move it away first")
    old = old or {**manifest, "days": {}, "files": {}}
    if (old["device"], old.get("cards")) != (manifest["device"], manifest.get("cards")):
        there, here = (" ".join([of["device"], *of.get("cards", [])]) for of in (old, manifest))
        raise Stop(f"{shown}: holds {there}, this is {here}: name another folder with --gpu")
    days = {day: entry for day, entry in old["days"].items() if day not in manifest["days"]}
    sources = {entry["source"] for entry in days.values()}
    own = {name: entry for name, entry in old["files"].items() if not made_from_lines(name)}
    files = {name: entry for name, entry in own.items() if entry["source"] in sources}
    manifest["days"].update(days)
    manifest["files"].update(files)
    # What followed from the old lines is made anew: a chart of before would show figures of before.
    names = [path.name for path in target.iterdir() if not DERIVED.fullmatch(path.name)]
    compile_time = [name for name in names if name not in own]
    return {name: (target / name).read_bytes() for name in [*files, *compile_time] if name != "manifest.json"}


def record(options: argparse.Namespace) -> int:
    """Record days on this machine's GPU into a whole new folder, then put it in place. Returns the exit code.

    A day that fails takes no other with it: it is named at the end, what the folder had of it stays, and the code is 1.
    """
    root: Path = options.root
    contents: dict[str, bytes] = {}
    manifest: dict[str, Any] = {"schema": MANIFEST_SCHEMA, "state": CURRENT, "device": "", "days": {}, "files": {}}
    failed: dict[int, Stop] = {}
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
        bench = Bench(root, Path(temporary), options.arch, options.revision)
        for day in find_days(root, options.day):
            code = measured_code(root / day.source)
            try:
                files, entry, device = record_day(bench, day)
                target = target_of(options, device)
                wrong = wrong_name(target.name, device, shown_name(target, root))
                if wrong:
                    raise Stop(wrong[0], EXIT_USAGE)
                if manifest["device"] not in ("", device):
                    raise Stop(f"{day.source}: ran on {device}, the day before on {manifest['device']}: record one GPU")
                described = {name: describe_file(data, day.source, code) for name, data in files.items()}
                alone = {**manifest, "device": device, "days": {str(day.number): entry}, "files": described}
                shown, problems = check_staged(options, alone, files)
                if problems:
                    raise Stop("\n".join([*problems, f"{shown}: nothing of day {day.number} was written"]))
            except Stop as stop:
                if stop.code == EXIT_USAGE:  # no other day would do either
                    raise
                print(f"day {day.number:02d}: failed", flush=True)
                failed[day.number] = stop
                continue
            manifest["device"] = device
            manifest["days"].update(alone["days"])
            manifest["files"].update(described)
            contents.update(files)
    done = ", ".join(manifest["days"])
    if contents:
        shown, lines = put_in_place(target_of(options, manifest["device"]), contents, manifest, root)
        print(f"{shown}: recorded {len(contents)} files, {lines} JSON lines on {manifest['device']}")
        print("The charts follow from them: scripts/evidence.py charts; then the pages: scripts/evidence.py readme")
    for stop in failed.values():
        print(stop, file=sys.stderr)
    if failed and contents:
        print(f"recorded: day {done}; not recorded: day {', '.join(map(str, failed))}", file=sys.stderr)
    codes = {stop.code for stop in failed.values()}
    return 0 if not failed else codes.pop() if len(codes) == 1 and not contents else EXIT_WRONG


def target_of(options: argparse.Namespace, device: str) -> Path:
    """Return the folder that a GPU's recording goes to."""
    return (options.out or options.root / "profile").resolve() / (options.gpu or folder_name(device))


def shown_name(target: Path, root: Path) -> str:
    """Return a folder's name for messages."""
    return os.path.relpath(target, root) if root in target.parents else str(target)


def check_staged(options: argparse.Namespace, manifest: dict, contents: dict[str, bytes]) -> tuple[str, list[str]]:
    """Return the name of the folder that one day's recording would go to, and what is wrong with that recording."""
    target = target_of(options, manifest["device"])
    shown = shown_name(target, options.root)
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
        staged = Path(temporary, target.name)
        staged.mkdir()
        write_folder(staged, contents, manifest)
        return shown, check_folder(staged, shown, options.root, schema_refusal(options.root) or refuse_minimally)[0]


def put_in_place(target: Path, contents: dict[str, bytes], manifest: dict, root: Path) -> tuple[str, int]:
    """Check what was recorded and put it where it belongs, all or nothing. Raises Stop.

    Returns the folder's name and how many JSON lines were recorded.
    """
    refuse = schema_refusal(root)
    if refuse is None:
        # No reason to stop on a borrowed GPU: verify, part of every test run, holds the lines to the schema.
        print("jsonschema is not installed here: the lines got a brief check, scripts/evidence.py verify does the rest")
        refuse = refuse_minimally
    out = target.parent
    shown = shown_name(target, root)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=out) as temporary:
        staged, old = Path(temporary, "new", target.name), Path(temporary, "old")
        staged.mkdir(parents=True)
        write_folder(staged, contents, manifest)
        problems, _, lines = check_folder(staged, shown, root, refuse)
        if problems:
            raise Stop("\n".join([*problems, f"{shown}: nothing was written"]))
        write_folder(staged, keep_others(target, shown, manifest), manifest)
        try:
            for name, data in merge_counters(staged, shown, root, manifest).items():
                (staged / name).write_bytes(data)
        except Stop as stop:  # what was measured is worth keeping all the same
            print(stop)
        if target.exists():
            target.rename(old)
        try:
            staged.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    return shown, lines


def record_fleet_day(bench: Bench, day: Day, launches: int) -> tuple[dict[str, bytes], dict]:
    """Build a day and run it on every GPU, solo and together in turn. Returns its files and its manifest entry."""
    commands = [bench.build(day)]
    files = {}
    for launch in range(1, launches + 1):
        for mode in ("solo", "together"):
            out = f"{file_of(day.number, '')}-{mode}-{launch}"
            words = ["run", *["--solo"] * (mode == "solo"), "--out", out, f"./{day.program}"]
            done = bench.run([sys.executable, str(Path(fleet.__file__).resolve()), *words])
            if done.returncode != 0:
                raise Stop(f"{day.source}: scripts/fleet.py {shlex.join(words)}: {done.stderr}")
            commands.append(f"scripts/fleet.py {shlex.join(words)}")
            files.update({file.name: file.read_bytes() for file in (bench.folder / out).glob("*.jsonl")})
            print(f"day {day.number:02d}: {done.stdout.decode('utf-8', 'replace').strip()}", flush=True)
    return files, {**bench.provenance(day), "commands": commands}


def record_fleet(options: argparse.Namespace) -> int:
    """Record days on all of this machine's GPUs, each alone and all at once, into one folder. Returns the exit code."""
    root: Path = options.root
    contents: dict[str, bytes] = {}
    manifest: dict[str, Any] = {"schema": MANIFEST_SCHEMA, "state": CURRENT, "device": "", "cards": []}
    manifest.update(days={}, files={})
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
        bench = Bench(root, Path(temporary), options.arch, options.revision)
        for day in find_days(root, options.day):
            code = measured_code(root / day.source)
            files, manifest["days"][str(day.number)] = record_fleet_day(bench, day, options.launches)
            manifest["files"].update({name: describe_file(data, day.source, code) for name, data in files.items()})
            contents.update(files)
    runs = [strict_json(data.split(b"\n", 1)[0].decode("utf-8")) for data in contents.values()]
    devices = sorted({run["device"] for run in runs})
    manifest["device"], manifest["cards"] = devices[0], sorted({run["uuid"] for run in runs})
    if len(devices) > 1:
        raise Stop(f"GPUs of several models ({', '.join(devices)}): choose with CUDA_VISIBLE_DEVICES")
    name = options.gpu or f"{folder_name(manifest['device'])}-x{len(manifest['cards'])}"
    shown, lines = put_in_place((options.out or root / "profile").resolve() / name, contents, manifest, root)
    cards = f"{len(manifest['cards'])} x {manifest['device']}"
    print(f"{shown}: recorded {len(contents)} files, {lines} JSON lines on {cards}")
    print("The tables follow from them: scripts/evidence.py charts; then the pages: scripts/evidence.py readme")
    return 0


# ---- compare ---------------------------------------------------------------------------------------------------------


def figures_of(run: Records, reports: dict[str, dict]) -> dict[tuple, dict]:
    """Return the lines that hold a figure, by what makes two lines of two runs the same row."""
    return {identity(row, reports): row for _, row in run if "value" in row}


def verdict(recorded: dict, yours: dict) -> str:
    """Return what a figure is beside the recorded one of the same model: same, faster, slower (higher, lower)."""
    if "ms" not in recorded or "ms" not in yours:  # a ridge point, say: a quotient of rates, better neither way
        a, b = recorded["value"], yours["value"]
        return "same" if abs(b - a) <= MARGIN * abs(a) else "higher" if b > a else "lower"
    if yours["ms_min"] > recorded["ms_max"] * (1 + MARGIN):
        return "slower"
    return "faster" if yours["ms_max"] * (1 + MARGIN) < recorded["ms_min"] else "same"


def spearman(first: list[float], second: list[float]) -> float:
    """Return Spearman's rank correlation of two lists of equal length, -1 to 1; ties share their mean rank."""

    def centered_ranks(values: list[float]) -> list[float]:
        ordered = sorted(values)
        return [ordered.index(x) + (ordered.count(x) - 1) / 2 - (len(values) - 1) / 2 for x in values]

    a, b = centered_ranks(first), centered_ranks(second)
    spread = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b)) / spread if spread else 1.0


def compare_day(recorded: Records, yours: Records, reports: dict[str, dict], age: str = "") -> bool:
    """Print one day's rows side by side.

    Returns whether the checks of `yours` were run and all passed, and nothing in it is impossible.
    `age` is said of the recorded ones where the code has changed since.
    """
    (_, run), (_, other) = recorded[0], yours[0]
    same_model = run.get("device") == other.get("device")
    print(f"\nday {run.get('day')}")
    for whose, of in (("recorded", run), ("yours", other)):
        print(f"{whose:<9} {of.get('device')}, {of.get('utc')}, revision {of.get('revision')}, {of.get('flags')}")
    if age:
        print(f"history   {age}: the rows may be of different code")
    checks = [record for _, record in yours if record["record"] == "check"]
    failed = [record for record in checks if record.get("ok") is not True]
    for record in failed:
        print(f"FAILED {record.get('symbol')} ({record.get('variant')}, {record.get('size')}): {record.get('message')}")
    cannot_be = bounds.impossible(yours)
    for number, what in cannot_be:
        print(f"IMPOSSIBLE line {number}: {what}")
    impossible = {identity(row, reports) for at, row in yours if at in {number for number, _ in cannot_be}}
    nothing = "" if checks else ": nothing says that the results are right"
    print(f"checks    {len(checks) - len(failed)} of {len(checks)} passed{nothing}")
    if not same_model:
        print("Another model: its figures are not the recorded card's, so only the shape and the checks compare.")

    old, new = figures_of(recorded, reports), figures_of(yours, reports)
    both = [key for key in old if key in new]
    names = {key: row_name(row, reports) for key, row in {**new, **old}.items()}
    width = max([32, *map(len, names.values())])
    print(f"\n{'row':<{width}} {'recorded':>11} {'yours':>11}  {'unit':<9} {'ratio':>6}{'  verdict' * same_model}")
    for key in both:
        a, b = old[key], new[key]
        cell = f"  {'impossible' if key in impossible else verdict(a, b)}" if same_model else ""
        ratio = b["value"] / a["value"] if a["value"] else math.nan
        figures = f"{a['value']:>11.6g} {b['value']:>11.6g}  {str(a.get('unit')):<9} {ratio:>6.3f}"
        print(f"{names[key]:<{width}} {figures}{cell}")
    for whose, keys in (("recorded", old.keys() - new.keys()), ("yours", new.keys() - old.keys())):
        for key in sorted(keys):
            print(f"{names[key]:<{width}} only in {whose}")
    if same_model:
        print(f"same: the two spreads, fastest to slowest sample, meet after a margin of {100 * MARGIN:g} %")
    for kind, report in reports.items():
        rows = [key for key in both if key[0] == kind and "order" in report]
        if not same_model and len(rows) > 1:
            order = spearman([old[key]["value"] for key in rows], [new[key]["value"] for key in rows])
            what = f"{len(rows)} {report['order']}"
            print(f"order of the {what}: Spearman's rank correlation {order:.2f} (1: the same order)")
    return bool(checks) and not failed and not cannot_be


def compare(options: argparse.Namespace) -> int:
    """Set other runs beside the recorded ones.

    Returns 1 if one of their checks failed, one of their rates is impossible or one cannot be compared.
    """
    folder: Path = options.folder
    if not (folder / "manifest.json").is_file():
        raise Stop(f"{folder}: no manifest.json, so nothing is recorded there: name a folder such as profile/h200")
    manifest = read_manifest(folder, str(folder))
    if manifest.get("cards"):
        raise Stop(f"{folder}: holds several cards, and compare is for one: scripts/bench_ingest.py report --fleet")
    recorded = sorted(int(day) for day in manifest["days"])

    def recorded_run(day: Any, shown: str) -> Records:
        if day not in recorded:
            raise Stop(f"{shown}: day {day} is not recorded in {folder}: there is {', '.join(map(str, recorded))}")
        path = folder / file_of(day, ".jsonl")
        return read_run(path.read_bytes(), str(path), refuse_minimally)

    reports = read_reports(options.root)
    passed = True
    if options.runs:
        for path in options.runs:
            try:
                yours = read_run(path.read_bytes(), str(path), refuse_minimally)
                day = yours[0][1].get("day")
                theirs = recorded_run(day, f"{path}:1")
                passed = compare_day(theirs, yours, reports, age_of(manifest, options.root, day)) and passed
            except Stop as stop:  # the other runs can be compared all the same
                print(stop, file=sys.stderr)
                passed = False
        return 0 if passed else EXIT_WRONG
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
        bench = Bench(options.root, Path(temporary), options.arch, None)
        for day in find_days(options.root, options.day or recorded):
            theirs = recorded_run(day.number, day.source)
            bench.build(day)
            done = bench.run([f"./{day.program}", "--json"])
            if done.returncode not in (0, EXIT_WRONG) or not done.stdout:  # 1 may be a failed check: the lines say so
                raise failure(day, done)
            print(done.stderr, end="\n" if done.stderr else "", file=sys.stderr)
            yours = read_run(done.stdout, f"{day.program} --json", refuse_minimally)
            age = age_of(manifest, options.root, day.number)
            passed = compare_day(theirs, yours, reports, age) and done.returncode == 0 and passed
    return 0 if passed else EXIT_WRONG


# ---- command line ----------------------------------------------------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; ends with 2 for bad usage."""

    def matching(pattern: str, what: str) -> Callable[[str], str]:
        def check(text: str) -> str:
            if not re.fullmatch(pattern, text):
                raise argparse.ArgumentTypeError(f"'{text}' is not {what}")
            return text

        return check

    arch = matching("[0-9]{2,3}[a-z]?", "an architecture such as 90, for sm_90")
    gpu = matching("[a-z0-9][a-z0-9-]*", "a folder name: small letters, digits and '-'")
    revision = matching(r"[\w.+-]{1,64}", "a revision: letters, digits and . _ + -")
    repository = Path(__file__).resolve().parent.parent

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", type=Path, default=repository, help="folder of the days (default: the repository)")
    bench = argparse.ArgumentParser(add_help=False)
    bench.add_argument("--day", type=int, nargs="+", metavar="N", help="these days alone (default: all)")
    bench.add_argument("--arch", type=arch, help="build for this architecture, as 90 (default: the GPU's)")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="record|record-fleet|verify|charts|readme|history|compare")

    def command(function: Callable[[argparse.Namespace], int], *parents: argparse.ArgumentParser):
        name = function.__name__.replace("_", "-")
        added = commands.add_parser(name, parents=[common, *parents], help=(function.__doc__ or name).split(".")[0])
        added.set_defaults(run=function)
        return added

    for recording in (command(record, bench), command(record_fleet, bench)):
        recording.add_argument("--out", type=Path, help="where the GPU's folder goes (default: profile)")
        recording.add_argument(
            "--gpu", type=gpu, help="name of the GPU's folder (default: made from the device's name)"
        )
        recording.add_argument("--revision", type=revision, help="revision of the sources (default: ask git)")
    recording.add_argument("--launches", type=int, default=3, help="of each day, solo and together (default: 3)")
    command(verify)
    command(charts)
    command(readme).add_argument("--check", action="store_true", help="write nothing; fail if a block differs")
    command(history).add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="such as profile/h200-x2")
    comparing = command(compare, bench)
    comparing.add_argument("folder", type=Path, help="recorded folder, such as profile/h200")
    comparing.add_argument(
        "--from", dest="runs", type=Path, nargs="+", metavar="RUN.jsonl", help="compare these instead"
    )
    options = parser.parse_args(arguments)
    options.root = options.root.resolve()
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = parse(arguments)
    try:
        code = options.run(options)
        flush_stdout()
        return code
    except Stop as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except OSError as error:
        say_failed(error)
        return EXIT_WRONG
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
