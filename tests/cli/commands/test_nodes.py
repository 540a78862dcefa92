"""cordon, uncordon and drain: the spec that they write, the fields that they keep, and how long they wait."""

import pytest

from lattice.cli.client import node_updates as marks
from lattice.cli.commands import drain as draining
from lattice.cli.commands import events

HOME = "/apis/lattice.dev/v1alpha1"
N1 = f"{HOME}/latticenodes/n1"
WEB = f"{HOME}/namespaces/shop/latticeworkloads/web-0"
DRAINING = {"key": "lattice.dev/draining", "effect": "NoExecute"}
OTHER = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def a_listed_node(name="n1", labels=None, **spec):
    metadata = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": metadata, "spec": spec}


def a_listed_workload(name="web-0", node="n1"):
    metadata = {"name": name, "namespace": "shop"}
    return {
        "kind": "LatticeWorkload",
        "metadata": metadata,
        "spec": {},
        "status": {"binding": {"node": node}} if node else {},
    }


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        pytest.param(marks.cordoned_spec, {"pool": "a"}, {"pool": "a", "unschedulable": True}, id="cordon"),
        pytest.param(
            marks.cordoned_spec, {"unschedulable": True}, {"unschedulable": True}, id="cordon twice"
        ),
        pytest.param(
            marks.draining_spec,
            {"taints": [OTHER]},
            {"taints": [OTHER, DRAINING], "unschedulable": True},
            id="drain keeps other taints",
        ),
        pytest.param(
            marks.draining_spec,
            {"taints": [DRAINING], "unschedulable": True},
            {"taints": [DRAINING], "unschedulable": True},
            id="drain twice",
        ),
        pytest.param(
            marks.draining_spec,
            {"unschedulable": True},
            {"unschedulable": True, "taints": [DRAINING]},
            id="drain what is cordoned",
        ),
        pytest.param(
            marks.uncordoned_spec,
            {"pool": "a", "unschedulable": True, "taints": [OTHER, DRAINING]},
            {"pool": "a", "taints": [OTHER]},
            id="uncordon ends a drain",
        ),
        pytest.param(
            marks.uncordoned_spec,
            {"unschedulable": True, "taints": [DRAINING]},
            {},
            id="and leaves nothing behind",
        ),
        pytest.param(marks.uncordoned_spec, {"pool": "a"}, {"pool": "a"}, id="uncordon what is not cordoned"),
    ],
)
def test_cordon_uncordon_and_drain_write_the_spec(change, before, after):
    assert change(before) == after


def test_cordon_retries_on_conflict(server, lattice):
    server.put(N1, a_listed_node(pool="a"))
    server.answers[("PUT", N1)] = [
        (409, {}, {"kind": "Status", "reason": "Conflict", "message": "modified", "code": 409})
    ]
    assert lattice("cordon", "n1") == (0, "node/n1 cordoned\n", "")
    assert server.objects[N1]["spec"] == {"pool": "a", "unschedulable": True}
    assert [method for method, path, _ in server.log if path == N1] == ["GET", "PUT", "GET", "PUT"]


def test_nodes_by_label(server, lattice):
    server.put(N1, a_listed_node(labels={"zone": "a"}))
    server.put(f"{HOME}/latticenodes/n2", a_listed_node("n2", labels={"zone": "b"}))
    assert lattice("cordon", "-l", "zone=a").out == "node/n1 cordoned\n"
    assert lattice("drain", "-l", "zone=a", "--no-wait").out == "node/n1 draining\n"
    assert "unschedulable" not in server.objects[f"{HOME}/latticenodes/n2"]["spec"]
    assert lattice("cordon", "n1", "-l", "zone=a").code == 2


@pytest.mark.parametrize(
    ("flag", "told"), [("--dry-run=client", " (dry run)"), ("--dry-run", " (server dry run)")]
)
def test_a_dry_run_changes_nothing(flag, told, server, lattice):
    server.put(N1, a_listed_node())
    server.put(WEB, a_listed_workload())
    assert lattice("cordon", "n1", flag) == (0, f"node/n1 cordoned{told}\n", "")
    assert lattice("drain", "n1", flag).out.startswith(f"node/n1 draining{told}\n")
    assert server.objects[N1]["spec"] == {}


def test_drain_dry_run_lists_moves_and_possible_cost(server, lattice):
    server.put(N1, a_listed_node(pool="a"))
    for number in range(5):
        server.put(
            f"{HOME}/namespaces/shop/latticeworkloads/web-{number}", a_listed_workload(f"web-{number}")
        )
    ran = lattice("drain", "n1", "--dry-run")
    assert ran.out.splitlines()[1:] == [
        "node/n1: would move shop/web-0, shop/web-1, shop/web-2, shop/web-3, shop/web-4"
    ]
    assert ran.err == (
        "if no other node has free capacity, Lattice adds machines, which cost money; `lattice whatif --lose-pool a` shows the cost of losing all of a\n"
    )


def test_drain_dry_run_of_an_empty_node_moves_nothing(server, lattice):
    server.put(N1, a_listed_node(pool="a"))
    ran = lattice("drain", "n1", "--dry-run")
    assert (ran.out.splitlines()[1:], ran.err) == (["node/n1: no workloads, nothing would move"], "")


def test_cordon_continues_after_a_missing_node(server, lattice):
    server.put(N1, a_listed_node())
    ran = lattice("cordon", "nope", "n1")
    assert (ran.code, ran.out) == (1, "node/n1 cordoned\n")
    assert "nope" in ran.err


