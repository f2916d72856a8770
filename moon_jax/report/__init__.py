"""Tables and figures from run directories: `python -m moon_jax.report`.

Each file imports only files above it.

  statistics    means, deviations and paired differences over seeds
  escaping      makes texts of run directories harmless
  naming        names an experiment in a few words
  request       what a report is asked for
  directories   finds run directories
  runs          their records
  groups        chooses runs, and groups them as series and settings
  traces        numbers over the rounds
  results       the numbers of runs and series
  tables        these numbers as tables
  latex         tables in LaTeX
  pivot         a table by two knobs
  paper         the table for a paper
  features      representations and predictions of a trained model
  models        chooses the runs whose model is analysed
  charts        the charts as data
  clients       each client by name
  sections      the tables and charts of a report
  labels        places the labels of a picture
  figures       the charts as PNG, PDF or SVG, by matplotlib
  interactive   the charts of the page, by plotly
  report_files  the page and the other files of a report

  command       the command line
  build         makes a report
  compare       prints a few runs in the terminal
"""
