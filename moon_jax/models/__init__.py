"""The networks; each maps images to (representation, logits, features)."""

from moon_jax.models import cpu_kernels
from moon_jax.models.network import (
  Network,
  make,
  of_module,
  require_filler_ignored,
)

__all__ = ['Network', 'cpu_kernels', 'make', 'of_module', 'require_filler_ignored']
