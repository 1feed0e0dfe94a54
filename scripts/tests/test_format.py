"""Style, of every file that git knows: clang-format, ruff, bash syntax, copies of the shared blocks, ASCII sources."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE_DIR

# Tools come from the environment that runs the tests, at the pinned versions; else from PATH.
TOOLS = str(Path(sys.executable).parent)


def tool(name):
    found = shutil.which(name, path=TOOLS) or shutil.which(name)
    if not found:
        pytest.skip(f"no {name}: scripts/lessons test installs it")
    return found


def tracked(*suffixes):
    """Return the files that git tracks or would track, so that a new file is looked at before its commit."""
    if not shutil.which("git") or not (SOURCE_DIR / ".git").exists():
        pytest.skip(f"{SOURCE_DIR} is no git repository, or there is no git: the list of files is unknown")
    command = [
        "git",
        "-c",
        f"safe.directory={SOURCE_DIR}",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=SOURCE_DIR, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.split("\0") if name.endswith(suffixes) and (SOURCE_DIR / name).is_file()]
    assert files, f"git lists no file ending in {suffixes}"
    return sorted(files)


def passes(*command):
    result = subprocess.run(
        command, cwd=SOURCE_DIR, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}"


def test_clang_format():
    passes(tool("clang-format"), "--dry-run", "-Werror", *tracked(".cu", ".cuh", ".h", ".cpp"))


def test_ruff_check():
    passes(tool("ruff"), "check", "--no-cache", *tracked(".py"))


def test_ruff_format():
    passes(tool("ruff"), "format", "--no-cache", "--check", "--diff", *tracked(".py"))


@pytest.mark.parametrize("script", ["scripts/lessons", "scripts/choose_gpu.sh", "scripts/profile.sh", ".ci/run"])
def test_bash_syntax(script):
    passes("bash", "-n", script)


def test_copies_of_the_shared_blocks():
    passes(sys.executable, "scripts/sync_common.py", "--check")


def test_sources_are_ascii():
    for name in tracked(".cu", ".cuh", ".h", ".cpp"):
        for number, line in enumerate((SOURCE_DIR / name).read_bytes().splitlines(), start=1):
            assert line.isascii(), f"{name}:{number}: not ASCII: {line.decode(errors='replace')}"
