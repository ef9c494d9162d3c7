"""Who runs in ``exhaustive.py``: the cases, the peers in their best settings, jaxsens itself."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import measure
import numpy as np
import peers_jax

import jaxsens as js
from jaxsens import inits, strings
from jaxsens.montecarlo import keys, outcome
from jaxsens.montecarlo.evaluate import plan_execution

try:
    import peers_torch
except ModuleNotFoundError:
    peers_torch = None

TOLERANCE = 5e-4
SEED = 0
# A first call longer than this (seconds) says enough about a setting that compiles nothing.
_SLOW = 1.0
_MOST_MODELS = 1 << 14


@dataclasses.dataclass(frozen=True)
class Case:
    """What is computed, and by how many models: peers on a CPU and on a GPU, ``js.decide``."""

    title: str
    length: int
    num_layers: int
    law: str = "xavier_normal"
    causal: bool = False
    decided: int = 0
    peer_models: tuple[int, int] = (16, 64)
    rounds: int = 7

    @property
    def cfg(self) -> js.TransformerConfig:
        """The transformer."""
        return js.TransformerConfig(
            length=self.length,
            num_layers=self.num_layers,
            d_model=16,
            num_heads=2,
            d_mlp=64,
            norm="post",
            eps=0.0,
            causal=self.causal,
        )

    @property
    def init(self) -> inits.InitLaw:
        """The law of its parameters."""
        return inits.uniform(10.0) if self.law == "uniform(10)" else inits.by_name(self.law)


CASES = {
    "a": Case("N = 10, 1 layer, profile", 10, 1),
    "b": Case("N = 10, 2 layers, profile", 10, 2),
    "c": Case("N = 12, 2 layers, causal, profile", 12, 2, causal=True, peer_models=(4, 32)),
    "d": Case(
        "N = 16, 2 layers, K_0 >= 1 decided, Xavier normal",
        *(16, 2),
        decided=4096,
        peer_models=(2, 16),
        rounds=2,
    ),
    "e": Case(
        "N = 16, 2 layers, K_0 >= 1 decided, uniform(10)",
        *(16, 2),
        law="uniform(10)",
        decided=1024,
        peer_models=(2, 16),
        rounds=2,
    ),
}


def operations(cfg: js.TransformerConfig) -> int:
    """Multiplications and additions that the structured algorithm cannot avoid in its MLPs.

    4 D M for each MLP (two products; a multiply-add is two operations) times the number of distinct
    inputs that an MLP has. Last layer: 2^N, at EOS alone. Earlier layers: (N + 1) 2^N pairs of
    token and string; under a causal mask 3 * 2^N, namely 2^(N+1) prefixes and 2^N at EOS.
    Attention, norms, drawing and counting are left out: a lower bound of the work.
    """
    rows = 2**cfg.length
    earlier = 3 * rows if cfg.causal else cfg.num_tokens * rows
    return 4 * cfg.d_model * cfg.d_mlp * ((cfg.num_layers - 1) * earlier + rows)


class Peer(NamedTuple):
    """A peer in its best setting: ``run(count)`` gives tables and profiles."""

    run: Callable[[int], Any]
    record: dict[str, Any]


def _timed(make: Callable[..., Callable[[int], Any]], setting: dict, models: int) -> Peer:
    count = max(setting.get("chunk", 1), setting.get("workers", 1), min(models, 4))
    run = make(**setting)
    first = taken = measure.seconds(lambda: run(count))
    compiles = "split" in setting
    if compiles or first < _SLOW:
        taken = measure.seconds(lambda: run(count))
    per_model = {"first_call_s": round(first, 3), "ms_per_model": round(1e3 * taken / count, 4)}
    return Peer(run, setting | per_model)


def best_setting(
    make: Callable[..., Callable[[int], Any]], settings: list[dict], models: int
) -> Peer:
    """Times every setting and keeps the fastest; one that fails is recorded as such."""
    best, sweep = None, []
    for setting in settings:
        try:
            peer = _timed(make, setting, models)
        except (RuntimeError, MemoryError) as error:
            sweep.append(setting | {"failed": str(error).splitlines()[0][:200]})
            continue
        sweep.append(peer.record)
        if best is None or peer.record["ms_per_model"] < best.record["ms_per_model"]:
            best = peer
    if best is None:
        raise SystemExit(f"no setting of a peer works: {sweep}")
    return Peer(best.run, {"setting": best.record, "sweep": sweep})


def _settings(n: int, models: int, quick: bool, on_cpu: bool) -> dict[str, list[dict]]:
    """The sweep of each peer."""
    tiles = [t for t in (1024, 4096, 16384, 65536) if t <= 2**n]
    chunks = [c for c in (1, 2, 4, 16, 64) if c <= models]
    if quick:
        tiles, chunks = tiles[:1], chunks[-2:-1] or chunks
    workers = sorted({1, min(models, measure.cores())}) if on_cpu else [1]
    devices = len(jax.devices())
    attentions = ("fused", "explicit")
    return {
        "torch_loop": [
            {"attention": a, "tile": t, "workers": w}
            for a in attentions
            for t in tiles
            for w in workers
        ],
        "torch_vmap": [
            {"attention": a, "tile": t, "chunk": c}
            for a in attentions
            for t in sorted({tiles[0], tiles[-1]})
            for c in chunks
        ],
        "jax_vmap": [{"tile": 2**n, "chunk": c, "split": False} for c in chunks],
        "jax_vmap_tuned": [
            {"tile": t, "chunk": max(c, devices), "split": True}
            for t in ((256,) if quick else (256, 1024))
            for c in sorted({max(c, devices) for c in chunks} & set(range(models + 1)))
        ],
    }


def peers_of(case: Case, quick: bool, device: str) -> dict[str, Peer]:
    """Every peer in its best setting, on the parameters of the first models."""
    count = case.peer_models[device != "cpu"]
    models = []
    for index in range(count):
        params = js.init_params(case.cfg, case.init, js.model_key(SEED, index))
        models.append({k: np.asarray(v) for k, v in js.params_to_arrays(params).items()})
    makers = {"jax_vmap": peers_jax.double_vmap, "jax_vmap_tuned": peers_jax.double_vmap}
    place = peers_torch.torch_device(device) if peers_torch else None
    if peers_torch and place:
        makers["torch_loop"], makers["torch_vmap"] = (
            lambda *args, f=f, **setting: f(*args, place, **setting)
            for f in (peers_torch.loop, peers_torch.vmapped)
        )
    settings = _settings(case.length, count, quick, device == "cpu")
    return {
        name: best_setting(
            lambda make=make, **setting: make(case.cfg, models, **setting), settings[name], count
        )
        for name, make in makers.items()
        if settings[name]
    }


def sampler_call(
    cfg: js.TransformerConfig, law: inits.InitLaw, most: int = _MOST_MODELS
) -> tuple[Callable[[], outcome.Outcome], int]:
    """One call of the sampler's path from indices to integers, and how many models it makes."""
    model = js.transformer_model(cfg, law)
    plan = plan_execution(model, most)
    unit = plan.width * plan.mesh.size
    batch = -(-plan.batch // unit) * unit
    high, low = keys.split_indices(np.arange(batch, dtype=np.uint64))

    def run() -> outcome.Outcome:
        return outcome.outcomes(
            model,
            SEED,
            high,
            low,
            dtype="float32",
            width=plan.width,
            mesh=plan.mesh,
            screen=TOLERANCE,
        )

    return run, batch


def as_numpy(result: Any) -> tuple[np.ndarray, np.ndarray]:
    """Tables and profiles of a peer on the host."""
    tables, profiles = (x.cpu().numpy() if hasattr(x, "cpu") else np.asarray(x) for x in result)
    return tables, profiles


def compare(result: Any, reference: outcome.Outcome, n: int) -> dict[str, Any]:
    """A peer's tables and profiles beside those of jaxsens, model by model."""
    tables, profiles = as_numpy(result)
    count = min(len(tables), len(reference.table))
    ours, close = (np.asarray(strings.unpack(w[:count], n)) for w in reference[3:5])
    differs = tables[:count] != ours
    same = ~differs.any(-1)
    return {
        "models": count,
        "identical_tables": float(np.mean(same)),
        "differing_strings_close": int(np.sum(differs & close)),
        "differing_strings_not_close": int(np.sum(differs & ~close)),
        "profiles_agree_where_tables_do": bool(
            np.array_equal(profiles[:count][same], reference.profile[:count][same])
        ),
        "ones": float(np.mean(ours)),
    }
