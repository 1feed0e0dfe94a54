"""A folder as scripts/evidence.py records it, with every day that has a chart, for the tests of charts and page."""

import json
import shutil
from pathlib import Path

H200 = Path(__file__).resolve().parents[2] / "profile" / "h200"
LINES = Path(__file__).parent / "data" / "roofline"  # runs on an H200, without their checks


def fill(folder, device=None):
    """Fill a new folder as if all days were recorded there, with the figures of data/roofline; return the folder.

    Manifest and texts are what the repository records, so that figures recorded anew change no test.
    """
    folder.mkdir(parents=True)
    for path in [*H200.glob("*.json"), *H200.glob("*.txt"), *LINES.glob("*.jsonl")]:
        shutil.copyfile(path, folder / path.name)
    if device:
        for path in [folder / "manifest.json", *folder.glob("*.jsonl")]:
            path.write_text(path.read_text().replace("NVIDIA H200", device))
    return folder


def edit(path, change, **has):
    """Pass the records that have these values through `change`, which returns the record, or None to drop it."""
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if has.items() <= record.items():
            record = change(record)
        lines += [json.dumps(record, separators=(",", ":"))] if record else []
    path.write_text("".join(f"{line}\n" for line in lines))


def add(path, *records):
    """Add records to a file."""
    with path.open("a") as file:
        file.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def records(path, kind):
    """Return a file's records of a type."""
    return [record for record in map(json.loads, path.read_text().splitlines()) if record["record"] == kind]
