"""What every day's program promises on the command line, tried on the CPU build from outside."""

import json
import os
import subprocess

import jsonschema
import pytest
from days import PROFILE_ORDER

pytestmark = pytest.mark.skipif(
    os.environ.get("CUDA_DAYS_BACKEND", "cpu") != "cpu",
    reason="only the CPU backend pretends devices",
)


@pytest.fixture(params=PROFILE_ORDER)
def program(request, build_dir):
    """Each day's program in turn."""
    return build_dir / request.param


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
    for argument in ("--check", "--json", "--profile", "--device", "--help"):
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


def test_banner_names_what_the_driver_translated(program):
    """What is skipped makes the checks fail, after the banner: that saves the time."""
    skip = PROFILE_ORDER[f"{program.parent.name}/{program.name}"][0]
    env = {"CUDA_DAYS_CPU_DEVICE": "translated", "CUDA_DAYS_CPU_SKIP": skip}
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


def test_profile_launches_each_kernel_once_in_order(program):
    expected = PROFILE_ORDER[f"{program.parent.name}/{program.name}"]
    # What is launched is logged before it is skipped, and skipping saves the time.
    result = run(program, "--profile", env={"CUDA_DAYS_CPU_LOG": "1", "CUDA_DAYS_CPU_SKIP": ",".join(expected)})
    assert result.returncode == 0, result.stderr
    launches = [line.split()[3] for line in result.stderr.splitlines() if line.startswith("CPU backend: launch ")]
    assert [launch.split("<")[0] for launch in launches] == expected


@pytest.fixture(scope="module")
def schema(source_dir):
    """The validator of one line of JSON."""
    text = (source_dir / "scripts" / "schema" / "row.schema.json").read_text()
    return jsonschema.Draft202012Validator(json.loads(text))


def test_json_lines(program, schema):
    result = run(program, "--check", "--json", env={"LC_ALL": "de_DE.UTF-8"})
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in result.stdout.splitlines()]
    for record in records:
        schema.validate(record)
    assert records[0]["record"] == "run"
    assert records[0]["backend"] == "cpu"
    assert {record["record"] for record in records[1:]} == {"check"}
    checked = {record["symbol"] for record in records[1:]}
    assert checked >= set(PROFILE_ORDER[f"{program.parent.name}/{program.name}"])
    assert all(record["ok"] and record["checked"] > 0 for record in records[1:])


def test_json_of_a_failed_check(program, schema):
    kernel = PROFILE_ORDER[f"{program.parent.name}/{program.name}"][1]
    result = run(program, "--check", "--json", env={"CUDA_DAYS_CPU_SKIP": kernel})
    assert result.returncode == 1
    records = [json.loads(line) for line in result.stdout.splitlines()]
    for record in records:
        schema.validate(record)
    failed = [record for record in records if record.get("ok") is False]
    assert failed and {record["symbol"] for record in failed} == {kernel}
    assert all(record["wrong"] > 0 and "got " in record["message"] for record in failed)
