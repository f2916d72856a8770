"""Experiments, run by `--config=configs/NAME.py`; `base` lists every knob."""
