"""Names of ledgers, ledger specs of budgets, and validation of unbalanced ledgers."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Denied
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import (
    Account,
    LatticeLedger,
    LedgerSpec,
    Lot,
    cloud_ledger_spec,
    ledger_spec,
    overflow_ledger_spec,
    pool_ledger_spec,
)
from lattice.kinds.meta.base import Metadata
from lattice.kinds.meta.metadata_validation import name_problem
from lattice.kinds.pool import LatticePool
from lattice.server.access.authorization import ADMIN_GROUP, RequestAttributes, authorize
from lattice.server.requests.call import User


def pool(name: str) -> Account:
    return Account(kind="LatticePool", name=name)


def cloud(name: str, region: str = "") -> Account:
    return Account(kind="CloudInfrastructure", name=name, region=region)


def static(name: str) -> Account:
    return Account(kind="StaticInfrastructure", name=name)


def a(kind: Any, spec: dict[str, Any], name: str = "x") -> Any:
    resource = kind.resource
    return msgspec.convert(
        {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec},
        kind,
    )


@pytest.mark.parametrize(
    ("account", "name"),
    [
        (pool("us-east"), "pool.us-east"),
        (pool("us.east"), "pool.us.east"),
        (cloud("aws-production"), "cloud.aws-production"),
        (cloud("aws-production", "us-east-1"), "cloud.aws-production.us-east-1"),
        (static("dc-east"), "static.dc-east.overflow"),
        (cloud("aws.prod", "us_East.1"), "cloud-x.aws-prod.us-east-1.51a53fcd59d1099c66ab2c63"),
    ],
)
def test_names(account: Account, name: str) -> None:
    assert account.ledger_name == name


LONG = "x" * 253
TRICKY = [
    "a",
    "b",
    "a.b",
    "b.c",
    "a.b.c",
    "a-b",
    "overflow",
    "a.overflow",
    "pool",
    "x",
    LONG,
    "x" * 252 + "y",
]
REGIONS = ["", "a", "b", "c", "b.c", "B", "b_c", "b-c", "overflow", "x" * 63]


def test_no_two_budgets_share_a_ledger() -> None:
    accounts = [pool(name) for name in TRICKY] + [static(name) for name in TRICKY]
    accounts += [cloud(name, region) for name, region in itertools.product(TRICKY, REGIONS)]
    names = [account.ledger_name for account in accounts]
    assert len(set(names)) == len(accounts)
    assert [name for name in names if name_problem(LatticeLedger.resource, name)] == []


labels = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True).filter(
    lambda text: ".." not in text and ".-" not in text and "-." not in text
)
regions = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9])?)?", fullmatch=True)


@settings(max_examples=500, deadline=None)
@given(one=st.tuples(labels, regions), other=st.tuples(labels, regions))
def test_ledger_names_are_valid_and_distinct(one: tuple[str, str], other: tuple[str, str]) -> None:
    first, second = cloud(*one), cloud(*other)
    assert not name_problem(LatticeLedger.resource, first.ledger_name)
    assert (first.ledger_name == second.ledger_name) == (first == second)


def stated(spec: LedgerSpec | None) -> tuple[int | None, bool, int] | None:
    return spec and (spec.limit_micros, spec.hard, spec.alert_millionths)


PROVIDER = {"type": "aws"}
PLACE = {"location": {"name": "dc"}, "capacity": {"nodes": 1}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, (None, True, 800_000), id="no budget limits nothing"),
        pytest.param(
            {"budget": {"maxMonthlyCost": 10000}},
            (10_000_000_000, True, 800_000),
            id="a pool's budget is hard",
        ),
        pytest.param(
            {"budget": {"maxMonthlyCost": 1, "alertThreshold": 90}},
            (1_000_000, True, 900_000),
            id="its own threshold",
        ),
    ],
)
def test_pool_ledger_spec(spec: dict[str, Any], expected: tuple[int | None, bool, int]) -> None:
    assert stated(pool_ledger_spec(a(LatticePool, {"provider": PROVIDER, **spec}))) == expected


@pytest.mark.parametrize(
    ("whole", "own", "total", "region"),
    [
        pytest.param(None, None, (None, False, 800_000), (None, False, 800_000), id="no budget"),
        pytest.param(
            {"monthly": 5},
            None,
            (5_000_000, False, 800_000),
            (None, False, 800_000),
            id="soft unless it says otherwise",
        ),
        pytest.param(
            {"monthly": 5, "hardLimit": True, "alertThreshold": 70},
            {"monthly": 2},
            (5_000_000, True, 700_000),
            (2_000_000, True, 700_000),
            id="a region is like the whole in what it leaves open",
        ),
        pytest.param(
            {"monthly": 5, "hardLimit": True},
            {"monthly": 2, "hardLimit": False, "alertThreshold": 0.5},
            (5_000_000, True, 800_000),
            (2_000_000, False, 500_000),
            id="and unlike it where it says so",
        ),
    ],
)
def test_cloud_ledger_spec(whole: Any, own: Any, total: Any, region: Any) -> None:
    found = a(CloudInfrastructure, {"provider": "aws", "budget": whole, "regions": {"r": {"budget": own}}})
    assert stated(cloud_ledger_spec(found)) == total
    assert stated(cloud_ledger_spec(found, "r")) == region
    assert cloud_ledger_spec(found, "elsewhere") is None


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [
        pytest.param(None, None, id="no overflow, no ledger"),
        pytest.param({"enabled": False, "target": "aws"}, None, id="overflow that is switched off"),
        pytest.param({"enabled": True, "target": "aws"}, (None, True, 800_000), id="without limits"),
        pytest.param(
            {"enabled": True, "target": "aws", "limits": {"maxMonthlySpend": 10}},
            (10_000_000, True, 800_000),
            id="limits are hard",
        ),
    ],
)
def test_overflow_ledger_spec(overflow: Any, expected: Any) -> None:
    assert stated(overflow_ledger_spec(a(StaticInfrastructure, {**PLACE, "overflow": overflow}))) == expected


def test_deleted_object_has_no_ledger_spec() -> None:
    assert ledger_spec(pool("us-east"), None) is None


def a_book(account: Account, **status: Any) -> LatticeLedger:
    now = {"month": "2026-11", "asOf": "2026-11-15T07:40:00.000000Z"}
    whole = a(LatticeLedger, {"budget": msgspec.to_builtins(account)}, account.ledger_name)
    return msgspec.structs.replace(whole, status=msgspec.convert(now | status, type(whole.status)))


def test_balanced_ledger_is_valid() -> None:
    lots = {"c": [{"nodeClass": "medium", "count": 3, "micros": 192_000}]}
    book = a_book(pool("us-east"), committedMicros=576_000, machines=lots, past={"2026-10": 5})
    assert list(book.problems()) == []
    assert book.status.machines["c"] == (Lot(node_class="medium", count=3, micros=192_000),)
    assert msgspec.json.decode(msgspec.json.encode(book), type=LatticeLedger) == book


@pytest.mark.parametrize(
    ("book", "field"),
    [
        pytest.param(
            a_book(pool("a"), committedMicros=1),
            "status.committedMicros",
            id="more is committed than the machines cost",
        ),
        pytest.param(
            a_book(pool("a"), month="2026-10"), "status.month", id="another month than that of asOf"
        ),
        pytest.param(a_book(pool("a"), asOf="2026-11"), "status.asOf", id="no time"),
        pytest.param(a_book(pool("a"), past={"2026-11": 1}), "status.past", id="this month is not past"),
        pytest.param(a_book(pool("a"), past={"November": 1}), "status.past", id="no month"),
        pytest.param(
            a_book(Account(kind="LatticePool", name="a", region="r")),
            "spec.budget.region",
            id="a pool has no regions",
        ),
        pytest.param(
            msgspec.structs.replace(a_book(pool("a")), metadata=Metadata(name="pool.b")),
            "metadata.name",
            id="under the name of another budget",
        ),
    ],
)
def test_unbalanced_ledger_is_invalid(book: LatticeLedger, field: str) -> None:
    assert [cause.field for cause in book.problems()] == [field]


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection"])
def test_only_lattice_writes_ledgers(verb: str) -> None:
    deed = RequestAttributes(verb, "lattice.dev", "latticeledgers", name="pool.us-east")
    with pytest.raises(Denied, match="only Lattice may write latticeledgers") as refused:
        authorize(User("ada", frozenset({ADMIN_GROUP})), deed, LatticeLedger.resource)
    assert "change the budget of the LatticePool" in refused.value.fix
