"""Plans rounds in NumPy: who takes part, which batches, which lanes."""
