"""Flags that say what is drawn, and the init law that they describe."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import tyro

from jaxsens import inits
from jaxsens.transformer.config import TransformerConfig

Config: TypeAlias = Annotated[TransformerConfig, tyro.conf.arg(name="")]
Init: TypeAlias = Annotated[
    str,
    tyro.conf.arg(
        help="Init law: uniform, normal, truncated_normal, xavier_uniform, xavier_normal, kaiming, "
        "gpt2,\northogonal, constant, zeros, ones."
    ),
]
Scale: TypeAlias = Annotated[
    float | None,
    tyro.conf.arg(
        help="The law's number: half-width, standard deviation or gain; by default the published "
        "one\n(10 for uniform and normal, 0.02 for gpt2, gain 1 otherwise)."
    ),
]
GroupLaw: TypeAlias = Annotated[
    tuple[str, ...],
    tyro.conf.arg(
        help="Replace the law of tensor groups, each GROUP=LAW or GROUP=LAW:NUMBER, e.g. "
        "biases=zeros\nnorm_gain=ones embedding=normal:1. Groups: embedding, positions, "
        "attention, mlp, slope, biases,\nnorm_gain, norm_bias, readout."
    ),
]
GroupScale: TypeAlias = Annotated[
    tuple[str, ...],
    tyro.conf.arg(
        help="Multiply what is drawn for tensor groups, each GROUP=FACTOR, e.g. embedding=4."
    ),
]
Draw: TypeAlias = Annotated[
    Literal["float32", "float64"],
    tyro.conf.arg(help="Base draw of the law: 23 or 52 random bits a number."),
]
Seed: TypeAlias = Annotated[int, tyro.conf.arg(help="Root seed, 0 to 2^32 - 1.")]


def law_of(
    init: str,
    scale: float | None,
    group_law: Sequence[str],
    group_scale: Sequence[str],
    draw: Literal["float32", "float64"],
) -> inits.InitLaw:
    """The init law that the flags describe.

    Raises:
      ValueError: a flag cannot be read, or names no law or group; one line names it.
    """
    law = inits.by_name(init, scale)
    for item in group_law:
        group, _, rest = item.partition("=")
        name, _, number = rest.partition(":")
        if not name:
            raise ValueError(f"group-law: {item!r} given; it must be GROUP=LAW or GROUP=LAW:NUMBER")
        number = _number("group-law", item, number) if number else None
        law = law.with_group(group, inits.by_name(name, number))
    for item in group_scale:
        group, _, factor = item.partition("=")
        law = law.scaled(group, _number("group-scale", item, factor))
    return law.drawn_in(draw)


def _number(flag: str, item: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{flag}: {item!r} given; {text!r} is not a number") from None
