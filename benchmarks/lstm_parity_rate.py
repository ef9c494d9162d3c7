"""How often does a random one-layer LSTM with eight hidden units compute PARITY of five bits?

    python benchmarks/lstm_parity_rate.py --models 1000000

Published: once in 30,000 (arXiv:2211.12316, whose text names another depth). An independent program
found PARITY 187 times in 6.0 million draws, 1 in 32,100. Prints JSON.
"""

import argparse
import json
import time

import jax
import jaxlib.version

import jaxsens as js
from jaxsens import baselines


def main() -> None:
    """Samples the LSTMs and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1_000_000)
    parser.add_argument("--biases", choices=("zero", "two"), default="zero")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = baselines.lstm(5, biases=args.biases)
    began = time.perf_counter()
    js.sample(model, models=256, seed=args.seed, keep="sums")
    compiled = time.perf_counter()
    summary = js.sample(model, models=args.models, seed=args.seed, keep="sums").summary
    done = time.perf_counter()
    census = summary.census_estimates()["parity"]
    function, complement = summary.census["parity"]
    result = {
        "biases": args.biases,
        "models": summary.models,
        "undecided": summary.undecided,
        "unresolved": summary.unresolved,
        "parity": function,
        "complement": complement,
        "one_in": round(summary.models / function) if function else None,
        "parity_interval": [census["function"].low, census["function"].high],
        "published_one_in": 30_000,
        "independent_one_in": 32_100,
        "estimates": {name: [e.estimate, e.low, e.high] for name, e in summary.estimates().items()},
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "device": jax.devices()[0].device_kind,
        "devices": len(jax.devices()),
        "first_call_seconds": round(compiled - began, 1),
        "seconds": round(done - compiled, 1),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
