"""How long things take in a simulated world: the product's rules with shorter times, so that minutes show what takes hours."""

from dataclasses import dataclass, field

from lattice.lifecycle.workload import Graces
from lattice.lifecycle.node_health import NodeTimes
from lattice.lifecycle.retry import RetryRules

ROLE = "controllers"
LEASE = 5.0  # seconds
HISTORY = 30.0  # seconds of revisions that are kept
COMPACT_EVERY = 12.0
INTERVAL = 3.0
EVENT_LIFE = 3600.0
RESERVED = 8.0  # seconds that room is held for a binding
REPLACED = 30.0  # seconds of silence after which what a node ran is replaced
FIRST_WAIT, LONGEST_WAIT, STEADY = (
    1.0,
    8.0,
    16.0,
)  # seconds from a failure to the next start; of running that make up for failures
KILLING = 2.5  # seconds from a node's deadline until its copies are dead
SKEW = 0.05  # share by which the rate of a clock may be wrong


@dataclass(frozen=True)
class Times:
    nodes: NodeTimes = field(
        default_factory=lambda: NodeTimes(
            heartbeat=2.5,
            not_ready_after=10.0,
            replace_after=REPLACED,
            evictions_per_second=0.4,
            clock_error=SKEW,
            kill_grace=KILLING,
            longest_stop=REPLACED,
        )
    )
    graces: Graces = field(
        default_factory=lambda: Graces(
            missing=6.0, start=30.0, stop=15.0, retry=RetryRules(FIRST_WAIT, LONGEST_WAIT, 5, STEADY)
        )
    )


TIMES = Times()
