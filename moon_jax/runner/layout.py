"""The files of a run directory, for those who write and those who read them.

It imports nothing, so that a report reads runs without JAX.
"""

CONFIG, SUMMARY = 'config.json', 'summary.json'
METRICS, TIMINGS = 'metrics.jsonl', 'timings.jsonl'
PARTITION = 'partition.npz'
# The arrays of PARTITION that others read; see `core.files.arrays`.
PARTITION_KINDS = {'class_counts': 'iu NY'}
