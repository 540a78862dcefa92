"""Containers of a workload: image or command, resources, ports and probes."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import LIST_MAP_BY_NAME, Part
from lattice.kinds.meta.quantity import (
    MILLI,
    Quantity,
    approximate_bytes,
    format_bytes,
    format_cores,
    parse_bytes,
    parse_cores,
    parse_count,
    parse_millis,
    quantity_problems,
)
from lattice.kinds.meta.selector import dns_label_problem, label_key_problem
from lattice.kinds.meta.validator import join_path

MAX_IMAGE_CHARS = 512
_PATH_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_HOST_LABEL}(?:\.{_HOST_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}"
_IMAGE_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PATH_COMPONENT}(?:/{_PATH_COMPONENT})*(?::{_TAG})?(?:@{_DIGEST})?"
)


Quantities = dict[str, Quantity]
# Resources counted in bytes; every hugepages-* resource is counted in bytes as well.
BYTE_RESOURCES = frozenset({"memory", "storage", "disk", "ephemeral-storage"})
# The control plane replaces the replicas of a silent node after this time. With policy `stop` the node has
# stopped the replica earlier, so that two copies never run.
REPLACE_AFTER_MS = 120_000


def image_problem(text: str) -> str:
    """The problem of an image reference; an empty string for a valid reference."""
    if len(text) <= MAX_IMAGE_CHARS and _IMAGE_REFERENCE.fullmatch(text):
        return ""
    return (
        "must be the name of an image, such as nginx:1.27 or registry.example/team/web@sha256:…, "
        f'got "{text[:80]}"'
    )


def resource_parser(name: str) -> Callable[[Quantity], int]:
    """The parser for amounts of a resource: cpu and gpu in thousandths, memory and storage in bytes, other
    resources as counts."""
    if name in ("cpu", "gpu"):
        return parse_cores
    return parse_bytes if name in BYTE_RESOURCES or name.startswith("hugepages-") else parse_count


def parse_amounts(quantities: Mapping[str, Quantity]) -> dict[str, int]:
    """Amounts by resource name, in milli-cores, bytes, milli-GPUs and counts."""
    return {name: resource_parser(name)(value) for name, value in quantities.items()}


def format_amount(resource: str, amount: int) -> str:
    """Format an amount with its unit, as in manifests: 1500 of cpu is 1500m, 4294967296 of memory is 4Gi."""
    if resource in ("cpu", "gpu"):
        return format_cores(amount)
    if resource in BYTE_RESOURCES or resource.startswith("hugepages-"):
        exact = format_bytes(amount)
        return exact if len(exact) <= 7 else approximate_bytes(amount)
    return str(amount)


def amount_problems(quantities: Mapping[str, Quantity], path: str) -> Iterator[Cause]:
    for name, value in quantities.items():
        if wrong := label_key_problem(name):
            yield Cause(join_path(path, name), wrong)
        wrong_amount = list(quantity_problems(join_path(path, name), value, resource_parser(name)))
        yield from wrong_amount
        # An amount that cannot be parsed gets only that problem.
        if name == "gpu" and not wrong_amount and _mixes_whole_and_shared_gpus(parse_cores(value)):
            yield Cause(
                join_path(path, name),
                f"must be a whole number of GPUs, or a part of one GPU below 1, got {value}",
            )


def _mixes_whole_and_shared_gpus(milli_gpus: int) -> bool:
    """Whether a request such as 1.5 GPUs mixes whole and shared GPUs; a workload gets whole GPUs or a part of
    one GPU."""
    return milli_gpus > MILLI and milli_gpus % MILLI > 0


class ContainerResources(Part):
    """Requested resources and limits of a container."""

    requests: Annotated[
        Quantities,
        Meta(
            description=(
                'Amounts reserved for the container, by resource name: cpu "500m", memory "1Gi", '
                "storage, gpu, or any extended resource."
            )
        ),
    ] = {}
    limits: Annotated[
        Quantities, Meta(description="Largest amounts that the container may use; at least the request.")
    ] = {}

    def problems(self, path: str) -> Iterator[Cause]:
        yield from limit_problems(self.requests, self.limits, path)


def limit_problems(requests: Quantities, limits: Quantities, path: str) -> Iterator[Cause]:
    """Problems of requests and limits: amounts that cannot be parsed, and requests above their limit."""
    wrong = [*amount_problems(requests, f"{path}.requests"), *amount_problems(limits, f"{path}.limits")]
    yield from wrong
    # Amounts that cannot be parsed cannot be compared.
    for name in () if wrong else requests.keys() & limits.keys():
        if resource_parser(name)(requests[name]) > resource_parser(name)(limits[name]):
            yield Cause(
                join_path(f"{path}.requests", name),
                f"must be at most the limit ({limits[name]}), got {requests[name]}",
            )


def total_limit_problems(
    requests: Mapping[str, int], limits: Mapping[str, int], path: str
) -> Iterator[Cause]:
    """Problems of total requests above the total limits. The containers may state the requests and the
    workload the limits, or the reverse."""
    for name in sorted(requests.keys() & limits.keys()):
        if requests[name] > limits[name]:
            requested, limit = format_amount(name, requests[name]), format_amount(name, limits[name])
            yield Cause(
                path, f"request {requested} {name} in total: must be at most the total limit ({limit})"
            )


class Port(Part):
    """A port that a container listens on."""

    name: Annotated[
        str,
        Meta(
            description=(
                "Name of the port. The container receives the number as PORT_<NAME>, and the number "
                "of the first port also as PORT."
            )
        ),
    ]
    port: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=65535,
                description="Fixed port number; absent means that Lattice chooses a free port of the node.",
            ),
        ]
        | None
    ) = None
    protocol: Annotated[Literal["TCP", "UDP"], Meta(description="TCP (the default) or UDP.")] = "TCP"


class ExecProbe(Part):
    """A command that exits with code 0 when the container is healthy."""

    command: Annotated[
        tuple[str, ...], Meta(min_length=1, description="Program and arguments; exit code 0 means healthy.")
    ]


class TcpProbe(Part):
    """A port that accepts connections when the container is healthy."""

    port: Annotated[int | str, Meta(description="Number or name of the port.")]


class HttpProbe(Part):
    """An HTTP path that answers 2xx or 3xx when the container is healthy."""

    port: Annotated[int | str, Meta(description="Number or name of the port.")]
    path: Annotated[str, Meta(description="Path to request; / if absent.")] = "/"


class Probe(Part):
    """A health check of a container: exactly one of exec, tcp and http."""

    exec: Annotated[ExecProbe, Meta(description="Run a command.")] | None = None
    tcp: Annotated[TcpProbe, Meta(description="Open a connection.")] | None = None
    http: Annotated[HttpProbe, Meta(description="Request an HTTP path.")] | None = None
    initial_delay_seconds: Annotated[
        int, Meta(ge=0, description="Seconds from the start to the first check; 0 by default.")
    ] = 0
    period_seconds: Annotated[int, Meta(ge=1, description="Seconds between two checks; 10 by default.")] = 10
    timeout_seconds: Annotated[
        int, Meta(ge=1, description="Seconds without an answer after which a check fails; 1 by default.")
    ] = 1
    failure_threshold: Annotated[
        int, Meta(ge=1, description="Failures in a row after which the container is unhealthy; 3 by default.")
    ] = 3
    success_threshold: Annotated[
        int,
        Meta(
            ge=1, description="Successes in a row after which the container is healthy again; 1 by default."
        ),
    ] = 1

    def problems(self, path: str, port_names: frozenset[str]) -> Iterator[Cause]:
        methods = [name for name in ("exec", "tcp", "http") if getattr(self, name) is not None]
        if len(methods) != 1:
            yield Cause(
                path, f"must have exactly one of exec, tcp and http, got {' and '.join(methods) or 'none'}"
            )
        for method, probe in (("tcp", self.tcp), ("http", self.http)):
            if probe is None:
                continue
            port, port_path = probe.port, f"{path}.{method}.port"
            if isinstance(port, int):
                if not 1 <= port <= 65535:
                    yield Cause(port_path, f"must be 1 to 65535, got {port}")
            elif port not in port_names:
                yield Cause(
                    port_path,
                    "must be a number or the name of a port of this container "
                    f'({", ".join(sorted(port_names)) or "none"}), got "{port}"',
                )


class Probes(Part):
    """Checks of whether a container has started, is alive and is ready."""

    startup: (
        Annotated[Probe, Meta(description="The other two probes wait until this probe succeeds.")] | None
    ) = None
    liveness: (
        Annotated[Probe, Meta(description="When this probe fails, the container is restarted.")] | None
    ) = None
    readiness: (
        Annotated[Probe, Meta(description="While this probe fails, the replica is not ready.")] | None
    ) = None


class Container(Part):
    """One program of a replica: an image, a command, or a command inside an image."""

    image: Annotated[str, Meta(description="Container image; it needs a node with a container runtime.")] = ""
    command: Annotated[
        tuple[str, ...],
        Meta(description="Program to run; without an image it runs as a process on the node."),
    ] = ()
    args: Annotated[
        tuple[str, ...],
        Meta(description="Arguments of the command, or of the image's program if there is no command."),
    ] = ()
    env: Annotated[dict[str, str], Meta(description="Environment variables by name.")] = {}
    ports: Annotated[
        tuple[Port, ...], LIST_MAP_BY_NAME, Meta(description="Ports that the container listens on.")
    ] = ()
    probes: Annotated[Probes, Meta(description="Health checks of the container.")] | None = None
    resources: Annotated[ContainerResources, Meta(description="Requested resources and limits.")] | None = (
        None
    )

    @property
    def runtime(self) -> str:
        """The runtime that a node needs for the container."""
        return "container" if self.image else "process"

    def problems(self, path: str) -> Iterator[Cause]:
        if not self.image and not self.command:
            yield Cause(path, "has neither image nor command; set at least one", "FieldValueRequired")
        if self.image and (wrong := image_problem(self.image)):
            yield Cause(f"{path}.image", wrong)
        strings: list[tuple[str, str]] = []
        for part in ("command", "args"):
            strings += [(f"{path}.{part}[{index}]", text) for index, text in enumerate(getattr(self, part))]
        strings += [(join_path(f"{path}.env", name), value) for name, value in self.env.items()]
        # No process accepts a string with a NUL byte.
        for where, text in strings:
            if "\0" in text:
                yield Cause(where, "must not contain a NUL character")
        for name in self.env:
            if not name or "=" in name or "\0" in name:
                yield Cause(
                    join_path(f"{path}.env", name),
                    f'name of a variable must not be empty or contain "=" or a NUL character, got "{name}"',
                )
        if self.resources:
            yield from self.resources.problems(f"{path}.resources")
        names: set[str] = set()
        for index, port in enumerate(self.ports):
            if wrong := dns_label_problem(port.name):
                yield Cause(f"{path}.ports[{index}].name", wrong)
            if port.name in names:
                yield Cause(
                    f"{path}.ports[{index}].name", f'is used twice: "{port.name}"', "FieldValueDuplicate"
                )
            names.add(port.name)
        for name in ("startup", "liveness", "readiness"):
            probe: Probe | None = getattr(self.probes, name, None)
            if probe:
                yield from probe.problems(f"{path}.probes.{name}", frozenset(names))


class Disconnect(Part):
    """What happens to a replica when its node loses the connection to the control plane."""

    policy: Annotated[
        Literal["keep", "stop"],
        Meta(
            description=(
                "keep (the default): the replica keeps running, and a replacement starts after 2 "
                "minutes. stop: the node stops the replica before a replacement starts, so that two "
                "copies never run."
            )
        ),
    ] = "keep"
    stop_after: Annotated[
        str,
        Meta(
            description=(
                "For policy stop: time without contact after which the node stops the replica; below "
                "120s, 90s by default."
            )
        ),
    ] = "90s"

    @property
    def stop_after_ms(self) -> int:
        return parse_millis(self.stop_after)

    def problems(self, path: str) -> Iterator[Cause]:
        wrong = list(quantity_problems(f"{path}.stopAfter", self.stop_after, parse_millis))
        yield from wrong
        # The node must have stopped the copy before the control plane starts a replacement (I-13).
        if not wrong and not 0 < self.stop_after_ms < REPLACE_AFTER_MS:
            yield Cause(
                f"{path}.stopAfter",
                f"must be above 0s and below 120s, the time until a replacement starts, got {self.stop_after}",
            )


def container_problems(containers: Mapping[str, Container], path: str) -> Iterator[Cause]:
    """Problems of each container, of the total of requested GPUs, and of fixed ports that clash."""
    if not containers:
        yield Cause(path, "must have at least one container", "FieldValueRequired")
    wrong_alone: list[Cause] = []
    for name, container in containers.items():
        wrong_alone += container.problems(join_path(path, name))
    yield from wrong_alone
    # The total is known only if every amount can be parsed.
    if not wrong_alone and _mixes_whole_and_shared_gpus(
        milli := total_amounts(containers, "requests").get("gpu", 0)
    ):
        yield Cause(
            path,
            "must request a whole number of GPUs in total, or a part of one GPU below 1, "
            f"got {format_cores(milli)}",
        )
    holders: dict[tuple[int, str], str] = {}
    for name, container in containers.items():
        if wrong := dns_label_problem(name):
            yield Cause(join_path(path, name), f"name of a container {wrong}")
        for index, port in enumerate(container.ports):
            # Without a number Lattice chooses a free port, which cannot clash.
            if port.port is None:
                continue
            holder = holders.setdefault((port.port, port.protocol), f"{name}/{port.name}")
            if holder != f"{name}/{port.name}":
                where = f"{join_path(path, name)}.ports[{index}].port"
                yield Cause(
                    where,
                    f"must be free, but {holder} already uses {port.port}/{port.protocol}",
                    "FieldValueDuplicate",
                )


def total_amounts(containers: Mapping[str, Container], part: Literal["requests", "limits"]) -> dict[str, int]:
    """Total requests or limits of all containers, by resource.

    If one container states no limit for a resource, the resource has no total limit.
    """
    amounts = [parse_amounts(getattr(container.resources, part, {})) for container in containers.values()]
    names: set[str] = set()
    names.update(*amounts)
    return {
        name: sum(container_amounts.get(name, 0) for container_amounts in amounts)
        for name in sorted(names)
        if part == "requests" or all(name in container_amounts for container_amounts in amounts)
    }
