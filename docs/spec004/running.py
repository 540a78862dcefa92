"""Sections 5 to 8: lifecycle of workloads, failures, concurrency and several servers."""

from docs.specification import Row

WORKLOADS = "controllers/nodes/test_workloads.py"
LOOP = "controllers/runtime/test_loop.py"

LIFE = (
    Row(
        "create: persisted, bound, applied",
        "lifecycle.workload:desired_run",
        f"{WORKLOADS}::test_workload_is_bound_applied_and_runs",
        (
            "lifecycle/workload.py",
            'return DesiredRun("Running", revision, run)',
            'return DesiredRun("Stopped", revision, run)',
        ),
    ),
    Row(
        "update: another revision takes the place of the one that runs",
        "kinds.workload:compute_revision",
        f"{WORKLOADS}::test_new_revision_replaces_running_one_once",
        ("kinds/workload.py", "runnable = (spec.containers, spec.requests,", "runnable = (spec.requests,"),
    ),
    Row(
        "delete: gone from its node first, then from the store",
        "controllers.nodes.workloads:WorkloadController",
        f"{WORKLOADS}::test_deleted_workload_leaves_node_then_store",
        (
            "lifecycle/workload.py",
            '        inputs.report.state == "Missing"',
            "        True",
        ),
    ),
)
FAILURES = (
    Row(
        "an agent that cannot be reached: what it ran may go elsewhere",
        "lifecycle.node_health:decide_failover",
        "lifecycle/test_node_lifecycle.py::test_decide_failover[keep: replaced after 120 s]",
        ("lifecycle/node_health.py", "if node.name not in evictions.evicted_nodes:", "if True:"),
    ),
    Row(
        "retries with a persisted reason, and an end",
        "lifecycle.workload_status:next_status",
        f"{WORKLOADS}::test_permanent_failure_can_be_retried_on_request",
        (
            "lifecycle/workload_status.py",
            "status, failure_reason=decision.failure_reason, last_log=",
            "status, last_log=",
        ),
    ),
    Row(
        "a heartbeat that is late is noticed, and its workloads are moved",
        "presence:Presence.heartbeat_age",
        "controllers/nodes/test_node_health.py::test_new_leader_restarts_eviction_timeout",
        (
            "presence.py",
            "return self._clock.monotonic() - max(",
            "return 0.0 * max(",
        ),
    ),
)
CONCURRENCY = (
    Row(
        "a pool of workers",
        "controllers.runtime.loop:Loop",
        f"{LOOP}::test_no_wake_up_is_lost_and_workers_stay_bounded",
        (
            "controllers/runtime/loop.py",
            "while len(self._in_flight) < self.concurrency.workers and (key",
            "while len(self._in_flight) < 100 and (key",
        ),
    ),
    Row(
        "long loops can be cancelled, and leave nothing behind",
        "controllers.runtime.loop:Loop.run",
        f"{LOOP}::test_cancelled_loop_leaves_no_workers_or_listeners",
        (
            "controllers/runtime/loop.py",
            "tasks = [startup, *(work.task for work in self._in_flight.values())]",
            "tasks = [startup]",
        ),
    ),
    Row(
        "optimistic: what is written holds for what was read, or is not written",
        "controllers.scheduler.bind_batches:BatchBinder",
        "controllers/scheduler/test_scheduler.py::test_decision_older_than_rival_binding_is_not_written",
        (
            "controllers/scheduler/bind_batches.py",
            "if entry is not None and entry.revision == reflected_revision:",
            "if entry is not None:",
        ),
    ),
    Row(
        "no global lock, and how many work at once is a setting",
        "controllers.controller_set:concurrency",
        "controllers/test_controller_set.py::test_every_timeout_can_be_set",
        (
            "controllers/controller_set.py",
            "return Concurrency(workers=settings.reconcile_workers)",
            "return Concurrency()",
        ),
    ),
)
SERVERS = (
    Row(
        "leader election",
        "store.election:Election",
        "store/test_election.py::test_dead_leader_is_replaced_after_lease",
        (
            "store/election.py",
            "await self.clock.sleep(min(CAMPAIGN_INTERVAL_S, self.ttl / 3) *",
            "await self.clock.sleep(self.ttl *",
        ),
    ),
    Row(
        "one acts: every write of a former leader is rejected",
        "controllers.runtime.context:ControllerContext.commit",
        f"{WORKLOADS}::test_former_leader_writes_nothing",
        ("controllers/runtime/context.py", "fence=self.term", "fence=None"),
    ),
)
