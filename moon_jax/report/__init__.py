"""Tables and figures from run directories: `python -m moon_jax.report`.

Training imports `figures` alone; nothing else here is loaded by it.

  figures      the pictures that a run draws of itself
  command      what did the user ask for?
  runs         which runs are there, and how did each end?
  groups       what differs between them, and which belong together?
  naming       how is an experiment told in a few words?
  statistics   mean, deviation, paired test, rounds to a target
  results      what are the numbers of a setting?
  traces       which numbers are followed over the rounds?
  charts       what is drawn?
  styles       how is a series told from the others?
  files        the charts as PNG and PDF; `lettering` and `legend` make room for words
  interactive  the charts of the page
  table        the numbers as text, CSV, Markdown and LaTeX
  tables       which tables are there?
  features     what do the trained models say about the test images?
  sections     what stands under which heading?
  page         index.html
  build        in which order is a report made?
  compare      a table of a few runs in the terminal
"""
