"""How a day is laid out for its reader: the lesson first, and what the days share out of its way."""

import os
import re
import sys
import warnings
from pathlib import Path

import pytest
from sync_common import find_blocks

SOURCE_DIR = Path(os.environ.get("CUDA_DAYS_SOURCE_DIR", Path(__file__).parents[2]))
sys.path.insert(0, str(SOURCE_DIR / "common" / "cpu"))
from lower import blank_out  # noqa: E402 (lies in the folder named just above)

DAYS = sorted(SOURCE_DIR.glob("day*-*/*.cu"))
SHARED = {"device", "harness"}  # all blocks that there are

LONGEST_FUNCTION = 60  # lines, from its head to its closing brace
SHORTEST_LESSON, LONGEST_LESSON = 500, 1000  # lines of a day without the shared blocks
# Days 30 and 56 have 40 and 12 things to measure and check, day 44 has 20 kernels, of which 15 are a ladder, and a
# dispatch among them. Nothing is left in them that a reader could spare: they may not grow.
LONGER_LESSONS = {"day30-roofline": 1640, "day44-matmul": 1990, "day56-graphs": 1230}
LARGEST_FILE, WARN_FROM = 128 << 10, 112 << 10  # bytes
LARGER_FILES = {"day44-matmul": 148 << 10}  # the shared blocks are 57 KiB of it

# Words of nobody's but ours, and what the field says instead. CODE is looked for in identifiers alone, because as words
# of a sentence they are plain English; TEXT stands nowhere, not in a comment or a string either. A name is split where
# a capital letter or a number starts: kLab and LabFor have the part Lab, Label has not.
CODE, TEXT = "in code", "anywhere"
STRUCK_OUT = [
    (CODE, r"Feeds?(?![a-z])", "tile loader"),
    (CODE, r"\bPlace\b", "thread coordinates"),
    (CODE, r"\bEdge\b", "guard"),
    (CODE, r"\bRung\b", "kernel, step of the ladder"),
    (CODE, r"\bk?[Tt]urns?\b|\bturn[A-Z]\w*", "iteration"),
    (CODE, r"\bk?[Hh]ops?\b|\bhop[A-Z]\w*", "unroll"),
    (TEXT, r"(?<![A-Z])Lab(?![a-z])", "what it holds"),
    (TEXT, r"(?<![A-Z])Arms?(?![a-z])", "what is compared"),
    (TEXT, r"(?<![A-Z])Savings?(?![a-z])", "paired difference"),
    (TEXT, r"(?<![A-Z])Laps(?![a-z])", "stopwatch"),
    (TEXT, r"[Jj]udg(e|ing)", "compare, check, verdict"),
    (TEXT, r"\b[Aa]live\b|Alive(?![a-z])", "within range, kept"),
    (TEXT, r"\b[Dd]oors?\b|Doors?(?![a-z])|\bdoor[A-Z]", "dispatch"),
    (TEXT, r"\b[Aa]sked\b|Asked(?![a-z])|\basked[A-Z]", "requested"),
    (TEXT, r"turned over", "transposed"),
    (TEXT, r"slices? of k\b", "split-K inside a block"),
]

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


def own_part(lines):
    """Return the lines of a day with those of the shared blocks empty: the lesson, each line where it stands."""
    shared = {i for first, last in blocks_of(lines).values() for i in range(first, last + 1)}
    return ["" if i in shared else line for i, line in enumerate(lines)]


OPEN, FUNCTION, INNER = "namespace or type", "function", "all else"
LEAD = re.compile(r"\s*(?:(?:public|private|protected)\s*:\s*)*")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
ATTRIBUTE = re.compile(
    r"\b(?:__launch_bounds__|alignas|decltype|__attribute__|[A-Z][A-Z0-9_]{2,})\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)


def functions_of(lines):
    """Return name, first and last line, from 1, of every function that is defined in these lines.

    They are found by their braces: outside of functions those of a namespace or a type open a scope like the file's,
    and a brace behind a head with parentheses and without an initializer opens a function. What opens inside of a
    function, a lambda too, is part of it.
    """
    code = DIRECTIVE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), blank_out("\n".join(lines)))
    found = []
    scopes = []  # of each open brace what it opened, and of a function its name and first character
    start = parentheses = 0
    for sign in re.finditer(r"[;{}()]", code):
        at, is_open = sign.start(), not scopes or scopes[-1][0] == OPEN
        if sign[0] in "()":
            parentheses += is_open * (1 if sign[0] == "(" else -1)
        elif sign[0] == "{":
            head = code[start:at]
            bare = ATTRIBUTE.sub(" ", head).strip()
            name = re.search(r"(operator\s*[^\s\w]+|[~\w]+)\s*\(", bare)
            member = re.search(r"\)\s*:[^:].*\w$", bare, re.DOTALL)  # in the list of initializers of a constructor
            if not is_open or parentheses or member or re.match(r"[^(]*=(?!=)", bare) and "operator" not in bare:
                scopes.append((INNER, "", 0))
            elif name:
                scopes.append((FUNCTION, name[1], start + LEAD.match(head).end()))
            else:
                scopes.append((OPEN if re.search(r"\b(namespace|struct|class|union|extern)\b", bare) else INNER, "", 0))
                start = at + 1
        elif sign[0] == "}" and scopes:
            kind, name, first = scopes.pop()
            if kind == FUNCTION:
                found.append((name, code.count("\n", 0, first) + 1, code.count("\n", 0, at) + 1))
            if kind != INNER:
                start = at + 1
        elif is_open and not parentheses:
            start = at + 1
    return found


