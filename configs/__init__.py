"""Experiments: `--config=configs/NAME.py`; `base` has every knob."""
