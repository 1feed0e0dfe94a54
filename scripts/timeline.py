#!/usr/bin/env python3
"""Record a timeline of day 56's program, and check what it shows.

  record PROGRAM   run PROGRAM --profile under scripts/trace_cuda.cpp, check the trace, and print it
  check FILE...    check traces: what is launched in the ranges named "launches" and "graph"

A trace is in the Chrome format: one object a line with track (tid), name, ts and dur in microseconds, and the number by
which CUPTI joins a call with the kernels that it started. ui.perfetto.dev and chrome://tracing open it. Its times are
those of a traced run, in which every call takes longer: they are for looking at, and none is quoted.

Where Nsight Systems is installed, it draws the same ranges: nsys profile --trace=cuda,nvtx ./graphs --profile

Exit code: 0 fine; 1 a check failed or nothing could be recorded; 2 bad usage; 77 no CUPTI or no nvcc here.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from resources import find_nvcc, plain_locale, run_as_text
from sync_common import flush_stdout, say_failed

EXIT_WRONG = 1
EXIT_SKIPPED = 77
RUN_LIMIT_S = 300  # the days' longest --profile takes some seconds: longer is a hang
RECORDER = Path(__file__).resolve().parent / "trace_cuda.cpp"

RANGES, CALLS, GPU = "NVTX ranges", "CUDA calls", "GPU"  # the tracks
LAUNCHES, GRAPH = "launches", "graph"  # the ranges that are compared: one of each for every size


class Stop(Exception):
    """Ends a command: the message goes to stderr, the code is the exit code."""

    def __init__(self, message: str, code: int = EXIT_WRONG):
        super().__init__(message)
        self.code = code


def read_trace(text: str) -> list[dict]:
    """Return the events of a trace. Raises ValueError that says what is no trace of ours."""
    try:
        events = json.loads(text)["traceEvents"]
        for event in events:
            if not (event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["args"]["correlation"], int)):
                raise ValueError(f"{event['name']}: a negative time, or no correlation")
            if event["tid"] not in (RANGES, CALLS, GPU):
                raise ValueError(f"{event['name']}: the track '{event['tid']}' is none of ours")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no trace of scripts/trace_cuda.cpp ({type(error).__name__}: {error})") from None
    return events


def starts_work(name: str) -> bool:
    """Tell whether a runtime call of this name starts kernels: cudaLaunchKernel, ...ExC, cudaGraphLaunch and so on."""
    return name.startswith(("cudaLaunch", "cudaGraphLaunch"))


@dataclass(frozen=True)
class Iteration:
    """One iteration of the chain: its range, the calls in it that start work, and the kernels that these started."""

    where: str
    variant: str
    calls: dict[str, int]
    kernels: list[dict]

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels' names, in the order in which they started."""
        return tuple(kernel["name"] for kernel in self.kernels)


def iterations_of(events: list[dict], variant: str) -> list[Iteration]:
    """Return the iterations in ranges of that name."""
    found = []
    ranges = [event for event in events if event["tid"] == RANGES and event["name"] == variant]
    for number, inside in enumerate(ranges, start=1):
        begin, end = inside["ts"], inside["ts"] + inside["dur"]
        calls = [e for e in events if e["tid"] == CALLS and begin <= e["ts"] <= end and starts_work(e["name"])]
        correlations = {call["args"]["correlation"] for call in calls}
        kernels = [e for e in events if e["tid"] == GPU and e["args"]["correlation"] in correlations]
        kernels.sort(key=lambda kernel: kernel["ts"])
        counts = dict(Counter(call["name"] for call in calls))
        found.append(Iteration(f"range '{variant}' {number}", variant, counts, kernels))
    return found


