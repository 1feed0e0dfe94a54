#!/usr/bin/env python3
"""Collect what the days print with --json in one database, and compare runs and cards.

    build/gpu/day49-roofline/roofline --json > run.jsonl
    scripts/bench_ingest.py ingest run.jsonl profile/ more-runs/
    scripts/bench_ingest.py report
    scripts/bench_ingest.py report --fleet

Of a folder it takes every *.jsonl below it that is a run of a day. What was made from a run (merged counters, predicted
traffic) is passed over, with a line that says so.

The database is SQLite: Python brings it, and one file takes a million rows in half a minute on one core. It has a table
per record type of scripts/schema/row.schema.json, whose columns are that type's keys; `run` numbers the runs. A run is
known by a digest of its records, whatever the order of keys, lines, files and calls, so the same run comes in once. A
call takes everything that it is given or, if a line is bad, nothing. Runs of an older version of the schema come in
with the names of the newest; a database of an older version is refused, because its columns have the old names.

Good lines need nothing but Python; to say what is wrong with a bad one it takes jsonschema, and for Parquet duckdb,
both in scripts/requirements.txt.

Exit code: 0 done; 1 bad input, a database or file that cannot be used; 2 bad usage.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import csv
import functools
import gc
import hashlib
import importlib
import io
import itertools
import json
import marshal
import operator
import os
import re
import sqlite3
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import bounds
import row_schema
from fleet import overlap
from sync_common import replacing, write_whole

ROOT = Path(__file__).resolve().parents[1]
SCHEMA_FILE = Path("scripts/schema/row.schema.json")
DEFAULT_DB = ROOT / "build" / "bench.sqlite"

MAX_PROBLEMS = 20  # more of them say nothing new
MAX_LINE = 1 << 20  # bytes; a day's lines have a few hundred
BATCH = 1000  # records per insert; larger ones leave the cache
KNOWN_LINES = 5000  # that are remembered; the days have 804 different checks
ALONE = 16 << 20  # bytes that one process reads in a second or two; more are shared among processes
MAX_PROCESSES = 8  # SQLite attaches ten databases, and one process puts together what all have read
LOCK_SECONDS = 60  # how long to wait for another ingest
APPLICATION_ID = 0x63756462  # tells our database from another program's; goes up when `digest` changes
TABLE_WIDTH = 120  # columns of text
SHORT_UUID = 12  # "GPU-" and the eight digits that scripts/fleet.py puts into file names too

# The types are spelled so that SQLite and DuckDB mean the same by them.
SQL_TYPES = {"string": "TEXT", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
BEST: dict[str, Callable[[list[float]], float | None]] = {"lower": min, "higher": max, "neither": lambda values: None}


class Refused(Exception):
    """Something the user has to put right; its text is all they need."""


# ---- the schema ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One record type: `columns` maps each key but `record` to its SQL type, `report` is the schema's x-report."""

    name: str
    columns: dict[str, str]
    report: dict[str, Any] | None
    schema: dict[str, Any]  # of this record type alone
    surely_valid: Callable[[Any], bool]  # see make_test

    @functools.cached_property
    def _validator(self) -> Any:
        jsonschema = needed("jsonschema", "to say what is wrong with a line")
        return jsonschema.Draft202012Validator(self.schema)

    def errors(self, fields: dict[str, Any]) -> list[str]:
        """Return what the schema does not take in a record, in words."""
        return [] if self.surely_valid(fields) else [_in_words(error) for error in self._validator.iter_errors(fields)]


@dataclass(frozen=True)
class Schema:
    """The record types by name, in the schema's order, and the version that `run` records carry."""

    version: int
    kinds: dict[str, Kind]


def load_schema(file: Path = ROOT / SCHEMA_FILE) -> Schema:
    """Read the record types, the one place that says which records and keys there are."""
    document = json.loads(file.read_text(encoding="utf-8"))
    definitions = document["$defs"]
    kinds = {}
    for name in map(_target, document["oneOf"]):
        definition = definitions[name]
        columns = {}
        for key, value in definition["properties"].items():
            value = definitions[_target(value)] if "$ref" in value else value
            columns[key] = SQL_TYPES[value.get("type", "string")]  # a const or enum without a type is of strings
        del columns["record"]  # the table's name says it
        schema = {**definition, "$defs": definitions}
        kinds[name] = Kind(name, columns, definition.get("x-report"), schema, make_test(schema))
    return Schema(definitions["run"]["properties"]["schema"]["const"], kinds)


def _target(reference: dict[str, str]) -> str:
    return reference["$ref"].rpartition("/")[2]


def _in_words(error: Any) -> str:
    """Return a jsonschema error with key and value, in a length that a message bears."""
    rule, value = error.validator_value, error.instance
    if error.validator == "anyOf":
        keys = dict.fromkeys(key for choice in rule for key in choice["properties"])
        given = {key: value[key] for key in keys if key in value}
        text = f"{_short(given)} is none of: {', or '.join(choice['description'] for choice in rule)}"
    elif error.validator == "const":
        text = f"{_short(value)} is not {_short(rule)}"
    else:
        text = error.message if len(error.message) <= 200 else f"{error.message[:97]}...{error.message[-100:]}"
    meaning = f" ({error.schema['description']})" if error.path and "description" in error.schema else ""
    return ": ".join([*map(str, error.path), text + meaning])


