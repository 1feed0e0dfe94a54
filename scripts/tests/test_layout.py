"""How a day is laid out for its reader: the lesson first, and what the days share out of its way."""

import os
import re
from pathlib import Path

import pytest
from sync_common import find_blocks

SOURCE_DIR = Path(os.environ.get("CUDA_DAYS_SOURCE_DIR", Path(__file__).parents[2]))
DAYS = sorted(SOURCE_DIR.glob("day*-*/*.cu"))
SHARED = {"device", "harness"}  # all blocks that there are

pytestmark = pytest.mark.parametrize("day", DAYS, ids=lambda day: day.parent.name)


def lines_of(day):
    return day.read_text().split("\n")


def blocks_of(lines):
    """Return the index of each shared block's first line and of its end marker, by name."""
    blocks, problems = find_blocks(lines, Path("a day"))
    assert problems == [] and {block.name for block in blocks} == SHARED
    return {block.name: (block.first, block.last) for block in blocks}


def first_kernel(lines):
    return next(i for i, line in enumerate(lines) if line.startswith("__global__"))


def test_the_first_kernel_stands_within_the_first_hundred_lines(day):
    assert first_kernel(lines_of(day)) < 100


def test_nothing_shared_but_what_kernels_use_stands_before_them(day):
    lines = lines_of(day)
    blocks = blocks_of(lines)
    first, last = blocks["device"]
    assert last < first_kernel(lines)
    assert last - first <= 60
    kernels = [i for i, line in enumerate(lines) if "__global__ void" in line]
    assert min(i for i in kernels if i > first) < blocks["harness"][0]
    # What compares results on the GPU is no part of the lesson, and may come later.
    assert [lines[i] for i in kernels if i > blocks["harness"][1] and "findWrong" not in lines[i]] == []


def test_the_header_says_what_each_kernel_shows(day):
    """By its name, or of several that a number tells apart by one of theirs: sharedStride1 to 32."""
    lines = lines_of(day)
    header = "\n".join(lines[: next(i for i, line in enumerate(lines) if line.startswith("#"))])
    assert "// The kernels in the order of this file, and what each " in header
    own = "\n".join(lines[: blocks_of(lines)["harness"][0]])
    for name in re.findall(r"__global__ [^;{]*?(\w+)\([^()]*\) \{", own):
        family = name.rstrip("0123456789")
        assert re.search(rf"\b{family}\d*\b", header), f"{name} is not in the header"


def test_a_report_prints_and_measures_nothing(day):
    """Code under `// ---- Report` is not in the digest of what can change a figure."""
    text = day.read_text()
    report = text.partition("\n// ---- Report\n")[2].partition("\n// ---- ")[0]
    assert not re.search(r"<<<|measure\w*\(|timeBatch\(|cudaEvent", report)


def test_what_is_shared_explains_itself(day):
    """All of the harness stands under a comment, in the block itself: Compiler Explorer sees no other."""
    lines = lines_of(day)
    first, last = blocks_of(lines)["harness"]
    bare = []
    for i in range(first, last):
        starts = re.match(r"(inline|template|class|struct|enum|using)\b", lines[i])
        if starts and lines[i - 1] == "":  # what follows straight upon another shares its comment
            bare.append(f"{i + 1}: {lines[i]}")
    assert bare == []
