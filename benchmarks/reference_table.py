"""Random pre-norm transformers at N = 5, 7, 10 beside two independent programs.

    python benchmarks/reference_table.py --models 20000 4000 400

D = 16, two layers, two heads, ReLU MLP 32, no biases, gain 1, eps = 1e-12, token embedding times
sqrt(D). The reference values were computed once by two programs (float64 and float32) that share
no code with this package. Prints JSON with each estimate, its interval, the reference, and their
distance in combined standard errors.
"""

import argparse
import json
import math
import time

import jax

import jaxsens as js
from jaxsens import inits

# (scheme, N): models, then mean as/N, P(K_0 >= 1), P(constant) of the reference programs.
REFERENCE = {
    ("uniform", 5): (40_000, 0.1040, 0.9740, 0.444),
    ("uniform", 7): (10_000, 0.0734, 0.9872, 0.410),
    ("uniform", 10): (1_500, 0.0517, 0.9920, 0.369),
    ("xavier_normal", 5): (40_000, 0.0224, 0.99993, 0.875),
    ("xavier_normal", 7): (10_000, 0.0162, 1.0, 0.869),
    ("xavier_normal", 10): (800, 0.0131, 1.0, 0.834),
    ("xavier_uniform", 5): (40_000, 0.0233, 0.99990, 0.870),
}


def law(scheme: str) -> inits.InitLaw:
    """The reference's law: nothing but matrices and embeddings is random."""
    base = inits.by_name(scheme)
    for group in ("biases", "norm_bias"):
        base = base.with_group(group, inits.zeros())
    return base.with_group("norm_gain", inits.ones()).scaled("embedding", 4.0)


def row(scheme: str, length: int, models: int, seed: int) -> dict:
    """One line of the table."""
    cfg = js.TransformerConfig(
        length=length, num_layers=2, d_model=16, num_heads=2, d_mlp=32, norm="pre", eps=1e-12
    )
    began = time.perf_counter()
    summary = js.sample(cfg, law(scheme), models=models, seed=seed, keep="sums").summary
    n, mean, p_zero, p_constant = REFERENCE[scheme, length]
    estimates = summary.estimates()
    values = {}
    for name, reference in (("p_zero_sensitivity", p_zero), ("p_constant", p_constant)):
        e = estimates[name]
        pooled = (e.count + reference * n) / (e.of + n)
        error = math.sqrt(max(pooled * (1 - pooled), 0) * (1 / e.of + 1 / n))
        distance = (e.estimate - reference) / error if error else 0.0
        values[name] = [e.estimate, e.low, e.high, reference, round(distance, 2)]
    m = estimates["mean_sensitivity_over_n"]
    error = (m.high - m.low) / 3.92 * math.sqrt(1 + models / n)
    values["mean_sensitivity_over_n"] = [
        m.estimate, m.low, m.high, mean, round((m.estimate - mean) / error, 2),
    ]  # fmt: skip
    first = summary.census["first"]
    return {
        "scheme": scheme,
        "length": length,
        "models": models,
        "undecided": summary.undecided,
        "estimate_low_high_reference_distance": values,
        "first_and_complement": list(first),
        "parity_and_complement": list(summary.census["parity"]),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Runs the table and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, nargs=3, default=[20_000, 4_000, 400])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts = dict(zip((5, 7, 10), args.models, strict=True))
    rows = [row(scheme, n, counts[n], args.seed) for scheme, n in REFERENCE]
    device = jax.devices()[0]
    print(
        json.dumps({"rows": rows, "jax": jax.__version__, "device": device.device_kind}, indent=1)
    )


if __name__ == "__main__":
    main()
