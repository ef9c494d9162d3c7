# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What do random transformers compute?
#
# A transformer with one real output computes a Boolean function of its input bits: answer 1 where
# the logit is positive. If the strings are short, *all* of them can be evaluated, and the function
# is known exactly. Here we draw many transformers at random and ask how sensitive their functions
# are, beside a function drawn uniformly from all Boolean functions.
#
# The **sensitivity** of a function at a string is the number of single bits whose flip changes the
# answer. `K_0` counts the strings of sensitivity 0.

# %%
import math
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console

import jaxsens
from jaxsens import boolean, control, inits, plot, report, strings
from jaxsens.transformer import constructions

MODELS = int(os.environ.get("JAXSENS_NOTEBOOK_MODELS", "4000"))
N = 5
console = Console(width=88, force_jupyter=False)

# %% [markdown]
# ## One random transformer
#
# Two layers of width 16 read N bits and an end-of-string token; the logit is read there. No biases,
# norms before each sublayer, and `eps=0` in them. The law draws every number of every tensor
# uniformly from [-10, 10].

# %%
cfg = jaxsens.TransformerConfig(
    length=N,
    num_layers=2,
    d_model=16,
    num_heads=2,
    d_mlp=32,
    norm="pre",
    eps=0.0,
    attention_bias=False,
    mlp_bias=False,
    norm_affine=False,
    readout_bias=False,
)
law = inits.uniform(10.0)

params = jaxsens.init_params(cfg, law, jaxsens.model_key(seed=0, index=0))
table = np.asarray(jaxsens.truth_table_logits(cfg, params)) > 0
for bits, answer in zip(strings.all_strings(N), table, strict=True):
    print("".join(map(str, bits)), int(answer), end="    " if bits[-2:].sum() < 2 else "\n")

# %% [markdown]
# Its profile counts the strings of each sensitivity, 0 to N. We count once more by flipping bits
# one at a time, to see that nothing else is meant.

# %%
profile = np.asarray(jaxsens.sensitivity_profile(table))
by_hand = [0] * (N + 1)
for row in range(2**N):
    by_hand[sum(table[row] != table[row ^ (1 << bit)] for bit in range(N))] += 1
assert by_hand == profile.tolist()
print("profile:", by_hand, " K_0 =", by_hand[0])

# %% [markdown]
# ## Three functions for comparison
#
# PARITY has full sensitivity everywhere, FIRST has sensitivity 1 everywhere, so neither has a
# zero-sensitivity string. MAJORITY has some. Their profiles are known in closed form.

# %%
for name in ("parity", "first", "majority"):
    exact = boolean.profile(name, N)
    counted = jaxsens.sensitivity_profile(boolean.truth_table(name, N))
    assert np.asarray(counted).tolist() == exact
    print(f"{name:9} profile {exact}  K_0 = {exact[0]}")

# %% [markdown]
# ## Many random transformers
#
# `sample_iter` draws models 0, 1, 2, ... of a root seed, evaluates each on every string and yields
# running estimates; with `out` it saves what is finished. The interval is exact (Clopper-Pearson)
# at each count. It is not an interval for "stop when it looks good": choose the count beforehand.

