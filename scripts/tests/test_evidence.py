"""scripts/evidence.py: recorded on a fake GPU, then every kind of damage planted and found."""

import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from charts_data import EXECUTED, H200, LINES, fill_losses, write_executed

SCRIPTS = Path(__file__).resolve().parents[1]
ROOT = SCRIPTS.parent
SCRIPT = SCRIPTS / "evidence.py"
pytest.importorskip("jsonschema", reason="no jsonschema: scripts/lessons test installs it")

sys.path.insert(0, str(SCRIPTS))
EVIDENCE = importlib.import_module("evidence")
COUNTERS = importlib.import_module("counters")
DAY_FACTS = importlib.import_module("day_facts")

UUID = "GPU-00000000-1111-2222-3333-444444444444"

SOURCE = """\
// SPDX-License-Identifier: MIT
// A day that exists for the tests alone.
//
//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o fake fake.cu -lcublas
#include <cstdio>

// snippet: kernel
__global__ void scale(float* data, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] *= 3.0f;  // the only line that counts
}
// end snippet: kernel

void run(float* data, int n) {
  scale<<<n / 256 + 1, 256>>>(data, n);
  if (n < 0) throw "no such size";
}

// ---- Report

int main() { std::puts("a \\"quoted\\" // text"); }
"""

HEADER = """\
// common: harness
inline void refuse() { throw "unknown argument"; }
// ---- Timing
constexpr int kSamples = 21;
// ---- Records
inline void print() { std::puts("a record"); }
// end common: harness
"""

README = """\
# Days
<!-- begin recorded: profile/h200/day49.txt -->
<!-- end recorded -->
<!-- begin snippet: day49-fake/fake.cu kernel -->
<!-- end snippet -->
On a T4:
<!-- begin recorded: profile/t4/day49.txt -->
<!-- end recorded -->
"""

TABLE = "GPU: NVIDIA H200\n\nkernel        ms\nvector add    0.2369\nmatmul        0.0586\n"


def run_record(day=49, device="NVIDIA H200", **changes):
    record = {
        "record": "run",
        "schema": 2,
        "day": day,
        "program": "fake",
        "device": device,
        "cc": "9.0",
        "sms": 132,
        "l2_bytes": 62914560,
        "driver": "13.0",
        "runtime": "13.0",
        "arch": "sm_90",
        "backend": "cuda",
        "uuid": UUID,
        "pci": "0000:00:06.0",
        "revision": "@REVISION@",
        "flags": "@FLAGS@",
        "utc": "2026-11-30T00:24:45Z",
    }
    return {**record, **changes}


def check(variant, symbol, **changes):
    record = {"record": "check", "day": 5, "variant": variant, "symbol": symbol, "size": "full", "ok": True}
    return {**record, "checked": 1024, "wrong": 0, "worst": 0.25, **changes}


def timed(record, variant, symbol, ms, metric, value, unit, **more):
    row = {"record": record, "day": 5, "variant": variant, "symbol": symbol, "ms": ms, "ms_min": ms * 0.99}
    row.update({"ms_max": ms * 1.01, "samples": 21, "batch": 9, "flop": 1024, "requested_bytes": 4096})
    return {**row, "metric": metric, "value": value, "unit": unit, **more}


def row(variant, symbol, ms, **more):
    return timed("row", variant, symbol, ms, "ms", ms, "ms", percent=81.5, ceiling="copy", **more)


def lines_of(*records):
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def run_lines(scale=1.0, **changes):
    return lines_of(
        run_record(**changes),
        check("vector add", "vectorAdd"),
        check("matmul, naive", "matmulNaive"),
        timed("ceiling", "ceiling-copy", "copyVector", 0.125, "gbps", 4184.5 / scale, "GB/s", shape="float4 x 1"),
        {
            "record": "ridge",
            "day": 49,
            "variant": "ridge-point",
            "metric": "ridge",
            "value": 15.75,
            "unit": "FLOP/byte",
        },
        row("vector add", "vectorAdd", 0.25 * scale),
        row("matmul, naive", "matmulNaive", 0.0625 * scale),
        row("stencil", "heatStep", 0.5 * scale),
    )


def gemm(variant, size, rate, **more):
    """Return a line of day 44: a matrix product of three equal extents."""
    row = timed("gemm", variant, "sgemm", 2e-6 * size**3 / rate, "gflops", rate, "GFLOP/s", cublas_ms=0.5, **more)
    row.update(day=44, m=size, n=size, k=size, flop=2 * size**3, cublas_percent=96.5, fma_percent=73.25)
    del row["requested_bytes"]
    return row


def matmul_lines(*, size=1024, factor=1.0, **changes):
    """Return a run of day 44, with the rates of `size` times `factor`."""
    sizes = {512: 6400.0, 1024: 7700.0}
    rungs = {"3 shared tile": 1.0, "4 column of 8": 2.0}
    sizes[size] *= factor
    checks = [
        {**check("3 shared tile", "sgemm", size=f"{of} {inputs}"), "day": 44}
        for of in ("512x512x512", "35x79x19")
        for inputs in ("integer", "uniform", "uniform gaps", "integer aligned")
    ]
    ceiling = timed("ceiling", "fma-peak", "fmaPeak", 4.3, "gflops", 65758.5, "GFLOP/s", clock_mhz=1978.5, theory=66800)
    return lines_of(
        run_record(day=44, **changes),
        *checks,
        {**ceiling, "day": 44, "requested_bytes": 0},
        *(gemm(rung, of, rate * times) for of, rate in sizes.items() for rung, times in rungs.items()),
        gemm("sgemm()", 512, 27000.0, model_percent=91.3, intensity=15.1, loads_per_fma=0.0625, note="12 clusters"),
        gemm("sgemm()", 512, 23800.0, error=1.5e-7, note="12 clusters, launch loop"),
    )


def short(parameter):
    """Name a test's parameter by its end."""
    return str(parameter)[-50:]


# Commands that stand in for the GPU's. Each reads what it plays from the folder it lies in; a file named like a fault
# makes it commit that fault.
FAKES = {
    "nvidia-smi": """\
case "$*" in
  *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;  # a driver of branch 470
  *driver_version*) echo 580.159.04 ;;
esac
""",
    "nvcc": """\
case "$*" in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;;
  *gpus.cu)  # asks the runtime, which counts on from what is played
    sed "s|^|gpu\\t0\\t|; s|$|\\t0000:06:00.0\\tGPU-0\\tcudaSuccess\\tfake|" "$here/compute_cap" >"$2.says"
    printf '#!/bin/sh\\ncat "$0.says"\\n' >"$2"
    chmod +x "$2"
    exit
    ;;
esac
if [ -e "$here/nvcc-fails" ]; then echo "fake.cu(9): error: planted" >&2; exit 2; fi
printf '%s\\n' "$@" >"$here/nvcc.log"
for word; do
  case "$word" in
    -DCUDA_DAYS_REVISION=*) revision=$(echo "${word#*=}" | tr -d '"') ;;
    -DCUDA_DAYS_FLAGS=*) flags=$(echo "${word#*=}" | tr -d '"') ;;
    *.cu) source=$word ;;
  esac
  if [ "$before" = -o ]; then output=$word; fi
  before=$word
done
[ -f "$source" ] || exit 3
day=$(sed -n 's/.*day \\([0-9]*\\) of the tests.*/\\1/p' "$source")
sed "s|@HERE@|$here|; s|@DAY@|${day:-49}|; s|@REVISION@|$revision|; s|@FLAGS@|$flags|" "$here/program" >"$output"
chmod +x "$output"
""",
    "program": """\
here=@HERE@
if [ -e "$here/program-says" ]; then cat "$here/program-says" >&2; fi
echo "$*" >>"$here/runs"
lines() { sed "s|@REV[I]SION@|@REVISION@|; s|@FL[A]GS@|@FLAGS@|" "$here/day@DAY@.jsonl"; }
case "$1" in
  --json) lines ;;
  --json-file)
    cat "$here/table"
    if [ ! -e "$here/no-file" ]; then lines >"$2"; fi
    ;;
  --profile) echo "profile mode"; exit ;;
  *) exit 3 ;;
esac
exit "$(cat "$here/program-exit" 2>/dev/null || echo 0)"
""",
    "ncu": """\
case "$1" in
  --version) echo "Version 2025.3.1.0 (build 1)"; exit ;;
  --query-metrics) cat "$here/metrics"; exit ;;
esac
if [ -e "$here/ncu-says" ]; then cat "$here/ncu-says"; exit "$(cat "$here/ncu-exit" 2>/dev/null || echo 0)"; fi
echo "==PROF== Connected to process 7 ($PWD/fake)"
for word; do
  case "$word" in *.sum*) metrics=$(echo "$word" | tr , ' ') ;; *) ;; esac
  [ "$word" = --profile ] && $last --profile
  last=$word
done
echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
for kernel in 0,vectorAdd 1,matmulNaive; do
  for metric in $metrics; do
    value=1,024
    [ -e "$here/ncu-lacks" ] && [ "$metric" = "$(cat "$here/ncu-lacks")" ] && value=n/a
    echo "\\"${kernel%,*}\\",\\"${kernel#*,}(float *, int)\\",\\"$metric\\",\\"byte\\",\\"$value\\""
  done
done
""",
}


