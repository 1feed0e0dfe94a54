"""day49-roofline/merge_dram.py: what it joins and marks, the exports it reads, what it refuses and names, how fast.

data/merge holds shortened recordings: run.jsonl, long.csv and inst.csv of our program on an H200 (profile/h200), and
plain.* of a plain implementation on the same card, in the profiler's own units and in the wide form, with banners.
"""

import csv
import importlib.util
import io
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import days
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "day49-roofline" / "merge_dram.py"
DATA = Path(__file__).parent / "data" / "merge"
RUN, LONG, INST = DATA / "run.jsonl", DATA / "long.csv", DATA / "inst.csv"
LINES = RUN.read_text().splitlines()

DRAM, L2, L1 = "dram__bytes.sum", "lts__t_sectors_srcunit_tex.sum", "l1tex__t_bytes.sum"
LTS, TIME = "lts__t_bytes.sum", "gpu__time_duration.sum"
FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
KERNEL, METRIC, UNIT, VALUE = "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
TEN = {
    *("vectorAdd", "vectorAddPermuted", "transposeNaive", "transposeTiled", "matmulNaive", "matmulTiled"),
    *("reduceSequentialAddressing", "heatStepGlobal", "heatStepTiled", "polynomialHorner"),
}
SYMBOLS = {"copyCoalesced", *TEN, "fmaPeak"}


