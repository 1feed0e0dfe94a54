#!/usr/bin/env python3
"""Count with Nsight Compute what a day's kernels do, or say exactly why that cannot be done here.

    scripts/profile.sh 49                                      the day that CMake built for the GPU
    scripts/profile.sh build/gpu/day49-roofline/roofline       any program that takes --profile

Looks first whether it can work: a GPU, the profiler and its version, a GPU that is not split (MIG), the permission, and
the counters' names on this chip (ncu --query-metrics). Then one pass for bytes and one for instructions, because one
long pass lets counters disagree by a few per cent. Clocks stay as they are (--clock-control none: the default locks
them, which shared cards refuse), and caches are flushed before every replay (--cache-control all). Writes
NAME-counters.csv and NAME-counters-inst.csv, rows alone: both, or nothing if a pass fails. scripts/evidence.py record
takes the same passes.

Exit code: 0 written; 1 the profiler or the program failed; 2 bad usage; 77 the counters cannot be read here.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from resources import find_nvcc, run_as_text
from sync_common import flush_stdout, naming, say_failed, write_whole

# Reads what ncu exports. It lies with its day, because people carry that one file off.
sys.path.append(str(Path(__file__).resolve().parent.parent / "day49-roofline"))
import merge_dram  # noqa: E402 (lies in the folder named just above)

EXIT_WRONG = 1
EXIT_SKIPPED = 77  # the code that CTest and Automake read as a skip
RUN_LIMIT_S = 1200  # under the profiler a day takes a minute or two: longer is a hang

# The passes: ending of the file, and the counters. A name in two spellings is the same counter on different chips:
# Blackwell renamed the split of DRAM's bytes.
BYTES = (
    "dram__bytes.sum dram__bytes_read.sum|dram__bytes_op_read.sum dram__bytes_write.sum|dram__bytes_op_write.sum "
    "gpu__time_duration.sum lts__t_sectors_srcunit_tex.sum lts__t_bytes.sum l1tex__t_bytes.sum "
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum "
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum l1tex__t_requests_pipe_lsu_mem_global_op_st.sum "
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum "
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
)
INSTRUCTIONS = (
    "smsp__inst_executed.sum smsp__thread_inst_executed_pred_on.sum "
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum smsp__sass_thread_inst_executed_op_fmul_pred_on.sum "
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum smsp__sass_thread_inst_executed_op_dadd_pred_on.sum "
    "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum smsp__sass_thread_inst_executed_op_dfma_pred_on.sum "
    "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum smsp__sass_thread_inst_executed_op_hmul_pred_on.sum "
    "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum "
    "smsp__inst_executed_op_global_ld.sum smsp__inst_executed_op_global_st.sum smsp__inst_executed_op_local_ld.sum "
    "smsp__inst_executed_op_local_st.sum smsp__inst_executed_op_shared_ld.sum smsp__inst_executed_op_shared_st.sum"
)
PASSES = (("-counters.csv", BYTES), ("-counters-inst.csv", INSTRUCTIONS))
# The same as merge_dram.py takes them, each in the units of --print-units base alone: figures that were scaled are
# rounded too.
UNITS = {
    merge_dram.RENAMED.get(spelling, spelling): dict.fromkeys(("", "byte", "sector", "inst", "ns"), 1.0)
    for _, metrics in PASSES
    for metric in metrics.split()
    for spelling in metric.split("|")
}

GPU_PRESETS = ("gpu", "t4")  # of CMakePresets.json, which build below build/
OLDEST = (2020, 1)  # the first ncu of this name, and with --clock-control
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
SMI = ("nvidia-smi", "--format=csv,noheader")

ALLOW = """\
The host's driver lets administrators alone read the counters. One of these allows it:
  now, for one run:       sudo -E env PATH="$PATH" scripts/profile.sh ...
  for good, on the host:  echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' |
                            sudo tee /etc/modprobe.d/nvidia-profiler.conf
                          and reboot (Debian and Ubuntu: sudo update-initramfs -u first)
  in a container:         root is not enough: start it with --cap-add=SYS_ADMIN, or change the host as above
Colab and Kaggle allow none of it: use the recorded exports in profile/."""


class Refused(Exception):
    """The counters cannot be had. The text's first line says why, the others what to do; `code` is the exit code."""

    def __init__(self, why: str, remedy: str = "", code: int = EXIT_SKIPPED):
        super().__init__(f"{why}\n{remedy}".rstrip())
        self.why, self.code = why, code


Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]  # runs words; stdout and stderr as text