# Rules of the schema language as Python, {0} is the value: all that make_test knows about a single value.
TYPES = {"object": "type({0}) is dict", "string": "type({0}) is str", "boolean": "type({0}) is bool"}
TYPES.update({"integer": "type({0}) is int", "number": "(type({0}) is float or type({0}) is int)"})
BOUNDS = {"minimum": "{0} >= {1}", "exclusiveMinimum": "{0} > {1}", "maximum": "{0} <= {1}"}
BOUNDS.update({"minLength": "len({0}) >= {1}", "maxLength": "len({0}) <= {1}"})
ANNOTATIONS = {"$defs", "description", "x-report"}


def make_test(schema: dict[str, Any]) -> Callable[[Any], bool]:
    """Return a test that is true only for what the schema surely takes; where it is false, jsonschema has the word.

    It is for speed: of a row jsonschema takes 450 microseconds, fastjsonschema 12, this 3, and there may be millions.
    So what depends on the keys alone is settled once for each set of keys, and a text that was good before is known.
    """
    definitions = schema["$defs"]

    @functools.lru_cache(maxsize=1000)
    def test_for(keys: tuple[str, ...]) -> Callable[..., bool]:
        """Return the test of the values of an object that has these keys, in this order."""
        names = {key: f"value{index}" for index, key in enumerate(keys)}
        constants: dict[str, Any] = {}

        def constant(value: Any) -> str:
            name = f"constant{len(constants)}"
            constants[name] = value
            return name

        def equals(value: str, wanted: Any) -> str:
            return f"(type({value}) is {type(wanted).__name__} and {value} == {wanted!r})"

        def object_rules(schema: dict[str, Any]) -> list[str]:
            """Return Python sources, all true only if the object surely keeps the rules of the schema."""
            parts = []
            for keyword, rule in schema.items():
                if keyword == "$ref":
                    parts += object_rules(definitions[_target(schema)])
                elif keyword == "type":
                    parts.append(str(rule == "object"))
                elif keyword == "anyOf":
                    parts.append(f"({' or '.join(all_of(object_rules(choice)) for choice in rule)})")
                elif keyword == "required":
                    parts.append(str(set(rule) <= names.keys()))
                elif keyword == "properties":
                    for key in rule.keys() & names.keys():
                        parts += value_rules(rule[key], names[key])
                elif keyword == "additionalProperties" and rule is False:
                    parts.append(str(names.keys() <= schema["properties"].keys()))
                elif keyword not in ANNOTATIONS:
                    parts.append("False")  # not known here: never sure
            return parts

        def value_rules(schema: Any, value: str) -> list[str]:
            """Return the same for one value of the object, itself source."""
            if schema is False:
                return ["False"]
            parts = []
            for keyword, rule in schema.items():
                if keyword == "$ref":
                    parts += value_rules(definitions[_target(schema)], value)
                elif keyword == "type":
                    parts.append(TYPES[rule].format(value))
                elif keyword in BOUNDS:
                    parts.append(BOUNDS[keyword].format(value, rule))
                elif keyword == "pattern":
                    known = functools.lru_cache(maxsize=1000)(re.compile(rule).search)
                    parts.append(f"{constant(known)}({value})")
                elif keyword == "const":
                    parts.append(equals(value, rule))
                elif keyword == "enum":
                    parts.append(f"({' or '.join(equals(value, choice) for choice in rule)})")
                elif keyword not in ANNOTATIONS:
                    parts.append("False")  # not known here: never sure
            return parts

        def all_of(parts: list[str]) -> str:
            return "False" if "False" in parts else " and ".join(parts) or "True"

        source = all_of(object_rules(schema))
        return eval(f"lambda {', '.join(names.values()) if source != 'False' else '*values'}: {source}", constants)

    def surely_valid(value: Any) -> bool:
        try:
            return bool(test_for(tuple(value))(*value.values()))
        except (AttributeError, TypeError):  # no object, or a value compared with a bound of another type
            return False

    return surely_valid


