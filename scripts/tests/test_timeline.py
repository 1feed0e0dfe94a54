"""scripts/timeline.py: what a trace of day 56 must show, faults planted in one, and the recorder where CUPTI is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE_DIR

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
import evidence  # noqa: E402
import timeline  # noqa: E402

RECORDED = sorted((SOURCE_DIR / "profile").glob("*/*-timeline.json"))


# A trace to plant faults in: its kernels are not the day's, since the script knows none.
CHAIN = ("scale", "activate", "add", "clamp")
SIZES = 5


def event(track, name, start, duration, correlation=0):
    """Return one event of a trace."""
    args = {"correlation": correlation}
    return {"ph": "X", "pid": "graphs", "tid": track, "name": name, "ts": start, "dur": duration, "args": args}


def good_trace():
    """Return the events of --profile as the recorder writes them, with a variant beside the two that are checked."""
    events, at, number = [], 0.0, 0
    for _ in range(SIZES):
        for name, calls in (
            ("launches", ["cudaLaunchKernel"] * 4),
            ("capture", ["cudaStreamBeginCapture", *["cudaLaunchKernel"] * 4, "cudaStreamEndCapture"]),
            ("graph", ["cudaGraphLaunch"]),
            ("fused launch", ["cudaLaunchKernel"]),
        ):
            inside = [event(timeline.RANGES, name, at, 100.0)]
            for call in [*calls, "cudaStreamSynchronize"]:
                at += 5
                number += 1
                inside.append(event(timeline.CALLS, call, at, 4.0, number))
                if call == "cudaGraphLaunch":
                    inside += [event(timeline.GPU, kernel, at + 3 + i, 1.0, number) for i, kernel in enumerate(CHAIN)]
                elif call == "cudaLaunchKernel" and name != "capture":
                    kernels = CHAIN if name == "launches" else ("fused",)
                    done = sum(e["tid"] == timeline.GPU for e in inside)
                    inside.append(event(timeline.GPU, kernels[done], at + 3, 1.0, number))
            events += inside
            at += 100
    return events


def find(events, track, name, nth=0):
    """Return the nth event of that track and name."""
    return [e for e in events if e["tid"] == track and e["name"] == name][nth]


def lose_a_launch(events):
    events.remove(find(events, timeline.CALLS, "cudaLaunchKernel"))


def lose_a_graph_launch(events):
    events.remove(find(events, timeline.CALLS, "cudaGraphLaunch", 2))


def launch_in_the_graph_s_range(events):
    at = find(events, timeline.RANGES, "graph")["ts"]
    events.append(event(timeline.CALLS, "cudaLaunchKernel", at + 1, 1.0, 999))


def launch_with_attributes_in_the_graph_s_range(events):
    at = find(events, timeline.RANGES, "graph")["ts"]
    events.append(event(timeline.CALLS, "cudaLaunchKernelExC", at + 1, 1.0, 999))


def launch_a_graph_twice(events):
    at = find(events, timeline.RANGES, "graph", 1)["ts"]
    events.append(event(timeline.CALLS, "cudaGraphLaunch", at + 1, 1.0, 999))


def swap_two_kernels(events):
    first, second = (find(events, timeline.GPU, name, 1) for name in CHAIN[1:3])  # of the first graph
    first["ts"], second["ts"] = second["ts"], first["ts"]


def end_out_of_order(events):
    find(events, timeline.GPU, "activate", 1)["dur"] = 50.0


def lose_a_kernel(events):
    events.remove(find(events, timeline.GPU, "clamp", 3))


def lose_a_range(events):
    events.remove(find(events, timeline.RANGES, "graph", 4))


def lose_all_ranges(events):
    events[:] = [e for e in events if e["tid"] != timeline.RANGES]


def lose_all_but_one_kernel(events):
    events[:] = [e for e in events if e["tid"] != timeline.GPU or e["name"] == CHAIN[0]]


def launch_a_kernel_twice(events):
    for one in events:
        if one["tid"] == timeline.GPU and one["name"] == CHAIN[1]:
            one["name"] = CHAIN[0]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lose_a_launch, "range 'launches' 1: calls that start work are {'cudaLaunchKernel': 3}"),
        (lose_a_graph_launch, "range 'graph' 3: calls that start work are {}"),
        (launch_in_the_graph_s_range, "range 'graph' 1: calls that start work are"),
        (launch_with_attributes_in_the_graph_s_range, "'cudaLaunchKernelExC': 1"),
        (launch_a_graph_twice, "range 'graph' 2: calls that start work are {'cudaGraphLaunch': 2}"),
        (swap_two_kernels, "range 'graph' 1: the GPU ran scale, add, activate, clamp"),
        (end_out_of_order, "range 'graph' 1: the kernels do not end in the order"),
        (lose_a_kernel, "range 'graph' 2: the GPU ran scale, activate, add, and not scale"),
        (lose_a_range, "4 ranges 'graph', and there must be 5"),
        (lose_all_ranges, "no range 'launches'"),
        (lose_all_but_one_kernel, "ran scale, which is no chain"),
        (launch_a_kernel_twice, "ran scale, scale, add, clamp, which is no chain"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_named(fault, said, tmp_path, capsys):
    events = good_trace()
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    assert timeline.main(["check", str(file)]) == 0
    fault(events)
    file.write_text(json.dumps({"traceEvents": events}))
    assert timeline.main(["check", str(file)]) == 1
    assert f"{file}: " in (stderr := capsys.readouterr().err)
    assert said in stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[]", "no trace"),
        ('{"traceEvents": [{"name": "x"}]}', "no trace"),
        (json.dumps({"traceEvents": [event("GPU", "x", -1, 0)]}), "a negative time"),
        (json.dumps({"traceEvents": [event("elsewhere", "x", 1, 0)]}), "the track 'elsewhere'"),
    ],
)
def test_what_is_no_trace_is_refused(text, said, tmp_path, capsys):
    file = tmp_path / "trace.json"
    file.write_text(text)
    assert timeline.main(["check", str(file)]) == 1
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    assert timeline.main(["check", str(tmp_path / "gone.json")]) == 1
    assert "gone.json: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_recorded_timelines(file):
    assert timeline.check_file(file, file.name) == []


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_evidence_holds_a_recorded_timeline_to_the_same(file, tmp_path):
    """A trace that shows something else is named even where its manifest was made to fit, and so is a missing one."""
    folder = tmp_path / file.parent.name
    shutil.copytree(file.parent, folder)
    assert evidence.check_folder(folder, "here", SOURCE_DIR, lambda record: None)[0] == []

    def replace(data):
        manifest = json.loads((folder / "manifest.json").read_text())
        entry = manifest["files"].pop(file.name)
        (folder / file.name).unlink()
        if data is not None:
            (folder / file.name).write_bytes(data)
            manifest["files"][file.name] = evidence.describe_file(data, entry["source"], entry["code"])
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return evidence.check_folder(folder, "here", SOURCE_DIR, lambda record: None)[0]

    changed = file.read_text().replace('"cudaGraphLaunch"', '"cudaLaunchKernel"', 1)
    problems = replace(changed.encode())
    assert any(problem.startswith(f"here/{file.name}: range 'graph' 1: calls that start work") for problem in problems)
    assert any(f"does not list {file.name}" in problem for problem in replace(None))


def test_the_recorder_compiles_without_a_warning(nvcc, cxx, tmp_path):
    try:
        header, _ = timeline.find_cupti(nvcc)
    except timeline.Stop as stop:
        pytest.skip(str(stop))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{header}"]
    subprocess.run([cxx, *flags, f"-I{Path(nvcc).resolve().parent.parent / 'include'}", timeline.RECORDER], check=True)


def test_without_a_toolkit_nothing_is_recorded(monkeypatch, capsys):
    monkeypatch.setattr(timeline, "find_nvcc", lambda: None)
    assert timeline.main(["record", "graphs"]) == 77
    assert "no nvcc here" in capsys.readouterr().err


def play_the_recorder(monkeypatch, tmp_path, program):
    """Let a compiler that compiles nothing and a shell script stand for the recorder and the day; return the day."""
    for name, text in (("cxx", "exit 0"), ("graphs", program)):
        (tmp_path / name).write_text(f"#!{shutil.which('sh')}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    monkeypatch.setattr(timeline, "find_nvcc", lambda: "/nowhere/bin/nvcc")
    monkeypatch.setattr(timeline, "find_cupti", lambda nvcc: (tmp_path, tmp_path / "libcupti.so"))
    return tmp_path / "graphs"


def test_a_program_that_hangs_is_stopped(monkeypatch, tmp_path, capsys):
    program = play_the_recorder(monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(timeline, "RUN_LIMIT_S", 0.5)
    assert timeline.main(["record", str(program)]) == 1
    assert capsys.readouterr().err == f"{program} --profile: not done after 0.5 s, and was stopped\n"


def test_a_compiler_that_is_not_there_is_named(monkeypatch, tmp_path, capsys):
    program = play_the_recorder(monkeypatch, tmp_path, "exit 0")
    (tmp_path / "cxx").unlink()
    assert timeline.main(["record", str(program)]) == 1
    assert "cxx cannot be started: No such file" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_named(monkeypatch, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": good_trace()}))
    program = play_the_recorder(monkeypatch, tmp_path, f'cp "{trace}" "$CUDA_DAYS_TRACE"')
    code = (
        f"import pathlib, sys, timeline; timeline.find_nvcc = lambda: '/nowhere/bin/nvcc';"
        f"timeline.find_cupti = lambda nvcc: (pathlib.Path('/'), pathlib.Path('/'));"
        f"sys.exit(timeline.main(['record', {str(program)!r}]))"
    )
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=SCRIPTS, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "stdout: No space left on device\n")


def test_a_program_that_fails_leaves_no_timeline(nvcc, cxx, tmp_path, capsys):
    try:
        timeline.find_cupti(nvcc)
    except timeline.Stop as stop:
        pytest.skip(str(stop))
    program = tmp_path / "graphs"
    program.write_text(f"#!{shutil.which('sh')}\necho no GPU >&2\nexit 77\n")
    program.chmod(0o755)
    assert timeline.main(["record", str(program)]) == 1
    assert "ended with 77 and no trace: no GPU" in capsys.readouterr().err
