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


def a_pool(name: str, **spec: object) -> tuple[str, str, dict]:
    return (
        "LatticePool",
        name,
        {"provider": {"type": "aws", "region": f"{name}-1"}, "nodeClasses": ["m"], **spec},
    )


def a_policy(name: str, **requirements: object) -> tuple[str, str, dict]:
    return ("LatticePlacementPolicy", name, {"requirements": requirements})


def a_service(name: str) -> tuple[str, str, dict]:
    placement = {"resources": {"cores": 3, "memoryGi": 1}}
    return ("LatticeService", name, {"containers": {"main": {"image": "a:1"}}, "placement": placement})


def test_fit_names_services_placed_first(lattice, tmp_path):
    full = a_pool("p1", capacity={"maxNodes": 1})
    world = a_folder(
        tmp_path, CLASS, full, a_policy("rules", compliance=["gdpr"]), a_service("aaa"), a_service("api")
    )
    ran = lattice("fit", "service/api", "--world", world)
    assert ran.code == 0
    assert "(places default/aaa first)" in ran.out
    assert "(not enough: default/aaa would be placed first and use the capacity)" in ran.out


@pytest.mark.parametrize("command", ["why", "fit"])
def test_conflicting_policies_are_named(lattice, tmp_path, command):
    east, west = (
        a_pool("east", labels={"compliance": ["gdpr"]}),
        a_pool("west", labels={"compliance": ["fedramp"]}),
    )
    rules = a_policy("europe", compliance=["gdpr"]), a_policy("state", compliance=["fedramp"])
    ran = lattice(
        command, "service/api", "--world", a_folder(tmp_path, CLASS, east, west, *rules, a_service("api"))
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
        a_folder(tmp_path, unpriced, a_pool("p1", budget={"maxMonthlyCost": 100}), a_service("api")),
    )
    words = " ".join(ran.out.split())
    assert "NoPrice. 0 of 1 pool: 1 without a known price" in words
    assert "waits for a price for class m (costPerHour.aws, or a price file)" in words
    assert "OverBudget" not in words
    assert "over budget" not in words
