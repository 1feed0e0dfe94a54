"""What CMakeLists.txt decides: backend, GPU architectures, revision; and what it says when something is missing."""

import json
import os
import re
import shlex
import shutil
import subprocess

import pytest

# nvcc as far as CMakeLists.txt asks before project(): its version, and its architectures. It compiles nothing, so these
# configurations end in CMake's compiler test, with the decision already in the cache.
FAKE_NVCC = """#!/bin/sh
[ "$1" = --version ] && echo "Cuda compilation tools, release {}, V{}.88" && exit
[ "$1" = --list-gpu-arch ] || exit 1
{}
"""
NVCC_13 = [f"compute_{x}" for x in (75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121)]
DEFAULT = "75;80;86;89;90;100;120"
CMAKE = os.environ.get("CMAKE") or "cmake"


def clean_environment(**variables):
    drop = ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "CUDAARCHS", "CMAKE_GENERATOR", "CMAKE_BUILD_TYPE")
    return {**{name: value for name, value in os.environ.items() if name not in drop}, **variables}


class Configuration:
    """One run of cmake in a build folder."""

    def __init__(self, source, build, *arguments, **variables):
        result = subprocess.run(
            [CMAKE, "-S", source, "-B", build, *arguments],
            env=clean_environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.failed = result.returncode != 0
        self.output = result.stdout
        self.words = " ".join(result.stdout.split())  # CMake wraps its messages
        cache = build / "CMakeCache.txt"
        self.cache = dict(
            re.findall(r"^([^#/\n][^:\n]*):\w+=(.*)$", cache.read_text() if cache.is_file() else "", re.M)
        )

    @property
    def architectures(self):
        return self.cache.get("CMAKE_CUDA_ARCHITECTURES")


@pytest.fixture
def fake_nvcc(tmp_path):
    def make(*architectures, command=None, release="13.0"):
        path = tmp_path / "toolkit" / "bin" / "nvcc"
        path.parent.mkdir(parents=True)
        path.write_text(FAKE_NVCC.format(release, release, command or "printf '%s\\n' " + " ".join(architectures)))
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        ([], {}, DEFAULT),
        (["-DCMAKE_CUDA_ARCHITECTURES=75"], {}, "75"),
        (["-DCMAKE_CUDA_ARCHITECTURES=75;90"], {"CUDAARCHS": "80"}, "75;90"),
        (["-DCMAKE_CUDA_ARCHITECTURES="], {}, DEFAULT),
        ([], {"CUDAARCHS": "90"}, "90"),
        ([], {"CUDAARCHS": ""}, DEFAULT),
        (["-DCMAKE_CUDA_ARCHITECTURES="], {"CUDAARCHS": "90"}, "90"),
    ],
)
def test_architectures(source_dir, tmp_path, fake_nvcc, arguments, variables, expected):
    run = Configuration(source_dir, tmp_path / "b", *arguments, CUDACXX=fake_nvcc(*NVCC_13), **variables)
    assert run.architectures == expected, run.output


def test_default_architectures_are_those_that_this_nvcc_knows(source_dir, tmp_path, fake_nvcc):
    run = Configuration(source_dir, tmp_path / "b", CUDACXX=fake_nvcc("compute_52", "compute_75", "compute_100a"))
    assert run.architectures == "75", run.output


@pytest.mark.parametrize("command", ["echo compute_52", "echo no such option >&2; exit 1"])
def test_an_nvcc_without_a_usable_architecture_ends_with_the_way_out(source_dir, tmp_path, fake_nvcc, command):
    nvcc = fake_nvcc(command=command)
    run = Configuration(source_dir, tmp_path / "b", CUDACXX=nvcc)
    assert run.failed
    assert f"{nvcc} --list-gpu-arch names no architecture from sm_75 on" in run.words
    assert "Set CUDACXX=" in run.words