def needed(module: str, purpose: str) -> Any:
    """Import a package that Python does not bring; Refused says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise Refused(
            f"the Python package {module} is not there, needed {purpose}: use build/venv/bin/python, which "
            "scripts/lessons test makes, or python3 -m pip install -r scripts/requirements.txt"
        ) from None


# ---- one line --------------------------------------------------------------------------------------------------------


class BadLine(Exception):
    """What is wrong with a line; `fatal` if reading on in its file makes no sense."""

    def __init__(self, text: str, fatal: bool = False):
        super().__init__(text)
        self.fatal = fatal
        self.of_run = False  # a run record, so that the records below it are of some run
        self.version: Any = None  # of a run record: that of the schema


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadLine(f"the key {_short(twice)} is there twice; keep the one that the program printed")
    return fields


def _constant(literal: str) -> float:
    raise BadLine(f"{literal} is not JSON, where numbers are finite; take the run again with --json")


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
scan_once = json.JSONDecoder(parse_constant=_constant).scan_once


def parse(raw: bytes) -> dict[str, Any]:
    """Return the object that a line of bytes, line end included, holds; BadLine if it holds none."""
    try:
        text = raw.decode("utf-8")
        try:
            fields, end = scan_once(text, 0)
            # Without a doubt one plain object, no key twice: each pair has its colon. Half as fast is the way below.
            if type(fields) is dict and text.count(":") == len(fields) and text[end:] == "\n":
                return fields
        except (StopIteration, ValueError):  # what is wrong is said below
            pass
        fields = DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise _why_not_json(raw, error) from None
    if not isinstance(fields, dict):
        raise BadLine(f"holds {_short(fields)}, but every line is one JSON object, {{...}}")
    return fields


def _why_not_json(raw: bytes, error: Exception) -> BadLine:
    again = "take the run again with --json"
    if isinstance(error, UnicodeDecodeError) or b"\0" in raw:
        at = error.start if isinstance(error, UnicodeDecodeError) else raw.index(b"\0")
        return BadLine(
            f"not text: byte 0x{raw[at]:02x} at column {at + 1}; give the UTF-8 lines that a day prints with --json "
            "(PowerShell's > writes UTF-16: use cmd /c)",
            fatal=True,
        )
    if not raw.endswith(b"\n"):
        if len(raw) == MAX_LINE:
            return BadLine(f"over {MAX_LINE} bytes, and a day's lines are short; {again}", fatal=True)
        if raw.lstrip().startswith(b"{"):
            return BadLine(f"cut off after {_short(raw.decode()[-30:])}: whoever wrote it stopped early; {again}")
    if isinstance(error, json.JSONDecodeError):
        return BadLine(f"not JSON: {error.msg} at column {error.colno}, in {_short(raw.decode().rstrip())}; {again}")
    what = "nested too deep" if isinstance(error, RecursionError) else "a number with too many digits"
    return BadLine(f"{what}; {again}")


def _short(value: Any) -> str:
    """Return a value as JSON in ASCII, in a length that a message bears."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check(fields: dict[str, Any], schema: Schema) -> Kind:
    """Return the type of a record that the schema takes; BadLine says what it does not take."""
    again = "take the run again, or update the scripts if a newer program printed it"
    name = fields.get("record")
    kind = schema.kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BadLine(f"record is {_short(name)}, not one of {', '.join(schema.kinds)}; {again}")
    if name == "run":
        version = fields.get("schema")
        if isinstance(version, int) and version > schema.version:
            raise BadLine(
                f"schema version {version} comes from the future, known is {schema.version}; update the scripts",
                fatal=True,
            )
    errors = kind.errors(fields)
    if errors:
        raise BadLine(f"{name} record: {'; '.join(errors[:3])} [{SCHEMA_FILE}]; {again}")
    return kind


# ---- ingest ----------------------------------------------------------------------------------------------------------


@functools.lru_cache
def _sorted_by_key(keys: tuple[str, ...]) -> tuple[bytes, operator.itemgetter]:
    ordered = sorted(keys)
    return ascii(ordered).encode("ascii"), operator.itemgetter(*ordered)


def digest(fields: dict[str, Any]) -> bytes:
    """Return the SHA-256 of a record, the same for any order of its keys and on every machine."""
    keys, values = _sorted_by_key(tuple(fields))
    # Version 2 of marshal, the one from before it told shared objects apart, gives equal values equal bytes. To write
    # the numbers in digits takes 5 microseconds more, a fifth of all that a record takes.
    return hashlib.sha256(keys + marshal.dumps(values(fields), 2)).digest()


class Enough(Exception):
    """There are so many bad lines that more of them say nothing new."""


