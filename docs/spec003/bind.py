"""Section 5: bindings are durable, or rolled back."""

from docs.specification import Row

BINDS = "scheduling/cycle/test_binder.py"
SUCCESS = f"{BINDS}::test_bind_emits_one_event_with_resource_updates"

BIND = (
    Row(
        "container",
        "scheduling.cycle.binder:BindRequest",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/cycle/binder.py",
            "        reservation.workload,",
            "        reservation.id,",
        ),
    ),
    Row(
        "target_node",
        "scheduling.cycle.binder:BindRequest",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/cycle/binder.py",
            "        reservation.node,",
            "        reservation.workload,",
        ),
    ),
    Row(
        "reservation_id",
        "scheduling.cycle.binder:BindRequest",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/cycle/binder.py",
            "        reservation.id,",
            "        reservation.workload,",
        ),
    ),
    Row(
        "binding_mode: optimistic",
        "scheduling.cycle.binder:BindingMode.OPTIMISTIC",
        f"{BINDS}::test_changed_node_revision_is_a_conflict[optimistic]",
        (
            "scheduling/cycle/binder.py",
            "return self.node_revisions[request.node]",
            "return (await self._read_node(request)).revision",
        ),
    ),
    Row(
        "binding_mode: pessimistic",
        "scheduling.cycle.binder:BindingMode.PESSIMISTIC",
        f"{BINDS}::test_locked_node_is_a_conflict",
        ("scheduling/cycle/binder.py", "if token is None:", "if False:"),
    ),
    Row(
        "binding_mode: two_phase",
        "scheduling.cycle.binder:BindingMode.TWO_PHASE",
        f"{BINDS}::test_error_after_prepare_rolls_back[prepare, gang False]",
        (
            "scheduling/cycle/binder.py",
            "await self.binding_store.prepare(request, expected)",
            "await self.binding_store.try_commit(request, expected)",
        ),
    ),
    Row(
        "resource_updates",
        "scheduling.cycle.binder:ResourceUpdate",
        f"{SUCCESS}[optimistic]",
        (
            "scheduling/cycle/binder.py",
            "ResourceUpdate(name, total - free - amount,",
            "ResourceUpdate(name, total - free,",
        ),
    ),
    Row(
        "bind result (success/failure)",
        "scheduling.cycle.binder:BindEvent",
        f"{BINDS}::test_expired_reservation_is_rejected_and_released",
        ("scheduling/cycle/binder.py", '            "failed",', '            "bound",'),
    ),
    Row(
        "Binder trait",
        "scheduling.cycle.binder:BindingStore",
        "scheduling/cycle/test_spec003_scheduler.py::test_binding_mode_is_used",
        (
            "scheduling/cycle/binder.py",
            "match self.mode:",
            "match BindingMode.OPTIMISTIC:",
        ),
    ),
    Row(
        "event_emission: bind_success_event",
        "scheduling.cycle.binder:Binder.bind",
        f"{SUCCESS}[pessimistic]",
        (
            "scheduling/cycle/binder.py",
            "return self._emit_event(self._bound_event(request, self.mode))",
            "return self._bound_event(request, self.mode)",
        ),
    ),
    Row(
        "event_emission: bind_failure_event",
        "scheduling.cycle.binder:Binder.bind",
        f"{BINDS}::test_expired_reservation_is_rejected_and_released",
        (
            "scheduling/cycle/binder.py",
            "event = self._emit_event(",
            "event = (",
        ),
    ),
    Row(
        "rollback_handler",
        "scheduling.cycle.binder:Binder.rollback",
        f"{BINDS}::test_rollback_is_idempotent[optimistic]",
        ("scheduling/cycle/binder.py", "if reservation.id not in bound:", "if reservation.id in bound:"),
    ),
    Row(
        "state_transition tracking",
        "scheduling.table.node_table:NodeTable.commit",
        f"{SUCCESS}[two-phase]",
        (
            "scheduling/table/node_table.py",
            'placement = replace(placement, state="bound")',
            'placement = replace(placement, state="assumed")',
        ),
    ),
)
