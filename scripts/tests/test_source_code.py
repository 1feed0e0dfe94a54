"""scripts/source_code.py: what can change a figure changes the digest, and nothing else does."""

import importlib
import re
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
SOURCE_CODE = importlib.import_module("source_code")

CODE = r"""#include <cmath>
#define TWICE(x) \
  ((x) + (x))
int f(int a) { return a++ + 1'000; }  // it's "odd"
const char* s = "/* no comment */ // none";
char c = '"';  /* a "quote */
const char* raw = R"x(a // b " )" \
end)x";
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('// it\'s "odd"', "// even"),
        ('// it\'s "odd"', ""),
        ('/* a "quote */', '/* several\n lines of " it */'),
        ("{ return", "{\n\n  return"),
        ("int f(int a)", "int  f (\n\tint a )"),
        ("\\\n  ((x)", "((x)"),
        ("((x) + (x))", "( ( x )  + (x) )  // sum"),
        ("int f", "in\\\nt f"),
        ("return a", "return/**/a"),
        ("char c", "// \\\n int gone;\nchar c"),
        ("\n", "\r\n"),
        ("#include", "  #  include"),
    ],
)
def test_comments_and_white_space_leave_the_tokens_alone(old, new):
    assert old in CODE
    assert SOURCE_CODE.tokens_of(CODE.replace(old, new)) == SOURCE_CODE.tokens_of(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1'000", "1'001"),
        ("a++ + 1", "a + ++1"),
        ("a++ + 1", "a+ + + 1"),
        ("return a", "returna"),
        ("/* no comment */", "/* a comment */"),
        ("// none", "//none"),
        ("'\"'", "'\\''"),
        ('const char* s = "', 'const char* s = L"'),
        ("a // b", "a //  b"),
        ('" )" \\', '" )"\\'),
        ("\\\nend)x", "end)x"),
        ("TWICE(x)", "TWICE (x)"),
        ("int f(", "// int f("),
        ("((x) + (x))\n", "((x) + (x)) "),
        ("#include <cmath>", "#include <cstdio>"),
        ("#include", "int x; #include"),
    ],
)
def test_every_change_of_a_token_changes_the_tokens(old, new):
    assert old in CODE
    assert SOURCE_CODE.tokens_of(CODE.replace(old, new)) != SOURCE_CODE.tokens_of(CODE)


def test_tokens_are_those_of_the_language():
    code = '#define A(x) x\nk<<<1, 2>>>(.5e-3f, a->b, u8"x"_s, \'a\', R"(r)");'
    assert SOURCE_CODE.tokens_of(code) == (
        ["\n#", "define", "A(", "(", "x", ")", "x", "\n", "k", "<<<", "1", ",", "2", ">>>", "(", ".5e-3f", ","]
        + ["a", "->", "b", ",", 'u8"x"_s', ",", "'a'", ",", 'R"(r)"', ")", ";"]
    )


def test_a_real_day_with_a_comment_on_every_line_has_the_same_tokens(source_dir):
    sources = sorted(source_dir.glob("day*/*.cu"))
    assert sources
    for source in sources:
        text = source.read_text()
        raw = [match.span() for match in SOURCE_CODE.TOKEN.finditer(text) if match.lastgroup == "raw"]
        noted = []
        for end in re.finditer(r"(?<!\\)\n", text):  # not where it would be no comment: in a raw string
            if not any(first < end.start() < last for first, last in raw):
                noted.append(end.start())
        assert len(noted) > 100
        for end in reversed(noted):
            text = f'{text[:end]}  // it\'s "noted"{text[end:]}'
        assert SOURCE_CODE.tokens_of(text) == SOURCE_CODE.tokens_of(source.read_text())


# ---- a day's measured code -------------------------------------------------------------------------------------------

DAY = """\
// SPDX
#include <cmath>

// common: device
struct ClockSpan { long long cycles; };
// end common: device

constexpr int kBlock = 256;
__global__ void add(const float* a, float* out, int n) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < n) out[i] = a[i] + 1;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(i));
}

// common: harness
inline void refuse() { throw Stop{1, "unknown argument"}; }
template <class... Arguments>
Launch launch(Kernel kernel, dim3 grid, dim3 block, Arguments... arguments) {
  return [=](cudaStream_t stream) { kernel<<<grid, block, 0, stream>>>(arguments...); };
}
// end common: harness

