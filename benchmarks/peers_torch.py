"""PyTorch peers: a loop over modules, and ``torch.func.vmap`` over stacked modules.

A plain post-norm transformer as one would write it, with given parameters, on all strings of
length N; then the sensitivity of every string by gathering its neighbours' answers.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from jaxsens import TransformerConfig, strings

Arrays = Mapping[str, np.ndarray]


class Block(nn.Module):
    """Post-norm attention and MLP on ``(S, T, D)``."""

    def __init__(self, cfg: TransformerConfig, fused: bool):
        super().__init__()
        d = cfg.d_model
        self.heads, self.causal, self.fused = cfg.num_heads, cfg.causal, fused
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, cfg.d_mlp), nn.ReLU(), nn.Linear(cfg.d_mlp, d))
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=cfg.eps), nn.LayerNorm(d, eps=cfg.eps)

    def attend(self, h: torch.Tensor) -> torch.Tensor:
        s, t, d = h.shape
        qkv = self.qkv(h).view(s, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            pooled = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
            if self.causal:
                hidden = torch.ones(t, t, dtype=torch.bool, device=h.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            pooled = scores.softmax(-1) @ v
        return self.out(pooled.transpose(1, 2).reshape(s, t, d))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = self.norm1(h + self.attend(h))
        return self.norm2(h + self.mlp(h))


class Transformer(nn.Module):
    """Tokens ``(S, T)``, EOS last, to logits ``(S,)``."""

    def __init__(self, cfg: TransformerConfig, fused: bool):
        super().__init__()
        self.embedding = nn.Embedding(3, cfg.d_model)
        self.position = nn.Parameter(torch.empty(cfg.num_tokens, cfg.d_model))
        self.blocks = nn.ModuleList(Block(cfg, fused) for _ in range(cfg.num_layers))
        self.readout = nn.Linear(cfg.d_model, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embedding(tokens) + self.position
        for block in self.blocks:
            h = block(h)
        return self.readout(h[:, -1]).squeeze(-1)


def _state(cfg: TransformerConfig, arrays: Arrays) -> dict[str, torch.Tensor]:
    """A state dict from the flat arrays of one model: PyTorch keeps weights as (out, in)."""
    d = cfg.d_model
    state = {
        "embedding.weight": arrays["token_embedding"],
        "position": arrays["position_embedding"],
        "readout.weight": arrays["readout.w"][None],
        "readout.bias": arrays["readout.b"][None],
    }
    for i in range(cfg.num_layers):
        a = {name: arrays[f"layer{i}.{name}"] for name in ("wo", "bo", "w_in", "b_in")}
        a |= {name: arrays[f"layer{i}.{name}"] for name in ("w_out", "b_out")}
        qkv = [arrays[f"layer{i}.w{x}"].reshape(d, d).T for x in "qkv"]
        bias = [arrays[f"layer{i}.b{x}"].reshape(d) for x in "qkv"]
        block = {
            "qkv.weight": np.concatenate(qkv),
            "qkv.bias": np.concatenate(bias),
            "out.weight": a["wo"].reshape(d, d).T,
            "out.bias": a["bo"],
            "mlp.0.weight": a["w_in"].T,
            "mlp.0.bias": a["b_in"],
            "mlp.2.weight": a["w_out"].T,
            "mlp.2.bias": a["b_out"],
        }
        for norm in ("norm1", "norm2"):
            block[f"{norm}.weight"] = arrays[f"layer{i}.{norm}.scale"]
            block[f"{norm}.bias"] = arrays[f"layer{i}.{norm}.bias"]
        state |= {f"blocks.{i}.{name}": value for name, value in block.items()}
    return {name: torch.from_numpy(np.array(value)) for name, value in state.items()}


def modules(
    cfg: TransformerConfig, models: list[Arrays], device: str, fused: bool
) -> list[Transformer]:
    """One module a model."""
    made = []
    for arrays in models:
        module = Transformer(cfg, fused)
        module.load_state_dict(_state(cfg, arrays))
        made.append(module.to(device).eval())
    return made


def torch_device(device: str) -> str | None:
    """PyTorch's name of the device, ``None`` where this PyTorch cannot use it."""
    if device == "cpu":
        return "cpu"
    return "cuda" if torch.cuda.is_available() else None