class Repository:
    """A small repository with one day, and a machine with a fake GPU, toolkit and profiler."""

    def __init__(self, folder):
        self.root = folder / "repository"
        self.fakes = folder / "fakes"
        self.profile = self.root / "profile"
        self.h200 = self.profile / "h200"

    def make(self):
        self.fakes.mkdir(parents=True)
        for name, text in FAKES.items():
            self.fake(name, f'#!/bin/sh\nhere=$(cd "$(dirname "$0")" && pwd)\n{text}').chmod(0o755)
        self.fake("compute_cap", "9.0\n")
        self.fake("table", TABLE)
        names = " ".join(counters for _, counters in COUNTERS.PASSES).replace("|", " ").split()
        self.fake("metrics", "".join(f"{name.partition('.')[0]}  Counter  of something\n" for name in names))
        self.fake("day49.jsonl", run_lines())
        self.write("day49-fake/fake.cu", SOURCE)
        self.write("common/lesson.cuh", HEADER)
        self.facts(49)
        self.write("README.md", README)
        schema = self.root / "scripts/schema/row.schema.json"
        schema.parent.mkdir(parents=True)
        shutil.copyfile(SCRIPTS / "schema/row.schema.json", schema)
        return self

    def add_day(self, number):
        """Add another day: a copy of day 49, which prints that it is another."""
        self.write(f"day{number}-fake/fake.cu", SOURCE.replace("A day", f"day {number} of the tests: a day"))
        self.facts(number)
        self.fake(f"day{number}.jsonl", run_lines(day=number))

    def facts(self, number):
        """Write what is known of a day."""
        facts = dict.fromkeys(("libraries", "headers", "optional_headers", "not_profiled", "off"), [])
        facts.update(number=number, program="fake", kernels={}, counters=number in (30, 44, 49), timeline=number == 56)
        self.write(f"day{number}-fake/day.json", json.dumps(facts))

    def fake(self, name, text):
        path = self.fakes / name
        path.write_text(text)
        return path

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def replace(self, name, old, new):
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def manifest(self, gpu="h200"):
        return json.loads((self.profile / gpu / "manifest.json").read_text())

    def edit_manifest(self, change):
        manifest = self.manifest()
        change(manifest)
        (self.h200 / "manifest.json").write_text(json.dumps(manifest, indent=2))

    def rewrite_recorded(self, name, data):
        """Change a recorded file together with its sum, as only somebody who means harm would."""
        (self.h200 / name).write_bytes(data)
        entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        self.edit_manifest(lambda manifest: manifest["files"][name].update(entry))

    def environment(self, **more):
        kept = {key: value for key, value in os.environ.items() if key not in ("CUDACXX", "CUDA_HOME", "CUDA_PATH")}
        return {**kept, "PATH": f"{self.fakes}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **more}

    def run(self, *arguments, code=0, **environment):
        """Run a command of evidence.py in this process, which saves the time of starting another hundreds of times."""
        words = [str(word) for word in (arguments[0], "--root", self.root, *arguments[1:])]
        out, err = io.StringIO(), io.StringIO()
        set_environment = mock.patch.dict(os.environ, self.environment(**environment), clear=True)
        with set_environment, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = EVIDENCE.main(words)
            except SystemExit as bad_usage:
                status = bad_usage.code
        return self._checked(words, status, out.getvalue(), err.getvalue(), code)

    def start(self, *arguments, code=0, **environment):
        """Run a command of evidence.py as a program."""
        words = [sys.executable, str(SCRIPT), arguments[0], "--root", str(self.root), *map(str, arguments[1:])]
        done = subprocess.run(words, env=self.environment(**environment), capture_output=True, text=True, check=False)
        return self._checked(words, done.returncode, done.stdout, done.stderr, code)

    def _checked(self, words, status, out, err, code):
        assert "Traceback" not in err, err
        assert status == code, out + err
        return subprocess.CompletedProcess(words, status, out, err)

    def red(self, *arguments):
        """Run verify (or other arguments), which must fail, and return its lines."""
        return self.run(*(arguments or ["verify"]), code=1).stderr.splitlines()


@pytest.fixture(scope="session")
def recorded_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    made = Repository(folder).make()
    made.run("record", "--revision", "abc123")
    made.run("readme")
    return folder


@pytest.fixture
def repository(recorded_once, tmp_path):
    """A repository with a recorded H200 and filled READMEs, for one test to damage."""
    copy = tmp_path / "copy"
    shutil.copytree(recorded_once, copy)
    return Repository(copy)


@pytest.fixture
def bare(tmp_path):
    """A repository in which nothing is recorded."""
    return Repository(tmp_path).make()


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def one(lines, *parts):
    """Assert that one of the lines has all parts, and return it."""
    found = [line for line in lines if all(part in line for part in parts)]
    assert len(found) == 1, (parts, lines)
    return found[0]


# ---- record ----------------------------------------------------------------------------------------------------------


def test_record_writes_a_whole_folder_that_verifies(bare):
    result = bare.run("record", "--revision", "abc123")
    assert "profile/h200: recorded 4 files, 8 JSON lines on NVIDIA H200" in result.stdout
    names = ["day49-counters-inst.csv", "day49-counters.csv", "day49.jsonl", "day49.txt", "manifest.json"]
    assert sorted(entry.name for entry in bare.h200.iterdir()) == names
    assert (bare.h200 / "day49.txt").read_text() == TABLE

    text = (bare.h200 / "manifest.json").read_text()
    assert "/tmp" not in text and str(bare.root) not in text
    assert next(line for line in text.splitlines() if '"device"' in line) == '  "device": "NVIDIA H200",'
    manifest = bare.manifest()
    day = manifest["days"]["49"]
    assert day["source"] == "day49-fake/fake.cu"
    assert (day["uuid"], day["driver"], day["toolkit"], day["revision"]) == (UUID, "580.159.04", "13.0.88", "abc123")
    assert (day["counters"], day["profiler"]) == ("taken", "2025.3.1.0")
    assert day["resources"] == "not taken: there is no scripts/resources.py"
    assert day["host_compiler"] and day["utc"].endswith("Z")
    assert day["commands"][0] == (
        "nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a '-DCUDA_DAYS_REVISION=\"abc123\"' "
        "'-DCUDA_DAYS_FLAGS=\"-std=c++17 -O3 -lineinfo -lcublas sm_90a\"' -lineinfo -o fake fake.cu -lcublas"
    )
    assert day["commands"][1:2] == ["./fake --json-file day49.jsonl > day49.txt"]
    first = "ncu --csv --print-units base --clock-control none --cache-control all --metrics dram__bytes.sum,"
    assert day["commands"][2].startswith(first) and day["commands"][2].endswith("./fake --profile > day49-counters.csv")
    assert "smsp__inst_executed.sum" in day["commands"][3]
    for entry in manifest["files"].values():
        assert entry["source"] == "day49-fake/fake.cu" and len(entry["code"]) == 64

    run = json.loads((bare.h200 / "day49.jsonl").read_text().splitlines()[0])
    assert (run["revision"], run["flags"]) == ("abc123", "-std=c++17 -O3 -lineinfo -lcublas sm_90a")
    bare.run("readme")
    assert "as recorded: 1 GPUs, 4 files, 8 JSON lines, 3 README blocks" in bare.run("verify").stdout


def test_table_and_lines_are_of_one_run(bare):
    """The program counts its runs and says in both which one it is."""
    program = bare.fakes / "program"
    bare.fake("table", "")
    counts = 'echo run >>"$here/count"\nrun=$(wc -l <"$here/count")\necho "run $run"\n'
    text = program.read_text().replace("case ", f"{counts}case ", 1).replace("|@FLAGS@|", "|@FLAGS@ run $run|")
    program.write_text(text)
    bare.run("record", "--revision", "abc123")
    runs = bare.fakes.joinpath("runs").read_text().splitlines()
    assert runs == ["--json-file day49.jsonl", *["--profile"] * len(COUNTERS.PASSES)]
    run = json.loads((bare.h200 / "day49.jsonl").read_text().splitlines()[0])
    assert (bare.h200 / "day49.txt").read_text() == "run 1\n" and run["flags"].endswith(" run 1")


def test_counters_hold_rows_alone(repository):
    bytes_, instructions = (
        (repository.h200 / name).read_text().splitlines() for name in ("day49-counters.csv", "day49-counters-inst.csv")
    )
    assert bytes_[0].startswith('"ID",') and all(line.startswith('"') for line in bytes_ + instructions)
    assert any("dram__bytes.sum" in line for line in bytes_)
    assert not any("smsp__inst" in line for line in bytes_) and not any("dram__" in line for line in instructions)


def test_what_git_says_is_the_revision(bare):
    def git(*words):
        name = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", bare.root, *name, *words], check=True, capture_output=True)

    if not shutil.which("git"):
        pytest.skip("no git")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all")
    bare.run("record")
    revision = bare.manifest()["days"]["49"]["revision"]
    assert len(revision) == 12 and int(revision, 16) >= 0
    bare.replace("day49-fake/fake.cu", "3.0f", "4.0f")
    bare.run("record")
    assert bare.manifest()["days"]["49"]["revision"] == f"{revision}-dirty"


def test_without_git_the_revision_is_unknown(bare):
    bare.run("record")
    assert bare.manifest()["days"]["49"]["revision"] == "unknown"


def test_resources_are_what_the_script_for_them_says(bare):
    script = "import sys\nprint('registers', sys.argv[1:-4], sys.argv[-4], sys.argv[-2])\n"
    bare.write("scripts/resources.py", script)
    bare.run("record")
    shown = (bare.h200 / "day49-resources.txt").read_text()
    assert shown == "registers ['show', '--day', '49', '--arch', '90'] --root --nvcc\n"
    assert bare.manifest()["days"]["49"]["commands"][-1] == (
        "scripts/resources.py show --day 49 --arch 90 > day49-resources.txt"
    )
    bare.run("readme")
    bare.run("verify")
    bare.write("scripts/resources.py", "raise SystemExit('no c++filt')\n")
    bare.run("record")
    assert bare.manifest()["days"]["49"]["resources"] == "not taken: scripts/resources.py ended with 1: no c++filt"
    assert not (bare.h200 / "day49-resources.txt").exists()


FAULTS = {
    "program-exit": ("1", "failed with exit code 1", 1),
    "no-file": ("", "./fake --json-file day49.jsonl wrote no day49.jsonl", 1),
    "nvcc-fails": ("", "fake.cu(9): error: planted", 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_fails_leaves_the_old_folder_as_it_was(repository, fault):
    text, said, code = FAULTS[fault]
    repository.fake(fault, text)
    before = snapshot(repository.root)
    result = repository.run("record", code=code)
    assert said in result.stderr and "day49-fake/fake.cu" in result.stderr
    assert snapshot(repository.root) == before
    assert [entry.name for entry in repository.profile.iterdir()] == ["h200"]


def test_a_failing_program_is_quoted(bare):
    bare.fake("program-exit", "1")
    bare.fake("program-says", "FAILED matmulNaive: first wrong element 3\n")
    assert (
        "./fake --json-file day49.jsonl failed with exit code 1: FAILED matmulNaive"
        in bare.run("record", code=1).stderr
    )
    assert not bare.profile.exists()


def test_a_program_that_skips_is_a_skip(bare):
    bare.fake("program-exit", "77")
    bare.fake("program-says", "not enough device memory: 3 MiB needed\n")
    assert bare.run("record", code=77).stderr == (
        "day49-fake/fake.cu: ./fake --json-file day49.jsonl cannot run here: not enough device memory: 3 MiB needed\n"
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "fake.cu: day49.jsonl:1: the file is empty"),
        (
            run_lines().replace('"ms":0.25,', '"ms":NaN,'),
            "fake.cu: day49.jsonl:6: not a JSON line: NaN is not a finite number",
        ),
        (
            run_lines().replace('"ms":0.25,', '"ms":-1,'),
            "fake.cu: day49.jsonl:6: row vector add: ms_min, ms, ms_max are",
        ),
        (
            run_lines().replace('"worst"', '"wurst"', 1),
            "profile/h200/day49.jsonl:2: check vector add: the schema refuses",
        ),
        (run_lines().replace('"ok":true', '"ok":false', 1), "profile/h200/day49.jsonl:2: check vector add: the"),
        (run_lines(backend="cpu"), "profile/h200/day49.jsonl:1: backend is 'cpu', and must be 'cuda'"),
        (run_lines(day=30), "profile/h200/day49.jsonl:1: day is 30, and must be 49"),
        (run_lines(revision="other"), "profile/h200/day49.jsonl:1: revision is 'other', and must be 'unknown'"),
        (lines_of(run_record(), check("a", "a")), "profile/h200/day49.jsonl: no timed row"),
        (
            run_lines().replace("4184.5", "41845000"),
            "profile/h200/day49.jsonl:4: impossible: ceiling ceiling-copy: 4.1845e+07 GB/s are more than",
        ),
    ],
    ids=short,
)
def test_lines_that_are_no_evidence_are_not_recorded(bare, lines, said):
    bare.fake("day49.jsonl", lines)
    assert said in bare.run("record", code=1).stderr
    assert not bare.profile.exists() or not list(bare.profile.iterdir())


@pytest.mark.parametrize(
    ("fault", "text", "reason"),
    [
        ("ncu-says", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "ERR_NVGPUCTRPERM"),
        ("ncu-says", "==ERROR== Failed to find metric dram__x\n", "Failed to find metric dram__x"),
        ("ncu-says", "==PROF== nothing\n", "ncu counted no launch"),
        ("ncu-lacks", "smsp__inst_executed.sum", "smsp__inst_executed.sum of vectorAdd reads 'n/a', no value"),
    ],
)
def test_counters_that_cannot_be_taken_are_said_and_no_failure(repository, fault, text, reason):
    repository.fake(fault, text)
    result = repository.run("record", "--revision", "abc123")
    assert reason in one(result.stdout.splitlines(), "day 49: counters not taken: ")
    day = repository.manifest()["days"]["49"]
    assert day["counters"].startswith("not taken: ") and reason in day["counters"]
    assert not any("ncu" in command for command in day["commands"])
    assert sorted(repository.manifest()["files"]) == ["day49.jsonl", "day49.txt"]
    repository.run("verify")


def test_an_empty_table_is_not_recorded(bare):
    bare.fake("table", "")
    assert "profile/h200/day49.txt: was empty" in bare.run("record", code=1).stderr


def test_a_program_that_hangs_is_stopped(bare, monkeypatch):
    bare.fake("program", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(EVIDENCE, "RUN_LIMIT_S", 0.5)
    assert "./fake --json-file day49.jsonl: not done after 0.5 s" in bare.run("record", code=1).stderr


def test_days_that_ran_on_different_gpus(bare):
    bare.add_day(30)
    bare.fake("day30.jsonl", run_lines(day=30, device="Tesla T4"))
    assert "day49-fake/fake.cu: ran on NVIDIA H200, the day before on Tesla T4" in bare.run("record", code=1).stderr
    assert sorted(bare.manifest("t4")["days"]) == ["30"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(repository, monkeypatch):
    rename = Path.rename

    def fails_once(path, target):
        if path.parent.name == "new":
            raise PermissionError(13, "planted", str(path))
        return rename(path, target)

    before = snapshot(repository.profile)
    monkeypatch.setattr(Path, "rename", fails_once)
    assert "planted" in repository.run("record", code=1).stderr
    assert snapshot(repository.profile) == before


def test_a_readme_that_cannot_be_replaced_stays_whole(bare, monkeypatch):
    def fails(*_):
        raise PermissionError(13, "planted", "README.md")

    bare.run("record")
    monkeypatch.setattr(os, "replace", fails)
    before = snapshot(bare.root)
    assert bare.run("readme", code=1).stderr == f"{bare.root}/README.md: planted\n"
    assert snapshot(bare.root) == before


def test_a_tree_without_days_is_named(tmp_path):
    tree = Repository(tmp_path).make()
    shutil.rmtree(tree.root / "day49-fake")
    assert "no day found" in tree.run("record", code=1).stderr


def test_no_profiler_is_said(repository):
    (repository.fakes / "ncu").unlink()
    assert "counters not taken: ncu (Nsight Compute) is neither" in repository.run("record").stdout
    assert repository.manifest()["days"]["49"]["profiler"] == "none"


def test_counters_for_administrators_alone_are_known_before_trying(repository, monkeypatch):
    parameters = repository.fake("params", "X: 0\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(COUNTERS, "DRIVER_PARAMETERS", parameters)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "RmProfilingAdminOnly" in repository.run("record").stdout
    assert "not taken: this host lets administrators alone" in repository.manifest()["days"]["49"]["counters"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    repository.run("record")
    assert repository.manifest()["days"]["49"]["counters"] == "taken"


def test_days_that_are_not_recorded_now_are_kept(repository):
    repository.add_day(30)
    repository.run("record", "--day", "30", "--revision", "def456")
    assert sorted(repository.manifest()["days"]) == ["30", "49"]
    repository.run("verify")
    before = snapshot(repository.h200)
    repository.fake("table", TABLE.replace("0.2369", "0.2401"))
    repository.run("record", "--day", "49", "--revision", "abc124")
    after = snapshot(repository.h200)
    assert repository.manifest()["days"]["30"]["revision"] == "def456"
    assert {str(name) for name in before if before[name] != after[name]} == {
        "day49.jsonl",
        "day49.txt",
        "manifest.json",
    }
    repository.run("readme")
    repository.run("verify")


def test_counters_are_taken_of_the_days_whose_lesson_they_are(bare):
    bare.add_day(31)
    bare.run("record", "--day", "31")
    assert bare.manifest()["days"]["31"]["counters"] == "not taken: counters are not part of this day"


def test_a_day_of_matrix_products_is_recorded_shown_and_verified(repository):
    repository.add_day(44)
    repository.fake("day44.jsonl", matmul_lines())
    result = repository.run("record", "--day", "44", "--revision", "def456")
    assert "recorded 4 files, 16 JSON lines on NVIDIA H200" in result.stdout  # the counters too
    assert sorted(repository.manifest()["days"]) == ["44", "49"]
    repository.write("day44-fake/README.md", README.replace("49", "44"))
    assert repository.run("readme").stdout == "day44-fake/README.md: filled in\n"
    assert TABLE in (repository.root / "day44-fake/README.md").read_text()
    assert "24 JSON lines, 6 README blocks" in repository.run("verify").stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"flop":2147483648',
            '"flop":2147480000',
            "fake.cu: day44.jsonl:13: gemm 3 shared tile: flop is 2147480000, and must be 2 m n k, 2147483648",
        ),
        (
            '"k":1024',
            '"k":1025',
            "fake.cu: day44.jsonl:13: gemm 3 shared tile: flop is 2147483648, and must be 2 m n k, 21495",
        ),
        (
            '"fma_percent":73.25',
            '"fma_percent":100.5',
            "day44.jsonl:11: gemm 3 shared tile: the schema refuses $.fma",
        ),
        ('"cublas_ms":0.5,', "", "day44.jsonl:11: gemm 3 shared tile: the schema refuses $: 'cublas_ms' is a required"),
        ("35x79x19 uniform gaps", "35x79 uniform", "day44.jsonl:8: check 3 shared tile: the schema refuses $.size"),
        (
            ", launch loop",
            "",
            "day44.jsonl:16: gemm sgemm() 512x512x512, 12 clusters: the same row as line 15: tell them apart",
        ),
        ("4 column of 8", "3 shared tile", "day44.jsonl:12: gemm 3 shared tile 512x512x512: the same row as line 11"),
    ],
    ids=short,
)
def test_matrix_products_that_are_no_evidence_are_not_recorded(bare, old, new, said):
    bare.add_day(44)
    text = matmul_lines()
    assert old in text
    bare.fake("day44.jsonl", text.replace(old, new, 1))
    assert said in bare.run("record", "--day", "44", code=1).stderr
    assert not bare.profile.exists() or not list(bare.profile.iterdir())


def test_a_stale_kept_day_does_not_lose_a_new_recording(repository):
    repository.add_day(30)
    repository.replace("day49-fake/fake.cu", "3.0f", "4.0f")
    repository.run("record", "--day", "30")
    one(repository.red(), "day49-fake/fake.cu: its code changed")


def test_nothing_is_lost_or_mixed(repository):
    repository.write("profile/h200/mine.svg", "x")
    before = snapshot(repository.root)
    assert "profile/h200/mine.svg: not in the manifest" in repository.run("record", code=1).stderr
    (repository.h200 / "mine.svg").unlink()
    repository.fake("day49.jsonl", run_lines(1.1, device="Tesla T4"))
    assert "profile/h200: holds Tesla T4, whose folder is t4, or t4-" in (
        repository.run("record", "--gpu", "h200", code=2).stderr
    )
    before.pop(Path("profile/h200/mine.svg"))
    assert snapshot(repository.root) == before


def test_a_folder_of_another_model_is_not_written_into(bare):
    bare.run("record", "--gpu", "h200-nvl")
    bare.fake("day49.jsonl", run_lines(device="NVIDIA H200 NVL"))
    before = snapshot(bare.root)
    assert "h200-nvl: holds NVIDIA H200, this is NVIDIA H200 NVL" in bare.run("record", code=1).stderr
    assert snapshot(bare.root) == before


def test_days_that_succeed_are_kept_beside_one_that_fails(repository):
    """The notebook on a borrowed GPU: one day that fails costs that day alone."""
    for number in (30, 56):
        repository.add_day(number)
    repository.fake("day30.jsonl", run_lines(day=30).replace('"ok":true', '"ok":false', 1))
    before = repository.manifest()["days"]["49"]
    repository.fake("day49.jsonl", run_lines(1.1, revision="another"))
    result = repository.run("record", "--revision", "abc124", code=1)
    assert sorted(repository.manifest()["days"]) == ["49", "56"]
    assert repository.manifest()["days"]["49"] == before
    assert "profile/h200: recorded 2 files, 8 JSON lines on NVIDIA H200" in result.stdout
    lines = result.stderr.splitlines()
    one(lines, "profile/h200/day30.jsonl:2: check vector add: the schema refuses")
    one(lines, "profile/h200/day49.jsonl:1: revision is 'another'")
    assert lines[-1] == "recorded: day 56; not recorded: day 30, 49"
    repository.run("verify")


def test_one_day_that_cannot_run_here_is_no_success(repository):
    repository.add_day(30)
    repository.replace(
        "day30-fake/fake.cu", "day 30 of the tests: a", "day 31 of the tests: a"
    )  # whose lines are not there
    result = repository.run("record", "--revision", "abc124", code=1)
    assert "day30-fake/fake.cu: " in result.stderr and "recorded: day 49; not recorded: day 30" in result.stderr


def test_a_t4_keeps_its_compile_time_record(repository):
    repository.write("profile/t4/resources.json", "{}\n")
    assert "t4: run-time cells not yet recorded" in repository.run("verify").stdout
    repository.fake("day49.jsonl", run_lines(1.1, device="Tesla T4", cc="7.5", uuid=UUID.replace("0", "9")))
    repository.fake("compute_cap", "7.5\n")
    repository.run("record")
    assert (repository.profile / "t4/resources.json").read_text() == "{}\n"
    assert "-gencode=arch=compute_75,code=sm_75" in (repository.fakes / "nvcc.log").read_text()
    repository.run("readme")
    assert repository.run("verify").stdout.startswith("as recorded: 2 GPUs, 8 files, 16 JSON lines, 3 README blocks\n")


def test_a_folder_elsewhere_under_another_name(bare, tmp_path):
    bare.run("record", "--out", tmp_path / "elsewhere", "--gpu", "h200-mine", "--arch", "75")
    assert (tmp_path / "elsewhere/h200-mine/manifest.json").is_file()
    assert not bare.profile.exists()
    assert "-gencode=arch=compute_75,code=sm_75" in (bare.fakes / "nvcc.log").read_text()


def test_unlike_cards_are_built_for_where_the_days_run(bare):
    bare.fake("compute_cap", "6.1\n9.0\n7.5\n")
    bare.run("record")
    log = (bare.fakes / "nvcc.log").read_text()
    assert re.findall("code=(sm_[0-9a-z]+)", log) == ["sm_75", "sm_90a"]


def test_machines_without_gpu_or_toolkit_are_skips(bare):
    bare.fake("compute_cap", "No devices were found\n")
    assert bare.run("record", code=77).stderr.startswith("no NVIDIA GPU here")
    (bare.fakes / "nvidia-smi").unlink()
    assert len(bare.run("record", code=77).stderr.splitlines()) == 1
    assert bare.run("record", code=77, CUDACXX="").stderr.startswith("no nvcc here")
    assert not bare.profile.exists()


def without_jsonschema(folder):
    (folder / "jsonschema.py").write_text("raise ImportError('planted')\n")
    return str(folder)


def test_without_jsonschema_record_goes_on_and_verify_does_not(bare, tmp_path):
    path = without_jsonschema(tmp_path)
    assert "jsonschema is not installed here" in bare.start("record", PYTHONPATH=path).stdout
    bare.start("readme")
    bare.start("verify")
    assert "scripts/lessons test sets up build/venv" in bare.start("verify", code=1, PYTHONPATH=path).stderr
    bare.fake("day49.jsonl", run_lines().replace('"ms_max":', '"most":'))
    assert "ms_min, ms, ms_max are" in bare.start("record", code=1, PYTHONPATH=path).stderr


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
    ],
)
def test_folder_of_a_device(device, folder):
    assert EVIDENCE.folder_name(device) == folder


