"""The node's status after its agent registers."""

import msgspec
import pytest
from build.agent_world import a_registration

from lattice.kinds.node import NodeStatus
from lattice.server.agents.registration import apply_registration
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
