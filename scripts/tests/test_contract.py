"""What every day's program promises on the command line, tried on the CPU build from outside."""

import json
import os
import subprocess

import jsonschema
import pytest
from days import CUBLAS, FACTS, PREPARES, PROGRAMS, kernels_of, launches, lesson_kernels, symbol_of

pytestmark = pytest.mark.skipif(
    os.environ.get("CUDA_DAYS_BACKEND", "cpu") != "cpu",
    reason="only the CPU backend pretends devices",
)


@pytest.fixture(scope="module", params=PROGRAMS)
def name(request):
    """Each day's folder and program in turn."""
    return request.param


@pytest.fixture
def program(name, build_dir):
    """The program itself."""
    return build_dir / name


def run(program, *arguments, **options):
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(
        [program, *arguments],
        env=environment,
        capture_output="stdout" not in options,
        text=True,
        timeout=600,
        **options,
    )


def test_help(program):
    result = run(program, "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    for argument in ("--check", "--json", "--json-file", "--profile", "--device", "--help"):
        assert argument in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--chekc"], "--chekc"),
        (["extra"], "extra"),
        (["--check", "--device"], "--device"),
        (["--check", "--device", "zero"], "'zero'"),
        (["--check", "--device", "-1"], "'-1'"),
        (["--check", "--device", "99"], "99 is out of range: valid is 0"),
        (["--check", "--profile"], "--profile"),
        (["--profile", "--json"], "--json"),
        (["--profile", "--json-file", "no.jsonl"], "--json-file"),
        (["--check", "--json", "--json-file", "no.jsonl"], "--json and --json-file exclude each other"),
        (["--check", "--json-file"], "--json-file: the name of a file is missing"),
        (["--check", "--json-file", ""], "--json-file: the name of a file is missing"),
    ],
    ids=" ".join,
)
def test_bad_usage(program, arguments, named):
    result = run(program, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert named in result.stderr


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["table", "json"])
def test_cpu_build_refuses_to_time(program, arguments):
    result = run(program, *arguments)
    assert result.returncode == 77
    assert result.stdout == ""
    assert "--check" in result.stderr


@pytest.mark.parametrize(
    ("device", "code", "said"),
    [
        ("no-driver", 77, ["no NVIDIA driver is visible", "WSL", "--gpus all"]),
        ("no-gpu", 77, ["no GPU"]),
        ("old-driver", 1, ["supports CUDA 11.4", "toolkit"]),
        ("other-arch", 1, ["sm_121", "-arch=sm_121", "-DCMAKE_CUDA_ARCHITECTURES=121"]),
        ("too-old", 77, ["V100", "sm_70", "start at sm_75"]),
        ("small", 77, ["MiB needed", "MiB free"]),
    ],
)
def test_unusable_device(program, device, code, said):
    result = run(program, "--check", env={"CUDA_DAYS_CPU_DEVICE": device})
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("CPU backend:")]
    assert len(lines) == 1, "one line says it all"
    for part in said:
        assert part in lines[0]


def test_banner_names_what_the_driver_translated(name, program):
    """What is skipped makes the checks fail, after the banner: that saves the time."""
    env = {"CUDA_DAYS_CPU_DEVICE": "translated", "CUDA_DAYS_CPU_SKIP": ",".join(kernels_of(name))}
    banner = run(program, "--check", env=env).stdout
    assert "code for sm_90, translated from compute_75 by the driver" in banner
    assert "-arch=sm_90a" in banner


