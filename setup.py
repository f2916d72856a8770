"""Packages of a wheel; pyproject.toml has the rest.

A wheel has the config files inside the package, so that nothing named `configs` can be
imported: a folder of this name in the user's working directory would hide it.
"""

from setuptools import find_packages, setup

CONFIGS = 'moon_jax._shipped.configs'

setup(
  packages=[*find_packages(include=['moon_jax', 'moon_jax.*']), CONFIGS],
  package_dir={CONFIGS: 'configs'},
)
