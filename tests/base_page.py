"""Writes the list of knobs in configs/base.py: `python -m tests.base_page`."""

import pathlib
import re

from configs import base
from moon_jax import config

BASE = pathlib.Path(base.__file__)


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