@pytest.mark.parametrize("how", ["CUDACXX", "CUDA_HOME", "CUDA_PATH", "PATH", "CMAKE_CUDA_COMPILER"])
def test_nvcc_is_found(source_dir, tmp_path, fake_nvcc, how):
    nvcc = fake_nvcc(*NVCC_13)
    toolkit = tmp_path / "toolkit"
    arguments, variables = [], {}
    if how == "CMAKE_CUDA_COMPILER":
        arguments = [f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    else:
        values = {"CUDACXX": f"{nvcc} -v", "PATH": f"{toolkit}/bin:{os.environ['PATH']}"}
        variables = {how: values.get(how, str(toolkit))}
    run = Configuration(source_dir, tmp_path / "b", *arguments, **variables)
    assert run.cache.get("CUDA_DAYS_NVCC") == nvcc, run.output


def test_without_a_toolkit_the_cpu_build_is_configured_and_said(source_dir, tmp_path):
    run = Configuration(source_dir, tmp_path / "b", "-DCUDA_DAYS_NVCC=")
    assert not run.failed, run.output
    assert "No CUDA Toolkit found" in run.words
    assert "backend cpu" in run.words
    days = (tmp_path / "b" / "days.txt").read_text().split()
    assert days
    for day in days:
        assert (source_dir / f"{day}.cu").is_file()


def test_cuda_without_a_toolkit_ends_with_the_way_out(source_dir, tmp_path):
    run = Configuration(source_dir, tmp_path / "b", "-DCUDA_DAYS_NVCC=", "-DCUDA_DAYS_BACKEND=cuda")
    assert run.failed
    assert "no nvcc was found" in run.words
    assert "CUDACXX=" in run.words
    assert "-DCUDA_DAYS_BACKEND=cpu" in run.words


def test_an_unknown_backend_is_named(source_dir, tmp_path):
    run = Configuration(source_dir, tmp_path / "b", "-DCUDA_DAYS_BACKEND=gpu")
    assert run.failed
    assert '"gpu"; it must be auto, cuda or cpu' in run.words


def test_cpu_without_boost_ends_with_the_way_out(source_dir, tmp_path):
    run = Configuration(source_dir, tmp_path / "b", "-DCUDA_DAYS_BACKEND=cpu", "-DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON")
    assert run.failed
    assert "apt-get install libboost-context-dev" in run.words


def cpu_flags(source_dir, build, *arguments):
    """The words that compile a day, of a build for the CPU."""
    run = Configuration(source_dir, build, "-DCUDA_DAYS_BACKEND=cpu", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *arguments)
    assert not run.failed, run.output
    commands = json.loads((build / "compile_commands.json").read_text())
    (command,) = [entry["command"] for entry in commands if entry["file"].endswith("day49-roofline.cpp")]
    return shlex.split(command)


@pytest.mark.parametrize("arguments", [["--preset", "cpu"], ["--preset", "cpu-asan"], []], ids=" ".join)
def test_warnings_are_errors_for_those_alone_who_ask(source_dir, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(source_dir)  # where --preset looks
    flags = cpu_flags(source_dir, tmp_path / "b", *arguments)
    assert "-Wall" in flags and "-Werror" not in flags
    assert "-Werror" in cpu_flags(source_dir, tmp_path / "b", *arguments, "-DCUDA_DAYS_WERROR=ON")


# A machine on which nothing is missing, nothing is installed, and cmake notes what it was asked.
TOOLS = "bash cat dirname env grep ln mkdir nproc paste readlink rm sed sleep sort tail tr"
FAKES = {
    "cmake": '[ "$1" = --version ] && echo "cmake version 3.99.0" && exit\necho "$@" >>"$CALLS"\nexit 1',
    "g++": "echo /somewhere/library.so",
    "git": "exit 0",
    "make": "exit 0",
    "python3": '[ "$2" = venv ] || exit 0\nmkdir -p "$3/bin"; ln -s /bin/true "$3/bin/python"',
}


@pytest.mark.parametrize(("mode", "value"), [("run", "OFF"), ("test", "ON")])
def test_the_two_commands_say_whether_warnings_are_errors(source_dir, tmp_path, mode, value):
    """Both, because they share build/cpu."""
    shutil.copytree(source_dir / "scripts", tmp_path / "scripts")
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    for name in TOOLS.split():
        (folder / name).symlink_to(shutil.which(name))
    for name, text in FAKES.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [tmp_path / "scripts" / "lessons", mode],
        env={"PATH": str(folder), "CALLS": str(calls)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert f"--preset cpu -DCUDA_DAYS_WERROR={value}" in calls.read_text(), done.stderr


# As clang 19 on a processor with AVX10: it warns of -march=native, unless told not to.
CLANG_19 = """\
#!/bin/bash
quiet=no error=no native=no
for word; do
  shift
  case $word in
    -Wno-invalid-feature-combination) quiet=yes ;;
    -Winvalid-feature-combination) ;;
    -march=native) native=yes ;;
    -Werror) error=yes; set -- "$@" "$word" ;;
    *) set -- "$@" "$word" ;;
  esac
done
if [ $native$quiet = yesno ]; then
  echo "warning: invalid feature combination: +avx10.1-256 [-Winvalid-feature-combination]" >&2
  [ $error = no ] || exit 1
fi
exec CXX "$@"
"""


def test_a_compiler_that_warns_of_this_processor_is_told_not_to(source_dir, tmp_path, cxx):
    compiler = tmp_path / "clang++"
    compiler.write_text(CLANG_19.replace("CXX", cxx))
    compiler.chmod(0o755)
    build = tmp_path / "b"
    flags = cpu_flags(source_dir, build, f"-DCMAKE_CXX_COMPILER={compiler}", "-DCUDA_DAYS_WERROR=ON")
    assert "-march=native" in flags
    file = source_dir / "common" / "cpu" / "environment.cpp"
    subprocess.run([*flags[: flags.index("-o")], f"-I{source_dir}/common/cpu", "-fsyntax-only", file], check=True)


def test_only_a_compiler_that_has_the_warning_is_told(source_dir, tmp_path, cxx):
    said = subprocess.run(
        [cxx, "-Winvalid-feature-combination", "-fsyntax-only", "-x", "c++", "/dev/null"], check=False
    )
    known = "-Wno-invalid-feature-combination" in cpu_flags(source_dir, tmp_path / "b", f"-DCMAKE_CXX_COMPILER={cxx}")
    assert known == (said.returncode == 0) or "clang" in cxx  # clang accepts and warns


# What Debian 13's package says, of a folder that is not there.
OPENBLAS_CONFIG = """\
SET(OpenBLAS_VERSION "0.3.21")
SET(OpenBLAS_INCLUDE_DIRS /nowhere/include)
SET(OpenBLAS_LIBRARIES /nowhere/libopenblas.so)
"""


def test_an_openblas_configuration_is_not_believed(source_dir, tmp_path):
    """Day 44 links the library itself where the configuration names one that is not there, or is left out."""
    plain = Configuration(source_dir, tmp_path / "plain", "-DCUDA_DAYS_BACKEND=cpu")
    if "day44-matmul is left out" in plain.words:
        pytest.skip("no OpenBLAS: on Debian and Ubuntu, libopenblas-dev")
    (tmp_path / "OpenBLASConfig.cmake").write_text(OPENBLAS_CONFIG)
    arguments = ["-G", "Unix Makefiles", "-DCUDA_DAYS_BACKEND=cpu", f"-DOpenBLAS_DIR={tmp_path}"]
    found = Configuration(source_dir, tmp_path / "found", *arguments)
    assert not found.failed, found.output
    link = (tmp_path / "found" / "CMakeFiles" / "day44-matmul.dir" / "link.txt").read_text()
    assert "openblas" in link and "/nowhere" not in link
    lost = Configuration(source_dir, tmp_path / "lost", *arguments, "-DOPENBLAS_LIBRARY=/nowhere/libopenblas.so")
    assert not lost.failed, lost.output
    assert "day44-matmul is left out: no CUDA::cublas" in lost.words
    assert "day44" not in (tmp_path / "lost" / "days.txt").read_text()


def test_cuda_with_the_real_nvcc(source_dir, tmp_path, nvcc):
    # Whether CMake can compile for every architecture of the list; no GPU takes part.
    run = Configuration(source_dir, tmp_path / "b", CUDACXX=nvcc)
    assert not run.failed, run.output
    assert "backend cuda" in run.words
    assert set(run.architectures.split(";")) <= set(DEFAULT.split(";"))


def test_every_preset_is_listed(source_dir):
    for kind in ("configure", "build", "test"):
        listed = subprocess.run(
            [CMAKE, f"--list-presets={kind}"], cwd=source_dir, capture_output=True, text=True, check=True
        )
        assert re.findall(r'"([\w-]+)"', listed.stdout) == ["gpu", "t4", "cpu", "cpu-asan", "cpu-tsan", "cpu-trace"]


def test_revision(source_dir, tmp_path):
    """A commit, an edit and the next commit, in a copy: each shows in the next build, without configuring by hand."""
    copy, build = tmp_path / "copy", tmp_path / "b"
    shutil.copytree(source_dir, copy, ignore=shutil.ignore_patterns("build", ".git", ".scratch"))

    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *arguments], cwd=copy, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def revision(output):
        return re.search(r"cuda-days (\S+), backend", output)[1]

    def rebuild():
        command = [CMAKE, "--build", build, "--target", "cmake_check_build_system"]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout

    arguments = ["-G", "Unix Makefiles", "-DCUDA_DAYS_BACKEND=cpu"]
    assert revision(Configuration(copy, build, *arguments).output) == "unknown"

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    first = git("rev-parse", "--short=12", "HEAD")
    assert revision(Configuration(copy, build, *arguments).output) == first

    day = copy / (build / "days.txt").read_text().split()[0]
    with open(f"{day}.cu", "a", encoding="utf-8") as file:
        file.write("// more\n")
    assert revision(rebuild()) == f"{first}-dirty"

    git("commit", "-qam", "two")
    assert revision(rebuild()) == git("rev-parse", "--short=12", "HEAD") != first

    assert revision(Configuration(copy, build, *arguments, "-DCUDA_DAYS_REVISION=v1").output) == "v1"
