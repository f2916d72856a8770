"""The networks; each maps images to (representation, logits, features)."""

from moon_jax.models import cpu_kernels
from moon_jax.models.network import (
  Network,
  make,
  of_module,
  refuse_if_filler_matters,
)

__all__ = ['Network', 'cpu_kernels', 'make', 'of_module', 'refuse_if_filler_matters']
