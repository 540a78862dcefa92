"""The machine types of all offers as matrices, and the machines that a demand would take of every type in
every offer."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.kinds.constraints import Taint
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.model.demand import Demand
from lattice.placement.model.offer import NO_LIMIT, RUNTIMES, STATIC_MACHINE_TYPE, MachineType, Offer

# A machine without a known price is not free: such a machine is bought only where no priced type is feasible.
UNPRICED_COST = 1 << 60
# A mix has at most so many machines of the large type fewer than fit.
MAX_MIX_STEPS = 8
# A number of machines that is below an integer by less than this counts as the integer.
ROUNDING_TOLERANCE = 1e-9


class MachineCatalog:
    """Sizes and prices of the machine types of all offers as matrices [type, offer]. The second index is the
    row of the offer in the offer table."""

    def __init__(self, offers: Sequence[Offer], first_names: Sequence[str] = ()) -> None:
        """Types in the order of `first_names`, then all other types of the offers."""
        tie_keys: dict[str, int] = {}
        for offer in offers:
            for kind in offer.types:
                tie_keys.setdefault(kind.name, kind.tie_key)
        self.type_names = list(first_names) or sorted(tie_keys, key=lambda name: (tie_keys[name], name))
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
        self.offer_names = [offer.name for offer in offers]
        # By offer: the GPU models that the offer counts in total (see `Limits.gpus`), or an empty set.
        self.gpu_models = [frozenset(offer.limits.gpus) for offer in offers]
        # Offers with equal machine types have the same group: a purchase is planned once per group.
        groups: dict[object, int] = {}
        self.type_groups: list[int] = [
            groups.setdefault(
                (self.gpu_models[row], *((kind.name, kind.tie_key, kind.rate) for kind in offer.types)),
                len(groups),
            )
            for row, offer in enumerate(offers)
        ]
        self.is_offered: Flags = np.zeros(shape, np.bool_)
        self.rate: Integers = np.zeros(shape, np.int64)
        self.is_priced: Flags = np.zeros(shape, np.bool_)
        self.sizes: dict[str, Integers] = {}
        self.has_taints = False
        # By runtime: the types whose machines lack it. Empty if no type states its runtimes.
        self.lacking_runtime: dict[str, Flags] = {}
        # Whether the real machines of some type have less than its class states.
        self.has_promises = any(kind.promised for types in self.types for kind in types.values())
        for row, types in enumerate(self.types):
            for name, kind in types.items():
                line = self.type_ids[name]
                self.has_taints |= bool(kind.taints)
                if kind.runtimes is not None:
                    for runtime in RUNTIMES:
                        lacking = self.lacking_runtime.setdefault(runtime, np.zeros(shape, np.bool_))
                        lacking[line, row] = runtime not in kind.runtimes
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

    def promised_offers(self, demand: Demand) -> Flags:
        """Offers with a machine type that fits a replica as stated, and whose real machines have less or
        refused the replica."""
        promised: Flags = np.zeros(len(self.types), np.bool_)
        for row, types in enumerate(self.types):
            for name, kind in types.items():
                is_refused = (self.offer_names[row], name) in demand.refused_types
                if is_refused or kind.promised is not None:
                    promised[row] |= fits_empty_machine(demand, kind.promised or kind)
        return promised

    def allowed_types(self, demand: Demand) -> Flags:
        """The machine types that a replica may run on, by labels, taints, GPU model and runtimes, without the
        types whose machines refused the replica."""
        allowed = self.is_offered.copy()
        for runtime in demand.runtimes:
            if runtime in self.lacking_runtime:
                allowed &= ~self.lacking_runtime[runtime]
        for row, types in enumerate(self.types) if demand.refusals else ():
            for name in types:
                if (self.offer_names[row], name) in demand.refused_types:
                    allowed[self.type_ids[name], row] = False
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
    return (
        matches_gpu_model(demand, kind)
        and not missing_runtimes(demand, kind)
        and not untolerated_taints(demand, kind)
    )


def missing_runtimes(demand: Demand, kind: MachineType) -> frozenset[str]:
    """The runtimes that the replica needs and machines of the type do not have."""
    return frozenset() if kind.runtimes is None else demand.runtimes - kind.runtimes


def fits_empty_machine(demand: Demand, kind: MachineType) -> bool:
    """Whether one replica fits on an empty machine of the type."""
    return is_type_allowed(demand, kind) and all(
        kind.size.get(resource, 0) >= amount for resource, amount in demand.effective_needs.items()
    )


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
        # Offers that would have a feasible type if its machines had the runtime; None: runtimes reject none.
        self.lacks_only_runtime: Flags | None = None
        if any(runtime in catalog.lacking_runtime for runtime in demand.runtimes):
            large = catalog.allowed_types(replace(demand, runtimes=frozenset()))
            for resource, amount in needs.items():
                large &= catalog.size(resource) >= amount
            without_runtime: Flags = np.logical_or.reduce(large, axis=0)
            self.lacks_only_runtime = without_runtime
        # Offers that would have a feasible type if the real machines were as stated; None: all machines are.
        self.lacks_only_promise: Flags | None = None
        if catalog.has_promises or demand.refusals:
            self.lacks_only_promise = catalog.promised_offers(demand)
        machines = np.maximum(
            -(-max(1, demand.replicas) // per_machine), _machines_below_threshold(catalog, demand)
        )
        self.machine_count: Integers = machines
        price = np.where(catalog.is_priced, machines * catalog.rate, UNPRICED_COST)
        self.total_rate: Integers = np.where(self.can_host, price, NO_LIMIT)
        self._catalog, self._demand = catalog, demand
        hosts = self.can_host & catalog.is_priced
        # Whether the best type for the next machine may depend on the number of replicas that are missing.
        self.has_choice = demand.replicas > 1 and bool((hosts.sum(axis=0) > 1).any())
        self._candidates: dict[int, list[_Candidate]] = {}
        self._purchases: dict[tuple[int, int], Purchase] = {}
        self._mixed_rates: Integers | None = None

    def mixed_rates(self) -> Integers:
        """The lowest price of all replicas by offer if machines may have two types; NO_LIMIT without a type."""
        if self._mixed_rates is None:
            groups = self._catalog.type_groups
            by_group = {
                group: self.purchase(row, self._demand.replicas).rate for row, group in _first_rows(groups)
            }
            self._mixed_rates = np.array([by_group[group] for group in groups], np.int64)
        return self._mixed_rates

    def purchase(self, row: int, replicas: int) -> "Purchase":
        """The cheapest machines for so many replicas in the offer."""
        key = (self._catalog.type_groups[row], replicas)
        if key not in self._purchases:
            if key[0] not in self._candidates:
                # The types of the offer that no other type dominates, cheapest first.
                catalog, needs = self._catalog, self._demand.effective_needs
                candidates = []
                for type_id in np.flatnonzero(self.can_host[:, row] & catalog.is_priced[:, row]).tolist():
                    shares = []
                    for resource in ("cpu", "memory"):
                        size = int(catalog.size(resource)[type_id, row])
                        shares.append(needs.get(resource, 0) / size if 0 < size < NO_LIMIT else 0.0)
                    fitting = int(self.replicas_per_machine[type_id, row])
                    candidates.append(
                        _Candidate(int(catalog.rate[type_id, row]), fitting, max(shares), type_id)
                    )
                useful: list[_Candidate] = []
                for candidate in sorted(
                    candidates, key=lambda kind: (kind.rate, kind.share, -kind.fitting, kind.type_id)
                ):
                    if not any(
                        rival.fitting >= candidate.fitting and rival.share <= candidate.share
                        for rival in useful
                    ):
                        useful.append(candidate)
                self._candidates[key[0]] = useful
            packing = max(1, self._demand.rules.packing_millionths) / MILLIONTHS
            self._purchases[key] = _cheapest_purchase(self._candidates[key[0]], replicas, packing)
        return self._purchases[key]


class _Candidate(NamedTuple):
    """A machine type for one demand."""

    rate: int
    # Replicas that fit on one machine.
    fitting: int
    # The larger share of cpu or memory that one replica takes of a machine.
    share: float
    type_id: int

    def machines_for(self, replicas: int, packing: float) -> int:
        """Machines for the replicas if the cluster grows as soon as its utilisation passes the packing
        threshold."""
        below = math.floor(min(replicas - 1, (replicas - 1) * self.share / packing) + ROUNDING_TOLERANCE)
        return max(-(-replicas // self.fitting), below + 1)

    def replicas_below_threshold(self, machines: int, packing: float) -> int:
        """Replicas on the machines when the cluster grows by the next machine."""
        most = machines * self.fitting
        if not self.share:
            return most
        return min(most, math.ceil(machines * packing / self.share - ROUNDING_TOLERANCE))


class Purchase(NamedTuple):
    """The machines for a number of replicas: so many of one type, then of a smaller type for the rest. A type
    of -1: there is none."""

    rate: int
    type_id: int
    machines: int
    rest_type_id: int


def _cheapest_purchase(candidates: Sequence[_Candidate], replicas: int, packing: float) -> Purchase:
    """The cheapest machines for the replicas: of one type, or of a large type and a smaller type for the
    rest. Equal prices go to one type, and to the cheaper machine."""
    best = Purchase(NO_LIMIT, -1, 0, -1)
    for candidate in candidates:
        count = candidate.machines_for(replicas, packing)
        if candidate.rate * count < best.rate:
            best = Purchase(candidate.rate * count, candidate.type_id, count, candidate.type_id)
    for large in candidates:
        full = replicas // large.fitting
        for count in range(max(1, full - MAX_MIX_STEPS), full + 1):
            # The small type takes the replicas that come after the large machines have reached the threshold.
            remaining = replicas - large.replicas_below_threshold(count, packing)
            if remaining <= 0:
                continue
            for small in candidates:
                if small.fitting >= large.fitting:
                    continue
                # The utilisation of the whole cluster counts for the threshold.
                used = (replicas - 1) * small.share / packing
                provided = count * small.share / large.share if large.share else used
                by_threshold = math.floor(min(remaining - 1, used - provided) + ROUNDING_TOLERANCE) + 1
                machines = max(-(-remaining // small.fitting), by_threshold)
                rate = large.rate * count + small.rate * machines
                if rate < best.rate:
                    best = Purchase(rate, large.type_id, count, small.type_id)
    return best


def _first_rows(groups: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first row of every group."""
    listed: set[int] = set()
    for row, group in enumerate(groups):
        if group not in listed:
            listed.add(group)
            yield row, group


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