def test_a_device_without_a_name():
    with pytest.raises(EVIDENCE.Stop, match="--gpu"):
        EVIDENCE.folder_name("NVIDIA")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["record", "--day", "50"], "day 50: no such day"),
        (["record", "--day", "x"], "'x'"),
        (["record", "--arch", "turing"], "'turing'"),
        (["record", "--gpu", "../x"], "'../x'"),
        (["record", "--revision", 'a"b'], "'a\"b'"),
        (["recrod"], "recrod"),
        (["compare"], "folder"),
    ],
)
def test_bad_usage(bare, arguments, said):
    assert said in bare.run(*arguments, code=2).stderr


@pytest.mark.parametrize(
    "line",
    [
        "",
        "//   build: make fake",
        "//   build: nvcc it's",
        "//   build: nvcc -O3 -o fake fake.cu",
        "//   build: nvcc -arch=sm_75 -o fake other.cu",
    ],
)
def test_a_day_without_a_build_line_is_named(bare, line):
    build = "//   build: nvcc -std=c++17 -O3 -arch=sm_75 -lineinfo -o fake fake.cu -lcublas"
    bare.replace("day49-fake/fake.cu", build, line)
    assert "day49-fake/fake.cu: no build line" in bare.run("record", code=1).stderr


def test_two_sources_of_one_day_are_named(bare):
    bare.write("day49-other/fake.cu", SOURCE)
    bare.write("day49-other/day.json", (bare.root / "day49-fake/day.json").read_text())
    assert "day49-other/fake.cu: day 49 is day49-fake/fake.cu too: keep one" in bare.run("record", code=1).stderr


