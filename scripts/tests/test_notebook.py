"""scripts/t4_colab.ipynb: stored clean, runs top to bottom without a GPU, and with tools that play one."""

import os
import re
import shutil
import subprocess
import sys
import time

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
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDACXX", "")  # no nvcc, whatever this machine has
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


def test_the_address_is_asked_for_in_a_form_field_with_a_sentence(notebook):
    """Colab draws `# @param` as a field, `# @markdown` as text beside it, and reads a literal alone."""
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    title, sentence, field = first.source.splitlines()
    assert title.startswith("# @title ")
    assert re.fullmatch(r"# @markdown The address to clone the repository from, .*\.", sentence)
    assert field == 'REPOSITORY = ""  # @param {type: "string"}'
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


# An nvcc whose programs print a line; scripts/gpus.cu becomes one that prints what the CUDA runtime says of a card.
NVCC = r"""case "$*" in
  --version) echo "release 12.5, V12.5.82"; exit ;;
  --list-gpu-arch) printf 'compute_%s\n' 75 80 86 89 90; exit ;;
esac
echo "nvcc: $*" >&2
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; source=$1; shift; done
case $source in *{broken}) echo "$source(3): error: a bad line"; exit 2 ;; esac
case $source in
  *gpus.cu) printf '%s\n' '#!/bin/sh' 'cat "{facts}"' > "$out" ;;
  *) printf '#!/bin/sh\n%s\n' '{program}' > "$out" ;;
esac
chmod +x "$out"
"""
PROGRAM = 'echo "table of ${0##*/}, $*"'


@pytest.fixture
def play_gpu(tools, tmp_path, monkeypatch):
    """Return what puts an nvidia-smi and an nvcc there that play a host with one GPU."""

    def play(model="Tesla T4", capability="7.5", program=PROGRAM, broken="none"):
        facts = tmp_path / "facts"
        card = f"gpu\t0\t{capability}\t0000:00:04.0\tGPU-0\tcudaSuccess\t{model}"
        facts.write_text(f"runtime\t12.5\ndriver\t12.4\n{card}\n")
        tools("nvidia-smi", f'echo "smi: {model}"')
        tools("nvcc", NVCC.replace("{facts}", str(facts)).replace("{program}", program).replace("{broken}", broken))
        monkeypatch.delenv("CUDACXX")

    return play


# What the notebook asks of scripts/evidence.py. Its 1 is a failed check, which the notebook goes on after.
EVIDENCE = """
import os
import sys
from pathlib import Path
print("evidence:", *sys.argv[1:], "with", os.environ.get("CUDACXX"))
if sys.argv[1:3] == ["record", "--out"] and sys.argv[4:5] == ["--arch"]:
    folder = Path(sys.argv[3], "t4")
    folder.mkdir(parents=True)
    (folder / "day49.txt").write_text("the recorded table\\n")
    (folder / "day49.jsonl").write_text("{}\\n")
    (folder / "day49-merged.jsonl").write_text("{}\\n")
    sys.exit(RECORD_CODE)
elif sys.argv[1] == "compare" and [Path(word).name for word in sys.argv[3:]] == ["--from", "day49.jsonl"]:
    sys.exit(1)
else:
    print("unexpected")
"""


def add_evidence(checkout, record_code=0):
    (checkout / "scripts/evidence.py").write_text(EVIDENCE.replace("RECORD_CODE", str(record_code)))


@pytest.mark.parametrize(("model", "capability", "arch"), [("Tesla T4", "7.5", "75"), ("NVIDIA H100", "9.0", "90a")])
def test_with_a_gpu_it_builds_runs_records_compares_and_packs(
    notebook, checkout, tools, tmp_path, play_gpu, model, capability, arch
):
    play_gpu(model, capability)
    add_evidence(checkout)
    for folder in ("t4", "h200"):
        (checkout / "profile" / folder).mkdir(parents=True, exist_ok=True)
        (checkout / "profile" / folder / "manifest.json").write_text("{}")

    done = run_cells(code_of(notebook), checkout / "scripts")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"On the GPU: {model} (sm_{arch.strip('a')}, PCI 0000:00:04.0, GPU-0)\n" in done.stdout
    for day in checkout.glob("day*/*.cu"):
        program = checkout / "build/notebook" / day.parent.name
        source = day.relative_to(checkout)
        assert f"nvcc: -std=c++17 -O3 -lineinfo -arch=sm_{arch} -o {program} {source}" in done.stdout
        assert f"table of {day.parent.name}, --check --device 0\n" in done.stdout
    assert f"smi: {model}" in done.stdout
    assert ("This is no T4" in done.stdout) == (arch != "75")
    assert "== t4/day49.txt\nthe recorded table" in done.stdout
    nvcc = tmp_path / "tools/nvcc"
    assert f"evidence: record --out {checkout}/build/notebook/profile --arch {arch} with {nvcc}\n" in done.stdout
    for folder in ("t4", "h200"):
        assert f"evidence: compare profile/{folder} --from" in done.stdout
    assert "unexpected" not in done.stdout
    assert "not yet recorded" not in done.stdout
    archive = checkout / "scripts/cuda-days-profile.zip"
    assert f"Packed in {archive}" in done.stdout
    shutil.unpack_archive(archive, checkout / "unpacked")
    assert (checkout / "unpacked/t4/day49.txt").read_text() == "the recorded table\n"
    assert "No GPU" not in done.stdout