def problems_of(events: list[dict]) -> list[str]:
    """Return what a trace shows that it must not, or lacks: a sentence for each.

    In a range "launches" a kernel launch for each kernel of the chain and nothing else starts work, in a range "graph"
    one launch of a graph. Either way the GPU runs the same kernels, and starts and ends them in order. Which kernels
    the chain has, the trace says itself: those that most of the ranges "launches" ran, each of them once. (CUPTI stamps
    the start of a graph's node now and then a little before the end of the node that it waits for.)
    """
    launches, graphs = iterations_of(events, LAUNCHES), iterations_of(events, GRAPH)
    if not launches:
        return [f"no range '{LAUNCHES}', and there must be one for each size"]
    problems = []
    if len(graphs) != len(launches):
        problems.append(f"{len(graphs)} ranges '{GRAPH}', and there must be {len(launches)}, as of '{LAUNCHES}'")
    chain = Counter(one.names for one in launches).most_common(1)[0][0]
    if len(chain) < 2 or len(set(chain)) != len(chain):
        problems.append(f"the ranges '{LAUNCHES}' ran {', '.join(chain) or 'nothing'}, which is no chain of kernels")
    expected = {LAUNCHES: {"cudaLaunchKernel": len(chain)}, GRAPH: {"cudaGraphLaunch": 1}}
    for one in [*launches, *graphs]:
        if one.calls != expected[one.variant]:
            problems.append(f"{one.where}: calls that start work are {one.calls}, and must be {expected[one.variant]}")
        if one.names != chain:
            problems.append(f"{one.where}: the GPU ran {', '.join(one.names) or 'nothing'}, and not {', '.join(chain)}")
        ends = [kernel["ts"] + kernel["dur"] for kernel in one.kernels]
        if ends != sorted(ends):
            problems.append(f"{one.where}: the kernels do not end in the order in which they start")
    return problems


def check_file(path: Path, shown: str) -> list[str]:
    """Return what is wrong with a recorded trace, each sentence with the name to show. Raises OSError."""
    try:
        found = problems_of(read_trace(path.read_text(encoding="utf-8")))
    except ValueError as error:
        found = [str(error)]
    return [f"{shown}: {problem}" for problem in found]


def find_cupti(nvcc: str) -> tuple[Path, Path]:
    """Return the folder of cupti.h and the library, of the toolkit that nvcc belongs to. Raises Stop (77)."""
    toolkit = Path(nvcc).resolve().parent.parent
    headers = [toolkit / part for part in ("include", "extras/CUPTI/include", "targets/x86_64-linux/include")]
    libraries = [toolkit / part for part in ("lib64", "extras/CUPTI/lib64", "lib", "targets/x86_64-linux/lib")]
    header = next((folder for folder in headers if (folder / "cupti.h").is_file()), None)
    library = next((path for folder in libraries for path in sorted(folder.glob("libcupti.so*"))), None)
    if header is None or library is None:
        raise Stop(f"no CUPTI (cupti.h, libcupti.so) in the toolkit of {nvcc}", EXIT_SKIPPED)
    return header, library


def finished(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output as text. Raises Stop if there is no such command or it hangs."""
    try:
        return run_as_text(command, RUN_LIMIT_S, environment)
    except OSError as error:
        raise Stop(f"{command[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Stop(f"{shlex.join(command)}: not done after {RUN_LIMIT_S} s, and was stopped") from None


def record(program: Path) -> str:
    """Run PROGRAM --profile under the recorder and return the trace, checked. Raises Stop."""
    nvcc = find_nvcc()
    if not nvcc:
        raise Stop("no nvcc here (CUDACXX, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda)", EXIT_SKIPPED)
    header, library = find_cupti(nvcc)
    with tempfile.TemporaryDirectory(prefix="cuda-days-") as temporary:
        recorder, trace = Path(temporary, "trace_cuda.so"), Path(temporary, "trace.json")
        command = [os.environ.get("CXX") or "g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{header}"]
        command += [f"-I{Path(nvcc).resolve().parent.parent / 'include'}", str(RECORDER), str(library)]
        built = finished([*command, f"-Wl,-rpath,{library.parent}", "-o", str(recorder)], plain_locale())
        if built.returncode != 0:
            raise Stop(f"{RECORDER.name} does not compile: {built.stderr.strip()[:600]}")
        environment = {"CUDA_INJECTION64_PATH": str(recorder), "NVTX_INJECTION64_PATH": str(library)}
        environment.update(plain_locale(CUDA_DAYS_TRACE=str(trace)))
        done = finished([str(program.resolve()), "--profile"], environment)
        if done.returncode != 0 or not trace.is_file():
            raise Stop(
                f"{program.name} --profile ended with {done.returncode} and no trace: {done.stderr.strip()[:600]}"
            )
        problems = check_file(trace, "the trace")
        if problems:
            raise Stop("\n".join(problems))
        return trace.read_text(encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command", metavar="record|check")
    recording = commands.add_parser("record", help="run a program and print its timeline")
    recording.add_argument("program", type=Path, metavar="PROGRAM")
    checking = commands.add_parser("check", help="check traces")
    checking.add_argument("files", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        if options.command == "record":
            print(record(options.program), end="")
            flush_stdout()
            return 0
        problems = [problem for path in options.files for problem in check_file(path, str(path))]
        print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
        return EXIT_WRONG if problems else 0
    except Stop as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except OSError as error:
        say_failed(error)
        return EXIT_WRONG


if __name__ == "__main__":
    sys.exit(main())
