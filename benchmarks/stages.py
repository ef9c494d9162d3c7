"""Where the time of the engine goes: draw, table, counts, and the MLPs that no structure can avoid.

    python benchmarks/stages.py [--device cpu|gpu] [--out FILE]

For the profile cases of ``exhaustive.py``, microseconds per model with all devices at work, best of
seven, everyone in turn. The stages are compiled apart: *draw* (parameters from seed and index),
*table* (logits of all strings), *counts* (packing and profile of given logits); *fused* is the
sampler's call. *MLPs* are the products and activations of ``contestants.operations``, on columns
that stay in cache, *MLPs and norms* the same with the residual sums and layer norms around them:
what is left of *table* is attention, readout and memory traffic. For the two ``decide`` cases:
*draw*, *one probe* (N + 1 strings of every model), *decide* (per model, all rounds) and how many
probes a model took. Writes ``results/stages.json`` (on a GPU ``stages_gpu.json``).
"""

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

import contestants
import jax
import jax.numpy as jnp
import measure
import numpy as np
from jax.sharding import Mesh

import jaxsens as js
from jaxsens.engine import columns
from jaxsens.model import Model
from jaxsens.montecarlo import keys, outcome
from jaxsens.montecarlo.execution import plan_execution

RESULTS = pathlib.Path(__file__).parent / "results"
_TILE = 512
_ROUNDS = 7


def _drawing(model: Model, mesh: Mesh, models: int) -> tuple[Callable[[], Any], Any]:
    """The draw of the first models, and its result."""
    high, low = keys.split_indices(np.arange(models, dtype=np.uint64))
    named = outcome.unnamed(model)

    def run() -> Any:
        return jax.block_until_ready(
            outcome.draw_params(named, contestants.SEED, high, low, mesh=mesh)
        )

    return run, run()


def _call(function: Callable, mesh: Mesh, *arrays: Any) -> Callable[[], Any]:
    """A compiled call of a function of one model's arrays, mapped over models and split."""

    def on_device(*arrays: Any) -> Any:
        return jax.lax.map(lambda a: function(*a), arrays)

    run = jax.jit(outcome.over_devices(on_device, mesh, 0, len(arrays)))
    return lambda: jax.block_until_ready(run(*arrays))


def _mlps(cfg: js.TransformerConfig, norms: bool) -> Callable[[Any], jax.Array]:
    """As many MLPs as the structured algorithm needs, on the same columns again and again."""
    rows = contestants.operations(cfg) // (4 * cfg.d_model * cfg.d_mlp)

    def of_model(params: Any) -> jax.Array:
        layer = params.layers[-1]

        def step(_: int, x: jax.Array) -> jax.Array:
            if norms:
                return columns.after_attention(cfg, layer, x)[0]
            return columns.mlp(cfg, layer, x)

        start = jnp.ones((cfg.d_model, _TILE), jnp.float32) * params.readout.w[:, None]
        return jnp.sum(jax.lax.fori_loop(0, max(1, rows // _TILE), step, start))

    return of_model


def profile_stages(case: contestants.Case) -> dict[str, Any]:
    """Cases a, b, c."""
    models = 256 if case.num_layers == 1 else 64
    model = js.transformer_model(case.cfg, case.init)
    mesh = plan_execution(model, models).mesh
    models = -(-models // mesh.size) * mesh.size
    draw, params = _drawing(model, mesh, models)
    n = case.length
    logits = _call(lambda p: model.table_fn(p)[0], mesh, params)()

    def counts(logits: jax.Array) -> Any:
        signs = outcome._signs(logits, jnp.bool_(True), jnp.float32(contestants.TOLERANCE))
        return outcome._outcome(signs, n)

    fused, together = contestants.sampler_call(case.cfg, case.init)
    runs = {
        "draw": (draw, models),
        "table": (_call(lambda p: model.table_fn(p)[0], mesh, params), models),
        "counts": (_call(counts, mesh, logits), models),
        "fused": (fused, together),
        "MLPs": (_call(_mlps(case.cfg, norms=False), mesh, params), models),
        "MLPs and norms": (_call(_mlps(case.cfg, norms=True), mesh, params), models),
    }
    for run, _ in runs.values():
        run()
    timed = measure.interleave(runs, _ROUNDS)
    return {"title": case.title} | {
        f"{name}, us per model": round(1e6 * t.best, 2) for name, t in timed.items()
    }


def decide_stages(case: contestants.Case) -> dict[str, Any]:
    """Cases d, e."""
    model = js.transformer_model(case.cfg, case.init)
    models = case.decided
    mesh = plan_execution(model, models).mesh
    draw, params = _drawing(model, mesh, models)
    bits = jnp.asarray(np.random.default_rng(0).integers(0, 2, (models, 1, case.length)), jnp.int32)
    flips = jnp.asarray(np.eye(case.length + 1, case.length, -1, dtype=np.int32))
    around = bits ^ flips[None]

    def decide() -> js.Decisions:
        return js.decide(case.cfg, case.init, models=models, seed=contestants.SEED)

    counts = decide().counts
    runs = {
        "draw": (draw, models),
        "one probe": (_call(lambda p, x: model.strings_fn(p, x)[0], mesh, params, around), models),
        "decide": (decide, models),
    }
    for run, _ in runs.values():
        run()
    timed = measure.interleave(runs, 3)
    return {
        "title": case.title,
        "probes per model": round(counts.probes / counts.models, 3),
        "enumerated models": counts.enumerated,
        "models": counts.models,
    } | {f"{name}, us per model": round(1e6 * t.best, 2) for name, t in timed.items()}


def main() -> None:
    """Runs all cases, prints and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    measure.start_backend(args.device)
    result: dict[str, Any] = measure.environment() | {"load_at_start": measure.load()}
    for name, case in contestants.CASES.items():
        result[name] = (decide_stages if case.decided else profile_stages)(case)
        print(name, result[name], flush=True)
    result |= {"product_rate": measure.product_rate(None), "load_at_end": measure.load()}
    name = "stages.json" if args.device == "cpu" else "stages_gpu.json"
    out = args.out or RESULTS / name
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
