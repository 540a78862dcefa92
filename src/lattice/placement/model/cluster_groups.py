"""Cluster groups and reserves: which clusters and machines of the trial fleet accept a demand."""

import numpy as np

from lattice.engine.table import Flags
from lattice.placement.affinity.terms import AffinityTerm
from lattice.placement.model.demand import Demand
from lattice.placement.model.inventory import UNCLAIMED_GROUP, Cluster, ClusterInventory, group_name
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.model.offer import NO_LIMIT, OfferTable
from lattice.placement.model.replica_index import ReplicaIndex


class ClusterGroups:
    """The group of a cluster names its rules, its overflow source and its reserve; replicas of a demand run
    only in clusters of the groups that accept the demand."""

    def __init__(self, table: OfferTable, inventory: ClusterInventory, replicas: ReplicaIndex) -> None:
        self._table, self._inventory, self._replicas = table, inventory, replicas

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
        for resource, amount in demand.hosting_needs.items():
            if int(machines.free(machines.add_resource(resource))[machine]) < amount:
                return False
        # The replicas that are there already need their headroom as well.
        replicas = machines.replica_counts[machine][demand.name] if demand.headroom else 0
        for resource, amount in demand.headroom if replicas else ():
            needed = demand.hosting_needs[resource] + replicas * amount
            if int(machines.free(machines.add_resource(resource))[machine]) < needed:
                return False
        if demand.max_per_node and machines.replica_counts[machine][demand.name] >= demand.max_per_node:
            return False
        if demand.local_terms and not self._meets_local_terms(demand, machine):
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

    def is_first_target(self, demand: Demand, term: AffinityTerm) -> bool:
        """Whether the service matches its own affinity term and no replica does yet: the first replica cannot
        be near another one."""
        return demand.name in term.targets and not any(map(self._replicas.count, term.targets))

    def is_waiting_for(self, demand: Demand, term: AffinityTerm) -> bool:
        """Whether the affinity term has no placed target, and the demand does not ignore that."""
        is_placed = any(map(self._replicas.count, term.targets))
        return not is_placed and demand.name not in term.targets

    def _is_met_anywhere(self, demand: Demand, term: AffinityTerm) -> bool:
        """Whether the affinity term restricts no cluster and no machine: the replica is the first target, or no
        target is placed. Then the filter Affinity rejects every offer, unless the demand ignores
        dependencies."""
        return self.is_first_target(demand, term) or self.is_waiting_for(demand, term)

    def _meets_local_terms(self, demand: Demand, machine: int) -> bool:
        """Whether the replicas on the machine and in its cluster meet the terms of the demand; an unclaimed
        machine must have a cluster that may claim it."""
        machines = self._inventory.machines
        cluster, counts = machines.cluster[machine], machines.replica_counts[machine]
        for term in demand.local_terms:
            if term.key != "node":
                continue
            is_near = any(counts[target] for target in term.targets)
            if is_near if term.is_anti else not is_near and not self._is_met_anywhere(demand, term):
                return False
        if cluster.is_unclaimed:
            is_new_allowed = self._meets_cluster_terms(demand, None)
            return is_new_allowed or bool(self.claiming_clusters(demand, cluster.offer_row))
        return self._meets_cluster_terms(demand, cluster)

    def _meets_cluster_terms(self, demand: Demand, cluster: Cluster | None) -> bool:
        """Whether the replicas in the cluster meet the terms of the demand over clusters; None: in a new
        cluster."""
        for term in demand.local_terms:
            if term.key != "cluster":
                continue
            is_near = cluster is not None and any(
                cluster.name in self._replicas.clusters(target) for target in term.targets
            )
            if is_near if term.is_anti else not is_near and not self._is_met_anywhere(demand, term):
                return False
        return True

    def claiming_clusters(self, demand: Demand, row: int) -> list[Cluster]:
        """The clusters that may claim an unclaimed machine of the offer for the demand."""
        names = self._inventory.growable_clusters(row, self.growable(demand, "", row))
        clusters = [self._inventory.clusters[name] for name in names]
        return [cluster for cluster in clusters if self._meets_cluster_terms(demand, cluster)]

    def may_grow(self, demand: Demand, cluster: Cluster) -> bool:
        """Whether a new, empty machine of the cluster meets the affinity terms of the demand."""
        for term in demand.local_terms:
            # An empty machine has no replica to be near to, and none to be apart from.
            if term.key == "node" and not term.is_anti and not self._is_met_anywhere(demand, term):
                return False
        return self._meets_cluster_terms(demand, cluster)

    def may_create_cluster(self, demand: Demand) -> bool:
        """Whether a machine of a new cluster meets the affinity terms of the demand."""
        return all(term.is_anti or self._is_met_anywhere(demand, term) for term in demand.local_terms)
