"""On PYTHONPATH, it makes a Lattice process see a wall clock that is wrong by as many seconds as the file named by CLOCK_SHIFT says."""

import os
from datetime import datetime, timedelta
from pathlib import Path

from lattice.clock import SystemClock

SHIFT = Path(os.environ["CLOCK_SHIFT"])
right = SystemClock.now


def shifted(clock: SystemClock) -> datetime:
    return right(clock) + timedelta(seconds=float(SHIFT.read_text()))


SystemClock.now = shifted  # type: ignore[method-assign]
