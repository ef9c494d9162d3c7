"""Tables and JSON of a run: numbers, not typography, except that nothing is cut off."""

import json

import numpy as np
import pytest
from rich.console import Console

import jaxsens
from jaxsens import control, report
from jaxsens.montecarlo.evaluate import DECIDED, UNDECIDED, UNRESOLVED, ModelArrays


def profile_of(table):
    """Sensitivity profile by flipping bits one by one."""
    n = len(table).bit_length() - 1
    counts = [0] * (n + 1)
    for row in range(2**n):
        counts[sum(table[row] != table[row ^ (1 << bit)] for bit in range(n))] += 1
    return counts


def summary_of(tables, status=None):
    """The summary of models with the given truth tables."""
    n = len(tables[0]).bit_length() - 1
    arrays = ModelArrays(
        profile=np.array([profile_of(t) for t in tables], np.int32),
        ones=np.array([sum(t) for t in tables], np.int32),
        fingerprint=np.arange(1, len(tables) + 1, dtype=np.uint64),
        smallest_logit=np.ones(len(tables), np.float32),
        status=np.array(status or [DECIDED] * len(tables), np.uint8),
    )
    return jaxsens.Summary.of_models(arrays, n)


def parity(n):
    return [bin(row).count("1") % 2 for row in range(2**n)]


def conjunction(n):
    return [0] * (2**n - 1) + [1]


def constant(n, value=0):
    return [value] * 2**n


def enlarged(summary, factor):
    """What ``factor`` such runs add up to, by doubling."""
    total = jaxsens.Summary.empty(summary.length)
    while factor:
        if factor & 1:
            total = total + summary
        summary, factor = summary + summary, factor >> 1
    return total


CASES = {
    "shortest strings": summary_of([constant(1), [0, 1]]),
    "one model": summary_of([parity(4)]),
    "one constant": summary_of([constant(3, 1)]),
    "all constant": summary_of([constant(4), constant(4, 1), constant(4)]),
    "none constant": summary_of([parity(4), conjunction(4)]),
    "unresolved": summary_of(
        [parity(3), constant(3), conjunction(3), conjunction(3)],
        [DECIDED, UNRESOLVED, UNDECIDED, UNRESOLVED],
    ),
    "no model": jaxsens.Summary.empty(5),
    "two bits a word": summary_of([parity(7), conjunction(7), constant(7)]),
}


