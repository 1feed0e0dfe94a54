"""What CMake, scripts and tests need to know about a day and cannot ask its program: dayNN-name/day.json.

number            of the day
program           its source is PROGRAM.cu in the same folder, what is built of it PROGRAM
libraries         CMake targets that it links
headers           parts of the toolkit without which there is no such day
optional_headers  parts that it can do without
counters          whether its lesson is the hardware counters, so that a recording takes them
timeline          whether it has something to show on a timeline (scripts/timeline.py)
not_profiled      kernels that --profile leaves out: one that another stands for, one that takes no shape that is
                  profiled, or a tool of the measurement
kernels           what each kernel was designed for: threads and bytes of dynamic shared memory of a block, and how many
                  blocks an SM then holds, by architecture; none where that is not the lesson
off               why what was predicted of some kernels' traffic is off: their names as a regular expression, the
                  quantity, and a sentence for the page
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = "day[0-9][0-9]-*/day.json"
KEYS = {
    "number": int,
    "program": str,
    **dict.fromkeys(("libraries", "headers", "optional_headers", "not_profiled"), list),
    **dict.fromkeys(("counters", "timeline"), bool),
    "kernels": dict,
    "off": list,
}
OFF_KEYS = {"kernels", "quantity", "why"}
DESIGN_KEYS = {"threads", "dynamic_shared", "blocks_per_sm"}


class BadFacts(Exception):
    """A day.json that cannot be used; the text says which, what is wrong, and the way out."""


@dataclass(frozen=True)
class Facts:
    """A day's facts, as above, and its folder, relative to the repository."""

    folder: str
    number: int
    program: str
    libraries: list[str]
    headers: list[str]
    optional_headers: list[str]
    counters: bool
    timeline: bool
    not_profiled: list[str]
    kernels: dict[str, dict[str, Any]]
    off: list[dict[str, str]]

    @property
    def source(self) -> str:
        """The day's source, relative to the repository."""
        return f"{self.folder}/{self.program}.cu"


def read_facts(root: Path, folder: str) -> Facts:
    """Return the facts of the day in a folder of `root`. Raises BadFacts."""
    shown = f"{folder}/day.json"
    try:
        facts = json.loads((root / shown).read_text(encoding="utf-8"))
        for key, kind in KEYS.items():
            if key not in facts:
                raise BadFacts(f"{shown}: has no '{key}': scripts/day_facts.py says what it is")
            if type(facts[key]) is not kind:
                raise BadFacts(f"{shown}: {key} is {facts[key]!r}, and must be a {kind.__name__}")
        unknown = sorted(facts.keys() - KEYS.keys())
        if unknown:
            raise BadFacts(f"{shown}: nothing reads '{unknown[0]}': take it out, or correct its name")
        for name, design in facts["kernels"].items():
            if not isinstance(design, dict) or design.keys() != DESIGN_KEYS:
                raise BadFacts(f"{shown}: the design of {name} must have {', '.join(sorted(DESIGN_KEYS))}")
        for reason in facts["off"]:
            if not isinstance(reason, dict) or reason.keys() != OFF_KEYS:
                raise BadFacts(f"{shown}: what is off must have {', '.join(sorted(OFF_KEYS))}: {reason!r}")
    except FileNotFoundError:
        raise BadFacts(f"{shown}: missing, and every day has one: scripts/day_facts.py says what is in it") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise BadFacts(f"{shown}: cannot be read as the facts of a day ({error}): mend it") from None
    if f"day{facts['number']:02d}-" != folder[:6]:
        raise BadFacts(f"{shown}: number is {facts['number']}, and the folder is {folder}: one of the two is wrong")
    found = Facts(folder, **facts)
    if not (root / found.source).is_file():
        raise BadFacts(f"{shown}: program is '{found.program}', and there is no {found.source}")
    return found


def find_facts(root: Path) -> list[Facts]:
    """Return the facts of all days below `root`, in order of number. Raises BadFacts."""
    return [read_facts(root, path.parent.name) for path in sorted(root.glob(FILES))]


def facts_of(root: Path, number: int) -> Facts:
    """Return the facts of one day. Raises BadFacts, also if there is no such day."""
    found = {facts.number: facts for facts in find_facts(root)}
    if number not in found:
        raise BadFacts(f"day {number}: no such day: there is {', '.join(map(str, found)) or 'none'}")
    return found[number]
