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
    fill_tensor(folder)
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


# Made up, by size: what each kernel of tensor cores reaches in percent of cuBLAS, and its error over cuBLAS FP32's.
TENSOR_SIZES = (2048, 4096, 8192)
TENSOR_KERNELS = {
    ("16 three TF32 products", "matmulTensorMma"): [(136, 0.34), (140, 0.27), (145, 0.23)],
    ("16 never leaving", "matmulTensorTruncated"): [(150, 25.0), (151, 25.0), (152, 25.0)],
    ("17 wgmma", "matmulTensorWgmma"): [(279, 0.23), (283, 0.20), (293, 0.19)],
    ("18 wgmma, small tiles", "matmulTensorWgmmaSmall"): [(176, 0.26), (180, 0.23), (178, 0.21)],
    ("sgemmTensor()", "sgemmTensor"): [(279, 0.23), (283, 0.20), (293, 0.19)],
    ("cuBLAS, TF32", "cublasGemmEx"): [(698, 229.0), (821, 229.0), (903, 229.0)],
    ("cuBLAS, emulated", "cublasGemmEx"): [(100, 1.0), (100, 1.0), (100, 1.0)],
}
TF32 = {"tf32-mma": ("tensorPeakMma", 340000), "tf32-wgmma": ("tensorPeakWgmma", 510000)}
TF32_CLOCK = 1980.0  # MHz


def fill_tensor(folder):
    """Add day 44's ceilings and products of tensor cores, and the errors of all products at their sizes."""
    path = folder / "day44.jsonl"
    peak = next(record for record in records(path, "ceiling") if record["variant"] == "fma-peak")
    theory = {"clock_mhz": TF32_CLOCK, "theory": 2048 * 132 * TF32_CLOCK * 1e-3}
    for variant, (symbol, rate) in TF32.items():
        add(path, {**peak, "variant": variant, "symbol": symbol, "value": rate, **theory})
    for size, of_size in zip(TENSOR_SIZES, zip(*TENSOR_KERNELS.values())):
        edit(path, lambda row: {**row, **errors(1.0)}, record="gemm", m=size, n=size, k=size)
        library = next(
            row
            for row in records(path, "gemm")
            if (row["variant"], row["m"], row["n"]) == ("cuBLAS", size, size) and "note" not in row
        )
        for (variant, symbol), (percent, rms) in zip(TENSOR_KERNELS, of_size):
            add(path, tensor_row(library, variant, symbol, percent, rms))


def errors(rms):
    """Return the errors of a product whose rms with uniform inputs is this, over cuBLAS FP32's."""
    powers = {"uniform": 1, "wide": 0.5, "positive": 0.9}
    ratios = {f"rms_{inputs}": rms**power for inputs, power in powers.items()}
    ratios.update((f"max_{inputs}", rms ** (0.8 * power)) for inputs, power in powers.items())
    return {**ratios, "bias_uniform": 0.01 * rms, "bias_wide": -0.02 * rms, "bias_positive": 0.5 * rms}


def tensor_row(library, variant, symbol, percent, rms):
    """Return the row of a kernel at the size of cuBLAS's row, at this percentage of it."""
    row = {**library, "variant": variant, "symbol": symbol, "cublas_percent": percent, **errors(rms)}
    row["value"] = library["value"] * percent / 100
    row.update((key, library[key] * 100 / percent) for key in ("ms", "ms_min", "ms_max"))
    if symbol != "cublasGemmEx":
        third = max(rate for _, rate in TF32.values()) / 3
        row.update(tensor_percent=100 * row["value"] / third, intensity=21.0, wave_percent=97.0)
    if variant != "cuBLAS, emulated":
        del row["fma_percent"]
    if symbol == "sgemmTensor":
        row["note"] = "17 wgmma"
    return row


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
