"""The algorithms: each file holds one, the catalog tells of all."""
