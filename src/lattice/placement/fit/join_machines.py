"""Options to join machines to a pool whose provider creates none, and their trial."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import LatticeNode, NodeGpu, NodeSpec, NodeStatus
from lattice.placement.inputs.joined_machines import claimed_class
from lattice.placement.inputs.price_book import Price
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import (
    ChangeOption,
    ObjectChange,
    RejectedCandidate,
    single_change,
    to_json_value,
)
from lattice.placement.model.offer import MachineType, Offer
from lattice.placement.model.world import object_key
from lattice.placement.plugins.rejection_reasons import format_amount

# Limit of machines in one suggestion.
MAX_MACHINES = 3


def join_options(candidate: RejectedCandidate) -> list[ChangeOption]:
    """Return the options to join machines that hold all replicas without a place: one machine, unless the
    service limits the replicas on one machine. An empty list if that takes too many machines."""
    demand, offer = candidate.demand, candidate.offer
    missing = max(1, demand.replicas - candidate.fleet.replicas.count(demand.name))
    per_machine = min(missing, demand.max_per_node or missing)
    machines = -(-missing // per_machine)
    if machines > MAX_MACHINES:
        return []
    size = {name: amount * per_machine for name, amount in demand.effective_needs.items()}
    nouns = {"gpu": f"{demand.gpu_model} gpu".strip()}
    amounts = " and ".join(
        f"{format_amount(name, amount)} {nouns.get(name, name)}" for name, amount in size.items()
    )
    options = []
    for number in range(1, machines + 1):
        noun = "a machine" if number == 1 else f"machine {number}"
        node = _joined_node(f"{offer.name}-machine-{number}", offer, size, demand.gpu_model)
        sentence = (
            f"join {noun} with at least {amounts} to {offer.name} "
            f"(`lattice tokens create --pool {offer.name}`)"
        )
        change = ObjectChange(
            "platform",
            object_key(node),
            "status.allocatable",
            None,
            to_json_value(node.status.allocatable),
            sentence,
            lambda _, node=node: node,  # type: ignore[misc]
        )
        options.append(single_change(change))
    return options


def _joined_node(name: str, offer: Offer, size: dict[str, int], gpu_model: str) -> LatticeNode:
    """The node of a machine that could join; no controller writes it."""
    resource = LatticeNode.resource
    gpus = (NodeGpu(model=gpu_model or "any"),) * -(-size.get("gpu", 0) // 1000)
    return LatticeNode(
        api_version=resource.api_version,
        kind=resource.kind,
        metadata=Metadata(name=name),
        spec=NodeSpec(pool=offer.name),
        status=NodeStatus(allocatable=size, gpus=gpus),
    )


def offers_with_joined(fleet: Fleet, nodes: Sequence[LatticeNode], offers: Iterable[Offer]) -> list[Offer]:
    """The offers, and the pools of the nodes with as many machines of their size; such a machine costs
    nothing."""
    changed = {offer.name: offer for offer in offers}
    for node in nodes:
        row = fleet.row(node.spec.pool)
        offer = changed.get(node.spec.pool, fleet.offers[row])
        models = {gpu.model for gpu in node.status.gpus}
        kind = MachineType(
            claimed_class(node),
            dict(node.status.allocatable),
            0,
            Price(0, "owned", ""),
            models.pop() if len(models) == 1 else "",
        )
        present_types = {offered.name for offered in offer.types}
        present = int(fleet.table.allocated(fleet.table.resource_index["nodes"])[row])
        added = sum(joined.spec.pool == offer.name for joined in nodes)
        changed[offer.name] = replace(
            offer,
            types=offer.types if kind.name in present_types else (*offer.types, kind),
            limits=replace(offer.limits, nodes=present + added),
        )
    return [changed[name] for name in sorted(changed)]
