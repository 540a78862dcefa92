"""The gaps that the specification lists: missing, partial and recommended features."""

from docs.specification import Row

RESOURCES = "scheduling/table/test_spec003_resources.py"
FILTERS = "scheduling/plugins/filters/test_spec003_filters.py"
SCORES = "scheduling/plugins/scores/test_spec003_scores.py"
COMPOSED = "scheduling/cycle/test_spec003_scheduler.py"
BINDS = "scheduling/cycle/test_binder.py"
CYCLES = "scheduling/cycle/test_cycle.py"

MISSING = (
    Row(
        "1. Extended resources (GPU, FPGA, custom)",
        "scheduling.plugins.filters.gpu:Gpu",
        f"{RESOURCES}::test_gpus_and_extended_resources_are_counted",
        ("scheduling/plugins/filters/gpu.py", "return ~has_model", "return has_model"),
    ),
    Row(
        "2. Ephemeral storage and hugepages",
        "scheduling.table.workload_ask:demands_of",
        f"{RESOURCES}::test_ephemeral_storage_and_hugepages_are_both_required",
        ("scheduling/table/workload_ask.py", "if name != GPU and amount > 0", 'if name in ("cpu", "memory")'),
    ),
    Row(
        "3. Pod-level resource aggregation",
        "kinds.container:total_amounts",
        f"{RESOURCES}::test_missing_container_limit_means_no_workload_limit",
        (
            "kinds/container.py",
            "all(name in container_amounts for container_amounts in amounts)",
            "any(name in container_amounts for container_amounts in amounts)",
        ),
    ),
    Row(
        "4. Topology spread constraints",
        "scheduling.table.topology_domains:min_domain_count",
        f"{FILTERS}::test_spread_ignores_zones_without_ready_nodes",
        (
            "scheduling/table/topology_domains.py",
            "return int(counts[usable].min())",
            "return int(counts.min())",
        ),
    ),
    Row(
        "5. Pod affinity/anti-affinity evaluation logic",
        "scheduling.plugins.filters.inter_workload_affinity:WorkloadAffinity",
        f"{FILTERS}::test_self_affinity_starts_on_any_node_with_topology_key",
        (
            "scheduling/plugins/filters/inter_workload_affinity.py",
            "if ask.matches_term(term) and",
            "if not ask.matches_term(term) and",
        ),
    ),
    Row(
        "6. Volume zone affinity",
        "scheduling.plugins.filters.volume_zone:VolumeZone",
        f"{FILTERS}::test_volume_zone",
        (
            "scheduling/plugins/filters/volume_zone.py",
            'in (("zone", volume.zone), ("region", volume.region)):',
            'in (("zone", volume.zone),):',
        ),
    ),
    Row(
        "7. Event emission system",
        "scheduling.cycle.binder:Binder.bind_gang",
        "scheduling/cycle/test_binder_gangs.py::test_gang_is_bound_all_or_nothing",
        ("scheduling/cycle/binder.py", "events.append(self._emit_event(event))", "events.append(event)"),
    ),
    Row(
        "8. Rollback handlers",
        "scheduling.cycle.binder:Binder.rollback",
        f"{BINDS}::test_rollback_is_idempotent[optimistic]",
        ("scheduling/cycle/binder.py", "if self._claim(_bind_request(reservation)):", "if False:"),
    ),
    Row(
        "9. Atomic scheduling decisions",
        "scheduling.cycle.gang:assign_gang",
        "scheduling/cycle/test_gang.py::test_gang_is_assigned_all_or_nothing",
        (
            "scheduling/cycle/gang.py",
            "is_enough = len(assignments) >= max(1, least)",
            "is_enough = len(assignments) >= 1",
        ),
    ),
    Row(
        "10. State concurrency handling",
        "scheduling.cycle.binder:BindingStore.lock",
        f"{BINDS}::test_bind_emits_one_event_with_resource_updates[pessimistic]",
        ("scheduling/cycle/binder.py", "await self.binding_store.unlock(request.node, token)", "pass"),
    ),
)
PARTIAL = (
    Row(
        "1. Integrate filter/score/select/bind modules into a production Scheduler",
        "scheduling.cycle.cycle:compose",
        f"{CYCLES}::test_compose_builds_scheduler_from_profile",
        (
            "scheduling/cycle/cycle.py",
            "reservations = Reservations(table, holder, spec.reservation_timeout)",
            "reservations = Reservations(table, holder)",
        ),
    ),
    Row(
        "2. Additional tiebreaker strategies (weighted_random, affinity_based)",
        "scheduling.cycle.tie_break:TieBreaker",
        f"{COMPOSED}::test_weighted_random_without_scores_reaches_all_nodes",
        ("scheduling/cycle/tie_break.py", "weights = [1.0] * len(weights)", "weights[0] = 1.0"),
    ),
    Row(
        "3. Anti-affinity and topology scoring functions",
        "scheduling.table.topology_domains:evenness",
        f"{SCORES}::test_soft_spread_prefers_emptier_domains",
        (
            "scheduling/table/topology_domains.py",
            "np.maximum(counts - min_domain_count(table, ask, key, counts), 0)",
            "np.maximum(counts, 0)",
        ),
    ),
    Row(
        "4. Node health status checking",
        "scheduling.plugins.filters.ready:Ready",
        f"{RESOURCES}::test_only_ready_nodes_take_workloads[draining]",
        ("scheduling/table/node_info.py", 'is_draining=status.phase == "Draining" or', "is_draining="),
    ),
)
NOW = (
    Row(
        "1. Create a CompositeScheduler that integrates all phases",
        "scheduling.cycle.cycle:CompositeScheduler",
        f"{COMPOSED}::test_preemption_is_the_last_resort",
        ("scheduling/cycle/cycle.py", "if selection.fits:", "if selection.fits and preemptor is None:"),
    ),
    Row(
        "2. Add convenience re-exports in lib.rs",
        "scheduling:__getattr__",
        f"{CYCLES}::test_package_exports_public_names",
        ("scheduling/__init__.py", '("Selection", "Selector", "TieBreaker"),', '("Selector", "TieBreaker"),'),
    ),
)
SOON = (
    Row(
        "1. Implement topology spread constraints",
        "scheduling.plugins.filters.topology_spread:TopologySpread",
        f"{FILTERS}::test_unknown_topology_key_is_named",
        ("scheduling/plugins/filters/topology_spread.py", "if not rows.domain_count(key):", "if False:"),
    ),
    Row(
        "2. Add pod affinity/anti-affinity evaluation",
        "scheduling.plugins.filters.inter_workload_affinity:WorkloadAntiAffinity",
        f"{FILTERS}::test_workload_anti_affinity",
        (
            "scheduling/plugins/filters/inter_workload_affinity.py",
            "in rows.anti_affinity_against(ask):",
            "in ():",
        ),
    ),
    Row(
        "3. Implement event emission for observability",
        "scheduling.cycle.binder:BindEvent",
        f"{COMPOSED}::test_scheduled_workload_is_bound",
        (
            "scheduling/cycle/binder.py",
            '"bound", self.now(), updates=updates',
            '"bound", 0.0, updates=updates',
        ),
    ),
    Row(
        "4. Add rollback handlers for binding failures",
        "scheduling.cycle.binder:BindingStore.abort_all",
        f"{BINDS}::test_error_after_prepare_rolls_back",
        (
            "scheduling/cycle/binder.py",
            "[_bind_request(reservation) for reservation in reservations]",
            "[]",
        ),
    ),
)
LONG_TERM = (
    Row(
        "1. Extended resource support",
        "kinds.qos:is_extended",
        f"{RESOURCES}::test_qos",
        (
            "kinds/qos.py",
            "for name in (*requests, *limits) if is_extended(name)}",
            "for name in ()}",
        ),
    ),
    Row(
        "2. State concurrency primitives",
        "scheduling.cycle.reservations:Reservations.confirm_bound",
        f"{BINDS}::test_written_binding_stays_when_reservation_is_lost[dropped-False-optimistic]",
        (
            "scheduling/cycle/reservations.py",
            "or placement is None or not self._is_current(placement)",
            "or placement is None",
        ),
    ),
    Row(
        "3. Atomic scheduling decisions",
        "scheduling.table.node_table:NodeTable.what_if",
        "scheduling/preemption/test_preemptor.py::test_victim_selection",
        (
            "scheduling/table/node_table.py",
            "if placement is not None and name not in self.placements:",
            "if False:",
        ),
    ),
    Row(
        "4. Gang scheduling support",
        "scheduling.cycle.gang:assign_gang",
        f"{CYCLES}::test_gangs[not all are here yet]",
        ("scheduling/cycle/cycle.py", "if len(members) < least:", "if False:"),
    ),
    Row(
        "5. Preemption implementation",
        "scheduling.preemption.preemptor:Preemptor",
        f"{CYCLES}::test_disruption_budget_holds_over_whole_cycle",
        ("scheduling/cycle/cycle.py", "self.preemptor.charge(assignment.victims)", "pass"),
    ),
)
