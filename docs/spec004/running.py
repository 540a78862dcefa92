"""Sections 5 to 8: lives of workloads, failures, concurrency and several servers."""

from docs.specification import Row

WORKLOADS = "controllers/nodes/test_workloads.py"
LOOP = "controllers/runtime/test_loop.py"

LIFE = (
    Row(
        "create: persisted, bound, applied",
        "lifecycle.workload:desired_run",
        f"{WORKLOADS}::test_it_is_bound_applied_and_runs",
        (
            "lifecycle/workload.py",
            'return DesiredRun("Running", revision, run)',
            'return DesiredRun("Stopped", revision, run)',
        ),
    ),
    Row(
        "update: another revision takes the place of the one that runs",
        "kinds.workload:compute_revision",
        f"{WORKLOADS}::test_another_revision_takes_the_place_of_the_running_one_once",
        ("kinds/workload.py", "runnable = (spec.containers, spec.requests,", "runnable = (spec.requests,"),
    ),
    Row(
        "delete: gone from its node first, then from the store",
        "controllers.nodes.workloads:WorkloadController",
        f"{WORKLOADS}::test_a_deleted_one_leaves_its_node_then_the_store",
        (
            "lifecycle/workload.py",
            'if found.report.state == "Missing" and found.last_action.action not in START_ACTIONS and found.report.includes_last_order:',
            "if found.last_action.action not in START_ACTIONS:",
        ),
    ),
)
FAILURES = (
    Row(
        "an agent that cannot be reached: what it ran may go elsewhere",
        "lifecycle.node_health:decide_failover",
        "lifecycle/test_node_lifecycle.py::test_decide_failover[keep: replaced after 120 s]",
        ("lifecycle/node_health.py", "    if node.name not in releases.evicted_nodes:", "    if True:"),
    ),
    Row(
        "retries with a persisted reason, and an end",
        "lifecycle.workload_status:next_status",
        f"{WORKLOADS}::test_what_trying_again_cannot_help_fails_at_once_and_a_person_may_ask_again",
        (
            "lifecycle/workload_status.py",
            "replace(status, failure_reason=decision.failure_reason, last_log=",
            "replace(status, last_log=",
        ),
    ),
    Row(
        "a heartbeat that is late is noticed, and its workloads are moved",
        "presence:Presence.heartbeat_age",
        "controllers/nodes/test_node_health.py::test_a_new_leader_counts_the_two_minutes_anew",
        (
            "presence.py",
            "return self._clock.monotonic() - max(self._listening_since, heard.received_at if heard else self._listening_since)",
            "return 0.0",
        ),
    ),
)
CONCURRENCY = (
    Row(
        "a pool of workers",
        "controllers.runtime.loop:Loop",
        f"{LOOP}::test_never_two_on_one_key_never_too_many_and_no_wake_up_is_lost",
        (
            "controllers/runtime/loop.py",
            "while len(self._in_flight) < self.concurrency.workers and (key",
            "while len(self._in_flight) < 100 and (key",
        ),
    ),
    Row(
        "long loops can be cancelled, and leave nothing behind",
        "controllers.runtime.loop:Loop.run",
        f"{LOOP}::test_killing_it_leaves_nobody_at_work_and_nobody_listening",
        (
            "controllers/runtime/loop.py",
            "left = [filling, *(work.task for work in self._in_flight.values())]",
            "left = [filling]",
        ),
    ),
    Row(
        "optimistic: what is written holds for what was read, or is not written",
        "controllers.scheduler.bind_batches:BatchBinder",
        "controllers/scheduler/test_scheduler.py::test_what_was_decided_before_a_rival_came_is_not_written_after_even_if_the_copy_knows_the_rival",
        (
            "controllers/scheduler/bind_batches.py",
            "if entry is not None and entry.revision == wanted:",
            "if entry is not None:",
        ),
    ),
    Row(
        "no global lock, and how many work at once is a setting",
        "controllers.controller_set:concurrency",
        "controllers/test_controller_set.py::test_everything_can_be_set",
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
        "store/test_election.py::test_a_dead_leader_is_followed_within_its_lease_and_two_seconds",
        (
            "store/election.py",
            "await self.clock.sleep(min(CAMPAIGN_INTERVAL_S, self.ttl / 3) *",
            "await self.clock.sleep(self.ttl *",
        ),
    ),
    Row(
        "one acts: whoever leads no more has every write refused",
        "controllers.runtime.context:ControllerContext.commit",
        f"{WORKLOADS}::test_a_server_that_leads_no_more_writes_nothing",
        ("controllers/runtime/context.py", "fence=self.term", "fence=None"),
    ),
)
