"""scripts/t4_colab.ipynb: stored clean, runs top to bottom without a GPU, and with tools that play one."""

import os
import re
import shutil
import subprocess
import sys

import pytest

nbformat = pytest.importorskip("nbformat", reason="no nbformat: scripts/lessons test installs it")

NOTEBOOK = "scripts/t4_colab.ipynb"
WORK_FOLDERS = ("build", ".git", ".scratch", ".venv", "__pycache__")


@pytest.fixture(scope="module")
def notebook(source_dir):
    return nbformat.read(source_dir / NOTEBOOK, as_version=nbformat.NO_CONVERT)


@pytest.fixture
def checkout(source_dir, tmp_path):
    """A copy of the tree, without what was built in it."""
    copy = tmp_path / "checkout"
    shutil.copytree(source_dir, copy, ignore=shutil.ignore_patterns(*WORK_FOLDERS))
    return copy


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that comes first in PATH, with an nvidia-smi that finds no GPU, whatever this machine has."""
    folder = tmp_path / "tools"
    folder.mkdir()

    def add(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    add("nvidia-smi", "exit 9")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_DAYS_REPOSITORY", raising=False)
    # Variables of the build that runs this test are not the reader's.
    for name in [name for name in os.environ if name.startswith("CUDA_DAYS_")]:
        monkeypatch.delenv(name)
    return add


def code_of(notebook, last=None):
    """Return the code cells as one Python program, up to the cell with the id `last`."""
    program = ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            program += cell.source + "\n"
        if cell.id == last:
            break
    return program


def run_cells(program, folder):
    folder.mkdir(exist_ok=True)
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)


def test_it_is_valid_and_stored_without_outputs(notebook):
    nbformat.validate(notebook)
    assert notebook.nbformat == 4
    for cell in notebook.cells:
        assert not cell.get("outputs"), f"cell {cell.id} is stored with outputs: clear them before you commit"
        assert cell.get("execution_count") is None, f"cell {cell.id} is stored with an execution count"
    assert notebook.metadata.kernelspec.name == "python3"


def test_the_address_is_one_variable_in_the_first_cell_with_code(notebook):
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert re.findall(r"^(\w+) = (.*)$", first.source, re.MULTILINE) == [
        ("REPOSITORY", 'os.environ.get("CUDA_DAYS_REPOSITORY", "")')
    ]
    assert not re.search(r"https?://", code_of(notebook))


def test_without_a_gpu_it_runs_top_to_bottom_and_proves_the_kernels(
    notebook, checkout, tools, tmp_path_factory, monkeypatch
):
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: scripts/lessons test installs it")
    pytest.importorskip("ipykernel", reason="no ipykernel: scripts/lessons test installs it")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
    # A cell that fails raises here, with the cell and its traceback.
    executed = nbclient.NotebookClient(
        nbformat.from_dict(notebook),
        timeout=1000,
        kernel_name="python3",
        resources={"metadata": {"path": str(checkout / "scripts")}},
    ).execute()

    shown = {}
    for cell in executed.cells:
        if cell.cell_type != "code":
            continue
        assert all(output.output_type == "stream" for output in cell.outputs), cell.outputs
        shown[cell.id] = "".join(output.text for output in cell.outputs)
    assert f"Working in {checkout}\n" in shown["checkout"]
    for step in ("look", "nvcc", "days", "evidence", "tables", "download"):
        assert "No GPU: " in shown[step], step
    days = shown["days"]
    assert re.search(r"^All \d+ kernels match their CPU reference", days, re.MULTILINE), days
    assert "No GPU was used: results are proven here, speed is not" in days
    count = len(list(checkout.glob("day*/*.cu")))
    assert f"{count} passed, 0 failed, 0 skipped" in days


# A GPU of a given model, and an nvcc whose programs print a line.
SMI = """case "$*" in
  *compute_cap*) echo "{model}, {capability}" ;;
  *) echo "smi: {model}" ;;
esac"""
NVCC = r"""[ "$1" = --version ] && { echo "release 12.5, V12.5.82"; exit; }
echo "nvcc: $*" >&2
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
printf '#!/bin/sh\necho "table of ${0##*/}"\n' > "$out"; chmod +x "$out"
"""
# What the notebook asks of scripts/evidence.py. Its 1 is a failed check, which the notebook goes on after; 9 is not.
EVIDENCE = """
import sys
from pathlib import Path
print("evidence:", *sys.argv[1:])
if sys.argv[1:3] == ["record", "--out"]:
    folder = Path(sys.argv[3], "t4")
    folder.mkdir(parents=True)
    (folder / "day49.txt").write_text("the recorded table\\n")
    (folder / "day49.jsonl").write_text("{}\\n")
    (folder / "day49-merged.jsonl").write_text("{}\\n")
