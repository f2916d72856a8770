"""Convolutions in several forms, different arithmetic with the same result.

All take the ordinary kernel [kh, kw, Cin, Cout], so a checkpoint does not depend on the
form. Images are [C, H, W, B]: windows are then copied, and pixels compared, in runs of
at least B numbers. Only `direct` and `winograd` take [B, H, W, C], as XLA's own kernels
for a CPU do. docs/performance.md has the measurements.
"""

from moon_jax.models.convolution.forms import FORMS, Form, along, choose

__all__ = ['FORMS', 'Form', 'along', 'choose']
