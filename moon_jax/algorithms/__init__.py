"""The algorithms: each file holds one, and the catalog lists all of them."""
