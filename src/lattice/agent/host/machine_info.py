"""The description of a machine for the registration of its agent: capacity, addresses, ports, runtimes and
labels."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lattice.kinds.node import AGENT_LABEL_PREFIX
from lattice.wire import agent_pb2 as pb


@dataclass(frozen=True)
class MachineInfo:
    """The registered facts of a machine, detected or configured."""

    capacity: Mapping[str, int]
    runtimes: Sequence[str]
    port_range: tuple[int, int]
    reserved: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: Sequence[tuple[str, str]] = ()
    gpus: Sequence[str] = ()
    licences: Sequence[str] = ()
    machine_image: str = ""

    def registration(self) -> pb.Registration:
        """The registration message; labels get the prefix for agent labels."""
        return pb.Registration(
            capacity=dict(self.capacity),
            reserved=dict(self.reserved),
            gpus=[pb.Gpu(model=model, milli_free=1000) for model in self.gpus],
            addresses=[pb.Address(type=kind, address=address) for kind, address in self.addresses],
            runtimes=sorted(self.runtimes),
            first_port=self.port_range[0],
            last_port=self.port_range[1],
            labels={
                key if key.startswith(AGENT_LABEL_PREFIX) else f"{AGENT_LABEL_PREFIX}{key}": value
                for key, value in self.labels.items()
            },
            licences=sorted(self.licences),
            machine_image=self.machine_image,
        )


def own_addresses(server: str = "") -> list[tuple[str, str]]:
    """The addresses of the machine: the local address that the kernel uses towards the server, and the host
    name. Other machines most likely reach this machine at that local address."""
    internal = []
    # Connecting a UDP socket makes the kernel choose the local address; no packet is sent.
    with suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(
            server or "127.0.0.1", 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            internal.append(("InternalIP", str(probe.getsockname()[0])))
    return [*internal, ("Hostname", socket.gethostname())]
