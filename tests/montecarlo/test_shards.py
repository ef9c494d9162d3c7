"""Index ranges: how a run is cut for several processes, and what is missing of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens.cli.sample import shard_range
from jaxsens.montecarlo import shards


@pytest.mark.parametrize(("models", "n"), [(200, 3), (7, 7), (10**12 + 1, 64), (5, 1)])
def test_shard_ranges_tile_the_models(models, n):
    ranges = [shard_range(f"{i}/{n}", models) for i in range(n)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == models
    assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))


@pytest.mark.parametrize(
    "shard", ["5/4", "4/4", "-1/4", "1", "1/", "/4", "a/b", "0/0", "1.0/4", ""]
)
def test_shard_ranges_that_are_refused(shard):
    with pytest.raises(ValueError, match="^shard: "):
        shard_range(shard, 100)


def test_an_empty_shard_is_refused():
    with pytest.raises(ValueError, match="empty; take n <= 3"):
        shard_range("0/4", 3)


@given(
    st.lists(st.integers(0, 400), unique=True, max_size=16).map(sorted),
    st.integers(0, 300),
    st.integers(1, 150),
    st.integers(1, 70),
)
def test_missing_ranges_fill_exactly_the_gaps(cuts, start, count, chunk):
    stop = start + count
    done = list(zip(cuts[::2], cuts[1::2], strict=False))
    pieces = shards.missing_ranges(done, start, stop, chunk)
    held = {i for a, b in done for i in range(a, b)}
    filled = [i for a, b in pieces for i in range(a, b)]
    assert filled == [i for i in range(start, stop) if i not in held]
    for a, b in pieces:
        assert a < b
        assert a // chunk == (b - 1) // chunk


def test_missing_ranges_of_huge_indices():
    start = 2**63 - 10
    pieces = shards.missing_ranges([(start + 2, start + 4)], start, 2**63, 4)
    assert [i for a, b in pieces for i in range(a, b)] == [
        i for i in range(start, 2**63) if not start + 2 <= i < start + 4
    ]