@pytest.fixture(scope="module")
def tool():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("merge_dram", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["merge_dram"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def merge(*exports, run=RUN, out=None, script=SCRIPT, **options):
    """Run the script and return the result."""
    command = [sys.executable, script, "--json", run, "--ncu", *exports, *(["--out", out] if out else [])]
    result = subprocess.run(command, stderr=subprocess.PIPE, check=False, **{"stdout": subprocess.PIPE, **options})
    result.stdout, result.stderr = (result.stdout or b"").decode(), result.stderr.decode()
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture
def joined(tmp_path):
    """Return a function that joins exports, which must work, and returns the records by symbol and the text."""

    def join(*exports, run=RUN):
        out = tmp_path / "merged.jsonl"
        result = merge(*exports, run=run, out=out)
        assert (result.returncode, result.stderr) == (0, "")
        records = [json.loads(line) for line in out.read_text().splitlines()]
        return {record["symbol"]: record for record in records if record["record"] == "merged"}, result.stdout

    return join


@pytest.fixture
def refused(tmp_path):
    """Return a function that expects exit code 1, nothing printed or written, and these words on stderr."""

    def refuse(*exports, run=RUN, words=()):
        out = tmp_path / "refused.jsonl"
        out.write_text("before\n")
        files = sorted(tmp_path.iterdir())
        result = merge(*exports, run=run, out=out)
        assert (result.returncode, result.stdout) == (1, "")
        assert out.read_text() == "before\n"
        assert sorted(tmp_path.iterdir()) == files
        missing = [word for word in words if word not in result.stderr]
        assert not missing, result.stderr
        return result.stderr

    return refuse


def rows_of(path=LONG):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def text_of(rows, delimiter=",", quoting=csv.QUOTE_ALL):
    """Return rows as ncu writes them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, quoting=quoting, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def edited(change, path=LONG, kernel=None, metric=None):
    """Return the rows of an export, those of a kernel and a metric (None: any) changed; a change to None drops it."""
    rows = []
    for row in rows_of(path):
        if kernel in (None, row[KERNEL].partition("(")[0]) and metric in (None, row[METRIC]):
            row = change(row)
        rows += [row] if row else []
    return rows


def wide(rows):
    """Return long rows in the wide form, with its row of units."""
    head = [key for key in rows[0] if key not in (METRIC, UNIT, VALUE, "Section Name")]
    units = {row[METRIC]: row[UNIT] for row in rows}
    launches = {}
    for row in rows:
        launch = launches.setdefault(row["ID"], {key: row[key] for key in head})
        launch[row[METRIC]] = row[VALUE]
    return [{**dict.fromkeys(head, ""), **units}, *launches.values()]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes text, or rows, to a file and returns its path."""

    def write_file(content, name="export.csv"):
        path = tmp_path / name
        text = content if isinstance(content, (str, bytes)) else text_of(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def same(records, others, within=0.0):
    assert records.keys() == others.keys()
    for symbol, record in records.items():
        for key in ("dram_bytes", "l2_bytes", "l1_bytes", "value", "intensity_dram", "requested_per_dram"):
            assert record.get(key, 0) == pytest.approx(others[symbol].get(key, 0), rel=within, abs=0), (symbol, key)


# ---- what is joined --------------------------------------------------------------------------------------------------


def test_recorded_run(joined):
    folder = ROOT / "profile" / "h200"
    counters = [folder / "day49-counters.csv", folder / "day49-counters-inst.csv"]
    records, text = joined(*counters, run=folder / "day49.jsonl")
    launched = days.launches("day49-roofline/roofline", "--profile")
    assert set(records) <= set(launched)  # the access patterns too, and not what was added since it was recorded
    known = list(records)[: len(SYMBOLS)]
    assert set(known) == SYMBOLS and known == [symbol for symbol in launched if symbol in SYMBOLS]
    exact = [symbol for symbol, record in records.items() if record["flop"] == record["flop_counted"]]
    assert set(exact) == set(records) - {"fmaPeak"}
    assert f"exactly those modelled for {len(exact)} of {len(records)}; fmaPeak +0.0015 %" in text


def test_figures_of_a_row(joined):
    records, text = joined(LONG, INST)
    row = records["matmulTiled"]
    assert (row["dram_bytes"], row["l2_bytes"], row["lts_bytes"], row["l1_bytes"]) == (
        2_105_856,
        32 * 1_391_840,
        47_912_544,
        68_157_440,
    )
    assert (row["requested_bytes"], row["flop"], row["flop_counted"]) == (68_157_440, 2 * 512**3, 2 * 512**3)
    assert row["intensity_l1"] == pytest.approx(2 * 512**3 / 68_157_440)
    assert row["intensity_l2"] == pytest.approx(2 * 512**3 / (32 * 1_391_840))
    assert row["intensity_dram"] == pytest.approx(2 * 512**3 / 2_105_856)
    assert row["value"] == pytest.approx(2_105_856 / 0.0390461546e-3 / 1e9)  # the time of the run, not the profiler's
    assert (row["metric"], row["unit"], row["profiled_ms"]) == ("dram_gbps", "GB/s", 0.043392)
    assert row["percent"] == pytest.approx(100 * row["value"] / 4181.75892)
    assert row["requested_per_dram"] == pytest.approx(68_157_440 / 2_105_856)
    assert "matmul, tiled 16            68.2        2.1       44.5       47.9       68.2       32.366  w c\n" in text
    assert "matmul, tiled 16         3.938    6.027  127.471  0.0390      53.9    1.3 matmulTiled\n" in text


def test_counts_of_the_instruction_roofline(joined):
    folder = ROOT / "profile" / "h200"
    exports = folder / "day49-counters.csv", folder / "day49-counters-inst.csv"
    records, _ = joined(*exports, run=folder / "day49.jsonl")
    row = records["transposeNaive"]
    warps = row["output_bytes"] // 4 // 32
    assert (row["warp_instructions"], row["thread_instructions"]) == (25 * warps, 24 * 32 * warps)
    # A warp's load touches 4 sectors, its store 32, each in a row of its own: 2 instructions for 36.
    assert (row["global_instructions"], row["global_sectors"]) == (2 * warps, 36 * warps)
    assert (row["shared_instructions"], row["shared_wavefronts"]) == (0, 0)
    row = records["transposeTiled"]
    assert row["shared_instructions"] == 2 * warps <= row["shared_wavefronts"] < 1.2 * 2 * warps
    records, _ = joined(exports[0], run=folder / "day49.jsonl")
    assert "global_sectors" in records["vectorAdd"] and "warp_instructions" not in records["vectorAdd"]


def test_copy_is_the_shape_and_fma_the_ceiling(joined):
    records, _ = joined(LONG)
    assert (records["copyCoalesced"]["variant"], records["copyCoalesced"]["ms"]) == ("float x 1", 0.202975988)
    assert (records["fmaPeak"]["variant"], records["fmaPeak"]["flop"]) == ("ceiling-fma", 141_733_920_768)


def copies(*symbols, variant="float4 x 1"):
    """Return the fixture's run with a checked shape for each symbol in place of copyVector's; the first one won."""
    shape = next(line for line in LINES if '"record":"shape"' in line and '"copyVector"' in line)
    check = next(line for line in LINES if '"check"' in line and '"variant":"float x 1"' in line)
    found = [line.replace('"copyVector"', f'"{symbols[0]}"') for line in LINES if line != shape]
    for place, symbol in enumerate(symbols):
        name = f"{variant}, {place}"
        found.append(shape.replace('"copyVector"', f'"{symbol}"').replace('"float4 x 1"', f'"{name}"'))
        found.append(check.replace('"copyCoalesced"', f'"{symbol}"').replace('"float x 1"', f'"{name}"'))
    return "\n".join(found) + "\n"


def test_a_shape_with_a_symbol_of_its_own_is_joined_if_it_was_profiled(joined, write):
    copy = [row for row in rows_of() if row[KERNEL].startswith("copyCoalesced")]
    more = [{**row, "ID": f"7{row['ID']}", KERNEL: row[KERNEL].replace("copyCoalesced", "copyFloat4")} for row in copy]
    export = write(rows_of() + more)
    run = write(copies("copyFloat4", "copyFloat2"), "run.jsonl")
    records, text = joined(export, run=run)
    assert list(records)[-1] == "copyFloat4" and "copyFloat2" not in records  # in the order of the export
    assert records["copyFloat4"]["ms"] == 0.128383994
    assert "copy, float4 x 1, 0" in text
    # Two of one symbol cannot be told apart, and none of them is joined.
    run = write(copies("copyFloat4", "copyFloat4"), "run.jsonl")
    assert "copyFloat4" not in joined(export, run=run)[0]


def test_without_any_copy_the_export_is_not_of_the_whole_program(refused, write):
    export = write(edited(lambda row: None, kernel="copyCoalesced"))
    run = write(copies("copyFloat4"), "run.jsonl")
    refused(export, run=run, words=["kernel missing in the export: copyCoalesced or copyFloat4"])


def test_a_run_of_schema_1_gives_the_same(joined, write):
    """But for the names that its lines had."""
    old = RUN.read_text().replace('"schema":2', '"schema":1').replace('"requested_bytes":', '"bytes":')
    assert joined(LONG, INST, run=write(old, "run.jsonl")) == joined(LONG, INST)


def test_the_file_can_be_carried_off_alone(write, tmp_path, monkeypatch):
    """A run of the newest schema needs no other file of the repository; an older one names what is missing."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    alone = write(SCRIPT.read_bytes(), "merge_dram.py")
    here = merge(LONG, INST)
    there = merge(LONG, INST, script=alone, cwd=tmp_path)
    assert (there.returncode, there.stderr, there.stdout) == (0, here.stderr, here.stdout)
    old = write(RUN.read_text().replace('"schema":2', '"schema":1'), "old.jsonl")
    done = merge(LONG, INST, run=old, script=alone, cwd=tmp_path)
    assert done.returncode == 1 and ":1: schema 1, this script knows 2 alone, older ones with the folder" in done.stderr


def test_schemas_are_of_one_version(tool):
    assert tool.SCHEMA == tool.row_schema.VERSION


@pytest.mark.parametrize("version", ["2.0", "true", '"2"', "null"])
def test_a_version_is_a_whole_number(refused, write, version):
    run = write(RUN.read_text().replace('"schema":2', f'"schema":{version}'), "run.jsonl")
    refused(LONG, run=run, words=[":1: schema ", "this script knows 1 and 2"])


def test_zero_flop_says_so(joined):
    records, text = joined(LONG)
    for symbol in ("copyCoalesced", "transposeNaive", "transposeTiled"):
        assert not any(key.startswith("intensity") for key in records[symbol])
        line = next(line for line in text.splitlines() if line.endswith(" " + symbol))
        assert line.count("no FLOP") == 3
    assert text.count("no FLOP") == 9


def test_no_byte_from_dram(joined, write):
    export = write(edited(lambda row: {**row, VALUE: "0"}, kernel="matmulNaive", metric=DRAM))
    records, text = joined(export)
    row = records["matmulNaive"]
    assert (row["dram_bytes"], row["value"]) == (0, 0)
    assert not {"intensity_dram", "requested_per_dram"} & row.keys()
    assert "no byte" in text


def test_small_outputs_are_marked(joined):
    records, text = joined(LONG)
    small = {symbol for symbol, record in records.items() if record["writes_may_stay_in_l2"]}
    assert small == {
        *("matmulNaive", "matmulTiled", "reduceSequentialAddressing", "heatStepGlobal", "heatStepTiled", "fmaPeak")
    }
    assert records["matmulNaive"]["output_bytes"] == 4 * 512**2
    assert "Writes may stay in L2" in text


def test_dram_bytes_that_fit_in_l2_are_marked(joined):
    records, text = joined(LONG)
    fit = {symbol for symbol, record in records.items() if record["dram_fits_l2"]}
    assert fit == {"matmulNaive", "matmulTiled", "heatStepGlobal", "heatStepTiled", "fmaPeak"}
    assert "c  DRAM MB would fit in L2" in text


@pytest.mark.parametrize(("l2_bytes", "marked"), [(2**27, False), (2**27 + 1, True)])
def test_small_means_smaller_than_twice_l2(joined, write, l2_bytes, marked):
    run = write(RUN.read_text().replace('"l2_bytes":62914560', f'"l2_bytes":{l2_bytes}'), "run.jsonl")
    records, _ = joined(LONG, run=run)
    assert records["vectorAdd"]["writes_may_stay_in_l2"] is marked  # its output has 2^28 bytes


def test_order_of_the_permuted_add_is_flagged(joined):
    records, text = joined(LONG)
    assert [symbol for symbol, record in records.items() if "order" in record] == ["vectorAddPermuted"]
    assert "2.00 x" in records["vectorAddPermuted"]["order"]
    assert "64 bytes" in records["vectorAddPermuted"]["order"]
    assert "!  vectorAddPermuted: FLOP per byte is not L1 <= L2 <= DRAM" in text


@pytest.mark.parametrize(
    ("kernel", "metric", "value", "reason"),
    [
        ("polynomialHorner", DRAM, "540,000,000", "passes disagree"),
        ("polynomialHorner", DRAM, "640,000,000", "fetched again"),
        ("fmaPeak", DRAM, "2,000,000", "less than 1 MB"),
        ("polynomialHorner", L1, "536,000,000", "passes disagree"),
        ("polynomialHorner", L1, "400,000,000", "no cache does that"),
    ],
)
def test_reason_of_a_wrong_order(joined, write, kernel, metric, value, reason):
    export = write(edited(lambda row: {**row, VALUE: value}, kernel=kernel, metric=metric))
    records, text = joined(export)
    assert reason in records[kernel]["order"]
    assert f"!  {kernel}: " in text


def test_rate_above_the_ceiling_is_marked(joined):
    _, text = joined(DATA / "plain-units.csv", DATA / "plain-raw.csv", run=DATA / "plain.jsonl")
    assert "^  DRAM GB/s above the copy ceiling: vectorAdd, vectorAddPermuted:" in text
    assert "^ " not in joined(LONG)[1]


def test_merged_lines(joined, tmp_path):
    joined(LONG, INST)
    lines = (tmp_path / "merged.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == json.loads(LINES[0])
    records = [json.loads(line) for line in lines[1:]]
    keys = list(max(records, key=len))
    for record in records:
        assert list(record) == [key for key in keys if key in record]
        assert all(math.isfinite(value) for value in record.values() if isinstance(value, (int, float)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged.jsonl"]


# ---- exports that are read -------------------------------------------------------------------------------------------


def test_wide_form(joined, write):
    same(joined(write(wide(rows_of())))[0], joined(LONG)[0])


def scaled(row, comma=False):
    """Return a row in the unit that suits its value, with two decimals, as ncu does without --print-units base."""
    number = int(row[VALUE].replace(",", ""))
    base = {"ns": ["ns", "us", "ms"]}.get(row[UNIT]) or [prefix + row[UNIT] for prefix in ("", "K", "M", "G")]
    power = min((len(str(number)) - 1) // 3, len(base) - 1) if row[UNIT] else 0
    text = f"{number / 1000**power:,.2f}" if power else row[VALUE]
    swapped = text.translate({ord(","): ".", ord("."): ","})
    return {**row, UNIT: base[power], VALUE: swapped if comma else text}


def test_the_profilers_own_units(joined, write):
    rows = [scaled(row) for row in rows_of()]
    assert {"byte", "Kbyte", "Mbyte", "Gbyte", "Ksector", "Msector", "us", "ms"} - {row[UNIT] for row in rows} == {
        "byte",
    }
    records, _ = joined(write(rows), write([scaled(row) for row in rows_of(INST)], "inst.csv"))
    same(records, joined(LONG)[0], within=0.005)
    assert records["vectorAdd"]["profiled_ms"] == pytest.approx(0.23408, rel=1e-3)


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1e-6), ("us", 1e-3), ("ms", 1), ("s", 1e3)])
@pytest.mark.parametrize("tail", ["", "econd"])
def test_units_of_time(tool, unit, factor, tail):
    unit = unit.replace("s", "s" + tail) if tail else unit
    launch = tool.Launch("0", "vectorAdd", "vectorAdd", ("", ""), "", LONG, {TIME: ("1,234.5", unit, 7)})
    assert tool.to_base(launch, TIME) == pytest.approx(1234.5 * factor)


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_decimal_comma(joined, write, delimiter):
    rows = [scaled(row, comma=True) for row in rows_of()]
    assert any("," in row[VALUE] for row in rows)
    quoting = csv.QUOTE_ALL if delimiter == "," else csv.QUOTE_MINIMAL
    records, _ = joined(write(text_of(rows, delimiter, quoting)))
    same(records, joined(LONG)[0], within=0.005)


def test_dots_as_thousands_separators(joined, write):
    rows = [{**row, VALUE: row[VALUE].replace(",", ".")} for row in rows_of()]
    same(joined(write(rows))[0], joined(LONG)[0])  # 20.224 byte are 20224, because others have two dots


def test_blanks_and_apostrophes_as_thousands_separators(joined, write):
    for separator in ("\u202f", "\u00a0", "'"):
        rows = [{**row, VALUE: row[VALUE].replace(",", separator)} for row in rows_of()]
        same(joined(write(rows))[0], joined(LONG)[0])


LOCALE = Path(__file__).parent / "data" / "locale"


@pytest.mark.parametrize("name", ["de.csv", "fr.csv"])
def test_exports_from_german_and_french_hosts(tool, name):
    """The same three launches as in en.csv, whose host grouped digits by commas."""
    there, plain = (tool.parse_export(tool.read_text(path), path)[0] for path in (LOCALE / name, LOCALE / "en.csv"))
    assert len(there) == len(plain) == 3
    for one, other in zip(there, plain):
        assert one.texts.keys() == other.texts.keys() >= {DRAM, L2, L1, TIME}
        assert {metric: tool.to_base(one, metric) for metric in one.texts} == {
            metric: tool.to_base(other, metric) for metric in other.texts
        }


# Texts of one export by unit, and the numbers that they are; None where nobody can tell.
ALONE = [
    ([("1.234", "byte")], [1234]),  # bytes are whole, so the point groups
    ([("1,234", "byte")], [1234]),
    ([("1.234", "byte"), ("1.234", "Mbyte"), ("312.736", "ns")], [1234, 1234e6, 312736e-6]),
    ([("1,234", "byte"), ("1,234", "Mbyte"), ("312,736", "ns")], [1234, 1234e6, 312736e-6]),
    ([("1.234", "Mbyte"), ("1,234", "sector")], [1.234e6, 1234]),
    ([("1,234", "Mbyte"), ("1.234", "sector")], [1.234e6, 1234]),
    ([("1.234", "Mbyte"), ("18.25", "Mbyte")], [1.234e6, 18.25e6]),
    ([("1.234", "Mbyte"), ("18,25", "Mbyte")], [1234e6, 18.25e6]),
    ([("0.234", "Mbyte"), ("7", "byte")], [0.234e6, 7]),
    ([("312.736", "ns"), ("18", "byte")], None),
    ([("312,736", "ns")], None),
    ([("1.234", "Mbyte")], None),
    ([("1,234", "Mbyte"), ("999", "byte")], None),
]


def alone(tool, cells):
    """Return an export of one launch for each cell of (text, unit), and the counters that are in it."""
    names = [TIME if unit == "ns" else L2 if unit == "sector" else DRAM for _, unit in cells]
    rows = [
        {"ID": str(place), KERNEL: "k()", METRIC: name, UNIT: unit, VALUE: text}
        for place, (name, (text, unit)) in enumerate(zip(names, cells))
    ]
    launches = tool.parse_export(text_of(rows), Path("export.csv"))[0]
    return [tool.to_base(launch, name) for launch, name in zip(launches, names)]


@pytest.mark.parametrize(
    ("cells", "numbers"), ALONE, ids=lambda cells: " ".join(map(str, cells or [])).replace("'", "")
)
def test_what_one_number_leaves_open_the_file_decides_or_nobody(tool, cells, numbers):
    if numbers is None:
        with pytest.raises(tool.Stop, match=r"export.csv:2: .* of k reads '.*', thousands or a fraction, .* LC_ALL=C"):
            alone(tool, cells)
    else:
        assert alone(tool, cells) == pytest.approx(numbers)


@pytest.mark.parametrize("cells", [[("1.234.567", "byte"), ("1,234", "byte")], [("1,234,567", "byte"), ("1.234", "")]])
def test_part_of_a_count_shows_two_locales(tool, cells):
    with pytest.raises(tool.Stop, match=r"export.csv:3: .* and a count is whole: numbers of two locales"):
        cells = [cells[0], (cells[1][0], cells[1][1] or "sector")]
        alone(tool, cells)


def test_the_columns_of_rules(joined, write):
    none = {name: "" for name in ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type")}
    rows = [{**row, **none, "Estimated Speedup": ""} for row in rows_of()]
    said = {"Rule Name": "SOLBottleneck", "Rule Type": "OPT", "Rule Description": 'See "Memory", 9,1 %', VALUE: ""}
    rule = {**rows[7], **said, METRIC: "", UNIT: "", "Estimated Speedup Type": "global", "Estimated Speedup": "12,5"}
    same(
        joined(write([*rows[:8], rule, rule, *rows[8:], {**rule, "ID": rows[-1]["ID"], KERNEL: rows[-1][KERNEL]}]))[0],
        joined(LONG)[0],
    )


def test_without_separators_and_quotes(joined, write):
    rows = [{**row, VALUE: row[VALUE].replace(",", "")} for row in rows_of()]
    same(joined(write(text_of(rows, quoting=csv.QUOTE_MINIMAL)))[0], joined(LONG)[0])


def test_banners_and_program_output_around(joined, write):
    before = (
        '==WARNING== Note\n==PROF== Connected to process 1 (roofline)\nprofile mode: 12 launches\n"float x 1" is, a\n'
    )
    after = '==PROF== Disconnected\n"float x 1" is copyCoalesced, one "float\nbye, bye\n'
    lines = LONG.read_text().splitlines(keepends=True)
    text = before + "".join(lines[:20]) + '==PROF== Profiling "vectorAdd": 0%....100%\n' + "".join(lines[20:]) + after
    same(joined(write(text))[0], joined(LONG)[0])


def test_crlf_and_byte_order_mark(joined, write):
    text = LONG.read_text().replace("\n", "\r\n")
    for encoding in ("utf-8-sig", "utf-16"):
        same(joined(write(text.encode(encoding)))[0], joined(LONG)[0])
    run = write(RUN.read_text().replace("\n", "\r\n").encode("utf-8-sig"), "run.jsonl")
    same(joined(LONG, run=run)[0], joined(LONG)[0])


def test_carriage_returns_alone_end_lines_too(joined, write):
    same(joined(write(LONG.read_text().replace("\n", "\r")))[0], joined(LONG)[0])


def test_two_exports_of_windows_in_one_file(joined, write):
    data = LONG.read_text().encode("utf-8-sig") + INST.read_text().encode("utf-8-sig")
    records, _ = joined(write(data))
    assert records["vectorAdd"]["flop_counted"] == records["vectorAdd"]["flop"]
    assert records["vectorAdd"]["launches"] == 1


def test_two_exports_in_one_file(joined, write):
    records, _ = joined(write(LONG.read_text() + INST.read_text()))
    assert records["vectorAdd"]["flop_counted"] == records["vectorAdd"]["flop"]
    assert records["vectorAdd"]["launches"] == 1


def test_metrics_spread_over_files(joined):
    records, text = joined(DATA / "plain-units.csv", DATA / "plain-raw.csv", run=DATA / "plain.jsonl")
    row = records["copyCoalesced"]
    assert (row["dram_bytes"], row["l2_bytes"], row["l1_bytes"]) == (115_000_576, 32 * 4_194_304, 134_217_728)
    assert row["requested_bytes"] == pytest.approx(2 * 4 * 4096**2, rel=1e-4)  # from the ceiling's rate and time
    assert "writes_may_stay_in_l2" not in row  # the plain lines do not say how large L2 is
    assert f"{DRAM} of all 12 kernels is also in {DATA / 'plain-raw.csv'}" in " ".join(text.split())


@pytest.mark.parametrize(
    ("kernel", "symbol"),
    [
        ("copyCoalesced", "copyCoalesced"),
        ("vectorAdd(const float *, const float *, float *, int)", "vectorAdd"),
        ("void copyVector<float4, 1>(const T1 *, T1 *, int)", "copyVector"),
        ("void copyVector<(int)4, (bool)1>(const T1 *, T1 *, int)", "copyVector"),
        ("void lesson::k<std::pair<int, float>, (4>2)>(float (*)(int))", "k"),
        ("std::enable_if<true, void>::type tiled<16>(float *)", "tiled"),
        ("(anonymous namespace)::stencil(float *)", "stencil"),
        ("void <unnamed>::stencil<3>(float *)", "stencil"),
        ("k<(4 > 2)>", "k"),
    ],
)
def test_symbol_of_a_signature(tool, kernel, symbol):
    if "(4>2)" in kernel:  # a bare > in parentheses closes no template
        assert tool.symbol_of(kernel) == "k"
    assert tool.symbol_of(kernel) == symbol


def test_template_names_are_joined(joined, write):
    rows = edited(
        lambda row: {**row, KERNEL: "void vectorAdd<float, (int)256>(const T1 *, T1 *, int)"}, kernel="vectorAdd"
    )
    same(joined(write(rows))[0], joined(LONG)[0])


def test_unknown_kernels_are_named_and_left_out(joined, write):
    other = [{**row, "ID": "40", KERNEL: "void fill<float>(T1 *)", VALUE: "n/a", UNIT: "?"} for row in rows_of()[:6]]
    inst = write([*rows_of(INST), *({**row, "ID": "41"} for row in other)], "inst.csv")
    records, text = joined(write(rows_of() + other), inst)
    same(records, joined(LONG)[0])
    assert "Not in the run, left out (launches): fill (2)." in text


def test_names_on_blackwell(joined, write):
    row = next(row for row in rows_of() if row[METRIC] == DRAM)
    split = [
        {**row, METRIC: f"dram__bytes_op_{way}.sum", VALUE: value} for way, value in [("read", "7"), ("write", "8")]
    ]
    for rows in (rows_of() + split, wide(rows_of() + split)):
        if "dram__bytes_op_read.sum" in rows[0]:
            rows = [rows[0], *({**one, **{name: one.get(name, "1") for name in rows[0]}} for one in rows[1:])]
        records, _ = joined(write(rows))
        assert records["copyCoalesced"]["dram_read_bytes"] == 7
        assert records["copyCoalesced"]["dram_write_bytes"] == 8


def test_other_metrics_may_be_missing(joined, write):
    assert any("requests" in row[METRIC] for row in rows_of())
    rows = [{**row, VALUE: "n/a"} if "requests" in row[METRIC] else row for row in rows_of()]
    same(joined(write(rows))[0], joined(LONG)[0])


def launches(values, kernel="vectorAdd", **more):
    """Return the export with further launches of a kernel, whose DRAM bytes are `values`."""
    rows = rows_of()
    for place, value in enumerate(values):
        for row in rows_of():
            if row[KERNEL].startswith(kernel + "("):
                value_of = {VALUE: value} if row[METRIC] == DRAM else {}
                rows.append({**row, "ID": str(50 + place), **value_of, **more})
    return rows


def test_launches_are_named_and_not_summed(joined, write):
    records, text = joined(write(launches(["793,000,000", "793,900,000"])))
    assert records["vectorAdd"]["launches"] == 3
    assert records["vectorAdd"]["dram_bytes"] == 793_232_640  # the median, a launch that was
    told = " ".join(text.split())
    assert "vectorAdd: 3 launches in " in told
    assert "(ID 1, 50, 51), not summed: ID 1 counts, the median by DRAM (793.0 to 793.9 MB)" in told
    assert records["fmaPeak"]["launches"] == 1


@pytest.mark.parametrize(("change", "word"), [({VALUE: "n/a"}, "'n/a', no value"), ({UNIT: "KiB"}, "'KiB'")])
def test_a_launch_that_does_not_count_must_be_right_too(refused, write, change, word):
    rows = launches(["793,000,000", "793,900,000"])
    at = next(place for place, row in enumerate(rows) if row["ID"] == "50" and row[METRIC] == L1)
    rows[at] = {**rows[at], **change}
    export = write(rows)
    refused(export, words=[f"{export}:{at + 2}: {L1} of vectorAdd", word])


@pytest.mark.parametrize("more", [{"Grid Size": "(2, 1, 1)"}, {KERNEL: "vectorAdd(const double *)"}])
def test_launches_that_differ_are_refused(refused, write, more):
    refused(write(launches(["1"], **more)), words=["2 launches of vectorAdd", "ID 1 ", "ID 50 ", *more.values()])


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_kernel_missing_in_the_export(refused, write):
    export = write(edited(lambda row: None, kernel="heatStepTiled"))
    refused(export, words=[str(export), "kernel missing in the export: heatStepTiled"])


@pytest.mark.parametrize("symbol", sorted(SYMBOLS))
def test_kernel_missing_in_the_run(tool, tmp_path, symbol):
    kept = [line for line in LINES if f'"{symbol}"' not in line or '"check"' in line]
    assert len(kept) < len(LINES)
    run = tmp_path / "run.jsonl"
    run.write_text("\n".join(kept) + "\n")
    with pytest.raises(
        tool.Stop, match="ceiling-fma" if symbol == "fmaPeak" else f"kernel missing in the run: {symbol}"
    ):
        tool.read_run(run)


@pytest.mark.parametrize("metric", [DRAM, L2, L1])
def test_metric_missing(refused, write, metric):
    refused(
        write(edited(lambda row: None, metric=metric)), words=["metric missing", metric, "all 12 kernels", "--metrics"]
    )
    rows = edited(lambda row: None, metric=metric, kernel="fmaPeak")
    refused(write(rows), words=["metric missing", metric, "for fmaPeak"])
    rows = wide(edited(lambda row: None, metric=metric))
    refused(write(rows), words=["metric missing", metric])


def test_part_of_the_flop_missing(refused, write):
    inst = write(edited(lambda row: None, INST, metric=FADD), "inst.csv")
    refused(LONG, inst, words=["metric missing", FADD])


def line_of(rows, kernel, metric):
    """Return the line of a metric in what text_of makes of rows."""
    return next(
        place for place, row in enumerate(rows, 2) if row[METRIC] == metric and row[KERNEL].startswith(kernel + "(")
    )


@pytest.mark.parametrize("value", ["n/a", "N/A", "nan", "-nan", "inf", "no data", "", " ", "(!) n/a"])
def test_no_value(refused, write, value):
    rows = edited(lambda row: {**row, VALUE: value}, kernel="matmulNaive", metric=L2)
    export = write(rows)
    refused(export, words=[f"{export}:{line_of(rows, 'matmulNaive', L2)}: {L2} of matmulNaive", f"'{value}', no value"])
    export = write(wide(rows))
    refused(export, words=[f"{export}:8: {L2} of matmulNaive"])


@pytest.mark.parametrize("value", ["abc", "-5", "1,2,3", "12,34,567", "0x10", "1e999", "18446744073709551616"])
def test_no_number(refused, write, value):
    export = write(edited(lambda row: {**row, VALUE: value}, kernel="matmulNaive", metric=L1))
    refused(export, words=[str(export), f"{L1} of matmulNaive reads '{value}'"])


@pytest.mark.parametrize(
    ("metric", "unit"), [(DRAM, "KiB"), (DRAM, ""), (DRAM, "sector"), (L2, "byte"), (TIME, "cycle"), (LTS, "%")]
)
def test_unknown_unit(refused, write, metric, unit):
    rows = edited(lambda row: {**row, UNIT: unit}, kernel="vectorAdd", metric=metric)
    export = write(rows)
    where = f"{export}:{line_of(rows, 'vectorAdd', metric)}: {metric} of vectorAdd"
    refused(export, words=[where, f"unknown unit '{unit}'", "--print-units base"])


def test_a_number_of_400_digits(refused, write):
    export = write(edited(lambda row: {**row, VALUE: "9" * 400}, kernel="matmulNaive", metric=L1))
    refused(export, words=[f"{L1} of matmulNaive reads '{'9' * 40}'"])


def test_no_row_of_units(refused, write):
    export = write(wide(rows_of())[1:])
    refused(export, words=[f"{export}:2: no row of units"])


def test_point_and_comma_in_one_export(refused, write):
    rows = edited(lambda row: {**row, VALUE: "1.234,56"}, kernel="vectorAdd", metric=DRAM)
    export = write(rows)
    where = f"{export}:{line_of(rows, 'vectorAdd', DRAM)}: {DRAM} of vectorAdd"
    refused(export, words=[where, "reads '1.234,56', no count with a decimal point"])


def test_another_program(refused, write):
    export = write([{**row, KERNEL: "void gemm<float>(T1 *)"} for row in rows_of()])
    refused(export, words=[str(export), "another program", "gemm"])


def test_another_card(refused, write):
    refused(write([{**row, "CC": "7.5"} for row in rows_of()]), words=["7.5", "9.0"])


def test_another_size(refused, write):
    plain = [DATA / "plain-units.csv", DATA / "plain-raw.csv"]
    refused(*plain, words=["copyCoalesced", "134.2 MB", "536.9 MB"])
    rows = edited(lambda row: {**row, VALUE: "9,000,000"}, metric=DRAM)
    first, second = LONG, write(rows)
    refused(first, second, words=[f"{second}: {DRAM} of copyCoalesced is 9000000, but 517948160 in {first}"])


@pytest.mark.parametrize(("more", "good"), [(660_000, True), (680_000, False), (-680_000, False)])
def test_flop_counted_against_modelled(joined, refused, write, more, good):
    counted = 67_108_864 + more
    inst = write(edited(lambda row: {**row, VALUE: f"{counted:,}"}, INST, kernel="vectorAdd", metric=FADD), "inst.csv")
    if good:
        assert "; vectorAdd +0.98 %" in joined(LONG, inst)[1]
    else:
        refused(LONG, inst, words=["vectorAdd", f"{counted} FLOP counted", "67108864 modelled"])


def test_flop_where_none_is_modelled(refused, write):
    inst = write(edited(lambda row: {**row, VALUE: "1"}, INST, kernel="transposeTiled", metric=FFMA), "inst.csv")
    refused(LONG, inst, words=["transposeTiled: 2 FLOP counted", "0 modelled"])


def test_an_fma_is_two_flop(refused, write):
    half = {**next(row for row in rows_of(INST) if row[METRIC] == FFMA and row[KERNEL].startswith("matmulNaive("))}
    half = f"{int(half[VALUE].replace(',', '')) // 2:,}"
    inst = write(edited(lambda row: {**row, VALUE: half}, INST, kernel="matmulNaive", metric=FFMA), "inst.csv")
    refused(LONG, inst, words=["matmulNaive: 134217728 FLOP counted"])


@pytest.mark.parametrize("cut", [-1, -5, -40, -120, -180])
def test_truncated_export(refused, write, cut):
    text = LONG.read_text().rstrip("\n")[:cut]
    export = write(text)
    refused(export, words=[f"{export}:73: ", "cut off", "profile again"])


def test_truncated_between_rows(refused, write):
    text = "".join(LONG.read_text().splitlines(keepends=True)[:-2])
    refused(write(text), words=["missing", "fmaPeak"])


def test_truncated_without_quotes(refused, write):
    rows = [{**row, VALUE: row[VALUE].replace(",", "")} for row in rows_of()]
    export = write(text_of(rows, quoting=csv.QUOTE_MINIMAL).rstrip("\n")[:-2])
    refused(export, words=[f"{export}:73: the last row has no end"])


def test_damaged_in_the_middle(refused, write):
    lines = LONG.read_text().splitlines(keepends=True)
    lines[30] = lines[30][:60] + "\n"
    export = write("".join(lines))
    refused(export, words=[f"{export}:31: cut off or damaged"])


def test_header_without_rows(refused, write):
    export = write(LONG.read_text().splitlines()[0] + "\n")
    refused(export, words=[f"{export}:1: no row"])


def test_metric_twice(refused, write):
    rows = rows_of()
    export = write([*rows, rows[0]])
    refused(export, words=[f"{export}:74: {DRAM} of ID 0, copyCoalesced, is there twice"])


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_empty(refused, write, content):
    export = write(content)
    refused(export, words=[f"{export}: the file is empty"])
    run = write(content, "run.jsonl")
    refused(LONG, run=run, words=[f"{run}: the file is empty"])


def test_binary(refused, write):
    content = b"NVR\x00\x01\x02" + bytes(range(256))
    export = write(content)
    refused(export, words=[f"{export}: a binary file", "ncu --import"])
    run = write(content, "run.jsonl")
    refused(LONG, run=run, words=[f"{run}: a binary file"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", ["not an export of ncu"]),
        ("==WARNING== No kernels were profiled.\n", ["not an export", "no kernels were profiled"]),
        (RUN.read_text(), ["not an export", "JSON lines"]),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", [":1: the profiler reports", "as root"]),
        (LONG.read_text() + "==ERROR== The application returned an error code (1).\n", [":74: the profiler reports"]),
        (LONG.read_text().replace(UNIT, "Unit"), [":1: ", UNIT]),
    ],
)
def test_no_export(refused, write, text, words):
    export = write(text)
    refused(export, words=[str(export), *words])


def test_files_that_are_not_there(refused, tmp_path):
    refused(tmp_path / "no.csv", words=[str(tmp_path / "no.csv"), "cannot be read"])
    refused(tmp_path, words=["cannot be read"])
    refused(LONG, run=tmp_path / "no.jsonl", words=["no.jsonl: cannot be read"])


def failed_check(lines):
    lines[5] = lines[5].replace('"ok":true', '"ok":false')
    return lines[:20]  # a run that failed has no rows


def changed(old, new, place=None):
    def change(lines):
        found = next(at for at, line in enumerate(lines) if old in line and (place is None or place in line))
        lines[found] = lines[found].replace(old, new)
        return lines

    return change


ADD_ROW = '"variant":"vector add","symbol":"vectorAdd","ms"'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (failed_check, [":6: the check of transposeTiled", "failed"]),
        (changed('"day":49', '"day":44'), [":1: a run of day 44"]),
        (changed('"schema":2', '"schema":3'), [":1: schema 3, this script knows 1 and 2"]),
        (changed('"backend":"cuda"', '"backend":"cpu"'), [":1: ", "CPU"]),
        (changed('"l2_bytes":62914560,', ""), [":1: l2_bytes"]),
        (lambda lines: lines + lines, [":30: a second run"]),
        (lambda lines: lines[1:], [":1: a 'check' record"]),
        (lambda lines: lines[:1], ["no ceiling-copy"]),
        (lambda lines: [*lines[:-2], lines[-2][:50]], ["not a JSON line, or cut off"]),
        (lambda lines: lines[:-2], ["kernel missing in the run: copyCoalesced"]),
        (lambda lines: [line for line in lines if "ceiling-copy" not in line or "check" in line], ["no ceiling-copy"]),
        (lambda lines: ["[1]"], [":1: not a JSON line"]),
        (lambda lines: ["day,symbol"], [":1: not a JSON line"]),
        (lambda lines: ['{"a":1}'], ["no ceiling-copy"]),
        (lambda lines: ['{"a":1}', *lines], [":1: no run record"]),
        (lambda lines: [*lines, '{"a":1}'], [":30: a line without its record"]),
        (lambda lines: [*lines, next(line for line in lines if ADD_ROW in line)], [":30: a second row of vectorAdd"]),
        (lambda lines: [line for line in lines if "check" not in line or "vectorAdd" not in line], ["no check"]),
        (changed('"ms":0.2', '"ms":-0.2', ADD_ROW), ["ms of 'vector add' is -0.2"]),
        (changed('"ms":0.2', '"ms":NaN,"x":0.2', ADD_ROW), ["NaN is not a finite number"]),
        (changed('"flop":67108864', '"flop":"many"', ADD_ROW), ["flop of 'vector add' is 'many'"]),
        (changed('"ms":0.2', '"ms":5e-324,"x":0.2', ADD_ROW), ["ms of 'vector add' is 5e-324"]),
        (changed('"variant":"ceiling-fma"', '"variant":["ceiling-fma"]', '"record":"ceiling"'), ["is ['ceiling-fma']"]),
        (changed('"requested_bytes":8', '"requested_bytes":1.5,"x":8', ADD_ROW), ["bytes of 'vector add' is 1.5"]),
        (changed('"flop":6', '"flop":1,"flop":6', ADD_ROW), ["a key is there twice"]),
    ],
)
def test_no_run_of_day_49(refused, write, change, words):
    run = write("\n".join(change(list(LINES))) + "\n", "run.jsonl")
    refused(LONG, run=run, words=[str(run), *words])


# ---- the command line ------------------------------------------------------------------------------------------------


def test_out_is_replaced_whole(joined, tmp_path):
    out = tmp_path / "merged.jsonl"
    out.write_text("old\n" * 1000)
    out.chmod(0o640)
    joined(LONG)
    assert "old" not in out.read_text()
    assert out.stat().st_mode & 0o777 == 0o640


def test_out_that_cannot_be_written(tmp_path):
    for out, words in [
        (tmp_path / "no" / "m.jsonl", "no/m.jsonl: cannot be written"),
        (tmp_path, "not a regular file"),
    ]:
        result = merge(LONG, out=out)
        assert result.returncode == 1
        assert words in result.stderr
    assert not list(tmp_path.iterdir())


def test_out_that_is_an_input(write):
    export = write(LONG.read_text())
    result = merge(export, out=export)
    assert (result.returncode, result.stdout) == (1, "")
    assert "overwrite" in result.stderr
    assert export.read_text() == LONG.read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_stdout(tmp_path):
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = merge(LONG, out=tmp_path / "m.jsonl", stdout=full)
    assert result.returncode == 1
    assert result.stderr.startswith("stdout: cannot be written")
    assert not list(tmp_path.iterdir())


def test_closed_stdout(tmp_path):
    words = [sys.executable, SCRIPT, "--json", RUN, "--ncu", LONG, "--out", tmp_path / "m.jsonl"]
    result = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "stdout: cannot be written: Bad file descriptor: nothing was\n")
    assert not list(tmp_path.iterdir())


def test_full_disk(full_disk):
    result = merge(LONG, out=full_disk / "m.jsonl")
    assert (result.returncode, result.stderr) == (
        1,
        f"{full_disk}/m.jsonl: cannot be written: No space left on device: nothing was\n",
    )


@pytest.mark.parametrize("arguments", [[], ["--json", RUN], ["--json", RUN, "--ncu"], ["--what"]])
def test_usage(arguments):
    result = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"usage" in result.stderr


def test_any_locale_and_name(joined, write, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    row = {**rows_of()[0], "ID": "60", KERNEL: "f\u00fcllen(float *)"}
    _, text = joined(write([*rows_of(), row], "z\u00e4hler.csv"))
    assert "f\\xfcllen (1)" in text


# Seconds for 100,000 rows. A row of the long form is one counter; one of the wide form is a launch with all of them.
@pytest.mark.parametrize(("form", "limit"), [("many launches", 2), ("other kernels", 2), ("wide", 4)])
def test_speed(joined, write, form, limit):
    rows = rows_of()
    if form == "wide":
        head, *ones = wide(rows)
        rows = [head, *({**one, "ID": str(place * 12 + int(one["ID"]))} for place in range(8334) for one in ones)]
    else:
        name = "{}" if form == "many launches" else "void other{1}<float, {1}>({0})"
        for place in range(1, 100_000 // len(rows) + 1):
            for row in rows[:72]:
                kernel = name.format(row[KERNEL], place)
                rows.append({**row, "ID": str(place * 12 + int(row["ID"])), KERNEL: kernel})
    assert len(rows) >= 100_000
    export = write(rows)
    seconds = []
    for _ in range(3):  # processor time, the best of three, because the machine may be busy; the script has one thread
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        records, _ = joined(export)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    same(records, joined(LONG)[0])
    assert min(seconds) < limit
