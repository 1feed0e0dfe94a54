"""predict.py joins the right launches, and refuses what would compare nonsense. Day 49's figures: test_trace.py."""

import json
import os
import re
import subprocess
import sys

import predict
import pytest
from day_facts import facts_of

HEAD = '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"'
DAY49 = facts_of(predict.ROOT, 49)
FIGURES = ("load_requests", "load_sectors", "store_requests", "store_sectors")


def launch(kernel, requests, grid=1):
    """Return the traffic record of one kernel that only loads whole lines."""
    record = {"record": "traffic", "kernel": kernel, "card": "h200", "grid": [grid, 1, 1], "block": [32, 1, 1]}
    record |= {f"global_{key}": 0 for key in FIGURES} | {"global_load_requests": requests, "blocks": 1, "traced": 1}
    record |= {"global_load_sectors": 4 * requests, "shared_load_wavefronts": 0, "shared_store_wavefronts": 0}
    record |= {"l1_bytes": 128 * requests, "l2_bytes": 128 * requests, "compulsory_bytes": 128 * requests}
    return record | {"dram_read_bytes": 0, "dram_write_bytes": 0}


def counted(number, kernel, requests, l2=1.0, unit=""):
    """Return the rows of the same launch as a profiler counts it; `l2` is a factor on what L2 answers."""
    values = {metric: 0 for _, metrics, _ in predict.QUANTITIES.values() for metric in metrics}
    values |= {predict.METRIC.format("requests", "ld"): requests, predict.METRIC.format("sectors", "ld"): 4 * requests}
    values |= {"l1tex__t_bytes.sum": 128 * requests, "lts__t_sectors_srcunit_tex.sum": round(l2 * 4 * requests)}
    start = f'"{number}","{kernel}","(32, 1, 1)","(1, 1, 1)"'
    return "".join(f'{start},"{metric}","{unit}","{value:,}"\n' for metric, value in values.items())


@pytest.fixture
def files(tmp_path):
    """Return a function that writes a trace and an export and gives their paths."""

    def write(records, rows):
        trace, export = tmp_path / "trace.jsonl", tmp_path / "counters.csv"
        trace.write_text("".join(json.dumps(record) + "\n" for record in records))
        export.write_text(f"==PROF== Connected\n{HEAD}\n{rows}")
        return trace, export

    return write


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("scale", ("scale", "")),
        ("scale(float *, int)", ("scale", "")),
        ("void scale<(int)4, (bool)1>(const T1 *)", ("scale", "4,1")),
        ("scale<4, true>", ("scale", "4,1")),
        ("matmulTiled<Tile<64, 64, 32, 8, 4, 2>, (Mode)0, false, true>", ("matmulTiled", "Tile<64,64,32,8,4,2>,0,0,1")),
        ("void matmulTiled<Tile<64, 64, 32, 8, 4, 2>, 0, 0, 1>(Gemm)", ("matmulTiled", "Tile<64,64,32,8,4,2>,0,0,1")),
    ],
)
def test_names_of_both_sides_meet(kernel, name):
    assert predict.split_name(kernel) == name


def test_launches_meet_by_arguments_and_by_order(files):
    trace = [launch("f<1>", 100), launch("f<2>", 200), launch("g", 300), launch("g", 400), launch("cpuOnly", 1)]
    rows = [counted(0, "void f<(int)2>(T *)", 200), counted(1, "void f<(int)1>(T *)", 100)]
    rows += [counted(2, "g(int)", 300), counted(3, "g(int)", 400), counted(4, "gpuOnly(int)", 1)]
    text = predict.to_text(*files(trace, "".join(rows)), DAY49)
    assert text.count("1.000") == 4 * 4  # requests, sectors, L1 and L2 of four launches
    assert "cpuOnly: the export has no such launch." in text
    assert "gpuOnly: not in the trace." in text


def test_another_grid_is_not_compared(files):
    text = predict.to_text(
        *files([launch("f", 1, grid=7), launch("g", 1)], counted(0, "f", 1) + counted(1, "g", 1)), DAY49
    )
    assert "f: traced with grid (7, 1, 1), profiled with (1, 1, 1): not compared." in text


def test_what_is_off_has_to_be_explained(files):
    known = predict.to_text(*files([launch("matmulNaive", 100)], counted(0, "matmulNaive", 100, l2=0.5)), DAY49)
    assert "L2 of matmulNaive (2.00): The model's blocks share nothing" in known
    with pytest.raises(predict.Stop, match=r"f: L2 is off, x is 2.000\nsay why under 'off' of day49-roofline/day.json"):
        predict.to_text(*files([launch("f", 100)], counted(0, "f", 100, l2=0.5)), DAY49)


