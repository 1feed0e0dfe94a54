"""What a tool reads, from files and from its children, does not depend on the user's locale."""

import ast
import sys

import pytest
from conftest import SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "scripts"))
from resources import plain_locale  # noqa: E402 (lies in the folder named just above)

TOOLS = sorted(path for folder in ("scripts", "day*", "common/cpu") for path in SOURCE_DIR.glob(f"{folder}/*.py"))
STARTS = {"run", "Popen", "call", "check_call", "check_output"}
# Of the same name: a low-level descriptor, and our own functions, which decode what they read.
OPENS_NO_TEXT = {"os.open", "read_text", "merge_dram.read_text"}


def faults_of(source):
    """Return line and reason of each call that starts a child or opens a text as the locale says."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        owner, _, method = name.rpartition(".")
        options = {keyword.arg for keyword in call.keywords}  # None: a dictionary of options, which is not looked into
        if owner == "subprocess" and method in STARTS and not options & {"env", None}:
            found.append((call.lineno, "starts a child without env=plain_locale(...)"))
        if name in OPENS_NO_TEXT or method not in ("read_text", "write_text", "open", "fdopen"):
            continue
        mode = call.args[0 if method == "open" and owner else 1 :][:1]
        binary = method in ("open", "fdopen") and mode and "b" in str(getattr(mode[0], "value", ""))
        if not binary and "encoding" not in options:
            found.append((call.lineno, f"{method} without encoding="))
    return found


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.name)
def test_children_speak_c_and_files_are_utf_8(path):
    assert faults_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("subprocess.run(words)", 1),
        ("subprocess.check_output(words, text=True)", 1),
        ("subprocess.run(words, env=plain_locale())", 0),
        ("path.read_text()", 1),
        ("path.read_text(encoding='utf-8')", 0),
        ("open(name)", 1),
        ("open(name, 'w')", 1),
        ("open(name, 'rb')", 0),
        ("path.open('wb')", 0),
        ("path.open()", 1),
        ("os.fdopen(descriptor, 'wb')", 0),
        ("os.fdopen(descriptor, 'w')", 1),
    ],
)
def test_a_planted_call_is_found(line, faults):
    assert len(faults_of(line)) == faults


def test_the_c_locale_wins(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LC_NUMERIC", "de_DE.UTF-8")
    assert plain_locale(X="1")["LC_ALL"] == "C" and plain_locale(X="1")["X"] == "1"
