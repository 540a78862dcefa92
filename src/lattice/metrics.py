"""Every Prometheus metric of the program. Metrics that specification 004 names have the names of the
specification; all other names begin with `lattice_`."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

REGISTRY = CollectorRegistry()

REQUESTS = Counter(
    "lattice_api_requests_total",
    "Requests answered, by verb, resource and status code.",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
REQUEST_SECONDS = Histogram(
    "lattice_api_request_duration_seconds",
    "Time to answer a request, without watches.",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    registry=REGISTRY,
)
WATCHES = Gauge("lattice_api_watches", "Number of open watches.", registry=REGISTRY)
REVISION = Gauge(
    "lattice_store_revision", "Newest revision of the store that this server has read.", registry=REGISTRY
)
LEADER = Gauge("lattice_leader", "1 on the leader, 0 on followers.", registry=REGISTRY)
GARBAGE_COLLECTED = Counter(
    "lattice_garbage_collected_total",
    "Objects deleted because their owner or namespace was deleted, or because they expired.",
    ["reason"],
    registry=REGISTRY,
)
FLEET_QUERIES = Counter(
    "lattice_fleet_questions_total",
    (
        "Fleet queries by kind of query and outcome: answered; refused (the answer is an error); "
        "busy (too many queries); unanswered (no answer within the time limit, or the query process ended); "
        "cancelled by the client; failed (unexpected error)."
    ),
    ["ask", "outcome"],
    registry=REGISTRY,
)
FLEET_QUERY_SECONDS = Histogram(
    "lattice_fleet_question_seconds",
    "Time from a fleet query to its answer, including the wait in the queue.",
    ["ask"],
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
    registry=REGISTRY,
)
RECONCILES = Counter(
    "lattice_controller_reconciles_total",
    "Reconciles of one key by a controller, by result: done, again, conflict, failed, fenced.",
    ["controller", "result"],
    registry=REGISTRY,
)
RECONCILE_SECONDS = Histogram(
    "lattice_controller_reconcile_seconds",
    "Duration of one reconcile.",
    ["controller"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
CONTROLLER_QUEUE_DEPTH = Gauge(
    "lattice_controller_queue_depth",
    "Keys in the work queue that wait for a worker.",
    ["controller"],
    registry=REGISTRY,
)
CONTROLLER_RETRIES = Counter(
    "lattice_controller_retries_total",
    "Reconciles that are repeated after a failure or a conflict.",
    ["controller"],
    registry=REGISTRY,
)
SCHEDULING_ATTEMPTS = Counter(
    "scheduling_attempts_total", "Attempts to find a node for a workload.", registry=REGISTRY
)
SCHEDULING_RESULTS = Counter(
    "lattice_scheduling_attempts_total",
    (
        "Decisions by result. For a service: placed or refused, with its verdict. For a "
        "workload: bound, unplaced or lost."
    ),
    ["result", "verdict"],
    registry=REGISTRY,
)
ATTEMPT_BOUND, ATTEMPT_UNPLACED = (
    SCHEDULING_RESULTS.labels("bound", "Bound"),
    SCHEDULING_RESULTS.labels("unplaced", "NoNodeFits"),
)
ATTEMPT_LOST = SCHEDULING_RESULTS.labels("lost", "Conflict")
SCHEDULING_FAILURES = Counter(
    "scheduling_failures_total",
    "Attempts that found no node, or lost the node to another workload.",
    registry=REGISTRY,
)
SCHEDULING_SECONDS = Histogram(
    "lattice_scheduling_duration_seconds",
    (
        "Time of one scheduling cycle, by phase: decide finds nodes for a batch of "
        "workloads, bind writes the bindings."
    ),
    ["phase"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
RECONCILIATION_ACTIONS = Counter(
    "reconciliation_actions_total",
    "Actions that bring workloads to their desired state, by action.",
    ["action"],
    registry=REGISTRY,
)
WORKLOAD_RETRIES = Counter(
    "retry_total", "Restarts of failed workloads, by back-off or by a user.", registry=REGISTRY
)
DRIFT = Counter(
    "lattice_drift_total",
    "Differences between the workloads on a node and its assignments, by type.",
    ["type"],
    registry=REGISTRY,
)
NODES_UNHEALTHY = Counter(
    "node_unhealthy_total", "Changes of a node from ready to not ready.", registry=REGISTRY
)
AGENTS_CONNECTED = Gauge(
    "lattice_agents_connected", "Agents that are connected to this server.", registry=REGISTRY
)
AGENTS_REFUSED = Counter(
    "lattice_agent_connections_refused_total",
    "Agent connections that were rejected or closed, by reason.",
    ["reason"],
    registry=REGISTRY,
)
JOINS = Counter(
    "lattice_joins_total",
    "Join requests of machines, by outcome: joined, refused.",
    ["outcome"],
    registry=REGISTRY,
)
PENDING_SERVICES = Gauge(
    "lattice_pending_services",
    (
        "Services that are not fully placed, by verdict (Never, NotNow, OverBudget, NoPrice, "
        "NotHere or Undecided) and by the reason of their condition Placed. Reported by the "
        "leader only."
    ),
    ["verdict", "reason"],
    registry=REGISTRY,
)
# The pool label is empty for a budget that belongs to no pool.
BUDGET_LABELS = ["ledger", "pool"]
BUDGET_LIMIT = Gauge(
    "lattice_budget_limit_dollars",
    "Maximum spending in a month, by ledger and pool.",
    BUDGET_LABELS,
    registry=REGISTRY,
)
BUDGET_COMMITTED = Gauge(
    "lattice_budget_committed_dollars_per_hour",
    "Cost of all machines of a budget, by ledger and pool.",
    BUDGET_LABELS,
    registry=REGISTRY,
)
BUDGET_SPENT = Gauge(
    "lattice_budget_spent_dollars",
    "Spending in this calendar month so far, by ledger and pool.",
    BUDGET_LABELS,
    registry=REGISTRY,
)
BUDGET_PROJECTED = Gauge(
    "lattice_budget_projected_dollars",
    "Spending so far plus the current rate until the end of the month, by ledger and pool.",
    BUDGET_LABELS,
    registry=REGISTRY,
)
PLAN_GAP = Gauge(
    "lattice_plan_gap_ratio",
    (
        "How much of the cost could still be saved, at most, after the moves of the last optimise query: "
        "0.05 means at most 5 %. NaN before the first such query."
    ),
    registry=REGISTRY,
)
PLAN_GAP.set(float("nan"))
POOL_UTILIZATION = Gauge(
    "lattice_pool_utilization_ratio",
    "Share of a pool's limits in use, 0 to 1, by resource: nodes, cores, memory.",
    ["pool", "resource"],
    registry=REGISTRY,
)
LEADER_ONLY_GAUGES = (
    PENDING_SERVICES,
    BUDGET_LIMIT,
    BUDGET_COMMITTED,
    BUDGET_SPENT,
    BUDGET_PROJECTED,
    POOL_UTILIZATION,
)

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics() -> bytes:
    """The body of the response to GET /metrics."""
    return generate_latest(REGISTRY)


def clear_leader_gauges() -> None:
    """Clear the fleet gauges when a server loses leadership: only the leader reports fleet metrics."""
    for gauge in LEADER_ONLY_GAUGES:
        gauge.clear()


class ReconcileMetrics:
    """The metrics of one controller's reconcile loop."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._seconds = RECONCILE_SECONDS.labels(controller)
        self._depth = CONTROLLER_QUEUE_DEPTH.labels(controller)
        self._attempts: dict[str, Counter] = {}  # by result
        # The last queue depth written to the gauge; -1 before the first write.
        self._last_depth = -1

    def set_queue_depth(self, keys: int) -> None:
        if keys != self._last_depth:
            self._last_depth = keys
            self._depth.set(keys)

    def record_reconcile(self, results: Sequence[str], seconds: float) -> None:
        """Record the duration of one reconcile, and the result of every key that it reconciled."""
        self._seconds.observe(seconds)
        for result in results:
            counter = self._attempts.get(result)
            if counter is None:
                counter = self._attempts[result] = RECONCILES.labels(self._controller, result)
            counter.inc()
            if result in ("conflict", "failed"):
                CONTROLLER_RETRIES.labels(self._controller).inc()