def long_functions(lines):
    return [
        f"{name} in lines {first} to {last} has {last - first + 1}"
        for name, first, last in functions_of(own_part(lines))
        if last - first + 1 > LONGEST_FUNCTION
    ]


def test_every_function_fits_on_a_screen(day):
    assert long_functions(lines_of(day)) == []


def test_a_function_that_grows_over_it_is_found(day):
    """In every function, kernels and those of a type too; a lambda counts to the function that it stands in."""
    lines = own_part(lines_of(day))
    functions = functions_of(lines)
    kernels = re.findall(r"__global__ [^;{]*?(\w+)\([^()]*\) \{", "\n".join(lines))
    assert set(kernels) <= {name for name, _, _ in functions} and "main" in {name for name, _, _ in functions}
    assert len(functions) > 40
    for name, first, last in functions:
        if not lines[last - 1].startswith(("}", "  }")):  # what is put in must stand between its braces
            continue
        grown = [*lines[: last - 1], *["  [] { int x = {0}; };"] * LONGEST_FUNCTION, *lines[last - 1 :]]
        assert (name, first, last + LONGEST_FUNCTION) in functions_of(grown), name


@pytest.mark.parametrize(
    ("code", "functions"),
    [
        ("int f(int a) {\n  return a;\n}\n", [("f", 1, 3)]),
        ("// f(a) {\nint f(int a) {\n  return '{' + \"}\"[0];\n}\n", [("f", 2, 4)]),
        ("template <int k>\n__global__ void __launch_bounds__(kThreads, g(2)) f(const T* p) {\n}\n", [("f", 1, 3)]),
        ("struct S {\n  int x;\n  int f() { return 3; }\n  S() : x(4), y{5} {\n  }\n};\n", [("f", 3, 3), ("S", 4, 5)]),
        ("class S {\n public:\n  S() {}\n private:\n  int f(int) {\n  }\n};\n", [("S", 3, 3), ("f", 5, 6)]),
        ("__global__ void BOUNDS_OF(kTile) f(const T* p) {\n}\n", [("f", 1, 2)]),
        ("const int table[] = {\n  f(1), {g(2)},\n};\nenum class E { a, b };\n", []),
        ("const auto f = [](int a) {\n  return a;\n};\n", []),
        ("void f() {\n  const auto g = [&] { h(); };\n  for (;;) {\n  }\n}\nvoid k() {}\n", [("f", 1, 5), ("k", 6, 6)]),
        ("#define M(x) \\\n  do { x; } while (0)\nvoid f() {\n  M(1);\n}\n", [("f", 3, 5)]),
        ("namespace n {\nbool operator==(A a, A b) {\n  return a.x == b.x;\n}\n}\n", [("operator==", 2, 4)]),
        ("void f(int a = 3, B b = {}) {\n}\n", [("f", 1, 2)]),
    ],
)  # fmt: skip
def test_functions_are_found_by_their_braces(day, code, functions):
    assert functions_of(code.split("\n")) == functions


def lesson_size(lines):
    return len(lines) - sum(last - first + 1 for first, last in blocks_of(lines).values())


def wrong_size(lines, name):
    most = LONGER_LESSONS.get(name, LONGEST_LESSON)
    size = lesson_size(lines)
    return (
        "" if SHORTEST_LESSON <= size <= most else f"the lesson has {size} lines: {SHORTEST_LESSON} to {most} are right"
    )


def test_a_lesson_can_be_read_in_an_evening(day):
    assert wrong_size(lines_of(day), day.parent.name) == ""


