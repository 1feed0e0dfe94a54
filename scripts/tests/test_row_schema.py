"""scripts/row_schema.py: a line of schema 1 becomes the same line with the names of schema 2.

data/schema1 holds recorded lines as they were printed, data/ingest the same ones with the names of today.
"""

import json
import sys
from pathlib import Path

import jsonschema
import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
import row_schema  # noqa: E402 (lies in the folder named just above)

DATA = Path(__file__).parent / "data"
SCHEMA = json.loads((SCRIPTS / "schema" / "row.schema.json").read_text())
OLD = sorted((DATA / "schema1").glob("*.jsonl"))


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_newest_version_is_that_of_the_schema():
    assert SCHEMA["$defs"]["run"]["properties"]["schema"]["const"] == row_schema.VERSION == max(row_schema.READABLE)
    assert row_schema.known_versions() == "1 and 2"


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_old_lines_are_brought_up_to_the_newest(path):
    old, new = lines_of(path), lines_of(DATA / "ingest" / path.name)
    assert old != new
    made = [row_schema.up_to_date(record, 1) for record in old]
    assert [list(record.items()) for record in made] == [
        list(record.items()) for record in new
    ]  # the order of keys too
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert all(validator.is_valid(record) for record in made)
    assert not any(validator.is_valid(record) for record in old if record != row_schema.up_to_date(record, 1))


def test_every_type_that_had_an_old_name_is_among_those_lines():
    """And each new name is in the schema, the old one in none of its types."""
    renamed = row_schema._RENAMED
    old = [record for path in OLD for record in lines_of(path)]
    assert set(renamed) <= {record["record"] for record in old}
    for kind, names in renamed.items():
        properties = SCHEMA["$defs"][kind]["properties"]
        assert names.keys().isdisjoint(properties) and set(names.values()) <= properties.keys()
        assert names.keys() <= {key for record in old if record["record"] == kind for key in record}


@pytest.mark.parametrize("version", [2, 3, 0, None, "1", True, 1.0, [1]])
def test_lines_of_another_version_stay_as_they_are(version):
    row = {"record": "row", "bytes": 1, "line": 2.0}
    assert row_schema.up_to_date(row, version) is row
    assert row_schema.is_readable(version) == (version == 2)


@pytest.mark.parametrize("record", [{"record": "path", "bytes": 1}, {"record": ["row"], "bytes": 1}, {"bytes": 1}])
def test_a_type_without_old_names_is_left_alone(record):
    assert row_schema.up_to_date(record, 1) == record


def test_a_line_that_has_both_names_keeps_both():
    row = {"record": "row", "bytes": 1, "requested_bytes": 2}
    assert row_schema.up_to_date(row, 1) == row
