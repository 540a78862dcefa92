"""Hypothesis settings: a moderate number of examples by default, many more with LATTICE_LONG=1."""

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("LATTICE_LONG") == "1"
EXAMPLES = int(os.environ.get("EXAMPLES", "10000" if LONG else "60"))
PROPERTY_TIMEOUT_S = 3600 if EXAMPLES > 200 else 300  # seconds for one test
many = settings(max_examples=EXAMPLES, deadline=None)
large = settings(many, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