def run_here(words: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command. Raises Refused if there is no such command or it hangs."""
    try:
        return run_as_text(words, RUN_LIMIT_S, cwd=folder)
    except OSError as error:
        raise Refused(f"{words[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Refused(
            f"{shlex.join(words)}: not done after {RUN_LIMIT_S} s: does nvidia-smi still answer?", code=EXIT_WRONG
        ) from None


def find_ncu(nvcc: str | None) -> str | None:
    """Return the profiler: on PATH, or beside nvcc."""
    places = [os.environ.get("PATH", ""), *([str(Path(nvcc).parent)] if nvcc else [])]
    return shutil.which("ncu", path=os.pathsep.join(places))


def version_of(ncu: str, run: Run = run_here) -> str:
    """Return the profiler's version, as 2025.3.1.0, or "unknown"."""
    found = re.search(r"Version ([\d.]+)", run([ncu, "--version"]).stdout)
    return found[1] if found else "unknown"


def preflight(ncu: str | None, run: Run = run_here) -> tuple[str, set[str]]:
    """Return the profiler's version and the names of this chip's counters, if nothing known keeps them from being read.

    Raises Refused (77).
    """
    if not ncu:
        raise Refused(
            "ncu (Nsight Compute) is neither on PATH nor beside nvcc",
            "It is in the CUDA Toolkit, and alone at https://developer.nvidia.com/nsight-compute",
        )
    version = version_of(ncu, run)
    parts = tuple(int(part) for part in version.split(".")[:2]) if version != "unknown" else ()
    if parts < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Refused(
            f"ncu is of version {version}, and {oldest} or newer is needed",
            "Take the one of the newest CUDA Toolkit: https://developer.nvidia.com/nsight-compute",
        )
    try:
        mig = run([*SMI, "--query-gpu=mig.mode.current"]).stdout.splitlines()
    except (Refused, OSError):
        mig = []  # no nvidia-smi, as on Jetson: ncu will say if there is no GPU
    if "Enabled" in (line.strip() for line in mig):
        raise Refused(
            "this GPU is split (MIG), and a slice cannot count what L2 and DRAM move: they belong to all slices",
            "Profile on a whole GPU. Its administrator ends the split: sudo nvidia-smi -mig 0",
        )
    parameters = DRIVER_PARAMETERS.read_text(encoding="utf-8") if DRIVER_PARAMETERS.is_file() else ""
    if "RmProfilingAdminOnly: 1" in parameters and os.geteuid() != 0:
        raise Refused("this host lets administrators alone read the counters (RmProfilingAdminOnly: 1)", ALLOW)
    return version, names_here(ncu, run)


def names_here(ncu: str, run: Run = run_here) -> set[str]:
    """Return the counters of this chip, without endings such as .sum. Raises Refused (77) if ncu names none."""
    done = run([ncu, "--query-metrics"])
    names = set(re.findall(r"^\s*([a-z0-9]+__\w+)", done.stdout, re.MULTILINE))
    if not names:
        text = f"{done.stdout}\n{done.stderr}"
        if "ERR_NVGPUCTRPERM" in text:
            refuse(done)
        said = re.search(r"==ERROR== (.+)", text)
        raise Refused(
            "ncu --query-metrics names no counter: no driver, no GPU, or one that this ncu does not know"
            + (f" ({said[1].strip()[:200]})" if said else ""),
            "nvidia-smi shows driver and GPU; an older or newer ncu may know it: "
            "https://developer.nvidia.com/nsight-compute",
        )
    return names


def choose(counters: str, names: set[str]) -> tuple[list[str], list[str]]:
    """Return the counters of a pass as this chip spells them, and those that it lacks."""
    chosen, lacking = [], []
    for counter in counters.split():
        spellings = counter.split("|")
        here = [spelling for spelling in spellings if spelling.partition(".")[0] in names]
        (chosen if here else lacking).append(here[0] if here else spellings[0])
    return chosen, lacking


def command(program: str, metrics: list[str]) -> list[str]:
    """Return the words of a pass over a program."""
    words = ["ncu", "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "all"]
    return [*words, "--metrics", ",".join(metrics), program, "--profile"]


def refuse(done: subprocess.CompletedProcess[str]) -> None:
    """Raise Refused if the profiler said that it could not work."""
    text = f"{done.stdout}\n{done.stderr}"
    if "ERR_NVGPUCTRPERM" in text:
        raise Refused("this host does not let this user read the counters (ERR_NVGPUCTRPERM)", ALLOW)
    said = re.search(r"==ERROR== (.+)", text)
    if said or done.returncode != 0:
        why = (said[1] if said else done.stderr).strip()[:200]
        raise Refused(f"ncu ended with {done.returncode}: {why}", code=EXIT_WRONG)


def export(done: subprocess.CompletedProcess[str], metrics: list[str]) -> str:
    """Return the rows of a pass. Raises Refused unless each launch has a finite figure for every counter.

    Around the rows stand the profiler's banners, with paths of this machine, and what the program prints.
    """
    refuse(done)
    rows = [line for line in done.stdout.splitlines() if line.startswith('"')]
    text = "\n".join([*rows, ""])
    if len(rows) < 2:
        raise Refused("ncu counted no launch", code=EXIT_WRONG)
    try:
        for launch in (
            launch for table in merge_dram.parse_export(text, Path("export of ncu"), units=UNITS) for launch in table
        ):
            for metric in metrics:
                name = merge_dram.RENAMED.get(metric, metric)
                if name not in launch.texts:
                    raise Refused(f"ncu: {metric} of {launch.kernel} is not among its rows", code=EXIT_WRONG)
                merge_dram.to_base(launch, name)
    except merge_dram.Stop as stop:
        raise Refused(str(stop).removesuffix(f": {merge_dram.PROFILE_AGAIN}"), code=EXIT_WRONG) from None
    return text


def take(ncu: str, program: str, names: set[str], run: Run = run_here) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Take all passes over a program on a chip that has the counters `names`.

    Returns (ending, command, rows) of each, and the counters that this chip lacks. Raises Refused.
    """
    taken, lacking = [], []
    for ending, counters in PASSES:
        metrics, missing = choose(counters, names)
        lacking += missing
        words = command(program, metrics)
        taken.append((ending, shlex.join(words), export(run([ncu, *words[1:]]), metrics)))
    return taken, lacking


# ---- command line ----------------------------------------------------------------------------------------------------


def find_program(which: str, root: Path) -> tuple[Path, str]:
    """Return a program and the name of its files, for a day's number or a path. Raises Refused."""
    if not which.isdigit():
        path = Path(which).resolve()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise Refused(f"{which}: no program to run: name one that is built, or a day's number", code=EXIT_WRONG)
        day = re.match(r"day[0-9]{2}", path.parent.name)
        return path, day[0] if day else path.name
    folder = f"day{int(which):02d}"
    for built in (root / "build" / preset for preset in GPU_PRESETS):
        listed = (built / "days.txt").read_text(encoding="utf-8").split() if (built / "days.txt").is_file() else []
        for line in listed:
            if line.startswith(f"{folder}-") and (built / line).is_file():
                return built / line, folder
    raise Refused(
        f"day {which} is not built for the GPU: it is in none of {', '.join(f'build/{one}' for one in GPU_PRESETS)}",
        "Build it first: cmake --preset gpu && cmake --build --preset gpu (or name a program)",
        EXIT_WRONG,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/profile.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", metavar="DAY|PROGRAM", help="a day's number, or a program that takes --profile")
    parser.add_argument("--out", type=Path, default=Path(), help="where the exports go (default: here)")
    options = parser.parse_args(arguments)
    try:
        ncu = find_ncu(find_nvcc())
        version, names = preflight(ncu)
        program, name = find_program(options.what, Path(__file__).resolve().parent.parent)
        print(f"ncu {version}: taking {len(PASSES)} passes of {name}, clocks as they are", flush=True)
        taken, lacking = take(ncu, str(program), names)
        options.out.mkdir(parents=True, exist_ok=True)
        for ending, _, rows in taken:
            with naming(options.out / f"{name}{ending}"):
                write_whole(options.out / f"{name}{ending}", rows)
            print(f"{options.out / name}{ending}: {len(rows.splitlines()) - 1} rows")
        if lacking:
            print(f"not counted, because this chip has no such counter: {', '.join(lacking)}")
        flush_stdout()
    except Refused as refused:
        print(refused, file=sys.stderr)
        return refused.code
    except OSError as error:
        say_failed(error)
        return EXIT_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main())