def test_a_day_without_its_facts_is_named(bare):
    (bare.root / "day49-fake/day.json").write_text("{}")
    assert "day49-fake/day.json: has no 'number'" in bare.run("record", code=1).stderr


# ---- what follows from the recorded lines ----------------------------------------------------------------------------

MERGER = """\
import json, pathlib, sys
run, export, out = (sys.argv[sys.argv.index(word) + 1] for word in ("--json", "--ncu", "--out"))
if "planted" in pathlib.Path(export).read_text():
    sys.exit("day49-counters.csv:2: planted")
header = pathlib.Path(run).read_text().splitlines()[0]
count = len(pathlib.Path(export).read_text().splitlines())
merged = {"record": "merged", "symbol": "none", "count": count}
pathlib.Path(out).write_text(header + "\\n" + json.dumps(merged) + "\\n")
"""


def ladder_lines(**changes):
    """Return a run of day 44 whose rungs say how many bytes they request, as the chart needs it."""
    lines = matmul_lines(**changes).splitlines(keepends=True)
    is_rung = re.compile('"record":"gemm".*"variant":"[0-9]')
    return "".join(line.replace('"m":', '"intensity":4.5,"m":') if is_rung.search(line) else line for line in lines)


@pytest.fixture(scope="session")
def charted_once(tmp_path_factory):
    pytest.importorskip("matplotlib", reason="no matplotlib: scripts/lessons test installs it")
    folder = tmp_path_factory.mktemp("charted")
    made = Repository(folder).make()
    made.write("day49-fake/merge_dram.py", MERGER)
    made.add_day(44)
    made.fake("day44.jsonl", ladder_lines())
    made.run("record", "--revision", "abc123")
    made.run("charts")
    made.run("readme")
    made.run("verify")
    return folder


@pytest.fixture
def charted(charted_once, tmp_path):
    """A recorded repository whose day 49 joins its counters, and whose day 44 has a ladder to draw."""
    shutil.copytree(charted_once, tmp_path / "copy")
    return Repository(tmp_path / "copy")


DERIVED = ["day44-ladder.svg", "day44-ladder.txt", "day49-merged.jsonl"]


def test_record_joins_the_counters_and_charts_draws(charted):
    assert [name for name in DERIVED if (charted.h200 / name).is_file()] == DERIVED
    assert not set(DERIVED) & set(charted.manifest()["files"])
    assert json.loads((charted.h200 / "day49-merged.jsonl").read_text().splitlines()[1])["count"] > 1
    assert charted.run("charts").stdout == ""  # nothing has changed


def test_record_alone_writes_the_merged_lines(charted):
    shutil.rmtree(charted.profile)
    assert "scripts/evidence.py charts" in charted.run("record", "--revision", "abc123").stdout
    assert (charted.h200 / "day49-merged.jsonl").is_file()
    one(charted.red(), "profile/h200/day44-ladder.svg: missing: scripts/evidence.py charts")


@pytest.mark.parametrize("name", DERIVED)
def test_what_was_edited_or_lost_is_found_and_made_again(charted, name):
    path = charted.h200 / name
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"4", b"5", 1))
    one(charted.red(), f"profile/h200/{name}: not what the recorded lines give: scripts/evidence.py charts")
    path.unlink()
    one(charted.red(), f"profile/h200/{name}: missing: scripts/evidence.py charts")
    assert charted.run("charts").stdout == f"profile/h200/{name}: written\n"
    assert path.read_bytes() == whole
    charted.run("verify")


def test_a_chart_of_nothing_recorded_is_found_and_deleted(charted):
    charted.write("profile/h200/day30-curve.svg", "<svg/>")
    one(charted.red(), "profile/h200/day30-curve.svg: follows from nothing that is recorded")
    assert "profile/h200/day30-curve.svg: deleted" in charted.run("charts").stdout
    charted.run("verify")


def test_a_new_recording_makes_the_charts_new(charted):
    before = snapshot(charted.h200)
    charted.fake("day44.jsonl", ladder_lines(factor=0.9))
    charted.run("record", "--day", "44", "--revision", "abc124")
    assert not (charted.h200 / "day44-ladder.svg").exists()
    charted.run("charts")
    charted.run("verify")
    after = snapshot(charted.h200)
    assert before[Path("day44-ladder.svg")] != after[Path("day44-ladder.svg")]
    assert before[Path("day49-merged.jsonl")] == after[Path("day49-merged.jsonl")]


