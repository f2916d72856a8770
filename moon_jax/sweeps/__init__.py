"""Sweeps: many runs of one configuration, each an ordinary run directory.

grid      which knobs have which values in which run
cells     the runs: their names, folders and commands
slurm     an array job of them
running   runs what is left, one after another or in several processes
estimate  how much time and disk is left
command   the command line, `python -m moon_jax.sweep`
"""
