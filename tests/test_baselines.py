"""Own models and shipped baselines through the sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxsens as js
from jaxsens import baselines


@pytest.mark.stat
@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_the_number_of_ones_of_a_perceptron_is_uniform(law):
    # Theorem of Mingard et al.: P(T = t) = 2^-n for t < 2^n, and T = 2^n never.
    n, models = 4, 16_000
    sample = js.sample(baselines.perceptron(n, law), models=models, seed=1)
    assert sample.models is not None
    counts = np.bincount(sample.models.ones, minlength=2**n + 1)
    assert counts[2**n] == 0
    expected = models / 2**n
    chi2 = ((counts[:-1] - expected) ** 2 / expected).sum()
    freedom = 2**n - 1
    assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)
    # The tie at 0...0 is exact: looked at again in float64, and resolved to class 0.
    assert sample.summary.undecided == models
    assert sample.summary.unresolved == 0


@pytest.mark.stat
@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_the_same_theorem_without_the_sampler(law):
    n, models = 5, 32_000
    model = baselines.perceptron(n, law)
    keys = jax.random.split(jax.random.key(11), models)

    @jax.jit
    def ones(keys):
        tables = jax.vmap(lambda key: model.plain_table(model.init_fn(None, key)) > 0)(keys)
        return jnp.sum(tables, axis=1)

    counts = np.bincount(np.asarray(ones(keys)), minlength=2**n + 1)
    assert counts[2**n] == 0
    freedom = 2**n - 1
    chi2 = ((counts[:-1] - models / 2**n) ** 2 / (models / 2**n)).sum()
    assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.stat
def test_the_hidden_8_lstm_has_the_known_shares():
    # 3 million draws of an independent program: 0.8032, 0.1427, 0.319; builds differ by 0.003.
    models = 6000
    s = js.sample(baselines.lstm(5), models=models, seed=0, keep="sums").summary
    e = s.estimates()
    for name, expected in (("p_zero_sensitivity", 0.8032), ("p_constant", 0.319)):
        error = np.sqrt(expected * (1 - expected) / models)
        assert abs(e[name].estimate - expected) < 5 * error + 0.003, name
    m = e["mean_sensitivity_over_n"]
    assert abs(m.estimate - 0.1427) < 5 * (m.high - m.low) / 3.92 + 0.003


MODELS = {
    "perceptron": lambda: baselines.perceptron(4),
    "mlp": lambda: baselines.mlp(4, (6, 5)),
    "lstm": lambda: baselines.lstm(4, hidden=3),
    "lstm, two layers": lambda: baselines.lstm(4, hidden=3, num_layers=2, biases="two"),
}


@pytest.mark.parametrize("name", MODELS)
def test_float64_agrees_and_a_batch_row_is_the_model_alone(name):
    model = MODELS[name]()
    assert MODELS[name]() is model
    run = js.sample(model, models=40, seed=3)
    exact = js.sample(model, models=40, seed=3, dtype="float64")
    assert run.models is not None
    assert exact.models is not None
    assert np.array_equal(run.models.profile, exact.models.profile)
    draw, tabulate = jax.jit(model.init_fn), jax.jit(model.table_fn)
    keys = [js.model_key(3, i) for i in range(5)]
    batch = jax.jit(jax.vmap(model.init_fn, (None, 0)))(None, jnp.stack(keys))
    for i, key in enumerate(keys):
        alone = draw(None, key)
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(batch), strict=True):
            assert a.dtype == jnp.float32
            assert np.array_equal(np.asarray(a), np.asarray(b)[i])
        low = np.asarray(tabulate(alone)[0])
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda a: a.astype(jnp.float64), alone)
            high, trusted = tabulate(wide)
            assert trusted
            assert high.dtype == jnp.float64
        np.testing.assert_allclose(low, np.asarray(high), rtol=1e-3, atol=1e-4)
        assert np.array_equal(np.asarray(js.sensitivity_profile(low > 0)), run.models.profile[i])


def test_equal_arguments_give_one_model_however_they_are_written():
    # A name that kept 1 and 1.0 apart would let the history of a process decide a run's hash.
    assert baselines.perceptron(5, scale=1) is baselines.perceptron(5, scale=1.0)
    assert baselines.perceptron(6, scale=3).description == (
        '{"kind":"pair","length":6,"name":"perceptron, normal 3.0"}'
    )
    assert baselines.lstm(4) is baselines.lstm(length=4, hidden=8, scale=10)
    assert baselines.mlp(4, [3, 3]) is baselines.mlp(4, widths=(np.int64(3), 3))
    assert baselines.lstm(4) is not baselines.lstm(4, biases="two")


def test_the_lstm_is_an_lstm():
    # One string by hand, in float64 NumPy.
    model = baselines.lstm(3, hidden=2, biases="two", scale=1.0)
    params = model.init_fn(None, js.model_key(0, 0))
    flat = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
    }

    def get(name):
        return next(v for k, v in flat.items() if name in k)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    h = c = np.zeros(2)
    for bit in (1, 0, 1):
        gates = get("embedding")[bit] @ get("w_ih") + h @ get("w_hh") + get("b_ih") + get("b_hh")
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    bits = jnp.array([[1, 0, 1]], jnp.int32)
    assert float(model.apply_fn(params, bits)[0]) == pytest.approx(h @ get("readout"), abs=1e-6)


def test_from_pair_and_from_nnx_take_any_network():
    def init(key):
        return jax.random.normal(key, (3,), jnp.float32)

    def apply(w, bits):
        return jnp.matmul(bits.astype(w.dtype), w, precision="highest") - w[0]

    class Module(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.w = nnx.Param(jax.random.normal(rngs.params(), (3,), jnp.float32))

        def __call__(self, bits):
            return jnp.matmul(bits.astype(self.w.dtype), self.w[...], precision="highest")

    pair = js.from_pair(init, apply, length=3, name="mine")
    sample = js.sample(pair, models=50)
    assert sample.models is not None
    for i in (0, 49):
        w = np.asarray(init(js.model_key(0, i)), np.float64)
        table = js.strings.all_strings(3) @ w - w[0] > 0
        assert (
            np.asarray(js.sensitivity_profile(table)).tolist() == sample.models.profile[i].tolist()
        )
    module = js.from_nnx(Module, length=3, name="module")
    assert js.sample(module, models=50).summary.models == 50


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: baselines.perceptron(0), "length: 0 given"),
        (lambda: baselines.perceptron(3, "cauchy"), "law: 'cauchy' given"),
        (lambda: baselines.perceptron(3, scale=float("nan")), "scale: nan given"),
        (lambda: baselines.perceptron(3, scale=1e39), "scale: 1e[+]39 given"),
        (lambda: baselines.perceptron(3, scale=True), "scale: True given"),
        (lambda: baselines.lstm(3, scale="wide"), "scale: 'wide' given"),
        (lambda: baselines.lstm(3, scale=-1.0), "scale: -1.0 given"),
        (lambda: baselines.mlp(3, 40), "widths: 40 given"),
        (lambda: baselines.mlp(3, ()), r"widths: \(\) given"),
        (lambda: baselines.mlp(3, (4, 0)), "widths: 0 given"),
        (lambda: baselines.lstm(3, hidden=0), "hidden: 0 given"),
        (lambda: baselines.lstm(3, num_layers=0), "num_layers: 0 given"),
        (lambda: baselines.lstm(3, biases="one"), "biases: 'one' given"),
        (lambda: js.from_pair(len, len, length=3, name=""), "name: '' given"),
    ],
)
def test_bad_arguments_give_one_line(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
