"""What one container runs, what it asks for, and how one sees that it is well."""

import re
from collections import Counter
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
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}"
_IMAGE_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PATH_COMPONENT}(?:/{_PATH_COMPONENT})*(?::{_TAG})?(?:@{_DIGEST})?"
)


Quantities = dict[str, Quantity]
BYTE_RESOURCES = frozenset({"memory", "storage", "disk", "ephemeral-storage"})  # and hugepages of any size
REPLACE_AFTER_MS = (
    120_000  # a silent node's replicas are replaced after this; a strict single copy must be dead before
)


def image_problem(text: str) -> str:
    """Empty when nothing is wrong."""
    if len(text) <= MAX_IMAGE_CHARS and _IMAGE_REFERENCE.fullmatch(text):
        return ""
    return f'must be the name of an image, such as nginx:1.27 or registry.example/team/web@sha256:…, got "{text[:80]}"'


def resource_parser(name: str) -> Callable[[Quantity], int]:
    """How amounts of a resource are read: cpu and gpu in thousandths, memory and storage in bytes, anything else counted."""
    if name in ("cpu", "gpu"):
        return parse_cores
    return parse_bytes if name in BYTE_RESOURCES or name.startswith("hugepages-") else parse_count


def parse_amounts(quantities: Mapping[str, Quantity]) -> dict[str, int]:
    """Milli-cores, bytes, milli-GPUs and counts by resource name."""
    return {name: resource_parser(name)(value) for name, value in quantities.items()}


def format_amount(resource: str, amount: int) -> str:
    """As people write it: 1500 of cpu is 1500m, 4294967296 of memory 4Gi."""
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
        if name == "gpu" and not wrong_amount and _mixes_whole_and_shared_gpus(parse_cores(value)):
            yield Cause(
                join_path(path, name),
                f"must be a whole number of GPUs, or a part of one below 1, got {value}",
            )


def _mixes_whole_and_shared_gpus(milli_gpus: int) -> bool:
    """One and a half: a part of a GPU may be shared and others are given whole, but nobody gets both."""
    return milli_gpus > MILLI and milli_gpus % MILLI > 0


class ContainerResources(Part):
    """What a container needs at least, and what it may use at most."""

    requests: Annotated[
        Quantities,
        Meta(
            description='Kept free for it, by resource name: cpu "500m", memory "1Gi", storage, gpu, or any extended resource.'
        ),
    ] = {}
    limits: Annotated[
        Quantities, Meta(description="More than this it never gets; at least the request.")
    ] = {}

    def problems(self, path: str) -> Iterator[Cause]:
        yield from limit_problems(self.requests, self.limits, path)


def limit_problems(requests: Quantities, limits: Quantities, path: str) -> Iterator[Cause]:
    """Both lists can be read, and no request is above its limit."""
    wrong = [*amount_problems(requests, f"{path}.requests"), *amount_problems(limits, f"{path}.limits")]
    yield from wrong
    for name in () if wrong else requests.keys() & limits.keys():
        if resource_parser(name)(requests[name]) > resource_parser(name)(limits[name]):
            yield Cause(
                join_path(f"{path}.requests", name),
                f"must be at most the limit ({limits[name]}), got {requests[name]}",
            )


def total_limit_problems(
    requests: Mapping[str, int], limits: Mapping[str, int], path: str
) -> Iterator[Cause]:
    """What is asked for in all is within the limit in all, though one stands with the containers and the other does not."""
    for name in sorted(requests.keys() & limits.keys()):
        if requests[name] > limits[name]:
            asked, most = format_amount(name, requests[name]), format_amount(name, limits[name])
            yield Cause(path, f"ask for {asked} {name} in all: must be at most the limit in all ({most})")


class Port(Part):
    """A port that a container listens on."""

    name: Annotated[
        str,
        Meta(
            description="Name of the port; the number reaches the container as PORT_<NAME>, the first one also as PORT."
        ),
    ]
    port: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=65535,
                description="Fixed number; absent means that a free one is chosen on the node.",
            ),
        ]
        | None
    ) = None
    protocol: Annotated[Literal["TCP", "UDP"], Meta(description="TCP unless it says UDP.")] = "TCP"


