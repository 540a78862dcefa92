"""cordon, uncordon and drain: what they write on a node, what they keep of it, and how long they wait."""

import pytest

from lattice.cli import drain as draining
from lattice.cli import marks

HOME = "/apis/lattice.dev/v1alpha1"
N1 = f"{HOME}/latticenodes/n1"
WEB = f"{HOME}/namespaces/shop/latticeworkloads/web-0"
DRAINING = {"key": "lattice.dev/draining", "effect": "NoExecute"}
OTHER = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def a_node(name="n1", labels=None, **spec):
    metadata = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": metadata, "spec": spec}


def a_workload(name="web-0", node="n1"):
    metadata = {"name": name, "namespace": "shop"}
    return {"kind": "LatticeWorkload", "metadata": metadata, "spec": {}, "status": {"binding": {"node": node}} if node else {}}


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        pytest.param(marks.cordon, {"pool": "a"}, {"pool": "a", "unschedulable": True}, id="cordon"),
        pytest.param(marks.cordon, {"unschedulable": True}, {"unschedulable": True}, id="cordon twice"),
        pytest.param(
            marks.drained, {"taints": [OTHER]}, {"taints": [OTHER, DRAINING], "unschedulable": True}, id="drain keeps other taints"
        ),
        pytest.param(
            marks.drained, {"taints": [DRAINING], "unschedulable": True}, {"taints": [DRAINING], "unschedulable": True}, id="drain twice"
        ),
        pytest.param(marks.drained, {"unschedulable": True}, {"unschedulable": True, "taints": [DRAINING]}, id="drain what is cordoned"),
        pytest.param(
            marks.uncordon,
            {"pool": "a", "unschedulable": True, "taints": [OTHER, DRAINING]},
            {"pool": "a", "taints": [OTHER]},
            id="uncordon ends a drain",
        ),
        pytest.param(marks.uncordon, {"unschedulable": True, "taints": [DRAINING]}, {}, id="and leaves nothing behind"),
        pytest.param(marks.uncordon, {"pool": "a"}, {"pool": "a"}, id="uncordon what is not cordoned"),
    ],
)
def test_marks(change, before, after):
    assert change(before) == after


def test_somebody_elses_change_in_between_is_kept(server, lattice):
    server.put(N1, a_node(pool="a"))
    server.answers[("PUT", N1)] = [(409, {}, {"kind": "Status", "reason": "Conflict", "message": "modified", "code": 409})]
    assert lattice("cordon", "n1") == (0, "node/n1 cordoned\n", "")
    assert server.objects[N1]["spec"] == {"pool": "a", "unschedulable": True}
    assert [method for method, path, _ in server.log if path == N1] == ["GET", "PUT", "GET", "PUT"]


def test_nodes_by_label(server, lattice):
    server.put(N1, a_node(labels={"zone": "a"}))
    server.put(f"{HOME}/latticenodes/n2", a_node("n2", labels={"zone": "b"}))
    assert lattice("cordon", "-l", "zone=a").out == "node/n1 cordoned\n"
    assert lattice("drain", "-l", "zone=a", "--no-wait").out == "node/n1 draining\n"
    assert "unschedulable" not in server.objects[f"{HOME}/latticenodes/n2"]["spec"]
    assert lattice("cordon", "n1", "-l", "zone=a").code == 2


@pytest.mark.parametrize(("flag", "told"), [("--dry-run=client", " (dry run)"), ("--dry-run", " (server dry run)")])
def test_a_dry_run_changes_nothing(flag, told, server, lattice):
    server.put(N1, a_node())
    server.put(WEB, a_workload())
    assert lattice("cordon", "n1", flag) == (0, f"node/n1 cordoned{told}\n", "")
    assert lattice("drain", "n1", flag).out.startswith(f"node/n1 draining{told}\n")
    assert server.objects[N1]["spec"] == {}


def test_a_dry_run_of_a_drain_says_what_would_move_and_that_it_may_cost(server, lattice):
    server.put(N1, a_node(pool="a"))
    for number in range(5):
        server.put(f"{HOME}/namespaces/shop/latticeworkloads/web-{number}", a_workload(f"web-{number}"))
    ran = lattice("drain", "n1", "--dry-run")
    assert ran.out.splitlines()[1:] == ["node/n1: would move shop/web-0, shop/web-1, shop/web-2, shop/web-3, shop/web-4"]
    assert ran.err == (
        "where no other node has room for them this makes new machines, which cost money; `lattice whatif --lose-pool a` prices the loss of all of a\n"
    )


def test_a_dry_run_of_draining_an_empty_node_says_that_nothing_moves(server, lattice):
    server.put(N1, a_node(pool="a"))
    ran = lattice("drain", "n1", "--dry-run")
    assert (ran.out.splitlines()[1:], ran.err) == (["node/n1: nothing runs there, nothing would move"], "")


def test_one_that_is_not_there_does_not_keep_the_others(server, lattice):
    server.put(N1, a_node())
    ran = lattice("cordon", "nope", "n1")
    assert (ran.code, ran.out) == (1, "node/n1 cordoned\n")
    assert "nope" in ran.err


def test_drain_waits_until_the_node_is_empty(server, lattice, monkeypatch):
    monkeypatch.setattr(draining, "TELL", 0.0)
    monkeypatch.setattr(draining.time, "sleep", lambda _: server.put(WEB, a_workload(node="")))
    server.put(N1, a_node())
    server.put(WEB, a_workload())
    ran = lattice("drain", "n1")
    assert (ran.code, ran.out) == (0, "node/n1 draining\nnode/n1 drained\n")
    assert ran.err == "waiting for node/n1: shop/web-0\n"


def test_drain_says_what_is_left_when_its_time_is_up(server, lattice, monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(draining.time, "monotonic", lambda: float(next(times)))
    monkeypatch.setattr(draining.time, "sleep", lambda _: None)
    server.put(N1, a_node())
    for number in range(5):
        server.put(f"{HOME}/namespaces/shop/latticeworkloads/web-{number}", a_workload(f"web-{number}"))
    ran = lattice("drain", "n1", "--timeout", "3s")
    assert (ran.code, ran.out) == (3, "node/n1 draining\n")
    assert "node/n1 is not empty after 3 s: shop/web-0, shop/web-1, shop/web-2 and 2 more" in ran.err
