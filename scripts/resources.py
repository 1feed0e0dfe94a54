#!/usr/bin/env python3
"""Record and check what the days' kernels need: registers, spills, stack, shared memory, occupancy. Needs no GPU.

  show    compile and print the table
  record  compile and write resources.json and resources.txt
  check   compile and compare with what is recorded

Registers, spills, stack and static shared memory are what ptxas says (`nvcc -Xptxas -v`, with the flags of the build
line in each day's header). Occupancy is what the toolkit's own calculator makes of them (cuda_occupancy.h, asked by
occupancy.cpp). It also needs the size of the blocks. That is in no compiler's output: it is an argument of the launch,
which the host code computes. So the host code runs, as built for the CPU (build/cpu): asked to log its launches and to
skip every kernel, it makes all the launches of --check within seconds. `check` takes the recorded sizes where there is
no such build.

A day's day.json says, where it is the lesson, what every kernel was designed for: threads and dynamic shared memory
of a block, and how many blocks an SM then holds on some architectures. It also stands in for the log where that
is silent: for a kernel that the CPU build never launches (thread block clusters), and to tell which instance of a
template a launch from within another template is of.

`check` fails when a kernel spills registers, when it is not as designed, and when any figure differs from the recorded
one; `record` refuses the first two. Another version of nvcc may allocate otherwise, so with one only spills count.

Exit code: 0 all is well; 1 a difference, a spill, or something could not be compiled; 2 bad usage; 77 no nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from day_facts import BadFacts, find_facts
from sync_common import BadSource, read_source, replacing

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = 1  # of resources.json
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)  # those of occupancy.cpp
EXIT_FAILED = 1
EXIT_SKIPPED = 77

# The fields of a row that are compared, and their units. Spills are bytes a thread, as ptxas counts them.
FIELDS = {
    "registers": "a thread",
    "spill_stores": "bytes a thread",
    "spill_loads": "bytes a thread",
    "stack": "bytes a thread",
    "shared": "bytes a block, static",
    "barriers": "a block",
    "block": "threads in x, y, z",
    "dynamic_shared": "bytes a block",
    "blocks_per_sm": "resident blocks",
    "warps_per_sm": "resident warps",
    "occupancy_percent": "of the warps that an SM holds",
    "limited_by": "what keeps another block out",
}
# Bits of OCC_LIMIT_ in cuda_occupancy.h.
LIMITS = {1: "warps", 2: "registers", 4: "shared memory", 8: "blocks", 16: "barriers", 32: "virtual resources"}


class Problem(Exception):
    """What is wrong and the way out, for stderr; `code` is the exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILED):
        super().__init__(message)
        self.code = code


# ---- The days and their build lines ---------------------------------------------------------------------------------


def find_days(root: Path = ROOT, names: list[str] | None = None) -> list[Path]:
    """Return the sources of the days, or of the named ones, as paths below `root`.

    A name is a day's folder, its program, its number or the path of its source. Raises Problem for one that fits none.
    """
    days = sorted(path.relative_to(root) for path in root.glob("day*/*.cu"))
    if not days:
        raise Problem(f"{root} holds no day: there is no day*/*.cu")
    if not names:
        return days
    chosen = []
    for name in names:
        number = re.fullmatch(r"(?:day)?0*(\d+)", name)
        fits = [
            day
            for day in days
            if name.rstrip("/") in (day.parent.name, day.stem, day.as_posix())
            or (number and re.match(rf"day0*{number[1]}\b", day.parent.name))
            or Path(name).resolve() in (root / day, root / day.parent)
        ]
        if not fits:
            raise Problem(f"'{name}' is no day; there are {', '.join(day.parent.name for day in days)}")
        chosen += [day for day in fits if day not in chosen]
    return chosen


def build_line(source: Path) -> tuple[list[str], list[str]]:
    """Return (flags, libraries) of the `nvcc` line in a day's header, without -arch, -o and the file.

    Raises Problem if there is none: that line is what everybody builds the day with, so it is not guessed.
    """
    try:
        text = read_source(source)
    except BadSource as bad:
        raise Problem(str(bad)) from None
    for line in text.splitlines()[:100]:
        found = re.match(r"//.*\bnvcc (.*\.cu\b.*)", line)
        if not found:
            continue
        words = shlex.split(re.sub(r"\s-o\s+\S+", "", found[1]))
        words = [word for word in words if not word.startswith("-arch") and not word.endswith(".cu")]
        libraries = [word for word in words if re.match(r"-l(?!ineinfo$)", word)]
        return [word for word in words if word not in libraries], libraries
    raise Problem(f"{source}: its header has no line '// build: nvcc ... -o NAME NAME.cu' to take the flags from")


