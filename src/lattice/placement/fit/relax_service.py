"""What could a service, or a policy that holds for it, ask less of?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from lattice.kinds.constraint import Toleration
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
from lattice.placement.model.rejection_reasons import format_amount
from lattice.placement.model.world import object_key

MAX_TAINTS_OFFERED = 4  # different ones that are offered to be tolerated
MANIFEST_FIELDS = {"cpu": "cores", "memory": "memoryGi", "storage": "storageGi", "gpu": "gpu"}
FIELDS = {"cpu": "cores", "memory": "memory_gi", "storage": "storage_gi", "gpu": "gpu"}


def relaxations(
    demand: Demand, service: LatticeService, policies: Sequence[LatticePlacementPolicy], fleet: Fleet
) -> list[ChangeOption]:
    """Every single way, each as strong as it may get. `policies`: those that hold for it."""
    found: list[ChangeOption] = []
    for each in demand.requirements:
        option = relax_requirement(each, demand, service, policies, fleet)
        if option is not None:
            found.append(option)
    return [
        *found,
        *_fewer_replicas(demand, service),
        *_machines(demand, service, fleet),
        *_cluster_sizes(demand, policies),
    ]


def relax_requirement(
    required: Requirement,
    demand: Demand,
    service: LatticeService,
    policies: Sequence[LatticePlacementPolicy],
    fleet: Fleet,
) -> ChangeOption | None:
    kind, _, name = required.source.partition("/")
    if kind == "policy":
        policy = next((each for each in policies if each.metadata.name == name), None)
        return _relax_policy_requirement(required, demand, policy) if policy else None
    return _relax_service_requirement(required, demand, service, fleet) if kind == "service" else None


# --- requirements of a service ---


def _relax_service_requirement(
    required: Requirement, demand: Demand, service: LatticeService, fleet: Fleet
) -> ChangeOption | None:
    match required.kind:
        case "resource":
            return lower_request(service, required.value, required.amount)
        case "latency":
            return _relax_latency(required, demand, service, fleet)
        case "spread":
            return _service_skew(required, demand, service)
    path, sentence = _removal_path_and_sentence(required)
    if not path:
        return None
    return single_change(
        change_at_path(service, "team", path, sentence, lambda kind: _without(kind, required))
    )


def _removal_path_and_sentence(required: Requirement) -> tuple[str, str]:
    value = required.value
    match required.kind:
        case "compliance":
            return "spec.placement.compliance", f"do not require compliance {value}"
        case "capability":
            return "spec.placement.capabilities", f"do not require capability {value}"
        case "residency":
            return "spec.placement.dataResidency", f"do not require data residency {value}"
        case "region":
            return "spec.placement.requiredRegions", f"do not require a replica in {value}"
        case "label":
            return "spec.placement.pools", f"do not require pools with {value}"
    return "", ""


def _without(service: LatticeService, required: Requirement) -> LatticeService:
    placement, value = service.spec.placement, required.value
    fields: dict[str, Any] = {}
    match required.kind:
        case "compliance":
            fields["compliance"] = _excluding(placement.compliance, value)
        case "capability":
            fields["capabilities"] = _excluding(placement.capabilities, value)
        case "residency":
            fields["data_residency"] = ""
        case "region":
            fields["required_regions"] = tuple(each for each in placement.required_regions if each != value)
        case "label":
            fields["pools"] = _selector_without(placement.pools, value)
    found: LatticeService = with_spec(service, placement=with_fields(placement, **fields))
    return found


def _excluding(words: Sequence[str], value: str) -> tuple[str, ...]:
    return tuple(each for each in words if each.lower() != value)


def _selector_without(selector: LabelSelector | None, value: str) -> LabelSelector | None:
    if selector is None:
        return None
    exact = {name: wanted for name, wanted in selector.match_labels.items() if f"{name}={wanted}" != value}
    return LabelSelector(exact, tuple(each for each in selector.match_expressions if str(each) != value))


def lower_request(service: LatticeService, resource: str, amount: int) -> ChangeOption | None:
    """In steps of a thousandth of a core, a mebibyte, or one; down to nothing, but some cpu and memory it takes to run at all."""
    unit = MIB if resource in ("memory", "storage") else MILLI if resource == "gpu" and amount >= MILLI else 1
    steps = -(-amount // unit)

    def made(strength: int) -> ObjectChange:
        left = (steps - strength) * unit
        path = _amount_path(service, resource, amount - left)
        words = f"lower {resource} of one replica from {format_amount(resource, amount)} to {format_amount(resource, left)}"
        sentence = (
            words if left else f"do not ask for {resource} ({format_amount(resource, amount)} of one replica)"
        )
        return change_at_path(
            service, "team", path, sentence, lambda kind: _with_amount(kind, resource, left)
        )

    most = steps - 1 if resource in ("cpu", "memory") else steps
    return ChangeOption((*object_key(service), "less", resource), made, most) if most > 0 else None


def _amount_path(service: LatticeService, resource: str, less: int) -> str:
    holder = _main_container(service, resource)
    if not holder:
        return f"spec.placement.resources.{MANIFEST_FIELDS.get(resource, f'extended.{resource}')}"
    own = parse_amounts(_requests(service.spec.containers[holder])).get(resource, 0)
    return f"spec.containers.{holder}.resources.requests.{resource}" if less <= own else "spec.containers"


def _main_container(service: LatticeService, resource: str) -> str:
    """The container that asks for most of it; "" if the service asks as a whole."""
    asked = {name: parse_amounts(_requests(each)) for name, each in service.spec.containers.items()}
    if not any(asked.values()):
        return ""
    return max(asked, key=lambda name: (asked[name].get(resource, 0), name))


def _requests(container: Container) -> Mapping[str, Quantity]:
    return container.resources.requests if container.resources else {}


def _with_amount(service: LatticeService, resource: str, left: int) -> LatticeService:
    holder = _main_container(service, resource)
    found: LatticeService = (
        _with_container_amount(service, holder, resource, left)
        if holder
        else _with_service_amount(service, resource, left)
    )
    return found


def _with_service_amount(service: LatticeService, resource: str, left: int) -> Any:
    placement = service.spec.placement
    if resource in FIELDS:
        amount = Decimal(left) / (MILLI if resource in ("cpu", "gpu") else MIB * 1024)
        resources = with_fields(
            placement.resources, **{FIELDS[resource]: amount.normalize() if left else Decimal(0)}
        )
    else:
        extended = {name: value for name, value in placement.resources.extended.items() if name != resource}
        resources = with_fields(
            placement.resources, extended={**extended, resource: left} if left else extended
        )
    return with_spec(service, placement=with_fields(placement, resources=resources))


def _with_container_amount(service: LatticeService, holder: str, resource: str, left: int) -> Any:
    """All of it comes off the container that asks for most; if that is not enough, off the others too."""
    containers, over = dict(service.spec.containers), service.spec.requests.get(resource, 0) - left
    for name in (holder, *(each for each in containers if each != holder)):
        own = parse_amounts(_requests(containers[name])).get(resource, 0)
        kept, over = max(0, own - over), max(0, over - own)
        if not own:
            continue
        requests = {each: value for each, value in _requests(containers[name]).items() if each != resource}
        if kept:
            requests[resource] = f"{kept}m" if resource in ("cpu", "gpu") else kept
        containers[name] = with_fields(
            containers[name], resources=with_fields(containers[name].resources, requests=requests)
        )
    return with_spec(service, containers=containers)


def _relax_latency(
    required: Requirement, demand: Demand, service: LatticeService, fleet: Fleet
) -> ChangeOption:
    """Up to the farthest place that anybody knows the way to; without such, no limit."""
    name, near = required.value, sorted(set(fleet.offer_rows_of(dict(demand.latency_to)[required.value])))
    known = [int(each) for each in fleet.ms_to_nearest(near) if each < UNKNOWN_RTT_MS] if near else []
    farthest = max(known, default=0)
    path = "spec.placement.latency"
    if farthest <= required.amount:
        return single_change(
            change_at_path(
                service,
                "team",
                path,
                f"do not limit the latency to {name}",
                lambda kind: _with_latency(kind, name, None),
            )
        )

    def made(strength: int) -> ObjectChange:
        ms = required.amount + strength
        sentence = f"allow {ms} ms to {name} instead of {required.amount} ms"
        return change_at_path(
            service, "team", f"{path}.{name}.maxMs", sentence, lambda kind: _with_latency(kind, name, ms)
        )

    return ChangeOption((*object_key(service), path, name), made, farthest - required.amount)


def _with_latency(service: LatticeService, name: str, ms: int | None) -> Any:
    """A limit that another change has taken away stays away."""
    latency = dict(service.spec.placement.latency)
    limit = latency.pop(name, None)
    if limit is not None and ms is not None:
        latency[name] = with_fields(limit, max_ms=ms)
    return with_spec(service, placement=with_fields(service.spec.placement, latency=latency))


def _service_skew(required: Requirement, demand: Demand, service: LatticeService) -> ChangeOption:
    def made(strength: int) -> ObjectChange:
        skew = required.amount + strength
        sentence = f"allow skew {skew} over {required.value} instead of {required.amount}"
        return change_at_path(
            service, "team", "spec.spread", sentence, lambda kind: _with_skew(kind, required, skew)
        )

    return ChangeOption((*object_key(service), "spread", required.value), made, max(1, demand.replicas))


def _with_skew(service: LatticeService, required: Requirement, skew: int) -> Any:
    kept = tuple(
        with_fields(each, max_skew=skew)
        if (each.topology_key, each.max_skew) == (required.value, required.amount)
        else each
        for each in service.spec.spread
    )
    return with_spec(service, spread=kept)


# --- requirements of a policy ---


def _relax_policy_requirement(
    required: Requirement, demand: Demand, policy: LatticePlacementPolicy
) -> ChangeOption | None:
    name, value = policy.metadata.name, required.value
    match required.kind:
        case "compliance" | "capability":
            listed = "compliance" if required.kind == "compliance" else "capabilities"
            sentence = f"do not require {required.kind} {value} in policy {name}"
            return single_change(
                _policy_edit(
                    policy,
                    listed,
                    sentence,
                    lambda kind: _excluding(getattr(kind.spec.requirements, listed), value),
                )
            )
        case "minRegions":
            return ChangeOption(
                (*object_key(policy), "minRegions"),
                lambda by: _fewer_regions(policy, required.amount - by),
                required.amount - 1,
            )
        case "spread":
            return ChangeOption(
                (*object_key(policy), "spread"),
                lambda by: _policy_skew(policy, required, required.amount + by),
                max(1, demand.replicas),
            )
    return None


def _policy_edit(
    policy: LatticePlacementPolicy, field: str, sentence: str, value: Callable[[Any], Any]
) -> ObjectChange:
    camel = {"min_regions": "minRegions", "spread_constraint": "spreadConstraint"}.get(field, field)

    def rewrite(kind: Any) -> Any:
        return with_spec(kind, requirements=with_fields(kind.spec.requirements, **{field: value(kind)}))

    return change_at_path(policy, "platform", f"spec.requirements.{camel}", sentence, rewrite)


def _fewer_regions(policy: LatticePlacementPolicy, regions: int) -> ObjectChange:
    name, before = policy.metadata.name, policy.spec.requirements.min_regions
    sentence = f"want {regions} region{'s' if regions > 1 else ''} instead of {before} in policy {name}"
    return _policy_edit(policy, "min_regions", sentence, lambda _: regions)


def _policy_skew(policy: LatticePlacementPolicy, required: Requirement, skew: int) -> ObjectChange:
    sentence = f"allow skew {skew} over {required.value} instead of {required.amount} in policy {policy.metadata.name}"
    return _policy_edit(
        policy,
        "spread_constraint",
        sentence,
        lambda kind: with_fields(kind.spec.requirements.spread_constraint, max_skew=skew),
    )


# --- how many, on which machines, in what clusters ---


def _fewer_replicas(demand: Demand, service: LatticeService) -> Iterator[ChangeOption]:
    spec = service.spec
    floor = max(1, len(spec.placement.required_regions), demand.min_regions)
    most, wanted = spec.replicas.max, max(spec.min_replicas, floor)
    if spec.min_replicas > floor:
        yield ChangeOption(
            (*object_key(service), "replicas"),
            lambda by: _with_replicas(service, "min", spec.min_replicas, spec.min_replicas - by),
            spec.min_replicas - floor,
        )
    if most is not None and wanted > most:
        yield single_change(_with_replicas(service, "max", most, wanted))


def _with_replicas(service: LatticeService, end: str, before: int, after: int) -> ObjectChange:
    def rewrite(kind: Any) -> Any:
        return with_spec(kind, replicas=with_fields(kind.spec.replicas, **{end: after}))

    sentence = (
        f"run {after:,} replica{'s' if after != 1 else ''} instead of {before:,}"
        if end == "min"
        else f"allow {after:,} replicas instead of {before:,}"
    )
    return change_at_path(service, "team", f"spec.replicas.{end}", sentence, rewrite)


def _machines(demand: Demand, service: LatticeService, fleet: Fleet) -> Iterator[ChangeOption]:
    placement = service.spec.placement
    if demand.node_selector:
        yield single_change(
            _placement_edit(
                service, "nodeSelector", "do not require labels of its machines", node_selector={}
            )
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
    barring = {
        taint.key
        for offer in fleet.offers
        for kind in offer.types
        for taint in kind.taints
        if taint.effect != "PreferNoSchedule"
    }
    for name in sorted(barring)[:MAX_TAINTS_OFFERED]:
        more = (*placement.tolerations, Toleration(key=name, operator="Exists"))
        yield single_change(
            _placement_edit(service, "tolerations", f"tolerate the taint {name}", tolerations=more)
        )


def _placement_edit(service: LatticeService, path: str, sentence: str, **fields: Any) -> ObjectChange:
    def rewrite(kind: Any) -> Any:
        return with_spec(kind, placement=with_fields(kind.spec.placement, **fields))

    return change_at_path(service, "team", f"spec.placement.{path}", sentence, rewrite)


def _cluster_sizes(demand: Demand, policies: Sequence[LatticePlacementPolicy]) -> Iterator[ChangeOption]:
    for policy in policies:
        stated = policy.spec.cluster_policy
        if stated is None:
            continue
        least, most = stated.min_nodes or 0, stated.max_nodes
        if least > 1 and least == demand.rules.min_nodes:
            yield _size_option(policy, "min_nodes", least, least - 1)
        more = max(1, demand.rules.min_nodes, demand.replicas) - (most or 0)
        if most is not None and most == demand.rules.max_nodes and more > 0:
            yield _size_option(policy, "max_nodes", most, more)


def _size_option(policy: LatticePlacementPolicy, field: str, before: int, strongest: int) -> ChangeOption:
    sign = -1 if field == "min_nodes" else 1
    return ChangeOption(
        (*object_key(policy), field),
        lambda by: _cluster_size_edit(policy, field, before, before + sign * by),
        strongest,
    )


def _cluster_size_edit(policy: LatticePlacementPolicy, field: str, before: int, after: int) -> ObjectChange:
    end, words = (
        ("minNodes", "begin clusters with") if field == "min_nodes" else ("maxNodes", "allow clusters of")
    )

    def rewrite(kind: Any) -> Any:
        return with_spec(kind, cluster_policy=with_fields(kind.spec.cluster_policy, **{field: after}))

    sentence = f"{words} {after} node{'s' if after != 1 else ''} instead of {before} in policy {policy.metadata.name}"
    return change_at_path(policy, "platform", f"spec.clusterPolicy.{end}", sentence, rewrite)
