"""How long things take in a simulated world: the product's rules with shorter times, so that minutes show what takes hours."""

from dataclasses import dataclass, field

from lattice.lifecycle.node_health import NodeTimeouts
from lattice.lifecycle.retry import RetryPolicy
from lattice.lifecycle.workload import GracePeriods

ELECTION_ROLE = "controllers"
LEASE_TTL_S = 5.0  # seconds
HISTORY_RETENTION_S = 30.0  # seconds of revisions that are kept
COMPACTION_INTERVAL_S = 12.0
RECONCILE_INTERVAL_S = 3.0
EVENT_TTL_S = 3600.0
RESERVATION_TIMEOUT_S = 8.0  # seconds that room is held for a binding
REPLACE_AFTER_S = 30.0  # seconds of silence after which what a node ran is replaced
RETRY_FIRST_S, RETRY_MAX_S, STEADY_RUN_S = (
    1.0,
    8.0,
    16.0,
)  # seconds from a failure to the next start; of running that make up for failures
KILL_GRACE_S = 2.5  # seconds from a node's deadline until its copies are dead
CLOCK_RATE_TOLERANCE = 0.05  # share by which the rate of a clock may be wrong


@dataclass(frozen=True)
class SimTimeouts:
    nodes: NodeTimeouts = field(
        default_factory=lambda: NodeTimeouts(
            heartbeat_interval=2.5,
            not_ready_after=10.0,
            replace_after=REPLACE_AFTER_S,
            evictions_per_second=0.4,
            clock_error=CLOCK_RATE_TOLERANCE,
            kill_grace=KILL_GRACE_S,
            max_stop_after=REPLACE_AFTER_S,
        )
    )
    grace_periods: GracePeriods = field(
        default_factory=lambda: GracePeriods(
            missing=6.0, start=30.0, stop=15.0, retry=RetryPolicy(RETRY_FIRST_S, RETRY_MAX_S, 5, STEADY_RUN_S)
        )
    )


TIMEOUTS = SimTimeouts()
