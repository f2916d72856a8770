"""configs/base.py is the page of every knob, written by `python -m tests.base_page`."""

import moon_jax
from configs import base
from moon_jax import catalog, config
from tests.base_page import BASE, page


def test_the_page_is_that_of_the_catalog():
  text = BASE.read_text()
  assert page(text) == text, 'run `python -m tests.base_page`'


def test_the_page_follows_a_new_knob(own_parts):
  moon_jax.register_algorithm(
    'mine', _make, knobs={'rho': moon_jax.knob(float, 0.9, 'x', moon_jax.at_least(0))}
  )
  written = page(BASE.read_text())
  assert written != BASE.read_text()
  assert '  --config.mine.rho=0.9 ' in written


def _make(rho):
  raise AssertionError(rho)


def test_the_settings_are_the_defaults_of_every_knob():
  found = config.flatten(base.get_config().to_dict())
  assert found == {name: knob.default for name, knob in catalog.every_knob().items()}