def synchronize(device: str) -> None:
    """Waits for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def all_tokens(n: int, device: str) -> torch.Tensor:
    """Every string with EOS behind it: int64 ``(2**n, n + 1)``."""
    bits = torch.from_numpy(strings.all_strings(n, np.int64))
    return functional.pad(bits, (0, 1), value=2).to(device)


def neighbours(n: int, device: str) -> torch.Tensor:
    """Row r ^ (1 << j) for each j and r: int64 ``(n, 2**n)``."""
    rows = torch.arange(2**n)
    return torch.stack([rows ^ (1 << j) for j in range(n)]).to(device)


def profiles(tables: torch.Tensor, flipped: torch.Tensor) -> torch.Tensor:
    """Sensitivity profiles by index gather: bool ``(B, 2**n)`` to int64 ``(B, n + 1)``."""
    sensitivity = (tables[:, flipped] != tables[:, None]).sum(1)
    zeros = sensitivity.new_zeros(len(tables), len(flipped) + 1)
    return zeros.scatter_add_(1, sensitivity, torch.ones_like(sensitivity))


def profiles_bit_by_bit(tables: torch.Tensor, flipped: torch.Tensor) -> torch.Tensor:
    """The same, gathering one bit position after the other: smaller temporaries."""
    sensitivity = torch.zeros_like(tables, dtype=torch.uint8)
    for rows in flipped:
        sensitivity += tables[:, rows] != tables
    counts = [(sensitivity == k).sum(1) for k in range(len(flipped) + 1)]
    return torch.stack(counts, dim=1)


Result = tuple[torch.Tensor, torch.Tensor]


def loop(
    cfg: TransformerConfig, models: list[Arrays], device: str, **settings: Any
) -> Callable[[int], Result]:
    """A call that evaluates the first ``count`` models one after the other.

    Settings: ``attention`` (``fused`` or ``explicit``), ``tile`` (strings in one forward pass),
    ``workers`` (1: a model has all cores; more: so many models at once, each on one core).

    The call returns truth tables ``(count, 2**n)`` and profiles ``(count, n + 1)``.
    """
    made = modules(cfg, models, device, settings["attention"] == "fused")
    tokens, flipped = all_tokens(cfg.length, device), neighbours(cfg.length, device)
    parts, workers = tokens.split(settings["tile"]), settings["workers"]
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers) if workers > 1 else None
    local = threading.local()

    def one(module: Transformer) -> Result:
        if pool is not None and not hasattr(local, "ready"):
            torch.set_num_threads(1)
            local.ready = True
        with torch.inference_mode():
            table = torch.cat([module(part) for part in parts])[None] > 0
            return table, profiles(table, flipped)

    def run(count: int) -> Result:
        each = list((pool.map if pool is not None else map)(one, made[:count]))
        result = tuple(torch.cat(column) for column in zip(*each, strict=True))
        synchronize(device)
        torch.set_num_threads(threads)
        return result

    return run


def vmapped(
    cfg: TransformerConfig, models: list[Arrays], device: str, **settings: Any
) -> Callable[[int], Result]:
    """As :func:`loop`, ``chunk`` models at once by ``torch.func.vmap`` over stacked modules."""
    made = modules(cfg, models, device, settings["attention"] == "fused")
    tokens, flipped = all_tokens(cfg.length, device), neighbours(cfg.length, device)
    parts, base = tokens.split(settings["tile"]), made[0]
    with torch.inference_mode():
        stacks = [
            torch.func.stack_module_state(made[i : i + settings["chunk"]])
            for i in range(0, len(made), settings["chunk"])
        ]

    def call(params, buffers, part):
        return torch.func.functional_call(base, (params, buffers), (part,))

    forward = torch.func.vmap(call, in_dims=(0, 0, None))

    def run(count: int) -> Result:
        each = []
        with torch.inference_mode():
            for stack in stacks[: -(-count // settings["chunk"])]:
                tables = torch.cat([forward(*stack, part) for part in parts], dim=1) > 0
                each.append((tables, profiles(tables, flipped)))
        result = tuple(torch.cat(column) for column in zip(*each, strict=True))
        synchronize(device)
        return result

    return run


def gather_calls(tables: np.ndarray, n: int, device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Calls that profile all tables, in both forms, in groups that do not flood the memory."""
    flipped = neighbours(n, device)
    groups = torch.from_numpy(tables).to(device).split(16)

    def call(form: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode():
            result = torch.cat([form(group, flipped) for group in groups])
        synchronize(device)
        return result

    return {
        "torch_gather": lambda: call(profiles),
        "torch_gather_by_bit": lambda: call(profiles_bit_by_bit),
    }


def product(device: str) -> Callable[[int], Callable[[], object]]:
    """Size to a call that multiplies two float32 matrices of that size."""

    def of_size(size: int) -> Callable[[], object]:
        a = torch.full((size, size), 0.5, device=device)

        def run() -> None:
            a @ a
            synchronize(device)

        run()
        return run

    return of_size
