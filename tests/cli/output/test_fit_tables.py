"""`fit` and `why` name the services placed first, conflicting policies and unknown prices."""

from pathlib import Path

import pytest
import yaml

CLASS = (
    "LatticeNodeClass",
    "m",
    {"providers": {"aws": {}}, "resources": {"cores": 4, "memoryGi": 16}, "costPerHour": {"aws": 0.2}},
)


def a_folder(path: Path, *objects: tuple[str, str, dict]) -> str:
    documents = [
        {"apiVersion": "lattice.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, name, spec in objects
    ]
    (path / "world.yaml").write_text(yaml.safe_dump_all(documents))
    return str(path)


def pool_document(name: str, **spec: object) -> tuple[str, str, dict]:
    return (
        "LatticePool",
        name,
        {"provider": {"type": "aws", "region": f"{name}-1"}, "nodeClasses": ["m"], **spec},
    )


def policy_document(name: str, **requirements: object) -> tuple[str, str, dict]:
    return ("LatticePlacementPolicy", name, {"requirements": requirements})


def service_document(name: str) -> tuple[str, str, dict]:
    placement = {"resources": {"cores": 3, "memoryGi": 1}}
    return ("LatticeService", name, {"containers": {"main": {"image": "a:1"}}, "placement": placement})


def test_fit_names_services_placed_first(lattice, tmp_path):
    full = pool_document("p1", capacity={"maxNodes": 1})
    world = a_folder(
        tmp_path,
        CLASS,
        full,
        policy_document("rules", compliance=["gdpr"]),
        service_document("aaa"),
        service_document("api"),
    )
    ran = lattice("fit", "service/api", "--world", world)
    assert ran.code == 0
    assert "(places default/aaa first)" in ran.out
    assert "(not enough: default/aaa would be placed first and use the capacity)" in ran.out


@pytest.mark.parametrize("command", ["why", "fit"])
def test_conflicting_policies_are_named(lattice, tmp_path, command):
    east, west = (
        pool_document("east", labels={"compliance": ["gdpr"]}),
        pool_document("west", labels={"compliance": ["fedramp"]}),
    )
    rules = policy_document("europe", compliance=["gdpr"]), policy_document("state", compliance=["fedramp"])
    ran = lattice(
        command,
        "service/api",
        "--world",
        a_folder(tmp_path, CLASS, east, west, *rules, service_document("api")),
    )
    words = " ".join(ran.out.split())
    assert (
        "conflict compliance gdpr (policy/europe) and compliance fedramp (policy/state): no pool has both"
        in words
    )


def test_unknown_price_is_reported_with_a_fix(lattice, tmp_path):
    unpriced = (CLASS[0], CLASS[1], {**CLASS[2], "costPerHour": {}})
    ran = lattice(
        "why",
        "service/api",
        "--world",
        a_folder(
            tmp_path, unpriced, pool_document("p1", budget={"maxMonthlyCost": 100}), service_document("api")
        ),
    )
    words = " ".join(ran.out.split())
    assert "NoPrice. 0 of 1 pool: 1 without a known price" in words
    assert "waits for a price for class m (costPerHour.aws, or a price file)" in words
    assert "OverBudget" not in words
    assert "over budget" not in words
