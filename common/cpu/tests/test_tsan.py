"""Under ThreadSanitizer, races between blocks must be reported with their line, and the days must have none.

The days are the smaller ones of planting.py, built for a sanitizer: whole, under ThreadSanitizer, they take minutes.
"""

import os
import platform
import re
import subprocess
import sys

import planting
import pytest

DAYS = ["day30-roofline/roofline.cu", "day49-roofline/roofline.cu", "day56-graphs/graphs.cu"]

# Without this guard a row's block also writes the start of the next row. Whether a check sees it is a matter of time:
# most often the next row's own block comes later.
NO_GUARD = planting.CodeFault("stencil7", "no guard", "x >= g", "false")


@pytest.fixture(scope="session")
def launcher():
    """Return what goes before a program: old runtimes do not start where the kernel randomises by more than 28 bits."""
    words = ["setarch", platform.machine(), "-R"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return words if done.returncode == 0 else []  # a container may forbid it


@pytest.fixture(scope="session")
def tsan(source_dir, cxx, tmp_path_factory):
    """Return the folder of a build by the preset cpu-tsan, with the backend and races.cu, and its compiler flags."""
    folder = tmp_path_factory.mktemp("cpu-tsan")
    (folder / "empty.cpp").write_text("int main() {}\n")
    words = [cxx, "-fsanitize=thread", folder / "empty.cpp", "-o", folder / "empty"]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{cxx} has no ThreadSanitizer (Debian and Ubuntu: libtsan of its version)")
    cmake = os.environ.get("CMAKE", "cmake")
    configure = [cmake, "--preset", "cpu-tsan", "-B", folder, "-DCUDA_DAYS_NVCC=", f"-DCMAKE_CXX_COMPILER={cxx}"]
    output = ""
    for words in (configure, [cmake, "--build", folder, "--parallel", "2", "--target", "races"]):
        done = subprocess.run(words, cwd=source_dir, capture_output=True, text=True, check=False)
        output += done.stdout
        assert done.returncode == 0, done.stdout + done.stderr
    return folder, re.search(r"backend cpu: (.*)", output)[1].split()


def run(launcher, *words, **extra):
    """Run a program; return its exit code and all that it printed."""
    done = subprocess.run(
        [*launcher, *words],
        env={**os.environ, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout


RACES = {  # kernel: what its line holds
    "sumOfAll": "words[0] += 1",
    "lastWins": "words[threadIdx.x] =",
    "readsNeighbour": "const int right = words",
    "plainBesideAtomic": "words[0] = 0",
}


@pytest.mark.parametrize("case", RACES)
def test_a_race_between_blocks_is_reported(tsan, launcher, case, source_dir):
    code, said = run(launcher, tsan[0] / "tests" / "races", case)
    assert code == 1, said
    lines = (source_dir / "common/cpu/tests/races.cu").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if RACES[case] in text)
    assert re.search(rf"WARNING: ThreadSanitizer: data race(.*\n)*? +#0 {case}.*races\.cu:{line}\b", said), said
    assert re.search(rf"CPU backend: kernel {case}, block \(\d+, \d+, 0\), thread .* another block", said), said


@pytest.mark.parametrize("case", ["sumOfAllAtomic", "floatSumAtomic", "eachItsOwn"])
def test_what_does_not_race_is_not_reported(tsan, launcher, case):
    code, said = run(launcher, tsan[0] / "tests" / "races", case)
    assert code == 0, said
    assert "ThreadSanitizer" not in said


def test_every_pair_of_neighbours_is_looked_at(tsan, launcher):
    """The few blocks of a small grid run on different OS threads, whichever of these wakes first."""
    for _ in range(5):
        assert run(launcher, tsan[0] / "tests" / "races", "lastWins")[0] == 1


def test_addresses_are_not_randomised(launcher):
    if not launcher:
        pytest.skip("setarch -R is not allowed here")
    assert int(run(launcher, "cat", "/proc/self/personality")[1], 16) & 0x0040000


@pytest.fixture(scope="session")
def day_program(tsan, cxx, source_dir, tmp_path_factory):
    """Return a function that gives the program of a day, and its source; day 30's has NO_GUARD to switch on."""
    programs = {}

    def build(day):
        if day not in programs:
            folder = tmp_path_factory.mktemp(day[:5])
            source = planting.small_source(day, source_dir)
            if day.startswith("day49"):  # a quarter of the words
                source = planting.exchanged(
                    source, "", "kSanitizerSizes = {2 * kSideStep,", "kSanitizerSizes = {kSideStep,", day
                )
            if day.startswith("day30"):
                source = planting.switchable(source, [NO_GUARD])
            (folder / "day.cu").write_text(source)
            cpu = source_dir / "common" / "cpu"
            lower = [sys.executable, cpu / "lower.py", folder / "day.cu", "-o", folder / "day.cpp"]
            subprocess.run(lower, check=True)
            flags = [*tsan[1], "-w", "-rdynamic", "-DCUDA_DAYS_SANITIZE", "-I", cpu]
            libraries = [tsan[0] / "libcpu_backend.a", "-lboost_context", "-pthread"]
            subprocess.run([cxx, *flags, folder / "day.cpp", *libraries, "-o", folder / "day"], check=True)
            programs[day] = folder / "day", source
        return programs[day]

    return build


@pytest.mark.parametrize("day", DAYS)
def test_a_day_has_no_race_between_blocks(day, day_program, launcher):
    code, said = run(launcher, day_program(day)[0], "--check")
    assert code == 0, said
    assert "ThreadSanitizer" not in said


def test_a_missing_guard_of_a_day_is_reported(day_program, launcher):
    program, source = day_program(DAYS[0])
    code, said = run(launcher, program, "--check", PLANTED="1")
    assert code == 1
    [body] = planting.bodies_of(source, "stencil7")
    first, last = (source.count("\n", 0, at) + 1 for at in body)
    found = re.findall(r"#0 stencil7.*day\.cu:(\d+)", said)
    assert found, said
    assert all(first <= int(line) <= last for line in found), said
