"""A drain that waits says a thing once."""

from lattice.cli.commands import drain

NODES = "/apis/lattice.dev/v1alpha1/latticenodes"
WORKLOADS = "/apis/lattice.dev/v1alpha1/namespaces/default/latticeworkloads"


def test_drain_prints_a_reason_once_and_a_new_reason_again(server, lattice, monkeypatch):
    monkeypatch.setattr(drain, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(drain, "PROGRESS_INTERVAL_S", 0.0)
    node = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeNode",
        "metadata": {"name": "n1"},
        "spec": {},
    }
    server.put(f"{NODES}/n1", node)
    bound = {"metadata": {"name": "web-0", "namespace": "default"}, "status": {"binding": {"node": "n1"}}}
    server.put(f"{WORKLOADS}/web-0", bound)
    reasons = iter(["no room", "no room", "over budget", "over budget"])

    def message(_: object) -> str:
        reason = next(reasons, "")
        if not reason:
            server.put(f"{WORKLOADS}/web-0", {**bound, "status": {}})
        return reason or "over budget"

    monkeypatch.setattr(drain.node_updates, "drain_message", message)
    ran = lattice("drain", "n1")
    assert ran.out.splitlines()[-1] == "node/n1 drained"
    notes = [line for line in ran.err.splitlines() if line.startswith("waiting for node/")]
    assert notes == ["waiting for node/n1: no room", "waiting for node/n1: over budget"]
