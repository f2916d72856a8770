"""The engine beside other simulators, each in a virtual environment of its own."""
