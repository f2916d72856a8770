"""The networks; each maps images to (representation, logits, features)."""

from moon_jax.models.convolution import fused_cpu
from moon_jax.models.network import Network, make, of_module

__all__ = ['Network', 'fused_cpu', 'make', 'of_module']
