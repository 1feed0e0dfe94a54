"""scripts/sync_common.py on small trees of its own."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "sync_common.py"


def block(name, *lines):
    return "\n".join([f"// common: {name}", *lines, f"// end common: {name}", ""])


MASTER = "#pragma once\n" + block("errors", "int e1;", "int e2;") + "\n" + block("json", "int j;") + block("timing")


class Tree:
    """A root folder with a master and days."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        return file

    def run(self, *arguments):
        return subprocess.run(
            [sys.executable, SCRIPT, "--root", self.root, *arguments], capture_output=True, text=True, check=False
        )


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    made.write("common/lesson.cuh", MASTER)
    return made


def fails(result, *parts):
    assert result.returncode == 1, result.stdout + result.stderr
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.stderr


def test_fills_blocks_and_keeps_everything_around_them(tree):
    day = tree.write(
        "day01-a/a.cu", "// title\n" + block("errors", "stale") + "\nint main() {}\n" + block("json") + "// tail"
    )
    assert tree.run().returncode == 0
    expected = (
        "// title\n" + block("errors", "int e1;", "int e2;") + "\nint main() {}\n" + block("json", "int j;") + "// tail"
    )
    assert day.read_bytes().decode() == expected
    result = tree.run("--check")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_says_what_it_changed_and_leaves_what_is_current_alone(tree):
    current = tree.write("day01-a/a.cu", block("json", "int j;"))
    tree.write("day02-b/b.cu", block("json", "int k;"))
    os.utime(current, ns=(1, 1))
    result = tree.run()
    assert "day02-b/b.cu" in result.stdout
    assert "day01-a/a.cu" not in result.stdout
    assert current.stat().st_mtime_ns == 1


def test_rewriting_keeps_the_mode_and_leaves_no_temporary_file(tree):
    day = tree.write("day01-a/a.cu", block("json", "stale"))
    day.chmod(0o640)
    assert tree.run().returncode == 0
    assert stat.S_IMODE(day.stat().st_mode) == 0o640
    assert [entry.name for entry in day.parent.iterdir()] == ["a.cu"]


def test_an_emptied_block_empties_its_copy(tree):
    day = tree.write("day01-a/a.cu", block("timing", "left over"))
    assert tree.run().returncode == 0
    assert day.read_text() == block("timing")


def test_files_outside_the_days_are_not_touched(tree):
    other = tree.write("common/cpu/tests/x.cu", block("json", "stale"))
    assert tree.run().returncode == 0
    assert "stale" in other.read_text()


@pytest.mark.parametrize("arguments", [[], ["--check"]])
@pytest.mark.parametrize("name", ["day01-a/a.cu", "common/lesson.cuh"])
@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda data: data.replace(b"\n", b"\r\n"), [":1: has a carriage return", "line ends LF", "tr -d '\\r'"]),
        (lambda data: data + b"// pasted\r\n", [":8: has a carriage return"]),
        (lambda data: data.replace(b"\n", b"\r"), [":1: has a carriage return"]),
        (lambda data: data + "// größer\n".encode("latin-1"), [":8: is not UTF-8 (byte 0xf6)", "save it as UTF-8"]),
        (lambda data: b"\xef\xbb\xbf" + data, [":1: starts with a byte order mark (UTF-8)", "without BOM"]),
        (lambda data: data.decode().encode("utf-16"), [":1: starts with a byte order mark (UTF-16)"]),
    ],
)
def test_another_encoding_is_named_and_nothing_is_written(tree, arguments, name, change, parts):
    tree.write("common/lesson.cuh", "// shared\n" + block("errors", "int e;") + block("json", "int j;"))
    tree.write("day01-a/a.cu", "// title\n" + block("errors", "stale") + block("json", "stale"))
    other = tree.write("day02-b/b.cu", block("json", "stale"))
    wrong = tree.root / name
    wrong.write_bytes(change(wrong.read_bytes()))
    before = wrong.read_bytes()
    fails(tree.run(*arguments), f"{name}{parts[0]}", *parts[1:])
    assert wrong.read_bytes() == before
    assert "stale" in other.read_text()


def test_check_names_file_block_and_line_shows_the_difference_and_writes_nothing(tree):
    text = "// title\n" + block("errors", "int e1;", "int typo;")
    day = tree.write("day01-a/a.cu", text)
    tree.write("day02-b/b.cu", block("json"))
    result = tree.run("--check")
    fails(result, "day01-a/a.cu:4: block 'errors'", "-int typo;", "+int e2;", "day02-b/b.cu:2: block 'json'", "+int j;")
    assert day.read_text() == text


def test_check_finds_a_line_too_many(tree):
    tree.write("day01-a/a.cu", block("json", "int j;", ""))
    fails(tree.run("--check"), "day01-a/a.cu:3: block 'json'")


@pytest.mark.parametrize("arguments", [[], ["--check"]])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (block("jsno"), ["day01-a/a.cu:1", "no block 'jsno'", "errors, json, timing"]),
        ("// common: json\nint j;\n", ["day01-a/a.cu:1", "no '// end common: json'"]),
        ("// end common: json\n", ["day01-a/a.cu:1", "not open"]),
        (
            "// common: errors\n" + block("json") + "// end common: errors\n",
            ["day01-a/a.cu:2", "inside 'errors'"],
        ),
        ("// common: json\n// end common: errors\n", ["day01-a/a.cu:2", "open is 'json' (line 1)"]),
        (block("json") + block("json"), ["day01-a/a.cu:3", "'json' is there already"]),
        (block("json") + block("errors"), ["day01-a/a.cu:3", "'errors' comes after 'json'"]),
        ("  // common: json\n", ["day01-a/a.cu:1", "not a marker"]),
        ("//common: json\n", ["day01-a/a.cu:1", "not a marker"]),
        ("// common: json and more\n", ["day01-a/a.cu:1", "not a marker"]),
    ],
)
def test_wrong_markers_in_a_day_are_named_and_nothing_is_written(tree, arguments, text, parts):
    wrong = tree.write("day01-a/a.cu", text)
    stale = tree.write("day02-b/b.cu", block("json", "stale"))
    fails(tree.run(*arguments), *parts)
    assert wrong.read_text() == text
    assert "stale" in stale.read_text()


@pytest.mark.parametrize("arguments", [[], ["--check"]])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("// common: json\nint j;\n", ["common/lesson.cuh:1", "no '// end common: json'"]),
        (block("json") + block("json"), ["common/lesson.cuh:3", "already"]),
        ("// common: a\n" + block("b") + "// end common: a\n", ["common/lesson.cuh:2", "inside 'a'"]),
    ],
)
def test_wrong_markers_in_the_master_are_named(tree, arguments, text, parts):
    tree.write("common/lesson.cuh", text)
    fails(tree.run(*arguments), *parts)


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_a_missing_master_is_named(tmp_path, arguments):
    fails(Tree(tmp_path).run(*arguments), "common/lesson.cuh", "does not exist")


def test_help_and_bad_usage(tree):
    assert "--check" in tree.run("--help").stdout
    result = tree.run("--chekc")
    assert result.returncode == 2
    assert "--chekc" in result.stderr