elif sys.argv[1] == "compare" and [Path(word).name for word in sys.argv[3:]] == ["--from", "day49.jsonl"]:
    sys.exit(1)
else:
    sys.exit(9)
"""


@pytest.mark.parametrize(("model", "capability", "arch"), [("Tesla T4", "7.5", "sm_75"), ("NVIDIA L4", "8.9", "sm_89")])
def test_with_a_gpu_it_builds_runs_records_compares_and_packs(notebook, checkout, tools, model, capability, arch):
    tools("nvidia-smi", SMI.format(model=model, capability=capability))
    tools("nvcc", NVCC)
    (checkout / "scripts/evidence.py").write_text(EVIDENCE)
    for folder in ("t4", "h200"):
        (checkout / "profile" / folder).mkdir(parents=True, exist_ok=True)
        (checkout / "profile" / folder / "manifest.json").write_text("{}")

    done = run_cells(code_of(notebook), checkout / "scripts")
    assert done.returncode == 0, done.stdout + done.stderr
    for day in checkout.glob("day*/*.cu"):
        program = checkout / "build/notebook" / day.stem
        source = day.relative_to(checkout)
        assert f"nvcc: -std=c++17 -O3 -lineinfo -arch={arch} -o {program} {source}" in done.stdout
        assert f"table of {day.stem}" in done.stdout
    assert f"smi: {model}" in done.stdout
    assert ("This is no T4" in done.stdout) == (arch != "sm_75")
    assert "== t4/day49.txt\nthe recorded table" in done.stdout
    for folder in ("t4", "h200"):
        assert f"evidence: compare profile/{folder} --from" in done.stdout
    assert "not yet recorded" not in done.stdout
    archive = checkout / "scripts/cuda-days-profile.zip"
    assert f"Packed in {archive}" in done.stdout
    shutil.unpack_archive(archive, checkout / "unpacked")
    assert (checkout / "unpacked/t4/day49.txt").read_text() == "the recorded table\n"
    assert "No GPU" not in done.stdout


def test_a_t4_that_nobody_recorded_is_said(notebook, checkout, tools):
    tools("nvidia-smi", SMI.format(model="Tesla T4", capability="7.5"))
    tools("nvcc", NVCC)
    (checkout / "scripts/evidence.py").write_text(EVIDENCE)
    (checkout / "profile/t4/manifest.json").unlink(missing_ok=True)
    done = run_cells(code_of(notebook), checkout / "scripts")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "profile/t4: the run-time figures of a T4 are not yet recorded" in done.stdout


def test_a_step_that_fails_stops_it(notebook, checkout, tools):
    tools("nvidia-smi", SMI.format(model="Tesla T4", capability="7.5"))
    tools("nvcc", NVCC.replace('echo "table of ${0##*/}"', "echo wrong; exit 1"))
    done = run_cells(code_of(notebook), checkout / "scripts")
    assert done.returncode != 0
    assert "RuntimeError: exit code 1 from" in done.stderr
    assert "evidence:" not in done.stdout


def committed(folder):
    """Make a folder a git repository with one commit, and return it."""
    if not shutil.which("git"):
        pytest.skip("no git")
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_it_clones_the_repository_where_there_is_no_checkout(notebook, checkout, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_DAYS_REPOSITORY", committed(checkout).as_uri())
    elsewhere = tmp_path / "elsewhere"
    program = code_of(notebook, last="checkout")
    for _ in range(2):  # the second run finds what the first one cloned
        done = run_cells(program, elsewhere)
        assert done.returncode == 0, done.stderr
        assert f"Working in {elsewhere / 'cuda-days'}\n" in done.stdout
        monkeypatch.delenv("CUDA_DAYS_REPOSITORY", raising=False)
    assert (elsewhere / "cuda-days/scripts/lessons").is_file()


def test_without_checkout_and_address_it_says_what_to_set(notebook, tools, tmp_path):
    done = run_cells(code_of(notebook, last="checkout"), tmp_path / "elsewhere")
    assert done.returncode != 0
    assert "RuntimeError: This notebook lies in no checkout: set REPOSITORY above" in done.stderr


def test_an_address_of_something_else_is_named(notebook, tools, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("another project\n")
    monkeypatch.setenv("CUDA_DAYS_REPOSITORY", committed(other).as_uri())
    done = run_cells(code_of(notebook, last="checkout"), tmp_path / "elsewhere")
    assert done.returncode != 0
    assert f"RuntimeError: {other.as_uri()} is another repository" in done.stderr
