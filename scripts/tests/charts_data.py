"""A folder as scripts/evidence.py records it, with every day that has a chart, for the tests of charts and page."""

import json
import shutil
from pathlib import Path

H200 = Path(__file__).resolve().parents[2] / "profile" / "h200"
LINES = Path(__file__).parent / "data" / "roofline"  # runs on an H200, without their checks


def fill(folder, device=None):
    """Fill a new folder as if all days were recorded there, with the figures of data/roofline; return the folder.

    Manifest and texts are what the repository records, so that figures recorded anew change no test. What newer runs
    of day 44 have beside those figures is made up.
    """
    folder.mkdir(parents=True)
    for path in [*H200.glob("*.json"), *H200.glob("*.txt"), *LINES.glob("*.jsonl")]:
        shutil.copyfile(path, folder / path.name)
    fill_losses(folder)
    if device:
        for path in [folder / "manifest.json", *folder.glob("*.jsonl")]:
            path.write_text(path.read_text().replace("NVIDIA H200", device))
    return folder


# Made up: GFLOP/s of the FMA loop beside so many shared loads, and what the best rung at 8192 cubed executes at 2048.
BEST = {"variant": "10 8 x 16, cp.async", "symbol": "matmulTiled"}
FMA_LOADS = {0: 64000, 2: 62000, 4: 60000, 6: 59000}
FFMA = 2048**3  # of threads
EXECUTED = {
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": FFMA,
    "smsp__inst_executed_op_shared_ld.sum": 14_000_000,
}
EXECUTED["smsp__inst_executed.sum"] = FFMA // 32 + 14_000_000 + FFMA // 32 // 40  # the last: others, one for 40 FMAs


def fill_losses(folder):
    """Add what the chart of day 44's losses takes: the loops with loads, the share of SMs at work, and counters."""
    path = folder / "day44.jsonl"
    peak = next(record for record in records(path, "ceiling") if record["variant"] == "fma-peak")
    for loads, rate in FMA_LOADS.items():
        add(path, {**peak, "variant": f"fma-loads-{loads}", "symbol": f"fmaLoads{loads}", "value": rate})
    edit(path, lambda record: {**record, "wave_percent": 97.5}, record="gemm", **BEST)
    write_executed(
        folder,
        {"matmulSharedTiled(Gemm)": {**EXECUTED, "smsp__inst_executed.sum": FFMA}, "matmulTiled(Gemm)": EXECUTED},
    )


def write_executed(folder, launches):
    """Write the counters of launches, by kernel, as ncu exports them."""
    heading = ["ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name", "Metric Unit", "Metric Value"]
    rows = [heading]
    for number, (kernel, counters) in enumerate(launches.items()):
        launch = [str(number), kernel, "(256, 1, 1)", "(8, 16, 1)"]
        rows += [[*launch, metric, "inst", str(value)] for metric, value in counters.items()]
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    (folder / "day44-counters-inst.csv").write_text("\n".join([*lines, ""]))


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
