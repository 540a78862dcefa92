"""Tests of service agreements: a call is allowed only if both sides declare it, also under "*", and never to
an undefined service."""

from typing import Any

import msgspec
import pytest
from build.objects import a_service_with_resources
from build.worlds import make_valid_object
from hypothesis import given
from hypothesis import strategies as st

from lattice.kinds.agreement import AgreementStatus, Endpoint
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.agreements import (
    Name,
    Pair,
    agreement_status,
    build_agreement,
    declared_pairs,
    endpoints,
    environment,
    name_of,
    pair_of,
)


def calls(**more: str) -> dict[str, str]:
    return {"type": "Service", "direction": "outbound", **more}


def admits(**more: str) -> dict[str, str]:
    return {"type": "service", "direction": "inbound", **more}


WEB, API = Name("default", "web"), Name("default", "api")

CASES: dict[str, tuple[list[LatticeService], bool, str | None]] = {
    "both declare": ([a_service_with_resources("web", {"api": calls()}), a_service_with_resources("api", {"web": admits()})], True, None),
    "both directions at once": (
        [a_service_with_resources("web", {"api": {"type": "Service", "direction": "both"}}), a_service_with_resources("api", {"web": {"type": "Service", "direction": "both"}})],
        True,
        None,
    ),
    "only the caller": ([a_service_with_resources("web", {"api": calls()}), a_service_with_resources("api")], False, "callee"),
    "only the callee": ([a_service_with_resources("web"), a_service_with_resources("api", {"web": admits()})], False, "caller"),
    "the callee admits everybody": ([a_service_with_resources("web", {"api": calls()}), a_service_with_resources("api", {"*": admits()})], True, None),
    "everybody is not enough for a caller that says nothing": ([a_service_with_resources("web"), a_service_with_resources("api", {"*": admits()})], False, "caller"),
    "the callee is not defined": ([a_service_with_resources("web", {"api": calls()})], False, "callee"),
    "the caller is not defined": ([a_service_with_resources("api", {"web": admits()})], False, "caller"),
    "under another key": (
        [a_service_with_resources("web", {"backend": calls(id="api")}), a_service_with_resources("api", {"front": admits(id="web")})], True, None
    ),
    "the other way round": ([a_service_with_resources("web", {"api": admits()}), a_service_with_resources("api", {"web": calls()})], False, "both"),
    "not a service": ([a_service_with_resources("web", {"api": {"type": "volume"}}), a_service_with_resources("api", {"web": admits()})], False, "caller"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agreement_status(case: str) -> None:
    services, active, missing = CASES[case]
    found = agreement_status(Pair(WEB, API), {name_of(each): each for each in services})
    assert (found.active, found.missing) == (active, missing)


def test_agreements_distinguish_namespaces() -> None:
    web = a_service_with_resources("web", {"api": calls(namespace="shop")})
    own, other = (
        a_service_with_resources("api", {"web": admits()}),
        a_service_with_resources("api", {"web": admits(namespace="default")}, "shop"),
    )
    services = {name_of(each): each for each in (web, own, other)}
    assert not agreement_status(Pair(WEB, API), services).active
    assert agreement_status(Pair(WEB, Name("shop", "api")), services).active
    found = build_agreement(
        Pair(WEB, Name("shop", "api")), agreement_status(Pair(WEB, Name("shop", "api")), services)
    )
    assert found.metadata.name == "web--api.shop"
    assert pair_of(found) == Pair(WEB, Name("shop", "api"))


NAMES = st.sampled_from(
    [
        Name(namespace, name)
        for namespace in ("a", "b.c")
        for name in ("x", "x--y", "y", "x.b.c", "y.a", "x--y.a")
    ]
)


@given(st.sets(st.tuples(NAMES, NAMES), max_size=12))
def test_object_names_of_pairs_are_unique(drawn: set[tuple[Name, Name]]) -> None:
    found = [Pair(*each) for each in drawn]
    assert len({(each.caller.namespace, each.object_name) for each in found}) == len(found)


WORDS = st.sampled_from(["a", "b", "c", "*"])
ENTRIES = st.dictionaries(WORDS, st.sampled_from(["outbound", "inbound", "both"]), max_size=3)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), ENTRIES))
def test_agreement_is_active_iff_both_sides_declare_it(drawn: dict[str, dict[str, str]]) -> None:
    services = {
        Name("default", name): a_service_with_resources(
            name, {other: {"type": "Service", "direction": way} for other, way in lists.items()}
        )
        for name, lists in drawn.items()
    }
    objects = {pair for each in services.values() for pair in declared_pairs(each)}
    for caller in "abc":
        for callee in "abc":
            says = drawn.get(caller, {})
            hears = drawn.get(callee, {})
            out = any(says.get(word) in ("outbound", "both") for word in (callee, "*"))
            inward = any(hears.get(word) in ("inbound", "both") for word in (caller, "*"))
            pair = Pair(Name("default", caller), Name("default", callee))
            if caller != callee:
                assert agreement_status(pair, services).active is (out and inward)
            named = (
                says.get(callee) in ("outbound", "both") or hears.get(caller) in ("inbound", "both")
            ) and caller != callee
            assert (pair in objects) is named


