"""scripts/schema/row.schema.json: what it takes, what it refuses, and what scripts/bench_ingest.py relies on."""

import json
from pathlib import Path

import jsonschema
import pytest

SCHEMA = json.loads((Path(__file__).resolve().parents[1] / "schema" / "row.schema.json").read_text(encoding="utf-8"))
DEFINITIONS = SCHEMA["$defs"]
RECORDS = {name: definition for name, definition in DEFINITIONS.items() if "record" in definition.get("properties", {})}
FIXTURES = sorted((Path(__file__).parent / "data" / "ingest").glob("*.jsonl"))
LINES = [json.loads(line) for fixture in FIXTURES for line in fixture.read_text(encoding="utf-8").splitlines()]
ABSENT = ...  # as a changed value: take the key away


def takes(record):
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(record)


def sample(name, **has):
    """Return a copy of the first fixture line of that record type with these values."""
    return dict(next(line for line in LINES if line["record"] == name and has.items() <= line.items()))


def changed(record, changes):
    result = {**record, **changes}
    return {key: value for key, value in result.items() if value is not ABSENT}


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['record']} {line.get('variant', '')}".strip())
def test_takes_what_the_days_print(line):
    assert takes(line)


def test_the_fixtures_have_every_record_type():
    assert {line["record"] for line in LINES} == set(RECORDS)


def test_takes_a_ceiling_of_either_kind_and_a_check_with_either_end():
    assert takes(sample("ceiling", metric="gbps"))
    assert takes(sample("ceiling", metric="gflops"))
    assert takes(sample("check", ok=True))
    assert takes(sample("check", ok=False))


@pytest.mark.parametrize(
    "size",
    [
        "ragged",
        "full",
        "512x512x512 integer",
        "35x79x19 uniform gaps",
        "64x256x4 integer aligned",
        "1x17x129 uniform",
        "270336",
    ],
)
def test_takes_a_check_of_each_size(size):
    assert takes(changed(sample("check"), {"size": size}))


def test_takes_a_run_whose_code_the_driver_translated():
    assert takes(changed(sample("run"), {"ptx": "compute_75"})) and takes(changed(sample("run"), {"ptx": ABSENT}))


def test_takes_a_matrix_product_with_what_it_may_leave_out():
    optional = {"model_percent", "wave_percent", "intensity", "loads_per_fma", "error", "note"}
    assert optional < sample("gemm").keys()
    assert set(RECORDS["gemm"]["properties"]) == {*RECORDS["gemm"]["required"], *optional}
    assert takes(changed(sample("gemm"), dict.fromkeys(optional, ABSENT)))


def test_the_sizes_of_a_product_and_its_note_tell_it_from_others():
    """Four products of one variant: three sizes, and at one of them two notes."""
    products = [line for line in LINES if line["record"] == "gemm" and line["variant"] == "sgemm()"]
    cases = {tuple(line.get(key) for key in RECORDS["gemm"]["x-report"]["case"]) for line in products}
    assert len(cases) == len(products) == 4
    assert {"day", "variant", "m", "n", "k", "note"} == set(RECORDS["gemm"]["x-report"]["case"])


@pytest.mark.parametrize("name", RECORDS)
def test_refuses_an_unknown_key(name):
    assert not takes(changed(sample(name), {"colour": 1}))


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, record in RECORDS.items() for key in record["required"]]
)
def test_refuses_a_missing_key(name, key):
    assert not takes(changed(sample(name), {key: ABSENT}))


# A NaN is missing here: for jsonschema it lies within every bound. Who reads the lines refuses it, as JSON does.
@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, record in RECORDS.items() for key in record["properties"]]
)
@pytest.mark.parametrize("value", [None, [], {}, -1, -0.5, "", 1e30, float("inf")])
def test_refuses_what_no_key_can_hold(name, key, value):
    if RECORDS[name]["properties"][key].get("$ref") == "#/$defs/signed" and value in (-1, -0.5):
        value = -1e30
    record = next(line for line in LINES if line["record"] == name and key in line)
    assert not takes(changed(record, {key: value}))


