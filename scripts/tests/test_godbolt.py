"""scripts/godbolt.py on small days of its own, and its check on the days of this tree."""

import base64
import copy
import json
import subprocess
import sys
import urllib.parse
import zlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
import godbolt  # noqa: E402
from resources import Problem  # noqa: E402

HEADER = "// Day 1.\n//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o add add.cu{}\n"
SOURCE = HEADER.format("") + '// "quotes", back\\slashes, tabs\t and é\nint main() { return 0; }\n'


@pytest.fixture
def day(tmp_path):
    """A root folder with one small day; returns the path of its source."""
    folder = tmp_path / "day01-add"
    folder.mkdir()
    (folder / "add.cu").write_text(SOURCE, encoding="utf-8")
    return folder / "add.cu"


def run(day, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPTS / "godbolt.py", "--root", day.parents[1], *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def fails(result, *parts, code=1):
    assert result.returncode == code, result.stdout + result.stderr
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.stderr


def link(state, pack=lambda data: data):
    data = base64.b64encode(pack(json.dumps(state).encode())).decode()
    return "https://godbolt.org/clientstate/" + urllib.parse.quote(data, safe="")


# ---- The body for the shortener -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["day01-add", "add", "1", "day01"])
def test_the_body_opens_the_source_with_the_days_own_flags_and_runs_it(day, name):
    result = run(day, name)
    assert result.returncode == 0, result.stderr
    compiler = {"id": godbolt.COMPILER, "options": "-std=c++17 -O3 -arch=sm_75", "libs": []}
    assert json.loads(result.stdout) == {
        "sessions": [
            {
                "id": 1,
                "language": "cuda",
                "source": SOURCE,
                "compilers": [compiler],
                "executors": [{"compiler": compiler, "arguments": "", "stdin": ""}],
            }
        ]
    }


def test_libraries_of_the_build_line_compiler_and_arguments(day):
    day.write_text(HEADER.format(" -lcublas"))
    result = run(day, "add", "--compiler", "nvcc999", "--arguments=--check")
    session = json.loads(result.stdout)["sessions"][0]
    assert session["executors"][0]["arguments"] == "--check"
    for compiler in (session["compilers"][0], session["executors"][0]["compiler"]):
        assert (compiler["id"], compiler["options"]) == ("nvcc999", "-std=c++17 -O3 -arch=sm_75 -lcublas")


def test_out_writes_the_same_and_nothing_beside_it(day, tmp_path):
    out = tmp_path / "body.json"
    result = run(day, "add", "--out", out)
    assert (result.returncode, result.stdout) == (0, "")
    assert out.read_text(encoding="utf-8") == run(day, "add").stdout
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["body.json", "day01-add"]


def test_a_source_that_is_too_large_is_refused(day):
    day.write_text(SOURCE + "/" * (godbolt.MAX_SOURCE - len(SOURCE.encode()) - 1), encoding="utf-8")
    assert run(day, "add").returncode == 0
    assert run(day, "--check").returncode == 0
    day.write_bytes(day.read_bytes() + b"/")
    for arguments in (["add"], ["--check"]):
        fails(run(day, *arguments), "add.cu", str(godbolt.MAX_SOURCE))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.replace(b"\n", b"\r\n"), ":1: has a carriage return"),
        (lambda data: data.decode().encode("latin-1"), ":3: is not UTF-8 (byte 0xe9)"),
        (lambda data: b"\xef\xbb\xbf" + data, ":1: starts with a byte order mark"),
    ],
)
@pytest.mark.parametrize("arguments", [["add"], ["add", "--url"], ["--check"]], ids=" ".join)
def test_a_day_in_another_encoding_is_named(day, change, words, arguments):
    day.write_bytes(change(day.read_bytes()))
    fails(run(day, *arguments), f"add.cu{words}", "save it")


def test_a_day_without_a_build_line_is_named(day):
    day.write_text("int main() {}\n")
    fails(run(day, "add"), "add.cu", "nvcc")


def test_bad_usage(day):
    fails(run(day), "which day", code=2)
    fails(run(day, "add", "--url", "--check"), "--check", code=2)
    fails(run(day, "day02"), "day02", "day01-add")


# ---- The form -------------------------------------------------------------------------------------------------------