def test_a_chart_that_takes_counters_is_held_to_them(tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib: scripts/lessons test installs it")
    folder = tmp_path / "h200"
    shutil.copytree(H200, folder, ignore=shutil.ignore_patterns("*-predicted.*"))
    shutil.copyfile(LINES / "day44.jsonl", folder / "day44.jsonl")
    fill_losses(folder)
    wanted = EVIDENCE.derive(folder, "profile/h200", ROOT)
    for path in folder.iterdir():
        if EVIDENCE.DERIVED.fullmatch(path.name):
            path.unlink()
    for name, data in wanted.items():
        (folder / name).write_bytes(data)
    assert EVIDENCE.check_derived(folder, "profile/h200", ROOT) == []
    write_executed(folder, {"matmulTiled(Gemm)": {**EXECUTED, "smsp__inst_executed.sum": 300_000_000}})
    problems = EVIDENCE.check_derived(folder, "profile/h200", ROOT)
    assert [problem.partition(":")[0] for problem in problems] == [
        *("profile/h200/day44-losses.svg", "profile/h200/day44-losses.txt")
    ]


def test_counters_that_cannot_be_joined_are_named_and_the_run_is_kept(charted):
    charted.replace("day49-fake/merge_dram.py", '"planted" in', '"planted" not in')
    result = charted.run("record", "--day", "49")
    assert "profile/h200: day49-merged.jsonl cannot be made: day49-counters.csv:2: planted" in result.stdout
    assert (charted.h200 / "day49.jsonl").is_file() and not (charted.h200 / "day49-merged.jsonl").exists()
    one(charted.red(), "day49-merged.jsonl cannot be made")
    assert "cannot be made" in charted.run("charts", code=1).stderr


def test_without_matplotlib_charts_and_verify_say_so(charted, tmp_path):
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "matplotlib.py").write_text("raise ImportError('planted')\n")
    for command in ("charts", "verify"):
        assert "matplotlib is missing" in charted.start(command, code=1, PYTHONPATH=str(folder)).stderr
    charted.start("readme", PYTHONPATH=str(folder))


# ---- a folder that is history ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def historic_once(charted_once, tmp_path_factory):
    folder = tmp_path_factory.mktemp("historic") / "copy"
    shutil.copytree(charted_once, folder)
    made = Repository(folder)
    said = made.run("history", made.h200).stdout
    assert said == "profile/h200: history, 11 files, recorded at revision abc123\n"
    made.run("readme")
    return folder


@pytest.fixture
def historic(historic_once, tmp_path):
    """The charted repository, its folder history."""
    shutil.copytree(historic_once, tmp_path / "copy")
    return Repository(tmp_path / "copy")


SINCE = "recorded at revision abc123, the code has changed since"


def test_history_is_whole_and_says_whether_its_code_is_todays(historic):
    assert {"day44-ladder.svg", "day49-merged.jsonl"} <= historic.manifest()["files"].keys()
    last = historic.run("verify").stdout.splitlines()[-1]
    assert last == "profile/h200: history, recorded at revision abc123, whose code is today's"
    assert (
        "NVIDIA H200, 132 SMs, 60 MiB L2, recorded at revision abc123\n"
        in (historic.h200 / "day44-ladder.txt").read_text()
    )


@pytest.mark.parametrize("change", ["kernel", "flags", "no build line", "gone"])
def test_changed_code_leaves_history_valid_and_is_said_wherever_it_is_shown(historic, change):
    historic.write("README.md", "<!-- begin recorded: profile/h200/day49.txt -->\n<!-- end recorded -->\n")
    historic.run("readme")
    if change == "gone":
        shutil.rmtree(historic.root / "day49-fake")
    else:
        old, new = {"kernel": ("3.0f", "4.0f"), "flags": ("-O3", "-O2"), "no build line": ("build:", "make:")}[change]
        historic.replace("day49-fake/fake.cu", old, new)
    one(historic.red(), "README.md:2: not what profile/h200/day49.txt holds: scripts/evidence.py readme fills it in")
    historic.run("readme")
    assert historic.run("verify").stdout.splitlines()[-1] == f"profile/h200: history, {SINCE}"
    page = (historic.root / "README.md").read_text()
    assert f"-->\nRecorded at revision abc123, the code has changed since:\n\n```text\n{TABLE}" in page
    assert one(compared(historic, run_lines()).splitlines(), "history ") == (
        f"history   {SINCE}: the rows may be of different code"
    )


def test_only_the_days_whose_code_changed_are_said_to_have(historic):
    historic.replace("day49-fake/fake.cu", "3.0f", "4.0f")
    assert "history" not in compared(historic, ladder_lines())
    assert SINCE in compared(historic, run_lines())


def test_history_needs_no_script_that_still_reads_it(historic):
    """A merger that knows the kernels of today alone, and charts that are drawn otherwise now."""
    historic.write("day49-fake/merge_dram.py", "raise SystemExit('no such kernel')\n")
    historic.run("verify")
    assert historic.run("charts").stdout == ""
    assert "no such kernel" in historic.run("history", historic.h200, code=1).stderr


@pytest.mark.parametrize("name", ["day49.jsonl", "day49.txt", "day49-counters.csv", *DERIVED])
def test_history_that_was_edited_or_lost_is_found(historic, name):
    before = snapshot(historic.h200)
    path = historic.h200 / name
    path.write_bytes(path.read_bytes().replace(b"e", b"f", 1))
    one(historic.red(), f"profile/h200/{name}:", "edited since it was recorded")
    if name not in DERIVED:  # those are made anew
        edited = snapshot(historic.h200)
        assert "nothing was changed" in historic.run("history", historic.h200, code=1).stderr
        assert snapshot(historic.h200) == edited
    else:
        historic.run("history", historic.h200)
        assert snapshot(historic.h200) == before
    path.unlink()
    one(historic.red(), f"profile/h200/{name}: missing")


def test_history_with_a_file_too_many(historic):
    historic.write("profile/h200/day30-curve.svg", "<svg/>")
    one(historic.red(), "profile/h200/day30-curve.svg: not in the manifest")


def test_history_is_told_from_nothing(bare, tmp_path):
    assert "no manifest.json" in bare.run("history", tmp_path, code=1).stderr


def test_a_new_recording_makes_history_current(historic):
    historic.run("record", "--revision", "abc124")
    assert historic.manifest()["state"] == "current"
    assert not set(DERIVED) & historic.manifest()["files"].keys()
    historic.run("charts")
    assert "history" not in historic.run("verify").stdout


# ---- verify ----------------------------------------------------------------------------------------------------------


def test_an_edited_number_in_the_json_lines(repository):
    repository.replace("profile/h200/day49.jsonl", '"ms":0.0625', '"ms":0.0624')
    line = one(repository.red(), "profile/h200/day49.jsonl")
    assert line.startswith("profile/h200/day49.jsonl:7: edited since it was recorded (matmul, naive): 8 lines")
    assert line.endswith("record again on the GPU: scripts/evidence.py record")


def test_an_edited_number_in_the_table(repository):
    repository.replace("profile/h200/day49.txt", "0.2369", "0.2269")
    lines = repository.red()
    one(lines, "profile/h200/day49.txt:4: edited since it was recorded")
    one(lines, "README.md:7: not what profile/h200/day49.txt holds")


def test_an_edited_counter(repository):
    repository.replace("profile/h200/day49-counters.csv", '"vectorAdd(float *, int)","dram__bytes.sum"', '"x","y"')
    one(repository.red(), "profile/h200/day49-counters.csv:2: edited")


def test_a_line_that_was_taken_out(repository):
    lines = (repository.h200 / "day49.txt").read_text().splitlines(keepends=True)
    (repository.h200 / "day49.txt").write_text("".join(lines[:-1]))
    one(repository.red(), "profile/h200/day49.txt:5: edited", "4 lines", "recorded were 5 lines")


@pytest.mark.parametrize(
    ("old", "new"), [("3.0f", "4.0f"), ("i < n", "i <= n"), ("-O3", "-O2"), ("n / 256 + 1, 256", "n / 128 + 1, 128")]
)
def test_changed_code_makes_its_records_stale(repository, old, new):
    repository.replace("day49-fake/fake.cu", old, new)
    line = one(repository.red(), "day49-fake/fake.cu: ", "profile/h200")
    assert line.endswith("record again on the GPU: scripts/evidence.py record")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for the tests alone", "that nobody needs"),
        ("int main() {", "int main()\n{\n"),
        ("\n\nint", "\n/* x */\n\nint"),
        ("no such size", "size"),
        ("text", "another report"),
        ("#include <cstdio>", "#include <cstdio>\n#include <cmath>"),
    ],
)
def test_changed_comments_words_and_reports_do_not(repository, old, new):
    repository.replace("day49-fake/fake.cu", old, new)
    repository.run("verify")


def test_changed_timing_code_is_named_once_a_folder(repository):
    repository.add_day(30)
    repository.run("record", "--day", "30")
    repository.run("readme")
    repository.run("verify")
    repository.replace("common/lesson.cuh", "unknown argument", "unknown option")
    repository.replace("common/lesson.cuh", "a record", "a line")
    repository.run("verify")
    repository.replace("common/lesson.cuh", "kSamples = 21", "kSamples = 11")
    assert repository.red() == [
        "common/lesson.cuh: its timing code changed since profile/h200 was recorded (day 30, 49): "
        "record again on the GPU: scripts/evidence.py record"
    ]
    repository.run("history", repository.h200)
    repository.run("readme")
    said = repository.run("verify").stdout
    assert "profile/h200: history, recorded at revision" in said and "the code has changed since" in said


def test_a_day_that_is_gone(repository):
    shutil.rmtree(repository.root / "day49-fake")
    one(repository.red(), "day49-fake/fake.cu: missing", "day49.jsonl, day49.txt")


@pytest.mark.parametrize("name", ["day49.txt", "day49.jsonl", "day49-counters.csv"])
def test_a_missing_file(repository, name):
    (repository.h200 / name).unlink()
    one(repository.red(), f"profile/h200/{name}: missing: restore")


@pytest.mark.parametrize("name", ["day49.txt", "day49.jsonl", "day49-counters.csv"])
def test_a_file_taken_out_with_its_entry(repository, name):
    (repository.h200 / name).unlink()
    repository.edit_manifest(lambda manifest: manifest["files"].pop(name))
    one(repository.red(), f"profile/h200/manifest.json: does not list {name}")


