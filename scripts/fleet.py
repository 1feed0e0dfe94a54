#!/usr/bin/env python3
"""Run a day on every GPU of a node or of a cluster, under the launcher that is there, and say which run is missing.

    mpirun --enable-recovery --map-by ppr:8:node scripts/fleet.py run --out fleet/together PROGRAM
    scripts/fleet.py check fleet/together

  run    one rank: runs PROGRAM --json on its GPU and writes the lines to a file of its own. The GPU is the one with the
         number of the rank on its node. A rank that is alone on its node takes every GPU that it sees, at once or with
         --solo one after another; so does a process without a launcher, which then checks as well if nothing failed
  check  the verdict on a folder: every rank that left no whole file is named. It looks at files alone, because a killed
         rank says nothing, and because mpirun --enable-recovery, without which one dead rank ends all, returns 0

Ranks start together through the barrier (fence) of PMIx, which mpirun serves to every process and Slurm to those of
srun --mpi=pmix; without it they start as the launcher starts them. Each file tells when its run began and how long it
took, so how far the runs overlapped is measured, and `check` says it.

A file has its name, day49-together-rank0003of0008-3bcf3a98-LAUNCH.jsonl (eight digits of the GPU's UUID), only when the
program ended with 0; until then, and if it died or hung, it ends in .part. --out is one folder per launch, on a file
system that all nodes share. The program's lines stay as they are; after the run record comes one `fleet` record
(scripts/schema/row.schema.json). Nodes are known by a digest of their boot id: --host adds the name.

It needs Linux and Python 3.9. Exit code: 0 all complete; 1 a run died, hung, failed a check or is missing; 2 bad usage.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources import plain_locale, run_as_text
from sync_common import flush_stdout, say_failed

EXIT_WRONG = 1
EXIT_USAGE = 2

RUN_LIMIT_S = 600  # of one run; the longest day takes half a minute on an H200
FENCE_LIMIT_S = 60  # of the ranks' start: a rank that is not there by then does not hold up the others
NO_DEVICE = "9999"  # a number that no GPU has: the program answers with the numbers that there are
NO_CARD = "GPU-00000000-0000-0000-0000-000000000000"  # what a program built for the CPU reports
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Stop(Exception):
    """Ends the process: the message goes to stderr, the code is the exit code."""

    def __init__(self, message: str, code: int = EXIT_WRONG):
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    """Write a line to stderr in one piece, because other ranks write there too."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# ---- which rank this is ----------------------------------------------------------------------------------------------


def short_digest(text: str) -> str:
    """Return 12 hex digits: enough to tell launches and nodes apart, and no way back to a name."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Place:
    """A process among those of its launch; `local_` counts on its node. Without a launcher it is 0 of 1."""

    launch: str
    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    launched: bool = False
    ends_all: bool = False  # the launcher ends all ranks when one fails


def find_place(environment: Mapping[str, str]) -> Place:
    """Return what Open MPI or Slurm told this process. mpirun inside a Slurm job counts as mpirun."""
    if "OMPI_COMM_WORLD_RANK" in environment:
        # The namespace is no more than mpirun's process id in one version and holds the host's name in another; the
        # key is random.
        known = ("PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports")
        launch = short_digest(" ".join(environment.get(name, "") for name in known))
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        numbers = (int(environment[f"OMPI_COMM_WORLD_{name}"]) for name in names)
        recovers = environment.get("OMPI_MCA_orte_enable_recovery") == "1"
        return Place(launch, *numbers, launched=True, ends_all=not recovers)
    # A batch script has a SLURM_LOCALID too, and is no task of srun.
    if "SLURM_STEP_NUM_TASKS" in environment and "SLURM_LOCALID" in environment:
        launch = short_digest(f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}")
        numbers = (int(environment[name]) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"))
        tasks = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
        return Place(launch, *numbers, tasks[int(environment["SLURM_NODEID"])], launched=True)
    return Place(short_digest(str(uuid.uuid4())))


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks of each node: "8(x2),4" gives [8, 8, 4]."""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def find_node() -> str:
    """Return what tells this node from others until it boots again, without its name."""
    try:
        return short_digest(BOOT_ID.read_text(encoding="ascii"))
    except OSError:  # some sandboxes have none
        return short_digest(str(uuid.getnode()))


