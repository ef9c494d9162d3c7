"""All 2^N strings of random transformers: jaxsens beside what one would write instead, in one run.

    python benchmarks/exhaustive.py [--device cpu|gpu] [--cases a b ...] [--quick] [--out FILE]

PyTorch is needed for two peers; without it they are left out, and the output says so. Everyone gets
the same models and takes turns, round by round. Peers receive their parameters for free; jaxsens is
timed from indices to integers (draw, evaluate, pack, profile). Truth tables are compared first:
only strings with |logit| up to 5e-4 of their model's largest may differ. A peer runs in the best of
a few settings, found by a sweep that is recorded. Prints a table, writes JSON
(``results/exhaustive.json``; on a GPU ``results/exhaustive_gpu.json``).

D = 16, two heads, MLP 64, post-norm with eps = 0, ReLU, readout at EOS:

* a, b, c: the sensitivity profile. N = 10 with one layer; N = 10 with two; N = 12 with two causal
  ones. Also the share of the machine's matrix-product rate (``contestants.operations``).
* d, e: P(K_0 >= 1) decided at N = 16, two layers, Xavier normal and uniform(10). jaxsens decides by
  ``jaxsens.decide``; that it can also evaluate all strings is timed beside it.
* f: the profile of given truth tables, N = 16: packed words against index gather on booleans.

Peers: ``torch_loop`` and ``torch_vmap`` (``peers_torch``), ``jax_vmap`` (one program, all strings
at once, chunks of models) and ``jax_vmap_tuned`` (the same in tiles of strings that stay in cache,
models split over the devices).
"""

import argparse
import json
import pathlib
import time
from typing import Any

import contestants
import jax
import measure
import numpy as np
import peers_jax
from contestants import CASES, Case, peers_torch

import jaxsens as js
from jaxsens import sensitivity, strings

RESULTS = pathlib.Path(__file__).parent / "results"
PEERS = ("torch_loop", "torch_vmap", "jax_vmap", "jax_vmap_tuned")
_GATHERS = ("torch_gather", "torch_gather_by_bit", "jax_gather", "jax_gather_by_bit")


def _ratios(timed: dict[str, measure.Timed], ours: str) -> dict[str, Any]:
    """Everyone's time over that of ``ours``, by best and by median."""
    return {
        name: {
            "by_best": round(t.best / timed[ours].best, 2),
            "by_median": round(t.median / timed[ours].median, 2),
        }
        for name, t in timed.items()
        if not name.startswith("jaxsens")
    }


def _finish(case: dict[str, Any], timed: dict[str, measure.Timed], ours: str) -> dict[str, Any]:
    ratios = _ratios(timed, ours)
    best = min(ratios, key=lambda name: ratios[name]["by_best"])
    return case | {
        "times": {name: t.as_json() for name, t in timed.items()},
        "ratios": ratios,
        "best_peer": best,
        "ratio_to_best_peer": ratios[best],
    }


def run_case(case: Case, quick: bool, device: str) -> dict[str, Any]:
    """Cases a to e: sweep, compare the tables, take turns."""
    count = case.peer_models[device != "cpu"]
    sample, batch = contestants.sampler_call(
        case.cfg, case.init, (count if case.decided else 256) if quick else 1 << 14
    )
    first = {"jaxsens": round(measure.seconds(sample), 2)}
    reference = sample()
    peers = contestants.peers_of(case, quick, device)
    results = {name: peer.run(count) for name, peer in peers.items()}
    record: dict[str, Any] = {
        "title": case.title,
        "agreement": {
            n: contestants.compare(r, reference, case.length) for n, r in results.items()
        },
        "settings": {name: peer.record for name, peer in peers.items()},
    }
    runs = {name: (lambda p=p: p.run(count), count) for name, p in peers.items()}
    ours = "jaxsens"
    if case.decided:
        ours = "jaxsens_decide"
        runs["jaxsens_all_strings"] = (sample, batch)
        decided = case.decided // 4 if quick else case.decided

        def decide() -> js.Decisions:
            return js.decide(case.cfg, case.init, models=decided, seed=contestants.SEED)

        first[ours] = round(measure.seconds(decide), 2)
        decisions = decide()
        runs[ours] = (decide, decided)
        record["decisions"] = decisions.counts._asdict()
        record["decisions_agree"] = {
            name: _same_decisions(result, decisions) for name, result in results.items()
        }
    else:
        runs[ours] = (sample, batch)
    timed = measure.interleave(runs, 2 if quick else case.rounds)
    record["first_call_s"] = first
    record |= {"operations_per_model": contestants.operations(case.cfg)}
    return _finish(record, timed, ours)


def _same_decisions(result: Any, decisions: js.Decisions) -> dict[str, int]:
    """Whether a peer's profiles say K_0 >= 1 where jaxsens does; what it leaves open is apart."""
    _, profiles = contestants.as_numpy(result)
    some = profiles[:, 0] >= 1
    verdict = decisions.verdict[: len(some)]
    settled = verdict <= 1
    return {
        "models": len(some),
        "settled": int(settled.sum()),
        "same": int(np.sum(settled & (some == (verdict == 1)))),
    }


