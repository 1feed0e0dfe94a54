"""scripts/bench_ingest.py: what it takes in once, what it refuses whole, what it reports, and how fast."""

import csv
import functools
import importlib
import itertools
import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
SCRIPT = SCRIPTS / "bench_ingest.py"
DATA = Path(__file__).parent / "data" / "ingest"
GPU = DATA / "day49-h200.jsonl"
CPU = DATA / "day49-cpu-failed.jsonl"
MATMUL = DATA / "day44-h200.jsonl"
GRAPHS = DATA / "day56-h200.jsonl"
GPU_LINES = GPU.read_text().splitlines()
RUN, ROW = GPU_LINES[0], next(line for line in GPU_LINES if '"record":"row"' in line)


@pytest.fixture(scope="module")
def tool():
    """Return the script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("bench_ingest")
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture
def db(tmp_path):
    return tmp_path / "bench.sqlite"


def run(command, db, *arguments, stdin=None, env=None):
    """Run the script with a database and return the result; stdin is bytes."""
    result = subprocess.run(
        [sys.executable, SCRIPT, command, "--db", db, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    result.stdout, result.stderr = result.stdout.decode(), result.stderr.decode()
    assert "Traceback" not in result.stderr
    return result


def ingest(db, *paths, stdin=None):
    result = run("ingest", db, *paths, stdin=stdin)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def report(db, *arguments):
    result = run("report", db, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def refused(result, *parts):
    assert (result.returncode, result.stdout) == (1, "")
    for part in parts:
        assert part in result.stderr


def query(db, sql):
    with sqlite3.connect(db) as connection:
        found = connection.execute(sql).fetchall()
    connection.close()
    return found


def lines(*records):
    return "".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records)


def a_run(minute=0, device="Card A", uuid="a", values=(1.0,), **changes):
    """Return the lines of a run on a made-up card; one row per value."""
    head = {**json.loads(RUN), "device": device, "utc": f"2026-01-01T00:{minute:02}:00Z"}
    head["uuid"] = f"GPU-{uuid * 8}-{uuid * 4}-{uuid * 4}-{uuid * 4}-{uuid * 12}"
    rows = [{**json.loads(ROW), "variant": f"v{index}", "value": value} for index, value in enumerate(values)]
    return lines(head, *({**row, **changes} for row in rows))


# ---- what comes in


@pytest.mark.parametrize("file", [GPU, MATMUL, GRAPHS], ids=lambda file: file.stem)
def test_every_record_type_has_its_table_and_every_key_its_column(db, file):
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert ingest(db, file) == f"{db}: runs added: 1 ({len(records)} records), there already: 0\n"
    for record in {line["record"] for line in records}:
        given = [line for line in records if line["record"] == record]
        keys = [key for key in dict.fromkeys(itertools.chain(*given)) if key != "record"]
        selected = ", ".join(f'"{key}"' for key in keys)
        stored = query(db, f'SELECT run, {selected} FROM "{record}" ORDER BY rowid')
        assert stored == [(1, *(line.get(key) for key in keys)) for line in given]


def test_a_failed_check_is_kept_with_its_message(db):
    ingest(db, CPU)
    assert query(db, "SELECT ok, wrong > 0, message IS NULL FROM 'check'") == [(1, 0, 1), (0, 1, 0)]


def test_several_runs_in_one_file_folders_and_stdin(db, tmp_path):
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "two.jsonl").write_text(a_run(1) + a_run(2))
    (folder / "deep" / "three.jsonl").write_text(a_run(3))
    (folder / "notes.txt").write_text("not a run")
    printed = ingest(db, folder, "-", CPU, stdin=(a_run(4) + a_run(5)).encode())
    assert "runs added: 6" in printed
    assert query(db, "SELECT count(*), count(DISTINCT digest), count(DISTINCT utc) FROM run") == [(6, 6, 6)]
    assert query(db, "SELECT run, count(*) FROM row GROUP BY run") == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]


def test_the_recorded_folders_are_taken_in_as_the_readme_says(db):
    """Each recorded run once; what was made from one is passed over and named."""
    profile = SCRIPTS.parent / "profile"
    assert "scripts/bench_ingest.py ingest profile/" in (profile.parent / "README.md").read_text()
    runs = [path for path in sorted(profile.glob("*/*.jsonl")) if not path.stem.endswith(("-merged", "-predicted"))]
    printed = ingest(db, f"{profile}/")
    made = sorted(path for path in profile.glob("*/*.jsonl") if path not in runs)
    assert [line.partition(": ")[0] for line in printed.splitlines()[:-1]] == [str(path) for path in made] != []
    assert "day49-merged.jsonl: passed over: made from a run, its records are merged\n" in printed
    heads = [json.loads(path.open().readline()) for path in runs]
    given = sorted((head["day"], head["uuid"], head["utc"]) for head in heads)
    assert query(db, "SELECT day, uuid, utc FROM run ORDER BY day, uuid, utc") == given
    assert query(db, "SELECT count(*) FROM merged") == [(0,)]


def test_a_run_without_its_beginning_is_no_file_to_pass_over(db, tmp_path):
    (tmp_path / "cut.jsonl").write_text(lines(ROW))
    refused(run("ingest", db, tmp_path), "row record before any run record")


def test_merged_lines_are_taken_where_they_are_named(db):
    assert "runs added: 1" in ingest(db, DATA / "day49-merged.jsonl")


def shuffled_keys(text):
    return lines(*(dict(reversed(json.loads(line).items())) for line in text.splitlines()))


@pytest.mark.parametrize(
    "again",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace('":', '" : '),
        lambda text: lines(*(dict(reversed(json.loads(line).items())) for line in text.splitlines())),
        lambda text: lines(text.splitlines()[0], *reversed(text.splitlines()[1:])),
        lambda text: text + text,
    ],
    ids=["same", "CRLF", "no last newline", "byte order mark", "spaces", "key order", "line order", "twice"],
)
def test_the_same_run_is_one_run(db, tmp_path, again):
    file = tmp_path / "again.jsonl"
    file.write_bytes(again(GPU.read_text()).encode())
    assert "runs added: 1" in ingest(db, GPU, file)
    tables = [name for (name,) in query(db, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    before = {table: query(db, f'SELECT * FROM "{table}"') for table in tables}
    for paths in ([GPU, file], [file]):
        assert "runs added: 0 (0 records)" in ingest(db, *paths)
    assert before == {table: query(db, f'SELECT * FROM "{table}"') for table in tables}
    assert sum(map(len, before.values())) == len(GPU_LINES)


def test_a_run_of_schema_1_is_the_run_with_the_names_of_today(db, tmp_path):
    """Also where a run of the other version follows in the same file."""
    names = ["day49-h200.jsonl", "levels-day30-h200.jsonl", "patterns-day49-h200.jsonl"]
    old, new = ([DATA.parent / folder / name for name in names] for folder in ("schema1", "ingest"))
    assert "runs added: 3" in ingest(db, *old)
    assert query(db, "SELECT DISTINCT schema FROM run") == [(2,)]
    assert query(db, 'SELECT count(*) FROM "row" WHERE requested_bytes IS NULL') == [(0,)]
    assert "runs added: 0 (0 records)" in ingest(db, *new)
    text = old[0].read_text()
    both = tmp_path / "both.jsonl"
    both.write_text(
        text.replace('"utc":"20', '"utc":"21') + new[0].read_text() + text.replace('"utc":"20', '"utc":"22')
    )
    assert "runs added: 2" in ingest(db, both)


def test_the_names_of_one_schema_are_none_of_the_other(db, tmp_path):
    text = (DATA.parent / "schema1" / GPU.name).read_text()
    file = tmp_path / "run.jsonl"
    file.write_text(text.replace('"schema":1', '"schema":2'))
    refused(run("ingest", db, file), "'bytes' was unexpected")
    file.write_text(text.replace('"bytes":', '"bytes":1,"requested_bytes":', 1))
    refused(run("ingest", db, file), "'bytes' was unexpected")


def test_the_order_of_files_and_calls_does_not_matter(tmp_path):
    files = []
    for minute in range(4):
        files.append(tmp_path / f"{minute}.jsonl")
        files[-1].write_text(a_run(minute, values=(1.0 + minute, 2.0)))
    one, other = tmp_path / "one.sqlite", tmp_path / "other.sqlite"
    ingest(one, *files)
    for file in (files[2], files[0], tmp_path, files[1]):
        ingest(other, file)
    digests = "SELECT digest FROM run ORDER BY digest"
    assert query(one, digests) == query(other, digests)
    assert report(one, "--format", "csv") == report(other, "--format", "csv")


def test_a_run_that_differs_in_one_value_is_another_run(db, tmp_path):
    file = tmp_path / "other.jsonl"
    file.write_text(GPU.read_text().replace('"samples":21', '"samples":22', 1))
    ingest(db, GPU)
    assert "runs added: 1" in ingest(db, file)


def test_two_at_once_both_come_in(db, tmp_path):
    processes = []
    for minute in range(4):
        file = tmp_path / f"{minute}.jsonl"
        file.write_text(a_run(minute) + a_run(9))
        processes.append(subprocess.Popen([sys.executable, SCRIPT, "ingest", "--db", db, file], stdout=subprocess.PIPE))
    assert [(process.communicate(), process.returncode)[1] for process in processes] == [0] * 4
    assert query(db, "SELECT count(*) FROM run") == [(5,)]
    assert query(db, "SELECT count(*) FROM row JOIN run USING (run)") == [(5,)]


def test_several_processes_do_what_one_does(tool, tmp_path, monkeypatch):
    """The same run numbers, a run that two of them meet once, and the bad lines in order."""
    for minute in range(9):
        (tmp_path / f"{minute}.jsonl").write_text(a_run(minute % 7, values=(1.0, 2.0 + minute % 7)))
    one, other = tmp_path / "one.sqlite", tmp_path / "other.sqlite"
    said = tool.ingest([str(tmp_path)], one)
    monkeypatch.setattr(tool, "ALONE", 0)
    monkeypatch.setattr(tool.os, "cpu_count", lambda: 4)
    assert len(tool.shares_of(tool.inputs([str(tmp_path)])[0], 4)) == 4
    assert tool.ingest([str(tmp_path)], other) == said.replace("one", "other")
    assert "runs added: 7 (21 records), there already: 2" in said
    assert query(one, "SELECT * FROM run") == query(other, "SELECT * FROM run")
    assert query(one, "SELECT * FROM row ORDER BY rowid") == query(other, "SELECT * FROM row ORDER BY rowid")

    before = other.read_bytes()
    for minute in (1, 8):
        (tmp_path / f"{minute}.jsonl").write_text(f"{RUN}\nbad {minute}\n" + "worse\n" * 15 * (minute == 8))
    with pytest.raises(tool.Refused) as refusal:
        tool.ingest([str(tmp_path)], other)
    first, second, *_, last = str(refusal.value).splitlines()
    assert first.startswith(f"{tmp_path / '1.jsonl'}:2: ") and second.startswith(f"{tmp_path / '8.jsonl'}:2: ")
    assert last == "nothing was changed"
    assert other.read_bytes() == before


# ---- what is refused: named by file and line, and nothing changes

BAD = {
    "empty file": (b"", 1, ["empty"]),
    "binary file": (bytes(range(256)) * 20, 1, ["not text", "byte 0x00", "column 1"]),
    "binary in the middle": (f"{RUN}\n".encode() + b"\x7fELF\xff", 2, ["not text", "byte 0xff", "column 5"]),
    "UTF-16": (GPU.read_text().encode("utf-16"), 1, ["not text", "UTF-16"]),
    "truncated line": (GPU.read_bytes()[:-20], len(GPU_LINES), ["cut off after", "take the run again"]),
    "endless line": (b"a" * 3_000_000, 1, ["over 1048576 bytes"]),
    "no JSON": (lines(RUN, "hello").encode(), 2, ["not JSON", "column 1", "hello"]),
    "blank line": (lines(RUN, "", ROW).encode(), 2, ["not JSON"]),
    "blank file": (b" \n", 1, ["not JSON"]),
    "nested too deep": (lines(RUN, "[" * 200_000).encode(), 2, ["nested too deep"]),
    "endless number": (lines(RUN, ROW.replace('"day":5', '"day":' + "5" * 5000)).encode(), 2, ["; take the run again"]),
    "no object": (lines(RUN, "[1, 2]").encode(), 2, ["[1, 2]", "one JSON object"]),
    "NaN": (lines(RUN, ROW.replace('"percent":', '"percent":NaN,"x":')).encode(), 2, ["NaN", "finite"]),
    "Infinity": (lines(RUN, ROW.replace('"percent":', '"percent":-Infinity,"x":')).encode(), 2, ["-Infinity"]),
    "number that overflows": (lines(RUN, ROW.replace('"percent":', '"percent":1e999,"x":')).encode(), 2, ["percent"]),
    "key twice": (lines(RUN, ROW.replace('"day":5', '"day":5,"day":6')).encode(), 2, ['"day" is there twice']),
    "unknown record": (
        lines(RUN, {"record": "sgemm"}).encode(),
        2,
        ['record is "sgemm"', "run, fleet, check, ceiling"],
    ),
    "record of another type": (lines(RUN, {"record": []}).encode(), 2, ["record is []"]),
    "no record": (lines(RUN, {}).encode(), 2, ["record is null"]),
    "rows before a run": (lines(ROW, ROW, RUN).encode(), 1, ["row record before any run record"]),
    "schema of the future": (lines(RUN.replace('"schema":2', '"schema":3'), "x").encode(), 1, ["version 3", "future"]),
    "schema of the past": (lines(RUN.replace('"schema":2', '"schema":0')).encode(), 1, ["schema: 0 is not 2"]),
    "two cards": (
        (a_run(1) + a_run(2, "Card B", "b")).encode(),
        3,
        ["Card B", "Card A", "line 1", "one file per card"],
    ),
    "two cards of one name": ((a_run(1) + a_run(2, uuid="b")).encode(), 3, ["GPU-bbbbbbbb", "GPU-aaaaaaaa"]),
    "negative time": (a_run(ms=-0.25).encode(), 2, ["row record: ms: -0.25"]),
    "text for a number": (a_run(ms="0.25").encode(), 2, ["ms: '0.25' is not of type 'number'"]),
    "unknown unit": (a_run(unit="furlong").encode(), 2, ['unit: "furlong" is not "ms"']),
    "unknown key": (a_run(colour=1).encode(), 2, ["'colour' was unexpected", "row.schema.json"]),
    "half a character": (lines(RUN.replace("-O3", "\\ud800")).encode(), 1, ["run record: flags"]),
    "product that beats the FMA ceiling": (
        MATMUL.read_bytes().replace(b'"fma_percent":9.74119362', b'"fma_percent":101.5'),
        9,
        ["gemm record: fma_percent: 101.5 is greater than the maximum of 100 (of the FMA ceiling, which no kernel"],
    ),
    "product of 700 times the FMA ceiling": (
        MATMUL.read_bytes().replace(b'"value":6405.62628', b'"value":46018700'),
        9,
        ["impossible: gemm", "GFLOP/s are more than 66840.6 GFLOP/s, what the fp32-fma ceiling of its own run allows"],
    ),
    "time in seconds": (
        a_run(ms=0.0002, ms_min=0.0002, ms_max=0.0002).encode(),
        2,
        ["impossible: row v0: ", "GFLOP/s are more than", "take the run again"],
    ),
    "product without its size": (
        MATMUL.read_bytes().replace(b'"n":4095,', b""),
        13,
        ["gemm record: 'n' is a required property"],
    ),
    "check of an unknown size": (
        MATMUL.read_bytes().replace(b"64x256x4 integer aligned", b"64x256 integer"),
        5,
        ["check record: size: '64x256 integer' does not match"],
    ),
    "check at odds with itself": (
        lines(RUN, GPU_LINES[1].replace('"wrong":0', '"wrong":3')).encode(),
        2,
        ['{"ok": true, "wrong": 3} is none of: ok with none wrong and no message, or not ok'],
    ),
}


@pytest.mark.parametrize(("bad", "way"), [*((bad, "file") for bad in BAD), ("empty file", "stdin"), ("NaN", "stdin")])
def test_bad_input_is_named_and_changes_nothing(db, tmp_path, bad, way):
    content, line, parts = BAD[bad]
    ingest(db, CPU)
    before = db.read_bytes()
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    result = run("ingest", db, GPU, file) if way == "file" else run("ingest", db, GPU, "-", stdin=content)
    refused(result, *parts)
    shown = file if way == "file" else "<stdin>"
    assert result.stderr.startswith(f"{shown}:{line}: ")
    assert result.stderr.endswith("\nnothing was changed\n")
    assert len(result.stderr.splitlines()) == 2
    assert all(len(text) < 600 for text in result.stderr.splitlines())
    assert db.read_bytes() == before


def test_an_impossible_line_is_named_in_its_own_run(db, tmp_path):
    """A file with three runs, each held to its own card: the second has it, and another error is told too."""
    file = tmp_path / "three.jsonl"
    text = a_run(1) + a_run(2, ms=0.0002, ms_min=0.0002, ms_max=0.0002) + lines("x") + a_run(3)
    file.write_text(text)
    result = run("ingest", db, file)
    refused(result, f"{file}:4: impossible: row v0: ")
    assert f"{file}:5: not JSON" in result.stderr and len(result.stderr.splitlines()) == 3


def test_bad_input_makes_no_database(db, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text("{")
    refused(run("ingest", db, GPU, file))
    assert sorted(tmp_path.iterdir()) == [file]


def test_all_bad_lines_of_all_files_are_named(db, tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.write_text(lines(RUN, "x", ROW, ROW.replace('"ms":', '"mss":')))
    other.write_text("")
    result = run("ingest", db, one, other)
    refused(result)
    assert [text.partition(": ")[0] for text in result.stderr.splitlines()] == [
        f"{one}:2",
        f"{one}:4",
        f"{other}:1",
        "nothing was changed",
    ]
    assert "'ms' is a required property; Additional properties are not allowed ('mss' was unexpected)" in result.stderr


def test_it_stops_after_twenty(db, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(lines(RUN, *["x"] * 50))
    result = run("ingest", db, file)
    refused(result, "stopped after 20 bad lines; nothing was changed")
    assert len(result.stderr.splitlines()) == 21


def test_a_file_or_folder_that_is_not_there_is_named(db, tmp_path):
    refused(run("ingest", db, GPU, tmp_path / "gone.jsonl"), "gone.jsonl", "No such file")
    (tmp_path / "empty").mkdir()
    refused(run("ingest", db, GPU, tmp_path / "empty"), "empty: no *.jsonl")
    assert not db.exists()


def test_what_is_not_our_database_is_left_alone(tmp_path):
    names = ("text", "folder", "foreign", "future", "past")
    text, folder, foreign, future, past = (tmp_path / name for name in names)
    text.write_text("not a database, and long enough to be looked at " * 10)
    folder.mkdir()
    query(foreign, "CREATE TABLE theirs (a)")
    ingest(future, GPU)
    query(future, "PRAGMA user_version = 3")
    ingest(past, GPU)
    query(past, "PRAGMA user_version = 1")
    for file, part in (
        (text, "not a database"),
        (folder, "ordinary file"),
        (foreign, "another program"),
        (future, "3"),
        (past, "version 1 is older than 2, and has other names; delete it, or give another file with --db"),
    ):
        before = file.read_bytes() if file.is_file() else b""
        for result in (run("ingest", file, GPU), run("report", file)):
            refused(result, str(file), part)
        assert (file.read_bytes() if file.is_file() else b"") == before
    refused(run("ingest", "/dev/null", GPU), "/dev/null", "ordinary file")


# ---- the fast test and jsonschema


def test_the_fast_test_takes_what_the_days_print(tool):
    schema = tool.load_schema()
    for line in [*GPU_LINES, *(line for file in (CPU, MATMUL, GRAPHS) for line in file.read_text().splitlines())]:
        fields = json.loads(line)
        assert schema.kinds[fields["record"]].surely_valid(fields)


def test_the_fast_test_and_jsonschema_agree_on_mutated_records(tool):
    schema = tool.load_schema()
    validators = {name: jsonschema.Draft202012Validator(kind.schema) for name, kind in schema.kinds.items()}
    records = [json.loads(line) for file in (GPU, CPU, MATMUL, GRAPHS) for line in file.read_text().splitlines()]
    values = [value for record in records for value in record.values()]
    values += [None, [], {}, "", "x", "x\n", "\x7f", "é", "x" * 121, True, False, 0, 1, -1, 1.0, 0.5, -0.0]
    values += [2**63 - 1, 2**63, -(2**70), 10**19, 1e18, 1.1e18, float("inf"), -float("inf"), 5e-324]
    keys = sorted({key for record in records for key in record})
    source = random.Random(49)
    verdicts = {"sure": 0, "valid": 0, "invalid": 0}
    for _ in range(5000):
        record = dict(source.choice(records))
        name = record["record"]
        for _ in range(source.choice([0, 1, 1, 1, 2])):
            key = source.choice([*record, source.choice(keys)])
            if source.random() < 0.2:
                record.pop(key, None)
            else:
                record[key] = source.choice(values)
        sure, valid = schema.kinds[name].surely_valid(record), validators[name].is_valid(record)
        assert valid or not sure, record
        verdicts["sure" if sure else "valid" if valid else "invalid"] += 1
    assert verdicts["sure"] > 1000
    assert verdicts["invalid"] > 2500
    assert verdicts["valid"] < 50  # what no day prints, such as 1.0 for an integer


def test_a_rule_that_the_fast_test_does_not_know_is_left_to_jsonschema(tool):
    schema = {"$defs": {}, "type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}}}
    kind = tool.Kind("x", {}, None, schema, tool.make_test(schema))
    assert not kind.surely_valid({"a": 2})
    assert kind.errors({"a": 2}) == []
    assert kind.errors({"a": 3}) == ["a: 3 is not a multiple of 2"]


def test_good_lines_need_no_package_and_bad_ones_say_which(db, tmp_path):
    (tmp_path / "jsonschema.py").write_text("raise ModuleNotFoundError('planted')")
    (tmp_path / "duckdb.py").write_text("raise ModuleNotFoundError('planted')")
    without = {"PYTHONPATH": str(tmp_path)}
    assert run("ingest", db, GPU, env=without).returncode == 0
    refused(run("ingest", db, "-", stdin=a_run(ms=-1).encode(), env=without), "jsonschema", "requirements.txt")
    out = tmp_path / "out.parquet"
    refused(run("report", db, "--format", "parquet", "--out", out, env=without), "duckdb", "requirements.txt")
    assert not out.exists()


# ---- a record type and a key that come along


def test_a_new_record_type_is_one_entry_and_old_databases_follow(tool, db, tmp_path, monkeypatch):
    ingest(db, GPU)
    document = json.loads((SCRIPTS / "schema" / "row.schema.json").read_text())
    sgemm = json.loads(json.dumps(document["$defs"]["shape"]))
    sgemm["properties"].update(record={"const": "sgemm"}, n={"$ref": "#/$defs/some"}, metric={"const": "gflops"})
    sgemm["properties"].update(unit={"const": "GFLOP/s"})
    sgemm["required"].append("n")
    sgemm["x-report"]["case"].append("n")
    document["$defs"]["row"]["x-report"]["case"].append("level")
    document["$defs"]["sgemm"] = sgemm
    document["$defs"]["row"]["properties"]["level"] = {"enum": ["L1", "L2"]}
    document["oneOf"].append({"$ref": "#/$defs/sgemm"})
    (tmp_path / "row.schema.json").write_text(json.dumps(document))
    monkeypatch.setattr(tool, "load_schema", functools.partial(tool.load_schema, tmp_path / "row.schema.json"))

    shape = {**json.loads(next(line for line in GPU_LINES if '"record":"shape"' in line)), "record": "sgemm", "day": 44}
    shape.update(metric="gflops", unit="GFLOP/s", variant="2d tile")
    file = tmp_path / "day44.jsonl"
    head = RUN.replace('"day":49', '"day":44')
    row = {**json.loads(ROW), "level": "L2"}
    file.write_text(lines(head, *({**shape, "n": n, "value": n} for n in (512, 1024)), row))
    assert "runs added: 1 (4 records)" in tool.ingest([str(file)], db)
    assert "runs added: 0" in tool.ingest([str(file), str(GPU)], db)

    assert query(db, "SELECT variant, n, value FROM sgemm") == [("2d tile", 512, 512.0), ("2d tile", 1024, 1024.0)]
    assert query(db, "SELECT level, count(*) FROM row GROUP BY level") == [(None, 2), ("L2", 1)]
    table = tool.as_table(tool.make_report(db))
    assert [line.split()[:5] for line in table.splitlines() if "2d tile" in line] == [
        ["44", "2d", "tile", "512", "copyCoalesced"],
        ["44", "2d", "tile", "1024", "copyCoalesced"],
    ]
    assert [line for line in table.splitlines() if line.startswith("NVIDIA")] == [
        "NVIDIA H200, GPU-3bcf3a98, day 44",
        "NVIDIA H200, GPU-3bcf3a98, day 49",
    ]
    assert [line.split()[-1] for line in table.splitlines() if "vectorAdd " in line] == ["0.236498"] * 2
    assert all(len(line) <= 120 for line in table.splitlines())


# ---- report


@pytest.fixture
def runs(db, tmp_path):
    """Return a database with three runs of card A and one of card B."""
    values = [(3.0, 10.0), (1.0, 11.0), (2.0, 30.0)]
    for minute, pair in enumerate(values):
        (tmp_path / f"a{minute}.jsonl").write_text(a_run(minute, values=pair))
    (tmp_path / "b.jsonl").write_text(a_run(0, "Card B", "b", values=(5.0,)))
    ingest(db, tmp_path, GPU)
    return db


def test_best_and_median_per_card_day_and_variant(runs):
    rows = list(csv.DictReader(report(runs, "--format", "csv").splitlines()))
    made_up = [row for row in rows if row["device"].startswith("Card")]
    shown = [(row["device"], row["variant"], row["runs"], row["best"], row["median"]) for row in made_up]
    assert shown == [
        ("Card A", "v0", "3", "1.0", "2.0"),
        ("Card A", "v1", "3", "10.0", "11.0"),
        ("Card B", "v0", "1", "5.0", "5.0"),
    ]
    assert {(row["record"], row["day"], row["symbol"], row["metric"], row["unit"]) for row in made_up} == {
        ("row", "5", "vectorAdd", "ms", "ms")
    }


def test_the_best_rate_is_the_highest_and_a_ridge_has_no_best(db, tmp_path):
    for factor in (1, 1 / 2, 1 / 4):
        text = GPU.read_text().replace("-11-30T", f"-11-{int(4 * factor):02}T")
        for name in ("ceiling", "shape", "ridge"):
            for line in text.splitlines():
                if f'"record":"{name}"' in line:
                    fields = json.loads(line)
                    fields["value"] *= factor
                    text = text.replace(line, json.dumps(fields))
        (tmp_path / f"{int(4 * factor)}.jsonl").write_text(text)
    ingest(db, tmp_path)
    given = {
        fields["variant"]: fields["value"]
        for fields in map(json.loads, GPU_LINES)
        if fields["record"] in ("ceiling", "shape")
    }
    rows = {row["variant"]: row for row in csv.DictReader(report(db, "--format", "csv").splitlines())}
    for variant, value in given.items():
        assert float(rows[variant]["best"]) == value
        assert float(rows[variant]["median"]) == value / 2
    assert rows["ridge-point"]["best"] == ""
    assert float(rows["ridge-point"]["median"]) > 0


def test_matrix_products_are_told_apart_by_their_sizes_and_notes(db, tmp_path):
    for factor in (1, 1 / 2, 1 / 4):
        records = [json.loads(line) for line in MATMUL.read_text().splitlines()]
        records[0]["utc"] = f"2026-11-{int(4 * factor):02}T00:00:00Z"
        for record in records:
            if record["record"] == "gemm":
                record["value"] *= factor
        (tmp_path / f"{int(4 * factor)}.jsonl").write_text(lines(*records))
    ingest(db, tmp_path)
    given = [record for record in map(json.loads, MATMUL.read_text().splitlines()) if record["record"] == "gemm"]
    keys = ["variant", "m", "n", "k", "note"]
    rows = [row for row in csv.DictReader(report(db, "--format", "csv").splitlines()) if row["record"] == "gemm"]
    found = {tuple(row[key] for key in keys): row for row in rows}
    assert len(found) == len(rows) == len(given) == 7
    for record in given:
        row = found[tuple(str(record.get(key, "")) for key in keys)]
        assert (row["runs"], row["unit"], row["day"]) == ("3", "GFLOP/s", "44")
        assert float(row["best"]) == record["value"]
        assert float(row["median"]) == record["value"] / 2
    table = report(db).splitlines()
    assert len([line for line in table if " GFLOP/s " in line]) == 8  # with the FMA ceiling
    assert len(set(table)) == len(table) and max(map(len, table)) <= 120


def test_a_case_whose_kernel_differs_between_runs_stays_one_case(db, tmp_path):
    file = tmp_path / "two.jsonl"
    file.write_text(a_run(1, symbol="copyVector") + a_run(2, symbol="copyCoalesced", values=(3.0,)))
    ingest(db, file)
    (row,) = csv.DictReader(report(db, "--format", "csv").splitlines())
    assert (row["symbol"], row["runs"], float(row["median"])) == ("copyCoalesced copyVector", "2", 2.0)


def test_the_table_stays_within_120_columns_and_nothing_is_cut(db, tmp_path):
    long = a_run(1, "Card " + "C" * 100, variant="v" * 120, symbol="s" * 120, value=1.23456789e17)
    (tmp_path / "long.jsonl").write_text(long)
    ingest(db, tmp_path, GPU)
    table = report(db)
    assert max(map(len, table.splitlines())) <= 120
    assert table.count("C" * 100) == 1
    long = [line for line in table.splitlines() if "vvv" in line]
    assert sum(line.count("v") for line in long) >= 120 and sum(line.count("s") for line in long) >= 120
    assert "~" not in table
    assert "1.23457e+17" in table
    for line in GPU_LINES:
        assert json.loads(line).get("variant", "") in table
    assert table.count("GPU-") == 2


def test_two_cards_of_one_name_are_two_blocks(db, tmp_path):
    (tmp_path / "1.jsonl").write_text(a_run(1, uuid="b"))
    (tmp_path / "2.jsonl").write_text(a_run(1, uuid="a"))
    ingest(db, tmp_path)
    heads = [line for line in report(db).splitlines() if line.startswith("Card")]
    assert heads == ["Card A, GPU-aaaaaaaa, day 49", "Card A, GPU-bbbbbbbb, day 49"]


def test_runs_of_two_programs_are_not_mixed(db, tmp_path):
    """Both have a row of the same kernel: its day is the kernel's, the program's stands in the title."""
    (tmp_path / "1.jsonl").write_text(a_run(1))
    (tmp_path / "2.jsonl").write_text(a_run(1, values=(3.0,)).replace('"day": 49', '"day": 30'))
    ingest(db, tmp_path)
    rows = list(csv.DictReader(report(db, "--format", "csv").splitlines()))
    assert [(row["program_day"], row["day"], row["median"]) for row in rows] == [("30", "5", "3.0"), ("49", "5", "1.0")]
    heads = [line for line in report(db).splitlines() if line.startswith("Card")]
    assert heads == ["Card A, GPU-aaaaaaaa, day 30", "Card A, GPU-aaaaaaaa, day 49"]


def test_parquet_holds_what_the_csv_holds(runs, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    folder = tmp_path / "a [b] it's *"  # nothing of this is a pattern
    folder.mkdir()
    refused(run("report", runs, "--format", "parquet", "--out", folder / "gone" / "x"), "gone")
    assert report(runs, "--format", "parquet", "--out", folder / "x.parquet") == ""
    assert [file.name for file in folder.iterdir()] == ["x.parquet"]
    out = (folder / "x.parquet").rename(tmp_path / "x.parquet")
    table = duckdb.read_parquet(str(out))
    rows = list(csv.reader(report(runs, "--format", "csv").splitlines()))
    assert table.columns == rows[0]
    assert dict(zip(table.columns, map(str, table.types)))["median"] == "DOUBLE"
    stored = [["" if value is None else str(value) for value in row] for row in table.fetchall()]
    assert stored == rows[1:]


def test_out_is_replaced_whole(runs, tmp_path):
    out = tmp_path / "out" / "report.csv"
    refused(run("report", runs, "--out", out), str(out.parent))
    out.parent.mkdir()
    out.write_text("old")
    assert report(runs, "--format", "csv", "--out", out) == ""
    assert out.read_text() == report(runs, "--format", "csv")
    assert report(runs, "--out", out) == ""
    assert out.read_text() == report(runs)
    assert list(out.parent.iterdir()) == [out]


def test_a_missing_database_is_named_and_not_made(db):
    refused(run("report", db), str(db), "no such database", "ingest")
    assert not db.exists()


@pytest.mark.parametrize("form", ["table", "csv"])
def test_runs_without_timings_make_an_empty_report_and_say_so(db, form):
    ingest(db, CPU)
    result = run("report", db, "--format", form)
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == (form == "csv")
    assert "no timed record" in result.stderr


@pytest.mark.parametrize("command", ["ingest", "report"])
def test_a_full_stdout_is_an_error(db, command):
    ingest(db, GPU)
    arguments = [GPU] if command == "ingest" else []
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(
            [sys.executable, SCRIPT, command, "--db", db, *arguments], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert result.returncode == 1
    assert result.stderr.decode().splitlines() == ["stdout: No space left on device; not all of the text was written"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "command"),
        (["ingest"], "PATH"),
        (["exgest"], "exgest"),
        (["report", "--format", "xlsx"], "xlsx"),
        (["report", "--format", "parquet"], "--out"),
        (["report", "--bets"], "--bets"),
    ],
)
def test_bad_usage(arguments, part):
    result = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert part in result.stderr


# ---- report --fleet


def fleet_run(card, mode, launch, value, node="a", began=0.0, node_cards=2, **more):
    """Return the lines of a run of a fleet: one ceiling of `value` GB/s on card number `card`."""
    head = {**json.loads(RUN), "uuid": f"GPU-{card:08x}-0000-0000-0000-000000000000"}
    stay = {"record": "fleet", "day": 49, "launch": f"{launch:012x}", "mode": mode, "node": node * 12, **more}
    stay.update(rank=card, ranks=2, card=0, cards=1, node_cards=node_cards, began=1e9 + began, seconds=10.0)
    ceiling = json.loads(next(line for line in GPU_LINES if line.startswith('{"record":"ceiling"') and "GB/s" in line))
    return lines(head, stay, {**ceiling, "value": value})


def fleet_report(db, tmp_path, *runs):
    """Return the rows of the report on these runs."""
    for index, text in enumerate(runs):
        (tmp_path / f"{index}.jsonl").write_text(text)
    ingest(db, tmp_path)
    return list(csv.DictReader(report(db, "--fleet", "--format", "csv").splitlines()))


def test_each_card_stands_beside_the_fleet_and_a_slow_one_is_named(db, tmp_path):
    # The cards' medians are 100 to 104 and 90, theirs is 101.5, the deviations 0.5 0.5 1.5 1.5 2.5 11.5.
    values = {0: (100.0, 99.0, 120.0), 1: (101.0,), 2: (102.0,), 3: (103.0,), 4: (104.0,), 5: (90.0,)}
    runs = [
        fleet_run(card, "solo", 10 * card + index, value)
        for card, of_card in values.items()
        for index, value in enumerate(of_card)
    ]
    rows = fleet_report(db, tmp_path, *runs)
    cards = [row for row in rows if row["what"] == "card"]
    assert [float(row["value"]) for row in cards] == [90, 100, 101, 102, 103, 104]
    assert [(row["uuid"][:12], row["note"]) for row in cards if row["note"]] == [
        ("GPU-00000005", "outlier, 11 % below median")
    ]
    assert (cards[1]["runs"], cards[1]["low"], cards[1]["high"]) == ("3", "99.0", "120.0")
    (fleet,) = (row for row in rows if row["what"] == "fleet")
    assert [float(fleet[key]) for key in ("cards", "runs", "value", "mad", "low", "high")] == [
        6,
        8,
        101.5,
        1.5,
        90,
        104,
    ]
    assert float(cards[0]["percent"]) == pytest.approx(100 * 90 / 101.5)


def test_three_deviations_below_are_no_outlier_yet(db, tmp_path):
    """The median is 100 and the deviations 0 1 1 3 4: the MAD is 1, so 97 is at the limit and 96 below."""
    runs = [fleet_run(card, "solo", card, value) for card, value in enumerate((100.0, 101.0, 99.0, 97.0, 104.0))]
    assert not any(row["note"] for row in fleet_report(db, tmp_path, *runs) if row["what"] == "card")
    runs[3] = fleet_run(3, "solo", 9, 95.0)
    (tmp_path / "3.jsonl").unlink()
    db.unlink()
    named = [row["uuid"][:12] for row in fleet_report(db, tmp_path, *runs) if row["note"] and row["what"] == "card"]
    assert named == ["GPU-00000003"]


def test_the_sums_of_a_node_stand_side_by_side(db, tmp_path):
    runs = [fleet_run(card, "solo", 1, value) for card, value in ((0, 100.0), (1, 102.0))]
    runs += [fleet_run(card, "together", 2, value, began=card) for card, value in ((0, 99.0), (1, 98.0))]
    runs += [fleet_run(card, "together", 3, value) for card, value in ((0, 97.0), (1, 101.0))]
    runs += [fleet_run(0, "together", 4, 500.0)]  # lost its other card: no sum of the node
    runs += [fleet_run(7, "solo", 5, 50.0, node="b"), fleet_run(8, "together", 6, 40.0, node="c")]
    rows = [row for row in fleet_report(db, tmp_path, *runs) if row["what"] == "node"]
    shown = [[row[key] for key in ("node", "mode", "cards", "runs", "value", "percent", "note")] for row in rows]
    assert shown == [
        ["a" * 12, "solo", "2", "2", "202.0", "", ""],
        ["a" * 12, "together", "2", "4", "197.5", str(100 * 197.5 / 202), "at once 82 % of the time"],
        ["b" * 12, "solo", "1", "1", "50.0", "", "1 of 2 cards"],
        ["c" * 12, "together", "1", "1", "40.0", "", "1 of 2 cards; at once 100 % of the time"],
    ]
    assert (rows[1]["low"], rows[1]["high"]) == ("197.0", "198.0")


def test_a_host_is_shown_where_it_was_recorded_and_runs_by_hand_are_single(db, tmp_path):
    rows = fleet_report(db, tmp_path, fleet_run(0, "solo", 1, 100.0, host="node7"), GPU.read_text())
    cards = {(row["mode"], row["node"], row["host"]) for row in rows if row["what"] == "card"}
    assert cards == {("solo", "node7", "node7"), ("single", "", "")}


def test_the_fleet_as_a_table_and_as_parquet(db, tmp_path):
    runs = [fleet_run(card, mode, 1, 4000.0 + card) for card in range(4) for mode in ("solo", "together")]
    rows = fleet_report(db, tmp_path, *runs)
    table = report(db, "--fleet").splitlines()
    assert table[0] == "NVIDIA H200, day 49, ceiling-copy, GB/s"  # the program's day: the kernel is day 30's
    assert max(map(len, table)) <= 120
    assert not any("~" in line for line in table)
    assert any("aaaaaaaaaaaa GPU-00000003 " in line for line in table)
    assert any(line.endswith(" at once 100 % of the time") for line in table)
    assert len(table) == 2 + len(rows) == 2 + 2 * (4 + 1 + 1)
    pytest.importorskip("duckdb")
    assert report(db, "--fleet", "--format", "parquet", "--out", tmp_path / "x.parquet") == ""


# ---- speed


def simulated(card, day_lines, repetition, source):
    """Return a run that a card made of a recorded one: all times and rates a little different, in a launch of eight."""
    head, *rest = day_lines
    head = {
        **head,
        "uuid": f"GPU-{card:08x}-0000-0000-0000-000000000000",
        "utc": f"2026-12-{repetition + 1:02}T00:00:00Z",
    }
    mode = ("solo", "together")[repetition % 2]
    stay = {"record": "fleet", "day": head["day"], "launch": f"{repetition:012x}", "mode": mode}
    stay.update(
        node=f"{card // 8:012x}", rank=card % 8, ranks=8, card=0, cards=1, node_cards=8, began=1e9, seconds=20.0
    )
    factor = source.uniform(1.0, 1.1)  # slower, because the recorded card is near what is possible
    return lines(head, stay, *(slower(line, factor) if "value" in line else line for line in rest))


def slower(line, factor):
    """Return a line with its times so much longer, and its rate lower."""
    is_rate = line["metric"] in ("gbps", "gflops", "gops", "ginst")
    scaled = {key: round(line[key] * factor, 6) for key in ("ms", "ms_min", "ms_max") if key in line}
    return {**line, **scaled, "value": round(line["value"] * (1 / factor if is_rate else factor), 6)}


def seconds_to_parse(sample):
    """Return the processor time that json.loads takes for a line of the sample."""
    begin = time.process_time()
    for line in sample:
        json.loads(line)
    return (time.process_time() - begin) / len(sample)


RUNS = int(os.environ.get("CUDA_DAYS_SIMULATED_RUNS") or 200)
LINES = 1857  # of the four days' runs when the minute was set


def test_simulated_runs_of_all_days_within_their_share_of_a_minute(db, tmp_path):
    """Ten thousand, 3.8 million records, may take a minute on two cores, 120 s of processor time; 200 are a fiftieth.

    That was of runs whose four days had LINES lines together; longer ones may take so much longer. Processor time,
    because other tests run beside this one, and by what json.loads takes meanwhile: 7.8 microseconds for a line if
    nothing else runs, more if two programs share a core. CUDA_DAYS_SIMULATED_RUNS=10000 makes it all.
    """
    recorded = sorted((SCRIPTS.parent / "profile" / "h200").glob("day[0-9][0-9].jsonl"))
    days = [[json.loads(line) for line in file.read_text().splitlines()] for file in recorded]
    assert len(days) == 4
    source = random.Random(9)
    cards = max(1, RUNS // 320) * 8
    for number in range(RUNS):
        text = simulated(number % cards, days[number // cards % 4], number // cards // 4, source)
        (tmp_path / f"{number:05}.jsonl").write_text(text)
    sample = [line for file in recorded for line in file.read_text().splitlines()] * 10
    paces = [seconds_to_parse(sample)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = ingest(db, tmp_path)
    paces.append(seconds_to_parse(sample))
    assert f"runs added: {RUNS} (" in printed and "there already: 0" in printed
    assert len(report(db, "--format", "csv").splitlines()) > cards * 600
    fleet = list(csv.DictReader(report(db, "--fleet", "--format", "csv").splitlines()))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    paces.append(seconds_to_parse(sample))
    start = 1.0  # seconds for three programs to start, and for the first of each kind of line
    allowed = 120 * RUNS / 10_000 * sum(map(len, days)) / LINES
    assert spent < (start + allowed) * max(1.0, statistics.mean(paces) / 7.8e-6)
    assert {row["what"] for row in fleet} == {"card", "fleet", "node"}
    assert {row["cards"] for row in fleet if row["what"] == "node"} == {"8"}


def test_a_hundred_thousand_rows_within_six_seconds_of_one_core(db, tmp_path):
    source = random.Random(1)
    rows = [json.loads(ROW) for _ in range(2000)]
    for row in rows:
        row.update({key: row[key] * source.uniform(0.9, 1.1) for key in ("ms", "ms_min", "ms_max", "value", "percent")})
    text = lines(*rows)
    file = tmp_path / "many.jsonl"
    file.write_text("".join(a_run(minute, values=()) + text for minute in range(50)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "runs added: 50 (100050 records)" in ingest(db, file)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, because other tests run beside this one. A tenth of the million that may take a minute.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 6
    (row,) = csv.DictReader(report(db, "--format", "csv").splitlines())
    assert row["runs"] == "50"
    assert float(row["median"]) == statistics.median(row["value"] for row in rows)
