"""How often does float32 decide a truth table wrongly, and does the tolerance catch it?

    python benchmarks/float32_audit.py --models 1500 --length 7

Evaluates the same drawn models in float32 and float64 for every norm placement and four init laws,
and prints JSON: the largest relative logit error, entries whose sign differs, the largest relative
margin ``|logit| / max |logit|`` at which one differs, and the share of models that the default
tolerance would send to float64.
"""

import argparse
import functools
import json
import time

import jax
import numpy as np

import jaxsens as js
from jaxsens.montecarlo.sampler import TOLERANCE


def audit(cfg: js.TransformerConfig, law: js.inits.InitLaw, models: int, seed: int) -> dict:
    """Compares float32 with float64 logits of ``models`` models on all strings."""
    tables = jax.jit(
        lambda params: jax.lax.map(functools.partial(js.truth_table_logits, cfg), params)
    )
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(np.arange(models))
    params = jax.jit(jax.vmap(lambda key: law(key, cfg)))(keys)
    low = np.asarray(tables(params), np.float64)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
        high = np.asarray(tables(wide))
    scale = np.abs(high).max(axis=1, keepdims=True)
    error, margin = np.abs(low - high) / scale, np.abs(low) / scale
    differs = (low > 0) != (high > 0)
    return {
        "norm": cfg.norm,
        "init": law.name,
        "models": models,
        "median_relative_error": float(np.median(error)),
        "largest_relative_error": float(error.max()),
        "models_with_error_above_tolerance": int((error.max(axis=1) > TOLERANCE).sum()),
        "entries_decided_otherwise": int(differs.sum()),
        "largest_margin_decided_otherwise": float(margin[differs].max()) if differs.any() else None,
        "share_of_models_below_tolerance": float((margin.min(axis=1) < TOLERANCE).mean()),
    }


def main() -> None:
    """Runs the audit and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1500)
    parser.add_argument("--length", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began, rows = time.perf_counter(), []
    laws = (js.inits.uniform(10.0), js.inits.normal(10.0), js.inits.xavier_normal())
    for norm in ("pre", "post", "once", "none"):
        for law in (*laws, js.inits.gpt2()):
            cfg = js.TransformerConfig(
                length=args.length, num_layers=2, d_model=16, num_heads=2, d_mlp=64, norm=norm
            )
            rows.append(audit(cfg, law, args.models, args.seed))
    device = jax.devices()[0]
    print(
        json.dumps(
            {
                "tolerance": TOLERANCE,
                "length": args.length,
                "rows": rows,
                "jax": jax.__version__,
                "device": device.device_kind,
                "seconds": round(time.perf_counter() - began, 1),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