def test_files_too_many(repository):
    repository.write("profile/h200/resources.txt", "x")
    repository.write("profile/notes.txt", "x")
    repository.write("profile/.h200.abc/new/h200/day49.txt", "x")
    repository.write("profile/a100/day49.txt", "x")
    repository.write("profile/t4/day49.txt", "x")
    lines = repository.red()
    one(lines, "profile/h200/resources.txt: not in the manifest")
    one(lines, "profile/notes.txt: belongs to no GPU")
    one(lines, "profile/.h200.abc: left over")
    one(lines, "profile/a100: has no manifest.json")
    one(lines, "profile/t4: has no manifest.json")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"samples":21',
            '"samples":"21"',
            "day49.jsonl:4: ceiling ceiling-copy: the schema refuses $.samples: '21' is not",
        ),
        (
            '"percent":81.5,',
            "",
            "day49.jsonl:6: row vector add: the schema refuses $: 'percent' is a required property",
        ),
        (
            '"record":"row"',
            '"record":"rwo"',
            "day49.jsonl:6: rwo vector add: the schema knows no such record, only run,",
        ),
        (
            '"ms_min":0.2475',
            '"ms_min":0.26',
            "day49.jsonl:6: row vector add: ms_min, ms, ms_max are [0.26, 0.25, 0.2525]",
        ),
        ('"value":15.75', '"value":1e999', "day49.jsonl:5: not a JSON line: 1e999 is not a finite number"),
        ('"value":15.75', '"value":1,"value":2', "day49.jsonl:5: not a JSON line: the key 'value' is there twice"),
        ('"ok":true,"checked":1024,"wrong":0', '"ok":false,"checked":1024,"wrong":1,"message":"m"', "the check failed"),
        ('{"record":"ridge"', '[{"record":"ridge"', "day49.jsonl:5: not a JSON line"),
        (
            '"device":"NVIDIA H200"',
            '"device":"Tesla T4"',
            "day49.jsonl:1: device is 'Tesla T4', and must be 'NVIDIA H200'",
        ),
        (UUID, UUID.replace("0", "9"), "day49.jsonl:1: uuid is 'GPU-99999999-"),
        (
            '"value":4184.5',
            '"value":41845000',
            "day49.jsonl:4: impossible: ceiling ceiling-copy: 4.1845e+07 GB/s are more than 67584 GB/s, 132 SMs of 128",
        ),
        ('"schema":2', '"schema":3', "day49.jsonl:1: schema 3, this script knows 1 and 2"),
    ],
    ids=short,
)
def test_lines_that_are_wrong_though_the_sum_is_right(repository, old, new, said):
    text = (repository.h200 / "day49.jsonl").read_text()
    assert old in text
    repository.rewrite_recorded("day49.jsonl", text.replace(old, new, 1).encode())
    one(repository.red(), f"profile/h200/{said}" if said.startswith("day49") else said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"", "day49.jsonl:1: the file is empty"),
        (lambda data: data[:-9], "day49.jsonl:8: the last line has no end: the file is cut off"),
        (lambda data: bytes(range(128, 256)) + b"\n" + data, "day49.jsonl:1: not text (UTF-8)"),
        (lambda data: data + data, "day49.jsonl:9: a run record must stand first and only there"),
        (lambda data: data[data.index(b"\n") + 1 :], "day49.jsonl:1: a run record must stand first"),
    ],
    ids=short,
)
def test_files_that_are_wrong_though_the_sum_is_right(repository, change, said):
    repository.rewrite_recorded("day49.jsonl", change((repository.h200 / "day49.jsonl").read_bytes()))
    one(repository.red(), f"profile/h200/{said}")


def test_a_binary_file_in_place_of_a_table(repository):
    (repository.h200 / "day49.txt").write_bytes(bytes(range(256)))
    lines = repository.red()
    one(lines, "profile/h200/day49.txt:1: edited")
    one(lines, "README.md:2: profile/h200/day49.txt is not text (UTF-8)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a manifest (JSONDecodeError"),
        ("[]", "not a manifest (TypeError"),
        ("{}", "not a manifest (KeyError: 'schema')"),
        ('{"schema": 1}', "schema 1, this script knows 2"),
        ('{"schema": 2, "device": "x", "days": [], "files": {}}', "not a manifest (AttributeError"),
        ('{"schema": 2, "device": 5, "days": {}, "files": {}}', "manifest: device is not a str"),
        ('{"schema": 2, "device": "x", "days": {"49": {}}, "files": {}}', "not a manifest (KeyError: 'source')"),
        ('{"schema": 2, "device": "x", "days": {}, "files": {"a": {"sha256": 5}}}', "a: sha256 is not a str"),
        ('{"schema": 2, "device": "x", "days": {"x": {}}, "files": {}}', "not a manifest (ValueError: invalid literal"),
        ('{"schema": 2, "device": "x", "days": {}, "files": {}}', "state is None, and must be one of current, history"),
        ('{"schema": 2, "device": "x", "days": {}, "files": {}, "state": "old"}', "state is 'old', and must be one of"),
        ("\xff", "not a manifest (UnicodeDecodeError"),
    ],
)
def test_a_manifest_that_is_none(repository, text, said):
    (repository.h200 / "manifest.json").write_bytes(text.encode("latin-1"))
    lines = repository.red()
    assert said in lines[0] and lines[0].startswith("profile/h200/manifest.json: ")


@pytest.mark.parametrize("source", ["README.md", "../day49-fake/fake.cu", "/etc/passwd"])
def test_a_manifest_with_another_source(repository, source):
    repository.edit_manifest(lambda manifest: manifest["files"]["day49.txt"].update(source=source))
    one(repository.red(), f"profile/h200/manifest.json: not a manifest (ValueError: day49.txt: the source '{source}'")


def test_a_manifest_with_a_file_elsewhere(repository):
    def change(manifest):
        manifest["files"]["../day49.txt"] = manifest["files"].pop("day49.txt")

    repository.edit_manifest(change)
    one(repository.red(), "profile/h200/manifest.json: not a manifest (ValueError: ../day49.txt: a file of this folder")


def test_a_manifest_of_another_device(repository):
    repository.edit_manifest(lambda manifest: manifest.update(device="Tesla T4"))
    one(repository.red(), "profile/h200/day49.jsonl:1: device is 'NVIDIA H200', and must be 'Tesla T4'")


def test_no_manifest(repository):
    (repository.h200 / "manifest.json").unlink()
    one(repository.red(), "profile/h200: has no manifest.json")


def test_a_copied_folder_is_one_cards_figures_as_anothers(repository):
    shutil.copytree(repository.h200, repository.profile / "t4")
    repository.run("readme")
    lines = repository.red()
    one(lines, "profile/t4: holds NVIDIA H200, whose folder is h200, or h200-SOMETHING")
    one(lines, "profile/t4/day49.jsonl: the same run as profile/h200/day49.jsonl (GPU GPU-00000000-1111")


def test_a_copied_folder_under_a_name_of_its_model(repository):
    shutil.copytree(repository.h200, repository.profile / "h200-mine")
    line = one(repository.red(), "the same run as")
    assert line.startswith("profile/h200-mine/day49.jsonl: the same run as profile/h200/day49.jsonl (GPU GPU-00000000")


def test_copied_figures_under_another_name_and_card(repository):
    """The forger wrote another card into run record and manifest: the figures are the same to the last digit."""
    shutil.copytree(repository.h200, repository.profile / "t4")
    folder = repository.profile / "t4"
    other = {"NVIDIA H200": "Tesla T4", UUID: UUID.replace("0", "9"), "2026-11-30T00:24:45Z": "2026-11-29T00:24:45Z"}
    for path in (folder / "day49.jsonl", folder / "manifest.json"):
        for old, new in other.items():
            path.write_text(path.read_text().replace(old, new))
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["files"]["day49.jsonl"]
    described = EVIDENCE.describe_file((folder / "day49.jsonl").read_bytes(), entry["source"], entry["code"])
    manifest["files"]["day49.jsonl"] = described
    (folder / "manifest.json").write_text(json.dumps(manifest))
    repository.run("readme")
    lines = repository.red()
    assert len(lines) == 1
    assert lines[0].startswith("profile/t4/day49.jsonl: the same run as profile/h200/day49.jsonl (figures ")


@pytest.mark.parametrize("text", [None, "{", '{"type": 5}', '{"type": "object"}'])
def test_a_schema_that_is_none_is_named(repository, text):
    schema = repository.root / "scripts/schema/row.schema.json"
    schema.unlink()
    if text is not None:
        schema.write_text(text)
    assert repository.red()[0].startswith("scripts/schema/row.schema.json: ")


def test_all_problems_are_told_at_once(repository):
    repository.replace("profile/h200/day49.txt", "0.2369", "0.2269")
    repository.replace("day49-fake/fake.cu", "3.0f", "4.0f")
    repository.write("profile/h200/more", "x")
    lines = repository.red()
    assert len(lines) == 5
    assert all(line.split(":")[0] in ("README.md", "day49-fake/fake.cu") or "profile/h200/" in line for line in lines)


# ---- readme ----------------------------------------------------------------------------------------------------------


def test_blocks_are_filled_once_and_checked(bare):
    bare.run("record")
    lines = bare.red("readme", "--check")
    one(lines, "README.md:3: not what profile/h200/day49.txt holds: scripts/evidence.py readme fills it in")
    assert bare.run("readme").stdout == "README.md: filled in\n"
    text = (bare.root / "README.md").read_text()
    snippet = SOURCE.split("// snippet: kernel\n")[1].split("// end snippet: kernel")[0]
    assert text == (
        f"# Days\n<!-- begin recorded: profile/h200/day49.txt -->\n```text\n{TABLE}```\n<!-- end recorded -->\n"
        f"<!-- begin snippet: day49-fake/fake.cu kernel -->\n```cuda\n{snippet}```\n<!-- end snippet -->\n"
        "On a T4:\n<!-- begin recorded: profile/t4/day49.txt -->\nnot yet recorded\n<!-- end recorded -->\n"
    )
    os.utime(bare.root / "README.md", ns=(1, 1))
    assert bare.run("readme").stdout == ""
    assert (bare.root / "README.md").stat().st_mtime_ns == 1
    bare.run("readme", "--check")


def test_every_readme_is_filled(repository):
    for name in ("day49-fake/README.md", "profile/README.md"):
        repository.write(name, README)
    assert repository.run("readme").stdout.splitlines() == [
        "day49-fake/README.md: filled in",
        "profile/README.md: filled in",
    ]
    assert "9 README blocks" in repository.run("verify").stdout


def test_a_figure_edited_in_a_readme(repository):
    repository.replace("README.md", "0.2369", "0.1369")
    one(repository.red(), "README.md:7: not what profile/h200/day49.txt holds")


def test_a_snippet_that_differs_from_the_source(repository):
    repository.replace("README.md", "i < n", "i <= n")
    one(repository.red(), "README.md:15: not what day49-fake/fake.cu kernel holds")


def test_a_comment_changed_in_a_snippet_of_the_source(repository):
    repository.replace("day49-fake/fake.cu", "the only line that counts", "the line that counts")
    lines = repository.red()
    assert len(lines) == 1 and lines[0].startswith("README.md:15: not what day49-fake/fake.cu kernel holds")


