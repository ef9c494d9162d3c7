"""What do random transformers compute? Massive sampling on every binary string, in JAX.

    strings -> functions -> transformer -> engine -> sampler -> estimates -> reports

Importing creates no array and starts no backend.
"""

from jaxsens import baselines as baselines
from jaxsens import boolean as boolean
from jaxsens import control as control
from jaxsens import estimate as estimate
from jaxsens import inits as inits
from jaxsens import plot as plot
from jaxsens import report as report
from jaxsens import sensitivity as sensitivity
from jaxsens import strings as strings
from jaxsens import transformer as transformer
from jaxsens.engine import truth_table_logits as truth_table_logits
from jaxsens.inits import init_params as init_params
from jaxsens.model import Model as Model
from jaxsens.model import from_nnx as from_nnx
from jaxsens.model import from_pair as from_pair
from jaxsens.model import transformer_model as transformer_model
from jaxsens.montecarlo.decide import DecideProgress as DecideProgress
from jaxsens.montecarlo.decide import decide as decide
from jaxsens.montecarlo.execution import Tuning as Tuning
from jaxsens.montecarlo.keys import model_key as model_key
from jaxsens.montecarlo.regenerate import regenerate as regenerate
from jaxsens.montecarlo.sampler import Progress as Progress
from jaxsens.montecarlo.sampler import Sample as Sample
from jaxsens.montecarlo.sampler import sample as sample
from jaxsens.montecarlo.sampler import sample_iter as sample_iter
from jaxsens.montecarlo.shards import ShardError as ShardError
from jaxsens.montecarlo.store import Run as Run
from jaxsens.montecarlo.store import RunError as RunError
from jaxsens.montecarlo.store import merge_runs as merge_runs
from jaxsens.montecarlo.summary import Summary as Summary
from jaxsens.montecarlo.tuning import tune as tune
from jaxsens.montecarlo.verdicts import Counts as Counts
from jaxsens.montecarlo.verdicts import Decisions as Decisions
from jaxsens.sensitivity import sensitivity_profile as sensitivity_profile
from jaxsens.transformer import TransformerConfig as TransformerConfig
from jaxsens.transformer import TransformerParams as TransformerParams
from jaxsens.transformer import apply as apply
from jaxsens.transformer import params_from_arrays as params_from_arrays
from jaxsens.transformer import params_to_arrays as params_to_arrays

__version__ = "0.1.0"