@pytest.mark.parametrize(
    ("name", "key"),
    [(name, key) for name in RECORDS for key, value in sample(name).items() if isinstance(value, (int, float))],
)
def test_refuses_another_type_that_python_would_take(name, key):
    value = sample(name)[key]
    assert not takes(changed(sample(name), {key: str(value)}))
    assert not takes(changed(sample(name), {key: value > 0 if not isinstance(value, bool) else int(value)}))


@pytest.mark.parametrize("record", [{}, {"record": "sgemm"}, {"record": None}, {"record": ["row"]}, [], "row", 1, None])
def test_refuses_what_is_no_known_record(record):
    assert not takes(record)


def test_refuses_another_record_type_s_name():
    for name in RECORDS:
        for other in RECORDS.keys() - {name}:
            assert not takes(changed(sample(name), {"record": other}))


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (sample("run"), {"schema": 1}),
        (sample("run"), {"schema": 0}),
        (sample("run"), {"schema": "2"}),
        (sample("run"), {"day": 0}),
        (sample("run"), {"backend": "hip"}),
        (sample("run"), {"cc": "9"}),
        (sample("run"), {"arch": "compute_90"}),
        (sample("run"), {"ptx": "sm_75"}),
        (sample("run"), {"ptx": ""}),
        (sample("run"), {"uuid": "GPU-3bcf3a98"}),
        (sample("run"), {"utc": "2026-11-30 00:24:45"}),
        (sample("run"), {"device": "NVIDIA\nH200"}),
        (sample("run"), {"device": "NVIDIA H200\n"}),
        (sample("run"), {"flags": "-O3\x1b[31m"}),
        (sample("fleet"), {"mode": "alone"}),
        (sample("fleet"), {"node": "node7"}),
        (sample("fleet"), {"node": "e7292bd7c778\n"}),
        (sample("fleet"), {"launch": "E7292BD7C778"}),
        (sample("fleet"), {"ranks": 0}),
        (sample("fleet"), {"cards": 0}),
        (sample("fleet"), {"node_cards": 0}),
        (sample("fleet"), {"began": 0}),
        (sample("check", ok=True), {"wrong": 1}),
        (sample("check", ok=True), {"message": "first wrong element 0"}),
        (sample("check", ok=True), {"ok": False}),
        (sample("check", ok=False), {"wrong": 0}),
        (sample("check", ok=False), {"message": ABSENT}),
        (sample("check", ok=False), {"ok": True}),
        (sample("check"), {"size": "huge"}),
        (sample("check"), {"size": "0"}),
        (sample("check"), {"size": "512 integer"}),
        (sample("check"), {"size": "ragged\n"}),
        (sample("check"), {"size": "full integer"}),
        (sample("check"), {"size": "512x512x512"}),
        (sample("check"), {"size": "512x512x512 half"}),
        (sample("check"), {"size": "512x512x512 integer\n"}),
        (sample("check"), {"size": "512x512x512 integer  gaps"}),
        (sample("check"), {"size": "512x512x512 integer gaps aligned"}),
        (sample("check"), {"size": "512x512 integer"}),
        (sample("check"), {"size": "512x0x512 integer"}),
        (sample("check"), {"size": "512x512x-1 uniform"}),
        (sample("check"), {"size": "a 512x512x512 uniform"}),
        (sample("check"), {"worst": 1.01}),
        (sample("row"), {"ms": 0}),
        (sample("row"), {"ms_min": 0}),
        (sample("row"), {"ms_max": -0.1}),
        (sample("row"), {"value": 0}),
        (sample("row"), {"samples": 0}),
        (sample("row"), {"samples": 1.5}),
        (sample("row"), {"flop": 2**63}),
        (sample("row"), {"metric": "gbps"}),
        (sample("row"), {"unit": "us"}),
        (sample("row"), {"unit": "furlong"}),
        (sample("row"), {"ceiling": "l2"}),
        (sample("row"), {"variant": "x" * 121}),
        (sample("shape"), {"unit": "GFLOP/s"}),
        (sample("gemm"), {"m": 0}),
        (sample("gemm"), {"n": 512.5}),
        (sample("gemm"), {"k": 2**31}),
        (sample("gemm"), {"flop": 0}),
        (sample("gemm"), {"requested_bytes": 4096}),
        (sample("gemm"), {"metric": "ms"}),
        (sample("gemm"), {"unit": "GB/s"}),
        (sample("gemm"), {"cublas_ms": 0}),
        (sample("gemm"), {"cublas_percent": 0}),
        (sample("gemm"), {"fma_percent": 0}),
        (sample("gemm"), {"fma_percent": 100.01}),
        (sample("gemm"), {"intensity": 0}),
        (sample("gemm"), {"error": 1.5}),
        (sample("gemm"), {"note": "launch\nloop"}),
        (sample("ridge"), {"unit": "FLOP"}),
        (sample("path"), {"quantity": "wall"}),
        (sample("path"), {"n": 0}),
        (sample("path"), {"p5": 0}),
        (sample("path"), {"unit": "ms"}),
        (sample("path"), {"saved_us": "0"}),
        (sample("path"), {"break_even": 0}),
        (sample("path"), {"fits_l2": 1}),
        (sample("bill"), {"metric": "ms"}),
        (sample("bill"), {"batch": 0}),
        (sample("model"), {"unit": "us/node"}),
        (sample("model"), {"off_us": -0.1}),
        (sample("ceiling", metric="gbps"), {"unit": "GFLOP/s"}),
        (sample("ceiling", metric="gbps"), {"metric": "gflops"}),
        (sample("ceiling", metric="gbps"), {"metric": "gflops", "unit": "GFLOP/s"}),
        (sample("ceiling", metric="gbps"), {"shape": ABSENT}),
        (sample("ceiling", metric="gbps"), {"theory": 1.0}),
        (sample("ceiling", metric="gflops"), {"unit": "GB/s"}),
        (sample("ceiling", metric="gflops"), {"clock_mhz": ABSENT}),
        (sample("ceiling", metric="gflops"), {"theory": ABSENT}),
        (sample("ceiling", metric="gflops"), {"shape": "float4 x 1"}),
    ],
    ids=lambda value: str(value) if len(value) < 5 else value["record"],
)
def test_refuses(record, changes):
    assert takes(record)
    assert not takes(changed(record, changes))