def test_something_invented_for_a_card_that_nobody_recorded(repository):
    repository.replace("README.md", "\nnot yet recorded\n", "\n```text\nvector add  1.0\n```\n")
    one(repository.red(), "README.md:21: not what profile/t4/day49.txt holds")


def test_text_with_a_fence_in_it_gets_a_longer_fence():
    assert EVIDENCE.fenced("text", "a\n```\nb\n") == ["````text", "a", "```", "b", "````"]


@pytest.mark.parametrize("arguments", [["readme"], ["readme", "--check"], ["verify"]])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- begin recorded: profile/h200/day49.png -->\n<!-- end recorded -->\n", "README.md:1: no recorded file"),
        ("<!-- begin recorded: profile/h200/dya49.txt -->\n<!-- end recorded -->\n", "README.md:1: no recorded file"),
        ("<!-- begin recorded: profile/h200/day50.txt -->\n<!-- end recorded -->\n", "README.md:1: no recorded file"),
        ("<!-- begin recorded: profile/../README.md -->\n<!-- end recorded -->\n", "README.md:1: no recorded file"),
        (
            "<!-- begin snippet: day49-fake/fake.cu none -->\n<!-- end snippet -->\n",
            "README.md:1: day49-fake/fake.cu has 0",
        ),
        ("<!-- begin snippet: day49-fake/none.cu x -->\n<!-- end snippet -->\n", "README.md:1: no snippet"),
        ("<!-- begin snippet: ../x.cu x -->\n<!-- end snippet -->\n", "README.md:1: no snippet"),
        ("a\n<!-- begin recorded: profile/t4/day49.txt -->\nb\n", "README.md:2: this block is never closed"),
        ("<!-- end recorded -->\n", "README.md:1: no marker here (no block is open)"),
        (
            "<!-- begin recorded: profile/t4/day49.txt -->\n<!-- end snippet -->\n",
            "README.md:2: no marker here (the block",
        ),
        (
            "<!-- begin recorded: a -->\n<!-- begin recorded: b -->\n",
            "README.md:2: no marker here (the block of line 1",
        ),
        ("<!--begin recorded: profile/t4/day49.txt -->\n", "README.md:1: no marker here"),
        ("see <!-- begin recorded: profile/t4/day49.txt -->\n", "README.md:1: no marker here"),
    ],
    ids=short,
)
def test_wrong_blocks_are_named_and_nothing_is_written(repository, arguments, text, said):
    repository.write("README.md", text)
    stale = repository.write("profile/README.md", README)
    assert said in "\n".join(repository.red(*arguments))
    assert (repository.root / "README.md").read_text() == text
    assert stale.read_text() == README


# ---- compare ---------------------------------------------------------------------------------------------------------


def compared(repository, *lines, code=0):
    runs = []
    for number, text in enumerate(lines):
        runs.append(repository.root / f"run{number}.jsonl")
        runs[-1].write_text(text)
    return repository.run("compare", repository.h200, "--from", *runs, code=code).stdout


def test_the_same_figures_are_the_same(repository):
    output = compared(repository, run_lines())
    assert "2 of 2 passed" in output
    assert len([line for line in output.splitlines() if line.endswith("  same")]) == 5
    line = one(output.splitlines(), "ceiling ceiling-copy")
    assert line.split() == ["ceiling", "ceiling-copy", "4184.5", "4184.5", "GB/s", "1.000", "same"]
    assert "after a margin of 5 %" in output and "Spearman" not in output


@pytest.mark.parametrize(("scale", "verdict"), [(1.06, "same"), (0.94, "same"), (1.09, "slower"), (0.91, "faster")])
def test_figures_beyond_spread_and_margin_get_a_verdict(repository, scale, verdict):
    output = compared(repository, run_lines(scale))
    line = one(output.splitlines(), "row matmul, naive")
    assert line.split()[-2:] == [f"{scale:.3f}", verdict]
    assert one(output.splitlines(), "ridge ridge-point").endswith("same")


@pytest.mark.parametrize(("value", "verdict"), [("16.5", "same"), ("16.6", "higher"), ("14.9", "lower")])
def test_a_figure_without_a_time_is_compared_by_its_value(repository, value, verdict):
    output = compared(repository, run_lines().replace('"value":15.75', f'"value":{value}'))
    assert one(output.splitlines(), "ridge ridge-point").endswith(verdict)


def test_rows_of_one_side_are_named(repository):
    text = run_lines().replace('"variant":"stencil"', '"variant":"stencil, new"')
    output = compared(repository, text).splitlines()
    assert one(output, "row stencil ").endswith("only in recorded")
    assert one(output, "row stencil, new").endswith("only in yours")


def test_another_model_compares_in_shape_and_checks_alone(repository):
    output = compared(repository, run_lines(4.0, device="Tesla T4"))
    assert "Another model" in output and "2 of 2 passed" in output
    assert "verdict" not in output and "slower" not in output
    assert "order of the 3 rows by time: Spearman's rank correlation 1.00" in output
    swapped = run_lines(device="Tesla T4").replace("matmul, naive", "x").replace("stencil", "matmul, naive")
    output = compared(repository, swapped.replace('"x"', '"stencil"'))
    assert "Spearman's rank correlation -1.00" in output


@pytest.fixture
def matmul(repository):
    """A repository that has day 44 recorded too."""
    repository.add_day(44)
    repository.fake("day44.jsonl", matmul_lines())
    repository.run("record", "--day", "44")
    return repository


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (0.95, "same"), (0.9, "slower"), (1.1, "faster")])
def test_a_matrix_product_is_compared_with_that_of_its_size(matmul, factor, verdict):
    output = compared(matmul, matmul_lines(size=1024, factor=factor)).splitlines()
    assert one(output, "checks ") == "checks    8 of 8 passed"
    words = one(output, "gemm 3 shared tile 1024x1024x1024 ").split()
    assert words[-5:] == ["7700", f"{7700 * factor:g}", "GFLOP/s", f"{factor:.3f}", verdict]
    assert one(output, "gemm 4 column of 8 1024x1024x1024 ").endswith(f"  {verdict}")
    for row in ("gemm 3 shared tile 512x512x512 ", "gemm 4 column of 8 512x512x512 ", "ceiling fma-peak "):
        assert one(output, row).endswith(" 1.000  same")


def test_a_product_of_700_times_the_fma_ceiling_is_an_error_and_not_faster(matmul):
    output = compared(matmul, matmul_lines().replace('"value":7700.0', '"value":53900000.0'), code=1).splitlines()
    assert one(output, "gemm 3 shared tile 1024x1024x1024 ").endswith("  impossible")
    line = one(output, "IMPOSSIBLE ")
    assert line.startswith(
        "IMPOSSIBLE line 13: gemm 3 shared tile: 5.39e+07 GFLOP/s are more than 66800 GFLOP/s, what the"
    )
    assert not any(line.endswith("faster") for line in output)


def test_a_matrix_product_in_a_launch_loop_is_another_row_than_its_replay(matmul):
    output = compared(matmul, matmul_lines().replace("23800", "47600")).splitlines()
    assert one(output, "gemm sgemm() 512x512x512, 12 clusters ").split()[-5:-3] == ["27000", "27000"]
    assert one(output, "gemm sgemm() 512x512x512, 12 clusters, launch loop ").split()[-5:-3] == ["23800", "47600"]
    heading = one(output, "recorded", "verdict")
    assert {line.index(" GFLOP/s") for line in output if line.startswith("gemm ")} == {heading.index(" unit")}
    other = compared(matmul, matmul_lines().replace("12 clusters, launch", "11 two tiles, launch")).splitlines()
    assert one(other, "gemm sgemm() 512x512x512, 12 clusters, launch loop ").endswith("only in recorded")
    assert one(other, "gemm sgemm() 512x512x512, 11 two tiles, launch loop ").endswith("only in yours")


def test_a_size_that_the_other_card_left_out_is_said(matmul):
    lines = [line for line in matmul_lines().splitlines(keepends=True) if '"m":1024' not in line]
    output = compared(matmul, "".join(lines)).splitlines()
    assert len([line for line in output if line.endswith("  only in recorded")]) == 2
    assert one(output, "gemm 4 column of 8 1024x1024x1024 ")


def test_matrix_products_of_another_model_compare_in_the_order_of_their_rates(matmul):
    output = compared(matmul, matmul_lines(device="Tesla T4"))
    assert "order of the 6 matrix products by rate: Spearman's rank correlation 1.00" in output
    output = compared(matmul, matmul_lines(device="Tesla T4", factor=0.1))
    # Six ranks, of which two differ by two and two by one: 1 - 6 * 10 / (6 * 35).
    assert "order of the 6 matrix products by rate: Spearman's rank correlation 0.71" in output


def test_records_of_an_unknown_type_compare_by_day_and_variant(repository):
    assert EVIDENCE.identity({"record": "new", "day": 5, "variant": "v", "m": 3}, {}) == ("new", "5", "v")
    assert EVIDENCE.row_name({"record": "new", "day": 5, "variant": "v", "m": 3}, {}) == "new v"


def test_spearman():
    assert EVIDENCE.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert EVIDENCE.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert EVIDENCE.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)


def test_a_failed_check_fails_and_is_named(repository):
    wrong = {"ok": False, "wrong": 7, "message": "first wrong element 3"}
    text = lines_of(run_record(), check("vector add", "vectorAdd"), check("matmul, naive", "matmulNaive", **wrong))
    output = compared(repository, text, code=1)
    assert "FAILED matmulNaive (matmul, naive, full): first wrong element 3" in output
    assert "1 of 2 passed" in output
    assert len([line for line in output.splitlines() if line.endswith("only in recorded")]) == 5


def test_a_run_without_checks_proves_nothing(repository):
    lines = [line for line in run_lines().splitlines(keepends=True) if '"check"' not in line]
    assert "0 of 0 passed: nothing says that" in compared(repository, "".join(lines), code=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "run0.jsonl:1: the file is empty"),
        (run_lines()[:-5], "run0.jsonl:8: the last line has no end"),
        (run_lines() + run_lines(device="Tesla T4"), "run0.jsonl:9: a run record must stand first"),
        (run_lines(schema=3), "run0.jsonl:1: schema 3, this script knows 1 and 2"),
        (run_lines(day=30), "run0.jsonl:1: day 30 is not recorded"),
        (run_lines().replace('"value":15.75', f'"value":{"9" * 400}'), "run0.jsonl:5: not a JSON line: 9999"),
        (run_lines().replace('"value":15.75', '"value":"fast"'), "run0.jsonl:5: ridge ridge-point: value is 'fast'"),
    ],
    ids=short,
)
def test_bad_runs_are_named(repository, text, said):
    path = repository.root / "run0.jsonl"
    path.write_text(text)
    result = repository.run("compare", repository.h200, "--from", path, code=1)
    assert said in result.stderr and result.stdout == ""


