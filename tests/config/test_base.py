"""configs/base.py is the page of every knob, written by `python -m tests.base_page`."""

from tests.base_page import BASE, page


def test_the_page_is_that_of_the_catalog():
  text = BASE.read_text()
  assert page(text) == text, 'run `python -m tests.base_page`'