# %%
scratch = tempfile.TemporaryDirectory()
run_path = Path(scratch.name) / "uniform"
calls = {"seed": 0, "batch": 256, "chunk": max(1, MODELS // 8)}

for progress in jaxsens.sample_iter(cfg, law, models=MODELS, out=run_path, **calls):
    p = progress.summary.estimates()["p_zero_sensitivity"]
    if p.estimate is not None:
        print(f"{p.of:7,} models: P(K_0 >= 1) = {p.estimate:.4f} in [{p.low:.4f}, {p.high:.4f}]")

# %% [markdown]
# `sample` on the same directory finds everything done. Beside each estimate stands the control: the
# same quantity for a uniformly random Boolean function, at this N counted over all functions. Mind
# the second row. A constant function has `K_0 = 2^N`, and random transformers are constant far more
# often than random functions; so the honest comparison is also made among non-constant ones.

# %%
uniform = jaxsens.sample(cfg, law, models=MODELS, out=run_path, **calls)
assert uniform.summary.models == MODELS
console.print(report.estimates_table(uniform.summary))

# %% [markdown]
# Models whose smallest logit is too close to 0 for float32 are evaluated again in float64. What not
# even float64 settles is called unresolved and widens the intervals.

# %%
summary = uniform.summary
print("evaluated again in float64:", summary.undecided, " unresolved:", summary.unresolved)
console.print(report.profile_table(summary))

# %%
fig, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
plot.profile(axes[0], summary)
plot.k0_histogram(axes[1], summary)
plot.headline(axes[2], summary)
plt.show()

# %% [markdown]
# ## The law matters
#
# The same architecture under Xavier normal. Which numbers move, and how far, depends on the law: a
# statement about "random transformers" has to name it.

# %%
xavier = jaxsens.sample(cfg, inits.xavier_normal(), models=MODELS, **calls)
rows = [("uniform(10)", summary), ("xavier normal", xavier.summary)]
print(f"{'':14}{'P(K_0>=1)':>22}{'... if not constant':>22}{'P(constant)':>22}")
for label, one in rows:
    cells = []
    for name in ("p_zero_sensitivity", "p_zero_sensitivity_nonconstant", "p_constant"):
        e = one.estimates()[name]
        cells.append(f"[{e.low:.4f}, {e.high:.4f}]")
    print(f"{label:14}" + "".join(f"{cell:>22}" for cell in cells))
exact = (
    control.p_zero_sensitivity(N).value,
    control.p_zero_sensitivity_nonconstant(N),
    control.p_constant(N),
)
print(f"{'control':14}" + "".join(f"{value:22.4g}" for value in exact))

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
for ax, (label, one) in zip(axes, rows, strict=True):
    plot.profile(ax, one).set_title(label)
plt.show()

# %% [markdown]
# ## PARITY can be written down
#
# Transformers are not bound to low sensitivity. The two-layer construction of Chiang and Cholak
# (arXiv:2202.12172) computes PARITY: layer 1 counts the ones and marks the position of that number;
# in layer 2 one head prefers even positions, the other odd ones, and their difference tells whether
# the marked one is odd. With its post-norms at `eps=0` every logit is `+-sqrt(10)`,
# here up to float32 rounding.

# %%
ground = constructions.chiang_cholak("parity", N, norm="post")
arrays = {name: a.astype(np.float32) for name, a in ground.arrays.items()}
exact_parity = jaxsens.params_from_arrays(ground.cfg, arrays)
logits = np.asarray(jaxsens.truth_table_logits(ground.cfg, exact_parity))
assert np.array_equal(logits > 0, boolean.truth_table("parity", N))
print("|logit| from", np.abs(logits).min(), "to", np.abs(logits).max(), " exact:", math.sqrt(10))
print("profile:", np.asarray(jaxsens.sensitivity_profile(logits > 0)).tolist())

# %% [markdown]
# So a transformer without any zero-sensitivity string exists. Did sampling find PARITY or its
# complement (another architecture, but of the same depth and heads)? Every sampled truth table is
# compared with a census of named functions. With no hit the interval still tells what the sample
# can exclude.

# %%
for label, one in rows:
    for which, p in one.census_estimates()["parity"].items():
        print(f"{label:14} parity ({which:10}): {p.count} of {p.of:,}, at most {p.high:.2g}")
census = report.census_table(summary)
if census is not None:
    console.print(census)

# %% [markdown]
# ## A rare model, drawn again
#
# The pair (root seed, index) names a model for ever, whatever the batch, the number of devices or
# the machine. Only integers are saved, and the parameters of any model come back bit for bit: say,
# of the first model with `K_0 = 0`. It is not constant, and every string has a sensitive bit.

# %%
index, models = uniform.run.arrays()
found = index[(models.profile[:, 0] == 0) & (models.status == 0)]
print(f"{len(found)} decided models of {MODELS:,} with K_0 = 0")
if len(found):
    rare = int(found[0])
    params = jaxsens.regenerate(uniform.run, rare)
    table = np.asarray(jaxsens.truth_table_logits(cfg, params)) > 0
    again = np.asarray(jaxsens.sensitivity_profile(table)).tolist()
    assert again == models.profile[index == rare][0].tolist()
    assert again[0] == 0
    print(f"model {rare} of seed 0: profile {again}")
    print("".join(str(int(answer)) for answer in table))

# %%
scratch.cleanup()