def test_drain_waits_until_the_node_is_empty(server, lattice, monkeypatch):
    monkeypatch.setattr(draining, "PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr(draining.time, "sleep", lambda _: server.put(WEB, a_listed_workload(node="")))
    server.put(N1, a_listed_node())
    server.put(WEB, a_listed_workload())
    ran = lattice("drain", "n1")
    assert (ran.code, ran.out) == (0, "node/n1 draining\nnode/n1 drained\n")
    assert ran.err == "waiting for node/n1: shop/web-0\n"


def test_drain_timeout_lists_the_remaining_workloads(server, lattice, monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(draining.time, "monotonic", lambda: float(next(times)))
    monkeypatch.setattr(draining.time, "sleep", lambda _: None)
    server.put(N1, a_listed_node())
    for number in range(5):
        server.put(
            f"{HOME}/namespaces/shop/latticeworkloads/web-{number}", a_listed_workload(f"web-{number}")
        )
    ran = lattice("drain", "n1", "--timeout", "3s")
    assert (ran.code, ran.out) == (3, "node/n1 draining\n")
    assert "node/n1 is not empty after 3 s: shop/web-0, shop/web-1, shop/web-2 and 2 more" in ran.err


WHY = "1 workload still on the node; shop/web-0: a replacement replica must start first; no node accepts the replacement: 0 of 2 nodes: 2 without 1 cpu free"


def is_stuck():
    return a_listed_node() | {
        "kind": "LatticeNode",
        "status": {"conditions": [{"type": "Drained", "status": "False", "message": WHY}]},
    }


def test_blocked_drain_shows_the_reason(server, lattice, monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(draining, "PROGRESS_INTERVAL_S", 1.0)
    monkeypatch.setattr(draining.time, "monotonic", lambda: float(next(times)))
    monkeypatch.setattr(draining.time, "sleep", lambda _: None)
    server.put(N1, is_stuck())
    server.put(WEB, a_listed_workload())
    ran = lattice("drain", "n1", "--timeout", "5s")
    assert ran.code == 3
    assert ran.err.count(f"waiting for node/n1: {WHY}\n") == 1, "once, not repeated"
    assert f"node/n1 is not empty after 5 s: {WHY}" in ran.err


def test_node_delete_timeout_shows_the_blocking_reason(server, lattice):
    server.put(
        N1, is_stuck() | {"metadata": {"name": "n1", "uid": "1", "finalizers": ["lattice.dev/machine"]}}
    )
    server.answers["DELETE", N1] = [(200, [], server.objects[N1])]
    ran = lattice("delete", "node", "n1", "--timeout", "1ms")
    assert f"is not gone yet: {WHY}; waiting for finalizers lattice.dev/machine" in ran.err


SECRETS = "/api/v1/namespaces/lattice-system/secrets"


def test_token_warns_of_missing_pool_and_existing_node(server, lattice):
    server.put(f"{SECRETS}/lattice-ca", {"metadata": {"name": "lattice-ca"}, "data": {"tls.crt": "eA=="}})
    server.answers["POST", SECRETS] = [(201, [], {"metadata": {}})] * 2
    server.put(N1, a_listed_node())
    ran = lattice("tokens", "create", "--pool", "nope", "--node", "n1")
    assert (ran.code, ran.out[:4]) == (0, "ljt-")
    assert ran.err == (
        "Warning: node n1 exists already: the machine that joins with this token replaces the current machine\n"
        "Warning: there is no pool nope yet; see `lattice get pools`\n"
    )
    assert lattice("tokens", "create", "--node", "n2").err == ""


LAB = "/apis/lattice.dev/v1alpha1/latticeclusters/lab-002"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(
            ("--cluster", "none", "--pool", "lab"), "there is no cluster none", id="no such cluster"
        ),
        pytest.param(
            ("--cluster", "lab-002", "--pool", "west"), "cluster lab-002 is in pool lab", id="another pool's"
        ),
        pytest.param(("--extended", "dongle"), "'dongle' is not NAME=COUNT", id="no amount"),
        pytest.param(("--extended", "dongle=many"), "dongle", id="no count"),
        pytest.param(("--extended", "cpu=64"), "the agent measures cpu", id="a measured resource"),
    ],
)
def test_token_that_can_never_serve_is_refused(server, lattice, words, reason):
    server.put(LAB, {"metadata": {"name": "lab-002"}, "spec": {"pool": "lab"}})
    ran = lattice("tokens", "create", *words)
    assert ran.code != 0
    assert reason in ran.err
    assert "fix:" in ran.err


def test_missing_token_error_names_the_list_command(server, lattice):
    ran = lattice("tokens", "delete", "nope")
    assert (ran.code, ran.out) == (1, "")
    assert "there is no token nope" in ran.err
    assert "lattice tokens list" in ran.err
    assert "secrets" not in ran.err


def test_retry_refuses_a_stopped_workload(server, lattice):
    server.put(WEB, a_listed_workload() | {"spec": {"desiredState": "Stopped"}})
    ran = lattice("retry", "web-0", "-n", "shop")
    assert (ran.code, ran.out) == (1, "")
    assert "workload/web-0 should not run" in ran.err
    assert "set spec.desiredState to Running first" in ran.err


def test_events_of_one_second_are_in_write_order():
    reasons = {"WorkloadDeleted": "12", "WorkloadStopping": "9", "WorkloadDeleting": "10"}
    found = [
        {"metadata": {"resourceVersion": at}, "reason": why, "lastTimestamp": "2026-11-15T07:40:00Z"}
        for why, at in reasons.items()
    ]
    before = {
        "metadata": {"resourceVersion": "11"},
        "reason": "Before",
        "lastTimestamp": "2026-11-15T07:39:59Z",
    }
    shown = sorted([*found, before], key=events.event_sort_key)
    assert [each["reason"] for each in shown] == [
        "Before",
        "WorkloadStopping",
        "WorkloadDeleting",
        "WorkloadDeleted",
    ]
