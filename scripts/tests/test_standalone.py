"""Each day's file alone in an empty folder: the build line of its header works, and nothing in it draws a warning."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE_DIR = Path(os.environ.get("CUDA_DAYS_SOURCE_DIR", Path(__file__).parents[2]))
DAYS = sorted(SOURCE_DIR.glob("day*-*/*.cu"))
# One for each branch of the sources, if nvcc knows it. scripts/tests/test_resources.py compiles for every architecture.
ARCHITECTURES = ["75", "80", "90a", "120"]
STRICT = ["-Werror", "all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror"]

pytestmark = pytest.mark.skipif(
    not (os.environ.get("CUDACXX") or shutil.which("nvcc")), reason="needs nvcc (CUDA Toolkit)"
)


def build_line(day):
    """The command of the line `//   build: ...` in the day's header comment, as a list of words."""
    match = re.search(r"^//\s+build: (nvcc .*)$", day.read_text(), re.MULTILINE)
    assert match, f"{day.name} has no line '//   build: nvcc ...'"
    return shlex.split(match.group(1))


@pytest.fixture
def alone(tmp_path):
    """Returns a function that copies a day into an empty folder and runs a command there."""

    def build(day, command):
        shutil.copy(day, tmp_path)
        subprocess.run([os.environ.get("CUDACXX") or "nvcc", *command[1:]], cwd=tmp_path, check=True)
        return tmp_path

    return build


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.parent.name)
def test_build_line(day, alone):
    command = build_line(day)
    assert "-arch=sm_75" in command and not any(word.startswith("-I") for word in command)
    folder = alone(day, command)
    program = folder / command[command.index("-o") + 1]
    if not Path("/dev/nvidiactl").exists():
        result = subprocess.run([program], capture_output=True, text=True)
        assert result.returncode == 77
        assert result.stdout == ""
        assert result.stderr.startswith("no NVIDIA driver is visible") and result.stderr.count("\n") == 1
        assert subprocess.run([program, "--help"], capture_output=True).returncode == 0
        assert subprocess.run([program, "--bad"], capture_output=True).returncode == 2


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.parent.name)
def test_strict_build(day, alone):
    """All in one command, which compiles the host's code once."""
    nvcc = os.environ.get("CUDACXX") or "nvcc"
    said = subprocess.run([nvcc, "--help"], capture_output=True, text=True, check=True).stdout
    known = [architecture for architecture in ARCHITECTURES if f"'sm_{architecture}'" in said]
    assert known[:2] == ["75", "80"]
    everywhere = [f"-gencode=arch=compute_{architecture},code=sm_{architecture}" for architecture in known]
    command = [word for word in build_line(day) if not word.startswith("-arch=")]
    alone(day, [*command, *everywhere, *STRICT])


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.parent.name)
def test_includes_only_the_standard_library_and_the_toolkit(day):
    for header in re.findall(r'^#include [<"](.*)[>"]', day.read_text(), re.MULTILINE):
        in_toolkit = header.startswith(("cuda", "cublas", "nvtx3/", "mma.h", "cooperative_groups"))
        assert in_toolkit or re.fullmatch(r"[a-z_]+", header), f"{day.name} includes {header}"


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.parent.name)
def test_source_is_ascii(day):
    assert day.read_bytes().isascii()
