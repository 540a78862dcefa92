"""Chaos: a whole installation of real processes in network namespaces, faults by a seed, and the simulator's checker on what happened."""

import sys
from pathlib import Path

sys.path.append(
    str(Path(__file__).parents[1] / "tests" / "e2e")
)  # servers are spoken with as the tests there do: wire.py
