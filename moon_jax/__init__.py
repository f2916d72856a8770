"""A vectorized simulator of model-contrastive federated learning."""

import typing

if typing.TYPE_CHECKING:
  from moon_jax.inference import load

__all__ = ['load']


def __getattr__(name: str):
  if name == 'load':
    from moon_jax.inference import load

    return load
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
