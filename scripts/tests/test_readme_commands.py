"""Every command on our pages works: in the READMEs' blocks, in their sentences, and in the headers of the days.

What can run here within seconds does, in a copy of the tree, and ends with the exit code in RUNS. All else is held to
what it names: a script that exists and has the run bit, a command and options that its --help knows, a preset, a day.
A command that this file has no rule for is a fault too, so that a new line in a README is dealt with.
"""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import SOURCE_DIR

PAGES = [Path("README.md"), *(Path(name, "README.md") for name in ("common/cpu", "profile", "scripts"))]
DAYS = sorted(path.relative_to(SOURCE_DIR) for path in SOURCE_DIR.glob("day*/*.cu"))
PAGES += sorted({day.parent / "README.md" for day in DAYS})

COMMANDS, OTHERS = {"", "sh"}, {"text", "cuda"}  # the kinds of fenced blocks: those that hold commands, and others
PYTHONS = {"python3", "build/venv/bin/python"}
# Programs that start another one, which is what is looked at; and their options, since they may not be installed.
LAUNCHERS = {
    "mpirun": {"--enable-recovery", "--map-by"},
    "sbatch": {"--nodes", "--gpus-per-node"},
    "compute-sanitizer": {"--tool", "--kernel-name", "--error-exitcode"},
}

SANITIZE = "-DCUDA_DAYS_SANITIZE"  # a build for compute-sanitizer

# What is run: the beginning of the command, and the exit code that it has on a machine without a GPU.
RUNS = {
    "scripts/evidence.py compare profile/h200": 77,
    "scripts/evidence.py record": 77,
    "scripts/evidence.py record-fleet --day 49": 77,
    "scripts/evidence.py verify": 0,
    "scripts/evidence.py readme": 0,
    "build/venv/bin/python scripts/evidence.py charts": 0,
    "scripts/profile.sh 49": 77,
    "../scripts/profile.sh ./roofline": 77,
    "scripts/bench_ingest.py ingest": 0,
    "scripts/bench_ingest.py report": 0,
    "scripts/fleet.py check fleet": 0,
    "scripts/plot_roofline.py profile/h200": 0,
    "scripts/report.py profile/h200 -o page.html": 0,
    "scripts/godbolt.py day": 0,
    "python3 day49-roofline/merge_dram.py --json profile/h200/day49.jsonl": 0,
}


@dataclass(frozen=True)
class Command:
    """One command of a page: where it stands, and its words, without redirections."""

    page: Path
    line: int
    words: tuple[str, ...]

    @property
    def text(self):
        return shlex.join(self.words)


def split(text):
    """Return the words of each command of a line: comments, redirections and what joins commands are left out."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands, words = [], []
    for token in lexer:
        if set(token) <= set("&|;"):
            commands.append(words)
            words = []
        else:
            words.append(token)
    commands.append(words)
    return [
        words[: next((at for at, word in enumerate(words) if word in (">", "<")), None)] for words in commands if words
    ]


def blocks_of(page, text):
    """Return the fenced blocks of commands of a page, each a list, and what is wrong with the page's fences."""
    blocks, faults, kind, pending = [], [], None, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            if kind is None:
                kind = line[3:].strip()
                if kind not in COMMANDS | OTHERS:
                    faults.append(f"{page}:{number}: a block of the kind '{kind}', for which there is no rule")
                if kind in COMMANDS:
                    blocks.append([])
            else:
                kind = None
        elif kind in COMMANDS and line.strip():
            pending += line.removesuffix("\\")
            if not line.endswith("\\"):
                blocks[-1] += [Command(page, number, tuple(words)) for words in split(pending)]
                pending = ""
    return blocks, faults


def spans_of(page, text):
    """Return what stands in the sentences of a page, outside of blocks, as a command or file of scripts/."""
    prose = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    found = re.finditer(r"`((?:python3 |build/venv/bin/python )?scripts/[^`]+)`", prose)
    return [Command(page, prose.count("\n", 0, span.start()) + 1, tuple(span[1].split())) for span in found]