# ---- What other programs say -----------------------------------------------------------------------------------------


def plain_locale(**variables: str) -> dict[str, str]:
    """Return the environment, with `variables`, for a child whose output is read: figures and words of the C locale.

    Otherwise a profiler groups digits, and a compiler quotes and words its messages, as the user's locale says.
    """
    return {**os.environ, **variables, "LC_ALL": "C"}


def run_as_text(
    words: list, limit_s: float, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess:
    """Run a child to its end, whatever its exit code; its output as text.

    `env` is plain_locale() if not given. Raises OSError and subprocess.TimeoutExpired, for the caller's own words.
    """
    encoding = {"text": True, "encoding": "utf-8", "errors": "replace"}
    env = env or plain_locale()
    return subprocess.run(words, env=env, capture_output=True, timeout=limit_s, check=False, **encoding, **options)


# ---- The toolkit ----------------------------------------------------------------------------------------------------


def find_nvcc() -> str | None:
    """Return the path of nvcc: CUDACXX, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda; None if there is none.

    A CUDACXX that is set but empty says that there is none.
    """
    if "CUDACXX" in os.environ:
        names = shlex.split(os.environ["CUDACXX"])[:1]
    else:
        homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
        names = [*(f"{home}/bin/nvcc" for home in homes), "nvcc", "/usr/local/cuda/bin/nvcc"]
    return next(filter(None, map(shutil.which, names)), None)


def require_nvcc() -> str:
    """Return the path of nvcc. Raises Problem (77) if there is none."""
    nvcc = find_nvcc()
    if not nvcc:
        raise Problem(
            "skipped: there is no nvcc (CUDACXX, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda), and it takes one to "
            "know what a kernel needs. The CUDA Toolkit has it; no GPU is needed.",
            EXIT_SKIPPED,
        )
    return nvcc


def run(command: list, what: str, **options) -> subprocess.CompletedProcess:
    """Run a command; raises Problem with its last words if it cannot be started or fails."""
    options = {"check": False, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    options.setdefault("env", plain_locale())
    try:
        done = subprocess.run([str(word) for word in command], **options)
    except OSError as error:
        raise Problem(f"{what}: {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout or "").strip().splitlines()[-15:]
        shown = " ".join(shlex.quote(str(word)) for word in command)
        raise Problem("\n".join([f"{what}: exit code {done.returncode} from: {shown}", *words]))
    return done


def toolkit_version(nvcc: str) -> str:
    """Return nvcc's version with its build number, such as '13.0.88'."""
    said = run([nvcc, "--version"], "asking nvcc for its version").stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    if not found:
        raise Problem(f"{nvcc} --version names no version (V13.0.88 or the like):\n{said}")
    return found[1]


def known_architectures(nvcc: str) -> set[int]:
    """Return the architectures this nvcc compiles for, as 75, 90, ..."""
    said = run([nvcc, "--list-gpu-arch"], "asking nvcc for its architectures").stdout
    return {int(number) for number in re.findall(r"compute_(\d+)\b", said)}


# ---- ptxas ----------------------------------------------------------------------------------------------------------


@dataclass
class Kernel:
    """What ptxas says of one kernel on one architecture; units as in FIELDS."""

    name: str  # mangled; `name_kernels` makes it readable
    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0
    barriers: int | None = None  # up to CUDA 12.4, ptxas does not say


def parse_ptxas(output: str) -> list[Kernel]:
    """Return the kernels of `ptxas -v` output, in its order, with mangled names.

    A function that ptxas did not inline is listed below the kernel that calls it, and its spills count as the kernel's.
    Raises Problem if a kernel has no figures, as it would if ptxas worded them in another way.
    """
    kernels: list[Kernel] = []
    complete: set[str] = set()
    for line in output.splitlines():
        entry = re.search(r"Compiling entry function '(\S+)'", line)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        used = re.search(r"\bUsed (\d+) registers\b(.*)", line)
        if entry:
            kernels.append(Kernel(entry[1]))
        elif frame and kernels:
            kernel = kernels[-1]
            kernel.stack = max(kernel.stack, int(frame[1]))
            kernel.spill_stores += int(frame[2])
            kernel.spill_loads += int(frame[3])
        elif used and kernels:
            kernel = kernels[-1]
            complete.add(kernel.name)
            kernel.registers = int(used[1])
            for pattern, field in (
                (r"(\d+) barriers", "barriers"),
                (r"(\d+)(?:\+\d+)? bytes smem", "shared"),
                (r"(\d+) bytes cumulative stack size", "stack"),
            ):
                found = re.search(pattern, used[2])
                if found:
                    setattr(kernel, field, int(found[1]))
    lacking = [kernel.name for kernel in kernels if kernel.name not in complete]
    if lacking:
        raise Problem(f"ptxas gave no figures that can be read for {', '.join(lacking)}:\n{output}")
    return kernels


def demangle(names: list[str]) -> list[str]:
    """Return C++ names readable. Raises Problem where neither c++filt nor the toolkit's cu++filt is found."""
    for tool in ("c++filt", "cu++filt"):
        if names and shutil.which(tool):
            text = run([tool], "demangling", input="".join(f"{name}\n" for name in names)).stdout
            # cu++filt writes the type of a template's number, c++filt does not: foo<(int)4>
            # Functions of one file stand in a namespace whose name changes with its path: &_INTERNAL_1f_2_a_cu_3e::f
            text = re.sub(r"\b_INTERNAL_[0-9a-f]+_[0-9]+_\w+?_[0-9a-f]{8}::", "", text)
            return [re.sub(r"([<,] ?)\((?:int|unsigned int|bool)\)", r"\1", line) for line in text.splitlines()]
    if names:
        raise Problem("kernels cannot be named without c++filt (Debian, Ubuntu: apt-get install binutils)")
    return []


def short_name(readable: str) -> str:
    """Return a kernel's name without return type and parameters: 'copyVector<float4, 2>'."""
    name = readable.replace("(anonymous namespace)::", "")
    if name.endswith(")"):
        depth = 0
        for position in range(len(name) - 1, -1, -1):
            depth += (name[position] == ")") - (name[position] == "(")
            if depth == 0:
                name = name[:position]
                break
    return name[len("void ") :] if name.startswith("void ") else name


def symbol_of(name: str) -> str:
    """Return the bare name, without namespaces and template arguments: 'copyVector'."""
    return name.split("<", 1)[0].split("::")[-1].strip()


def name_kernels(kernels: list[Kernel]) -> None:
    """Replace mangled names by short ones; overloads, which would share one, keep their parameters."""
    readable = demangle([kernel.name for kernel in kernels])
    short = [short_name(name) for name in readable]
    for kernel, full, name in zip(kernels, readable, short):
        kernel.name = name if short.count(name) == 1 else full.replace("(anonymous namespace)::", "")


def compile_kernels(nvcc: str, source: Path, arch: int) -> list[Kernel]:
    """Compile one source to machine code for one architecture and return its kernels, sorted by name."""
    flags, _ = build_line(source)
    with tempfile.TemporaryDirectory() as scratch:
        command = [nvcc, *flags, f"-arch=sm_{arch}", "-cubin", "-Xptxas", "-v", "-o", f"{scratch}/a.cubin", source]
        done = run(command, f"compiling {source} for sm_{arch}", stderr=subprocess.STDOUT)
    kernels = parse_ptxas(done.stdout)
    if not kernels:
        raise Problem(f"{source}: nvcc compiled no kernel for sm_{arch}")
    name_kernels(kernels)
    return sorted(kernels, key=lambda kernel: kernel.name)


# ---- Launches -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchShape:
    """What of a launch decides occupancy: threads of a block in x, y, z, and bytes of dynamic shared memory."""

    block: tuple[int, int, int]
    dynamic_shared: int = 0


@dataclass(frozen=True)
class Design:
    """What a kernel was designed for: `blocks_per_sm` by architecture, and of those alone that it is meant for."""

    threads: int
    dynamic_shared: int
    blocks_per_sm: dict[int, int]

    def fits(self, shape: LaunchShape) -> bool:
        """Tell whether a launch is the designed one."""
        x, y, z = shape.block
        return (x * y * z, shape.dynamic_shared) == (self.threads, self.dynamic_shared)


def read_designs(root: Path) -> dict[str, dict[str, Design]]:
    """Return what the days' day.json say of kernels, by source and kernel, blanks left out. Raises Problem."""
    designs = {}
    try:
        for facts in find_facts(root):
            for name, design in facts.kernels.items():
                blocks = {int(arch): int(number) for arch, number in design["blocks_per_sm"].items()}
                as_designed = Design(int(design["threads"]), int(design["dynamic_shared"]), blocks)
                designs.setdefault(facts.source, {})[name.replace(" ", "")] = as_designed
    except BadFacts as bad:
        raise Problem(str(bad)) from None
    except (ValueError, TypeError, AttributeError) as error:
        form = '{"kernel<4>": {"threads": 256, "dynamic_shared": 0, "blocks_per_sm": {"75": 2}}}'
        raise Problem(f"{facts.folder}/day.json: kernels cannot be read ({error!r}); their form is {form}") from error
    return designs


LAUNCH = re.compile(
    r"launch (?P<name>.+) grid \(\d+, ?\d+, ?\d+\) block \((?P<block>\d+, ?\d+, ?\d+)\)(?:.* shared (?P<shared>\d+))?"
)


def parse_launches(log: str) -> dict[str, set[LaunchShape]]:
    """Return, from the CPU build's log, the shapes of each kernel's launches by name as the launch spells it."""
    launches: dict[str, set[LaunchShape]] = {}
    for line in log.splitlines():
        found = LAUNCH.search(line)
        if found:
            x, y, z = (int(number) for number in found["block"].split(","))
            shape = LaunchShape((x, y, z), int(found["shared"] or 0))
            launches.setdefault(found["name"].replace(" ", ""), set()).add(shape)
    return launches


def log_launches(program: Path, kernels: list[str]) -> dict[str, set[LaunchShape]]:
    """Run a day's CPU build with every kernel skipped, which takes seconds, and return what it launched.

    Its checks fail, since nothing was computed; what counts is that it went through. Raises Problem if it launched
    nothing.
    """
    skipped = ",".join(sorted({symbol_of(name) for name in kernels}))
    try:
        done = subprocess.run(
            [str(program), "--check"],
            env=plain_locale(CUDA_DAYS_CPU_LOG="1", CUDA_DAYS_CPU_SKIP=skipped),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Problem(f"{program} --check, run to see its launches: {error}") from error
    launches = parse_launches(done.stderr)
    if done.returncode not in (0, 1) or not launches:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise Problem(f"{program} --check logged {len(launches)} launches and ended with {done.returncode}:\n{last}")
    return launches


def shapes_of(
    kernel: str, kernels: list[str], launches: dict[str, set[LaunchShape]], design: Design | None = None
) -> list[LaunchShape]:
    """Return the shapes that a kernel is launched with, sorted; empty if it never is.

    A launch that spells this very kernel counts for it alone. Inside a template the arguments have other names
    (`copyVector<Vector, kLoads>`): such a launch counts for every kernel of that symbol that no launch spells out, or
    for the one that was designed for its shape. A design also stands in where there is no launch at all.
    """
    spelled = kernel.replace(" ", "")
    if spelled in launches:
        return sorted(launches[spelled], key=lambda shape: (shape.block, shape.dynamic_shared))
    others = {name.replace(" ", "") for name in kernels}
    shapes: set[LaunchShape] = set()
    for name, found in launches.items():
        if symbol_of(name) == symbol_of(kernel) and name not in others:
            shapes |= found
    if design and not shapes:
        return [LaunchShape((design.threads, 1, 1), design.dynamic_shared)]
    if design and any(map(design.fits, shapes)):
        shapes = set(filter(design.fits, shapes))
    return sorted(shapes, key=lambda shape: (shape.block, shape.dynamic_shared))


def has_dynamic_shared(source: Path) -> bool:
    """Tell whether a source uses dynamic shared memory, which ptxas does not count."""
    return bool(re.search(r"\bextern\s+__shared__", source.read_text(encoding="utf-8")))


def day_launches(root: Path, day: Path, build: Path, kernels: list[str]) -> dict[str, set[LaunchShape]]:
    """Return the launches of a day from its CPU build in `build`. Raises Problem if that is missing or too old."""
    program = build / day.parent / day.stem
    again = "build it with: scripts/lessons run (or: cmake --preset cpu && cmake --build build/cpu)"
    if not program.is_file():
        raise Problem(f"{program} is not there, and its launches tell the sizes of blocks; {again}")
    if program.stat().st_mtime < (root / day).stat().st_mtime:
        raise Problem(f"{program} is older than {day}, so its launches may be others; {again}")
    launches = log_launches(program, kernels)
    if has_dynamic_shared(root / day) and not any(
        shape.dynamic_shared for found in launches.values() for shape in found
    ):
        raise Problem(
            f"{day} uses dynamic shared memory, and {program} logs no launch with 'shared BYTES': without it the "
            "occupancy would be wrong"
        )
    return launches


# ---- Occupancy ------------------------------------------------------------------------------------------------------


def ask_occupancy(nvcc: str, questions: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Build occupancy.cpp with the toolkit and ask it; its header says what the numbers are, in and out."""
    source = Path(__file__).with_name("occupancy.cpp")
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch, "occupancy")
        # nvcc knows where the toolkit's headers are; the file itself is plain C++ and calls no CUDA library.
        run([nvcc, "-std=c++17", "-cudart", "none", "-o", program, source], f"compiling {source.name}")
        asked = "".join(" ".join(map(str, question)) + "\n" for question in questions)
        said = run([program], "asking for occupancy", input=asked).stdout
    answers = [tuple(int(word) for word in line.split()) for line in said.splitlines()]
    if len(answers) != len(questions):
        raise Problem(f"{source.name} answered {len(answers)} of {len(questions)} questions")
    return answers


# ---- The record -----------------------------------------------------------------------------------------------------


def measure(
    days: list[Path],
    architectures: list[int],
    *,
    root: Path = ROOT,
    nvcc: str | None = None,
    build: Path | None = None,
    recorded: dict | None = None,
    jobs: int = 2,
) -> tuple[dict, list[str]]:
    """Compile `days` (paths below `root`) for `architectures` and return (record, notes).

    The record is what resources.json holds: `schema`, `nvcc` (version), `architectures` (number: what an SM holds) and
    `rows`, one for each day, architecture, kernel and shape it is launched with; FIELDS has the units. The shapes come
    from the CPU build in `build`; where that cannot give them, from a `recorded` record if there is one, and a note
    says so. Without both, Problem. A kernel that is never launched has None for block and occupancy.
    """
    nvcc = nvcc or require_nvcc()
    build = build or root / "build" / "cpu"
    architectures = list(dict.fromkeys(architectures))
    notes: list[str] = []
    version = toolkit_version(nvcc)
    unknown = set(architectures) - known_architectures(nvcc)
    if unknown:
        raise Problem(f"nvcc {version} ({nvcc}) does not compile for {', '.join(f'sm_{n}' for n in sorted(unknown))}")

    designs = read_designs(root)
    pairs = [(day, arch) for day in days for arch in architectures]
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        compiled = list(pool.map(lambda pair: compile_kernels(nvcc, root / pair[0], pair[1]), pairs))

    launches: dict[Path, dict[str, set[LaunchShape]]] = {}
    for day in days:
        names = sorted({kernel.name for pair, kernels in zip(pairs, compiled) if pair[0] == day for kernel in kernels})
        try:
            launches[day] = day_launches(root, day, build, names)
        except Problem as problem:
            launches[day] = recorded_launches(recorded, day)
            if not launches[day]:
                raise
            notes.append(f"{day}: block sizes are the recorded ones: {problem}")

    rows: list[dict] = []
    questions: list[tuple[int, ...]] = []
    asking: list[dict] = []
    for (day, arch), kernels in zip(pairs, compiled):
        names = [kernel.name for kernel in kernels]
        for kernel in kernels:
            design = designs.get(day.as_posix(), {}).get(kernel.name.replace(" ", ""))
            for shape in shapes_of(kernel.name, names, launches[day], design) or [None]:
                row = {"day": day.as_posix(), "arch": arch, "kernel": kernel.name, **dict.fromkeys(FIELDS)}
                row.update({key: value for key, value in vars(kernel).items() if key in FIELDS})
                rows.append(row)
                if shape:
                    row.update(block=list(shape.block), dynamic_shared=shape.dynamic_shared)
                    threads = shape.block[0] * shape.block[1] * shape.block[2]
                    asking.append(row)
                    questions.append(
                        (arch, threads, kernel.registers, kernel.shared, shape.dynamic_shared, kernel.barriers or 0)
                    )

    # One question more for each architecture: what its SM holds comes with every answer.
    answers = ask_occupancy(nvcc, questions + [(arch, 32, 16, 0, 0, 0) for arch in architectures])
    for row, (blocks, warps, most_warps, _, _, _, limits) in zip(asking, answers):
        row["blocks_per_sm"] = blocks
        row["warps_per_sm"] = warps
        row["occupancy_percent"] = round(100 * warps / most_warps, 1)
        row["limited_by"] = [name for bit, name in LIMITS.items() if limits & bit]
    held = {
        str(arch): dict(zip(("warps", "registers", "shared", "blocks"), answer[2:6]))
        for arch, answer in zip(architectures, answers[len(questions) :])
    }
    flags = {day.as_posix(): " ".join(build_line(root / day)[0]) for day in days}
    return {"schema": SCHEMA, "nvcc": version, "flags": flags, "architectures": held, "rows": rows}, notes


def recorded_launches(record: dict | None, day: Path) -> dict[str, set[LaunchShape]]:
    """Return the launches of a day that a record knows, as `parse_launches` does."""
    launches: dict[str, set[LaunchShape]] = {}
    for row in (record or {}).get("rows", []):
        if row["day"] == day.as_posix() and row["block"]:
            shape = LaunchShape(tuple(row["block"]), row["dynamic_shared"])
            launches.setdefault(row["kernel"].replace(" ", ""), set()).add(shape)
    return launches


def spills(record: dict) -> list[str]:
    """Return a sentence for each kernel of a record that spills."""
    return [
        f"{row['day']}, sm_{row['arch']}, {row['kernel']}: spills {row['spill_stores']} bytes of stores and "
        f"{row['spill_loads']} bytes of loads a thread"
        for row in record["rows"]
        if row["spill_stores"] or row["spill_loads"]
    ]


def misfits(record: dict, designs: dict[str, dict[str, Design]]) -> list[str]:
    """Return a sentence for each kernel of a record that is not what it was designed for, or has no design.

    Only days that have designs are looked at, and blocks only on the architectures that a design names.
    """
    found = []
    for day, kernels in designs.items():
        rows = [row for row in record["rows"] if row["day"] == day]
        there = {row["kernel"].replace(" ", "") for row in rows}
        designed = f"{day.partition('/')[0]}/day.json"
        found += [f"{designed}: {day} has no kernel {name}: take it out" for name in kernels if name not in there]
        found += [f"{day}, {name}: has no design: add it to {designed}" for name in sorted(there - kernels.keys())]
        for row in rows:
            design = kernels.get(row["kernel"].replace(" ", ""))
            if design is None:
                continue
            where = f"{day}, sm_{row['arch']}, {row['kernel']}"
            blocks = design.blocks_per_sm.get(row["arch"])
            if not row["block"] or not design.fits(LaunchShape(tuple(row["block"]), row["dynamic_shared"])):
                launched = f"{'x'.join(map(str, row['block']))} and {row['dynamic_shared']}" if row["block"] else "none"
                found.append(
                    f"{where}: designed for {design.threads} threads and {design.dynamic_shared} bytes of dynamic "
                    f"shared memory a block, launched with {launched}"
                )
            elif blocks is not None and blocks != row["blocks_per_sm"]:
                found.append(
                    f"{where}: designed for {blocks} blocks an SM, and {row['blocks_per_sm']} fit: {row['registers']} "
                    f"registers a thread, {row['shared'] + row['dynamic_shared']} bytes of shared memory a block, "
                    f"limited by {', '.join(row['limited_by'])}"
                )
    return found


def differences(recorded: dict, new: dict) -> list[str]:
    """Return a sentence for each figure of `new` that is not the recorded one: day, architecture, kernel, field."""

    def indexed(record: dict) -> dict[tuple, dict]:
        rows: dict[tuple, dict] = {}
        for row in record["rows"]:
            key = (row["day"], row["arch"], row["kernel"])
            while key in rows:  # another shape of the same kernel
                key += ("another block size",)
            rows[key] = row
        return rows

    def shown(value) -> str:
        if isinstance(value, list):
            return ("x" if value and isinstance(value[0], int) else ", ").join(map(str, value))
        return "none" if value is None else str(value)

    before, after = indexed(recorded), indexed(new)
    found = []
    for day in sorted({*recorded["flags"], *new["flags"]}):
        old, now = recorded["flags"].get(day), new["flags"].get(day)
        if old != now:
            found.append(f"{day}: flags: recorded {shown(old)}, now {shown(now)}")
    for arch, held in new["architectures"].items():
        if held != recorded["architectures"].get(arch):
            found.append(f"sm_{arch}: an SM holds: recorded {recorded['architectures'].get(arch)}, now {held}")
    for key in sorted({*before, *after}):
        where = f"{key[0]}, sm_{key[1]}, {', '.join(key[2:])}"
        if key not in after:
            found.append(f"{where}: recorded, but it is not there any more")
        elif key not in before:
            found.append(f"{where}: not recorded")
        else:
            found += [
                f"{where}: {field}: recorded {shown(before[key][field])}, now {shown(after[key][field])} ({unit})"
                for field, unit in FIELDS.items()
                if before[key][field] != after[key][field]
            ]
    return found


def as_json(record: dict) -> str:
    """Return the text of resources.json: one row a line, so that a difference shows as one."""
    head = {key: value for key, value in record.items() if key != "rows"}
    lines = json.dumps(head, indent=1)[:-2]  # without the closing brace
    rows = ",\n".join("  " + json.dumps(row) for row in record["rows"])
    return f'{lines},\n "rows": [\n{rows}\n ]\n}}\n'


def as_text(record: dict) -> str:
    """Return the record as a table for people, one for each day and architecture."""
    lines = [
        f"What the kernels need, by nvcc {record['nvcc']}: what ptxas says, and the occupancy that the toolkit's own",
        "calculator makes of it. Compiled, not run: there is no time in here and it took no GPU.",
    ]
    columns = ("registers", "spills", "stack", "shared", "dynamic", "block", "blocks/SM", "warps/SM", "occupancy")
    for day, flags in record["flags"].items():
        for arch, holds in record["architectures"].items():
            rows = [row for row in record["rows"] if row["day"] == day and row["arch"] == int(arch)]
            width = max((len(row["kernel"]) for row in rows), default=6)
            lines += [
                "",
                f"{day}: nvcc {flags} -arch=sm_{arch}",
                f"sm_{arch}; an SM holds {holds['warps']} warps, {holds['blocks']} blocks, {holds['registers']} "
                f"registers, {holds['shared'] // 1024} KiB of shared memory",
                "  ".join(["kernel".ljust(width), *(name.rjust(9) for name in columns), "limited by"]),
                "  ".join(
                    ["".ljust(width)]
                    + [unit.rjust(9) for unit in ("/thread", "B/thread", "B/thread", "B/block", "B/block")]
                ),
            ]
            for row in rows:
                block, spilled = row["block"], row["spill_stores"] + row["spill_loads"]
                cells = [row["registers"], spilled, row["stack"], row["shared"]]
                if block:
                    size = re.sub(r"(x1)+$", "", "x".join(map(str, block)))
                    cells += [row["dynamic_shared"], size, row["blocks_per_sm"], row["warps_per_sm"]]
                    cells += [f"{row['occupancy_percent']:.1f} %"]
                else:
                    cells += ["-"] * 5
                text = [str(cell).rjust(max(9, len(name))) for cell, name in zip(cells, columns)]
                reason = ", ".join(row["limited_by"]) if block else "never launched by --check"
                lines.append("  ".join([row["kernel"].ljust(width), *text, reason]))
    return "\n".join(lines) + "\n"


def read_record(folder: Path) -> dict | None:
    """Return folder/resources.json, or None if there is none. Raises Problem if it cannot be read as one."""
    path = folder / "resources.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA:
            raise Problem(f"{path}: schema {record['schema']}; this script reads {SCHEMA}")
        rows = [{"day", "arch", "kernel", *FIELDS} - set(row) for row in record["rows"]]
        if any(rows) or not rows or not all(key in record for key in ("nvcc", "flags", "architectures")):
            raise KeyError("a field is missing")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(
            f"{path} is not a record of this script ({error!r}); take it from git, or record again"
        ) from error
    return record


def write_record(folder: Path, record: dict) -> None:
    """Write resources.json and resources.txt, both complete before either takes its name."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "resources.txt") as text, replacing(folder / "resources.json") as data:
        text.write_bytes(as_text(record).encode("utf-8"))
        data.write_bytes(as_json(record).encode("utf-8"))


# ---- The command line -----------------------------------------------------------------------------------------------


def check(folder: Path, root: Path, nvcc: str, build: Path, jobs: int) -> int:
    """Compare a fresh measurement with folder/resources.*, print what differs, and return the exit code."""
    shown = folder.relative_to(root) if folder.is_relative_to(root) else folder
    recorded = read_record(folder)
    again = "python3 scripts/resources.py record --arch "
    if recorded is None:
        raise Problem(f"{shown}/resources.json is not there; record it: {again}{' '.join(map(str, ARCHITECTURES))}")
    again += " ".join(recorded["architectures"]) + ("" if folder == root / "profile/t4" else f" --out {folder}")

    version = toolkit_version(nvcc)
    same = version == recorded["nvcc"]
    known = known_architectures(nvcc)
    architectures = [int(arch) for arch in recorded["architectures"] if same or int(arch) in known]
    new, notes = measure(
        find_days(root), architectures, root=root, nvcc=nvcc, build=build, recorded=recorded, jobs=jobs
    )
    for note in notes:
        print(f"note: {note}")
    failures = spills(new)
    if same:
        failures += misfits(new, read_designs(root)) + differences(recorded, new)
        text = folder / "resources.txt"
        if not text.is_file() or text.read_text(encoding="utf-8") != as_text(recorded):
            failures.append(f"{shown}/resources.txt is not the table of {shown}/resources.json")
    else:
        left_out = len(recorded["architectures"]) - len(architectures)
        kept = {**recorded, "rows": [row for row in recorded["rows"] if row["arch"] in architectures]}
        print(
            f"note: nvcc is {version}, recorded was {recorded['nvcc']}: another version may allocate otherwise, so the "
            f"{len(differences(kept, new))} figures that differ are no error, only spills would be"
            + (f"; {left_out} recorded architectures are unknown to it" if left_out else "")
        )
    if failures:
        print("\n".join(failures), file=sys.stderr)
        print(f"{len(failures)} failed. If the change is meant, record it: {again}", file=sys.stderr)
        return EXIT_FAILED
    kernels = {(row["day"], row["kernel"]) for row in new["rows"]}
    print(
        f"{len(kernels)} kernels on {', '.join(f'sm_{arch}' for arch in architectures)}: no spills"
        + (f", and all as {shown}/resources.json has it" if same else "")
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="show | record | check")
    for name, text in (("show", "print the table"), ("record", "write it"), ("check", "compare with what is written")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
        command.add_argument("--nvcc", help="the compiler (default: as CMake finds it)")
        command.add_argument("--build", type=Path, help="the CPU build, for the launches (default: build/cpu)")
        command.add_argument("--jobs", type=int, default=2, help="compilations at a time (default: 2)")
        if name != "check":
            command.add_argument(
                "--arch", type=int, nargs="+", choices=ARCHITECTURES, default=[75], help="default: 75, the T4"
            )
        if name == "show":
            command.add_argument("--day", nargs="+", help="which days: folder, program or number (default: all)")
        else:
            command.add_argument("--out", type=Path, help="the folder of resources.* (default: profile/t4)")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    build = options.build.resolve() if options.build else root / "build" / "cpu"
    try:
        nvcc = options.nvcc or require_nvcc()
        if options.command == "show":
            recorded = read_record(root / "profile/t4")
            days = find_days(root, options.day)
            record, notes = measure(
                days, options.arch, root=root, nvcc=nvcc, build=build, recorded=recorded, jobs=options.jobs
            )
            for note in notes:
                print(f"note: {note}", file=sys.stderr)
            print(as_text(record), end="")
            return 0
        folder = options.out.resolve() if options.out else root / "profile/t4"
        if options.command == "check":
            return check(folder, root, nvcc, build, options.jobs)
        record, _ = measure(find_days(root), options.arch, root=root, nvcc=nvcc, build=build, jobs=options.jobs)
        spilled, misfitting = spills(record), misfits(record, read_designs(root))
        if spilled:
            advice = "Nothing is recorded: give the kernel fewer live values, or smaller blocks more registers."
            raise Problem("\n".join([*spilled, advice]))
        if misfitting:
            advice = "Nothing is recorded: change the kernel, or its entry in day.json if another design is meant."
            raise Problem("\n".join([*misfitting, advice]))
        write_record(folder, record)
        print(f"{len(record['rows'])} rows written to {folder}/resources.json and resources.txt")
        return 0
    except Problem as problem:
        print(f"scripts/resources.py: {problem}", file=sys.stderr)
        return problem.code


if __name__ == "__main__":
    sys.exit(main())
