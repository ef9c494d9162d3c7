"""How the time of sampling grows: with N, with the number of models, with layers and with width.

    python benchmarks/growth.py [--device cpu|gpu] [--budget SECONDS] [--out DIR]

Writes ``growth.json`` into ``benchmarks/results`` and the figure ``growth.png`` beside this script
(on a GPU ``growth_gpu.*``; both into DIR with ``--out``). N, layers and width are timed by one call
of the sampler's path from indices to integers (draw, evaluate, pack, profile), best of three; the
number of models by ``jaxsens.sample(keep="sums")``. Compilation is apart. A point that is
expected, from the one before it, to take longer than the budget is left out, which the JSON says.
"""

import argparse
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import matplotlib
import measure
from contestants import operations, sampler_call

import jaxsens as js
from jaxsens import inits

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

HERE = pathlib.Path(__file__).parent
LAW = inits.xavier_normal()
_ROUNDS = 3
_BATCH = 1024
_KINDS = {
    "1 layer": {"num_layers": 1},
    "2 layers": {"num_layers": 2},
    "2 layers, causal": {"num_layers": 2, "causal": True},
}


def config(**changes: Any) -> js.TransformerConfig:
    """The transformer of the other benchmarks, changed."""
    shape = {"length": 10, "num_layers": 2, "d_model": 16, "num_heads": 2} | changes
    return js.TransformerConfig(**{"d_mlp": 4 * shape["d_model"], "norm": "post"} | shape)


def sampler_point(cfg: js.TransformerConfig) -> dict[str, Any]:
    """Milliseconds per model of one sampler call."""
    run, models = sampler_call(cfg, LAW)
    first = measure.seconds(run)
    best = min(measure.seconds(run) for _ in range(_ROUNDS))
    return {
        "ms_per_model": round(1e3 * best / models, 5),
        "models_per_call": models,
        "call_s": round(best, 4),
        "first_call_s": round(first, 3),
    }


def models_point(cfg: js.TransformerConfig, models: int) -> dict[str, Any]:
    """Seconds of a whole run, self-check included; the programs are compiled by then."""
    taken = measure.seconds(
        lambda: js.sample(cfg, LAW, models=models, keep="sums", batch=_BATCH, seed=1)
    )
    return {"seconds": round(taken, 4), "models_per_second": round(models / taken)}


def _curve(
    points: Iterator[tuple[float, float, Any]], budget: float, seconds_of: Any
) -> dict[str, Any]:
    """Runs points (x, work, call) until one is expected to take too long."""
    done, left_out, last = [], [], None
    for x, work, call in points:
        expected = 0.0 if last is None else last[0] * max(1.0, work / last[1])
        if expected > budget:
            left_out.append({"x": x, "expected_s": round(expected, 1)})
            continue
        point = call()
        done.append({"x": x} | point)
        last = seconds_of(point), work
        print(f"  {x}: {point}", flush=True)
    return {"points": done, "left_out": left_out}


def _by_config(budget: float, curves: dict[str, dict[float, js.TransformerConfig]]) -> dict:
    def seconds_of(point: dict[str, Any]) -> float:
        # A call has about the same length everywhere, until it holds one model only.
        return _ROUNDS * point["ms_per_model"] / 1e3

    result = {}
    for name, configs in curves.items():
        print(name, flush=True)
        points = ((x, operations(c), lambda c=c: sampler_point(c)) for x, c in configs.items())
        result[name] = _curve(points, budget, seconds_of)
    return result


def run(budget: float) -> dict[str, Any]:
    """All four panels."""
    small = config(length=6, num_layers=1)
    lengths = range(8, 19, 2)
    panels = {
        "length": _by_config(
            budget,
            {k: {n: config(length=n, **v) for n in lengths} for k, v in _KINDS.items()},
        )
    }
    # Compiles the one shape of all these runs, and what settles close calls.
    js.sample(small, LAW, models=4 * _BATCH, keep="sums", batch=_BATCH, seed=1)
    counts = (
        (m, float(m), lambda m=m: models_point(small, m)) for m in (10**k for k in range(3, 7))
    )
    panels["models"] = {"N = 6, 1 layer": _curve(counts, budget, lambda point: point["seconds"])}
    panels["layers"] = _by_config(
        budget,
        {
            name: {layers: config(num_layers=layers, causal=causal) for layers in range(1, 5)}
            for name, causal in (("N = 10", False), ("N = 10, causal", True))
        },
    )
    panels["width"] = _by_config(
        budget, {"N = 10, 2 layers": {d: config(d_model=d) for d in (16, 32, 64, 128)}}
    )
    return panels


def draw(panels: dict[str, Any], title: str, path: pathlib.Path) -> None:
    """Four panels, one colour a curve."""
    labels = {
        "length": ("length N (bits)", "linear", "ms_per_model", "time per model (ms)"),
        "models": ("number of models", "log", "seconds", "time of the run (s)"),
        "layers": ("number of layers", "linear", "ms_per_model", "time per model (ms)"),
        "width": ("width D (MLP 4 D)", "log", "ms_per_model", "time per model (ms)"),
    }
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for axis, (panel, (x_label, x_scale, value, y_label)) in zip(
        axes.flat, labels.items(), strict=True
    ):
        for name, curve in panels[panel].items():
            points = curve["points"]
            axis.plot([p["x"] for p in points], [p[value] for p in points], "o-", label=name)
        axis.set(xlabel=x_label, ylabel=y_label, yscale="log", xscale=x_scale)
        ticks = [p["x"] for p in next(iter(panels[panel].values()))["points"]]
        if panel != "models":
            axis.set_xticks(ticks, [str(t) for t in ticks])
            axis.minorticks_off() if panel == "width" else None
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measures, writes the JSON and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds a point, compiled")
    parser.add_argument("--out", type=pathlib.Path, help="directory of both files")
    args = parser.parse_args()
    began = time.perf_counter()
    measure.start_backend(args.device)
    stem = "growth" if args.device == "cpu" else "growth_gpu"
    result = measure.environment() | {"load_at_start": measure.load(), "law": "xavier_normal"}
    result |= {"budget_s": args.budget, "panels": run(args.budget)}
    result |= {"load_at_end": measure.load(), "seconds": round(time.perf_counter() - began, 1)}
    data, figure = args.out or HERE / "results", args.out or HERE
    data.mkdir(parents=True, exist_ok=True)
    (data / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    kind = f"{result['cores']} cores" if args.device == "cpu" else result["device_kind"]
    title = f"Two heads, post-norm, D = 16 unless said ({kind}, jax {result['versions']['jax']})"
    draw(result["panels"], title, figure / f"{stem}.png")
    print(f"{result['seconds']} s, load {result['load_at_end']}")


if __name__ == "__main__":
    main()
