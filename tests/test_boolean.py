import json
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsens import boolean

GOLDEN = json.loads((Path(__file__).parent / "data" / "sensitivity.json").read_text())

# The definitions again, on tuples of bits, one string at a time.
DEFINITIONS = {
    "constant": lambda x, value: value,
    "parity": lambda x: sum(x) % 2,
    "sparse_parity": lambda x, m: sum(x[:m]) % 2,
    "first": lambda x: x[0],
    "dictator": lambda x, i: x[i],
    "majority": lambda x: 2 * sum(x) > len(x),
    "threshold": lambda x, k: sum(x) >= k,
    "and": lambda x: all(x),
    "or": lambda x: any(x),
    "inner_product": lambda x: sum(a * b for a, b in zip(*halves(x), strict=True)) % 2,
    "address": lambda x, k: x[k + int("0" + "".join(map(str, x[:k])), 2)],
    "tribes": lambda x, width: any(all(x[j : j + width]) for j in range(0, len(x), width)),
    "equality": lambda x: halves(x)[0] == halves(x)[1],
    "exactly": lambda x, k: sum(x) == k,
    "mod3": lambda x: sum(x) in range(0, len(x) + 1, 3),
}


def halves(x):
    return x[: len(x) // 2], x[len(x) // 2 :]


def cases(n):
    """Every named function with a closed form at this length, with every argument."""
    yield from (("constant", {"value": value}) for value in (0, 1))
    yield from ((name, {}) for name in ("parity", "first", "majority", "and", "or", "mod3"))
    yield from (("sparse_parity", {"m": m}) for m in range(n + 1))
    yield from (("dictator", {"i": i}) for i in range(n))
    yield from (("threshold", {"k": k}) for k in range(n + 2))
    yield from (("exactly", {"k": k}) for k in range(n + 1))
    yield from (("tribes", {"width": w}) for w in range(1, n + 1) if n % w == 0)
    yield from (("address", {"k": k}) for k in range(n) if k + 2**k == n)
    if n % 2 == 0:
        yield from (("inner_product", {}), ("equality", {}))


def brute_force(name, n, kw):
    strings = [tuple(int(c) for c in format(r, f"0{n}b")) for r in range(2**n)]
    value = {x: int(DEFINITIONS[name](x, **kw)) for x in strings}
    counts = [0] * (n + 1)
    for x in strings:
        flips = (x[:i] + (1 - x[i],) + x[i + 1 :] for i in range(n))
        counts[sum(value[y] != value[x] for y in flips)] += 1
    return [value[x] for x in strings], counts


def profile_of_table(table):
    n = table.size.bit_length() - 1
    rows = np.arange(table.size)
    sensitivity = sum((table != table[rows ^ (1 << i)]).astype(int) for i in range(n))
    return np.bincount(sensitivity, minlength=n + 1).tolist()


@pytest.mark.parametrize("n", range(1, 9))
def test_tables_and_profiles_are_those_of_the_definitions(n):
    seen = set()
    for name, kw in cases(n):
        table, counts = brute_force(name, n, kw)
        ours = boolean.truth_table(name, n, **kw)
        assert ours.shape == (2**n,)
        assert ours.dtype == bool
        assert ours.tolist() == [bool(v) for v in table], (name, kw)
        assert boolean.profile(name, n, **kw) == counts, (name, kw)
        seen.add(name)
    if n == 6:
        assert seen | {"random"} == set(boolean.names())


def test_golden_rows():
    for row in GOLDEN["functions"]:
        n, kw = row["n"], row["kw"]
        counts = boolean.profile(row["name"], n, **kw)
        table = boolean.truth_table(row["name"], n, **kw)
        assert counts == row["profile"] == profile_of_table(table), row
        assert int(table.sum()) == row["ones"]
        numerator, denominator = row["average_sensitivity"]
        assert sum(k * c for k, c in enumerate(counts)) * denominator == numerator * 2**n
        if "table" in row:
            assert "".join("01"[int(v)] for v in table) == row["table"]


def test_golden_majority_large():
    for row in GOLDEN["majority_large"]:
        counts = boolean.profile("majority", row["n"])
        assert counts[0] == row["K_0"]
        numerator, denominator = row["average_sensitivity"]
        total = sum(k * c for k, c in enumerate(counts))
        assert total * denominator == numerator * 2 ** row["n"]


@pytest.mark.parametrize("n", [11, 12])
def test_larger_tables_have_the_closed_form_profile(n):
    for name, kw in cases(n):
        table = boolean.truth_table(name, n, **kw)
        assert profile_of_table(table) == boolean.profile(name, n, **kw), (name, kw)


def test_tables_do_not_depend_on_the_chunk(monkeypatch):
    asked = [*cases(10), ("random", {"seed": 7})]
    whole = [boolean.truth_table(name, 10, **kw) for name, kw in asked]
    monkeypatch.setattr(boolean, "_CHUNK_ROWS", 96)
    for (name, kw), table in zip(asked, whole, strict=True):
        np.testing.assert_array_equal(boolean.truth_table(name, 10, **kw), table)


def test_profiles_of_long_strings():
    n = 200
    for name, kw in cases(n):
        counts = boolean.profile(name, n, **kw)
        assert len(counts) == n + 1
        assert all(type(c) is int and c >= 0 for c in counts)
        assert sum(counts) == 2**n
        assert sum(k * c for k, c in enumerate(counts)) % 2 == 0  # each edge is seen twice
    assert boolean.profile("majority", n)[100] == comb(n, 100)
    assert boolean.profile("address", 7 + 128, k=7)[0] == 0
    assert boolean.profile("parity", n)[n] == 2**n


def test_equality_of_two_bits_adds_coinciding_entries():
    assert boolean.profile("equality", 2) == [0, 0, 4]


@given(st.lists(st.integers(0, 1), min_size=2, max_size=9))
@settings(max_examples=60, deadline=None)
def test_symmetric_profile(values):
    n = len(values) - 1
    weights = np.array([bin(r).count("1") for r in range(2**n)])
    assert boolean.symmetric_profile(values) == profile_of_table(np.array(values)[weights] == 1)


@given(st.integers(1, 10), st.integers(0, 2**64))
@settings(max_examples=30, deadline=None)
def test_random_is_a_function_of_the_seed(n, seed):
    table = boolean.truth_table("random", n, seed=seed)
    assert table.shape == (2**n,)
    assert table.dtype == bool
    np.testing.assert_array_equal(table, boolean.truth_table("random", n, seed=seed))


def test_random_is_balanced_and_differs_by_seed():
    tables = [boolean.truth_table("random", 16, seed=s) for s in range(3)]
    for table in tables:
        assert abs(int(table.sum()) - 2**15) < 6 * 128
    assert not np.array_equal(tables[0], tables[1])
    assert abs(int((tables[0] ^ tables[2]).sum()) - 2**15) < 6 * 128


@pytest.mark.parametrize(
    ("call", "n", "kw", "words"),
    [
        ("xor", 4, {}, ["'xor'", "parity", "mod3", "random"]),
        (None, 4, {}, ["None", "parity"]),
        ("parity", 4, {"m": 2}, ["m given", "no arguments"]),
        ("sparse_parity", 4, {}, ["no arguments given", "takes m"]),
        ("sparse_parity", 4, {"k": 2}, ["k given", "takes m"]),
        ("sparse_parity", 4, {"m": 5}, ["5", "from 0 to 4"]),
        ("sparse_parity", 4, {"m": True}, ["True", "from 0 to 4"]),
        ("constant", 4, {"value": 2}, ["2", "from 0 to 1"]),
        ("dictator", 4, {"i": 4}, ["4", "from 0 to 3"]),
        ("dictator", 4, {"i": 1.0}, ["1.0", "integer"]),
        ("threshold", 4, {"k": 6}, ["6", "from 0 to 5"]),
        ("exactly", 4, {"k": -1}, ["-1", "from 0 to 4"]),
        ("inner_product", 5, {}, ["5", "even"]),
        ("equality", 3, {}, ["3", "even"]),
        ("address", 7, {"k": 2}, ["n = 7", "= 6"]),
        ("address", 7, {"k": 10**9}, ["n = 7", "k + 2**k"]),
        ("tribes", 6, {"width": 4}, ["4", "divide n = 6"]),
        ("tribes", 6, {"width": 0}, ["0", "from 1 to 6"]),
        ("random", 6, {"seed": -1}, ["-1", "at least 0"]),
        ("parity", 0, {}, ["0", "integer"]),
        ("parity", True, {}, ["True", "integer"]),
        ("parity", "5", {}, ["'5'", "integer"]),
    ],
)
@pytest.mark.parametrize("function", [boolean.truth_table, boolean.profile])
def test_bad_arguments_are_one_line(function, call, n, kw, words):
    with pytest.raises(ValueError) as caught:
        function(call, n, **kw)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_no_table_above_30_and_no_profile_of_random():
    with pytest.raises(ValueError, match="31 given"):
        boolean.truth_table("parity", 31)
    with pytest.raises(ValueError, match="no closed form"):
        boolean.profile("random", 4, seed=0)


@pytest.mark.parametrize("n", range(1, 9))
def test_census_functions(n):
    tables = boolean.census_functions(n)
    expected = {"constant_0", "parity", "first", "majority", "and", "or", "mod3"}
    expected |= {f"exactly_{k}" for k in range(n + 1)}
    expected |= {f"dictator_{i}" for i in range(1, n)}
    expected |= {f"{name}_{k}" for name in ("sparse_parity", "threshold") for k in range(2, n)}
    expected |= {"inner_product", "equality"} if n % 2 == 0 else set()
    expected |= {3: {"address_1"}, 6: {"address_2"}}.get(n, set())
    expected |= {f"tribes_{w}" for w in range(2, n) if n % w == 0}
    assert set(tables) == expected
    assert all(t.shape == (2**n,) and t.dtype == bool for t in tables.values())
    np.testing.assert_array_equal(tables["first"], boolean.truth_table("dictator", n, i=0))
    assert not tables["constant_0"].any()
