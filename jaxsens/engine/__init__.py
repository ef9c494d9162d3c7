"""All 2^N strings of one transformer: exact savings over the plain pass, by structure.

* ``first_layer``, ``bidirectional``: the first layer's attention from a table of 2N + 1 rows, the
  last layer's at EOS alone.
* ``prefix_tree``: causal models, where a bit position sees its prefix only.
* ``some_strings``: a few strings instead of all, for searches.
* ``by_weight``: without positions and masks the answer depends on the number of ones.

All equal :func:`jaxsens.transformer.forward.plain_truth_table_logits` up to rounding, for every
norm, activation, width and depth.
"""

from jaxsens.engine.some_strings import trusted_logits as trusted_logits
from jaxsens.engine.table import default_tile_bits as default_tile_bits
from jaxsens.engine.table import path_name as path_name
from jaxsens.engine.table import trusted_table as trusted_table
from jaxsens.engine.table import truth_table_logits as truth_table_logits
from jaxsens.engine.table import work_per_string as work_per_string
