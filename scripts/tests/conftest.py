"""What the tests share: where source, build and compilers are, and an exit code that tells a skip from a pass.

CTest passes the paths in the environment. Run by hand (`pytest scripts/tests`), the defaults below apply.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from resources import find_nvcc  # noqa: E402 (lies in the folder named just above)

os.environ.pop("PYTHONUNBUFFERED", None)  # a reader's Python buffers, and finds a full stdout when it ends

EXIT_ALL_SKIPPED = 77  # CTest shows a test with this code as skipped

SOURCE_DIR = Path(os.environ.get("CUDA_DAYS_SOURCE_DIR") or Path(__file__).resolve().parents[2])
BUILD_DIR = Path(os.environ.get("CUDA_DAYS_BUILD_DIR") or SOURCE_DIR / "build" / "cpu")


@pytest.fixture(scope="session")
def source_dir():
    """Return the root of the repository."""
    return SOURCE_DIR


@pytest.fixture(scope="session")
def build_dir():
    """Return the build folder; a test that needs one is skipped where nothing is configured."""
    if not (BUILD_DIR / "CMakeCache.txt").is_file():
        pytest.skip(f"{BUILD_DIR} is not a build folder: cmake --preset cpu, or set CUDA_DAYS_BUILD_DIR")
    return BUILD_DIR


@pytest.fixture(scope="session")
def cxx():
    """Return the C++ compiler."""
    name = os.environ.get("CXX") or "g++"
    found = shutil.which(name)
    if not found:
        pytest.skip(f"no C++ compiler {name}")
    return found


@pytest.fixture(scope="session")
def nvcc():
    """Return nvcc; a test that needs it is skipped where there is none."""
    found = find_nvcc()
    if not found:
        pytest.skip("no nvcc (CUDACXX, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda)")
    return found


@pytest.fixture
def full_disk(tmp_path):
    """Return a folder in which no file can be written, because its file system has no block left."""
    folder = tmp_path / "full"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted here: it takes root")
    try:
        (folder / "filler").write_bytes(b"x" * 4096)
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


class _Outcome:
    """Counts what ran and what was skipped, and turns "all skipped" into its exit code."""

    def __init__(self):
        self.ran = 0
        self.skipped = 0

    def _count(self, report, ran):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped += 1
        elif ran:
            self.ran += 1

    def pytest_collectreport(self, report):
        self._count(report, report.failed)

    def pytest_runtest_logreport(self, report):
        self._count(report, report.failed or report.when == "call")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        nothing_wrong = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if nothing_wrong and self.skipped and not self.ran:
            session.exitstatus = EXIT_ALL_SKIPPED


def pytest_configure(config):
    """Register the counting once, however often this file is loaded."""
    if not config.pluginmanager.has_plugin("all-skipped"):
        config.pluginmanager.register(_Outcome(), "all-skipped")