class Fence:
    """The launcher's own barrier, or nothing where it offers none."""

    def __init__(self, place: Place):
        self._pmix = None
        self._ends_all = place.ends_all
        if not place.launched:
            return
        try:
            if "PMIX_RANK" not in os.environ:
                raise OSError("the launcher serves no PMIx (srun: --mpi=pmix)")
            self._pmix = ctypes.CDLL("libpmix.so.2")
            process = ctypes.create_string_buffer(512)  # pmix_proc_t: a name of 256 bytes and a number
            status = self._pmix.PMIx_Init(process, None, ctypes.c_size_t(0))
            if status != 0:
                raise OSError(f"PMIx_Init returns {status}")
        except OSError as error:
            self._pmix = None
            if place.rank == 0:
                say(f"no barrier: {error}; the ranks start as the launcher starts them")

    def start(self) -> None:
        """Wait until all ranks are here, but not forever for one that is lost."""
        self._wait(FENCE_LIMIT_S)
        if not self._ends_all:
            self._sign_off()

    def leave(self, limit_s: float) -> None:
        """Wait for the others if a rank that fails would end them: so it fails last."""
        self._wait(limit_s)
        self._sign_off()

    def _wait(self, limit_s: float) -> None:
        if self._pmix is None:
            return
        # In a thread, because nothing ends a call into a library from outside.
        everyone = (None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
        thread = threading.Thread(target=self._pmix.PMIx_Fence, args=everyone, daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            self._pmix = None
            say(f"not all ranks came to the barrier within {limit_s:g} s; going on without them")

    def _sign_off(self) -> None:
        if self._pmix is not None:
            self._pmix.PMIx_Finalize(None, ctypes.c_size_t(0))
        self._pmix = None


# ---- one run ---------------------------------------------------------------------------------------------------------


def count_devices(program: Path) -> int:
    """Return how many devices a day's program sees, by its own count. Raises Stop with its words if it sees none."""
    try:
        words = [program, "--check", "--device", NO_DEVICE]
        done = run_as_text(words, FENCE_LIMIT_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Stop(f"{program}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Stop(f"{program}: no answer within {FENCE_LIMIT_S} s: does nvidia-smi still answer?") from None
    found = re.search(r"valid is 0(?: to (\d+))?$", done.stderr, re.MULTILINE)
    if not found:
        raise Stop(f"{program}: is no day, or has no GPU to run on: {last_line(done.stderr)}")
    return int(found[1] or 0) + 1


def last_line(text: str) -> str:
    """Return the last line of what a program said."""
    return (text.strip().splitlines() or ["it says no more"])[-1]


def devices_of(place: Place, visible: int, solo: bool) -> list[int]:
    """Return the numbers of the devices that this process runs. Raises Stop if it cannot tell."""
    if place.local_ranks == 1:
        return list(range(visible))
    if solo:
        raise Stop(
            "--solo is for one process per node, which takes the node's GPUs in turn: mpirun --map-by ppr:1:node, "
            "srun --ntasks-per-node=1",
            EXIT_USAGE,
        )
    if place.local_rank < visible:
        return [place.local_rank]
    if visible == 1:  # the launcher gave each rank a device of its own; `check` finds two ranks on one card
        return [0]
    raise Stop(f"{place.local_ranks} ranks on this node, and it has {visible} devices: start one per GPU", EXIT_USAGE)


def file_name(fleet: dict[str, Any]) -> str:
    """Return what names a run before its day and card are known."""
    card = f"-card{fleet['card']}of{fleet['cards']}" if fleet["cards"] > 1 else ""
    return f"{fleet['mode']}-rank{fleet['rank']:04}of{fleet['ranks']:04}{card}"


def who(fleet: dict[str, Any]) -> str:
    """Name a run for people: "rank 3 of 8", counted from 0; "rank 0 of 1, card 1 of 2"."""
    card = f", card {fleet['card']} of {fleet['cards']}" if fleet["cards"] > 1 else ""
    return f"rank {fleet['rank']} of {fleet['ranks']}{card}"


def how_it_ended(code: int, errors: str) -> str:
    """Say what a program's exit code other than 0 means, with its last words."""
    if code >= 0:
        return f"failed with exit code {code}: {last_line(errors)}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    return f"killed by signal {-code} ({name})"


def run_card(command: list[Any], device: int, fleet: dict[str, Any], out: Path, limit_s: float) -> str | None:
    """Run a day on one device and write its file. Returns what went wrong, or None."""
    part = out / f"{file_name(fleet)}-{fleet['launch']}.part"
    began, begin = time.time(), time.monotonic()
    try:
        with part.open("wb") as lines:
            done = subprocess.run(
                [*command, "--json", "--device", str(device)],
                stdin=subprocess.DEVNULL,
                stdout=lines,
                stderr=subprocess.PIPE,
                env=plain_locale(),
                timeout=limit_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"hung, and was killed after {limit_s:g} s"
    except OSError as error:
        return f"{error.filename or part}: {error.strerror}"
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        return f"{how_it_ended(done.returncode, done.stderr.decode('utf-8', 'replace'))}; its lines are in {part}"

    head, _, rest = part.read_bytes().partition(b"\n")
    try:
        run = json.loads(head)
        day, card = int(run["day"]), re.fullmatch("GPU-([0-9a-f]{8})-.*", run["uuid"])[1]
    except (ValueError, KeyError, TypeError):
        return f"the first line is no run record: {head[:80]!r}"
    record = {"record": "fleet", "day": day, **fleet, "began": round(began, 3), "seconds": round(seconds, 3)}
    line = json.dumps(record, separators=(",", ":")).encode("ascii")
    try:
        part.write_bytes(b"\n".join([head, line, rest]))
        part.rename(out / f"day{day:02}-{file_name(fleet)}-{card}-{fleet['launch']}.jsonl")
    except OSError as error:
        return f"{part}: {error.strerror}"
    return None


def run(options: argparse.Namespace) -> int:
    """Run a day on the GPUs of this process and, without a launcher, check. Returns the exit code."""
    place = find_place(os.environ)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    others = [file.name for file in out.iterdir() if f"-{place.launch}." not in file.name]
    if others:
        raise Stop(f"{out}: holds {sorted(others)[0]} of another launch: name a folder for this one", EXIT_USAGE)
    fence = Fence(place)
    problems: list[str] = []
    code = EXIT_WRONG
    command = [options.program.resolve(), *(["--check"] if options.check else [])]
    devices: list[int] = []
    try:
        devices = devices_of(place, count_devices(command[0]), options.solo)
    except Stop as stop:
        problems.append(f"rank {place.rank} of {place.ranks}: {stop}")
        code = stop.code

    def measure(card: int) -> None:
        fleet = {"launch": place.launch, "mode": "solo" if options.solo else "together", "node": find_node()}
        if options.host:
            fleet["host"] = socket.gethostname()
        fleet.update(rank=place.rank, ranks=place.ranks, card=card, cards=len(devices))
        fleet["node_cards"] = len(devices) * place.local_ranks
        problem = run_card(command, devices[card], fleet, out, options.timeout)
        if problem:
            problems.append(f"{who(fleet)}, device {devices[card]}: {problem}")

    fence.start()
    with concurrent.futures.ThreadPoolExecutor(1 if options.solo else max(1, len(devices))) as pool:
        list(pool.map(measure, range(len(devices))))
    for problem in problems:
        say(problem)
    fence.leave(options.timeout + FENCE_LIMIT_S)
    if problems or place.launched:
        return code if problems else 0
    return check(options)


# ---- the verdict -----------------------------------------------------------------------------------------------------


def read_fleet(file: Path) -> dict[str, Any]:
    """Return a file's fleet record with the card's `uuid`. Raises Stop if it has none."""
    try:
        with file.open(encoding="utf-8") as lines:
            head, fleet = json.loads(lines.readline()), json.loads(lines.readline())
        if fleet["record"] != "fleet":
            raise ValueError
        return {**fleet, "uuid": head["uuid"]}
    except (ValueError, KeyError, TypeError):
        raise Stop(f"{file}: no fleet record in its second line: scripts/fleet.py run did not write it") from None


def missing(there: list[dict[str, Any]]) -> list[str]:
    """Return the names of the runs of a launch that are not among its fleet records."""
    cards_of = {fleet["rank"]: fleet["cards"] for fleet in there}
    found = {(fleet["rank"], fleet["card"]) for fleet in there}
    names = []
    for rank in range(there[0]["ranks"]):
        for card in range(cards_of.get(rank, 1)):
            if (rank, card) not in found:
                names.append(who({**there[0], "rank": rank, "card": card, "cards": cards_of.get(rank, 1)}))
    return names


def overlap(spans: Iterable[tuple[float, float]]) -> float:
    """Return the share of the time in which all of some runs were running, 0 to 1; each began, and took seconds."""
    begins, ends = zip(*((began, began + seconds) for began, seconds in spans))
    return max(0.0, (min(ends) - max(begins)) / (max(ends) - min(begins)))


def check(options: argparse.Namespace) -> int:
    """Say which runs of a folder are whole and which are missing. Returns the exit code."""
    out: Path = options.out
    launches: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(out.glob("*.jsonl")):
        fleet = read_fleet(file)
        launches.setdefault(fleet["launch"], []).append(fleet)
    problems = [] if launches else [f"{out}: no rank left a whole file"]
    for there in launches.values():
        problems += [f"{name}: no whole file: it died, hung or failed a check" for name in missing(there)]
        cards = [fleet["uuid"] for fleet in there if fleet["uuid"] != NO_CARD]
        for card in sorted({card for card in cards if cards.count(card) > 1}):
            ranks = ", ".join(str(fleet["rank"]) for fleet in there if fleet["uuid"] == card)
            problems.append(f"ranks {ranks} ran on one card, {card}: start one rank per GPU")
        share = overlap((fleet["began"], fleet["seconds"]) for fleet in there)
        at_once = f", all at once for {100 * share:.0f} % of the time" * (there[0]["mode"] == "together")
        print(f"{out}: {there[0]['mode']}, {len(there)} runs complete{at_once}")
    for part in sorted(out.glob("*.part")):
        problems.append(f"{part}: what a run without an end printed")
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
    return EXIT_WRONG if problems else 0


# ---- command line ----------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""

    def seconds(text: str) -> float:
        value = float(text)
        if not 0 < value <= 86400:
            raise argparse.ArgumentTypeError(f"{text} is not between 0 and a day")
        return value

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="run|check")
    running = commands.add_parser("run", help="run a day on the GPUs of this process")
    running.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of this launch, made if missing"
    )
    running.add_argument("--solo", action="store_true", help="a node's GPUs one after another (default: all at once)")
    running.add_argument("--host", action="store_true", help="record the node's name (default: a digest alone)")
    running.add_argument(
        "--timeout", type=seconds, default=RUN_LIMIT_S, metavar="S", help=f"limit of a run (default: {RUN_LIMIT_S})"
    )
    running.add_argument("--check", action="store_true", help="the program's checks alone, all that a CPU build can do")
    running.add_argument("program", type=Path, metavar="PROGRAM", help="a day's program")
    running.set_defaults(run=run)
    checking = commands.add_parser("check", help="name the runs that are missing in a folder")
    checking.add_argument("out", type=Path, metavar="DIR", help="what --out of `run` named")
    checking.set_defaults(run=check)
    options = parser.parse_args(arguments)
    try:
        code = options.run(options)
        flush_stdout()
        return code
    except Stop as stop:
        say(str(stop))
        return stop.code
    except OSError as error:
        say_failed(error)
        return EXIT_WRONG
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
