"""Index ranges to shards to estimates: the sampler."""
