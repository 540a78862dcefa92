"""What the agent reports about its machine: flags win over the file, both win over detection."""

from pathlib import Path
from typing import Any

import pytest

from lattice.cli.commands.agent import agent
from lattice.cli.commands.agent_machine import AgentOptions, parse_gpus, read_machine
from lattice.errors import Invalid, UsageError
from lattice.kinds.node import MEASURED_RESOURCES
from lattice.wire import agent_pb2 as pb

FILE = """
extended: {example.com/dongle: 2, fpga: 1}
licences: [matlab]
machineImage: golden-7
labels: {rack: a3}
"""


def options(**values: Any) -> AgentOptions:
    defaults = {
        param.name: param.default for param in agent.params if param.name not in ("verbose", "config")
    }
    plain = {
        name: () if param.multiple else defaults[name]  # type: ignore[attr-defined]
        for param in agent.params
        if (name := param.name) in defaults
    }
    return AgentOptions(**{**plain, "server": "https://127.0.0.1:1", **values})


def registered(folder: Path, **values: Any) -> pb.Registration:
    return read_machine(options(detect=False, **values), folder, ("process",), (20000, 20199)).registration()


def test_file_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(FILE)
    from_file = registered(tmp_path, machine_file=str(file))
    assert (from_file.capacity["example.com/dongle"], from_file.capacity["fpga"]) == (2, 1)
    assert (list(from_file.licences), from_file.machine_image) == (["matlab"], "golden-7")
    assert from_file.labels["agent.lattice.dev/rack"] == "a3"
    flags = {
        "extended": ("fpga=4", "hugepages-2Mi=1Gi"),
        "licences": ("ansys",),
        "machine_image": "golden-8",
        "labels": ("rack=b1",),
    }
    both = registered(tmp_path, machine_file=str(file), **flags)
    assert dict(both.capacity)["fpga"] == 4
    assert (both.capacity["example.com/dongle"], both.capacity["hugepages-2Mi"]) == (2, 1 << 30)
    assert (list(both.licences), both.machine_image) == (["ansys"], "golden-8")
    assert both.labels["agent.lattice.dev/rack"] == "b1"


def test_disk_counts_under_both_names_and_so_does_its_reserve(tmp_path: Path) -> None:
    machine = registered(tmp_path, disk="10Gi", reserve=("storage=1Gi",))
    for name in ("storage", "ephemeral-storage"):
        assert (machine.capacity[name], machine.reserved[name]) == (10 << 30, 1 << 30)


@pytest.mark.parametrize(
    ("memory", "taken"),
    [
        pytest.param("", 1 << 30, id="reserved huge pages are no memory for other programs"),
        pytest.param("2Gi", 0, id="stated memory counts as stated"),
    ],
)
def test_huge_pages_count_once(memory: str, taken: int, tmp_path: Path) -> None:
    pages = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    pages.parent.mkdir(parents=True)
    pages.write_text("512\n")
    machines = [
        read_machine(
            options(memory=memory, detect=detect), tmp_path, (), (20000, 20199), tmp_path
        ).registration()
        for detect in (False, True)
    ]
    assert machines[0].capacity["memory"] - machines[1].capacity["memory"] == taken
    assert machines[1].capacity["hugepages-2Mi"] == 1 << 30


@pytest.mark.parametrize("name", MEASURED_RESOURCES)
def test_measured_resource_is_no_extended_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{name} is no extended resource") as mistake:
        registered(tmp_path, extended=(f"{name}=1",))
    assert "state it with --" in mistake.value.fix


@pytest.mark.parametrize(
    ("words", "model", "models"),
    [
        pytest.param((), "", None, id="absent: detected"),
        pytest.param(("none",), "", (), id="none"),
        pytest.param(("a100", "t4"), "", ("a100", "t4"), id="models, each one GPU"),
        pytest.param(("a100=2", "t4"), "", ("a100", "a100", "t4"), id="a model with its count"),
        pytest.param(("2",), "t4", ("t4", "t4"), id="a count of one model"),
    ],
)
def test_gpu_flag(words: tuple[str, ...], model: str, models: tuple[str, ...] | None) -> None:
    assert parse_gpus(words, model) == models


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("2",), id="a count without a model"),
        pytest.param(("a100=many",), id="no count"),
        pytest.param(("=2",), id="no model"),
        pytest.param(("none", "a100"), id="none and one"),
    ],
)
def test_gpu_flag_mistakes(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as mistake:
        parse_gpus(words, "")
    assert mistake.value.fix


def test_mistakes_in_the_file_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        registered(tmp_path, machine_file=str(tmp_path / "absent.yaml"))
    file = tmp_path / "box.yaml"
    file.write_text("licence: [x]")
    with pytest.raises(Invalid, match=r"box\.yaml"):
        registered(tmp_path, machine_file=str(file))