def run_words(quick: bool, device: str, n: int = 16) -> dict[str, Any]:
    """Case f: profiles of random tables, from words and by index gather."""
    count = 32 if quick else 256
    tables = np.random.default_rng(contestants.SEED).random((count, 2**n)) < 0.1
    booleans = peers_jax.over_all_devices(tables)
    words = peers_jax.over_all_devices(np.asarray(strings.pack(tables)))
    flipped = peers_jax.neighbours(n)
    packed = jax.jit(lambda w: sensitivity.profile_packed(w, n))
    programs = {
        "jaxsens": (packed, words),
        "jaxsens_packing_included": (jax.jit(sensitivity.sensitivity_profile), booleans),
    }
    for name, one in (
        ("jax_gather", peers_jax.profile),
        ("jax_gather_by_bit", peers_jax.profile_bit_by_bit),
    ):
        # The tables of a device one after another: a batch of them would leave the cache.
        programs[name] = (peers_jax.mapped_over_tables(one, flipped), booleans)
    calls = {n: lambda f=f, x=x: jax.block_until_ready(f(x)) for n, (f, x) in programs.items()}
    place = peers_torch.torch_device(device) if peers_torch else None
    if peers_torch and place:
        calls |= peers_torch.gather_calls(tables, n, place)
    first = {name: round(measure.seconds(call), 2) for name, call in calls.items()}
    profiles = {name: np.asarray(call()) for name, call in calls.items() if "torch" not in name}
    profiles |= {name: call().cpu().numpy() for name, call in calls.items() if "torch" in name}
    agree = {name: bool(np.array_equal(p, profiles["jaxsens"])) for name, p in profiles.items()}
    timed = measure.interleave({k: (c, count) for k, c in calls.items()}, 3 if quick else 9)
    record = {"title": "N = 16, profile of given tables", "agreement": agree, "first_call_s": first}
    return _finish(record, timed, "jaxsens")


def table(result: dict[str, Any]) -> str:
    """The result as Markdown: milliseconds per model (best), ratios by best and by median."""
    lines = [
        "| case | jaxsens | " + " | ".join(PEERS) + " | to the best peer | share of product rate |",
        "|---" * (len(PEERS) + 4) + "|",
    ]
    for name, case in result["cases"].items():
        times = {k: t["best_ms_per_model"] for k, t in case["times"].items()}
        ours = times.get("jaxsens_decide", times.get("jaxsens"))
        if name == "f":
            gathers = [f"{k} {times[k]:.3g}" for k in _GATHERS if k in times]
            cells = [", ".join(gathers), *[""] * (len(PEERS) - 1)]
        else:
            cells = [f"{times[k]:.3g}" if k in times else "-" for k in PEERS]
        ratio, share = case["ratio_to_best_peer"], case.get("share_of_product_rate")
        lines.append(
            f"| {name}: {case['title']} | {ours:.3g} | {' | '.join(cells)} | "
            f"{case['best_peer']}: {ratio['by_best']:.3g}x ({ratio['by_median']:.3g}x) | "
            f"{'' if share is None else f'{share:.0%}'} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the cases, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--cases", nargs="+", choices=[*CASES, "f"], default=[*CASES, "f"])
    parser.add_argument("--quick", action="store_true", help="small sweeps, few rounds: a try-out")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    name = "exhaustive.json" if args.device == "cpu" else "exhaustive_gpu.json"
    out = args.out or RESULTS / name
    began = time.perf_counter()
    measure.start_backend(args.device)
    place = peers_torch.torch_device(args.device) if peers_torch else None
    result: dict[str, Any] = measure.environment() | {"load_at_start": measure.load()}
    result |= {"quick": args.quick, "tolerance": contestants.TOLERANCE, "seed": contestants.SEED}
    if not place:
        result["note"] = "no PyTorch for this device: its peers are left out"
    torch_product = peers_torch.product(place) if peers_torch and place else None
    rates = [measure.product_rate(torch_product)]
    cases = {}
    for key in args.cases:
        print(f"case {key} ...", flush=True)
        if key == "f":
            cases[key] = run_words(args.quick, args.device)
        else:
            cases[key] = run_case(CASES[key], args.quick, args.device)
    rates.append(measure.product_rate(torch_product))
    rate = max(r["best_gflops"] for r in rates)
    for case in cases.values():
        if "jaxsens" in case["times"] and "operations_per_model" in case:
            per_second = (
                case["operations_per_model"] / case["times"]["jaxsens"]["best_ms_per_model"]
            )
            case["share_of_product_rate"] = round(per_second / 1e6 / rate, 3)
    result |= {"product_rate": {"best_gflops": rate, "at_start_and_end": rates}, "cases": cases}
    result |= {"load_at_end": measure.load(), "seconds": round(time.perf_counter() - began, 1)}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    print(
        f"product rate {rate} GFLOP/s, load {result['load_at_end']}, {result['seconds']} s, {out}"
    )


if __name__ == "__main__":
    main()
