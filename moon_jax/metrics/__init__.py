"""The metrics of tests, computed on the host from the logits of a model."""
