"""Paths of the example worlds under examples/worlds."""

from pathlib import Path

WORLDS = Path(__file__).parents[2] / "examples" / "worlds"
SEED_000, SEED_001 = str(WORLDS / "seed-000"), str(WORLDS / "seed-001")