def test_a_recorded_run_of_schema_1_is_as_good(repository):
    """It verifies, and compares with a run of today, whose lines have other names."""
    text = (repository.h200 / "day49.jsonl").read_text()
    old = text.replace('"schema":2', '"schema":1').replace('"requested_bytes":', '"bytes":')
    assert old.count('"bytes":') == 4
    repository.rewrite_recorded("day49.jsonl", old.encode())
    repository.run("verify")
    rows = [line for line in compared(repository, run_lines()).splitlines() if line.startswith(("row ", "ceiling "))][
        1:
    ]
    assert len(rows) == 4 and all(row.endswith("  same") for row in rows)
    # The names of one version are no names of the other.
    repository.rewrite_recorded("day49.jsonl", old.replace('"schema":1', '"schema":2').encode())
    assert any("day49.jsonl:4: ceiling ceiling-copy: the schema refuses" in line for line in repository.red())


def test_a_bad_run_does_not_keep_the_next_from_being_compared(repository):
    output = compared(repository, run_lines(day=30), run_lines(1.5), code=1)
    assert "slower" in one(output.splitlines(), "row vector add")


def test_odd_but_readable_rows_do_no_harm(repository):
    text = run_lines().replace('"unit":"FLOP/byte"', '"unit":null').replace('"variant":"stencil"', '"variant":["a"]')
    assert "only in yours" in compared(repository, text)


def test_missing_files_are_named(repository):
    result = repository.run("compare", repository.h200, "--from", repository.root / "none.jsonl", code=1)
    assert "none.jsonl: No such file" in result.stderr
    result = repository.run("compare", repository.profile / "t4", code=1)
    assert "t4: no manifest.json" in result.stderr


def test_compare_runs_the_days_of_the_folder(repository):
    repository.add_day(30)  # is not recorded, so it is not run
    repository.fake("day49.jsonl", run_lines(1.5))
    output = repository.run("compare", repository.h200).stdout
    assert "slower" in one(output.splitlines(), "row vector add")
    assert "day 30" not in output
    assert "day 30 is not recorded" in repository.run("compare", repository.h200, "--day", "30", code=1).stderr


def test_compare_shows_a_run_whose_check_failed(repository):
    text = run_lines().replace(
        '"ok":true,"checked":1024,"wrong":0', '"ok":false,"checked":1024,"wrong":1,"message":"m"', 1
    )
    repository.fake("day49.jsonl", text)
    repository.fake("program-exit", "1")
    result = repository.run("compare", repository.h200, code=1)
    assert "FAILED vectorAdd" in result.stdout


def test_compare_without_a_gpu_is_a_skip(repository):
    repository.fake("compute_cap", "")
    result = repository.run("compare", repository.h200, code=77)
    assert len(result.stderr.splitlines()) == 1
    repository.fake("compute_cap", "9.0\n")
    repository.fake("program-exit", "77")
    repository.fake("day49.jsonl", "")
    assert "cannot run here" in repository.run("compare", repository.h200, code=77).stderr


# ---- this repository -------------------------------------------------------------------------------------------------


def test_what_this_repository_records_is_as_recorded(source_dir):
    done = subprocess.run(
        [sys.executable, SCRIPT, "verify", "--root", source_dir], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_page_of_the_records_names_the_days_that_are_counted(source_dir):
    counted = [facts.number for facts in DAY_FACTS.find_facts(source_dir) if facts.counters]
    *first, last = counted
    row = f"| `dayNN-counters.csv` | of days {', '.join(map(str, first))} and {last}: "
    assert row in (source_dir / "profile/README.md").read_text()
    for day in counted:
        assert (source_dir / f"profile/h200/day{day}-counters.csv").is_file()


def test_the_real_sample_lines_fit_what_is_expected_here(source_dir):
    """The lines made up above have the shape of the schema, so a change of the schema shows here first."""
    refuse = EVIDENCE.schema_refusal(source_dir)
    assert len(EVIDENCE.read_run(run_lines().encode(), "sample", refuse)) == 8


# ---- several GPUs

CARDS = ["GPU-00000000-1111-2222-3333-444444444444", "GPU-00000001-1111-2222-3333-444444444444"]
# Runs the fake day as one of two cards: its program does not know --device.
TWO_CARDS = """\
case "$*" in *9999*) echo "--device 9999 is out of range: valid is 0 to 1" >&2; exit 2 ;; esac
for word; do device=$word; done
[ -e "$(dirname "$0")/dies-on-$device" ] && kill -KILL $$
sed "s|GPU-00000000|GPU-0000000$device|; s|@REV[I]SION@|@REVISION@|; s|@FL[A]GS@|@FLAGS@|" "@HERE@/day@DAY@.jsonl"
"""


@pytest.fixture(scope="session")
def fleet_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    made = Repository(folder).make()
    made.fake("program", "#!/bin/sh\n" + TWO_CARDS)
    made.run("record-fleet", "--launches", "1", "--revision", "abc123")
    made.run("charts")
    made.run("readme")
    return folder


@pytest.fixture
def two_cards(fleet_once, tmp_path):
    """A repository with two recorded H200s."""
    copy = tmp_path / "copy"
    shutil.copytree(fleet_once, copy)
    return Repository(copy)


def test_two_cards_are_recorded_solo_and_together(two_cards):
    assert "as recorded: 1 GPUs, 4 files, 36 JSON lines" in two_cards.run("verify").stdout
    manifest = two_cards.manifest("h200-x2")
    assert (manifest["device"], manifest["cards"]) == ("NVIDIA H200", CARDS)
    solo, together = manifest["days"]["49"]["commands"][1:]
    assert solo == "scripts/fleet.py run --solo --out day49-solo-1 ./fake"
    assert together == "scripts/fleet.py run --out day49-together-1 ./fake"
    table = (two_cards.profile / "h200-x2/day49-fleet.txt").read_text()
    assert "ceiling-copy, GB/s" in table
    assert sum(line.startswith("card ") for line in table.splitlines()) == 4
    assert "holds several cards" in two_cards.run("compare", two_cards.profile / "h200-x2", code=1).stderr
    two_cards.replace("day49-fake/fake.cu", "3.0f", "4.0f")
    one(two_cards.red(), "day49-fake/fake.cu: its code changed since profile/h200-x2 was recorded")


def test_two_cards_that_are_not_at_hand_any_more(two_cards):
    two_cards.replace("day49-fake/fake.cu", "3.0f", "4.0f")
    assert len(two_cards.red()) == 2  # the snippet too
    two_cards.run("history", two_cards.profile / "h200-x2")
    two_cards.run("readme")
    assert two_cards.run("verify").stdout.splitlines()[-1] == f"profile/h200-x2: history, {SINCE}"
    table = two_cards.profile / "h200-x2/day49-fleet.txt"
    table.write_text(table.read_text().replace("4184.5", "4284.5"))
    one(two_cards.red(), "day49-fleet.txt:3: edited since it was recorded")


def test_nothing_is_recorded_of_a_fleet_that_lost_a_card(bare):
    bare.fake(
        "program", "#!/bin/sh\n" + TWO_CARDS.replace('"$(dirname "$0")/dies-on-$device"', "@HERE@/dies-on-$device")
    )
    bare.fake("dies-on-1", "")
    assert "killed by signal 9" in bare.run("record-fleet", "--launches", "1", code=1).stderr
    assert not bare.profile.exists()


def forge(repository, name, change):
    """Change a recorded file and its sums in the manifest, so that nothing but its content tells."""
    folder = repository.profile / "h200-x2"
    manifest = repository.manifest("h200-x2")
    entry = manifest["files"].pop(name)
    data = change((folder / name).read_bytes())
    (folder / name).unlink()
    if data is not None:
        (folder / name).write_bytes(data)
        manifest["files"][name] = EVIDENCE.describe_file(data, entry["source"], entry["code"])
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda data: None,
            ["no rank 0 of 1, card 1 of 2", "GPU-00000001-1111-2222-3333-444444444444 has no run solo"],
        ),
        (
            lambda data: b"".join(data.splitlines(True)[:1] + data.splitlines(True)[2:]),
            [":2: a fleet record must stand"],
        ),
        (lambda data: data.replace(b"GPU-00000001", b"GPU-00000007"), [":1: GPU-00000007-", "none of the manifest's"]),
        (
            lambda data: data.replace(b'"ok":true', b'"ok":false,"message":"x"', 1).replace(
                b'"wrong":0', b'"wrong":1', 1
            ),
            ["check vector add: the check failed"],
        ),
        (lambda data: data.replace(b'"mode":"solo"', b'"mode":"alone"'), ["fleet: the schema refuses $.mode"]),
        (lambda data: data.replace(b'"revision":"abc123"', b'"revision":"abc124"'), ["revision is 'abc124'"]),
    ],
    ids=["gone", "no fleet record", "another card", "failed", "schema", "revision"],
)
def test_a_fleet_that_is_no_evidence_is_refused(two_cards, change, said):
    (name,) = (file.name for file in two_cards.profile.glob("h200-x2/*solo*card1of2*"))
    forge(two_cards, name, change)
    lines = two_cards.red()
    for part in said:
        assert any(part in line for line in lines), lines


def test_an_edited_missing_or_extra_file_of_a_fleet_is_named(two_cards):
    folder = two_cards.profile / "h200-x2"
    first, second, *_ = sorted(folder.glob("*.jsonl"))
    first.write_bytes(first.read_bytes().replace(b"4184.5", b"4284.5"))
    second.unlink()
    (folder / "notes.txt").write_text("x")
    lines = two_cards.red()
    one(lines, f"{first.name}:", "edited since it was recorded")
    one(lines, f"{second.name}: missing")
    one(lines, "notes.txt: not in the manifest")


def test_the_table_of_a_fleet_is_what_its_lines_give(two_cards):
    table = two_cards.profile / "h200-x2/day49-fleet.txt"
    table.write_text(table.read_text().replace("4184.5", "4284.5"))
    one(two_cards.red(), "day49-fleet.txt: not what the recorded lines give")
