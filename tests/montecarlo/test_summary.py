"""Sums over models: exact, additive, beyond 2^63, and what follows from them."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import boolean, report, sensitivity, strings
from jaxsens.estimate import clopper_pearson
from jaxsens.montecarlo import census
from jaxsens.montecarlo.evaluate import DECIDED, UNDECIDED, UNRESOLVED, ModelArrays
from jaxsens.montecarlo.summary import Summary

N = 3


def fingerprints(tables):
    lanes = np.asarray(jax.vmap(lambda t: sensitivity.table_hash(strings.pack(t)))(tables))
    lanes = lanes.astype(np.uint64)
    return (lanes[:, 1] << np.uint64(32)) | lanes[:, 0]


def profile_by_hand(table):
    n = int(np.log2(len(table)))
    counts = [0] * (n + 1)
    for row in range(len(table)):
        counts[sum(bool(table[row] != table[row ^ (1 << bit)]) for bit in range(n))] += 1
    return counts


ALL_TABLES = np.array(list(itertools.product([False, True], repeat=2**N)))
ALL_PROFILES = np.array([profile_by_hand(t) for t in ALL_TABLES], np.int32)


def arrays(rows, status=None):
    rows = np.asarray(rows, dtype=np.int64)
    tables = ALL_TABLES[rows]
    status = np.zeros(len(rows)) if status is None else status
    return ModelArrays(
        profile=ALL_PROFILES[rows],
        ones=tables.sum(axis=1).astype(np.int32),
        fingerprint=ALL_FINGERPRINTS[rows],
        smallest_logit=np.ones(len(rows), np.float32),
        status=np.asarray(status, np.uint8),
    )


ALL_FINGERPRINTS = np.zeros(256, np.uint64)


@pytest.fixture(autouse=True, scope="module")
def _hashes():
    ALL_FINGERPRINTS[:] = fingerprints(ALL_TABLES)


def row_of(name, **kw):
    table = boolean.truth_table(name, N, **kw)
    return int(np.flatnonzero((table == ALL_TABLES).all(axis=1))[0])


models = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2)), max_size=12)


def summary_of(pairs):
    return Summary.of_models(arrays([r for r, _ in pairs], [s for _, s in pairs]), N)


@given(models, models, models)
def test_parts_add_up_to_the_whole(a, b, c):
    whole = summary_of(a + b + c)
    assert summary_of(a) + (summary_of(b) + summary_of(c)) == whole
    assert summary_of(c) + summary_of(a) + summary_of(b) == whole
    assert dataclasses.replace(Summary.empty(N) + whole) == whole


@given(models)
def test_counts_by_hand(pairs):
    s = summary_of(pairs)
    resolved = [r for r, status in pairs if status != UNRESOLVED]
    assert s.models == len(pairs)
    assert s.undecided == sum(status != DECIDED for _, status in pairs)
    assert s.unresolved == sum(status == UNRESOLVED for _, status in pairs)
    assert s.zero_sensitivity == sum(ALL_PROFILES[r][0] >= 1 for r in resolved)
    assert s.constant == sum(r in (0, 255) for r in resolved)
    per_model = [sum(k * int(c) for k, c in enumerate(ALL_PROFILES[r])) for r, _ in pairs]
    assert s.total_sensitivity == sum(per_model)
    assert s.total_squared_sensitivity == sum(v * v for v in per_model)
    assert sum(s.profile) == 8 * len(pairs)
    assert sum(s.k0_histogram.values()) == len(pairs)


@given(models)
def test_json_round_trip(pairs):
    s = summary_of(pairs)
    back = Summary.from_json(json.loads(json.dumps(s.to_json(), allow_nan=False)))
    assert back == s
    assert back + s == s + s
    json.dumps(report.summary_json(s), allow_nan=False)


def test_other_lengths_do_not_add():
    with pytest.raises(ValueError, match="length: 3 and 4"):
        Summary.empty(3) + Summary.empty(4)


def test_counts_do_not_overflow():
    big = 2**31 - 1
    faked = arrays([1, 1])._replace(profile=np.full((2, N + 1), big, np.int32))
    s = Summary.of_models(faked, N)
    assert s.profile == (4294967294,) * (N + 1)
    assert s.total_sensitivity == 2 * big * (1 + 2 + 3)
    assert s.total_squared_sensitivity == 2 * (big * 6) ** 2 > 2**63
    one = dataclasses.replace(Summary.empty(N), models=big, constant=big, zero_sensitivity=big)
    two = one + one
    assert (two.models, two.constant) == (4294967294, 4294967294)
    assert all(type(v) is int for v in (two.models, *s.profile, s.total_squared_sensitivity))


def test_counts_beyond_2_to_the_63():
    part = dataclasses.replace(
        summary_of([(23, 0)]), profile=(2**63,) * 4, total_squared_sensitivity=2**100
    )
    two = part + part
    assert two.profile == (2**64,) * 4
    assert two.total_squared_sensitivity == 2**101
    assert Summary.from_json(json.loads(json.dumps(two.to_json()))) == two


def test_estimates_of_billions():
    n = 2**40
    s = dataclasses.replace(
        Summary.empty(5),
        models=n,
        zero_sensitivity=n - 7,
        constant=n // 2,
        total_sensitivity=n * 16,
        total_squared_sensitivity=n * 512,
    )
    p = s.estimates()["p_zero_sensitivity"]
    assert (p.count, p.of) == (n - 7, n)
    assert p.low < p.estimate < p.high < 1
    mean = s.estimates()["mean_sensitivity_over_n"]
    assert mean.estimate == pytest.approx(16 / 160)
    assert mean.low < 0.1 < mean.high


def test_unresolved_models_widen_the_interval():
    # 3 hits, 2 open, 10 models.
    zero, without = row_of("and"), row_of("parity")
    pairs = [(zero, DECIDED)] * 3 + [(zero, UNRESOLVED), (without, UNRESOLVED)]
    pairs += [(without, DECIDED)] * 4 + [(without, UNDECIDED)]
    p = summary_of(pairs).estimates()["p_zero_sensitivity"]
    assert p.range == (0.3, 0.5)
    assert p.low == clopper_pearson(3, 10).low
    assert p.high == clopper_pearson(5, 10).high
    settled = summary_of([(r, UNDECIDED) for r, _ in pairs]).estimates()["p_zero_sensitivity"]
    assert (settled.low, settled.high) == tuple(clopper_pearson(4, 10))


def test_none_and_all():
    none = summary_of([(row_of("parity"), 0)] * 20).estimates()["p_zero_sensitivity"]
    assert (none.estimate, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 20))
    full = summary_of([(row_of("and"), 0)] * 20).estimates()["p_zero_sensitivity"]
    assert (full.estimate, full.high) == (1.0, 1.0)
    assert full.low == pytest.approx(0.025 ** (1 / 20))


def test_empty():
    estimates = Summary.empty(N).estimates()
    for p in estimates.values():
        assert (p.estimate, p.low, p.high, p.of) == (None, 0.0, 1.0, 0)
    values = report.summary_json(Summary.empty(N))
    assert values["models"] == 0
    json.dumps(values, allow_nan=False)


def test_all_constant_leaves_the_conditional_open():
    s = summary_of([(0, 0), (255, 0), (0, 0)])
    p = s.estimates()
    assert p["p_constant"].estimate == 1.0
    conditional = p["p_zero_sensitivity_nonconstant"]
    assert (conditional.estimate, conditional.low, conditional.high) == (None, 0.0, 1.0)
    assert (conditional.count, conditional.of) == (0, 0)
    assert p["mean_sensitivity_over_n"].estimate == 0.0
    assert p["mean_sensitivity_over_n"].high > 0


def test_conditional_leaves_the_constants_out():
    s = summary_of([(0, 0), (255, 0), (row_of("and"), 0), (row_of("parity"), 0)])
    p = s.estimates()["p_zero_sensitivity_nonconstant"]
    assert (p.count, p.of) == (1, 2)


def test_census_of_hand_made_tables():
    rows = [row_of("parity")] * 3 + [255 - row_of("parity")] * 2 + [row_of("first")]
    rows += [row_of("constant", value=1)] * 4
    counted = summary_of([(r, 0) for r in rows]).census
    assert counted["parity"] == (3, 2)
    assert counted["first"] == (1, 0)
    assert counted["constant_0"] == (0, 4)
    assert counted["and"] == (0, 0)
    named = census.is_named(ALL_FINGERPRINTS[rows], N)
    assert named.tolist() == [True] * 6 + [False] * 4


def test_unresolved_models_are_not_counted_as_named():
    # A table of NaN reads as constant_0, which nothing has established.
    s = summary_of([(0, DECIDED), (0, UNRESOLVED), (row_of("parity"), DECIDED)])
    assert s.census["constant_0"] == (1, 0)
    p = s.census_estimates()["constant_0"]["function"]
    assert (p.count, p.of, p.undecided) == (1, 3, 1)
    assert p.range == (1 / 3, 2 / 3)


def test_hash_census_is_the_exact_census_of_all_functions_of_3_bits():
    assert len(set(ALL_FINGERPRINTS.tolist())) == 256
    counted = census.count_named(ALL_FINGERPRINTS, N)
    functions = boolean.census_functions(N)
    assert counted.keys() == functions.keys()
    assert set(counted.values()) == {(1, 1)}
    exact = np.zeros(256, bool)
    for label, table in functions.items():
        for t in (table, ~table):
            row = (t == ALL_TABLES).all(axis=1)
            one = census.count_named(ALL_FINGERPRINTS[row], N)[label]
            assert one == ((1, 0) if t is table else (0, 1))
            exact |= row & (not label.startswith("constant"))
    np.testing.assert_array_equal(census.is_named(ALL_FINGERPRINTS, N), exact)


def test_census_of_nothing():
    assert set(census.count_named(np.zeros(0, np.uint64), 4).values()) == {(0, 0)}
    assert census.is_named(np.zeros(0, np.uint64), 4).shape == (0,)
