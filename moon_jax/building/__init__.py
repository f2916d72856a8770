"""Builds an experiment from a configuration."""
