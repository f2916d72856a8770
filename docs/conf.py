"""The site, built by Sphinx: `python -m sphinx -W docs build/site`.

The pages are Markdown. Autodoc writes the Python interface from the docstrings;
`docs/reference.py` writes the tables of knobs, parts, columns and exit codes from the
package. A broken link is a warning, and `-W` makes each warning an error.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from docs import reference
from moon_jax import __version__

project = 'moon_jax'
author = 'the moon_jax authors'
copyright = author
release = __version__
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
exclude_patterns = ['README.md']
nitpicky = True
# Signatures name types of other packages, which have no page here.
nitpick_ignore_regex = [('py:.*', r'(?!moon_jax\.(run|rounds|load)$).*')]

myst_enable_extensions = ['colon_fence', 'deflist', 'dollarmath', 'attrs_inline']
myst_heading_anchors = 3
autodoc_member_order = 'bysource'
autodoc_typehints = 'none'
napoleon_use_ivar = True
napoleon_use_rtype = False

smartquotes_action = 'D'  # typographic dashes, straight quotes

html_theme = 'furo'
html_title = 'moon_jax'
html_static_path = ['_static']
html_css_files = ['site.css']
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False


def escape_docstring(app, object_type, name, documented, options, lines):
  """Docstrings are plain text: nothing but `code` and bullets has a meaning."""
  for number, line in enumerate(lines):
    if not line.lstrip().startswith('>>>'):
      lines[number] = _escaped(line)


def _escaped(line):
  """A line in reStructuredText that shows the line as it is, and `code` as code."""
  pieces = re.split(r'(`[^`]*`)', line)
  for index, piece in enumerate(pieces):
    if re.fullmatch(r'`[^`]+`', piece):
      # reStructuredText ends code before a space only, or before an escaped one.
      letter_follows = pieces[index + 1][:1].isalnum()
      pieces[index] = f'`{piece}`' + ('\\ ' if letter_follows else '')
    elif not re.match(r'\s*\*\*\w+:', piece):
      pieces[index] = re.sub(r'([*|\\]|_(?=\W|$)|(?<=FILE):)', r'\\\1', piece)
  return ''.join(pieces)


def fill_in_tables(app, page_name, source):
  """Puts what `docs/reference.py` writes in place of `<!-- name -->` of a page."""
  for name, write_table in reference.TABLES.items():
    comment = f'<!-- {name} -->'
    if comment in source[0]:
      source[0] = source[0].replace(comment, write_table())


def setup(app):
  """Called by Sphinx."""
  # Before napoleon, which has a higher number.
  app.connect('autodoc-process-docstring', escape_docstring, priority=100)
  app.connect('source-read', fill_in_tables)
