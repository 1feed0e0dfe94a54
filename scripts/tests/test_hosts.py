"""`scripts/lessons run` on hosts that went wrong, played by stand-ins: what it says, what it builds for, where it runs.

The stand-ins are all that PATH holds: an nvcc that "compiles" scripts/gpus.cu into a script which prints what the CUDA
runtime of that host would say, the nvidia-smi of that host, and a cmake that makes two days of one line each.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import SOURCE_DIR
from test_configure import Configuration

SMI = Path(__file__).parent / "data" / "hosts"
COREUTILS = "bash sh env timeout sed paste sort grep head tail cat rm mkdir cp dirname readlink nproc chmod sleep make"

# Its output is read, so it must be asked in English.
NVCC = """#!/bin/sh
[ "$LC_ALL" = C ] || {{ echo "asked under LC_ALL=$LC_ALL" >&2; exit 3; }}
case "$*" in
  --version) echo "Cuda compilation tools, release {release}, V{release}.61" ;;
  --list-gpu-arch) for x in {architectures}; do echo compute_$x; done ;;
  "-o build/gpus scripts/gpus.cu")
    {refusal}
    printf '%s\\n' '#!/bin/sh' 'cat "{facts}"; exit {code}' >build/gpus
    chmod +x build/gpus ;;
  *) echo "unexpected: $*" >&2; exit 4 ;;
esac
"""
CMAKE = """#!/bin/sh
case "$*" in
  --version) echo "cmake version 3.31.6" ;;
  --preset*)
    mkdir -p "build/$2/day01-a" "build/$2/day02-b"
    echo "$@" >"build/$2/configured"
    printf '%s\\n' day01-a/a day02-b/b >"build/$2/days.txt"
    cat "$STAND_INS/left_out" >"build/$2/left_out.txt" 2>/dev/null || true ;;
  --build*)
    broken=$(cat "$STAND_INS/broken" 2>/dev/null)
    for day in day01-a/a day02-b/b; do
      case "$*" in *"--target days" | *"--target ${day%/*}") ;; *) continue ;; esac
      echo "Building $day"
      if [ "$broken" = "$day" ]; then
        echo "$day.cu(7): error: expected a ;"
        failed=2
      else
        cp "$STAND_INS/day" "$2/$day"
        chmod +x "$2/$day"
      fi
    done
    exit ${failed:-0} ;;
