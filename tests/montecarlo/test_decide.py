"""Deciding K_0 >= 1: what the sampler says, without its tables."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsens
from jaxsens import inits
from jaxsens.estimate import clopper_pearson
from jaxsens.montecarlo import decide as loop
from jaxsens.montecarlo import evaluate, keys, verdicts, witness
from jaxsens.montecarlo.verdicts import ENUMERATION, FLOAT64, NONE, PROBE, SOME, UNKNOWN, UNRESOLVED
from jaxsens.transformer.constructions import chiang_cholak

CFG = jaxsens.TransformerConfig(length=5, num_layers=1, d_model=4, num_heads=1, d_mlp=4)
LAW = inits.uniform(10.0)


def config(**kw):
    kw = {"length": 5, "num_layers": 1, "d_model": 4, "num_heads": 2, "d_mlp": 4} | kw
    return jaxsens.TransformerConfig(**kw)


def zero_bias(law):
    return law.with_group("biases", inits.zeros()).with_group("norm_bias", inits.zeros())


def constructed(function, n):
    """The exact transformer, whatever the key."""
    built = chiang_cholak(function, n)
    cfg = built.cfg

    def init_fn(law, key):
        return jaxsens.params_from_arrays(
            cfg, {name: np.float32(a) for name, a in built.arrays.items()}
        )

    return jaxsens.transformer_model(cfg, LAW).replace(law=None, init_fn=init_fn)


@functools.partial(jax.jit, static_argnames=("model",))
def _logits_in_float64(model, law, seed, high, low, around):
    def one(high, low, around):
        params = model.init_fn(law, keys.key_of_parts(seed, high, low))
        params = jax.tree.map(lambda a: a.astype(jnp.float64), params)
        return model.apply_fn(params, around)

    return jax.vmap(one)(high, low, around)


def assert_witnesses_hold(model, decisions, seed):
    """Every returned string is one of zero sensitivity, by the plain pass in float64."""
    x = decisions.strings()
    assert x.shape == (np.count_nonzero(decisions.witnessed), decisions.length)
    flips = np.eye(decisions.length + 1, decisions.length, -1, dtype=np.int32)
    high, low = keys.split_indices(decisions.index[decisions.witnessed])
    with jax.enable_x64(True):
        around = jnp.asarray(x[:, None] ^ flips[None])
        law, nameless = model.law, model.replace(law=None)
        logits = _logits_in_float64(nameless, law, np.uint32(seed), high, low, around)
    answers = np.asarray(logits) > 0
    assert logits.dtype == np.float64
    np.testing.assert_array_equal(answers, np.broadcast_to(answers[:, :1], answers.shape))


def assert_same(a, b):
    for name in ("index", "verdict", "how", "probes", "witness"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.rounds == b.rounds


CASES = {
    "xavier": (config(length=6), inits.xavier_normal()),
    "uniform": (config(num_layers=2, norm="pre"), inits.uniform(10.0)),
    "no biases": (config(), zero_bias(inits.uniform(10.0))),
    "causal": (config(length=6, causal=True), inits.normal(10.0)),
    "eps": (config(eps=1e-5, norm="once"), inits.xavier_uniform()),
    "no norm": (config(norm="none", d_mlp=0), inits.normal(1.0)),
    "ties": (config(), inits.zeros()),
    "one bit": (config(length=1), inits.uniform(10.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_those_of_the_sampler(name):
    cfg, law = CASES[name]
    models = 120
    decided = jaxsens.decide(cfg, law, models=models, seed=11, max_probes=4)
    rows = jaxsens.sample(cfg, law, models=models, seed=11).models
    expected = np.where(rows.profile[:, 0] >= 1, SOME, NONE)
    resolved = rows.status != evaluate.UNRESOLVED
    np.testing.assert_array_equal(decided.verdict[resolved], expected[resolved])
    assert set(decided.verdict[~resolved]) <= {SOME, UNRESOLVED}
    if name != "ties":
        assert resolved.all()
        assert (decided.how == PROBE).any()
        assert_witnesses_hold(jaxsens.transformer_model(cfg, law), decided, 11)
    else:
        assert (decided.how == FLOAT64).all()
    assert decided.index.tolist() == list(range(models))


def test_models_without_a_witness_are_enumerated():
    # Of one layer and few units on six bits some have K_0 = 0.
    decided = jaxsens.decide(CFG, LAW, models=400, seed=3, max_probes=2)
    rows = jaxsens.sample(CFG, LAW, models=400, seed=3).models
    np.testing.assert_array_equal(decided.verdict == SOME, rows.profile[:, 0] >= 1)
    assert ((decided.how == ENUMERATION) & (decided.verdict == SOME)).any()
    assert (decided.verdict == NONE).any()
    assert (decided.how[decided.verdict == NONE] == ENUMERATION).all()
    assert (decided.witness[decided.how == ENUMERATION] == 0).all()
    assert (decided.probes[decided.how == ENUMERATION] == 2).all()


@pytest.mark.parametrize("function", ["parity", "first"])
def test_functions_without_a_witness(function):
    model = constructed(function, 6)
    decided = jaxsens.decide(model, models=3, max_probes=8)
    assert decided.verdict.tolist() == [NONE] * 3
    assert decided.how.tolist() == [ENUMERATION] * 3
    assert decided.rounds == ((1, 3), (2, 3), (4, 3), (8, 3))
    assert decided.estimate().count == 0
    unknown = jaxsens.decide(model, models=3, max_probes=8, enumerate=False)
    assert unknown.verdict.tolist() == [UNKNOWN] * 3
    assert unknown.how.tolist() == [verdicts.OPEN] * 3
    p = unknown.estimate()
    assert (p.count, p.undecided, p.range, p.low, p.high) == (0, 3, (0.0, 1.0), 0.0, 1.0)


def test_parity_of_long_strings_is_unknown():
    decided = jaxsens.decide(constructed("parity", 40), models=2, max_probes=3)
    assert decided.verdict.tolist() == [UNKNOWN] * 2
    assert decided.probes.tolist() == [3] * 2


def test_long_strings_give_a_lower_bound():
    cfg = config(length=200, num_layers=1, d_model=4, num_heads=1, d_mlp=4)
    decided = jaxsens.decide(cfg, LAW, models=6, seed=1, max_probes=4)
    assert set(decided.verdict) <= {SOME, UNKNOWN}
    assert decided.witness.shape == (6, 7)
    found = int((decided.verdict == SOME).sum())
    assert found >= 3
    assert decided.strings().shape == (found, 200)
    assert_witnesses_hold(jaxsens.transformer_model(cfg, LAW), decided, 1)
    assert decided.lower_bound(0.9) == clopper_pearson(found, 6, 0.9, "lower").low
    assert decided.estimate(0.9).low == clopper_pearson(found, 6, 0.9).low
    assert decided.estimate().high == 1.0


REFERENCE = {"models": 37, "seed": 3, "max_probes": 8}


@pytest.mark.parametrize(
    ("batch", "devices"), [(1, 1), (7, 1), (37, 1), (64, 2), (5, 4), (None, 4), (2, 3)]
)
def test_nothing_depends_on_batch_and_devices(batch, devices):
    got = jaxsens.decide(CFG, LAW, batch=batch, devices=devices, **REFERENCE)
    assert_same(got, jaxsens.decide(CFG, LAW, devices=1, **REFERENCE))


def test_chunks_change_nothing(monkeypatch):
    whole = jaxsens.decide(CFG, LAW, **REFERENCE)
    monkeypatch.setattr(loop, "_CALLS_PER_CHUNK", 1)
    states = []
    got = jaxsens.decide(CFG, LAW, batch=8, on_progress=states.append, **REFERENCE)
    assert_same(got, whole)
    assert [s.done for s in states] == [0, 8, 16, 24, 32, 37]
    assert {s.wanted for s in states} == {37}
    assert states[-1].counts == whole.counts
    assert states[0].counts.estimate().range == (0.0, 1.0)


def test_indices_start_anywhere():
    whole = jaxsens.decide(CFG, LAW, models=20, seed=3, start=2**32 - 10)
    part = jaxsens.decide(CFG, LAW, models=1, seed=3, start=2**32 + 5)
    row = 15
    assert part.index.tolist() == [2**32 + 5] == [int(whole.index[row])]
    for name in ("verdict", "how", "probes", "witness"):
        np.testing.assert_array_equal(getattr(part, name)[0], getattr(whole, name)[row])
    assert_witnesses_hold(jaxsens.transformer_model(CFG, LAW), whole, 3)
    last = 2**63 - 1
    assert jaxsens.decide(CFG, LAW, models=1, start=last).index.tolist() == [last]


def test_another_seed_law_or_number_of_probes_does_not_compile_again():
    functions = (witness._draw_models, witness._search, witness._hold)
    kw = {"models": 16, "batch": 16, "devices": 2, "enumerate": False}
    jaxsens.decide(CFG, inits.uniform(10.0), seed=0, **kw)
    before = [f._cache_size() for f in functions]
    jaxsens.decide(CFG, inits.uniform(2.5), seed=2**32 - 1, start=12345, max_probes=100, **kw)
    # Fewer models fill the same shape.
    cfg = jaxsens.TransformerConfig(length=5, num_layers=1, d_model=4, num_heads=1, d_mlp=4)
    jaxsens.decide(cfg, inits.uniform(1.0), seed=5, max_probes=3, **(kw | {"models": 15}))
    assert [f._cache_size() for f in functions] == before


def test_x64_changes_nothing():
    with jax.enable_x64(True):
        wide = jaxsens.decide(CFG, LAW, **REFERENCE)
    assert_same(wide, jaxsens.decide(CFG, LAW, **REFERENCE))


def test_a_draw_in_float64():
    law = LAW.drawn_in("float64")
    decided = jaxsens.decide(CFG, law, models=20, max_probes=4)
    rows = jaxsens.sample(CFG, law, models=20).models
    np.testing.assert_array_equal(decided.verdict == SOME, rows.profile[:, 0] >= 1)


def _table_of_law(law, key):
    return {"table": law}


def _of_table(params, bits):
    return params["table"][bits @ jnp.asarray([2, 1], jnp.int32)]


def fixed_table(logits):
    base = jaxsens.from_pair(
        lambda key: {"table": jnp.zeros(4, jnp.float32)}, _of_table, length=2, name="table"
    )
    return base.replace(law=np.asarray(logits, np.float32), init_fn=_table_of_law)


@pytest.mark.parametrize(
    ("logits", "verdict", "how"),
    [
        ([1.0, 1.0, 1.0, -1.0], SOME, PROBE),
        ([1.0, -1.0, -1.0, 1.0], NONE, ENUMERATION),
        ([1.0, 1.0, -1.0, -1.0], NONE, ENUMERATION),
        ([0.0, 0.0, 0.0, 0.0], SOME, FLOAT64),
        ([0.0, -1.0, -1.0, 1.0], SOME, FLOAT64),
        ([-0.0, 1.0, 1.0, 0.0], NONE, ENUMERATION),
        ([1e-6, 1.0, 1.0, -1.0], SOME, FLOAT64),
        ([1e-30, 1e-30, 1e-30, 1e-30], SOME, PROBE),
        ([np.nan] * 4, UNRESOLVED, ENUMERATION),
        ([np.inf] * 4, UNRESOLVED, ENUMERATION),
        ([-1.0, -1.0, -1.0, np.nan], SOME, PROBE),
        ([np.nan, -1.0, -1.0, 1.0], UNRESOLVED, ENUMERATION),
    ],
)
def test_ties_and_what_is_not_finite(logits, verdict, how):
    decided = jaxsens.decide(fixed_table(logits), models=3, max_probes=16)
    assert decided.verdict.tolist() == [verdict] * 3
    assert decided.how.tolist() == [how] * 3


def test_unresolved_models_widen_the_interval():
    counts = jaxsens.decide(fixed_table([np.nan] * 4), models=5, max_probes=1).counts
    assert (counts.models, counts.unresolved, counts.enumerated) == (5, 5, 5)
    p = counts.estimate()
    assert (p.range, p.low, p.high) == ((0.0, 1.0), 0.0, 1.0)
    assert counts.lower_bound() == 0.0


@given(st.integers(1, 300))
def test_rounds_double(max_probes):
    rounds = loop.rounds_of(max_probes)
    assert sum(count for _, count in rounds) == max_probes
    assert [first for first, _ in rounds] == [
        sum(c for _, c in rounds[:i]) for i in range(len(rounds))
    ]
    assert [count for _, count in rounds[:-1]] == [1, 1, 2, 4, 8, 16, 32, 64, 128][
        : len(rounds) - 1
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 64)), min_size=1, max_size=20))
def test_counts_add_up(rows):
    verdict, probes = np.array(rows, np.int64).T
    how = np.where(verdict == SOME, PROBE, np.where(verdict == UNKNOWN, 0, ENUMERATION))
    columns = (verdict.astype(np.uint8), how.astype(np.uint8), probes.astype(np.int32))
    arrays = verdicts.Verdicts(*columns, np.zeros((len(rows), 1), np.uint32))
    counts = verdicts.Counts.of(arrays)
    singles = (verdicts.Verdicts(*(a[i : i + 1] for a in arrays)) for i in range(len(rows)))
    each = [verdicts.Counts.of(single) for single in singles]
    total = each[0]
    for other in each[1:]:
        total = total.plus(other)
    assert total == counts
    assert counts.models == len(rows)
    assert sum(counts[1:5]) == len(rows)
    assert all(type(x) is int for x in counts)
    assert verdicts.left_after(arrays, 64) == len(rows) - counts.probed


def test_a_broken_device_is_noticed(monkeypatch):
    def broken(*arguments, **kw):
        state = witness_search(*arguments, **kw)
        return state._replace(found=np.ones_like(state.found))

    witness_search = witness.search
    monkeypatch.setattr(witness, "search", broken)
    with pytest.raises(ValueError, match=r"^self-check: model \d+ of seed 3 ") as caught:
        jaxsens.decide(constructed("parity", 6), models=4, seed=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kw", "start"),
    [
        ({"models": 0}, "models: 0 given"),
        ({"models": True}, "models: True given"),
        ({"models": 2.0}, "models: 2.0 given"),
        ({"max_probes": 0}, "max_probes: 0 given"),
        ({"max_probes": "8"}, "max_probes: '8' given"),
        ({"enumerate": 1.5}, "enumerate: 1.5 given"),
        ({"seed": -1}, "seed: -1 given"),
        ({"start": 2**63}, "start: "),
        ({"start": 2**63 - 1, "models": 2}, r"start \+ models - 1: "),
        ({"tolerance": 1.0}, "tolerance: 1.0 given"),
        ({"batch": 0}, "batch: 0 given"),
        ({"devices": 0}, "devices: 0 given"),
        ({"devices": 99}, "devices: 99 given; there are 4"),
    ],
)
def test_bad_arguments_are_named_in_one_line(kw, start):
    with pytest.raises(ValueError, match=f"^{start}") as caught:
        jaxsens.decide(CFG, LAW, **({"models": 3} | kw))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_enumerated_is_refused():
    long = config(length=31)
    with pytest.raises(ValueError, match=r"^length: 31 given; a table .*jaxsens\.decide") as caught:
        jaxsens.decide(long, LAW, models=1, enumerate=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"^length: 31 given; a table .*jaxsens\.decide"):
        jaxsens.sample(long, LAW, models=1)
    with pytest.raises(ValueError, match=r"^length: 1000 given; a table .*jaxsens\.decide"):
        jaxsens.sample(config(length=1000), LAW, models=1)
    with pytest.raises(ValueError, match=r"^length: 65537 given; .* 1 to 65536$"):
        config(length=2**16 + 1)
    with pytest.raises(ValueError, match=r"^length: 65536 given; a probe of N \+ 1 strings needs"):
        jaxsens.decide(config(length=2**16), LAW, models=1)
    with pytest.raises(ValueError, match=r"^init: None given"):
        jaxsens.decide(CFG, models=1)


def test_no_key_is_used_twice():
    plain = jaxsens.decide(CFG, LAW, models=4, max_probes=4)
    with jax.debug_key_reuse(True):
        assert_same(jaxsens.decide(CFG, LAW, models=4, max_probes=4), plain)


def test_other_generators_are_refused():
    with (
        jax.default_prng_impl("rbg"),
        pytest.raises(ValueError, match=r"^jax_default_prng_impl: 'rbg' is set"),
    ):
        jaxsens.decide(CFG, LAW, models=1)