def test_a_t4_that_nobody_recorded_is_said(notebook, checkout, play_gpu):
    play_gpu()
    add_evidence(checkout)
    (checkout / "profile/t4/manifest.json").unlink(missing_ok=True)
    done = run_cells(code_of(notebook), checkout / "scripts")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "profile/t4: the run-time figures of a T4 are not yet recorded" in done.stdout


def test_a_day_that_fails_is_named_and_the_others_go_on(notebook, checkout, play_gpu):
    play_gpu(program=PROGRAM + "\ncase $0 in *day30*) exit 1 ;; *day44*) exit 77 ;; esac", broken="graphs.cu")
    add_evidence(checkout, record_code=1)
    done = run_cells(code_of(notebook), checkout / "scripts")
    for day in ("day30-roofline", "day44-matmul", "day49-roofline"):
        assert f"table of {day}" in done.stdout
    assert "day56-graphs/graphs.cu(3): error: a bad line" in done.stdout
    assert "table of day56" not in done.stdout
    assert "skipped: day44-matmul/matmul_registers.cu\n" in done.stdout
    assert "the recorded table" in done.stdout
    assert "Packed in" in done.stdout
    assert done.stderr.strip().endswith(
        "RuntimeError: Not all went well: day56-graphs/graphs.cu did not compile; "
        "day30-roofline/roofline.cu ended with exit code 1; recording ended with exit code 1"
    )
    assert done.returncode != 0


def test_lines_are_shown_as_they_come_and_unfinished_ones_too(notebook, checkout):
    """What a command printed is there while it still runs: it waits for the answer to its first line."""
    program = code_of(notebook, last="checkout")
    program += (
        "run('sh', '-c', 'printf \"a row\\\\nbuilding ... \"; until [ -e seen ]; do sleep 0.05; done; echo done')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=checkout, stdout=subprocess.PIPE) as process:
        shown = b""
        limit = time.monotonic() + 60
        os.set_blocking(process.stdout.fileno(), False)
        while not shown.endswith(b"a row\nbuilding ... ") and time.monotonic() < limit:
            shown += process.stdout.read() or b""
            time.sleep(0.02)
        (checkout / "seen").touch()
        assert shown.endswith(b"a row\nbuilding ... "), shown
        assert process.wait(60) == 0


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


def test_without_any_of_them_it_says_what_to_do(notebook, tools, tmp_path):
    done = run_cells(code_of(notebook, last="checkout"), tmp_path / "elsewhere")
    assert done.returncode != 0
    assert "RuntimeError: The repository is not here. Write the address to clone it from into REPOSITORY" in done.stderr
    assert "or upload an archive of it" in done.stderr


def test_an_address_that_cannot_be_cloned_is_named(notebook, tools, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_DAYS_REPOSITORY", f"{tmp_path}/none")
    done = run_cells(code_of(notebook, last="checkout"), tmp_path / "elsewhere")
    assert done.returncode != 0
    assert f"RuntimeError: {tmp_path}/none could not be cloned" in done.stderr


@pytest.mark.parametrize("kind", ["zip", "gztar"])
@pytest.mark.parametrize("top", ["", "cuda-days-main"])
def test_it_unpacks_an_uploaded_archive(notebook, checkout, tools, tmp_path, kind, top):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if top:
        checkout = checkout.rename(tmp_path / top)
        shutil.make_archive(str(elsewhere / "upload"), kind, tmp_path, top)
    else:
        shutil.make_archive(str(elsewhere / "upload"), kind, checkout)
    (elsewhere / "broken.zip").write_bytes(b"PK")
    shutil.make_archive(str(elsewhere / "another"), "zip", checkout / "profile")
    program = code_of(notebook, last="checkout")
    for first in (True, False):
        done = run_cells(program, elsewhere)
        assert done.returncode == 0, done.stderr
        assert ("Taken from " in done.stdout) == first
        assert ("broken.zip cannot be read" in done.stdout) == first
    unpacked = elsewhere / "cuda-days" / top
    assert f"Working in {unpacked}\n" in done.stdout
    assert os.access(unpacked / "scripts/lessons", os.X_OK)
    assert os.access(unpacked / "scripts/evidence.py", os.X_OK)


def test_an_address_of_something_else_is_named(notebook, tools, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("another project\n")
    monkeypatch.setenv("CUDA_DAYS_REPOSITORY", committed(other).as_uri())
    done = run_cells(code_of(notebook, last="checkout"), tmp_path / "elsewhere")
    assert done.returncode != 0
    assert f"RuntimeError: {other.as_uri()} is another repository: set REPOSITORY above" in done.stderr
