"""Bugs that are planted, by what they break; `sim/planted.py` lists them."""
