"""Affinity, group and priority of a service: what is refused, and what its replicas are told."""

from typing import Any

import pytest
from build.affinity import apart
from build.objects import make_object
from build.worlds import a_service

from lattice.kinds.service import LatticeService
from lattice.kinds.workload import WorkloadGroup
from lattice.lifecycle.replica_template import workload_template


def a_stated_service(**spec: Any) -> LatticeService:
    stated = {"containers": {"main": {"command": ["run"]}}, **spec}
    return make_object(LatticeService, "api", "default", spec=stated)


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        pytest.param(
            {"service": "db", "topologyKey": "rack"},
            'must be region, zone, provider, pool, cluster or node, got "rack"',
            id="a key that placement does not know",
        ),
        pytest.param(
            {"topologyKey": "node"}, "must state either service or selector, got neither", id="nothing"
        ),
        pytest.param(
            {"service": "db", "selector": {"matchLabels": {"a": "b"}}, "topologyKey": "node"},
            "must state either service or selector, got both",
            id="both",
        ),
        pytest.param({"service": "db", "topologyKey": "kubernetes.io/hostname"}, "", id="an alias of node"),
    ],
)
def test_term_is_checked_at_apply(term: dict[str, Any], problem: str) -> None:
    service = a_stated_service(affinity={"workload": {"required": [term]}})
    causes = [cause.message for cause in service.problems()]
    assert causes == ([problem] if problem else [])


def test_replicas_carry_priority_group_and_terms_over_nodes() -> None:
    terms = (
        apart("b", key="hostname")["antiWorkload"]["required"]
        + apart("c", key="zone")["antiWorkload"]["required"]
    )
    service = a_service(
        "a", priority=7, group={"name": "g", "minMember": 2}, affinity={"antiWorkload": {"required": terms}}
    )
    spec = workload_template(service)
    assert (spec.priority, spec.group) == (7, WorkloadGroup(name="g", min_member=2))
    assert spec.constraints.affinity is not None
    assert spec.constraints.affinity.anti_workload is not None
    (term,) = spec.constraints.affinity.anti_workload.required
    assert (term.topology_key, term.selector.match_labels) == ("node", {"lattice.dev/service": "b"})


def test_service_without_affinity_keeps_its_revision() -> None:
    """Constraints are no part of the revision: adding affinity restarts nothing."""
    plain, stated = workload_template(a_service("a")), workload_template(a_service("a", affinity=apart("b")))
    assert plain.constraints.affinity is None
    assert plain.revision == stated.revision
