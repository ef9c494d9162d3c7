"""What every test starts from: strict jax on four CPU devices, no window, fixed examples.

These are settings of the test process alone. A command that a test starts as a process of its own
gets none of them; it inherits only environment variables (an outer XLA_FLAGS or JAX_* among them),
so it runs as a user's would.
"""

import os
from pathlib import Path

import hypothesis
import jax
import matplotlib
import pytest

jax.config.update("jax_num_cpu_devices", 4)  # before the first array: the backend reads it once
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
matplotlib.use("Agg")

hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=int(os.environ.get("JAXSENS_EXAMPLES", "25")),
)
hypothesis.settings.load_profile("ci")


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
        pytest.skip("needs a GPU")


@pytest.fixture
def x64():
    """Float64 and int64 in this test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def data():
    """The folder of reference data."""
    return Path(__file__).parent / "data"
