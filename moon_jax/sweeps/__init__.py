"""Sweeps: many runs of one configuration, each an ordinary run directory.

planned_runs  the combinations of the knobs' values, as folders and commands
slurm         an array job of the runs
running       runs what is left, one after another or in several processes
estimate      the time and the disk space that are left
command       the command line, `python -m moon_jax.sweep`
"""
