""".ci/run adds up what its parts count, and .ci/chroots says what it lacks and goes on."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PART = '#!/bin/sh\necho "{} at work"\necho "{}"\nexit {}\n'


def run(folder, *, tests, chroots):
    """Run a copy of .ci/run whose parts say a last line and end with an exit code."""
    for name, (said, code) in {"scripts/lessons": tests, ".ci/chroots": chroots}.items():
        part = folder / name
        part.parent.mkdir(exist_ok=True)
        part.write_text(PART.format(name, said, code))
        part.chmod(0o755)
    return subprocess.run([folder / ".ci" / "run"], cwd="/", capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("tests", "chroots", "last", "code"),
    [
        (
            ("9 passed, 0 failed, 1 skipped", 0),
            ("5 passed, 0 failed, 0 skipped", 0),
            "14 passed, 0 failed, 1 skipped",
            0,
        ),
        (
            ("9 passed, 0 failed, 1 skipped", 0),
            ("0 passed, 0 failed, 5 skipped", 77),
            "9 passed, 0 failed, 6 skipped",
            0,
        ),
        (
            ("9 passed, 0 failed, 1 skipped", 0),
            ("4 passed, 1 failed, 0 skipped", 1),
            "13 passed, 1 failed, 1 skipped",
            1,
        ),
        (
            ("8 passed, 2 failed, 0 skipped", 1),
            ("5 passed, 0 failed, 0 skipped", 0),
            "13 passed, 2 failed, 0 skipped",
            1,
        ),
        # One that says that all is well and fails, and one that ends without a count.
        (
            ("9 passed, 0 failed, 0 skipped", 1),
            ("5 passed, 0 failed, 0 skipped", 0),
            "14 passed, 1 failed, 0 skipped",
            1,
        ),
        (("scripts/lessons: no", 1), ("5 passed, 0 failed, 0 skipped", 0), "5 passed, 1 failed, 0 skipped", 1),
        (("9 passed, 0 failed, 0 skipped", 0), ("unfinished", 0), "9 passed, 1 failed, 0 skipped", 1),
    ],
)
def test_the_last_line_counts_both_parts(source_dir, tmp_path, tests, chroots, last, code):
    (tmp_path / ".ci").mkdir()
    shutil.copy(source_dir / ".ci" / "run", tmp_path / ".ci")
    done = run(tmp_path, tests=tests, chroots=chroots)
    assert (done.stdout.splitlines()[-1], done.returncode) == (last, code), done.stdout
    assert "scripts/lessons at work" in done.stdout and ".ci/chroots at work" in done.stdout


def chroots(source_dir, folder, **options):
    """Run a copy of .ci/chroots, in a folder of its own."""
    (folder / ".ci").mkdir()
    shutil.copy(source_dir / ".ci" / "chroots", folder / ".ci")
    folder.chmod(0o755)
    command = [folder / ".ci" / "chroots"]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **options)


def test_without_root_the_chroots_are_left_out(source_dir):
    options = {"user": 65534} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:  # nobody else may look into pytest's own
        done = chroots(source_dir, Path(folder), **options)
    assert done.stdout.splitlines() == [
        "Debian 13 and Debian 12: skipped, a chroot takes root",
        "0 passed, 0 failed, 5 skipped",
    ]
    assert (done.returncode, done.stderr) == (77, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
@pytest.mark.parametrize(
    ("fakes", "said"),
    [
        ({"apt-get": "exit 100"}, "there is no debootstrap, and apt-get does not bring it"),
        ({"debootstrap": "exit 1", "unshare": "exit 1"}, "this container lets nobody mount"),
        ({"debootstrap": "exit 1", "unshare": "exit 0", "git": "exit 128"}, "git does not say which files to copy"),
        ({"debootstrap": "echo E: no mirror; exit 1", "unshare": "exit 0", "git": "exit 0"}, "E: no mirror"),
    ],
)
def test_what_the_chroots_lack_is_said(source_dir, tmp_path, fakes, said):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ["bash", "dirname", "env", "flock", "head", "mkdir", "readlink", "rm", "sed", "sort", "tail"]:
        (folder / name).symlink_to(shutil.which(name))
    for name, text in fakes.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    done = chroots(source_dir, tmp_path, env={"PATH": str(folder), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode == 77, done.stdout + done.stderr
    assert said in done.stdout
    assert done.stdout.splitlines()[-1] == "0 passed, 0 failed, 5 skipped"