constexpr Program kProgram = {49, "fake", "Day 49: for the tests."};

#ifdef BIG
constexpr int kSize = 4096;
#else
constexpr int kSize = 1024;
#endif

void measure(float* data) {
  add<<<kSize, kBlock>>>(data, data, 7);
  if (rates.at("copy") > 1) throw Stop{1, string("too fast: ") + "by far"};
  printf("%d done\\n", 3);
  report.say("%s of %d" " are timed\\n", "copies", 7);
}

const Row kRows[] = {{"add", launch(add, ceilDivide(kSize, kBlock), kBlock, kSize)}};

// ---- Report

void print() { printf("%5.1f\\n", 100.0); }
const vector<Column<Row>> kColumns = {{"time", "ms", 9, 4, "ms", [](const Row& row) { return row.ms; }}};
int main() { return 0; }
"""


def digest(folder, text):
    path = folder / "fake.cu"
    path.write_text(text)
    return SOURCE_CODE.measured_code(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#include <cmath>", "#include <cmath>\n#include <cstdio>"),
        ("unknown argument", "unknown option"),
        ("inline void refuse()", "inline int more = 7;\ninline void refuse()"),
        ("Day 49: for the tests.", "Day 49, for tests."),
        ("too fast: ", "impossible: "),
        ('"too fast: ") + "by far"', '"too fast: " "by ") + "far"'),
        ("%d done", "%4d are done"),
        ('"%s of %d" " are timed\\n", "copies", 7', '"%d %s were timed\\n", "of the copies", 7'),
        ('{"time", "ms", 9', '{"duration", "ms", 12'),
        ("%5.1f", "%6.2f"),
        ("100.0", "200.0"),
        ("constexpr int kBlock = 256;\n__global__", "__global__"),
    ],
)
def test_words_shared_code_and_the_report_change_no_figure(tmp_path, old, new):
    assert old in DAY
    moved = DAY.replace(old, new)
    if "kBlock = 256" not in moved:  # declared elsewhere: what it says is the same
        moved = moved.replace("#ifdef BIG", "constexpr int kBlock = 256;\n#ifdef BIG")
    assert digest(tmp_path, moved) == digest(tmp_path, DAY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a[i] + 1", "a[i] - 1"),
        ("i < n", "i <= n"),
        ("kBlock = 256", "kBlock = 128"),
        ("%%globaltimer", "%%clock64"),
        ("long long cycles", "long cycles"),
        ("<<<kSize, kBlock>>>", "<<<kBlock, kSize>>>"),
        ("launch(add, ceilDivide(kSize, kBlock)", "launch(add, 2 * ceilDivide(kSize, kBlock)"),
        ("kBlock, kSize)}};", "kBlock, kSize - 1)}};"),
        ('{"add", launch', '{"sum", launch'),
        ("kSize = 4096", "kSize = 8192"),
        ("#ifdef BIG", "#ifndef BIG"),
        ('rates.at("copy")', 'rates.at("read")'),
        (" > 1)", " > 2)"),
        ("// end common: device", "inline int more = 7;\n// end common: device"),
    ],
)
def test_what_is_measured_is_in_the_digest(tmp_path, old, new):
    assert old in DAY
    assert digest(tmp_path, DAY.replace(old, new)) != digest(tmp_path, DAY)


def test_a_declaration_that_moves_is_the_same_and_one_that_grows_is_not(tmp_path):
    functions = ["int f() { return 1; }", "struct S {\n  int x;\n};", "int a[] = {1, 2};", "using T = int;"]
    first = digest(tmp_path, "\n".join(functions))
    assert digest(tmp_path, "\n".join(reversed(functions))) == first
    assert digest(tmp_path, "\n".join(functions[1:])) != first
    assert digest(tmp_path, "\n".join([*functions, functions[0]])) != first
    parts = list(SOURCE_CODE.declarations_of(SOURCE_CODE.tokens_of("\n".join(functions))))
    assert [part[0] for part in parts] == ["int", "struct", "int", "using"]


def test_every_day_is_split_into_its_declarations(source_dir):
    """None runs into the next one: then the order would count, and a fault in the splitting would go unseen."""
    for source in sorted(source_dir.glob("day*/*.cu")):
        parts = list(SOURCE_CODE.declarations_of(SOURCE_CODE.tokens_of(source.read_text())))
        assert len(parts) > 100
        assert all(part[-1] in (";", "}", "\n") for part in parts), source
        kernels = sum("__global__" in part for part in parts)
        assert kernels > 5


FIRST_OPERATOR = re.compile(r" ([-+*/<]) ")  # of those whose operands are values


def changed(text, pattern, replacement, within):
    """Return the text with the first hit behind `within`, in no comment, exchanged; None if there is none."""
    comments = [match.span() for match in SOURCE_CODE.TOKEN.finditer(text) if match.lastgroup == "comment"]
    code = text
    for first, last in comments:
        code = code[:first] + " " * (last - first) + code[last:]
    hit = pattern.search(code, text.index(within))
    return hit and text[: hit.start(1)] + replacement(hit[1]) + text[hit.end(1) :]


@pytest.mark.parametrize(
    ("what", "pattern", "replacement", "within", "moves"),
    [
        ("an operator in a kernel", FIRST_OPERATOR, lambda sign: "-" if sign != "-" else "+", "\n__global__", True),
        (
            "an error message",
            re.compile(r"throw Stop\{\s*kExit\w+,\s*(?:string\()?\"([^\"]+)\""),
            str.upper,
            "// end common: harness\n",
            False,
        ),
        ("what is said", re.compile(r"\.say\(\s*\"([^\"]+)\""), str.upper, "// end common: harness\n", False),
        ("a heading", re.compile(r"\{\"(\w[^\"]*)\", \"[^\"]*\", -?\d+, \d+,"), str.upper, "\n// ---- Report", False),
    ],
)
def test_real_days_change_by_what_can_change_a_figure(source_dir, tmp_path, what, pattern, replacement, within, moves):
    found = 0
    for source in sorted(source_dir.glob("day*/*.cu")):
        text = source.read_text()
        edited = changed(text, pattern, replacement, within)
        if edited is None:
            continue
        found += 1
        assert edited != text, source
        assert (digest(tmp_path, edited) != digest(tmp_path, text)) == moves, f"{what} in {source}"
    assert found >= 2, what


def test_columns_stand_in_the_report(source_dir):
    """There a heading is nobody's figure."""
    for source in sorted(source_dir.glob("day*/*.cu")):
        measured = source.read_text().partition("\n// end common: harness\n")[2].partition("\n// ---- Report\n")[0]
        assert measured and "Column<" not in measured, source


