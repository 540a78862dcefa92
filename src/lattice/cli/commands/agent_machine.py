"""The options of `lattice agent`, and what the agent reports about its machine: detected, from the machine file,
or from flags."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice.errors import LatticeError, UsageError

if TYPE_CHECKING:
    from lattice.agent.host.machine_file import MachineFacts
    from lattice.agent.host.machine_info import MachineInfo


# What the agent measures, and the flag that overrides the measurement.
FLAGS_OF_MEASURED_RESOURCES = {
    "cpu": "--cpu",
    "memory": "--memory",
    "storage": "--disk",
    "ephemeral-storage": "--disk",
    "gpu": "--gpu",
}


@dataclass(frozen=True)
class AgentOptions:
    """The options of `lattice agent`."""

    # One or several URLs, separated by commas.
    server: str
    server_file: str
    token: str
    data_dir: str
    name: str
    runtime: str
    cpu: str
    memory: str
    disk: str
    gpus: tuple[str, ...]
    gpu_model: str
    detect: bool
    extended: tuple[str, ...]
    licences: tuple[str, ...]
    machine_image: str
    machine_file: str
    reserve: tuple[str, ...]
    labels: tuple[str, ...]
    ports: str
    address: str
    grace: float
    stop_on_exit: bool
    clear: bool
    leave: bool


def read_machine(
    options: AgentOptions,
    folder: Path,
    runtimes: tuple[str, ...],
    ports: tuple[int, int],
    root: Path = Path("/"),
) -> "MachineInfo":
    """The machine as its agent registers it. Flags win over the machine file, both win over detection of devices
    under `root`."""
    from urllib.parse import urlsplit

    from lattice.agent.host.devices import detect_gpus, detect_huge_pages
    from lattice.agent.host.machine_info import MachineInfo, own_addresses
    from lattice.agent.host.usage import capacity
    from lattice.agent.join import split_servers
    from lattice.kinds.container import resource_parser
    from lattice.kinds.node import AGENT_LABEL_PREFIX

    machine_capacity = capacity(folder)
    resources = {
        "cpu": machine_capacity["cpu"],
        "memory": machine_capacity["memory"],
        "storage": machine_capacity["disk"],
    }
    for flag, name, text in (
        ("--cpu", "cpu", options.cpu),
        ("--memory", "memory", options.memory),
        ("--disk", "storage", options.disk),
    ):
        if text:
            resources[name] = _amount(flag, resource_parser(name), text)
    # The same disk, under the name that containers request it by.
    resources["ephemeral-storage"] = resources["storage"]
    facts = _read_machine_file(options.machine_file)
    if options.detect:
        huge_pages = detect_huge_pages(root)
        resources |= huge_pages
        if not options.memory:
            # The kernel has taken reserved huge pages out of the memory that other programs can use.
            resources["memory"] -= sum(huge_pages.values())
    extended = dict(facts.extended) | _pairs("--extended", options.extended)
    for name, text in extended.items():
        if measured := FLAGS_OF_MEASURED_RESOURCES.get(name):
            raise UsageError(
                f"{name} is no extended resource", where="--extended", fix=f"state it with {measured}"
            )
        resources[name] = _amount("--extended", resource_parser(name), text)
    gpus = parse_gpus(options.gpus, options.gpu_model)
    if gpus is None:
        gpus = detect_gpus(root) if options.detect else ()
        gpus = (options.gpu_model,) * len(gpus) if options.gpu_model else gpus
    # GPUs are counted in thousandths, like cores.
    if gpus:
        resources["gpu"] = 1000 * len(gpus)
    reserved = _reserved(_pairs("--reserve", options.reserve))
    labels = dict(facts.labels) | _pairs("--label", options.labels)
    for key in labels:
        if "/" in key and not key.startswith(AGENT_LABEL_PREFIX):
            fix = f"omit the prefix (Lattice adds {AGENT_LABEL_PREFIX}), or set the label on the join token"
            raise UsageError(f"an agent may not set label {key}", where="--label", fix=fix)
    host = urlsplit(split_servers(options.server)[0]).hostname or ""
    addresses = [("InternalIP", options.address)] if options.address else own_addresses(host)
    return MachineInfo(
        resources,
        runtimes,
        ports,
        reserved,
        labels,
        addresses,
        gpus,
        options.licences or facts.licences,
        options.machine_image or facts.machine_image,
    )


def parse_gpus(words: Iterable[str], model: str) -> tuple[str, ...] | None:
    """The models of the GPUs that `--gpu` states; None if the flag is absent, so that GPUs are detected."""
    models: list[str] = []
    stated = list(words)
    for word in stated:
        name, equals, count = word.partition("=")
        if word == "none":
            if len(stated) > 1:
                raise UsageError("none excludes every other --gpu", where="--gpu", fix="omit the others")
        elif equals or word.isdigit():
            name, count = (name, count) if equals else (model, word)
            if not name or not count.isdigit():
                fix = "write MODEL=COUNT, such as nvidia-a100=2, or a count with --gpu-model"
                raise UsageError(f"{word!r} states no model and count", where="--gpu", fix=fix)
            models += [name] * int(count)
        else:
            models.append(word)
    return tuple(models) if stated else None


def _reserved(texts: Mapping[str, str]) -> dict[str, int]:
    from lattice.kinds.container import resource_parser

    reserved = {name: _amount("--reserve", resource_parser(name), text) for name, text in texts.items()}
    # Both names mean the same disk.
    for name, alias in (("storage", "ephemeral-storage"), ("ephemeral-storage", "storage")):
        if name in reserved:
            reserved.setdefault(alias, reserved[name])
    return reserved


def _read_machine_file(file: str) -> "MachineFacts":
    from lattice.agent.host.machine_file import MachineFacts, machine_facts
    from lattice.kinds.meta.yaml_manifest import load_documents

    if not file:
        return MachineFacts()
    try:
        documents = load_documents(Path(file).read_bytes(), file, expand_lists=False)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=f"--machine-file {file}", fix="check the path"
        ) from error
    if len(documents) > 1:
        raise UsageError("holds several documents", where=f"--machine-file {file}", fix="write one document")
    return machine_facts(documents[0].value if documents else None, f"--machine-file {file}")


def _amount(flag: str, parse: Any, text: str) -> int:
    try:
        amount: int = parse(text)
    except (ValueError, LatticeError) as error:
        raise UsageError(
            f"{text!r} is not an amount: {error}",
            where=flag,
            fix="write an amount such as 500m, 4, 512Mi or 16Gi",
        ) from error
    return amount


def _pairs(flag: str, words: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UsageError(f"{word!r} is not KEY=VALUE", where=flag, fix="write key=value")
        pairs[key] = value
    return pairs


def parse_ports(text: str) -> tuple[int, int]:
    """The first and last port of `--ports`."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last) <= 65535):
        raise UsageError(
            f"{text!r} is not a port range",
            where="--ports",
            fix="write the range as FIRST-LAST, such as 20000-20199",
        )
    return int(first), int(last)
