"""Timeouts of the simulated world: the rules of the product with shorter times, so that a run of minutes
covers hours."""

from dataclasses import dataclass, field

from lattice.lifecycle.node_health import NodeTimeouts
from lattice.lifecycle.retry import RetryPolicy
from lattice.lifecycle.workload import GracePeriods

LEASE_TTL_S = 5.0
# Greatest age of the revisions that compaction keeps.
HISTORY_RETENTION_S = 30.0
COMPACTION_INTERVAL_S = 12.0
RECONCILE_INTERVAL_S = 3.0
EVENT_TTL_S = 3600.0
# Time until a reservation expires.
RESERVATION_TIMEOUT_S = 8.0
# Silence of a node after which the leader replaces the workloads of the node.
REPLACE_AFTER_S = 30.0
# Back-off from a failure to the next start: the first, the longest, and the run time that resets the back-off.
RETRY_FIRST_S, RETRY_MAX_S, STEADY_RUN_S = (1.0, 8.0, 16.0)
# Longest time from the stop deadline of a disconnected node until the instances are dead.
KILL_GRACE_S = 2.5
# Largest relative error of the rate of a clock.
CLOCK_RATE_TOLERANCE = 0.05


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
            missing=6.0,
            start=30.0,
            stop=15.0,
            retry=RetryPolicy(RETRY_FIRST_S, RETRY_MAX_S, 5, STEADY_RUN_S, service_max_backoff=RETRY_MAX_S),
        )
    )


TIMEOUTS = SimTimeouts()
