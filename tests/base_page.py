"""Writes the list of knobs in configs/base.py: `python -m tests.base_page`."""

import re

from moon_jax import config
from moon_jax.config.config_files import HOME

BASE = HOME / 'configs/base.py'


def page(text):
  """The text of configs/base.py with the knobs of the catalog."""
  return re.sub(
    r'(?<=\n\n)  --config\.algorithm=.*?(?=\n""")',
    config.knob_table(),
    text,
    flags=re.S,
  )


if __name__ == '__main__':
  BASE.write_text(page(BASE.read_text()))
