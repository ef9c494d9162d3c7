"""Back from (seed, index) to parameters, and from a run to its model."""

import os
import pathlib
from typing import Any

from jaxsens import inits
from jaxsens.inits import InitLaw
from jaxsens.model import Model, transformer_model
from jaxsens.montecarlo import keys
from jaxsens.montecarlo.outcome import regenerate_params
from jaxsens.montecarlo.sampler import run_config
from jaxsens.montecarlo.store import Run, RunError
from jaxsens.transformer.config import TransformerConfig


def regenerate(run: Run | str | os.PathLike, index: int, model: Model | None = None) -> Any:
    """The parameters of one model of a run, bit for bit: (root seed, index) name it for ever.

    Args:
      run: the run or its directory.
      index: global index of the model, 0 <= index < 2^63.
      model: what was sampled. A run of transformers under a registered law needs none.

    Returns:
      The parameter pytree, float32.

    Raises:
      RunError: the run holds another model than ``model``, or needs one.
      ValueError: the index is out of range.
    """
    if not isinstance(run, Run):
        run = Run.open(pathlib.Path(run))
    stored = run.manifest["config"]
    if model is None:
        model = model_of_run(run)
    elif run_config(model, 0, 0, "")["model"] != stored["model"]:
        raise RunError(f"model: the run {str(run.path)!r} holds another one")
    return regenerate_params(model, stored["seed"], keys.check_index(index))


def model_of_run(run: Run) -> Model:
    """Rebuilds the model of a run of transformers from its manifest.

    Raises:
      RunError: the run holds a model that only its own code can rebuild.
    """
    described = run.manifest["config"]["model"]
    if described["kind"] != "transformer" or not isinstance(described["init"], dict):
        raise RunError(
            f"model: none given; the run {str(run.path)!r} holds one of your own, pass it"
        )
    groups = {name: inits.GroupLaw(**law) for name, law in described["init"]["groups"].items()}
    law = InitLaw(groups=groups, draw=described["init"]["draw"])
    return transformer_model(TransformerConfig(**described["config"]), law)
