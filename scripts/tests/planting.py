"""Plants faults in the days' sources, for the CPU build (test_mutations.py) and for a GPU (test_gpu.py).

A fault names the function it lies in and a piece of its code as tokens: blanks, line breaks and comments between them
do not matter, and `$x` stands for any one identifier, the same one wherever it stands again. So a fault survives
edits around it; where its code itself changed, planting it fails and says so.
"""

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"\$?\w+|\S")
_OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)


# The days whose checks have a short list for compute-sanitizer: it must meet every fault.
SANITIZED = ("day44-matmul/matmul_registers.cu",)

# What a day's checks take long over and the faults do not need: exchanged like a fault, before it.
SMALLER = {
    "day30-roofline/roofline.cu": {  # fewer instances to compile
        "addStreams<kAccess, 4, 1, 2, 4, 8>(": "addStreams<kAccess, 4, 1, 8>(",
        "addStreams<kAccess, 2, 1, 2, 4, 8>(shapes, p, words, blocks);": "",
        "addStreams<kAccess, 1, 1, 2, 4, 8>(shapes, p, words, blocks);": "",
        "kMostFmas = 2048": "kMostFmas = 8",
    },
    "day49-roofline/roofline.cu": {
        "kRagged = {1238, 131, 131}": "kRagged = {346, 67, 67}",
        "kStreamOverL2 = 6": "kStreamOverL2 = 1",
        "kStreamMinBytes = size_t(64) << 20": "kStreamMinBytes = size_t(16) << 20",  # the stencil needs no more
        "kFmaSteps = 32768": "kFmaSteps = 1024",
    },
    "day56-graphs/graphs.cu": {
        "kLargest = kForSanitizer ? kSecond : kTimedSizes[kSizes - 1]": "kLargest = kSecond",
        "kCheckSize = 1048576 + 611": "kCheckSize = 16384 + 611",
        "kCycles = 1000": "kCycles = 20",
    },
}


def small_source(day, source_dir):
    """Returns a day's source with SANITIZED and SMALLER applied."""
    source = (source_dir / day).read_text()
    for old, new in SMALLER.get(day, {}).items():
        source = exchanged(source, "", old, new, day)
    return f"#define CUDA_DAYS_SANITIZE\n{source}" if day in SANITIZED else source


@dataclass(frozen=True)
class CodeFault:
    """One fault: in the body of `function`, or of one of this name, `old` becomes `new`, which may use its $x.

    `old` is there `of` times, and the `nth` of them, from 0, is meant. `kernel` shows the fault, if not `function`.
    """

    function: str
    name: str
    old: str
    new: str
    nth: int = 0
    of: int = 1
    kernel: str = ""

    @property
    def shown_by(self):
        return self.kernel or self.function

    def __str__(self):
        return f"{self.function}: {self.name}"


def tokens(code):
    """Return a regular expression for a piece of code; `$x` becomes the group `x`, any identifier."""
    seen = set()
    parts = []
    for token in _TOKEN.findall(code):
        hole = token[1:] if token.startswith("$") else None
        if hole is None:
            parts.append(rf"\b{token}\b" if re.fullmatch(r"\w+", token) else re.escape(token))
        elif hole in seen:
            parts.append(rf"\b(?P={hole})\b")
        else:
            seen.add(hole)
            parts.append(rf"\b(?P<{hole}>[A-Za-z_]\w*)\b")
    return re.compile(r"\s*".join(parts))


def _without_comments(source, literals=False):
    """Return the source with comments blanked out, and literals unless they stay; all else is where it was."""
    kept = "\"'" if literals else ""
    return _OPAQUE.sub(lambda found: found[0] if found[0][0] in kept else re.sub(r"[^\n]", " ", found[0]), source)


def _closing(source, at, pair):
    """Return where the bracket that opens at `at` closes."""
    depth = 0
    for i in range(at, len(source)):
        depth += (source[i] == pair[0]) - (source[i] == pair[1])
        if depth == 0:
            return i
    raise ValueError(f"the {pair[0]} at character {at} never closes")


def _bodies(source, function):
    """Return the first and the last character of the bodies of all functions of this name, braces included."""
    code = _without_comments(source)
    bodies = []
    for found in re.finditer(rf"\b{function}\s*\(", code):
        after = _closing(code, found.end() - 1, "()") + 1
        brace = re.compile(r"\s*\{").match(code, after)
        if brace:
            bodies.append((brace.end() - 1, _closing(code, brace.end() - 1, "{}")))
    return bodies


def bodies_of(source, function):
    """Return what _bodies does. There must be one: a planted fault names its function."""
    bodies = _bodies(source, function)
    assert bodies, f"no function {function} is defined: update the planted faults"
    return bodies


def _site(source, fault):
    """Return the match of a fault's code, in the whole source."""
    code = _without_comments(source)
    bodies = bodies_of(source, fault.function)
    found = [site for first, last in bodies for site in tokens(fault.old).finditer(code, first, last + 1)]
    assert len(found) == fault.of, (
        f"{fault.old!r} must be {fault.of} times in {fault.function}, and is {len(found)} times: "
        f"update the planted fault {fault.name!r}"
    )
    return found[fault.nth]


def exchanged(source, kernel, old, new, day):
    """Return the source with one piece of code in place of another, wherever it stands and however it is written.

    It is looked for in the kernel, if one is named, and where that does not hold it, in all of the source: it must be
    there once. Literals count, comments do not.
    """
    code = _without_comments(source, literals=True)
    pattern = tokens(_without_comments(old, literals=True))
    bodies = _bodies(source, kernel.split("<")[0]) if kernel else []
    sites = [site for first, last in bodies for site in pattern.finditer(code, first, last + 1)]
    sites = sites or list(pattern.finditer(code))
    assert len(sites) == 1, f"{old!r} is {len(sites)} times in {kernel} {day}, must be once: update the planted fault"
    return source[: sites[0].start()] + new + source[sites[0].end() :]


def planted(source, fault):
    """Return the source with the fault in it."""
    site = _site(source, fault)
    return source[: site.start()] + _filled(fault.new, site) + source[site.end() :]


def _filled(code, site):
    return re.sub(r"\$(\w+)", lambda hole: site[hole[1]], code)


def switchable(source, faults):
    """Return the source with all faults in it, of which the environment variable PLANTED, a number from 1, picks one.

    For the CPU build, where a kernel sees the host's variables: one program to compile instead of many. The faults are
    expressions, before and after.
    """
    edits = []
    for number, fault in enumerate(faults, 1):
        site = _site(source, fault)
        edits.append((site.start(), site.end(), f"(kPlanted == {number} ? ({_filled(fault.new, site)}) : ({site[0]}))"))
    edits.sort()
    for (_, end, _), (start, _, _) in zip(edits, edits[1:]):
        assert end <= start, "two faults of one program overlap"
    for start, end, text in reversed(edits):
        source = source[:start] + text + source[end:]
    switch = (
        'const char* const planted = std::getenv("PLANTED");\nconst int kPlanted = planted ? std::atoi(planted) : 0;'
    )
    return f"#include <cstdlib>\n{switch}\n{source}"
