"""P(K_0 >= 1) of a uniformly random Boolean function where enumeration ends, by sampling.

    python benchmarks/random_function_control.py --functions 200000

Draws packed tables for N = 4 ... 12 and prints JSON: the share with a zero-sensitivity string, its
exact interval, the exact value where there is one, and the Poisson limit with its proven bound.
"""

import argparse
import functools
import json
import time

import jax
import jaxlib.version
import numpy as np

from jaxsens import control, estimate, sensitivity, strings


@functools.partial(jax.jit, static_argnames=("n", "functions"))
def k0(key: jax.Array, n: int, functions: int) -> jax.Array:
    """K_0 of ``functions`` uniformly random functions: int32 ``(functions,)``."""
    words = jax.random.bits(key, (functions, strings.num_words(n)), np.uint32)
    if n < 5:
        words = words & np.uint32((1 << 2**n) - 1)
    return sensitivity.profile_packed(words, n)[:, 0]


def main() -> None:
    """Samples and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began, rows, batch = time.perf_counter(), [], 2000
    for n in range(4, 13):
        hits = 0
        for i in range(args.functions // batch):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(args.seed), n), i)
            hits += int(np.count_nonzero(np.asarray(k0(key, n, batch))))
        total = args.functions // batch * batch
        low, high = estimate.clopper_pearson(hits, total)
        printed = control.p_zero_sensitivity(n)
        rows.append(
            {
                "length": n,
                "functions": total,
                "p_zero_sensitivity": [hits / total, low, high],
                "printed": printed.value,
                "method": printed.method,
                "error_bound": printed.error_bound,
            }
        )
    result = {"rows": rows, "jax": jax.__version__, "jaxlib": jaxlib.version.__version__}
    result |= {"device": jax.devices()[0].device_kind}
    result |= {"seconds": round(time.perf_counter() - began, 1)}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