class Stage:
    """All that one process reads, in a database of its own, until every line of a call is known to be good."""

    def __init__(self, schema: Schema, file: Path):
        self.schema = schema
        self.problems: list[str] = []
        self.connection = sqlite3.connect(file, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = OFF")
        self.connection.execute("PRAGMA synchronous = OFF")
        create_tables(self.connection, schema, "main")
        self.connection.execute("BEGIN")
        self._rows: dict[str, list[tuple]] = {name: [] for name in schema.kinds}
        self._waiting = 0
        self._run = 0
        self._head: tuple | None = None  # the open run's own values
        self._digests: list[bytes] = []
        # Half of all lines are checks, and passed checks look the same in every run of a program.
        self.understand = functools.lru_cache(maxsize=KNOWN_LINES)(self._understand)

    def _understand(self, raw: bytes, version: Any) -> tuple[Kind, dict[str, Any], tuple, bytes, Any]:
        """Return record type, fields, values in the order of the type's columns, digest and version of a line.

        The fields have the names of the newest version; `version` is that of the run before the line. Raises BadLine.
        """
        fields = parse(raw)
        of_run = fields.get("record") == "run"
        version = fields.get("schema") if of_run else version
        fields = row_schema.up_to_date(fields, version)
        try:
            kind = check(fields, self.schema)
        except BadLine as problem:
            problem.of_run, problem.version = of_run, version if type(version) is int else None
            raise
        return kind, fields, tuple(map(fields.get, kind.columns)), digest(fields), version

    def refuse(self, shown: str, line: int, text: str) -> None:
        """Note what is wrong at a file and line; Enough when it is enough."""
        self.problems.append(f"{shown}:{line}: {text}")
        if len(self.problems) == MAX_PROBLEMS:
            raise Enough

    def add(self, kind: Kind, values: tuple, digest: bytes) -> None:
        """Add a record; a `run` record begins a run."""
        if kind.name == "run":
            self._run += 1
            self._head = values
        else:
            self._rows[kind.name].append((self._run, *values))
            self._waiting += 1
            if self._waiting >= BATCH:
                self._flush()
        self._digests.append(digest)

    def end_run(self) -> None:
        """Close the open run, if there is one."""
        if self._head is not None:
            run_digest = hashlib.sha256(b"".join(sorted(self._digests))).hexdigest()
            self._rows["run"].append((self._run, run_digest, *self._head))
        self._head = None
        self._digests = []

    def _flush(self) -> None:
        # A run that this call met before is ignored (digest is unique), and its records then belong to no run.
        for name, rows in self._rows.items():
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self.connection.executemany(f'INSERT OR IGNORE INTO main."{name}" VALUES ({marks})', rows)
                rows.clear()
        self._waiting = 0

    def close(self) -> int:
        """Write what is waiting, and return how many runs were met."""
        self._flush()
        self.connection.execute("COMMIT")
        self.connection.close()
        return self._run


def move(stages: list[Path], db: Path, schema: Schema) -> tuple[int, int]:
    """Move the runs that `db` lacks there, in one transaction; return how many runs and records were added."""
    added = records = 0
    with contextlib.closing(sqlite3.connect(db, isolation_level=None, timeout=LOCK_SECONDS)) as connection:
        execute = connection.execute
        for index, stage in enumerate(stages):
            execute(f"ATTACH ? AS stage{index}", (str(stage),))
        execute("BEGIN IMMEDIATE")
        create_tables(connection, schema, "main")
        execute("CREATE TEMP TABLE fresh (run INTEGER PRIMARY KEY)")
        for stage in (f"stage{index}" for index in range(len(stages))):
            execute("DELETE FROM temp.fresh")
            lacking = f"SELECT run FROM {stage}.run WHERE digest NOT IN (SELECT digest FROM main.run)"
            added += execute(f"INSERT INTO temp.fresh {lacking}").rowcount
            (base,) = execute("SELECT coalesce(max(run), 0) FROM main.run").fetchone()
            for kind in schema.kinds.values():
                columns = ", ".join(f'"{column}"' for column in own_columns(kind))
                (run, rest) = columns.split(", ", 1)
                records += execute(
                    f'INSERT INTO main."{kind.name}" ({columns}) SELECT {run} + {base}, {rest} '
                    f'FROM {stage}."{kind.name}" WHERE run IN (SELECT run FROM temp.fresh) ORDER BY rowid'
                ).rowcount
        execute("COMMIT")
    return added, records


def own_columns(kind: Kind) -> dict[str, str]:
    """Return the columns of a record type's table with their declarations."""
    own = {"run": "INTEGER PRIMARY KEY", "digest": "TEXT UNIQUE"} if kind.name == "run" else {"run": "INTEGER"}
    return {**own, **kind.columns}


def create_tables(connection: sqlite3.Connection, schema: Schema, database: str) -> None:
    """Bring an attached database up to the schema: make what is missing, keep what is there.

    Refused if it belongs to another program or to a newer schema.
    """
    execute = connection.execute
    file = next(file for _, name, file in execute("PRAGMA database_list") if name == database)
    (owner,) = execute(f"PRAGMA {database}.application_id").fetchone()
    (version,) = execute(f"PRAGMA {database}.user_version").fetchone()
    (tables,) = execute(f"SELECT count(*) FROM {database}.sqlite_master").fetchone()
    if tables and owner != APPLICATION_ID:
        raise Refused(f"{file}: is a database of another program; give another file with --db")
    if tables and version < schema.version:
        raise Refused(
            f"{file}: its schema version {version} is older than {schema.version}, and has other names; "
            "delete it, or give another file with --db, and ingest the runs again"
        )
    if version > schema.version:
        raise Refused(
            f"{file}: its schema version {version} comes from the future, known is {schema.version}; update the scripts"
        )
    if not tables:
        execute(f"PRAGMA {database}.application_id = {APPLICATION_ID}")
    if version < schema.version:
        execute(f"PRAGMA {database}.user_version = {schema.version}")
    for kind in schema.kinds.values():
        columns = own_columns(kind)
        declared = ", ".join(f'"{column}" {declaration}' for column, declaration in columns.items())
        execute(f'CREATE TABLE IF NOT EXISTS {database}."{kind.name}" ({declared})')
        there = {column[1] for column in execute(f'PRAGMA {database}.table_info("{kind.name}")')}
        for column in columns.keys() - there:
            execute(f'ALTER TABLE {database}."{kind.name}" ADD COLUMN "{column}" {columns[column]}')


def read(stage: Stage, shown: str, stream: BinaryIO) -> None:
    """Stage the runs of one input, which are of one card; what is wrong goes to `stage.problems`."""

    def end_run() -> None:
        """Close the open run, and hold its figures to what its card can do."""
        stage.end_run()
        for line, what in bounds.impossible(timed):
            stage.refuse(shown, line, f"impossible: {what}; take the run again")
        timed.clear()

    number = 0
    timed: list[tuple[int, dict[str, Any]]] = []  # the open run's lines, but for checks
    first: tuple[str, str, int] | None = None  # the input's card, and the line that named it
    in_run = False
    version = None  # of the open run's lines
    for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), start=1):
        try:
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            kind, fields, values, record_digest, version = stage.understand(raw, version)
            if kind.name == "run":
                end_run()
                in_run = True
                card = (fields["device"], fields["uuid"])
                first = first or (*card, number)
                if card != first[:2]:
                    raise BadLine(
                        f"a second card, {card[0]} {card[1]}, after {first[0]} {first[1]} in line {first[2]}; "
                        "their lines may be mixed: write one file per card, and give both"
                    )
            elif not in_run:
                in_run = True  # that is all there is to say
                raise BadLine(
                    f"{kind.name} record before any run record: the run's beginning is missing; take it again"
                )
            stage.add(kind, values, record_digest)
            if kind.name != "check":
                timed.append((number, fields))
        except BadLine as problem:
            in_run = in_run or problem.of_run
            version = problem.version if problem.of_run else version
            stage.refuse(shown, number, str(problem))
            if problem.fatal:
                break
    end_run()
    if number == 0:
        stage.refuse(shown, 1, "the file is empty; take the run again with --json")


