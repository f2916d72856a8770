"""Trains one federated-learning experiment: flags -> config -> run directory."""

from moon_jax.__main__ import main

if __name__ == '__main__':
  main()
