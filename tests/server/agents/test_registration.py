"""The node's status after its agent registers."""

import msgspec
import pytest
from build.agent_world import a_registration

from lattice.kinds.node import LatticeNode, NodeStatus
from lattice.kinds.node_class import MachineSize
from lattice.scheduling.table.node_info import node_info_of
from lattice.server.agents.registration import apply_registration, registration_problem
from lattice.wire import agent_pb2 as pb


@pytest.mark.parametrize(
    ("before", "after"), [(None, 0), (0, 0), (3, 3)], ids=["never used", "empty again", "in use"]
)
def test_first_registration_sets_workload_count(before: int | None, after: int) -> None:
    status = {} if before is None else {"workloads": before}
    node = apply_registration(
        {"metadata": {"name": "n1"}, "spec": {}, "status": status}, pb.Hello(registration=a_registration())
    )
    assert msgspec.convert(node["status"], NodeStatus, strict=False).workloads == after


GIB = 1 << 30
HOST = {"cpu": 8000, "memory": 32 * GIB, "storage": 64 * GIB, "ephemeral-storage": 64 * GIB, "hugepages-2Mi": GIB, "dongle": 4}  # fmt: skip


def registered(spec: dict[str, object], size: MachineSize | None = None, **fields: object) -> LatticeNode:
    """The node after the registration of a large host."""
    node = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeNode",
        "metadata": {"name": "n1"},
        "spec": spec,
    }
    hello = pb.Hello(registration=pb.Registration(capacity=HOST, **fields))  # type: ignore[arg-type]
    return msgspec.convert(apply_registration(node, hello, size), LatticeNode, strict=False)


def test_machine_without_class_offers_all_that_it_reports() -> None:
    assert registered({}).status.allocatable == HOST


def test_made_machine_offers_at_most_what_its_class_promises() -> None:
    """Machines of a class may share one host: none may claim the host's huge pages or devices for itself."""
    size = MachineSize(1000, GIB, 2 * GIB, 0, {"dongle": 1, "hugepages-2Mi": 2 * GIB})
    assert registered({}, size).status.allocatable == {
        "cpu": 1000,
        "memory": GIB,
        "storage": 2 * GIB,
        "ephemeral-storage": 2 * GIB,
        "dongle": 1,
        "hugepages-2Mi": GIB,
    }
    bare = registered({}, MachineSize(1000, GIB, 0, 0, {})).status.allocatable
    assert (bare["dongle"], bare["hugepages-2Mi"], bare["storage"]) == (0, 0, 64 * GIB)


def test_grant_of_the_token_replaces_what_the_agent_reports() -> None:
    node = registered({"extended": {"dongle": 1, "fpga": 2}})
    assert (node.status.allocatable["dongle"], node.status.allocatable["fpga"]) == (1, 2)
    assert node.status.capacity["fpga"] == 2


@pytest.mark.parametrize(
    ("spec", "licences", "image"),
    [
        pytest.param({}, ("matlab",), "golden-7", id="the agent's words count where nobody states any"),
        pytest.param(
            {"licences": ["ansys"], "machineImage": "golden-8"}, ("ansys",), "golden-8", id="stated facts win"
        ),
        pytest.param({"licences": ["ansys"]}, ("ansys",), "golden-7", id="each by itself"),
    ],
)
def test_licences_and_image(spec: dict[str, object], licences: tuple[str, ...], image: str) -> None:
    node = registered(spec, licences=["matlab", "matlab"], machine_image="golden-7")
    assert (node.effective_licences, node.effective_machine_image) == (licences, image)
    info = node_info_of(node)
    assert (info.licences, info.image) == (frozenset(licences), image)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"licences": ["x" * 254]}, id="a licence that is too long"),
        pytest.param({"licences": ["a\nb"]}, id="a licence with a line break"),
        pytest.param({"machine_image": "x" * 254}, id="an image that is too long"),
        pytest.param({"licences": ["x"] * 65}, id="too many licences"),
    ],
)
def test_facts_out_of_bounds_are_refused(fields: dict[str, object]) -> None:
    assert registration_problem(pb.Registration(**fields))  # type: ignore[arg-type]