# ---- the timing code -------------------------------------------------------------------------------------------------


def timing(folder, text):
    (folder / "common").mkdir(exist_ok=True)
    (folder / "common/lesson.cuh").write_text(text)
    return SOURCE_CODE.timing_code(folder)


def test_the_timing_code_is_one_section_of_the_shared_header(source_dir, tmp_path):
    text = (source_dir / "common/lesson.cuh").read_text()
    whole = timing(tmp_path, text)
    assert whole == SOURCE_CODE.timing_code(source_dir)
    for old, new, changes in [
        ("kSamples = 21", "kSamples = 11", True),
        ("samples / 2]", "samples / 3]", True),
        ("now - previous", "now + previous", True),
        ("++sample)", "sample += 2)", True),
        ("which cannot be", "which is impossible", False),
        ("unknown argument", "unknown option", False),
        ("--check and --profile exclude each other", "--check and --profile are two modes", False),
        ("kernel<<<grid, block, sharedBytes, stream>>>", "kernel<<<block, grid, sharedBytes, stream>>>", True),
        (
            "launchShared(kernel, grid, block, 0, arguments...)",
            "launchShared(kernel, grid, block, 1, arguments...)",
            True,
        ),
        ('"result", "", -6', '"outcome", "", -6', False),
        ('add("backend", kOnCpu', 'add("made", kOnCpu', False),
        ("0xFF, bytes", "0xFE, bytes", False),
    ]:
        assert text.count(old) == 1, old
        assert (timing(tmp_path, text.replace(old, new)) != whole) == changes, old


@pytest.mark.parametrize("text", ["int x;\n", "// ---- Timing\nint x;\n// ---- Timing\n"])
def test_a_header_without_one_such_section_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="and has to be there once"):
        timing(tmp_path, text)
