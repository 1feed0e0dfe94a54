"""What all Python scripts have in common: they start as the pages call them, on every Python that is supported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
COMMANDS = sorted(path for path in SCRIPTS.glob("*.py") if path.read_text(encoding="utf-8").startswith("#!"))


def test_there_are_commands():
    assert {"evidence.py", "godbolt.py", "resources.py"} <= {path.name for path in COMMANDS}


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_a_command_can_be_run_by_its_name(path):
    assert os.access(path, os.X_OK), f"chmod +x {path}; git update-index --chmod=+x {path}"


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_a_command_runs_without_docstrings(path):
    """As under `python -OO`, or PYTHONOPTIMIZE=2 in the environment."""
    words = [sys.executable, "-OO", path, "--help"]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "") and "usage: " in done.stdout


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.name)
def test_nothing_is_used_that_python_is_about_to_lose(path):
    assert "commonprefix" not in path.read_text(encoding="utf-8")  # deprecated from Python 3.15 on


PRINTS = {
    "evidence.py": ["compare", "profile/h200", "--from", "profile/h200/day49.jsonl"],
    "plot_roofline.py": ["profile/h200", "--table"],
    "godbolt.py": ["49"],
}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("name", PRINTS)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_is_printed_and_not_taken_is_a_failure(name, unbuffered):
    with open("/dev/full", "wb") as full:
        words = [sys.executable, SCRIPTS / name, *PRINTS[name]]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            words, cwd=SCRIPTS.parent, env=environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr.decode()) == (1, "stdout: No space left on device\n")
