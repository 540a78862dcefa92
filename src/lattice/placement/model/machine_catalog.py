"""Which classes of machines would do for a service in each offer, how many replicas does one hold, and what would all of them cost?"""

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.kinds.constraint import Taint
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import MILLIONTHS, Fleet
from lattice.placement.model.offer import NO_LIMIT, STATIC_MACHINE_TYPE, MachineType

UNPRICED_COST = (
    1 << 60
)  # what has no known price is not free: it is taken only where nothing with a price would do
ROUNDING_TOLERANCE = 1e-9  # below a whole number of machines: counts as that number


class MachineCatalog:
    """The classes of all offers as matrices: a line a class, a column an offer."""

    def __init__(self, fleet: Fleet) -> None:
        self.type_names = list(fleet.type_ids)
        shape = (len(self.type_names), fleet.table.count)
        self.types: list[dict[str, MachineType]] = [
            {each.name: each for each in offer.types} for offer in fleet.offers
        ]
        self.gpu_models = [
            frozenset(offer.limits.gpus) for offer in fleet.offers
        ]  # of places that count their GPUs as a whole
        self.is_offered: Flags = np.zeros(shape, np.bool_)
        self.rate: Integers = np.zeros(shape, np.int64)
        self.is_priced: Flags = np.zeros(shape, np.bool_)
        self.sizes: dict[str, Integers] = {}
        self.has_taints = any(each.taints for types in self.types for each in types.values())
        for row, types in enumerate(self.types):
            for name, each in types.items():
                line = fleet.type_ids[name]
                self.is_offered[line, row], self.rate[line, row], self.is_priced[line, row] = (
                    True,
                    each.rate,
                    each.is_priced,
                )
                for resource, amount in each.size.items():
                    self._size_matrix(resource)[line, row] = min(amount, NO_LIMIT)

    def _size_matrix(self, resource: str) -> Integers:
        found = self.sizes.get(resource)
        if found is None:
            found = self.sizes[resource] = np.zeros(self.is_offered.shape, np.int64)
        return found

    def size(self, resource: str) -> Integers:
        found = self.sizes.get(resource)
        return np.zeros(self.is_offered.shape, np.int64) if found is None else found

    def allowed_types(self, demand: Demand) -> Flags:
        """Classes that a replica may run on, by their labels, taints and GPU model."""
        allowed = self.is_offered.copy()
        if not demand.node_selector and not demand.gpu_model and not self.has_taints:
            return allowed
        for row, types in enumerate(self.types):
            for name, each in types.items():
                if not is_type_allowed(demand, each) or not offers_gpu_model(demand, self.gpu_models[row]):
                    allowed[self.type_names.index(name), row] = False
        return allowed


def is_type_allowed(demand: Demand, kind: MachineType) -> bool:
    if any(kind.labels.get(key) != value for key, value in demand.node_selector):
        return False
    return matches_gpu_model(demand, kind) and not untolerated_taints(demand, kind)


def untolerated_taints(demand: Demand, kind: MachineType) -> list[Taint]:
    """Taints that keep a replica off machines of a class."""
    strict = (taint for taint in kind.taints if taint.effect in ("NoSchedule", "NoExecute"))
    return [taint for taint in strict if not any(each.tolerates(taint) for each in demand.tolerations)]


def matches_gpu_model(demand: Demand, kind: MachineType) -> bool:
    """A model that nobody names is not the one that is wanted; what is owned is counted by model for the place as a whole."""
    return (
        not demand.gpu_model
        or not demand.needs.get("gpu")
        or kind.name == STATIC_MACHINE_TYPE
        or kind.gpu_model == demand.gpu_model
    )


def offers_gpu_model(demand: Demand, models: frozenset[str]) -> bool:
    return not models or not demand.gpu_model or not demand.needs.get("gpu") or demand.gpu_model in models


class MachineFit:
    """What never changes for a shape: which classes serve in each offer, how many replicas one holds, and what all of them would cost."""

    def __init__(self, catalogue: MachineCatalog, demand: Demand) -> None:
        needs = demand.effective_needs
        self.allowed = catalogue.allowed_types(demand)
        self.can_host: Flags = self.allowed.copy()
        per: Integers = np.full(self.can_host.shape, demand.max_per_node or max(1, demand.replicas), np.int64)
        for resource, amount in needs.items():
            size = catalogue.size(resource)
            self.can_host &= size >= amount
            np.minimum(per, size // max(1, amount), out=per)
        np.maximum(per, 1, out=per)
        self.replicas_per_machine = per  # replicas on one machine
        machines = np.maximum(
            -(-max(1, demand.replicas) // per), _machines_below_threshold(catalogue, demand)
        )
        self.machine_count: Integers = machines
        price = np.where(catalogue.is_priced, machines * catalogue.rate, UNPRICED_COST)
        self.total_rate: Integers = np.where(self.can_host, price, NO_LIMIT)


def _machines_below_threshold(catalogue: MachineCatalog, demand: Demand) -> Integers:
    """Machines of each class for all replicas, when the cluster is grown rather than filled as soon as it is past its threshold."""
    least = np.ones(catalogue.is_offered.shape, np.int64)
    others, packing = max(0, demand.replicas - 1), max(1, demand.rules.packing) / MILLIONTHS
    for resource in ("cpu", "memory"):
        amount, size = demand.effective_needs.get(resource, 0), catalogue.size(resource)
        share = np.where(size > 0, amount / np.maximum(1, size), 0.0)
        np.maximum(
            least,
            np.floor(np.minimum(others, others * share / packing + ROUNDING_TOLERANCE)).astype(np.int64) + 1,
            out=least,
        )
    return least
