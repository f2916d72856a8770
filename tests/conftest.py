"""Strict JAX for every test, silent broadcasting and casting are errors; 8 devices."""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax

from moon_jax import devices

os.environ['XLA_FLAGS'] = devices.PATIENCE  # eight devices on two cores may wait long
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_debug_key_reuse', True)