# ---- the form that scripts/bench_ingest.py relies on


def test_every_record_type_is_offered_under_its_name():
    assert [reference["$ref"] for reference in SCHEMA["oneOf"]] == [f"#/$defs/{name}" for name in RECORDS]
    for name, record in RECORDS.items():
        assert record["properties"]["record"] == {"const": name}
        assert record["additionalProperties"] is False
        assert "record" in record["required"]


@pytest.mark.parametrize("name", RECORDS)
def test_every_key_has_a_column_type_and_no_key_is_named_as_the_run_s_own_columns(name):
    assert not {"run", "digest"} & RECORDS[name]["properties"].keys()
    for value in RECORDS[name]["properties"].values():
        value = DEFINITIONS[value["$ref"].rpartition("/")[2]] if "$ref" in value else value
        if "type" in value:
            assert value["type"] in ("string", "integer", "number", "boolean")
        else:
            assert all(isinstance(choice, str) for choice in value.get("enum", [value.get("const")]))


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_reported_has_the_keys_that_a_report_needs(name):
    record = RECORDS[name]
    assert ("x-report" in record) == ("value" in record["properties"])
    if "x-report" in record:
        assert record["x-report"]["better"] in ("lower", "higher", "neither")
        assert {"day", "variant", "metric", "value", "unit"} <= set(record["required"])
        assert record["x-report"]["case"][:2] == ["day", "variant"]
        assert set(record["x-report"]["case"]) <= set(record["properties"])  # a missing key is a case of its own
        assert record["x-report"].keys() <= {"case", "better", "order"}


@pytest.mark.parametrize("name", RECORDS)
def test_every_alternative_says_in_words_what_it_is(name):
    assert all(choice["description"] and choice["properties"] for choice in RECORDS[name].get("anyOf", []))
