"""Lattice decides where services run, explains every decision and prices it."""

__version__ = "0.1.0"
