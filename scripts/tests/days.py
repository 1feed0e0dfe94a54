"""The days' programs and their kernels: asked of day.json, of the sources, and of what the CPU build made of them."""

import functools
import os
import re
import subprocess

from conftest import BUILD_DIR, SOURCE_DIR
from day_facts import find_facts

FACTS = {f"{facts.folder}/{facts.program}": facts for facts in find_facts(SOURCE_DIR)}
PROGRAMS = list(FACTS)
CUBLAS = "cublasGemmEx"  # its products are logged and skipped as launches are
PREPARES = {"packMatrix": "matmulPacked"}  # kernels without a row or check of their own, and whose row launches them


def symbol_of(kernel):
    """Return a kernel's name without its template arguments."""
    return kernel.split("<")[0]


def lesson_kernels(program):
    """Return the kernels that stand before the harness: all but the tools of checking."""
    text = (SOURCE_DIR / f"{program}.cu").read_text()
    return kernels_of(program, text.partition("\n// common: harness\n")[0])


def kernels_of(program, text=None):
    """Return the kernels of a day in the order of its source, those that the CPU build leaves out too."""
    text = text or (SOURCE_DIR / f"{program}.cu").read_text()
    return list(dict.fromkeys(re.findall(r"__global__ [^;{]*?(\w+)\([^()]*\) \{", text)))


@functools.cache
def launches(program, mode):
    """Return what a day's CPU build launches with --check or --profile, in order, each with its template arguments.

    All of it is skipped, which takes a second; then all checks fail. Where nothing is built there are none.
    """
    if not (BUILD_DIR / program).is_file():
        return []
    skip = ",".join([*kernels_of(program), CUBLAS])
    done = subprocess.run(
        [BUILD_DIR / program, mode],
        env={**os.environ, "CUDA_DAYS_CPU_LOG": "1", "CUDA_DAYS_CPU_SKIP": skip},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    found = re.findall(r"^CPU backend: launch (.+?) (?:grid|m) ", done.stderr, re.MULTILINE)
    assert found, f"{program} {mode} launched nothing:\n{done.stderr[-2000:]}"
    return found


def skippable(program):
    """Return what can be skipped alone: each kernel that --check launches, and each instance that a design is of."""
    lesson = [*lesson_kernels(program), CUBLAS]
    found = [kernel for kernel in launches(program, "--check") if symbol_of(kernel) in lesson]
    spelled = {kernel.replace(" ", "") for kernel in found}
    designed = [kernel for kernel in FACTS[program].kernels if kernel.replace(" ", "") in spelled]
    return list(dict.fromkeys([*map(symbol_of, found), *designed]))
