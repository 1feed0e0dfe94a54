#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lower what a CUDA source says that C++ does not: kernel launches, dynamic shared memory and `__noinline__`.

    lower.py INPUT.cu -o OUTPUT.cpp

`kernel<<<grid, block, shared, stream>>>(args)` becomes

    ::cuda_cpu::launch("kernel", "kernel", kernel, ::cuda_cpu::LaunchConfig(grid, block, shared, stream))(args)

and `extern __shared__ __align__(16) float name[];`

    [[maybe_unused]] float* const name = ::cuda_cpu::dynamicShared<float>(16);

and `__noinline__`, which cannot be a macro because standard headers spell an attribute so,
`__attribute__((noinline))`.

The pieces keep their order and every newline, and a `#line` at the top names the .cu, so compilers, debuggers and
sanitizers speak of the source that people read. Nothing else changes. What cannot be lowered is an error.
"""

import argparse
import os
import pathlib
import re
import sys
import tempfile

# One token at a time: what launches never stand in (comments, strings, characters) comes first, and identifiers and
# numbers are taken whole, so that the R of a raw string and the ' of a digit separator are told from their look-alikes.
TOKEN = re.compile(
    r"""
      (?P<blank> //(?:\\\r?\n|[^\n])* | /\*.*?\*/
        | (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"
        | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+' )
    | (?P<word> [A-Za-z_]\w* | \.?\d(?:[eEpP][+-]|'?\w|\.)* )
    """,
    re.DOTALL | re.VERBOSE,
)
# An array of dynamic shared memory, in code without comments.
DYNAMIC = re.compile(
    r"""
    (?P<head> (?: \b(?:extern|__shared__)\b\s*
              | \b(?:__align__|alignas)\s*\( (?P<alignment> (?:[^();]|\([^();]*\))* ) \)\s* )+ )
    (?P<type> [^;{}()=\[\]]*? ) \b(?P<name> [A-Za-z_]\w*) \s* \[\s*\] \s* ;
    """,
    re.VERBOSE,
)
# And whatever else says extern and __shared__ in one declaration.
DYNAMIC_ATTEMPT = re.compile(r"\bextern\b[^;{}]*\b__shared__\b|\b__shared__\b[^;{}]*\bextern\b")
# Not in an attribute, where the word is spelled the same for every compiler.
NOINLINE = re.compile(r"(?<![(,:\w])(?<![(,:] )__noinline__\b")
OPENERS = {")": "(", "]": "[", "}": "{"}


class LoweringError(Exception):
    """What could not be lowered: where it stands, why, and what it is."""

    def __init__(self, offset: int, reason: str, what: str = "<<<") -> None:
        """Keep the offset into the source, which the caller turns into a line."""
        super().__init__(reason)
        self.offset = offset
        self.what = what


def blank_out(source: str) -> str:
    """Return the source with comments, strings and characters as spaces: same length, same newlines."""

    def blank(match: re.Match[str]) -> str:
        if match.group("blank") is None:
            return match.group()
        return re.sub(r"[^\n]", " ", match.group())

    return TOKEN.sub(blank, source)


def skip_space_back(code: str, end: int) -> int:
    """Return the end of the last token before `end`."""
    return len(code[:end].rstrip())


def template_start(code: str, end: int) -> int:
    """Return the offset of the `<` that the `>` at end - 1 closes, or -1."""
    angles, nested = 0, []
    for at in range(end - 1, -1, -1):
        char = code[at]
        if char in OPENERS:
            nested.append(OPENERS[char])
        elif nested:
            if char == nested[-1]:
                nested.pop()
        elif char in "([{;":
            return -1
        elif char == ">" and code[at - 1 : at] != "-":
            angles += 1
        elif char == "<":
            angles -= 1
            if angles == 0:
                return at
    return -1


def callee_start(code: str, launch: int) -> tuple[int, str]:
    """Return where the expression before `<<<` starts, and the plain name it ends in."""
    start, name = launch, ""
    while True:
        end = skip_space_back(code, start)
        if end and code[end - 1] == ">" and code[end - 2 : end] != "->":
            end = template_start(code, end)
            if end < 0:
                raise LoweringError(launch, "the template arguments before it do not close")
            end = skip_space_back(code, end)
        word = re.search(r"[A-Za-z_]\w*\Z", code[:end])
        if word is None:
            raise LoweringError(launch, "no kernel name stands before it; launch a kernel by its name")
        start, name = word.start(), name or word.group()
        if word.group() in ("operator", "return", "else", "do"):
            raise LoweringError(launch, "no kernel name stands before it; launch a kernel by its name")
        end = skip_space_back(code, start)
        joint = next((mark for mark in ("::", "->", ".") if code.endswith(mark, 0, end)), None)
        if joint is None:
            return start, name
        start = end - len(joint)
        before = skip_space_back(code, start)
        if joint == "::" and (not before or not re.search(r"[\w>]\Z", code[:before]) or keyword_ends(code[:before])):
            return start, name


def keyword_ends(code: str) -> bool:
    """Tell whether the code ends in a word after which a leading `::` starts a name."""
    return re.search(r"\b(?:return|else|do|case)\Z", code) is not None


def config_end(code: str, launch: int) -> int:
    """Return the offset of the `>>>` that closes the launch configuration."""
    nested: list[str] = []
    for at in range(launch + 3, len(code)):
        char = code[at]
        if code.startswith("<<<", at):
            raise LoweringError(launch, "another <<< stands inside it; compute the configuration before the launch")
        if char in "([{":
            nested.append(char)
        elif char in OPENERS:
            if not nested or nested.pop() != OPENERS[char]:
                break
        elif char == ";" and not nested:
            break
        elif not nested and code.startswith(">>>", at):
            return at
    raise LoweringError(
        launch, "no >>> closes it; put parentheses around a configuration that holds brackets of its own"
    )


def lower_launches(source: str, code: str) -> list[tuple[int, int, str]]:
    """Return the launches: start, end and what takes their place."""
    edits: list[tuple[int, int, str]] = []
    launch = code.find("<<<")
    while launch >= 0:
        start, name = callee_start(code, launch)
        close = config_end(code, launch)
        if edits and start < edits[-1][1]:
            raise LoweringError(launch, "it stands inside the name of another launch")
        if not code[launch + 3 : close].strip():
            raise LoweringError(launch, "its configuration is empty; give it a grid and a block")
        if not code[close + 3 :].lstrip().startswith("("):
            raise LoweringError(launch, "no argument list follows its >>>; write (...) after it, also when it is empty")
        callee = source[start:launch]
        full = re.sub(r"\s*\n\s*", " ", code[start:launch].strip())
        config = source[launch + 3 : close]
        call = f'::cuda_cpu::launch("{name}", "{full}", {callee}, ::cuda_cpu::LaunchConfig({config}))'
        edits.append((start, close + 3, call))
        launch = code.find("<<<", close + 3)
    return edits


def lower_dynamic_arrays(code: str) -> list[tuple[int, int, str]]:
    """Return the declarations of dynamic shared memory: start, end and what takes their place."""
    edits: list[tuple[int, int, str]] = []
    for match in DYNAMIC.finditer(code):
        if not {"extern", "__shared__"} <= set(re.findall(r"\w+", match["head"])):
            continue
        kind = " ".join(match["type"].split())
        alignment = " ".join((match["alignment"] or "").split())
        pointer = f"[[maybe_unused]] {kind}* const {match['name']} = ::cuda_cpu::dynamicShared<{kind}>({alignment});"
        edits.append((*match.span(), pointer + "\n" * match.group().count("\n")))
    for attempt in DYNAMIC_ATTEMPT.finditer(code):
        if not any(start <= attempt.start() < end for start, end, _ in edits):
            raise LoweringError(
                attempt.start(), "declare one array alone, as in extern __shared__ float name[];", "extern __shared__"
            )
    return edits


def lower_noinline(code: str) -> list[tuple[int, int, str]]:
    """Return the uses of CUDA's `__noinline__`: start, end and what takes their place."""
    return [(*match.span(), "__attribute__((noinline))") for match in NOINLINE.finditer(code)]


def lower(source: str) -> str:
    """Return the source with all of it lowered; raise LoweringError where that is not possible."""
    code = blank_out(source)
    pieces: list[str] = []
    done = 0
    edits = [*lower_launches(source, code), *lower_dynamic_arrays(code), *lower_noinline(code)]
    for start, end, text in sorted(edits):
        pieces += [source[done:start], text]
        done = end
    pieces.append(source[done:])
    return "".join(pieces)


def write_whole(path: pathlib.Path, text: str) -> None:
    """Write the file under another name and move it into place, so that nobody compiles half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main() -> int:
    """Lower one file as the command line says."""
    parser = argparse.ArgumentParser(description="Lower what a CUDA source says that C++ does not.")
    parser.add_argument("input", type=pathlib.Path, metavar="INPUT.cu")
    parser.add_argument("-o", dest="output", type=pathlib.Path, metavar="OUTPUT.cpp", required=True)
    arguments = parser.parse_args()
    try:
        source = arguments.input.read_bytes().decode("utf-8")
        lowered = lower(source)
        named = str(arguments.input).replace("\\", "\\\\").replace('"', '\\"')
        write_whole(arguments.output, f'#line 1 "{named}"\n{lowered}')
    except LoweringError as error:
        line = source.count("\n", 0, error.offset) + 1
        print(f"{arguments.input}:{line}: cannot lower this {error.what}: {error}", file=sys.stderr)
        return 1
    except (OSError, UnicodeDecodeError) as error:
        print(f"{arguments.input}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