esac
"""
ARCHITECTURES = {
    "11.2": "35 37 50 52 53 60 61 62 70 72 75 80 86",
    "11.8": "35 37 50 52 53 60 61 62 70 72 75 80 86 87 89 90",
    "12.0": "50 52 53 60 61 62 70 72 75 80 86 87 89 90",
    "12.4": "50 52 53 60 61 62 70 72 75 80 86 87 89 90",
    "13.0": "75 80 86 87 88 89 90 100 110 103 120 121",
}


@dataclass
class Card:
    """A card as the CUDA runtime shows it."""

    name: str
    capability: str
    state: str = "cudaSuccess"

    @property
    def sm(self):
        return self.capability.replace(".", "")

    def line(self, index):
        return f"gpu\t{index}\t{self.capability}\t0000:{index + 1:02x}:00.0\tGPU-{index}\t{self.state}\t{self.name}\n"

    def words(self, index):
        return f"{self.name} (sm_{self.sm}, PCI 0000:{index + 1:02x}:00.0, GPU-{index})"


T4, V100 = Card("Tesla T4", "7.5"), Card("Tesla V100-SXM2-16GB", "7.0")
RTX4090, GTX1050 = Card("NVIDIA GeForce RTX 4090", "8.9"), Card("NVIDIA GeForce GTX 1050 Ti", "6.1")
H100, RTX5090 = Card("NVIDIA H100", "9.0"), Card("NVIDIA GeForce RTX 5090", "12.0")
NO_DRIVER = ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version")
NO_DEVICE = ("cudaErrorNoDevice", "no CUDA-capable device is detected")
MISMATCH = ("cudaErrorSystemDriverMismatch", "system has unsupported display driver / cuda driver combination")
GNU = "crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!"
CLANG = "crt/host_config.h:151:2: error: unsupported clang version! clang version must be less than 19 and more"


@dataclass
class Host:
    """A host: its toolkit (None: no nvcc), driver, cards and nvidia-smi, and what `lessons run` makes of it."""

    says: list[str]  # in this order; {nvcc} is the path of nvcc
    toolkit: str | None = "13.0"
    driver: str = "13.0"  # the newest CUDA version that it knows; 0.0: none is visible
    cards: tuple[Card, ...] = ()
    error: tuple[str, str] = NO_DEVICE  # why the runtime lists no card
    code: int | None = None  # of the runtime's answer, where that is not what the cards make it
    smi: str | None = None  # a folder of SMI, or the body of a script; None: there is no nvidia-smi
    architectures: str | None = None  # what is built for, where there is a card to run on
    device: int = 0  # the one that the days run on
    refusal: str = ""  # what nvcc says instead of compiling
    tools: tuple[str, ...] = ()  # programs that are there besides
    environment: dict[str, str] = field(default_factory=dict)
    never: tuple[str, ...] = ()  # what must not be said


DAYS_START = "the days start at sm_75 (Turing: Tesla T4, RTX 20)."
LIST_T4 = 'echo "GPU 0: Tesla T4 (UUID: GPU-0)"'
TURING = f"Not used: {GTX1050.words(1)}: {DAYS_START}"
HOSTS = {
    "a T4": Host([f"On the GPU: {T4.words(0)}\n"], cards=(T4,), architectures="75", smi=LIST_T4),
    "driver 470 and a toolkit that fits": Host(
        [f"On the GPU: {T4.words(0)}"], toolkit="11.8", driver="11.4", cards=(T4,), smi="smi470", architectures="75"
    ),
    "driver 470 and a toolkit that is too new": Host(
        [
            "No GPU is used: the driver knows CUDA up to 11.4, and {nvcc} is of CUDA 13.0, which is too new for it; "
            "nvidia-smi lists Tesla T4.",
            "Update the NVIDIA driver, or build with CUDA 11.8 (https://developer.nvidia.com/cuda-toolkit-archive",
        ],
        driver="11.4",
        error=NO_DRIVER,
        smi="smi470",
    ),
    "driver 470 and no nvcc": Host(
        ["No GPU is used: there is one (Tesla T4), but no nvcc, which compiles for it.", "export CUDACXX="],
        toolkit=None,
        smi="smi470",
    ),
    "a driver of CUDA 12.4 and a toolkit of 13.0": Host(
        ["the driver knows CUDA up to 12.4, and {nvcc} is of CUDA 13.0", "or build with CUDA 12.4"],
        driver="12.4",
        error=NO_DRIVER,
    ),
    "a driver that is older than any toolkit that the days take": Host(
        ["the driver knows CUDA up to 10.2", "Update the NVIDIA driver.\n"], driver="10.2", error=NO_DRIVER
    ),
    "NVML mismatch": Host(
        [
            f"No GPU is used: the CUDA runtime lists none ({MISMATCH[0]}: {MISMATCH[1]}), and nvidia-smi says "
            '"Failed to initialize NVML: Driver/library version mismatch NVML library version: 550.54" (exit code 18).',
            "older part still runs: reboot.",
        ],
        driver="12.4",
        error=MISMATCH,
        smi="sminvml",
    ),
    "NVML mismatch and no nvcc": Host(
        [
            'nvidia-smi says "Failed to initialize NVML: Driver/library version mismatch',
            ", and no nvcc",
            "older part still runs: reboot.",
        ],
        toolkit=None,
        smi="sminvml",
    ),
    "a card to compute on and one for the display": Host(
        [f"On the GPU: {RTX4090.words(0)}", TURING], cards=(RTX4090, GTX1050), smi="smimixed", architectures="89"
    ),
    "the display's card counted first": Host(
        [f"On the GPU: {RTX4090.words(1)}", f"Not used: {GTX1050.words(0)}: {DAYS_START}"],
        cards=(GTX1050, RTX4090),
        smi="smimixed",
        architectures="89",
        device=1,
    ),
    "the display's card chosen": Host(
        [
            f"Not used: {GTX1050.words(0)}: {DAYS_START}",
            "No GPU is used: the days can use none of these cards.",
            "CUDA_VISIBLE_DEVICES is '1': unset it if it hides another card.",
        ],
        cards=(GTX1050,),
        smi="smimixed",
        environment={"CUDA_VISIBLE_DEVICES": "1"},
    ),
    "CUDA_VISIBLE_DEVICES hides all": Host(
        [
            "the CUDA runtime lists none (cudaErrorNoDevice: no CUDA-capable device is detected), and nvidia-smi lists "
            "NVIDIA GeForce RTX 4090, NVIDIA GeForce GTX 1050 Ti.",
            "CUDA_VISIBLE_DEVICES is '': unset it",
        ],
        smi="smimixed",
        environment={"CUDA_VISIBLE_DEVICES": ""},
    ),
    "a V100": Host(
        [f"Not used: {V100.words(0)}: {DAYS_START}", "No GPU is used"],
        toolkit="12.4",
        cards=(V100,),
        smi="smivolta",
        never=("-arch", "export CUDACXX"),
    ),
    "a T4 and an H100": Host(
        [
            f"On the GPU: {T4.words(0)}",
            f"Not used: {H100.words(1)}: one is enough; export CUDA_VISIBLE_DEVICES=GPU-1 chooses it.",
        ],
        cards=(T4, H100),
        architectures="75;90a",
    ),
    "a card that is taken and one that is free": Host(
        [
            f"On the GPU: {H100.words(1)}",
            "Not used: NVIDIA H100 (sm_90, PCI 0000:01:00.0, GPU-0): "
            "the CUDA runtime cannot use it now (cudaErrorDevicesUnavailable)",
        ],
        cards=(Card(H100.name, "9.0", "cudaErrorDevicesUnavailable"), H100),
        architectures="90a",
        device=1,
    ),
    "a GPU without nvidia-smi": Host([f"On the GPU: {T4.words(0)}"], cards=(T4,), architectures="75"),
    "an nvcc of 11.2": Host(
        [f"Not used: {T4.words(0)}: CUDA 11.2 ({{nvcc}}) is too old, the days need 11.8: a newer one is at https"],
        toolkit="11.2",
        cards=(T4,),
    ),
    "an H100 and CUDA 11.8": Host(
        [f"Not used: {H100.words(0)}: CUDA 11.8 ({{nvcc}}) is too old, from sm_90 on the days need 12.0: a newer one"],
        toolkit="11.8",
        cards=(H100,),
    ),
    "a card that this nvcc does not know": Host(
        [f"On the GPU: {T4.words(1)}", f"{RTX5090.words(0)}: CUDA 12.4 ({{nvcc}}) does not know sm_120: a newer one"],
        toolkit="12.4",
        cards=(RTX5090, T4),
        architectures="75",
        device=1,
    ),
    "neither GPU nor nvcc": Host(
        ["No GPU is used: there is no nvidia-smi, and no nvcc, which compiles for it.", "install the NVIDIA driver"],
        toolkit=None,
    ),
    "an nvcc and no driver": Host(
        ["No GPU is used: no NVIDIA driver is visible, and there is no nvidia-smi.", "--gpus all"],
        driver="0.0",
        error=NO_DRIVER,
    ),
    "a container without libcuda": Host(
        ["no NVIDIA driver is visible, and nvidia-smi lists Tesla T4.", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
        driver="0.0",
        error=NO_DRIVER,
        smi=LIST_T4,
    ),
    "nvidia-smi without any GPU": Host(
        [
            "the CUDA runtime lists none (cudaErrorNoDevice",
            'nvidia-smi says "No devices found." (exit code 6)',
            "reboot",
        ],
        smi="echo No devices found.; exit 6",
    ),
    "nvidia-smi that lists nothing": Host(["nvidia-smi lists no GPU.", "reboot"], smi="exit 0"),
    "nvidia-smi that hangs": Host(
        ["nvidia-smi was killed or gave no answer within 20 s (exit code 124).", "reboot"],
        smi="sleep 600",
    ),
    "nvidia-smi that is killed": Host(
        ["nvidia-smi was killed or gave no answer within 20 s (exit code 137).", "reboot"],
        smi="kill -9 $$",
    ),
    "a runtime that dies": Host(
        ["the CUDA runtime lists none (build/gpus ended with exit code 139), and nvidia-smi lists Tesla T4.", "reboot"],
        driver="",
        code=139,
        smi=LIST_T4,
    ),
    "WSL without a driver": Host(
        ["no NVIDIA driver is visible", "This is WSL: update the NVIDIA driver of Windows"],
        driver="0.0",
        error=NO_DRIVER,
        environment={"WSL_DISTRO_NAME": "Debian"},
    ),
    "WSL with a driver that is too old": Host(
        ["the driver knows CUDA up to 12.4", "Update the NVIDIA driver of Windows, or build with CUDA 12.4"],
        driver="12.4",
        error=NO_DRIVER,
        environment={"WSL_DISTRO_NAME": "Debian"},
    ),
    "a host compiler that is too new": Host(
        [
            "there is one (Tesla T4), but {nvcc} refuses its host compiler: unsupported GNU version! "
            "gcc versions later than 13 are not supported.",
            "apt-get install g++-13; then export CUDAHOSTCXX=g++-13.",
        ],
        smi=LIST_T4,
        refusal=GNU,
    ),
    "a host compiler that is too new, and no nvidia-smi": Host(
        ["there is no nvidia-smi, and {nvcc} refuses its host compiler", "CUDAHOSTCXX=g++-13. ", "--gpus all"],
        refusal=GNU,
    ),
    "a host compiler that is too new beside one that is not": Host(
        ["later than 13", "One that it takes is here: export CUDAHOSTCXX=g++-12."],
        smi=LIST_T4,
        refusal=GNU,
        tools=("g++-12", "g++-14"),
    ),
    "a clang that is too new": Host(
        ["unsupported clang version! clang version must be less than 19", "export CUDAHOSTCXX=/path/to/g++-NN."],
        smi=LIST_T4,
        refusal=CLANG,
    ),
    "an nvcc that compiles nothing": Host(
        [
            "there is one (Tesla T4), but {nvcc} compiles nothing here: nvcc fatal: no input file.",
            "CUDACXX",
        ],
        smi=LIST_T4,
        refusal="nvcc fatal: no input file",
    ),
    "a CUDACXX that is not there": Host(
        ["there is one (Tesla T4), but CUDACXX is '/no/nvcc', which is no program."],
        smi=LIST_T4,
        environment={"CUDACXX": "/no/nvcc"},
    ),
}

DAY = """#!/bin/sh
echo "ran ${0##*/} with $*"
name=${0##*/}
code=$(cat "$STAND_INS/$name-code" 2>/dev/null || echo 0)
if [ "$3" = --json-file ] && [ "$code" != 77 ]; then echo "lines of $name" >"$4"; fi
exit "$code"
"""


class Checkout:
    """A folder, with a blank in its path, that holds what `scripts/lessons run` needs, and a PATH of stand-ins."""

    def __init__(self, folder):
        self.root = folder / "a checkout"
        self.tools = folder / "tools"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("lessons", "choose_gpu.sh", "gpus.cu"):
            shutil.copy(SOURCE_DIR / "scripts" / name, self.root / "scripts")
        self.tools.mkdir()
        for name in COREUTILS.split():
            (self.tools / name).symlink_to(shutil.which(name))
        (self.tools / "python3").symlink_to(sys.executable)
        self.add("g++", "echo /lib/found.so")
        self.add("cmake", CMAKE)
        self.add("day", DAY)
        # Waits a tenth as long: `timeout -k 5 20 COMMAND...`.
        (self.tools / "timeout").unlink()
        self.add("timeout", f'shift 3; exec {shutil.which("timeout")} -k 5 2 "$@"')

    def add(self, name, script):
        path = self.tools / name
        path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def play(self, host):
        """Put the stand-ins of a host there."""
        if host.toolkit:
            facts = [f"runtime\t{host.toolkit}\n", f"driver\t{host.driver}\n"] if host.driver else []
            facts += [card.line(index) for index, card in enumerate(host.cards)]
            if host.driver and not host.cards:
                facts.append("\t".join(["error", *host.error]) + "\n")
            (self.tools / "facts").write_text("".join(facts))
            code = host.code
            if code is None:
                code = 0 if any(card.state == "cudaSuccess" for card in host.cards) else 77
            self.add(
                "nvcc",
                NVCC.format(
                    release=host.toolkit,
                    architectures=ARCHITECTURES[host.toolkit],
                    refusal=f"echo '{host.refusal}' >&2; exit 1" if host.refusal else "",
                    facts=self.tools / "facts",
                    code=code,
                ),
            )
        if host.smi and (SMI / host.smi / "nvidia-smi").is_file():
            shutil.copy(SMI / host.smi / "nvidia-smi", self.tools)
        elif host.smi:
            self.add("nvidia-smi", host.smi)
        for name in host.tools:
            self.add(name, "exit 0")

    def run(self, **environment):
        variables = {"PATH": str(self.tools), "STAND_INS": str(self.tools), "LC_ALL": "de_DE.UTF-8", **environment}
        return subprocess.run(
            ["bash", self.root / "scripts" / "lessons", "run"],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.mark.parametrize("name", HOSTS)
def test_a_host(checkout, name):
    host = HOSTS[name]
    checkout.play(host)
    nowhere = {} if host.toolkit else {"CUDACXX": ""}  # this machine may have one in /usr/local/cuda
    done = checkout.run(**{**nowhere, **host.environment})
    at = 0
    for fragment in host.says:
        fragment = fragment.replace("{nvcc}", str(checkout.tools / "nvcc"))
        assert fragment in done.stdout[at:], done.stdout
        at = done.stdout.index(fragment, at)
    for fragment in host.never:
        assert fragment not in done.stdout
    if host.architectures:
        configured = (checkout.root / "build/gpu/configured").read_text()
        assert f"-DCMAKE_CUDA_ARCHITECTURES={host.architectures}\n" in configured
        assert f"-DCUDA_DAYS_NVCC={checkout.tools / 'nvcc'} " in configured
        assert f"ran a with --device {host.device} --json-file build/gpu/day01-a.jsonl\n" in done.stdout
        assert "No GPU" not in done.stdout
    else:
        assert "Going on without one: the CPU checks the days.\n" in done.stdout
        assert "ran a with --check\n" in done.stdout
        assert "On the GPU" not in done.stdout
    assert "2 passed, 0 failed, 0 skipped\n" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("preset", ["cpu", "gpu"])
def test_a_day_that_does_not_compile_takes_no_other_with_it(checkout, preset):
    checkout.play(Host([], cards=(T4,) if preset == "gpu" else ()))
    (checkout.tools / "broken").write_text("day01-a/a")
    done = checkout.run()
    assert "ran b with" in done.stdout
    assert "ran a" not in done.stdout
    log = f"build/{preset}-day01-a.log"
    assert (checkout.root / log).read_text() == "Building day01-a/a\nday01-a/a.cu(7): error: expected a ;\n"
    assert f"day01-a/a.cu(7): error: expected a ;\nfailed to build, the whole log is {log}: day01-a/a\n" in done.stdout
    assert "1 passed, 1 failed, 0 skipped\n" in done.stdout
    assert done.returncode == 1

    (checkout.tools / "broken").unlink()  # mended: the next run has forgotten it
    done = checkout.run()
    assert "2 passed, 0 failed, 0 skipped\n" in done.stdout
    assert done.returncode == 0


COMPARE = """import pathlib, sys
print("compare", *sys.argv[2:], "holding", *(pathlib.Path(name).read_text().strip() for name in sys.argv[4:]))
"""


def test_each_day_runs_once_and_its_lines_are_compared(checkout):
    checkout.play(Host([], cards=(T4,)))
    (checkout.root / "scripts/evidence.py").write_text(COMPARE)
    for name, text in {"t4": "{}", "t4-x2": '{\n  "cards": [\n'}.items():
        manifest = checkout.root / "profile" / name / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(text)
    (checkout.root / "build/gpu").mkdir(parents=True)
    stale = checkout.root / "build/gpu/day02-b.jsonl"
    stale.write_text("of a run of before\n")
    done = checkout.run()
    assert done.stdout.count("ran a with") == done.stdout.count("ran b with") == 1
    lines = "build/gpu/day01-a.jsonl build/gpu/day02-b.jsonl"
    assert f"compare profile/t4 --from {lines} holding lines of a lines of b\n" in done.stdout
    assert "compare profile/t4-x2" not in done.stdout

    stale.write_text("of a run of before\n")
    (checkout.tools / "b-code").write_text("77")
    done = checkout.run()
    assert "compare profile/t4 --from build/gpu/day01-a.jsonl holding lines of a\n" in done.stdout
    assert "skipped: day02-b/b\n" in done.stdout


def test_a_day_that_is_left_out_is_said_and_counted(checkout):
    checkout.play(Host([], cards=(T4,)))
    (checkout.tools / "left_out").write_text("day03-c is left out: no CUDA::cublas\n")
    done = checkout.run()
    assert "\nday03-c is left out: no CUDA::cublas\n" in done.stdout
    assert "2 passed, 0 failed, 1 skipped\n" in done.stdout
    assert done.returncode == 0


def test_another_compiler_configures_anew(checkout):
    checkout.play(Host([], cards=(T4,)))
    configured = checkout.root / "build/gpu/configured"
    for environment, fresh in (({}, True), ({}, False), ({"CUDAHOSTCXX": ""}, False), ({"CUDACXX": "nvcc"}, True)):
        checkout.run(**environment)
        (checkout.root / "build/gpu/CMakeCache.txt").touch()
        assert ("--fresh" in configured.read_text().split()) == fresh, environment


def test_the_real_program_prints_what_the_stand_ins_play(source_dir, tmp_path, nvcc):
    program = tmp_path / "gpus"
    warnings = ["--Werror", "all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror"]
    subprocess.run([nvcc, *warnings, "-o", program, source_dir / "scripts/gpus.cu"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    release = re.search(r"release ([\d.]+)", subprocess.check_output([nvcc, "--version"], text=True))[1]
    runtime, driver, *rest = done.stdout.splitlines()
    assert runtime == f"runtime\t{release}"
    assert re.fullmatch(r"driver\t\d+\.\d", driver)
    assert rest
    for line in rest:
        assert re.fullmatch(r"error\tcudaError\w+\t.+|gpu(\t[^\t]+){6}", line)
    assert done.returncode == (0 if any("\tcudaSuccess\t" in line for line in rest) else 77)


# ---- What CMakeLists.txt says of toolkits ---------------------------------------------------------------------------

FAKE_NVCC = """#!/bin/sh
case "$*" in
  --version) echo "Cuda compilation tools, release {release}, V{release}.61" ;;
  --list-gpu-arch) for x in {architectures}; do echo compute_$x; done ;;
  *-E*) echo '{refusal}' >&2; exit 1 ;;
  *) exit 1 ;;
