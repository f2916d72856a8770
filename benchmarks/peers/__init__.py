"""The engine against other simulators, each in a virtual environment of its own."""
