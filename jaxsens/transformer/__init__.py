"""Transformers on binary strings: config, parameters, forward pass, exact constructions."""

from jaxsens.transformer.config import TransformerConfig as TransformerConfig
from jaxsens.transformer.forward import apply as apply
from jaxsens.transformer.forward import layer_norm as layer_norm
from jaxsens.transformer.forward import plain_truth_table_logits as plain_truth_table_logits
from jaxsens.transformer.params import LayerParams as LayerParams
from jaxsens.transformer.params import NormParams as NormParams
from jaxsens.transformer.params import ReadoutParams as ReadoutParams
from jaxsens.transformer.params import TransformerParams as TransformerParams
from jaxsens.transformer.params import array_shapes as array_shapes
from jaxsens.transformer.params import num_parameters as num_parameters
from jaxsens.transformer.params import params_from_arrays as params_from_arrays
from jaxsens.transformer.params import params_to_arrays as params_to_arrays
