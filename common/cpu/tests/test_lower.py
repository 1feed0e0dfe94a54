# SPDX-License-Identifier: MIT
"""lower.py: launches become calls, dynamic shared memory a pointer, and nothing else changes."""

import pathlib
import subprocess
import sys

import pytest

LOWER = pathlib.Path(__file__).resolve().parents[1] / "lower.py"


@pytest.fixture
def lower(tmp_path):
    """Return a function that lowers a source and gives exit code, lowered text and messages."""

    def lower_one(source):
        given, made = tmp_path / "day.cu", tmp_path / "day.cpp"
        given.write_bytes(source.encode())
        result = subprocess.run([sys.executable, LOWER, given, "-o", made], capture_output=True, text=True, check=False)
        text = made.read_bytes().decode() if made.exists() else None
        if text is not None:
            line, _, text = text.partition("\n")
            assert line == f'#line 1 "{given}"'
        return result.returncode, text, result.stderr

    return lower_one


def call(name, config, full=None, callee=None):
    """Return what a launch of this kernel becomes."""
    full = full or name
    return f'::cuda_cpu::launch("{name}", "{full}", {callee or full}, ::cuda_cpu::LaunchConfig({config}))'


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("k<<<1, 2>>>(a, b);", call("k", "1, 2") + "(a, b);"),
        ("k <<< g , b >>> ();", call("k", " g , b ", callee="k ") + " ();"),
        ("k<<<g, b, 0, s>>>(f(1, 2));", call("k", "g, b, 0, s") + "(f(1, 2));"),
        (
            "if (x) k<<<1, 2>>>(); else j<<<3, 4>>>();",
            "if (x) " + call("k", "1, 2") + "(); else " + call("j", "3, 4") + "();",
        ),
        ("k<<<dim3{1, 2}, n > 3 ? dim3(4) : b>>>(x);", call("k", "dim3{1, 2}, n > 3 ? dim3(4) : b") + "(x);"),
        ("ns::foo<float4, 8><<<1, 2>>>(p);", call("foo", "1, 2", "ns::foo<float4, 8>") + "(p);"),
        ("::foo<A<B<int>>><<<1, 2>>>(p);", call("foo", "1, 2", "::foo<A<B<int>>>") + "(p);"),
        ("foo<(3 > 2)><<<(a >>> 1), 2>>>(p);", call("foo", "(a >>> 1), 2", "foo<(3 > 2)>") + "(p);"),
        ("a<int>::b<2><<<1, 2>>>(p);", call("b", "1, 2", "a<int>::b<2>") + "(p);"),
        ("return ::k<<<1, 2>>>();", "return " + call("k", "1, 2", "::k") + "();"),
        ("row.kernel<<<1, 2>>>(p);", call("kernel", "1, 2", "row.kernel") + "(p);"),
        ("row->kernel<<<1, 2>>>(p);", call("kernel", "1, 2", "row->kernel") + "(p);"),
        ("[] { k<<<1, 2>>>(); };", "[] { " + call("k", "1, 2") + "(); };"),
        ("int n = 1'000; k<<<1'0, 2>>>('\\'', '<');", "int n = 1'000; " + call("k", "1'0, 2") + "('\\'', '<');"),
        ("k<<<n /* >>> */, 2>>>(p);", call("k", "n /* >>> */, 2") + "(p);"),
    ],
)
def test_launches_become_calls(lower, source, want):
    assert lower(source) == (0, want, "")


@pytest.mark.parametrize(
    ("source", "kind", "name", "alignment"),
    [
        ("extern __shared__ float s[];", "float", "s", ""),
        ("extern\t__shared__  unsigned   char\n raw [ ] ;", "unsigned char", "raw", ""),
        ("__shared__ extern T s[];", "T", "s", ""),
        ("extern __shared__ __align__(16) float4 s[];", "float4", "s", "16"),
        ("extern __align__(sizeof(T)) __shared__ T s[];", "T", "s", "sizeof(T)"),
        ("extern __shared__ alignas(2 * kLine) Pair<float, 2> s[];", "Pair<float, 2>", "s", "2 * kLine"),
        ("extern __shared__ /* all of it */ volatile int* s[]; // extern", "volatile int*", "s", ""),
    ],
)
def test_dynamic_arrays_become_pointers(lower, source, kind, name, alignment):
    declaration, _, comment = source.partition("; ")
    want = f"[[maybe_unused]] {kind}* const {name} = ::cuda_cpu::dynamicShared<{kind}>({alignment});"
    want += "\n" * declaration.count("\n") + (f" {comment}" if comment else "")
    assert lower(source) == (0, want, "")


