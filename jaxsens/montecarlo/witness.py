"""Searching one model for a zero-sensitivity string: probes of N + 1 strings, and climbing.

A *probe* of the string x evaluates x and its N neighbours. Where all N + 1 answers agree, x is a
*witness*: K_0 >= 1. Where they do not, the search climbs: the neighbour with the answer of x and
the largest ``|logit|`` is next if that exceeds the ``|logit|`` of x by a thousandth (its value is
known, the step is free), else a random string. Strings with large ``|logit|`` are the likely
witnesses.

The random string of probe j of a model with key k is
``bits(fold_in(fold_in(k, STREAM), j), (words,), uint32)``: it depends on the model and on j alone.

Strings are packed here: bit i of a string, counted from 0 from the left, is bit ``i % 32`` (bit 0
the least significant) of word ``i // 32``; the bits behind the last one are 0.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsens.model import Model
from jaxsens.montecarlo.evaluate import NUDGE
from jaxsens.montecarlo.keys import key_of_parts
from jaxsens.montecarlo.outcome import cast, draw, nudged, over_devices, unnamed

#: Folded into a model's key: the stream of its random strings. Beyond every counter that an init
#: law of less than 1.8e9 parameters draws from the same key.
STREAM = 0x70726F62
_WORD = 32
#: Models drawn in one vectorised call.
DRAWN_AT_ONCE = 32
# Least growth of |logit| in a step: equal ones differ by rounding, in a circle.
_GROWTH = 1 + 2.0**-10
# Numbers that the strings of one probe keep alive at once; longer probes are cut into tiles.
_TILE_BUDGET = 1 << 19


StringsFunction = Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]


class Search(NamedTuple):
    """Where the search of one model stands; a leading axis runs over models.

    Attributes:
      found: bool, the float32 answers around ``witness`` agree, are trusted and clear of rounding.
      witness: uint32 ``(words,)``, the string where ``found``, else 0.
      probes: int32, probes made.
      fresh: bool, the next probe is at its random string, not at ``centre``.
      centre: uint32 ``(words,)``, the string to probe next unless ``fresh``.
      largest: float32, largest finite ``|logit|`` seen.
      margin: float32, smallest ``|logit|`` around ``doubtful``, 0 where one is not finite; -1 where
        there is no doubtful string.
      doubtful: uint32 ``(words,)``, the string with the widest margin whose answers agree in
        float32, but too close to 0, or not trusted enough, to be believed.
    """

    found: Any
    witness: Any
    probes: Any
    fresh: Any
    centre: Any
    largest: Any
    margin: Any
    doubtful: Any


def words_of(length: int) -> int:
    """Number of 32-bit words that hold a string."""
    return -(-length // _WORD)


def unpack_strings(words: np.ndarray, length: int) -> np.ndarray:
    """Packed strings, uint32 ``(..., words)``, as int32 bits ``(..., length)``."""
    i = np.arange(length)
    shifts = (i % _WORD).astype(np.uint32)
    return ((words[..., i // _WORD] >> shifts) & np.uint32(1)).astype(np.int32)


def start_search(models: int, length: int) -> Search:
    """The state before the first probe, NumPy arrays with a leading axis of ``models``."""
    shape = (models, words_of(length))
    return Search(
        found=np.zeros(models, bool),
        witness=np.zeros(shape, np.uint32),
        probes=np.zeros(models, np.int32),
        fresh=np.ones(models, bool),
        centre=np.zeros(shape, np.uint32),
        largest=np.zeros(models, np.float32),
        margin=np.full(models, -1, np.float32),
        doubtful=np.zeros(shape, np.uint32),
    )


def _random_string(key: jax.Array, number: jax.Array, length: int) -> jax.Array:
    key = jax.random.fold_in(jax.random.fold_in(key, STREAM), number)
    words = jax.random.bits(key, (words_of(length),), jnp.uint32)
    used = length - _WORD * np.arange(words_of(length))
    mask = [(1 << min(_WORD, int(u))) - 1 for u in used]
    return words & jnp.asarray(np.array(mask, np.uint32))


def cost_of_probe(model: Model) -> tuple[int, int]:
    """Numbers that a probe keeps alive at once, and that it goes through in all."""
    tile = max(1, min(model.length + 1, _TILE_BUDGET // model.floats_per_string))
    return tile * model.floats_per_string, (model.length + 1) * model.floats_per_string


def _logits_around(
    model: Model, strings_fn: StringsFunction, params: object, centre: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What ``strings_fn`` says of the packed string ``centre`` and its neighbours.

    Entry 0 belongs to ``centre``, entry 1 + i to the string with bit i flipped.
    """
    n = model.length
    tile = max(1, min(n + 1, _TILE_BUDGET // model.floats_per_string))
    num_tiles = -(-(n + 1) // tile)
    tile = -(-(n + 1) // num_tiles)
    position = jnp.arange(n, dtype=jnp.int32)
    words = centre[position // _WORD] >> (position % _WORD).astype(jnp.uint32)
    bits = (words & jnp.uint32(1)).astype(jnp.int32)

    def logits_of_tile(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Rows beyond N flip nothing and are cut off.
        flipped = start + jnp.arange(tile, dtype=jnp.int32) - 1
        flips = (flipped[:, None] == position[None, :]).astype(jnp.int32)
        return strings_fn(params, bits[None, :] ^ flips)

    if num_tiles == 1:
        return logits_of_tile(jnp.int32(0))
    starts = jnp.arange(0, num_tiles * tile, tile, dtype=jnp.int32)
    both = jax.lax.map(logits_of_tile, starts)
    return jax.tree.map(lambda a: a.reshape(-1)[: n + 1], both)


def _probe(
    model: Model, params: object, key: jax.Array, number: jax.Array, screen: jax.Array, s: Search
) -> Search:
    """One probe of one model; a search that has found keeps its state."""
    words = words_of(model.length)
    x = jnp.where(s.fresh, _random_string(key, number, model.length), s.centre)
    logits, trusted = _logits_around(model, model.strings_fn, params, x)
    answers, finite = logits > 0, jnp.isfinite(logits)
    size = jnp.where(finite, jnp.abs(logits), jnp.zeros_like(logits)).astype(jnp.float32)
    largest = jnp.maximum(s.largest, jnp.max(size))
    smallest = jnp.min(size)
    agree = jnp.all(answers == answers[0])
    found = agree & jnp.all(trusted) & (smallest > screen * largest)
    doubtful = agree & ~found & (smallest > s.margin)
    # Climb where a neighbour with the same answer is clearer; non-finite ones have size 0.
    reachable = jnp.where(answers[1:] == answers[0], size[1:], jnp.zeros_like(size[1:]))
    best = jnp.argmax(reachable).astype(jnp.int32)
    bit = jnp.uint32(1) << (best % _WORD).astype(jnp.uint32)
    flip = jnp.where(jnp.arange(words, dtype=jnp.int32) == best // _WORD, bit, jnp.uint32(0))
    moved = Search(
        found=found,
        witness=jnp.where(found, x, jnp.zeros_like(x)),
        probes=s.probes + 1,
        fresh=~(finite[0] & (reachable[best] > _GROWTH * size[0])),
        centre=x ^ flip,
        largest=largest,
        margin=jnp.where(doubtful, smallest, s.margin),
        doubtful=jnp.where(doubtful, x, s.doubtful),
    )
    return jax.tree.map(lambda new, old: jnp.where(s.found, old, new), moved, s)


@functools.partial(jax.jit, static_argnames=("mesh",))
def _draw_models(model: Model, seed, high, low, idle, *, mesh: Mesh):
    def on_device(model, seed, high, low, idle):
        def draw_some(arguments):
            high, low, _ = arguments
            return jax.vmap(lambda hi, lo: draw(model, seed, hi, lo))(high, low)

        # Groups of padding are not drawn.
        group = math.gcd(len(high), DRAWN_AT_ONCE)
        arrays = tuple(a.reshape(-1, group) for a in (high, low, idle))
        shapes = jax.eval_shape(draw_some, tuple(a[0] for a in arrays))

        def draw_unless_idle(arguments):
            nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
            return jax.lax.cond(jnp.all(arguments[2]), lambda _: nothing, draw_some, arguments)

        drawn = jax.lax.map(draw_unless_idle, arrays)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), drawn)

    return over_devices(on_device, mesh, 2, 3)(model, seed, high, low, idle)


@functools.partial(jax.jit, static_argnames=("width", "mesh"))
def _search(model: Model, scalars, high, low, params, state, *, width: int, mesh: Mesh) -> Search:
    def on_device(model, scalars, high, low, params, state):
        seed, first, count, screen = scalars

        def group(arguments):
            high, low, params, state = arguments
            keys = jax.vmap(lambda hi, lo: key_of_parts(seed, hi, lo))(high, low)

            def probe(carry):
                number, state = carry
                step = functools.partial(_probe, model)
                state = jax.vmap(step, in_axes=(0, 0, None, None, 0))(
                    params, keys, number, screen, state
                )
                return number + jnp.uint32(1), state

            def open_(carry):
                number, state = carry
                # A group whose models have all found theirs, or are padding, costs nothing.
                return (number < first + count) & ~jnp.all(state.found)

            return jax.lax.while_loop(open_, probe, (first, state))[1]

        arrays = (high, low, params, state)
        grouped = jax.tree.map(lambda a: a.reshape(-1, width, *a.shape[1:]), arrays)
        result = jax.lax.map(group, grouped)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), result)

    return over_devices(on_device, mesh, 2, 4)(model, scalars, high, low, params, state)


@functools.partial(jax.jit, static_argnames=("mesh",))
def _hold(model: Model, nudges, params, words, idle, *, mesh: Mesh):
    def plain(params, bits):
        return model.apply_fn(params, bits), jnp.ones(bits.shape[:1], bool)

    def on_device(model, nudges, params, words, idle):
        def one(arguments):
            params, centre, _ = arguments

            def answers(nudge):
                changed = nudged(cast(params, "float64"), nudge)
                logits, _ = _logits_around(model, plain, changed, centre)
                return logits > 0, jnp.isfinite(logits)

            ones, finite = jax.lax.map(answers, nudges)
            return jnp.all(finite) & jnp.all(ones == ones[0, 0])

        def unless_idle(arguments):
            return jax.lax.cond(arguments[2], lambda _: jnp.bool(False), one, arguments)

        return jax.lax.map(unless_idle, (params, words, idle))

    return over_devices(on_device, mesh, 2, 3)(model, nudges, params, words, idle)


def _drawn(
    model: Model, seed: int, high: np.ndarray, low: np.ndarray, idle: np.ndarray, mesh: Mesh
):
    with jax.enable_x64(model.draw == "float64"):
        return _draw_models(model, np.uint32(seed), high, low, idle, mesh=mesh)


def search(
    model: Model,
    seed: int,
    high: np.ndarray,
    low: np.ndarray,
    state: Search,
    *,
    first: int,
    count: int,
    screen: float,
    width: int,
    mesh: Mesh,
) -> Search:
    """Makes probes ``first`` to ``first + count - 1`` of the models that have found nothing yet.

    Args:
      model: what is sampled.
      seed: root seed.
      high: uint32 ``(B,)``, the indices' high 32 bits; B is a multiple of ``width * devices``.
      low: uint32 ``(B,)``, their low 32 bits.
      state: where the searches stand (:func:`start_search`).
      first: number of the first probe; the same for all models.
      count: number of probes; neither number compiles anew.
      screen: a witness is believed in float32 where its smallest ``|logit|`` exceeds ``screen``
        times the largest seen of the model.
      width: models vmapped together; groups run one after another on each device. The width is part
        of the compiled arithmetic: keep it for one model, and rounding, hence the path of the
        search, does not depend on batch or devices.
      mesh: one-dimensional device mesh over which the models are split.

    Returns:
      The new state, NumPy arrays.
    """
    model = unnamed(model)
    params = _drawn(model, seed, high, low, state.found, mesh)
    with jax.enable_x64(False):
        params = cast(params, "float32")
        scalars = (np.uint32(seed), np.uint32(first), np.uint32(count), np.float32(screen))
        result = _search(model, scalars, high, low, params, state, width=width, mesh=mesh)
        return Search(*(np.array(column) for column in jax.device_get(result)))


def hold(
    model: Model,
    seed: int,
    high: np.ndarray,
    low: np.ndarray,
    words: np.ndarray,
    idle: np.ndarray,
    *,
    mesh: Mesh,
) -> np.ndarray:
    """Whether strings are witnesses in float64, whatever the parameters' last digits.

    All logits of the string and its neighbours are finite and all answers agree, with the
    parameters as drawn and with them changed by plus and minus ``NUDGE`` relatively.

    Args:
      model: what is sampled.
      seed: root seed.
      high: uint32 ``(B,)``, the indices' high 32 bits; B is a multiple of the devices.
      low: uint32 ``(B,)``, their low 32 bits.
      words: uint32 ``(B, words)``, one packed string a model.
      idle: bool ``(B,)``, padding, which costs nothing and gives False.
      mesh: device mesh.

    Returns:
      bool ``(B,)``.
    """
    model = unnamed(model)
    params = _drawn(model, seed, high, low, idle, mesh)
    with jax.enable_x64(True):
        nudges = np.array([0.0, NUDGE, -NUDGE])
        return jax.device_get(_hold(model, nudges, params, words, idle, mesh=mesh))
