"""How fast is it? `python -m benchmarks`; docs/performance.md explains the table."""