class ExecProbe(Part):
    """A command that succeeds when all is well."""

    command: Annotated[
        tuple[str, ...], Meta(min_length=1, description="Program and arguments; exit code 0 is well.")
    ]


class TcpProbe(Part):
    """A port that can be connected to when all is well."""

    port: Annotated[int | str, Meta(description="Number or name of the port.")]


class HttpProbe(Part):
    """A page that answers 2xx or 3xx when all is well."""

    port: Annotated[int | str, Meta(description="Number or name of the port.")]
    path: Annotated[str, Meta(description="Path to ask for; / if absent.")] = "/"


class Probe(Part):
    """One way to ask a container how it is: exec, tcp or http, exactly one of them."""

    exec: Annotated[ExecProbe, Meta(description="Run a command.")] | None = None
    tcp: Annotated[TcpProbe, Meta(description="Open a connection.")] | None = None
    http: Annotated[HttpProbe, Meta(description="Ask for a page.")] | None = None
    initial_delay_seconds: Annotated[int, Meta(ge=0, description="Wait this long after the start.")] = 0
    period_seconds: Annotated[int, Meta(ge=1, description="Ask this often; 10 by default.")] = 10
    timeout_seconds: Annotated[
        int, Meta(ge=1, description="No answer after this long is a failure; 1 by default.")
    ] = 1
    failure_threshold: Annotated[
        int, Meta(ge=1, description="So many failures in a row make it unwell; 3 by default.")
    ] = 3
    success_threshold: Annotated[
        int, Meta(ge=1, description="So many successes in a row make it well again; 1 by default.")
    ] = 1

    def problems(self, path: str, port_names: frozenset[str]) -> Iterator[Cause]:
        given = [name for name in ("exec", "tcp", "http") if getattr(self, name) is not None]
        if len(given) != 1:
            yield Cause(
                path, f"must have exactly one of exec, tcp and http, got {' and '.join(given) or 'none'}"
            )
        for way, probe in (("tcp", self.tcp), ("http", self.http)):
            if probe and (wrong := _port_problem(probe.port, port_names)):
                yield Cause(f"{path}.{way}.port", wrong)


class Probes(Part):
    """How one sees that a container has started, is alive and is ready."""

    startup: Annotated[Probe, Meta(description="Until this succeeds the other two wait.")] | None = None
    liveness: Annotated[Probe, Meta(description="When this fails the container is started anew.")] | None = (
        None
    )
    readiness: (
        Annotated[Probe, Meta(description="While this fails the replica does not count as ready.")] | None
    ) = None


class Container(Part):
    """One program of a service: an image, a command, or a command inside an image."""

    image: Annotated[
        str, Meta(description="Container image; without a command it needs a node with a container runtime.")
    ] = ""
    command: Annotated[
        tuple[str, ...], Meta(description="Program to run; without an image it runs as a plain process.")
    ] = ()
    args: Annotated[
        tuple[str, ...], Meta(description="Arguments after the command, or for the program of the image.")
    ] = ()
    env: Annotated[dict[str, str], Meta(description="Environment variables by name.")] = {}
    ports: Annotated[tuple[Port, ...], LIST_MAP_BY_NAME, Meta(description="Ports that it listens on.")] = ()
    probes: Annotated[Probes, Meta(description="How one sees that it is well.")] | None = None
    resources: Annotated[ContainerResources, Meta(description="What it needs and may use.")] | None = None

    def problems(self, path: str) -> Iterator[Cause]:
        if not self.image and not self.command:
            yield Cause(path, "has neither image nor command: there is nothing to run", "FieldValueRequired")
        if self.image and (wrong := image_problem(self.image)):
            yield Cause(f"{path}.image", wrong)
        yield from self._command_and_env_problems(path)
        if self.resources:
            yield from self.resources.problems(f"{path}.resources")
        yield from self._port_problems(path)
        yield from self._probe_problems(path)

    def _command_and_env_problems(self, path: str) -> Iterator[Cause]:
        """No program can be given a word with a NUL in it."""
        words = [
            (f"{path}.{part}[{index}]", word)
            for part in ("command", "args")
            for index, word in enumerate(getattr(self, part))
        ]
        words += [(join_path(f"{path}.env", name), value) for name, value in self.env.items()]
        yield from (Cause(where, "must not hold a NUL character") for where, word in words if "\0" in word)
        for name in self.env:
            if not name or "=" in name or "\0" in name:
                yield Cause(
                    join_path(f"{path}.env", name),
                    f'name of a variable must not be empty or hold "=", got "{name}"',
                )

    def _port_problems(self, path: str) -> Iterator[Cause]:
        names = Counter(port.name for port in self.ports)
        for index, port in enumerate(self.ports):
            if wrong := dns_label_problem(port.name):
                yield Cause(f"{path}.ports[{index}].name", wrong)
            if names[port.name] > 1 and port.name in (earlier.name for earlier in self.ports[:index]):
                yield Cause(
                    f"{path}.ports[{index}].name", f'is used twice: "{port.name}"', "FieldValueDuplicate"
                )

    def _probe_problems(self, path: str) -> Iterator[Cause]:
        names = frozenset(port.name for port in self.ports)
        for name in ("startup", "liveness", "readiness"):
            probe: Probe | None = getattr(self.probes, name, None)
            if probe:
                yield from probe.problems(f"{path}.probes.{name}", names)