def test_a_lesson_that_is_too_long_or_too_short_is_found(day):
    lines = lines_of(day)
    most = LONGER_LESSONS.get(day.parent.name, LONGEST_LESSON)
    more = max(0, most - lesson_size(lines)) + 1
    assert f"has {max(most, lesson_size(lines)) + 1} lines" in wrong_size(
        [*lines, *["// more"] * more], day.parent.name
    )
    first, last = blocks_of(lines)["harness"]
    grown = [*lines[:last], *["// shared"] * 1000, *lines[last:]]
    assert lesson_size(grown) == lesson_size(lines)  # what is shared does not count
    short = [*lines[: blocks_of(lines)["device"][1] + 1], *lines[first - 1 : last + 1]]
    assert "lines: 500 to" in wrong_size(short, day.parent.name)


def struck_out(lines):
    """Return where a word stands that is no word of the field, with the word to take."""
    own = own_part(lines)
    code = blank_out("\n".join(own)).split("\n")
    found = []
    for where, pattern, instead in STRUCK_OUT:
        for number, line in enumerate(code if where == CODE else own, start=1):
            found += [f"{number}: '{hit[0]}': say {instead}" for hit in re.finditer(pattern, line)]
    return found


def test_names_are_words_of_the_field(day):
    assert struck_out(lines_of(day)) == []


PLANTED_WORDS = {
    "struct Feed { int x; };": "Feed",
    "template <class AFeed> int f();": "Feed",
    "struct Place { int row; };": "Place",
    "enum class Edge { kRagged };": "Edge",
    "struct Rung { const char* name; };": "Rung",
    "for (int turn = 0; turn < kTurns; ++turn) {": "turn",
    "constexpr int kHops = 4;": "kHops",
    "int hop = 3;": "hop",
    "struct Lab {": "Lab",
    "struct GraphLab {": "Lab",
    "// A Lab holds it.": "Lab",
    "struct Arm {": "Arm",
    "struct Saving {": "Saving",
    "struct Laps {": "Laps",
    "void judgeAll() {": "judge",
    "// It is judged by": "judge",
    "bool alive = true;": "alive",
    "bool isAlive = true;": "Alive",
    "void door(int m) {": "door",
    "// the front door": "door",
    'const char* kName = "door, 3 tiles";': "door",
    "int frontDoor = 1;": "Door",
    "double askedBytes = 0;": "asked",
    "// the bytes asked for": "asked",
    "// B turned over": "turned over",
    "// two slices of k": "slices of k",
}
FINE_WORDS = [
    "const char* kLabel = 0;  // labels, a lab",
    "// In turn, one after another; the edge of a matrix; Hopper; a place in the ladder, rung by rung; overlaps.",
    "int measureInTurn();  // it feeds the pipe, saving a load; arms; what it returns",
    "constexpr int kEdges = 3, placeholder = 1, indoor = 2, masked = 3;",
]


@pytest.mark.parametrize("planted", PLANTED_WORDS)
def test_a_private_word_is_found(day, planted):
    lines = lines_of(day)
    at = first_kernel(lines)
    before = len(struck_out(lines))
    found = struck_out([*lines[:at], planted, *lines[at:]])
    new = [one for one in found if one.startswith(f"{at + 1}: ")]
    assert len(found) > before and any(PLANTED_WORDS[planted] in one for one in new)


def test_plain_english_is_not(day):
    lines = lines_of(day)
    at = first_kernel(lines)
    assert len(struck_out([*lines[:at], *FINE_WORDS, *lines[at:]])) == len(struck_out(lines))


def wrong_bytes(size, largest=LARGEST_FILE):
    """Return what is wrong with a file's size; warns where it comes near."""
    if largest - (LARGEST_FILE - WARN_FROM) <= size <= largest:
        warnings.warn(f"{size} bytes of {largest}", stacklevel=1)
    return "" if size <= largest else f"{size} bytes, {largest} are the most"


def test_a_day_is_no_larger_than_a_file_may_be(day):
    assert wrong_bytes(day.stat().st_size, LARGER_FILES.get(day.parent.name, LARGEST_FILE)) == ""


def test_a_file_that_is_too_large_is_found_and_one_that_comes_near_warns(day):
    assert "131073 bytes" in wrong_bytes(LARGEST_FILE + 1)
    with pytest.warns(UserWarning, match="114688 bytes of 131072"):
        assert wrong_bytes(112 * 1024) == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wrong_bytes(112 * 1024 - 1) == ""