def header_of(day):
    """Return the commands in the header of a day: how to build and how to run it."""
    lines = (SOURCE_DIR / day).read_text(encoding="utf-8").splitlines()[:20]
    found = [(number, re.match(r"//\s+(?:build|run):\s+([^(]*)", line)) for number, line in enumerate(lines, start=1)]
    return [Command(day, number, tuple(match[1].split())) for number, match in found if match]


# ---- rules: each returns what is wrong with a command ----------------------------------------------------------------


@functools.cache
def help_of(root, words):
    """Return the exit code and the words of a script's --help, behind the first words of a command."""
    environment = {**os.environ, "COLUMNS": "1000", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*words, "--help"], cwd=root, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def faults_of_script(root, script, arguments, by_python):
    """Hold a call of one of our scripts to the file, its run bit, and what its --help knows."""
    path = root / script
    if not path.is_file():
        return [f"there is no {script}"]
    if not by_python and not (path.stat().st_mode & 0o111 and path.read_bytes().startswith(b"#!")):
        return [f"{script} has no run bit, or does not start with #!"]
    if path.suffix == ".sbatch":
        return []
    called = (sys.executable, str(path)) if path.suffix == ".py" else (str(path),)
    named = tuple(arguments[:1]) if arguments and not arguments[0].startswith("-") else ()
    code, said = help_of(root, called)
    choices = re.search(r"usage: \S+ (?:\[-h\] )?(\{[\w,-]+\}|[\w|-]+(?: \| \w+)*)( \.\.\.|$)", said, re.MULTILINE)
    if choices and named:
        if named[0] not in re.findall(r"[\w-]+", choices[1]):
            return [f"{script} knows no '{named[0]}': {choices[1]}"]
        if path.suffix:  # a command of its own, with its own options
            code, said = help_of(root, (*called, *named))
    if code != 0:
        return [f"{script} --help ends with {code}: {said[-200:]}"]
    options = [word.partition("=")[0] for word in arguments if word.startswith("-")]
    return [
        f"{script} {' '.join(named)} knows no {option}"
        for option in options
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", said)
    ]


def faults_of_program(root, source, arguments):
    """Hold a call of a day's program to its source, or to the CPU backend's for --trace and what belongs to it."""
    if not (root / source).is_file():
        return [f"there is no {source} to build it from"]
    texts = [(root / source).read_text(encoding="utf-8")]
    texts += [
        path.read_text(encoding="utf-8") for path in (root / "common/cpu").glob("*.cpp") if "--trace" in arguments
    ]
    options = [word for word in arguments if word.startswith("-")]
    return [f"{source} knows no {option}" for option in options if not any(f'"{option}"' in text for text in texts)]


def without(words, *beginnings):
    """Return words but those that begin so."""
    return tuple(word for word in words if not word.startswith(beginnings))


def faults_of_nvcc(root, folder, command):
    """Hold a line that compiles a day to the line in the day's header, from which all others take their flags."""
    if command.page.suffix == ".cu":
        name = command.page.stem
        return (
            [] if command.words[-1:] == (f"{name}.cu",) or f"{name}.cu" in command.words else [f"builds no {name}.cu"]
        )
    headers = [header_of(day)[0].words for day in DAYS if folder in (Path(), day.parent)]
    words = command.words
    if SANITIZE in words:  # the header's line but for this, and for the card
        words = without(words, SANITIZE, "-arch=")
        headers = [without(header, "-arch=") for header in headers]
    return [] if words in headers else ["is not the line in the day's header"]