def test_endpoints_are_ready_replicas_in_environment() -> None:
    spec = {"containers": {"main": {"command": ["true"]}}, "service": "api"}

    def a_replica(slot: int, node: str, ready: bool) -> LatticeWorkload:
        found = make_valid_object(LatticeWorkload, f"api-{slot}", {**spec, "slot": slot}, namespace="default")
        status = {"binding": {"node": node}, "ready": ready, "allocatedPorts": {"http": 31000 + slot}}
        return _with(found, status)

    nodes = {
        "n1": _with(
            make_valid_object(LatticeNode, "n1", {}),
            {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        ),
        "n2": make_valid_object(LatticeNode, "n2", {}),
    }
    replicas = [
        a_replica(2, "n1", True),
        a_replica(1, "n1", True),
        a_replica(0, "n1", False),
        a_replica(3, "n2", True),
        a_replica(4, "gone", True),
    ]
    found = endpoints(replicas, nodes.get)
    assert [(each.address, each.port, each.name, each.workload) for each in found] == [
        ("10.0.0.1", 31001, "http", "api-1"),
        ("10.0.0.1", 31002, "http", "api-2"),
    ]
    active = build_agreement(Pair(WEB, Name("default", "order-api")), _active(found))
    assert environment([active]) == {
        "ORDER_API_ENDPOINTS": "10.0.0.1:31001,10.0.0.1:31002",
        "ORDER_API_HOST": "10.0.0.1",
        "ORDER_API_PORT": "31001",
    }
    assert environment([build_agreement(Pair(WEB, API), _active(()))]) == {}


def test_same_name_services_get_distinct_variables() -> None:
    def at(address: str) -> Any:
        return _active((Endpoint(address=address, port=80),))

    callees = [Name("default", "api"), Name("shop", "api"), Name("bank", "api"), Name("default", "api-shop")]
    made = [
        build_agreement(Pair(WEB, callee), at(f"10.0.0.{number}")) for number, callee in enumerate(callees)
    ]
    for order in (made, made[::-1]):
        told = environment(order)
        hosts = {name: address for name, address in told.items() if name.endswith("_HOST")}
        assert (hosts["API_HOST"], hosts["API_BANK_HOST"], hosts["API_SHOP_HOST"]) == (
            "10.0.0.0",
            "10.0.0.2",
            "10.0.0.3",
        )
        assert sorted(hosts.values()) == ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"], "nobody's is lost"


def _with(obj: Any, status: dict[str, Any]) -> Any:
    return msgspec.structs.replace(obj, status=msgspec.convert(status, type(obj.status)))


def _active(found: tuple[Endpoint, ...]) -> AgreementStatus:
    return AgreementStatus(active=True, endpoints=found)