# The records of files that are made from a run: day49-roofline/merge_dram.py writes the first, --trace the second.
MADE_FROM_RUNS = re.compile(rb'"record":"(merged|traffic)"')


def inputs(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names of all inputs, and a line about each file of a folder that is none.

    An input is a file, each *.jsonl below a folder that was not made from a run, or "-" for stdin.
    """
    names, passed_over = [], []
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            names.append(path)
            continue
        files = [str(file) for file in sorted(Path(path).rglob("*.jsonl"))]
        if not files:
            raise Refused(f"{path}: no *.jsonl in this folder or below; name the files themselves")
        for file in files:
            with open(file, "rb") as stream:
                made = MADE_FROM_RUNS.search(stream.readline(MAX_LINE)) or MADE_FROM_RUNS.search(
                    stream.readline(MAX_LINE)
                )
            if made:
                passed_over.append(f"{file}: passed over: made from a run, its records are {made[1].decode()}\n")
            else:
                names.append(file)
    return names, passed_over


def shares_of(names: list[str], processes: int) -> list[list[str]]:
    """Split the inputs, in their order, into shares of about the same number of bytes; little work is one share."""
    if "-" in names:  # stdin is this process's alone
        return [names]
    sizes = [os.stat(name).st_size for name in names]
    if sum(sizes) < ALONE:
        return [names]
    shares: list[list[str]] = [[] for _ in range(processes)]
    before = 0
    for name, size in zip(names, sizes):
        shares[before * processes // sum(sizes)].append(name)
        before += size
    return [share for share in shares if share]


def read_share(names: list[str], file: Path) -> tuple[int, list[str]]:
    """Read inputs into a stage at `file`; return how many runs were met and what is wrong."""
    stage = Stage(load_schema(), file)
    with contextlib.suppress(Enough):
        for name in names:
            with contextlib.nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as stream:
                read(stage, "<stdin>" if name == "-" else name, stream)
    return stage.close(), stage.problems


def ingest(paths: Iterable[str], db: Path) -> str:
    """Put all runs of `paths` into `db`, made if missing, and return what was done; Refused changes nothing."""
    names, passed_over = inputs(paths)
    shares = shares_of(names, min(os.cpu_count() or 1, MAX_PROCESSES))
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as folder:
        stages = [Path(folder, f"{index}.sqlite") for index in range(len(shares))]
        if len(shares) == 1:
            results = [read_share(shares[0], stages[0])]
        else:
            with concurrent.futures.ProcessPoolExecutor(len(shares)) as pool:
                results = list(pool.map(read_share, shares, stages))
        problems = [problem for _, found in results for problem in found]
        if problems:
            stopped = f"stopped after {MAX_PROBLEMS} bad lines; " * (len(problems) >= MAX_PROBLEMS)
            raise Refused("\n".join([*problems[:MAX_PROBLEMS], f"{stopped}nothing was changed"]))
        if db == DEFAULT_DB:
            db.parent.mkdir(exist_ok=True)
        added, records = move(stages, db, load_schema())
    met = sum(runs for runs, _ in results)
    return "".join(passed_over) + f"{db}: runs added: {added} ({records} records), there already: {met - added}\n"


# ---- report ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """`rows` of values in the order of `columns`, which maps each name to its SQL type.

    For a person, the rows that agree in their first `heads` values are a block below the title that these make, and
    its columns begin with `first`.
    """

    columns: dict[str, str]
    rows: list[tuple]
    heads: int
    first: int
    title: Callable[..., str]


def programs_of(connection: sqlite3.Connection) -> dict[int, tuple[str, str, int]]:
    """Return device, UUID and day of each run: what was run where. A record's own day is its kernel's."""
    return {run: tuple(rest) for run, *rest in connection.execute("SELECT run, device, uuid, day FROM run")}


@contextlib.contextmanager
def reading(db: Path, schema: Schema) -> Iterator[sqlite3.Connection]:
    """Open the database for one look at it, whoever writes meanwhile."""
    uri = f"{db.as_uri()}?mode=rw"  # not created if it is not there
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=LOCK_SECONDS)) as connection:
        create_tables(connection, schema, "main")
        connection.execute("BEGIN")
        yield connection


def make_report(db: Path) -> Report:
    """Return best and median of every case on every card, over the runs of a program.

    In the order of card, program, record type and case. `program_day` is the program's day, `day` the kernel's.
    """
    schema = load_schema()
    kinds = [kind for kind in schema.kinds.values() if kind.report]
    cases = {key: kind.columns[key] for kind in kinds for key in kind.report["case"]}
    text, number = SQL_TYPES["string"], SQL_TYPES["number"]
    columns = {"device": text, "uuid": text, "program_day": SQL_TYPES["integer"], "record": text, **cases}
    columns.update(symbol=text, metric=text, unit=text, runs=SQL_TYPES["integer"], best=number, median=number)

    found: dict = collections.defaultdict(list)  # by card and program: rows, each with its place among these
    with reading(db, schema) as connection:
        card_of = programs_of(connection)
        for order, kind in enumerate(kinds):
            own = [key for key in cases if key in kind.columns]
            selected = ", ".join(f'"{key}"' for key in own)
            symbol = "symbol" if "symbol" in kind.columns else "NULL"
            # By card, then by case, metric and unit: run, value and symbol of each record. There are millions.
            groups: dict = collections.defaultdict(lambda: collections.defaultdict(list))
            for row in connection.execute(f'SELECT run, value, {symbol}, {selected}, metric, unit FROM "{kind.name}"'):
                groups[card_of[row[0]]][row[3:]].append(row[:3])

            @functools.cache
            def place(group: tuple, order: int = order, own: list[str] = own) -> tuple[tuple, list]:
                """Return where a group stands among its card's, and its case in the report's columns."""
                given = dict(zip(own, group))
                case = [given.get(key) for key in cases]
                # A key younger than the run is NULL there, and comes first.
                return (order, *((key is not None, key) for key in case), *group[len(own) :]), case

            for card, members in groups.items():
                for group, records in members.items():
                    at, case = place(group)
                    runs, values, symbols = zip(*records)
                    symbol = " ".join(sorted(set(symbols) - {None})) or None
                    best, median = BEST[kind.report["better"]](values), statistics.median(values)
                    row = (*card, kind.name, *case, symbol, *group[len(own) :], len(set(runs)), best, median)
                    found[card].append((at, row))
    rows = []
    for card in sorted(found):
        rows += [row for _, row in sorted(found[card], key=operator.itemgetter(0))]
    title = "{0}, {1:.12}, day {2}".format  # the record type is in the CSV
    return Report(columns, rows, 3, 4, title)


OUTLIER = 3  # times the median absolute deviation (MAD) below the median
FLEET_COLUMNS = {
    "device": "TEXT",
    "day": "BIGINT",
    **dict.fromkeys(("variant", "unit", "what", "node", "host", "uuid", "mode"), "TEXT"),
    **dict.fromkeys(("cards", "runs"), "BIGINT"),
    **dict.fromkeys(("value", "mad", "low", "high", "percent"), "DOUBLE"),
    "note": "TEXT",
}


@dataclass(frozen=True)
class Stay:
    """Where a run stood in its launch: the `fleet` record of scripts/fleet.py, or `single` without one."""

    mode: str = "single"
    launch: str | None = None
    node: str | None = None
    host: str | None = None
    node_cards: int = 1
    began: float = 0.0
    seconds: float = 0.0


def make_fleet_report(db: Path) -> Report:
    """Return each ceiling of a program on every card beside the cards of its model, and the sums of nodes.

    A row is of a card (`value` is the median of its runs), of the fleet (`value` is the median of its cards' medians,
    `mad` their median absolute deviation) or of a node (`value` is the sum of its cards: together, of one launch, and
    the median over the launches; solo, of the cards' medians). `low` and `high` are the ends of what the median was
    taken of; `percent` is a card's share of the fleet's median, and a node's sum together of its sum solo.
    """
    schema = load_schema()
    with reading(db, schema) as connection:
        program_of = programs_of(connection)
        stays = {
            run: Stay(*fields)
            for run, *fields in connection.execute(
                "SELECT run, mode, launch, coalesce(host, node), host, node_cards, began, seconds FROM fleet"
            )
        }
        # By model and ceiling: run, card and value of each record.
        found: dict = collections.defaultdict(list)
        for run, variant, unit, value in connection.execute("SELECT run, variant, unit, value FROM ceiling"):
            device, card, day = program_of[run]
            found[device, day, variant, unit].append((stays.get(run, Stay()), card, value))
    rows = []
    for ceiling in sorted(found):
        by_mode: dict = collections.defaultdict(lambda: collections.defaultdict(list))
        for stay, card, value in found[ceiling]:
            by_mode[stay.mode][card].append((stay, value))
        for mode in sorted(by_mode):
            rows += [(*ceiling, *row) for row in card_rows(mode, by_mode[mode])]
        rows += [(*ceiling, *row) for row in node_rows(by_mode["solo"], by_mode["together"])]
    title = "{0}, day {1}, {2}, {3}".format
    return Report(FLEET_COLUMNS, rows, 4, 4, title)


def card_rows(mode: str, cards: dict[str, list[tuple[Stay, float]]]) -> Iterator[tuple]:
    """Yield a row for each card, the slowest first, and one for all of them."""
    medians = {card: statistics.median(value for _, value in runs) for card, runs in cards.items()}
    middle = statistics.median(medians.values())
    mad = statistics.median(abs(value - middle) for value in medians.values())
    for card in sorted(cards, key=lambda card: (medians[card], card)):
        value, values = medians[card], [value for _, value in cards[card]]
        last = max((stay for stay, _ in cards[card]), key=lambda stay: stay.began)
        below = f"outlier, {100 * (1 - value / middle):.2g} % below median"
        note = below if value < middle - OUTLIER * mad else None
        ends = (min(values), max(values), 100 * value / middle)
        yield ("card", last.node, last.host, card, mode, 1, len(values), value, None, *ends, note)
    runs, ends = sum(map(len, cards.values())), (min(medians.values()), max(medians.values()))
    yield ("fleet", None, None, None, mode, len(cards), runs, middle, mad, *ends, None, None)


def node_rows(solo: dict[str, list[tuple[Stay, float]]], together: dict[str, list[tuple[Stay, float]]]) -> Iterator:
    """Yield the sums of each node: of its cards' solo medians, and of the runs that were there at once."""
    alone: dict = collections.defaultdict(lambda: collections.defaultdict(list))  # by node and card
    for card, runs in solo.items():
        for stay, value in runs:
            alone[stay.node][card].append((stay, value))
    launches: dict = collections.defaultdict(lambda: collections.defaultdict(dict))  # by node, launch and card
    for card, runs in together.items():
        for stay, value in runs:
            launches[stay.node][stay.launch][card] = (stay, value)
    for node in sorted({*alone, *launches}):
        # A launch that lost a card says nothing about the node, unless there is no better one.
        cards = set(max(launches[node].values(), key=len, default=alone[node]))
        at_once = [launch for launch in launches[node].values() if launch.keys() == cards]
        summed = {card: runs for card, runs in alone[node].items() if card in cards}
        alone_sum = sum(statistics.median(value for _, value in runs) for runs in summed.values())
        if summed:
            stay = next(iter(summed.values()))[0][0]
            runs = sum(map(len, summed.values()))
            yield _node_row(stay, "solo", len(summed), runs, [alone_sum], None, [])
        if at_once:
            stay = next(iter(at_once[0].values()))[0]
            sums = [sum(value for _, value in launch.values()) for launch in at_once]
            percent = 100 * statistics.median(sums) / alone_sum if len(summed) == len(cards) else None
            share = min(overlap((stay.began, stay.seconds) for stay, _ in launch.values()) for launch in at_once)
            note = [f"at once {100 * share:.0f} % of the time"]
            yield _node_row(stay, "together", len(cards), len(sums) * len(cards), sums, percent, note)


def _node_row(
    stay: Stay, mode: str, cards: int, runs: int, sums: list[float], percent: float | None, note: list[str]
) -> tuple:
    if cards < stay.node_cards:
        note = [f"{cards} of {stay.node_cards} cards", *note]
    figures = (statistics.median(sums), None, min(sums), max(sums), percent)
    return ("node", stay.node, stay.host, None, mode, cards, runs, *figures, "; ".join(note) or None)


def as_csv(report: Report) -> str:
    """Return the report as CSV with a header; numbers in full, empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(report.columns)
    writer.writerows(report.rows)
    return text.getvalue()


def as_table(report: Report) -> str:
    """Return the report for a person: in blocks, six significant digits, no line over TABLE_WIDTH, and nothing cut.

    What is too wide goes on in the next line. A UUID is shown by its beginning, if that tells the cards apart.
    """
    names = list(report.columns)[report.first :]
    right = [report.columns[name] != SQL_TYPES["string"] for name in names]
    uuids = {row[list(report.columns).index("uuid")] for row in report.rows}
    short = len({uuid and uuid[:SHORT_UUID] for uuid in uuids}) == len(uuids)
    blocks = []
    for head, rows in itertools.groupby(report.rows, key=lambda row: row[: report.heads]):
        cells = [names] + [[_cell(value) for value in row[report.first :]] for row in rows]
        if short and "uuid" in names:
            at = names.index("uuid")
            cells = [[*line[:at], line[at][:SHORT_UUID], *line[at + 1 :]] for line in cells]
        widths = [max(map(len, column)) for column in zip(*cells)]
        for index in range(len(names)):
            if not any(line[index] for line in cells[1:]):
                widths[index] = 0  # no case of this card has it
        while sum(widths) + sum(map(bool, widths)) - 1 > TABLE_WIDTH:
            widths[widths.index(max(widths))] -= 1
        lines = textwrap.wrap(report.title(*head), TABLE_WIDTH)
        for line in cells:
            folded = [textwrap.wrap(cell, width) or [""] for cell, width in zip(line, widths) if width]
            sides = [str.rjust if to_right else str.ljust for to_right, width in zip(right, widths) if width]
            for parts in itertools.zip_longest(*folded, fillvalue=""):
                fitted = zip(sides, parts, filter(None, widths))
                lines.append(" ".join(side(part, width) for side, part, width in fitted).rstrip())
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_parquet(report: Report, file: Path) -> None:
    """Write the report as a Parquet file, with DuckDB, which takes it as CSV."""
    duckdb = needed("duckdb", "to write Parquet")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "report.csv")
        source.write_text(as_csv(report), encoding="utf-8")
        options = {"header": True, "sep": ",", "quotechar": '"', "escapechar": '"', "dtype": report.columns}
        try:
            duckdb.read_csv(str(source), **options).write_parquet(str(file))
        except duckdb.Error as error:
            raise Refused(f"{file}: {error}; can files be written there?") from None


def regular(path: Path) -> Path:
    """Return the absolute path; Refused if it is there and not an ordinary file (a folder, a device)."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise Refused(f"{path}: is not an ordinary file; name one, or one to be made")
    return path


def report(db: Path, form: str, out: Path | None, fleet: bool) -> str:
    """Write the report as `form` to `out` and return "", or return its text if there is no `out`."""
    if not db.exists():
        raise Refused(f"{db}: no such database; fill it with: scripts/bench_ingest.py ingest --db {db} PATH...")
    made = make_fleet_report(db) if fleet else make_report(db)
    if not made.rows:
        print(f"{db}: no timed record; runs on a GPU without --check have some", file=sys.stderr)
    if form == "parquet":
        with replacing(out, [db]) as file:
            write_parquet(made, file)
        return ""
    text = as_csv(made) if form == "csv" else as_table(made)
    if out is None:
        return text
    write_whole(out, text, [db])
    return ""


def print_whole(text: str) -> None:
    """Print and flush; Refused if stdout does not take it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stdout.close()  # or Python tries once more on its way out, and ends with 120
        raise Refused(f"stdout: {error.strerror}; not all of the text was written") from None


# ---- command line ----------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("ingest", help="put runs into the database")
    taking.add_argument(
        "paths", nargs="+", metavar="PATH", help="file, folder (every run below it, in a *.jsonl), or - for stdin"
    )
    showing = commands.add_parser("report", help="best and median per card, day and variant")
    showing.add_argument("--fleet", action="store_true", help="ceilings of each card beside the others, sums of nodes")
    showing.add_argument("--format", choices=["table", "csv", "parquet"], default="table", help="default: table")
    showing.add_argument("--out", type=Path, metavar="FILE", help="write there and not to stdout; parquet needs it")
    for command in (taking, showing):
        command.add_argument("--db", type=Path, metavar="FILE", default=DEFAULT_DB, help="default: build/bench.sqlite")
    options = parser.parse_args(arguments)
    if options.command == "report" and options.format == "parquet" and options.out is None:
        showing.error("--format parquet is for a file: add --out FILE")

    try:
        db = regular(options.db)
        try:
            ingesting = options.command == "ingest"
            text = ingest(options.paths, db) if ingesting else report(db, options.format, options.out, options.fleet)
        except sqlite3.Error as error:
            raise Refused(f"{db}: {error}; is it a database of this script, and may you write it?") from None
        print_whole(text)
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(*filter(None, (error.filename, error.strerror)), sep=": ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    gc.disable()  # no cycles are made, and to look for some among millions of records takes a third of the time
    sys.exit(main())
