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
}

// ---- Report

void print() { printf("%5.1f\\n", 100.0); }
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
        ("exclude each other", "are two modes", False),
        ('line.text("message"', 'line.text("words"', False),
        ("0xFF, bytes", "0xFE, bytes", False),
    ]:
        assert text.count(old) == 1, old
        assert (timing(tmp_path, text.replace(old, new)) != whole) == changes, old


@pytest.mark.parametrize("text", ["int x;\n", "// ---- Timing\nint x;\n// ---- Timing\n"])
def test_a_header_without_one_such_section_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="and has to be there once"):
        timing(tmp_path, text)
