"""A vectorized simulator of model-contrastive federated learning."""
