"""Section 5: the choice made durable, or undone."""

from docs.specification import Row

BINDS = "scheduling/test_bind.py"
SUCCESS = f"{BINDS}::test_success_is_one_event_with_what_changed"
REQUEST = "BindRequest(held.workload, held.node, held.id, held.needs, held.expires_at)"

BIND = (
    Row(
        "container",
        "scheduling.bind:BindRequest",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/bind.py",
            REQUEST,
            "BindRequest(held.id, held.node, held.id, held.needs, held.expires_at)",
        ),
    ),
    Row(
        "target_node",
        "scheduling.bind:BindRequest",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/bind.py",
            REQUEST,
            "BindRequest(held.workload, held.workload, held.id, held.needs, held.expires_at)",
        ),
    ),
    Row(
        "reservation_id",
        "scheduling.bind:BindRequest",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/bind.py",
            REQUEST,
            "BindRequest(held.workload, held.node, held.workload, held.needs, held.expires_at)",
        ),
    ),
    Row(
        "binding_mode: optimistic",
        "scheduling.bind:BindingMode.OPTIMISTIC",
        f"{BINDS}::test_a_changed_node_is_a_conflict[optimistic]",
        (
            "scheduling/bind.py",
            "return self.seen[request.node]",
            "return (await self._state(request)).revision",
        ),
    ),
    Row(
        "binding_mode: pessimistic",
        "scheduling.bind:BindingMode.PESSIMISTIC",
        f"{BINDS}::test_a_locked_node_is_a_conflict",
        ("scheduling/bind.py", "if token is None:", "if False:"),
    ),
    Row(
        "binding_mode: two_phase",
        "scheduling.bind:BindingMode.TWO_PHASE",
        f"{BINDS}::test_a_step_that_prepares_and_then_breaks_is_one_failure_and_leaves_no_trace[prepare, gang False]",
        (
            "scheduling/bind.py",
            "await self.ledger.prepare(request, expected)",
            "await self.ledger.try_commit(request, expected)",
        ),
    ),
    Row(
        "resource_updates",
        "scheduling.bind:ResourceUpdate",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/bind.py",
            "ResourceUpdate(name, total - free - amount,",
            "ResourceUpdate(name, total - free,",
        ),
    ),
    Row(
        "bind result (success/failure)",
        "scheduling.bind:BindEvent",
        f"{BINDS}::test_an_expired_reservation_is_refused_and_gives_the_room_back",
        ("scheduling/bind.py", 'mode, "failed", self.now(), why', 'mode, "bound", self.now(), why'),
    ),
    Row(
        "Binder trait",
        "scheduling.bind:Ledger",
        "scheduling/test_spec003_scheduler.py::test_the_mode_is_obeyed",
        ("scheduling/bind.py", "await self._steps()(request)", "await self._optimistic(request)"),
    ),
    Row(
        "event_emission: bind_success_event",
        "scheduling.bind:Binder.bind",
        f"{SUCCESS}[pessimistic]",
        (
            "scheduling/bind.py",
            "return self._tell(self._bound(request, self.mode))",
            "return self._bound(request, self.mode)",
        ),
    ),
    Row(
        "event_emission: bind_failure_event",
        "scheduling.bind:Binder.bind",
        f"{BINDS}::test_an_expired_reservation_is_refused_and_gives_the_room_back",
        (
            "scheduling/bind.py",
            "event = self._tell(self._bound(request, self.mode) if bound else self._failed(request, self.mode, problem))",
            "event = self._failed(request, self.mode, problem)",
        ),
    ),
    Row(
        "rollback_handler",
        "scheduling.bind:Binder.rollback",
        f"{BINDS}::test_rolling_back_twice_is_rolling_back_once[optimistic]",
        ("scheduling/bind.py", "if each.id not in bound:", "if each.id in bound:"),
    ),
    Row(
        "state_transition tracking",
        "scheduling.nodes:NodeTable.commit",
        f"{SUCCESS}[two-phase]",
        (
            "scheduling/nodes.py",
            'placement = replace(placement, state="bound")',
            'placement = replace(placement, state="assumed")',
        ),
    ),
)