def test_what_the_sites_own_documentation_shows_is_valid():
    godbolt.validate(
        {
            "sessions": [
                {
                    "id": 1,
                    "language": "c++",
                    "source": "int main() { return 42; }",
                    "compilers": [{"id": "g82", "options": "-O3"}],
                    "executors": [
                        {
                            "arguments": "arg1",
                            "compiler": {"id": "g92", "libs": [], "options": "-O3"},
                            "stdin": "",
                        }
                    ],
                }
            ]
        }
    )


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (lambda state: state.pop("sessions"), "sessions"),
        (lambda state: state["sessions"].clear(), "no session"),
        (lambda state: state.update(session=[]), "'session'"),
        (lambda state: state["sessions"][0].pop("source"), "'source'"),
        (lambda state: state["sessions"][0].update(source=None), "'source'"),
        (lambda state: state["sessions"][0].update(id=True), "'id'"),
        (lambda state: state["sessions"][0].update(executor=[]), "'executor'"),
        (lambda state: state["sessions"][0]["compilers"].append("nvcc"), "compiler is no JSON object"),
        (lambda state: state["sessions"][0]["compilers"][0].update(option="-O3"), "'option'"),
        (lambda state: state["sessions"][0]["executors"][0].pop("compiler"), "'compiler'"),
        (lambda state: state["sessions"][0]["executors"][0].update(arguments=1), "'arguments'"),
        (lambda state: state["sessions"][0]["executors"][0].update(compiler={"id": "x"}), "'options'"),
    ],
)
def test_a_state_that_the_site_would_not_understand_is_refused(day, break_it, named):
    state = copy.deepcopy(godbolt.state_of(day))
    break_it(state)
    with pytest.raises(Problem, match=named):
        godbolt.validate(state)


# ---- The link that carries the source -------------------------------------------------------------------------------


def test_a_link_carries_the_state_escaped(day):
    day.write_text(SOURCE + "// ~~~???>>> makes base64 use + and /\n" * 3, encoding="utf-8")
    result = run(day, "add", "--url")
    assert result.returncode == 0, result.stderr
    prefix, text = result.stdout.strip().split("/clientstate/")
    assert prefix == "https://godbolt.org"
    assert not set(text) & set("+/=")
    assert json.loads(base64.b64decode(urllib.parse.unquote(text))) == godbolt.state_of(day)


def test_a_link_is_refused_from_8001_characters_on(day):
    lengths = []
    for extra in range(5000, 6000):
        day.write_text(SOURCE + "/" * extra, encoding="utf-8")
        try:
            lengths.append(len(godbolt.url_of(godbolt.state_of(day))))
        except Problem:
            break
    assert 7990 < max(lengths) <= 8000
    result = run(day, "add", "--url")
    fails(result, "characters", "8000", "/api/shortener")
    assert result.stdout == ""
    length = int(result.stderr.split("would have ")[1].split()[0])
    assert 8000 < length < 8020


# ---- Links in READMEs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [lambda data: data, zlib.compress], ids=["plain", "deflated"])
def test_a_link_in_a_readme_must_carry_the_file(day, pack):
    readme = day.with_name("README.md")
    readme.write_text("# Add\n\nRun it [there](" + link(godbolt.state_of(day), pack) + ").\n")
    result = run(day, "--check")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

    day.write_text(SOURCE + "// changed\n", encoding="utf-8")
    fails(
        run(day, "--check"),
        "day01-add/README.md:3: https://godbolt.org/clientstate/",
        "another source than day01-add/add.cu",
        "scripts/godbolt.py day01-add --url",
    )


def test_one_stale_link_among_good_ones_and_other_links_is_found(day):
    state = godbolt.state_of(day)
    stale = copy.deepcopy(state)
    stale["sessions"][0]["source"] += " "
    readme = day.with_name("README.md")
    good = f"[a]({link(state)}) and https://godbolt.org/z/abc and https://godbolt.org/\n"
    readme.write_text(good * 2)
    assert run(day, "--check").returncode == 0
    readme.write_text(good + f"[a]({link(state)}), [b]({link(stale)})\n")
    result = run(day, "--check", "add")
    fails(result, "README.md:2:")
    assert result.stderr.count("another source") == 1


@pytest.mark.parametrize("text", ["", "e30=", "%%%", "bm9uc2Vuc2U=", "eyJzZXNzaW9ucyI6W119"])
def test_a_broken_link_is_an_error(day, text):
    day.with_name("README.md").write_text(f"\nhttps://godbolt.org/clientstate/{text}\n")
    fails(run(day, "--check"), "day01-add/README.md:2:")


def test_a_second_editor_in_a_link_is_an_error(day):
    state = godbolt.state_of(day)
    state["sessions"].append({**state["sessions"][0], "id": 2, "source": "other"})
    day.with_name("README.md").write_text(link(state) + "\n")
    fails(run(day, "--check"), "another source")


# ---- This tree ------------------------------------------------------------------------------------------------------


def test_sources_and_links_of_this_tree():
    result = subprocess.run(
        [sys.executable, SCRIPTS / "godbolt.py", "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_every_day_of_this_tree_makes_a_body(source_dir):
    for source in source_dir.glob("day*/*.cu"):
        state = godbolt.state_of(source)
        assert state["sessions"][0]["source"].encode() == source.read_bytes()
        assert state["sessions"][0]["compilers"][0]["options"].startswith("-std=c++17 -O3 -arch=sm_75")