def faults_of(command, root=SOURCE_DIR):
    """Return what is wrong with a command, by the rule for it."""
    words = list(command.words)
    folder = command.page.parent if command.page.parent.name.startswith("day") else Path()
    presets = [preset["name"] for preset in json.loads((root / "CMakePresets.json").read_text())["configurePresets"]]
    while words[0] in LAUNCHERS:
        known = LAUNCHERS[words.pop(0)]
        while words and not words[0].startswith(("scripts/", "./")):
            option = words.pop(0)
            if option.startswith("-") and option.partition("=")[0] not in known:
                return [f"a launcher's option for which there is no rule: {option}"]
        if not words:
            return ["launches nothing of ours"]
    program, arguments = words[0], words[1:]
    by_python = program in PYTHONS
    if by_python and arguments:
        program, arguments = arguments[0], arguments[1:]
    if by_python or program.startswith(("scripts/", "../scripts/")):
        script = next((path for path in (folder / program, Path(program)) if (root / path).is_file()), Path(program))
        return faults_of_script(root, Path(os.path.normpath(script)), arguments, by_python)
    if program == "nvcc":
        return faults_of_nvcc(root, folder, command)
    if program == "cmake":
        named = arguments[arguments.index("--preset") + 1] if "--preset" in arguments[:-1] else None
        return [] if named in presets and set(arguments) <= {"--build", "--preset", named} else ["names no preset"]
    built = re.fullmatch(r"build/([\w-]+)/(day[\w-]+/\w+)", program)
    if built:
        faults = [] if built[1] in presets else [f"there is no preset {built[1]}"]
        return faults + faults_of_program(root, Path(f"{built[2]}.cu"), arguments)
    if program.startswith("./") and command.page.name == "README.md" and folder == Path():
        return [] if any(f"./{day.stem}" == program for day in DAYS) else [f"no day is called {program}"]
    if program.startswith("./"):
        return faults_of_program(root, folder / f"{program[2:]}.cu", arguments)
    if program == "g++":  # compiled below
        return []
    return ["there is no rule for this command: say in RUNS, or in faults_of, what it is held to"]


# ---- the pages -------------------------------------------------------------------------------------------------------

TEXTS = {page: (SOURCE_DIR / page).read_text(encoding="utf-8") for page in PAGES}
BLOCKS = {page: blocks_of(page, text) for page, text in TEXTS.items()}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_in_blocks_name_what_there_is(page):
    blocks, faults = BLOCKS[page]
    for block in blocks:
        for command in block:
            faults = faults + [f"{page}:{command.line}: {command.text}: {fault}" for fault in faults_of(command)]
    assert faults == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_in_sentences_name_what_there_is(page):
    faults = []
    for command in spans_of(page, TEXTS[page]):
        if len(command.words) > 1:
            faults += [f"{page}:{command.line}: {command.text}: {fault}" for fault in faults_of(command)]
        elif not (SOURCE_DIR / command.words[0]).exists():
            faults.append(f"{page}:{command.line}: there is no {command.words[0]}")
    assert faults == []


@pytest.mark.parametrize("day", DAYS, ids=str)
def test_headers_name_what_there_is(day):
    commands = header_of(day)
    assert [command.words[0] for command in commands] == ["nvcc", f"./{day.stem}"]
    assert [fault for command in commands for fault in faults_of(command)] == []


def test_commands_are_found_on_every_page():
    assert all(any(blocks) for blocks, _ in BLOCKS.values())