@pytest.mark.parametrize("argument", ["--help", "--check"])
def test_full_disk_is_a_failure(program, argument):
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = run(program, argument, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert "stdout" in result.stderr


@pytest.mark.parametrize("argument", ["--help", "--check"])
def test_closed_stdout_is_a_failure(program, argument):
    result = subprocess.run(["sh", "-c", f'"{program}" {argument} >&-'], stderr=subprocess.PIPE, text=True, timeout=600)
    assert result.returncode == 1
    assert "stdout" in result.stderr


def test_broken_pipe_is_a_failure(program):
    reader, writer = os.pipe()
    os.close(reader)
    result = run(program, "--check", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert result.returncode == 1
    assert "stdout" in result.stderr


def test_profile_launches_the_kernels_of_the_table_in_its_order(name, program):
    """All that --check launches, but for what day.json names; in the order of the rows, or of the source."""
    profiled = list(dict.fromkeys(map(symbol_of, launches(name, "--profile"))))
    tools = kernels_of(name)[len(lesson_kernels(name)) :]
    left_out = [*FACTS[name].not_profiled, *tools]
    checked = [kernel for kernel in dict.fromkeys(map(symbol_of, launches(name, "--check"))) if kernel not in left_out]
    in_source = [kernel for kernel in [*kernels_of(name), CUBLAS] if kernel in checked]
    assert set(profiled) == set(checked)
    assert profiled in (checked, in_source)
    # Nothing is computed, and so nothing checked: the profiler sees what is timed.
    assert run(program, "--profile", env={"CUDA_DAYS_CPU_SKIP": ",".join(profiled)}).returncode == 0


@pytest.fixture(scope="module")
def schema(source_dir):
    """The validator of one line of JSON."""
    text = (source_dir / "scripts" / "schema" / "row.schema.json").read_text()
    return jsonschema.Draft202012Validator(json.loads(text))


@pytest.fixture(scope="module")
def checked(name, build_dir, tmp_path_factory):
    """What --check --json-file printed where a comma is decimal, and the folder with the file; a day takes a minute."""
    folder = tmp_path_factory.mktemp("checked")
    lines = folder / "run.jsonl"
    lines.write_text("of a run of before\n")
    return run(build_dir / name, "--check", "--json-file", lines, env={"LC_ALL": "de_DE.UTF-8"}), folder


def test_json_lines(name, checked, schema):
    result, folder = checked
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    for record in records:
        schema.validate(record)
    assert records[0]["record"] == "run"
    assert records[0]["schema"] == 2
    assert records[0]["backend"] == "cpu"
    assert {record["record"] for record in records[1:]} == {"check"}
    checked = {record["symbol"] for record in records[1:]}
    assert checked >= {PREPARES.get(kernel, kernel) for kernel in map(symbol_of, launches(name, "--profile"))}
    assert all(record["ok"] and record["checked"] > 0 for record in records[1:])


def test_json_of_a_failed_check(name, program, schema):
    kernel = symbol_of(launches(name, "--profile")[1])
    result = run(program, "--check", "--json", env={"CUDA_DAYS_CPU_SKIP": kernel})
    assert result.returncode == 1
    records = [json.loads(line) for line in result.stdout.splitlines()]
    for record in records:
        schema.validate(record)
    failed = [record for record in records if record.get("ok") is False]
    assert failed and {record["symbol"] for record in failed} == {kernel}
    assert all(record["wrong"] > 0 and "got " in record["message"] for record in failed)


def skipping(name):
    """Return the environment in which a day computes nothing: its checks fail, and the run takes a second."""
    return {"CUDA_DAYS_CPU_SKIP": ",".join([*kernels_of(name), CUBLAS])}


def test_json_file_holds_the_lines_of_the_run_whose_text_is_shown(checked):
    """Row for row: a check's symbol, variant, size and number of values stand in both, in the same order."""
    result, folder = checked
    records = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    shown = [line for line in result.stdout.splitlines() if line.endswith("  ok")]
    assert len(shown) == len(records) - 1
    for line, record in zip(shown, records[1:]):
        assert line.startswith(f"{record['symbol']} ") and f" {record['variant']} " in line
        assert f" {record['size']} " in line and f" {record['checked']} " in line
    assert [file.name for file in folder.iterdir()] == ["run.jsonl"]


def test_the_text_is_the_same_with_a_file_and_the_lines_are_those_of_json(name, program, tmp_path):
    """But for the time in the run record; also where checks fail."""
    env = skipping(name)
    file = run(program, "--check", "--json-file", tmp_path / "run.jsonl", env=env)
    text, lines = run(program, "--check", env=env), run(program, "--check", "--json", env=env)
    assert file.returncode == text.returncode == lines.returncode == 1
    assert file.stdout == text.stdout and file.stderr == text.stderr
    records, others = (part.splitlines() for part in ((tmp_path / "run.jsonl").read_text(), lines.stdout))
    assert records[1:] == others[1:] and len(records) > 1
    assert json.loads(records[0]).keys() == json.loads(others[0]).keys()


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(name, program, tmp_path):
    result = run(program, "--check", "--json-file", tmp_path / "no" / "run.jsonl")
    assert (result.returncode, result.stdout) == (1, "")  # before anything is computed
    assert f"cannot write {tmp_path}/no/run.jsonl" in result.stderr and "No such file" in result.stderr
    (tmp_path / "folder").mkdir()
    result = run(program, "--check", "--json-file", tmp_path / "folder", env=skipping(name))
    assert result.returncode == 1
    assert f"cannot write {tmp_path}/folder: Is a directory\n" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_leaves_no_half_of_a_file(name, program, full_disk):
    result = run(program, "--check", "--json-file", full_disk / "run.jsonl", env=skipping(name))
    assert result.returncode == 1
    assert f"cannot write {full_disk}/run.jsonl" in result.stderr and "No space left" in result.stderr
    assert [file.name for file in full_disk.iterdir()] == ["filler"]


def test_a_run_that_stops_leaves_the_file_of_before(name, program, tmp_path):
    lines = tmp_path / "run.jsonl"
    lines.write_text("of a run of before\n")
    result = run(program, "--check", "--json-file", lines, env={"CUDA_DAYS_CPU_DEVICE": "small"})
    assert result.returncode == 77
    assert lines.read_text() == "of a run of before\n"
    with open("/dev/full", "w", encoding="utf-8") as full:
        arguments = ("--check", "--json-file", lines)
        result = run(program, *arguments, stdout=full, stderr=subprocess.PIPE, env=skipping(name))
    assert result.returncode == 1
    assert lines.read_text() == "of a run of before\n"
    assert [file.name for file in tmp_path.iterdir()] == ["run.jsonl"]
