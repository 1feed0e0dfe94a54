"""A folder as scripts/evidence.py records it, with every day that has a chart, for the tests of charts and page."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
H200 = ROOT / "profile" / "h200"
DAY30 = Path(__file__).parent / "data" / "roofline" / "day30.jsonl"  # the lines of day 30, from a run on an H200


def fill(folder, device=None):
    """Copy what is recorded of the H200 into a folder, with lines of day 30, its counters joined; return the folder."""
    folder.mkdir(parents=True)
    for path in H200.iterdir():
        if path.suffix in (".txt", ".json", ".jsonl", ".csv"):
            shutil.copyfile(path, folder / path.name)
    shutil.copyfile(DAY30, folder / "day30.jsonl")
    merge(folder)
    if device:
        for path in [folder / "manifest.json", *folder.glob("*.jsonl")]:
            path.write_text(path.read_text().replace("NVIDIA H200", device))
    return folder


def merge(folder):
    """Join run and counters anew."""
    exports = [folder / "day49-counters.csv", folder / "day49-counters-inst.csv"]
    command = [sys.executable, ROOT / "day49-roofline" / "merge_dram.py", "--json", folder / "day49.jsonl"]
    command += ["--ncu", *exports, "--out", folder / "day49-merged.jsonl"]
    subprocess.run(command, check=True, capture_output=True)


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