def test_the_table_of_the_tools_has_every_file():
    rows = [line.split("|")[1] for line in TEXTS[Path("scripts/README.md")].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    files = {path.name for path in (SOURCE_DIR / "scripts").iterdir() if path.is_file()} - {"README.md"}
    assert files - named == set()
    assert [name for name in named if not (SOURCE_DIR / "scripts" / name).exists()] == []


# ---- what runs -------------------------------------------------------------------------------------------------------


def expected(command):
    """Return the exit code of a command that can be run here, or None."""
    return next((code for start, code in RUNS.items() if command.text.startswith(start)), None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of the tree, with a fleet's runs where scripts/README.md has them, and a PATH without a GPU."""
    root = tmp_path_factory.mktemp("tree") / "a clone"
    shutil.copytree(SOURCE_DIR, root, ignore=shutil.ignore_patterns("build", ".git", ".ruff_cache", "__pycache__"))
    (root / "build/venv/bin").mkdir(parents=True)
    python = root / "build/venv/bin/python"  # a symlink would not find the packages of the environment
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for mode in ("solo", "together"):
        (root / "fleet" / mode).mkdir(parents=True)
        for run in sorted((root / "profile/h200-x2").glob(f"day49-{mode}-*.jsonl")):
            shutil.copy(run, root / "fleet" / mode)
    shutil.copytree(root / "fleet/solo", root / "runs")
    fakes = root.parent / "bin"
    fakes.mkdir()
    for name in ("nvidia-smi", "ncu"):
        (fakes / name).write_text("#!/bin/sh\necho no driver here >&2\nexit 9\n")
        (fakes / name).chmod(0o755)
    return root


def run_in(tree, command, folder=Path()):
    """Run a command of a page in the copy of the tree."""
    path = os.pathsep.join([str(tree.parent / "bin"), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    kept = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    # Without CUDACXX there is no nvcc, and so nothing that a GPU could be asked to do.
    environment = {**kept, "PATH": path, "CUDACXX": "", "SOURCE_DATE_EPOCH": "0"}
    return subprocess.run(
        ["bash", "-c", command.text], cwd=tree / folder, env=environment, capture_output=True, text=True, check=False
    )


def where(command):
    """Return the folder that a command is meant for."""
    return command.page.parent if command.text.startswith("../") else Path()


TO_RUN = [
    pytest.param([command for command in block if expected(command) is not None], id=f"{page}:{block[0].line}")
    for page, (blocks, _) in BLOCKS.items()
    for block in blocks
    if any(expected(command) is not None for command in block)
]
# The commands of the sentences, each once.
TO_RUN += [
    pytest.param([command], id=command.text)
    for command in {
        command.text: command
        for page, text in TEXTS.items()
        for command in spans_of(page, text)
        if len(command.words) > 1 and expected(command) is not None
    }.values()
]


@pytest.mark.parametrize("commands", TO_RUN)
def test_commands_run(tree, commands):
    text = "\n".join(command.text for command in commands)
    for package, pattern in (("matplotlib", r"plot_roofline|evidence\.py (verify|charts)"), ("plotly", "report.py")):
        if re.search(pattern, text):
            pytest.importorskip(package, reason=f"no {package}: scripts/lessons test installs it")
    for command in commands:
        done = run_in(tree, command, where(command))
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == expected(command), f"{command.text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        if expected(command) == 77:
            assert done.stderr.strip(), f"{command.text} says nothing"


def test_every_rule_is_of_a_command():
    texts = [command.text for page, (blocks, _) in BLOCKS.items() for block in blocks for command in block]
    texts += [command.text for page, text in TEXTS.items() for command in spans_of(page, text)]
    assert [start for start in RUNS if not any(text.startswith(start) for text in texts)] == []


CONTRACTED = """\
#include <cuda_runtime.h>

#include <cstdio>

__global__ void residue(const float* a, float* out) { *out = a[0] * a[0] + a[1]; }

int main() {
  const float a[2] = {1.0F + 1.0F / 4096, -(1.0F + 1.0F / 2048)};  // a[0]^2 + a[1] is 2^-24, and 0 with a[0]^2 rounded
  float *in = nullptr, *out = nullptr, value = -1;
  cudaMalloc(&in, sizeof(a));
  cudaMalloc(&out, sizeof(value));
  cudaMemcpy(in, a, sizeof(a), cudaMemcpyHostToDevice);
  residue<<<1, 1>>>(in, out);
  cudaMemcpy(&value, out, sizeof(value), cudaMemcpyDeviceToHost);
  cudaFree(in);
  cudaFree(out);
  if (value != 0) std::fprintf(stderr, "contracted: %g\\n", value);
  return value != 0;
}
"""


def test_a_day_compiled_by_hand_for_the_cpu_rounds_twice(tree, cxx):
    (block,) = [block for block in BLOCKS[Path("common/cpu/README.md")][0] if "common/cpu/lower.py" in block[0].words]
    (tree / "DAY.cu").write_text(CONTRACTED)
    # The option that the page recommends where the processor has the instruction.
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    fma = " -mfma" if re.search(r"^flags\b.*\bfma\b", cpuinfo, re.MULTILINE) else ""
    for command in block:
        text = command.text.replace("'", "")  # bash is to see the braces
        if command.words[0] == "g++":
            text = text.replace("g++", shlex.quote(cxx), 1) + fma
        done = subprocess.run(["bash", "-c", text], cwd=tree, capture_output=True, text=True, check=False)
        if "boost" in done.stderr and done.returncode:
            pytest.skip("no Boost.Context: apt-get install libboost-context-dev")
        assert done.returncode == 0, done.stderr
    done = subprocess.run([tree / "DAY"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- faults planted in a page ----------------------------------------------------------------------------------------

PLANTED = {
    "scripts/evidence.py compare --form x": "evidence.py compare knows no --form",
    "scripts/evidence.py comapre profile/h200": "knows no 'comapre'",
    "scripts/evidence.py compare --dey 49": "knows no --dey",
    "scripts/reprot.py profile/h200 -o page.html": "there is no scripts/reprot.py",
    "scripts/report.py profile/h200 -p page.html": "knows no -p",
    "python3 day49-roofline/merge.py --json x": "there is no day49-roofline/merge.py",
    "python3 day49-roofline/merge_dram.py --jsonl x": "knows no --jsonl",
    "scripts/lessons tset": "knows no 'tset'",
    "scripts/profile.sh 49 --outt x": "knows no --outt",
    "scripts/tests/conftest.py": "has no run bit",
    "cmake --preset gpus && cmake --build --preset gpu": "names no preset",
    "build/gpus/day49-roofline/roofline": "there is no preset gpus",
    "build/gpu/day49-roofline/rooflines": "there is no day49-roofline/rooflines.cu",
    "build/gpu/day49-roofline/roofline --jsom": "knows no --jsom",
    "nvcc -std=c++17 -O3 -o roofline roofline.cu": "is not the line in the day's header",
    "nvcc -O3 -arch=sm_90 -DCUDA_DAYS_SANITIZE -o graphs graphs.cu": "is not the line in the day's header",
    "compute-sanitizer --toool racecheck ./graphs --check": "no rule: --toool",
    "./rooflin": "no day is called ./rooflin",
    "mpirun --enable-recovery --map-bye ppr:8:node scripts/fleet.py check x": "no rule: --map-bye",
    "mpirun --enable-recovery scripts/fleet.py chekc x": "knows no 'chekc'",
    "make test": "there is no rule for this command",
    "cd build && ./roofline": "there is no rule for this command",
    "scripts/report.py profile/h200 \\\n  -q x": "knows no -q",
}


@pytest.mark.parametrize("line", PLANTED)
def test_a_planted_fault_is_named(line):
    (block,), faults = blocks_of(
        Path("README.md"), f"# Title\n\n```sh\nscripts/lessons run # fine\n{line} # why\n```\n"
    )
    assert faults == [] and len(block) > 1
    faults = [fault for command in block for fault in faults_of(command)]
    assert len(faults) == 1 and PLANTED[line] in faults[0]


def test_a_script_that_lost_its_run_bit_is_named(tmp_path):
    for folder in ("scripts", "day49-roofline"):
        shutil.copytree(SOURCE_DIR / folder, tmp_path / folder, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    shutil.copy(SOURCE_DIR / "CMakePresets.json", tmp_path)
    for script, line in (
        ("evidence.py", "scripts/evidence.py verify"),
        ("fleet.sbatch", "sbatch scripts/fleet.sbatch x"),
    ):
        command = Command(Path("README.md"), 1, tuple(line.split()))
        assert faults_of(command, tmp_path) == []
        (tmp_path / "scripts" / script).chmod(0o644)
        assert faults_of(command, tmp_path) == [f"scripts/{script} has no run bit, or does not start with #!"]


def test_a_block_of_an_unknown_kind_is_named():
    _, faults = blocks_of(Path("README.md"), "```fish\nscripts/lessons run\n```\n")
    assert faults == ["README.md:1: a block of the kind 'fish', for which there is no rule"]


def test_a_command_in_a_sentence_is_found():
    text = "See\n```sh\n`scripts/none.py x`\n```\nor `scripts/godbolt.py day30 --nope` and `scripts/none.py`.\n"
    first, second = spans_of(Path("README.md"), text)
    assert (first.line, first.words, second.words) == (
        5,
        ("scripts/godbolt.py", "day30", "--nope"),
        ("scripts/none.py",),
    )
