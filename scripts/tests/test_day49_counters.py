"""Day 49's models against the recorded hardware counters: access patterns at their walls, streams by what they move."""

import json
from pathlib import Path

import pytest

PROFILE = Path(__file__).resolve().parents[2] / "profile"
FOLDERS = sorted(path.parent for path in PROFILE.glob("*/day49-merged.jsonl"))
# By definition: warp instructions over sectors of global, over wavefronts of shared memory.
WALLS = {"globalStride0": 1, "globalStride1": 1 / 4, "globalStride8": 1 / 32, "globalRandom": 1 / 32}
WALLS.update({f"sharedStride{stride}": 1 / stride for stride in (1, 2, 4, 8, 16, 32)})
STREAMS = ("copyCoalesced", "vectorAdd", "transposeTiled", "reduceSequentialAddressing", "polynomialHorner")


def by_symbol(folder, name, *kinds):
    lines = map(json.loads, (folder / name).read_text().splitlines())
    return {line.get("symbol", line["record"]): line for line in lines if line["record"] in kinds}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def merged(request):
    return by_symbol(request.param, "day49-merged.jsonl", "run", "merged")


def intensity(record):
    memory = "shared" if record["symbol"].startswith("shared") else "global"
    transactions = record["shared_wavefronts" if memory == "shared" else "global_sectors"]
    return record[f"{memory}_instructions"] / transactions


def test_access_patterns_stand_at_their_walls(merged):
    assert {symbol: intensity(merged[symbol]) for symbol in WALLS} == pytest.approx(WALLS, rel=0.05)


def test_the_program_names_the_same_walls():
    for folder in FOLDERS:
        patterns = by_symbol(folder, "day49.jsonl", "pattern")
        assert {symbol: 1 / pattern["transactions"] for symbol, pattern in patterns.items()} == pytest.approx(
            WALLS, rel=0.02
        )


def test_a_copy_moves_what_it_asks_for(merged):
    copy, l2 = merged["copyCoalesced"], merged["run"]["l2_bytes"]
    assert copy["bytes"] / 2 >= 4 * l2  # in and out: neither stays in the cache
    assert copy["dram_bytes"] == pytest.approx(copy["bytes"], rel=0.03)


@pytest.mark.parametrize("symbol", STREAMS)
def test_what_streams_passes_l1_and_l2_alike(merged, symbol):
    assert merged[symbol]["l2_bytes"] == pytest.approx(merged[symbol]["l1_bytes"], rel=0.05)
