"""The machine types of all offers as matrices, and the machines that a demand would take of every type in
every offer."""

from collections.abc import Sequence

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.kinds.constraints import Taint
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.model.demand import Demand
from lattice.placement.model.offer import NO_LIMIT, STATIC_MACHINE_TYPE, MachineType, Offer

# A machine without a known price is not free: such a machine is bought only where no priced type is feasible.
UNPRICED_COST = 1 << 60
# A number of machines that is below an integer by less than this counts as the integer.
ROUNDING_TOLERANCE = 1e-9


class MachineCatalog:
    """Sizes and prices of the machine types of all offers as matrices [type, offer]. The second index is the
    row of the offer in the offer table."""

    def __init__(self, offers: Sequence[Offer], first_names: Sequence[str] = ()) -> None:
        """Types in the order of `first_names`, then all other types of the offers."""
        self.type_names = list(first_names) or sorted({kind.name for offer in offers for kind in offer.types})
        self.type_ids = {name: number for number, name in enumerate(self.type_names)}
        for offer in offers:
            for kind in offer.types:
                if kind.name not in self.type_ids:
                    self.type_ids[kind.name] = len(self.type_names)
                    self.type_names.append(kind.name)
        shape = (len(self.type_names), len(offers))
        self.types: list[dict[str, MachineType]] = [
            {machine_type.name: machine_type for machine_type in offer.types} for offer in offers
        ]
        # By offer: the GPU models that the offer counts in total (see `Limits.gpus`), or an empty set.
        self.gpu_models = [frozenset(offer.limits.gpus) for offer in offers]
        self.is_offered: Flags = np.zeros(shape, np.bool_)
        self.rate: Integers = np.zeros(shape, np.int64)
        self.is_priced: Flags = np.zeros(shape, np.bool_)
        self.sizes: dict[str, Integers] = {}
        self.has_taints = False
        for row, types in enumerate(self.types):
            for name, kind in types.items():
                line = self.type_ids[name]
                self.has_taints |= bool(kind.taints)
                self.is_offered[line, row], self.rate[line, row], self.is_priced[line, row] = (
                    True,
                    kind.rate,
                    kind.is_priced,
                )
                for resource, amount in kind.size.items():
                    if resource not in self.sizes:
                        self.sizes[resource] = np.zeros(shape, np.int64)
                    self.sizes[resource][line, row] = min(amount, NO_LIMIT)

    def size(self, resource: str) -> Integers:
        matrix = self.sizes.get(resource)
        return np.zeros(self.is_offered.shape, np.int64) if matrix is None else matrix

    def allowed_types(self, demand: Demand) -> Flags:
        """The machine types that a replica may run on, by labels, taints and GPU model."""
        allowed = self.is_offered.copy()
        if not demand.node_selector and not demand.gpu_model and not self.has_taints:
            return allowed
        for row, types in enumerate(self.types):
            for name, kind in types.items():
                if not is_type_allowed(demand, kind) or not offers_gpu_model(demand, self.gpu_models[row]):
                    allowed[self.type_ids[name], row] = False
        return allowed


def is_type_allowed(demand: Demand, kind: MachineType) -> bool:
    if any(kind.labels.get(key) != value for key, value in demand.node_selector):
        return False
    return matches_gpu_model(demand, kind) and not untolerated_taints(demand, kind)


def untolerated_taints(demand: Demand, kind: MachineType) -> list[Taint]:
    """Taints that keep a replica off machines of a class."""
    strict = (taint for taint in kind.taints if taint.effect in ("NoSchedule", "NoExecute"))
    return [
        taint for taint in strict if not any(toleration.tolerates(taint) for toleration in demand.tolerations)
    ]


def matches_gpu_model(demand: Demand, kind: MachineType) -> bool:
    """Whether the machine type has the GPU model of the demand; a type without a model does not match.

    A static machine type always matches: its offer limits GPUs by model for the whole offer, not per machine.
    """
    return (
        not demand.gpu_model
        or not demand.needs.get("gpu")
        or kind.name == STATIC_MACHINE_TYPE
        or kind.gpu_model == demand.gpu_model
    )


def offers_gpu_model(demand: Demand, models: frozenset[str]) -> bool:
    """Whether the offer counts the GPU model of the demand; an offer that counts no models passes."""
    return not models or not demand.gpu_model or not demand.needs.get("gpu") or demand.gpu_model in models


class MachineFit:
    """The figures of one demand shape that no placement changes: feasible types, replicas per machine, and
    the price of all replicas."""

    def __init__(self, catalog: MachineCatalog, demand: Demand) -> None:
        needs = demand.hosting_needs
        self.allowed = catalog.allowed_types(demand)
        self.can_host: Flags = self.allowed.copy()
        per_machine: Integers = np.full(
            self.can_host.shape, demand.max_per_node or max(1, demand.replicas), np.int64
        )
        for resource, amount in needs.items():
            size = catalog.size(resource)
            self.can_host &= size >= amount
            np.minimum(per_machine, size // max(1, amount), out=per_machine)
        np.maximum(per_machine, 1, out=per_machine)
        self.replicas_per_machine = per_machine
        machines = np.maximum(
            -(-max(1, demand.replicas) // per_machine), _machines_below_threshold(catalog, demand)
        )
        self.machine_count: Integers = machines
        price = np.where(catalog.is_priced, machines * catalog.rate, UNPRICED_COST)
        self.total_rate: Integers = np.where(self.can_host, price, NO_LIMIT)


def _machines_below_threshold(catalog: MachineCatalog, demand: Demand) -> Integers:
    """Machines of a type for all replicas, if the cluster grows as soon as its utilisation passes the packing
    threshold."""
    least = np.ones(catalog.is_offered.shape, np.int64)
    previous_replicas = max(0, demand.replicas - 1)
    packing = max(1, demand.rules.packing_millionths) / MILLIONTHS
    for resource in ("cpu", "memory"):
        amount, size = demand.effective_needs.get(resource, 0), catalog.size(resource)
        share = np.where(size > 0, amount / np.maximum(1, size), 0.0)
        np.maximum(
            least,
            np.floor(
                np.minimum(previous_replicas, previous_replicas * share / packing + ROUNDING_TOLERANCE)
            ).astype(np.int64)
            + 1,
            out=least,
        )
    return least
