# SPDX-License-Identifier: MIT
"""The backend's headers beside every standard header, with every compiler there is; flags that blind a check; by hand.

The compilers are those of PATH, versioned ones too (g++-13, clang++-19), and CXX.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

BACKEND = pathlib.Path(__file__).resolve().parents[1]
HEADERS = sorted(path.relative_to(BACKEND).as_posix() for path in [*BACKEND.glob("c*.h"), *BACKEND.glob("nvtx3/*.h")])

# C++17's and C's standard headers, and what Linux programs include beside them. Not <execution>, which needs TBB, nor
# <stdatomic.h> and <threads.h>, which are C's alone.
NAMES = """
    algorithm any array atomic bitset cassert ccomplex cctype cerrno cfenv cfloat charconv chrono cinttypes ciso646
    climits clocale cmath codecvt complex condition_variable csetjmp csignal cstdalign cstdarg cstdbool cstddef cstdint
    cstdio cstdlib cstring ctgmath ctime cuchar cwchar cwctype deque exception filesystem forward_list fstream
    functional future initializer_list iomanip ios iosfwd iostream istream iterator limits list locale map memory
    memory_resource mutex new numeric optional ostream queue random ratio regex scoped_allocator set shared_mutex
    sstream stack stdexcept streambuf string string_view strstream system_error thread tuple type_traits typeindex
    typeinfo unordered_map unordered_set utility valarray variant vector
    assert.h complex.h ctype.h errno.h fenv.h float.h inttypes.h limits.h locale.h math.h setjmp.h signal.h stdalign.h
    stdarg.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h tgmath.h time.h uchar.h wchar.h wctype.h
    fcntl.h immintrin.h pthread.h sched.h sys/mman.h sys/resource.h sys/stat.h sys/time.h sys/types.h sys/wait.h
    unistd.h
"""
STANDARD = NAMES.split()
QUIET = ["-Wno-deprecated", "-Wno-cpp", "-Wno-#warnings"]  # some of them say of themselves that they are deprecated


def find_compilers():
    """Return each C++ compiler of PATH and CXX once, by the name it was found under."""
    names = [os.environ.get("CXX") or "g++", "g++", "clang++"]
    for folder in os.get_exec_path():
        if pathlib.Path(folder).is_dir():
            names += sorted(name for name in os.listdir(folder) if re.fullmatch(r"(g|clang)\+\+-\d+", name))
    found = {os.path.realpath(shutil.which(name)): name for name in reversed(names) if shutil.which(name)}
    return sorted(map(str, found.values()))


COMPILERS = find_compilers()
pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C++ compiler")
each_compiler = pytest.mark.parametrize("compiler", COMPILERS or ["none"])


def run(*command, **options):
    """Run a command and return the result, its output as text."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)


def compile_text(compiler, text, *flags):
    """Compile a source of this text as the days are, without making a file."""
    command = [compiler, "-std=c++17", f"-I{BACKEND}", *flags, "-x", "c++", "-"]
    return run(*command, input=text)


def includes(headers):
    """Return the lines that include those of the headers which the compiler has."""
    return "".join(f"#if __has_include(<{header}>)\n#include <{header}>\n#endif\n" for header in headers)


@each_compiler
def test_standard_headers_compile_before_and_after_the_backends(compiler):
    for order in ([*HEADERS, *STANDARD], [*STANDARD, *HEADERS]):
        done = compile_text(compiler, includes(order), "-Wall", "-Wextra", "-Werror", *QUIET, "-fsyntax-only")
        assert done.returncode == 0, done.stderr


@each_compiler
def test_no_macro_takes_a_name_that_a_standard_header_uses(compiler):
    """Also where a header that uses it has been read before."""

    def preprocess(headers, *flags):
        done = compile_text(compiler, includes(headers), "-E", *QUIET, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def macros(headers):
        return set(re.findall(r"^#define (\w+)", preprocess(headers, "-dM"), re.MULTILINE))

    ours = macros(HEADERS) - macros(STANDARD)
    assert {"__global__", "__shared__", "__align__", "__syncthreads"} <= ours
    used = set(re.findall(r"\w+", preprocess(STANDARD, "-dD")))
    assert {"std", "vector", "fmaf", "pthread_create"} <= used
    assert not ours & used


@each_compiler
@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-ffinite-math-only"])
def test_flags_that_make_a_nan_pass_do_not_compile(compiler, flag):
    for header in ("cuda_runtime.h", "cublas_v2.h"):
        done = compile_text(compiler, f"#include <{header}>\n", "-O2", flag, "-w", "-fsyntax-only")
        assert done.returncode != 0
        assert f"{flag}" in done.stderr
        assert "so a day's checks would pass whatever its kernels compute" in done.stderr
    assert compile_text(compiler, "#include <cuda_runtime.h>\n", "-O2", "-fsyntax-only").returncode == 0


@each_compiler
def test_a_nan_is_tried_out_before_main(compiler, tmp_path):
    """clang's -fno-honor-nans shows in no macro; g++ has nothing like it."""
    program = tmp_path / "program"
    source = (
        "#include <cuda_runtime.h>\n#include <cstdlib>\n"
        "void cuda_cpu::failWithoutNans() { std::_Exit(3); }\n"
        "int main() { return 4; }\n"
    )
    flags = {4: []}
    if not compile_text(compiler, "", "-fno-honor-nans", "-fsyntax-only").returncode:
        flags[3] = ["-fno-honor-nans"]
    for code, flag in flags.items():
        done = compile_text(compiler, source, "-O2", *flag, "-o", program)
        assert done.returncode == 0, done.stderr
        assert run(program).returncode == code


@each_compiler
def test_cudas_noinline_is_an_attribute_after_lowering(compiler, tmp_path):
    opaque = 'int x; asm volatile("" : "=r"(x)); return x;'
    source = (
        f"__noinline__ __device__ int one() {{ {opaque} }}\n__device__ __noinline__ int two() {{ return one(); }}\n"
    )
    given, made = tmp_path / "a.cu", tmp_path / "a.cpp"
    given.write_text("#include <cuda_runtime.h>\n" + source)
    assert run(sys.executable, BACKEND / "lower.py", given, "-o", made).returncode == 0
    done = run(compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{BACKEND}", "-S", "-o", "-", made)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b(call|jmp|bl?)\b.*one", done.stdout), "one() was inlined"


def test_the_lines_of_the_readme_build_a_day_that_passes(source_dir, cxx, tmp_path):
    """Day 30, which tells a multiplication and an addition that were contracted into one rounding."""
    (block,) = re.findall(r"^```\n(python3 .*?)^```$", (BACKEND / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    probe = run(cxx, "-x", "c++", "-", "-lboost_context", "-o", tmp_path / "probe", input="int main() {}")
    if probe.returncode:
        pytest.skip("no Boost.Context: on Debian and Ubuntu, libboost-context-dev")
    (tmp_path / "common").symlink_to(source_dir / "common")
    shutil.copy(next(source_dir.glob("day30-*/*.cu")), tmp_path / "DAY.cu")
    built = run("bash", "-ec", block.replace("g++ ", f"'{cxx}' "), cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    done = run(tmp_path / "DAY", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
