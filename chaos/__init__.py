"""Chaos: an installation of real processes in network namespaces under faults of a seed, judged by the
simulator's checker."""

import sys
from pathlib import Path

# tests/build holds wire.py, the HTTP client for servers.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
