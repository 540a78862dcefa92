"""Options for changes that relax the requirements of a service or of the policies that apply to the
service."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from lattice.kinds.constraints import Toleration
from lattice.kinds.container import Container, parse_amounts
from lattice.kinds.meta.quantity import MIB, MILLI, Quantity
from lattice.kinds.meta.selector import LabelSelector
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.latency import UNKNOWN_RTT_MS
from lattice.placement.model.demand import Demand, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import (
    ChangeOption,
    ObjectChange,
    change_at_path,
    single_change,
    with_fields,
    with_spec,
)
from lattice.placement.model.world import object_key
from lattice.placement.plugins.rejection_reasons import format_amount

# Limit of taints that the search offers to tolerate.
MAX_TAINTS_OFFERED = 4
# By resource: the field in manifests.
MANIFEST_FIELDS = {"cpu": "cores", "memory": "memoryGi", "storage": "storageGi", "gpu": "gpu"}
# By resource: the attribute of the Python class `PlacementResources`.
CLASS_FIELDS = {"cpu": "cores", "memory": "memory_gi", "storage": "storage_gi", "gpu": "gpu"}


def relaxations(
    demand: Demand, service: LatticeService, policies: Sequence[LatticePlacementPolicy], fleet: Fleet
) -> list[ChangeOption]:
    """Return all options that relax one requirement each, every option with its maximum strength, the largest
    size of the change (see `ChangeOption`). `policies` are the policies that apply to the service."""
    options: list[ChangeOption] = []
    for requirement in demand.requirements:
        option = relax_requirement(requirement, demand, service, policies, fleet)
        if option is not None:
            options.append(option)
    options += [*_fewer_replicas(demand, service), *_machines(demand, service, fleet)]
    # Smaller initial clusters, or larger clusters.
    for policy in policies:
        cluster_policy = policy.spec.cluster_policy
        if cluster_policy is None:
            continue
        min_nodes, max_nodes = cluster_policy.min_nodes or 0, cluster_policy.max_nodes
        if min_nodes > 1 and min_nodes == demand.rules.min_nodes:
            options.append(_size_option(policy, "min_nodes", min_nodes, min_nodes - 1))
        increase = max(1, demand.rules.min_nodes, demand.replicas) - (max_nodes or 0)
        if max_nodes is not None and max_nodes == demand.rules.max_nodes and increase > 0:
            options.append(_size_option(policy, "max_nodes", max_nodes, increase))
    return options


def relax_requirement(
    requirement: Requirement,
    demand: Demand,
    service: LatticeService,
    policies: Sequence[LatticePlacementPolicy],
    fleet: Fleet,
) -> ChangeOption | None:
    """Return the option to relax one requirement in its source, or None if the requirement cannot be
    relaxed."""
    kind, _, name = requirement.source.partition("/")
    if kind == "policy":
        policy = next((candidate for candidate in policies if candidate.metadata.name == name), None)
        return _relax_policy_requirement(requirement, demand, policy) if policy else None
    return _relax_service_requirement(requirement, demand, service, fleet) if kind == "service" else None


def _relax_service_requirement(
    requirement: Requirement, demand: Demand, service: LatticeService, fleet: Fleet
) -> ChangeOption | None:
    match requirement.kind:
        case "resource":
            return _lower_request(service, requirement.value, requirement.amount)
        case "latency":
            return _relax_latency(requirement, demand, service, fleet)
        case "spread":
            return _service_skew(requirement, demand, service)
        case "affinity" | "antiAffinity":
            return _drop_affinity(requirement, service)
        case "compliance":
            field, sentence = "compliance", f"do not require compliance {requirement.value}"
        case "capability":
            field, sentence = "capabilities", f"do not require capability {requirement.value}"
        case "residency":
            field, sentence = "dataResidency", f"do not require data residency {requirement.value}"
        case "region":
            field, sentence = "requiredRegions", f"do not require a replica in {requirement.value}"
        case "label":
            field, sentence = "pools", f"do not require pools with {requirement.value}"
        case _:
            return None
    path = f"spec.placement.{field}"
    return single_change(
        change_at_path(service, "team", path, sentence, lambda kind: _without(kind, requirement))
    )


def _without(service: LatticeService, requirement: Requirement) -> LatticeService:
    placement, value = service.spec.placement, requirement.value
    fields: dict[str, Any] = {}
    match requirement.kind:
        case "compliance":
            fields["compliance"] = _excluding(placement.compliance, value)
        case "capability":
            fields["capabilities"] = _excluding(placement.capabilities, value)
        case "residency":
            fields["data_residency"] = ""
        case "region":
            fields["required_regions"] = tuple(
                region for region in placement.required_regions if region != value
            )
        case "label" if placement.pools is not None:
            match_labels = {
                name: label_value
                for name, label_value in placement.pools.match_labels.items()
                if f"{name}={label_value}" != value
            }
            expressions = placement.pools.match_expressions
            fields["pools"] = LabelSelector(
                match_labels, tuple(expression for expression in expressions if str(expression) != value)
            )
    relaxed: LatticeService = with_spec(service, placement=with_fields(placement, **fields))
    return relaxed


def _excluding(words: Sequence[str], value: str) -> tuple[str, ...]:
    return tuple(word for word in words if word.lower() != value)


def _lower_request(service: LatticeService, resource: str, amount: int) -> ChangeOption | None:
    """Return the option to lower the request of one replica, in steps of a milli-core, a mebibyte, a whole
    GPU, a thousandth of a GPU if the request is a share of one, or one unit of another resource.

    The request can go to zero, except for cpu and memory, since a replica needs some of both to run.
    """
    if resource in ("memory", "storage"):
        unit = MIB
    # Whole GPUs are lowered one by one; a share of one GPU is lowered in thousandths.
    elif resource == "gpu" and amount >= MILLI:
        unit = MILLI
    else:
        unit = 1
    steps = -(-amount // unit)

    def build(strength: int) -> ObjectChange:
        lowered = (steps - strength) * unit
        container = _main_container(service, resource)
        path = "spec.containers"
        if not container:
            path = f"spec.placement.resources.{MANIFEST_FIELDS.get(resource, f'extended.{resource}')}"
        elif amount - lowered <= parse_amounts(_requests(service.spec.containers[container])).get(
            resource, 0
        ):
            path = f"spec.containers.{container}.resources.requests.{resource}"
        current_text, lowered_text = format_amount(resource, amount), format_amount(resource, lowered)
        if lowered:
            sentence = f"lower {resource} per replica from {current_text} to {lowered_text}"
        else:
            sentence = f"do not request {resource} ({current_text} per replica)"
        return change_at_path(
            service, "team", path, sentence, lambda kind: _with_amount(kind, resource, lowered)
        )

    # A replica keeps at least one step of cpu and of memory.
    max_strength = steps - 1 if resource in ("cpu", "memory") else steps
    return (
        ChangeOption((*object_key(service), "less", resource), build, max_strength)
        if max_strength > 0
        else None
    )


def _main_container(service: LatticeService, resource: str) -> str:
    """Return the container with the largest request of the resource, or an empty name if the service states
    requests per replica and not per container."""
    requests = {
        name: parse_amounts(_requests(container)) for name, container in service.spec.containers.items()
    }
    if not any(requests.values()):
        return ""
    return max(requests, key=lambda name: (requests[name].get(resource, 0), name))


def _requests(container: Container) -> Mapping[str, Quantity]:
    return container.resources.requests if container.resources else {}


def _with_amount(service: LatticeService, resource: str, lowered: int) -> Any:
    """Return the service with the lower request, in its containers, or in its placement if the service states
    requests per replica and not per container."""
    container = _main_container(service, resource)
    if container:
        return _with_container_amount(service, container, resource, lowered)
    placement = service.spec.placement
    if resource in CLASS_FIELDS:
        # Manifests state cores, GPUs and gibibytes.
        amount = Decimal(lowered) / (MILLI if resource in ("cpu", "gpu") else MIB * 1024)
        resources = with_fields(
            placement.resources, **{CLASS_FIELDS[resource]: amount.normalize() if lowered else Decimal(0)}
        )
    else:
        extended = {name: value for name, value in placement.resources.extended.items() if name != resource}
        resources = with_fields(
            placement.resources, extended={**extended, resource: lowered} if lowered else extended
        )
    return with_spec(service, placement=with_fields(placement, resources=resources))


def _with_container_amount(service: LatticeService, main_container: str, resource: str, lowered: int) -> Any:
    """Return the service with the lower request: the decrease comes from the main container first, and from
    the other containers if it is larger than the request of the main container."""
    containers, decrease = dict(service.spec.containers), service.spec.requests.get(resource, 0) - lowered
    for name in (main_container, *(container for container in containers if container != main_container)):
        own = parse_amounts(_requests(containers[name])).get(resource, 0)
        remaining, decrease = max(0, own - decrease), max(0, decrease - own)
        # A container without a request of the resource stays unchanged.
        if not own:
            continue
        requests = {
            name_in_requests: value
            for name_in_requests, value in _requests(containers[name]).items()
            if name_in_requests != resource
        }
        if remaining:
            requests[resource] = f"{remaining}m" if resource in ("cpu", "gpu") else remaining
        containers[name] = with_fields(
            containers[name], resources=with_fields(containers[name].resources, requests=requests)
        )
    return with_spec(service, containers=containers)


def _relax_latency(
    requirement: Requirement, demand: Demand, service: LatticeService, fleet: Fleet
) -> ChangeOption:
    """Return the option to raise the latency limit, up to the farthest offer with a known latency; if no such
    offer is beyond the limit, the option removes the limit."""
    name, target_rows = (
        requirement.value,
        sorted(set(fleet.replicas.offer_rows(dict(demand.latency_to)[requirement.value]))),
    )
    latencies = (
        [int(latency_ms) for latency_ms in fleet.ms_to_nearest(target_rows) if latency_ms < UNKNOWN_RTT_MS]
        if target_rows
        else []
    )
    farthest = max(latencies, default=0)
    path = "spec.placement.latency"
    # A higher limit would admit no other offer.
    if farthest <= requirement.amount:
        return single_change(
            change_at_path(
                service,
                "team",
                path,
                f"do not limit the latency to {name}",
                lambda kind: _with_latency(kind, name, None),
            )
        )

    def build(strength: int) -> ObjectChange:
        ms = requirement.amount + strength
        sentence = f"allow {ms} ms latency to {name} instead of {requirement.amount} ms"
        return change_at_path(
            service, "team", f"{path}.{name}.maxMs", sentence, lambda kind: _with_latency(kind, name, ms)
        )

    return ChangeOption((*object_key(service), path, name), build, farthest - requirement.amount)


def _with_latency(service: LatticeService, name: str, ms: int | None) -> Any:
    """Set or remove the latency limit; a limit that another change has removed stays removed."""
    latency = dict(service.spec.placement.latency)
    limit = latency.pop(name, None)
    if limit is not None and ms is not None:
        latency[name] = with_fields(limit, max_ms=ms)
    return with_spec(service, placement=with_fields(service.spec.placement, latency=latency))


def _service_skew(requirement: Requirement, demand: Demand, service: LatticeService) -> ChangeOption:
    def build(strength: int) -> ObjectChange:
        skew = requirement.amount + strength

        def rewrite(kind: Any) -> Any:
            spread = tuple(
                with_fields(constraint, max_skew=skew)
                if (constraint.topology_key, constraint.max_skew) == (requirement.value, requirement.amount)
                else constraint
                for constraint in kind.spec.spread
            )
            return with_spec(kind, spread=spread)

        sentence = f"allow skew {skew} over {requirement.value} instead of {requirement.amount}"
        return change_at_path(service, "team", "spec.spread", sentence, rewrite)

    return ChangeOption((*object_key(service), "spread", requirement.value), build, max(1, demand.replicas))


def _drop_affinity(requirement: Requirement, service: LatticeService) -> ChangeOption | None:
    """The option to drop one required affinity term of the service."""
    dropped = requirement.term
    if dropped is None or service.spec.affinity is None:
        return None
    field = "anti_workload" if dropped.is_anti else "workload"

    def rewrite(kind: Any) -> Any:
        terms = getattr(kind.spec.affinity, field)
        remaining = tuple(
            term for term in terms.required if (str(term), term.key) != (dropped.text, dropped.key)
        )
        affinity = with_fields(kind.spec.affinity, **{field: with_fields(terms, required=remaining)})
        return with_spec(kind, affinity=affinity)

    path = f"spec.affinity.{'antiWorkload' if dropped.is_anti else 'workload'}.required"
    verb = "allow" if dropped.is_anti else "do not require"
    sentence = f"{verb} {dropped.text} in the same {dropped.key}"
    return single_change(change_at_path(service, "team", path, sentence, rewrite))


def _relax_policy_requirement(
    requirement: Requirement, demand: Demand, policy: LatticePlacementPolicy
) -> ChangeOption | None:
    name, value = policy.metadata.name, requirement.value
    match requirement.kind:
        case "compliance" | "capability":
            field = "compliance" if requirement.kind == "compliance" else "capabilities"
            sentence = f"do not require {requirement.kind} {value} in policy {name}"
            return single_change(
                _policy_edit(
                    policy,
                    field,
                    sentence,
                    lambda kind: _excluding(getattr(kind.spec.requirements, field), value),
                )
            )
        case "minRegions":
            current = policy.spec.requirements.min_regions

            def build_regions(strength: int) -> ObjectChange:
                regions = requirement.amount - strength
                plural = "s" if regions > 1 else ""
                sentence = f"require {regions} region{plural} instead of {current} in policy {name}"
                return _policy_edit(policy, "min_regions", sentence, lambda _: regions)

            return ChangeOption((*object_key(policy), "minRegions"), build_regions, requirement.amount - 1)
        case "spread":

            def build_skew(strength: int) -> ObjectChange:
                skew = requirement.amount + strength
                sentence = f"allow skew {skew} over {value} instead of {requirement.amount} in policy {name}"
                return _policy_edit(
                    policy,
                    "spread_constraint",
                    sentence,
                    lambda kind: with_fields(kind.spec.requirements.spread_constraint, max_skew=skew),
                )

            return ChangeOption((*object_key(policy), "spread"), build_skew, max(1, demand.replicas))
    return None


def _policy_edit(
    policy: LatticePlacementPolicy, field: str, sentence: str, value: Callable[[Any], Any]
) -> ObjectChange:
    camel = {"min_regions": "minRegions", "spread_constraint": "spreadConstraint"}.get(field, field)

    def rewrite(kind: Any) -> Any:
        return with_spec(kind, requirements=with_fields(kind.spec.requirements, **{field: value(kind)}))

    return change_at_path(policy, "platform", f"spec.requirements.{camel}", sentence, rewrite)


def _fewer_replicas(demand: Demand, service: LatticeService) -> Iterator[ChangeOption]:
    spec = service.spec
    # A replica in each required region, and at least as many replicas as the minimum number of regions.
    min_needed = max(1, len(spec.placement.required_regions), demand.min_regions)
    max_replicas, desired = spec.replicas.max, max(spec.min_replicas, min_needed)
    if spec.min_replicas > min_needed:
        yield ChangeOption(
            (*object_key(service), "replicas"),
            lambda strength: _with_replicas(service, "min", spec.min_replicas, spec.min_replicas - strength),
            spec.min_replicas - min_needed,
        )
    # Regions may demand more replicas than the maximum allows.
    if max_replicas is not None and desired > max_replicas:
        yield single_change(_with_replicas(service, "max", max_replicas, desired))


def _with_replicas(service: LatticeService, bound: str, current: int, changed: int) -> ObjectChange:
    def rewrite(kind: Any) -> Any:
        return with_spec(kind, replicas=with_fields(kind.spec.replicas, **{bound: changed}))

    sentence = (
        f"run {changed:,} replica{'s' if changed != 1 else ''} instead of {current:,}"
        if bound == "min"
        else f"allow {changed:,} replicas instead of {current:,}"
    )
    return change_at_path(service, "team", f"spec.replicas.{bound}", sentence, rewrite)


def _machines(demand: Demand, service: LatticeService, fleet: Fleet) -> Iterator[ChangeOption]:
    """Yield options to accept more machine types: no node selector, no GPU model, or a tolerated taint."""
    placement = service.spec.placement
    if demand.node_selector:
        yield single_change(
            _placement_edit(service, "nodeSelector", "do not require machine labels", node_selector={})
        )
    if demand.gpu_model and demand.needs.get("gpu"):
        resources = with_fields(placement.resources, gpu_model="")
        yield single_change(
            _placement_edit(
                service,
                "resources.gpuModel",
                f"do not require GPUs of model {demand.gpu_model}",
                resources=resources,
            )
        )
    taint_keys: set[str] = set()
    for offer in fleet.offers:
        for machine_type in offer.types:
            # PreferNoSchedule is a preference and rejects no replica.
            taint_keys.update(
                taint.key for taint in machine_type.taints if taint.effect != "PreferNoSchedule"
            )
    for name in sorted(taint_keys)[:MAX_TAINTS_OFFERED]:
        tolerations = (*placement.tolerations, Toleration(key=name, operator="Exists"))
        yield single_change(
            _placement_edit(service, "tolerations", f"tolerate the taint {name}", tolerations=tolerations)
        )


def _placement_edit(service: LatticeService, path: str, sentence: str, **fields: Any) -> ObjectChange:
    def rewrite(kind: Any) -> Any:
        return with_spec(kind, placement=with_fields(kind.spec.placement, **fields))

    return change_at_path(service, "team", f"spec.placement.{path}", sentence, rewrite)


def _size_option(policy: LatticePlacementPolicy, field: str, current: int, max_strength: int) -> ChangeOption:
    if field == "min_nodes":
        sign, manifest_field, phrase = -1, "minNodes", "start clusters with"
    else:
        sign, manifest_field, phrase = 1, "maxNodes", "allow clusters of"

    def build(strength: int) -> ObjectChange:
        changed = current + sign * strength

        def rewrite(kind: Any) -> Any:
            return with_spec(kind, cluster_policy=with_fields(kind.spec.cluster_policy, **{field: changed}))

        sentence = (
            f"{phrase} {changed} node{'s' if changed != 1 else ''} instead of {current}"
            f" in policy {policy.metadata.name}"
        )
        return change_at_path(policy, "platform", f"spec.clusterPolicy.{manifest_field}", sentence, rewrite)

    return ChangeOption((*object_key(policy), field), build, max_strength)
