"""Checks of the project's own language: names, docstrings and comments of the code, and subjects of commits."""
