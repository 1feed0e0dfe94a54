"""Day 49's models against the recorded hardware counters: access patterns at their walls, streams by what they move.

Which kernels there are the recording says, so that a kernel that is not recorded yet is none of this file's.
"""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

PROFILE = Path(__file__).resolve().parents[2] / "profile"
FOLDERS = sorted(path.parent for path in PROFILE.glob("*/day49-merged.jsonl"))
STREAMS = ("copyCoalesced", "vectorAdd", "transposeTiled", "reduceSequentialAddressing", "polynomialHorner")
LANES, BANKS, SECTOR, WORD = 32, 32, 32, 4  # two counts and two sizes in bytes


def by_symbol(folder, name, *kinds):
    lines = map(json.loads, (folder / name).read_text().splitlines())
    return {line.get("symbol", line["record"]): line for line in lines if line["record"] in kinds}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request):
    return request.param


@pytest.fixture
def merged(folder):
    return by_symbol(folder, "day49-merged.jsonl", "run", "merged")


@pytest.fixture
def patterns(folder):
    return by_symbol(folder, "day49.jsonl", "pattern")


def requested_bytes(record):
    """Return a record's requested bytes, which schema 1 calls its bytes."""
    return record["requested_bytes"] if "requested_bytes" in record else record["bytes"]


def intensity(record, level):
    """Return warp instructions per transaction: a sector of global, a wavefront of shared memory."""
    return record[f"{level}_instructions"] / record[{"global": "global_sectors", "shared": "shared_wavefronts"}[level]]


def transactions_of(pattern):
    """Return what one load of a warp becomes, by definition: the pattern's name says which words the lanes want."""
    stride = re.fullmatch(rf"{pattern['level']}, stride (\d+)", pattern["variant"])
    if pattern["level"] == "shared":
        return max(Counter(lane * int(stride[1]) % BANKS for lane in range(LANES)).values())
    if stride:
        return len({lane * int(stride[1]) * WORD // SECTOR for lane in range(LANES)})
    assert pattern["variant"] == "global, random"
    draw = random.Random(49)
    return sum(len({draw.randrange(1024) for _ in range(LANES)}) for _ in range(1000)) / 1000


def test_access_patterns_stand_at_their_walls(merged, patterns):
    walls = {symbol: 1 / transactions_of(pattern) for symbol, pattern in patterns.items()}
    assert {1, 1 / 32} <= set(walls.values())
    counted = {symbol: intensity(merged[symbol], pattern["level"]) for symbol, pattern in patterns.items()}
    assert counted == pytest.approx(walls, rel=0.05)


def test_the_program_names_the_same_walls(patterns):
    named = {symbol: pattern["transactions"] for symbol, pattern in patterns.items()}
    assert named == pytest.approx({symbol: transactions_of(pattern) for symbol, pattern in patterns.items()}, rel=0.02)


def test_a_copy_moves_what_it_requests(merged):
    copy, l2 = merged["copyCoalesced"], merged["run"]["l2_bytes"]
    assert requested_bytes(copy) / 2 >= 4 * l2  # in and out: neither stays in the cache
    assert copy["dram_bytes"] == pytest.approx(requested_bytes(copy), rel=0.03)


@pytest.mark.parametrize("symbol", STREAMS)
def test_what_streams_passes_l1_and_l2_alike(merged, symbol):
    assert merged[symbol]["l2_bytes"] == pytest.approx(merged[symbol]["l1_bytes"], rel=0.05)
