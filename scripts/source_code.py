"""What of a day's source can change a figure, as a digest: its measured code, and the timing code that all days share.

Measured is all of a day's own code above the line `// ---- Report`, with the shared block `device` and without the
others: kernels, their sizes, launches, references, what is sampled and how. Timing code is what stands in
common/lesson.cuh under the line `// ---- Timing`, up to the next such line or the end of its block: it warms up,
samples and takes medians. The rest of that header, reports, help texts, includes and what a comment or white space
says change no figure, and neither do the words of a message nor the order in which a file declares things.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from sync_common import MASTER, find_blocks

DEVICE = "device"  # the shared block that kernels use
SECTION = re.compile(r"// ---- (?P<title>.*?)[ -]*")
REPORT, TIMING = "Report", "Timing"

# Up to the end of a statement that starts so, a string is words for people.
MESSAGES = {"throw", "printf", "fprintf", "snprintf", "fputs", "say", "static_assert"}
NESTING = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}  # what a token adds to the depth
HELP = ["constexpr", "Program"]  # a declaration that starts so is the help text's
WORDS = '""'  # stands for any of them

TOKEN = re.compile(
    r"""
    (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^\s()\\"]{0,16})\(.*?\)(?P=delimiter)")
  | (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
  | (?P<literal>(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')(?:[A-Za-z_]\w*)?)
  | (?P<splice>\\\n)
  | (?P<newline>\n)
  | (?P<space>[ \t\v\f]+)
  | (?P<word>\.?[0-9](?:[eEpP][+-]|'\w|[\w.])*|\w+)
  | (?P<sign><<<|>>>|<<=|>>=|<=>|->\*|\.\.\.|::|\.\*|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|.)
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens_of(text: str) -> list[str]:
    r"""Return the tokens of C++ or CUDA source: what the compiler sees of it once comments and white space are gone.

    Two line ends stay, because they mean something: a directive starts with the token "\n#" and ends with "\n". So does
    the lack of a space in `#define NAME(`, which becomes "NAME(". Lines joined by a backslash are one, except in raw
    strings, which stay as they are.
    """
    text = text.replace("\r\n", "\n")
    pieces = []
    for match in TOKEN.finditer(text):
        if match.lastgroup != "splice":
            pieces.append(match[0] if match.lastgroup == "raw" else match[0].replace("\\\n", ""))
    text = "".join(pieces)

    tokens: list[str] = []
    in_directive, line_is_empty = False, True
    for match in TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "newline":
            if in_directive:
                tokens.append("\n")
            in_directive, line_is_empty = False, True
        elif kind not in ("space", "comment"):
            if token == "#" and line_is_empty:
                in_directive, token = True, "\n#"
            elif tokens[-2:] == ["\n#", "define"] and text[match.end() : match.end() + 1] == "(":
                token += "("
            line_is_empty = False
            tokens.append(token)
    return tokens + ["\n"] if in_directive else tokens


def declarations_of(tokens: Iterable[str]) -> Iterator[list[str]]:
    """Give the declarations of a file one by one, and its directives; what stands under an `#if` is one with it."""
    found: list[str] = []
    depth = ifs = 0
    directive = ended = False  # in one; a brace has closed what may go on with a semicolon or an initializer
    for token in tokens:
        if ended and token not in (";", ",", "=", "{"):
            yield found
            found = []
        ended = False
        if directive and found[-1] == "\n#":
            ifs += {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}.get(token, 0)
        found.append(token)
        if token == "\n#":
            directive = True
        elif directive:
            directive = token != "\n"
            if not directive and depth == ifs == 0:
                yield found
                found = []
        else:
            depth += NESTING.get(token, 0)
            if depth == ifs == 0 and token == ";":
                yield found
                found = []
            ended = depth == ifs == 0 and token == "}"
    if found:
        yield found


def without_messages(tokens: list[str]) -> list[str]:
    """Return tokens in which the strings of every message are the same."""
    result = []
    depth = 0
    level: int | None = None  # the depth at which a message started
    for token in tokens:
        depth += NESTING.get(token, 0)
        if level is None and token in MESSAGES:
            level = depth
        elif level is not None and (depth < level or (depth == level and token == ";")):
            level = None
        quoted = level is not None and token.endswith('"')
        if not (quoted and result and result[-1] == WORDS):  # pieces of a string are one
            result.append(WORDS if quoted else token)
    return result


def digest_of(tokens: Iterable[str]) -> str:
    """Return the SHA-256 of some code, 64 hex digits: the same in whatever order it declares things."""
    kept = []
    for declaration in declarations_of(tokens):
        if declaration[:2] != ["\n#", "include"] and declaration[:2] != HELP:
            kept.append("\0".join(without_messages(declaration)))
    return hashlib.sha256("\0\0".join(sorted(kept)).encode("utf-8", "surrogateescape")).hexdigest()


def text_of(path: Path) -> str:
    """Return a source as text, whatever its bytes. Raises OSError."""
    return path.read_bytes().decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def measured_code(source: Path) -> str:
    """Return the digest of a day's measured code. Raises OSError."""
    lines = text_of(source).split("\n")
    shared = [block for block in find_blocks(lines, source)[0] if block.name != DEVICE]
    own = []
    for number, line in enumerate(lines):
        if any(block.first <= number < block.last for block in shared):
            continue
        section = SECTION.fullmatch(line)
        if section and section["title"] == REPORT:
            break
        own.append(line)
    return digest_of(tokens_of("\n".join(own)))


def timing_code(root: Path) -> str:
    """Return the digest of the timing code of all days below `root`. Raises OSError, and ValueError: there is none."""
    lines = text_of(root / MASTER).split("\n")
    starts = [i for i, line in enumerate(lines) if (at := SECTION.fullmatch(line)) and at["title"] == TIMING]
    if len(starts) != 1:
        raise ValueError(
            f"{MASTER}: the line '// ---- {TIMING}' stands there {len(starts)} times, and has to be there once"
        )
    start = starts[0] + 1
    ends = [i for i, line in enumerate(lines) if i >= start and (SECTION.fullmatch(line) or "// end common: " in line)]
    return digest_of(tokens_of("\n".join(lines[start : min(ends, default=len(lines))])))
