"""Cluster groups and reserves: which clusters and machines of the trial fleet accept a demand."""

import numpy as np

from lattice.engine.table import Flags
from lattice.placement.model.demand import Demand, group_name
from lattice.placement.model.inventory import UNCLAIMED_GROUP, ClusterInventory
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.model.offer import NO_LIMIT, OfferTable


class ClusterGroups:
    """The group of a cluster names its rules, its overflow source and its reserve; replicas of a demand run
    only in clusters of the groups that accept the demand."""

    def __init__(self, table: OfferTable, inventory: ClusterInventory) -> None:
        self._table, self._inventory = table, inventory

    def group_of(self, demand: Demand, overflow: str, row: int) -> str:
        """The group of clusters that are created for the demand in the offer."""
        offer = self._table.offers[row].name
        return group_name(demand.rules.hash, overflow, offer if offer in demand.usable_reserves else "")

    def accepting(self, demand: Demand, overflow: str) -> tuple[str, ...]:
        """The groups of clusters that accept the demand, and the group of unclaimed joined machines; a
        service that may use a reserve may join clusters outside of the reserve too."""
        reserves = demand.usable_reserves
        if "reservation" in demand.ignored_limits:
            reserves = reserves.union(self._table.offers_with_reserve)
        groups = tuple(
            group_name(demand.rules.hash, overflow, reserve) for reserve in ("", *sorted(reserves))
        )
        # Overflow goes to machines that Lattice makes.
        return groups if overflow or not self._inventory.unclaimed else (*groups, UNCLAIMED_GROUP)

    def growable(self, demand: Demand, overflow: str, row: int) -> tuple[str, ...]:
        """The groups of clusters that may grow for the demand in the offer; all accepting groups if
        reservations are ignored."""
        if "reservation" in demand.ignored_limits:
            return self.accepting(demand, overflow)
        return (self.group_of(demand, overflow, row),)

    def accepting_machines(self, demand: Demand, overflow: str) -> Flags | None:
        """Mask of the machines in clusters that accept the demand; None if no cluster does."""
        machines = self._inventory.machines
        group_ids = [
            machines.group_ids[name]
            for name in self.accepting(demand, overflow)
            if name in machines.group_ids
        ]
        group = machines.column("group")
        if len(group_ids) > 1:
            return np.isin(group, group_ids)
        return group == group_ids[0] if group_ids else None

    def is_reserved_for_others(self, demand: Demand, row: int) -> bool:
        """Whether the offer has a reserve that the demand may not use."""
        offer = self._table.offers[row]
        return offer.has_reserve and not demand.may_use_reserve(offer.name)

    def unreserved_nodes_left(self, row: int) -> int:
        """Machines that clusters outside of the reserve may still add; negative if the clusters already use
        part of the reserve."""
        offer = self._table.offers[row]
        if not offer.reserved_nodes:
            return NO_LIMIT
        return offer.limits.nodes - offer.reserved_nodes - self._inventory.unreserved_nodes_used[row]

    def unreserved_shortfall(self, demand: Demand, row: int) -> tuple[str, int, int] | None:
        """The first resource of which the offer has too little outside of its reserve for one more replica,
        with the need and what is available; None if there is enough."""
        offer = self._table.offers[row]
        for resource in offer.reserved_amounts:
            need = demand.effective_needs.get(resource, 0)
            available = offer.unreserved(resource) - self._inventory.unentitled_usage[row][resource]
            if need > available:
                return resource, need, available
        return None

    def fits_on_machine(self, demand: Demand, machine: int) -> bool:
        """Whether the machine has the free capacity for one replica and no constraint rejects the machine."""
        machines = self._inventory.machines
        if machines.column("closed")[machine]:
            return False
        for resource, amount in demand.effective_needs.items():
            if int(machines.free(machines.add_resource(resource))[machine]) < amount:
                return False
        if demand.max_per_node and machines.replica_counts[machine][demand.name] >= demand.max_per_node:
            return False
        row, kind = machines.cluster[machine].offer_row, machines.machine_type[machine]
        if demand.refusals and (self._table.offers[row].name, kind.name) in demand.refused_types:
            return False
        if not is_type_allowed(demand, kind):
            return False
        if self.is_reserved_for_others(demand, row) and (
            self.unreserved_nodes_left(row) < 0 or self.unreserved_shortfall(demand, row)
        ):
            return False
        return (
            not (demand.needs.get("gpu") and self._table.offers[row].limits.gpus)
            or self._table.gpu_resource_for(demand, row) != ""
        )