def strict_loads(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", CASES)
def test_json_is_strict_and_round_trips(name):
    values = report.summary_json(CASES[name])
    text = json.dumps(values, allow_nan=False)
    assert strict_loads(text) == json.loads(json.dumps(values))
    again = strict_loads(json.dumps(CASES[name].to_json(), allow_nan=False))
    assert jaxsens.Summary.from_json(again) == CASES[name]


@pytest.mark.parametrize("name", CASES)
def test_json_counts(name):
    summary, values = CASES[name], report.summary_json(CASES[name])
    assert values["models"] == summary.models
    assert sum(values["profile"]) == summary.models * 2**summary.length
    assert sum(values["k0_histogram"].values()) == summary.models
    for p in values["estimates"].values():
        assert 0 <= p["low"] <= p["high"] <= 1
        if p["estimate"] is not None:
            assert p["low"] <= p["estimate"] <= p["high"]


def test_json_of_known_models():
    # Of 4 models on 3 bits: parity (K_0 = 0), AND (K_0 = 8 - 4 = 4); a constant and one AND open.
    values = report.summary_json(CASES["unresolved"])
    assert (values["models"], values["undecided"], values["unresolved"]) == (4, 3, 2)
    assert values["k0_histogram"] == {"0": 1, "4": 2, "8": 1}
    hit = values["estimates"]["p_zero_sensitivity"]
    assert (hit["count"], hit["of"], hit["undecided"]) == (1, 4, 2)
    assert hit["range"] == [0.25, 0.75]


def test_empty_run_has_no_estimate():
    for p in report.summary_json(CASES["no model"])["estimates"].values():
        assert p["estimate"] is None
        assert (p["low"], p["high"]) == (0.0, 1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_control_is_a_count_over_all_functions(n):
    hits = constants = 0
    for word in range(2 ** (2**n)):
        ones = [row for row in range(2**n) if word >> row & 1]
        constants += len(ones) in (0, 2**n)
        present = set(ones)
        hits += any(
            all((row in present) == (row ^ (1 << bit) in present) for bit in range(n))
            for row in range(2**n)
        )
    functions = 2 ** (2**n)
    values = report.control_values(n)
    assert values["p_zero_sensitivity"]["value"] == hits / functions
    assert values["p_constant"]["value"] == constants / functions
    among = (hits - constants) / (functions - constants)
    assert values["p_zero_sensitivity_nonconstant"]["value"] == pytest.approx(among, rel=1e-12)
    assert all(v["error_bound"] == 0 for v in values.values())


@pytest.mark.parametrize("n", [1, 4, 5, 6, 10, 20, 30])
def test_control_values_are_those_of_control(n):
    values = report.summary_json(jaxsens.Summary.empty(n))["control"]
    p = control.p_zero_sensitivity(n)
    assert values["p_zero_sensitivity"] == p._asdict()
    varies = values["p_zero_sensitivity_nonconstant"]["value"]
    assert varies == control.p_zero_sensitivity_nonconstant(n)
    assert values["p_constant"]["value"] == control.p_constant(n)
    assert values["mean_sensitivity_over_n"]["value"] == 0.5
    assert values.keys() == report.summary_json(jaxsens.Summary.empty(n))["estimates"].keys()


def printed(table, width=80):
    console = Console(width=width, record=True, file=open("/dev/null", "w"), legacy_windows=False)  # noqa: SIM115
    with console.file:
        console.print(table)
    return console.export_text()


def every_table(summary):
    tables = [report.estimates_table(summary), report.profile_table(summary)]
    census = report.census_table(summary)
    return tables if census is None else [*tables, census]


@pytest.mark.parametrize("name", CASES)
def test_tables_of_every_case(name):
    for table in every_table(CASES[name]):
        text = printed(table)
        assert "…" not in text
        assert "nan" not in text
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("models", [100_000, 1_000_000_000, 10_000_000_000])
@pytest.mark.parametrize("n", [5, 10, 20])
def test_large_counts_are_not_cut_off_at_width_80(models, n):
    one = np.zeros((10, n + 1), np.int32)
    one[:, 0], one[0] = 2**n, 0
    one[0, n] = 2**n
    arrays = ModelArrays(
        profile=one,
        ones=np.array([2 ** (n - 1)] * 2 + [0] * 8, np.int32),
        fingerprint=np.zeros(10, np.uint64),
        smallest_logit=np.ones(10, np.float32),
        status=np.zeros(10, np.uint8),
    )
    label = next(iter(jaxsens.Summary.of_models(arrays, n).census)) if n <= 10 else None
    summary = enlarged(jaxsens.Summary.of_models(arrays, n), models // 10)
    assert summary.models == models
    if label:
        object.__setattr__(summary, "census", {"sparse_parity_19": (models // 10, models // 3)})
    for table in every_table(summary):
        text = printed(table)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
    text = printed(report.estimates_table(summary)).replace("\n", " ")
    assert f"{models:,} models on all 2^{n} strings" in text
    # The count may be broken over two lines, but no digit is missing.
    assert f"{models // 10 * 9:,}" in text
    assert f"{models // 10:,}" in text
    if label:
        assert f"{models // 3:,}" in printed(report.census_table(summary))


@pytest.mark.parametrize("hits", [0, 1, 5, 123_456_789, 999_999_999])
def test_rare_hits_of_a_billion_fit(hits):
    models = 10**9
    summary = jaxsens.Summary(
        length=10,
        models=models,
        undecided=1000,
        unresolved=1,
        zero_sensitivity=hits,
        constant=hits,
        profile=(0, models * 2**10, *[0] * 9),
        k0_histogram={0: models},
        total_sensitivity=models * 2**10,
        total_squared_sensitivity=models * 2**20,
        census={},
    )
    for table in every_table(summary):
        text = printed(table)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
    words = printed(report.estimates_table(summary)).replace("[", " ").replace("]", " ").split()
    assert f"{hits:,}" in words
    assert "1,000,000,000" in words
    # Both ends of an interval are there, with all their digits.
    p = summary.estimates()["p_constant"]
    for end in (p.low, p.high):
        assert f"{end:.4g}" in [word.rstrip(",") for word in words]


def test_census_table_shows_hits_only():
    assert report.census_table(CASES["none constant"]) is None
    found = jaxsens.Summary.empty(4)
    object.__setattr__(found, "census", {"first": (3, 1), "parity": (0, 0)})
    text = printed(report.census_table(found))
    assert "first" in text
    assert "parity" not in text


def test_level_is_that_asked_for():
    narrow = report.summary_json(CASES["none constant"], 0.5)["estimates"]["p_constant"]
    wide = report.summary_json(CASES["none constant"], 0.99)["estimates"]["p_constant"]
    assert (narrow["level"], wide["level"]) == (0.5, 0.99)
    # 0 of 2: the upper end solves (1 - p)^2 = alpha / 2.
    assert narrow["high"] == pytest.approx(1 - 0.25**0.5, rel=1e-12)
    assert wide["high"] == pytest.approx(1 - 0.005**0.5, rel=1e-12)
    assert "99 % interval" in printed(report.estimates_table(CASES["none constant"], 0.99))


def test_one_sided_bounds_are_those_of_the_counts():
    arrays = jaxsens.sample(
        jaxsens.TransformerConfig(length=2, num_layers=1, d_model=2, num_heads=1, d_mlp=2),
        jaxsens.inits.zeros(),
        models=1000,
    )
    bounds = report.one_sided_bounds(arrays.summary)
    # Every model is constant: 1000 hits of 1000; the lower bound mirrors 0 of 1000.
    assert bounds["p_constant"]["lower"] == pytest.approx(1 - 0.0029912495450952962, rel=1e-12)
    assert bounds["p_constant"]["upper"] == 1.0