class Disconnect(Part):
    """What becomes of a replica whose node is cut off."""

    policy: Annotated[
        Literal["keep", "stop"],
        Meta(
            description="keep (the default): it runs on and a replacement starts after 2 minutes; stop: never two copies, the node ends it."
        ),
    ] = "keep"
    stop_after: Annotated[
        str, Meta(description="With stop: silence after which the node ends it, below 120s; 90s by default.")
    ] = "90s"

    @property
    def stop_after_ms(self) -> int:
        return parse_millis(self.stop_after)

    def problems(self, path: str) -> Iterator[Cause]:
        wrong = list(quantity_problems(f"{path}.stopAfter", self.stop_after, parse_millis))
        yield from wrong
        if not wrong and not 0 < self.stop_after_ms < REPLACE_AFTER_MS:
            yield Cause(
                f"{path}.stopAfter",
                f"must be above 0s and below 120s, when replacements start, got {self.stop_after}",
            )


def container_problems(containers: Mapping[str, Container], path: str) -> Iterator[Cause]:
    """Each container by itself, GPUs that they ask for together, and fixed ports that two of them fight over."""
    if not containers:
        yield Cause(path, "must have at least one container", "FieldValueRequired")
    wrong_alone = [
        cause for name, container in containers.items() for cause in container.problems(join_path(path, name))
    ]
    yield from wrong_alone
    if not wrong_alone and _mixes_whole_and_shared_gpus(
        milli := total_amounts(containers, "requests").get("gpu", 0)
    ):
        yield Cause(
            path,
            f"must ask for a whole number of GPUs all together, or a part of one below 1, got {format_cores(milli)}",
        )
    taken: dict[tuple[int, str], str] = {}
    for name, container in containers.items():
        if wrong := dns_label_problem(name):
            yield Cause(join_path(path, name), f"name of a container {wrong}")
        for index, port in enumerate(container.ports):
            if port.port is None:
                continue
            holder = taken.setdefault((port.port, port.protocol), f"{name}/{port.name}")
            if holder != f"{name}/{port.name}":
                where = f"{join_path(path, name)}.ports[{index}].port"
                yield Cause(
                    where,
                    f"must be free, but {port.port}/{port.protocol} belongs to {holder} already",
                    "FieldValueDuplicate",
                )


def total_amounts(containers: Mapping[str, Container], part: Literal["requests", "limits"]) -> dict[str, int]:
    """Sum over containers; a limit that one of them lacks is no limit for the whole."""
    each = [parse_amounts(getattr(container.resources, part, {})) for container in containers.values()]
    names = {name for found in each for name in found}
    return {
        name: sum(found.get(name, 0) for found in each)
        for name in sorted(names)
        if part == "requests" or all(name in f for f in each)
    }


def _port_problem(port: int | str, names: frozenset[str]) -> str:
    if isinstance(port, int):
        return "" if 1 <= port <= 65535 else f"must be 1 to 65535, got {port}"
    return (
        ""
        if port in names
        else f'must be a number or the name of a port of this container ({", ".join(sorted(names)) or "none"}), got "{port}"'
    )
