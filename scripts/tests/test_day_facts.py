"""scripts/day_facts.py: every day has its facts, they are true, and a file that is none is named with the way out."""

import json
import re
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
from day_facts import KEYS, BadFacts, facts_of, find_facts, read_facts  # noqa: E402


def test_every_day_has_its_facts_and_they_agree_with_its_source(source_dir):
    days = find_facts(source_dir)
    assert [source_dir / facts.source for facts in days] == sorted(source_dir.glob("day*/*.cu"))
    for facts in days:
        text = (source_dir / facts.source).read_text()
        assert f"constexpr Program kProgram = {{{facts.number}" in re.sub(r"\{\s+", "{", text)
        build = re.search(r"//   build: (.*)", text)[1].split()
        assert build[build.index("-o") + 1] == facts.program
        assert [f"-l{library.removeprefix('CUDA::')}" for library in facts.libraries] == [
            word for word in build if word.startswith("-l") and word != "-lineinfo"
        ]
        for header in facts.headers + facts.optional_headers:
            assert f"#include <{header}>" in text, header
        assert [header for header in facts.optional_headers if f"#if __has_include(<{header}>)" not in text] == []
        assert [kernel for kernel in facts.not_profiled if f" {kernel}(" not in text] == []
        for reason in facts.off:
            assert re.search(rf"__global__ [^;{{]*?\b({reason['kernels']})\(", text), reason["kernels"]


def test_the_number_finds_the_day(source_dir):
    assert facts_of(source_dir, 49).folder == "day49-roofline"
    with pytest.raises(BadFacts, match="day 50: no such day: there is 30, 44, 49, 56"):
        facts_of(source_dir, 50)


GOOD = {**{key: kind() for key, kind in KEYS.items()}, "number": 7, "program": "x"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"number": "7"}, "number is '7', and must be a int"),
        ({"counters": 1}, "counters is 1, and must be a bool"),
        ({"libraries": "CUDA::cublas"}, "libraries is 'CUDA::cublas', and must be a list"),
        ({"counter": True}, "nothing reads 'counter': take it out, or correct its name"),
        ({"number": 8}, "number is 8, and the folder is day07-x: one of the two is wrong"),
        ({"program": "y"}, "program is 'y', and there is no day07-x/y.cu"),
        ({"off": [{"kernels": "x"}]}, "what is off must have kernels, quantity, why"),
        ({"kernels": {"x": {"threads": 1}}}, "the design of x must have"),
    ],
)
def test_facts_that_are_none(tmp_path, change, said):
    folder = tmp_path / "day07-x"
    folder.mkdir()
    (folder / "x.cu").touch()
    (folder / "day.json").write_text(json.dumps(GOOD))
    assert read_facts(tmp_path, "day07-x").source == "day07-x/x.cu"
    (folder / "day.json").write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(BadFacts) as bad:
        read_facts(tmp_path, "day07-x")
    assert str(bad.value).startswith("day07-x/day.json: ") and said in str(bad.value)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "5", "\x00", '{"number": 7'])
def test_files_that_are_none(tmp_path, text):
    (tmp_path / "day07-x").mkdir()
    if text is not None:
        (tmp_path / "day07-x/day.json").write_text(text)
    with pytest.raises(BadFacts, match="^day07-x/day.json: "):
        read_facts(tmp_path, "day07-x")