def test_launches_and_arrays_mix(lower):
    source = "void k() { extern __shared__ int s[]; }\nvoid f() { k<<<1, 2>>>(); }\n"
    code, text, _ = lower(source)
    assert code == 0
    assert text.count("dynamicShared<int>()") == text.count("cuda_cpu::launch(") == 1
    assert text.index("dynamicShared") < text.index("\n") < text.index("cuda_cpu::launch(")


@pytest.mark.parametrize(
    "source",
    [
        "// k<<<1, 2>>>();\n",
        "// extern __shared__ float s[];\n",
        "__shared__ float tile[16][16]; extern int x; extern int y[];\n",
        "// continued \\\nk<<<1, 2>>>();\n",
        "/* k<<<1,\n2>>>(); */ int x;\n",
        'const char* s = "k<<<1, 2>>>() \\" <<<";\n',
        'auto s = R"(k<<<1, 2>>>() " )";\n',
        'auto s = u8R"x(k<<< )" )x";\n',
        "int shift = 1 << 2 >> 3;\n",
        "std::vector<std::vector<std::vector<int>>> deep;\n",
        "#error it's <> fine\n",
        "char quote = '\"'; int n = 0x1'f; char other = '\"';\n",
        "no newline at the end",
        "windows\r\nlines\r\n",
    ],
)
def test_nothing_else_changes(lower, source):
    assert lower(source) == (0, source, "")


def test_every_line_stays_where_it_was(lower):
    source = "a;\nfoo<\n  int,\n  2>\n<<<\n  grid,\n  block\n>>>(\n  x,\n  y);\nlast;\n"
    code, text, _ = lower(source)
    assert code == 0
    assert text.count("\n") == source.count("\n")
    where = {word: number for number, line in enumerate(source.splitlines()) for word in line.split()}
    for word in ("2>", "grid,", "block", "x,", "y);", "last;"):
        assert word.rstrip(",") in text.splitlines()[where[word]]
    assert '"foo", "foo< int, 2>"' in text


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("\n\n(*table[0])<<<1, 2>>>();", 3, "launch a kernel by its name"),
        ("\nk<<<1, 2;", 2, "no >>> closes it"),
        ("k<<<1, 2>>>;", 1, "no argument list"),
        ("k<<<>>>();", 1, "configuration is empty"),
        ("k<<<f<<<1, 2>>>(), 3>>>();", 1, "another <<<"),
        ("x = ><<<1, 2>>>();", 1, "do not close"),
        ("return <<<1, 2>>>();", 1, "launch a kernel by its name"),
        ("k<<<(1, 2>>>();", 1, "no >>> closes it"),
    ],
)
def test_what_cannot_be_lowered_fails_with_its_line(lower, source, line, reason):
    code, text, message = lower(source)
    assert code == 1
    assert text is None
    assert f"day.cu:{line}: cannot lower this <<<: " in message
    assert reason in message


@pytest.mark.parametrize(
    "source",
    [
        "\nextern __shared__ float a[], b[];",
        "\nextern __shared__ float s[][32];",
        "\nextern __shared__ float s;",
        "\nextern __shared__ float (s)[];",
        "\n__shared__ static extern float s[];",
    ],
)
def test_a_dynamic_array_that_cannot_be_lowered_fails_with_its_line(lower, source):
    code, text, message = lower(source)
    assert code == 1
    assert text is None
    assert "day.cu:2: cannot lower this extern __shared__: declare one array alone" in message


def test_a_failure_leaves_the_old_output(lower, tmp_path):
    assert lower("k<<<1, 2>>>();")[0] == 0
    before = (tmp_path / "day.cpp").read_bytes()
    assert lower("k<<<1, 2;")[0] == 1
    assert (tmp_path / "day.cpp").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["day.cpp", "day.cu"]


def test_a_missing_input_is_named(tmp_path):
    result = subprocess.run(
        [sys.executable, LOWER, tmp_path / "none.cu", "-o", tmp_path / "out.cpp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "none.cu" in result.stderr
