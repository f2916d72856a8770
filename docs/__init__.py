"""The documentation; `python -m docs.build` writes the page that holds measurements."""
