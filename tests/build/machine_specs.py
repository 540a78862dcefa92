"""Machines to ask a provider for."""

from lattice.kinds.node_class import MachineSize
from lattice.providers.protocol import MachineSpec


def a_machine_spec(node: str, cluster: str = "rack-001") -> MachineSpec:
    return MachineSpec(node, cluster, "here", "a", "small", MachineSize(1000, 1 << 30, 0, 0, {}))
