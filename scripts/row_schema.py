"""The versions of a run's JSON lines (scripts/schema/row.schema.json), of which old ones are brought up to the newest.

Recorded folders keep the lines that a program printed. Version 1 called the bytes that a kernel requests from global
memory `bytes`; version 2 says `requested_bytes`, and has the names below. Whatever reads runs calls `up_to_date` on
each line, and knows the names of the newest version alone.
"""

from __future__ import annotations

from typing import Any

VERSION = 2  # what the days print: "schema" of the run record
READABLE = (1, VERSION)

_TIMED = ("ceiling", "row", "shape", "pattern", "sweep", "plateau", "curve", "scaling", "merged")
# By type of record: what a key of version 1 is called in version 2.
_RENAMED: dict[Any, dict[str, str]] = {kind: {"bytes": "requested_bytes"} for kind in _TIMED}
_RENAMED["row"].update(least="compulsory_intensity", line="mix_ceiling")
_RENAMED["merged"].update(asked_per_dram="requested_per_dram")


def up_to_date(record: dict[str, Any], version: Any) -> dict[str, Any]:
    """Return a line with the names of the newest version, its keys in the same order; `version` is its run record's.

    A line of another version than READABLE, or of none, stays as it is: whoever reads it refuses it.
    """
    if not is_readable(version) or version == VERSION:
        return record
    kind = record.get("record")
    if kind == "run":
        return {**record, "schema": VERSION}
    renamed = _RENAMED.get(kind, {}) if isinstance(kind, str) else {}
    # A line that has the new name too is wrong, and is left for the schema to refuse.
    return {key if renamed.get(key, key) in record else renamed[key]: value for key, value in record.items()}


def is_readable(version: Any) -> bool:
    """Tell whether lines of this version can be read."""
    return type(version) is int and version in READABLE


def known_versions() -> str:
    """Return the versions for a message: "1 and 2"."""
    return " and ".join(map(str, READABLE))
