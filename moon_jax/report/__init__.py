"""Tables and figures from run directories: `python -m moon_jax.report`.

Four rooms; each imports only those above it.

  read      run directories, and what trained models say about the test images
  numbers   choosing and grouping runs, statistics, tables' cells
  draw      the charts as data, then by matplotlib and by plotly
  page      sections, and the files of a report

  command   the command line
  build     makes a report
  compare   prints a few runs in the terminal
"""
