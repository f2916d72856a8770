"""The compiled round, pure JAX: local steps, lanes, aggregation, evaluation."""