esac
"""


def fake_toolkit(folder, release, refusal=""):
    """Make an nvcc of a release that answers questions and compiles nothing; return its path as text."""
    nvcc = folder / f"cuda-{release}" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    nvcc.write_text(FAKE_NVCC.format(release=release, architectures=ARCHITECTURES[release], refusal=refusal))
    nvcc.chmod(0o755)
    return str(nvcc)


@pytest.mark.parametrize("release", ARCHITECTURES)
def test_cmake_and_the_script_build_for_the_same(source_dir, checkout, tmp_path, release):
    """The oldest toolkits and architectures stand in CMakeLists.txt and in scripts/choose_gpu.sh."""
    default = (75, 80, 86, 89, 90, 100, 120)
    cards = tuple(Card(f"sm_{sm}", f"{sm / 10:.1f}") for sm in (70, *default))
    checkout.play(Host([], toolkit=release, cards=cards))
    done = checkout.run()
    configured = checkout.root / "build/gpu/configured"
    built = re.search(r"CMAKE_CUDA_ARCHITECTURES=(\S*)", configured.read_text())[1] if configured.is_file() else None

    run = Configuration(source_dir, tmp_path / "b", CUDACXX=fake_toolkit(tmp_path, release))
    if release == "11.2":
        assert built is None, done.stdout
        assert "CUDA 11.2 (" in run.words
        assert "is too old: the days need CUDA 11.8 or newer, and 12.0 or newer from sm_90 on." in run.words
        assert "Install a newer one" in run.words
    else:
        assert (
            built.replace("90a", "90")
            == run.architectures
            == ";".join(
                str(sm)
                for sm in default
                if str(sm) in ARCHITECTURES[release].split() and (sm < 90 or release != "11.8")
            )
        )


def test_line_numbers_are_left_out_where_ptxas_crashes_on_them(source_dir, tmp_path):
    for release, architectures, without in (("12.0", "75;90a", True), ("12.0", "75;89", False), ("12.4", "90", False)):
        run = Configuration(
            source_dir,
            tmp_path / f"b-{release}-{len(architectures)}",
            f"-DCMAKE_CUDA_ARCHITECTURES={architectures}",
            CUDACXX=fake_toolkit(tmp_path, release),
        )
        assert ("CUDA 12.0 builds for sm_90 without -lineinfo" in run.words) == without, run.output


def test_another_toolkit_is_taken_after_one_was_refused(source_dir, tmp_path):
    old, new = fake_toolkit(tmp_path, "11.2"), fake_toolkit(tmp_path, "12.4")
    assert "CUDA 11.2" in Configuration(source_dir, tmp_path / "b", CUDACXX=old).words
    run = Configuration(source_dir, tmp_path / "b", CUDACXX=new)
    assert run.architectures == "75;80;86;89;90", run.output


@pytest.mark.parametrize(("release", "asked"), [("12.4", "120"), ("11.8", "75;90"), ("11.8", "90a"), ("13.0", "70")])
def test_an_architecture_that_the_toolkit_lacks_is_named(source_dir, tmp_path, release, asked):
    nvcc = fake_toolkit(tmp_path, release)
    run = Configuration(source_dir, tmp_path / "b", f"-DCMAKE_CUDA_ARCHITECTURES={asked}", CUDACXX=nvcc)
    assert run.failed
    lacking = asked.rpartition(";")[2]
    assert f"CUDA {release} ({nvcc}) cannot build the days for sm_{lacking}: they start at sm_75" in run.words
    assert "-DCMAKE_CUDA_ARCHITECTURES=..." in run.words


def test_a_cpu_build_does_without_an_old_toolkit(source_dir, tmp_path):
    nvcc = fake_toolkit(tmp_path, "11.2")
    run = Configuration(source_dir, tmp_path / "b", "-DCUDA_DAYS_BACKEND=cpu", CUDACXX=nvcc)
    assert not run.failed, run.output
    assert "is too old: the days need CUDA 11.8" in run.words
    for name in (tmp_path / "b").glob("**/CTestTestfile.cmake"):
        assert nvcc not in name.read_text()


@pytest.mark.parametrize(
    ("refusal", "way_out"),
    [
        # That long ago every g++ here is newer.
        (GNU.replace("13", "9"), "apt-get install g++-9; then set CUDAHOSTCXX=g++-9"),
        (GNU.replace("13", "99"), "Set CUDAHOSTCXX={gxx}"),
        (CLANG, "Set CUDAHOSTCXX to one that is old enough"),
    ],
)
def test_cmake_names_a_host_compiler_that_fits(source_dir, tmp_path, monkeypatch, refusal, way_out):
    gxx = tmp_path / "tools" / "g++-98"
    gxx.parent.mkdir()
    gxx.write_text("#!/bin/sh\n")
    gxx.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gxx.parent}{os.pathsep}{os.environ['PATH']}")
    run = Configuration(source_dir, tmp_path / "b", CUDACXX=fake_toolkit(tmp_path, "12.4", refusal))
    assert run.failed
    assert "refuses its host compiler: unsupported" in run.words
    assert way_out.format(gxx=gxx) in run.words


# ---- The real build, in a folder with a blank in its path -----------------------------------------------------------

IGNORED = shutil.ignore_patterns("build", ".git", ".scratch", ".venv", "__pycache__")


@pytest.fixture
def copy(source_dir, tmp_path):
    """Return a copy of the tree in a folder with a blank in its name; its sources are replaced by next to nothing."""
    copy = tmp_path / "a copy"
    shutil.copytree(source_dir, copy, ignore=IGNORED)
    for source in copy.glob("common/cpu/*.cpp"):
        source.write_text("")
    for day in copy.glob("day*/*.cu"):
        day.write_text("int main() { return 0; }\n")
    return copy


def test_what_is_missing_is_left_out_with_a_sentence(copy, tmp_path):
    """As in a toolkit from pip or conda, played by the headers of the CPU build."""
    (copy / "common/cpu/cublas_v2.h").unlink()
    (copy / "common/cpu/nvtx3/nvToolsExt.h").unlink()
    run = Configuration(copy, tmp_path / "b", "-DCUDA_DAYS_BACKEND=cpu", "-DCUDA_DAYS_NVCC=")
    assert not run.failed, run.output
    left_out = (tmp_path / "b/left_out.txt").read_text()
    assert re.fullmatch(r"day44-matmul is left out: no [^\n]*cublas_v2\.h [^\n]*\n", left_out)
    assert left_out.strip() in run.words
    assert "day56-graphs does without nvtx3/nvToolsExt.h, which is not in" in run.words
    days = (tmp_path / "b/days.txt").read_text()
    assert "day56-graphs/graphs" in days
    assert "day44" not in days


def test_day_56_compiles_without_nvtx(source_dir, tmp_path, cxx):
    headers = tmp_path / "cpu"
    shutil.copytree(source_dir / "common/cpu", headers, ignore=shutil.ignore_patterns("nvtx3", "tests"))
    day = source_dir / "day56-graphs/graphs.cu"
    lowered = tmp_path / "graphs.cpp"
    subprocess.run([sys.executable, headers / "lower.py", day, "-o", lowered], check=True)
    # An installed toolkit may have the header in /usr/include: as if it were not there.
    text = lowered.read_text().replace("__has_include(<nvtx3/nvToolsExt.h>)", "__has_include(<no_such_header.h>)")
    lowered.write_text(text)
    command = [cxx, "-std=c++17", "-fsyntax-only", "-w", f"-I{headers}", lowered]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no_such_header" in text


def test_the_real_build_goes_on_after_a_broken_day(copy):
    (copy / "day30-roofline/roofline.cu").write_text("int main() { return no_such_name; }\n")
    done = subprocess.run(
        [copy / "scripts/lessons", "run"],
        env={**os.environ, "CUDACXX": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    days = len(list(copy.glob("day*/*.cu")))
    assert "no_such_name" in done.stdout
    assert "failed to build, the whole log is build/cpu-day30-roofline.log: day30-roofline/roofline\n" in done.stdout
    assert f"{days - 1} passed, 1 failed, 0 skipped\n" in done.stdout, done.stdout
    assert done.returncode == 1
    # Those that compile came from the first pass: make went on.
    assert (copy / "build/cpu.log").read_text().count("Built target day") == days - 1