def test_nonsense_is_refused(files):
    finding = {"record": "finding", "kernel": "f", "what": "race: ..."}
    for records, rows, why in [
        ([launch("f", 1)], counted(0, "f", 1, unit="Kbyte"), "--print-units base"),
        ([launch("f", 1)], counted(0, "g", 1), "no launch of the trace is in the export"),
        ([launch("f", 1), finding], counted(0, "f", 1), "correct it first"),
        ([], counted(0, "f", 1), "the file is empty"),
        ([{"record": "run"}], counted(0, "f", 1), "no launch in it"),
        ([[launch("f", 1)]], counted(0, "f", 1), "trace.jsonl:1: no line of a trace"),
        ([launch("f", 1) | {"l1_bytes": "many"}], counted(0, "f", 1), "trace.jsonl:1: l1_bytes is 'many'"),
        ([{"record": "traffic"}], counted(0, "f", 1), "trace.jsonl:1: kernel is None"),
        ([launch("f", 1)], "", "no row under the header"),
        ([launch("f", 1)], '"0","f"\n', "cut off or damaged"),
        ([launch("f", 1)], counted(0, "f", 1) + "==ERROR== gone\n" + counted(1, "f", 1), "the profiler reports"),
    ]:
        with pytest.raises(predict.Stop, match=why):
            predict.to_text(*files(records, rows), DAY49)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_exports_of_other_shells_are_read(files, encoding):
    trace, export = files([launch("f", 100)], counted(0, "f", 100))
    plain = predict.to_text(trace, export, DAY49)
    export.write_bytes(export.read_text().replace("\n", "\r\n").encode(encoding))
    assert predict.to_text(trace, export, DAY49) == plain


def test_the_columns_of_rules_are_passed_over(files):
    trace, export = files([launch("f", 100)], counted(0, "f", 100))
    plain = predict.to_text(trace, export, DAY49)
    header, *rows = export.read_text().splitlines()[1:]
    header += ',"Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
    rule = '"0","f","(32, 1, 1)","(1, 1, 1)","","","","SOLBottleneck","OPT","See ""Memory"", 9.1 %","global","12.5"'
    export.write_text("\n".join([header, *(f'{row},"","","","",""' for row in rows), rule, ""]))
    assert predict.to_text(trace, export, DAY49) == plain


# ---- exports of other locales ----------------------------------------------------------------------------------------

# What stands between groups of three digits, and the decimal sign.
LOCALES = {"de_DE": (".", ","), "fr_FR": ("\u202f", ","), "fr_FR, older": ("\u00a0", ","), "de_CH": ("\u2019", ".")}


def of_locale(text, group):
    """Return an export of the C locale as ncu writes it where `group` groups digits. Its numbers have no fraction."""

    def grouped(found):
        return f'"{int(found[1]):,}"'.replace(",", group)

    return re.sub(r'"(\d+)"$', grouped, text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", LOCALES)
def test_an_export_of_another_locale_gives_the_same(tmp_path, source_dir, name):
    folder = source_dir / "profile/h200"
    recorded = (folder / "day49-counters.csv").read_text(encoding="utf-8")
    export = tmp_path / "counters.csv"
    export.write_text(of_locale(recorded, LOCALES[name][0]), encoding="utf-8")
    assert export.read_text(encoding="utf-8") != recorded
    text = predict.to_text(folder / "day49-predicted.jsonl", export, DAY49)
    assert text == (folder / "day49-predicted.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["de.csv", "fr.csv"])
def test_the_first_launches_of_exports_from_german_and_french_hosts(source_dir, name):
    """The same three launches as in en.csv, whose host grouped digits by commas."""
    folder = source_dir / "scripts/tests/data/locale"
    there = predict.read_counters(folder / name)
    assert len(there) == 3 and there == predict.read_counters(folder / "en.csv")


def test_the_command_line_says_what_is_wrong(files, source_dir, tmp_path):
    script = source_dir / "scripts/predict.py"
    for trace, code in ((files([launch("f", 1)], counted(0, "f", 1))[0], 0), (tmp_path / "none", 1)):
        words = [sys.executable, script, "--day", "49", "--trace", trace, "--ncu", tmp_path / "counters.csv"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, bool(done.stdout), bool(done.stderr)) == (code, code == 0, code == 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk(files, source_dir):
    trace, export = files([launch("f", 1)], counted(0, "f", 1))
    words = [sys.executable, source_dir / "scripts/predict.py", "--day", "49", "--trace", trace, "--ncu", export]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "stdout: No space left on device\n")


def test_a_closed_stdout(files, source_dir):
    trace, export = files([launch("f", 1)], counted(0, "f", 1))
    words = [sys.executable, source_dir / "scripts/predict.py", "--day", "49", "--trace", trace, "--ncu", export]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "stdout: Bad file descriptor\n")
