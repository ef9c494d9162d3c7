"""Layer norm: its formula, constant rows, extreme scales and gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.transformer import NormParams, layer_norm


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -11.0, 1e-30, 3e30])
def test_layer_norm_of_a_constant_row_is_zero_with_zero_gradient(value):
    row = jnp.full((3,), value, jnp.float32)
    for norm in (layer_norm, jax.jit(layer_norm, static_argnums=2)):
        np.testing.assert_array_equal(np.asarray(norm(row, None, 0.0)), np.zeros(3))
    jacobian = np.asarray(jax.jacobian(lambda v: layer_norm(v, None, 0.0))(row))
    np.testing.assert_array_equal(jacobian, np.zeros((3, 3)))


def test_layer_norm_of_a_constant_row_keeps_the_shift():
    affine = NormParams(scale=jnp.full((3,), 7.0), bias=jnp.asarray([1.0, 2.0, 3.0]))
    out = layer_norm(jnp.full((3,), 0.1), affine, 0.0)
    np.testing.assert_array_equal(np.asarray(out), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("bump", [[2e-6, 2e-6, 2e-6], [0.0, 0.0, 2e-6], [0.0, 1e-6, 2e-6]])
def test_layer_norm_near_a_constant_row_is_finite(bump):
    row = jnp.asarray(np.float32([-11, -11, -11]) + np.float32(bump))
    out = np.asarray(layer_norm(row, None, 0.0))
    jacobian = np.asarray(jax.jacobian(lambda v: layer_norm(v, None, 0.0))(row))
    assert np.isfinite(out).all()
    assert np.isfinite(jacobian).all()
    assert np.abs(out).max() <= math.sqrt(2) * (1 + 1e-6)  # D - 1 is the most a squared entry has


@pytest.mark.parametrize("exponent", range(-20, 16, 5))
def test_layer_norm_forgets_the_scale(exponent):
    v = np.float32([0.3, -1.7, 2.2, 0.9, -0.4])
    whole = np.asarray(layer_norm(jnp.asarray(v), None, 0.0))
    scaled = np.asarray(layer_norm(jnp.asarray(v * np.float32(10.0**exponent)), None, 0.0))
    np.testing.assert_allclose(scaled, whole, rtol=1e-6, atol=1e-6)
    exact = v.astype(np.float64)
    np.testing.assert_allclose(whole, (exact - exact.mean()) / exact.std(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.1, 10.0])
def test_layer_norm_with_eps_is_the_formula(eps):
    v = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    v[0] = 1.5
    v[1] *= np.float32(1e-4)
    scale, bias = np.float32([1, -2, 3, 0.5, 0]), np.float32([0, 1, 0, -1, 2])
    affine = NormParams(scale=jnp.asarray(scale), bias=jnp.asarray(bias))
    exact = v.astype(np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    expected = centred / np.sqrt(exact.var(-1, keepdims=True) + eps) * scale + bias
    out = np.asarray(layer_norm(jnp.asarray(v), affine, eps))
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
    gradient = np.asarray(jax.grad(lambda x: jnp.sum(layer_norm(x, affine, eps) ** 3))(v))
    assert np.isfinite(gradient).all()


def test_layer_norm_gradient_is_the_formula():
    with jax.enable_x64(True):
        v = jnp.asarray(np.random.default_rng(1).normal(size=5))
        for eps in (0.0, 0.1):
            got = np.asarray(jax.jacobian(lambda x, eps=eps: layer_norm(x, None, eps))(v))
            x = np.asarray(v)
            root, c = math.sqrt(x.var() + eps), x - x.mean()
            expected = (np.eye(5) - 1 / 5) / root - np.outer(c, c) / (5 * root**3)
            np.testing.assert_allclose(got, expected, atol=1e-12)
