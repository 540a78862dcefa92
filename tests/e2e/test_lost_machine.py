"""The quickstart with real agents loses a machine for good: every service is ready again, and the bill returns to what it was.

`LOST_MACHINE_TRIES` is 10. With `LOST_MACHINE_SHIPPED_TIMES=1` the server has the times that Lattice ships with."""

import os
from pathlib import Path

import pytest
from build.lost_machines import QuickstartSite, remove_lost_disks, table
from build.process_site import TIMES
from build.servers import running_server
from build.waiting import wait_until

TRIES = int(os.environ.get("LOST_MACHINE_TRIES", "10"))
HAS_SHIPPED_TIMES = os.environ.get("LOST_MACHINE_SHIPPED_TIMES") == "1"
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
# Seconds: until all services are ready after the loss, and until the bill is back after that.
READY_WITHIN, BILL_WITHIN = 300.0, 180.0

pytestmark = [pytest.mark.prove, pytest.mark.xdist_group("up"), pytest.mark.timeout(60 + 500 * TRIES)]


def test_bill_returns_after_a_lost_machine(tmp_path: Path) -> None:
    times = (
        [] if HAS_SHIPPED_TIMES else [word for name, value in TIMES.items() for word in (f"--{name}", value)]
    )
    losses = []
    with running_server(tmp_path, "--controllers", "*", "--providers", "local", *times) as server:
        site = QuickstartSite(server)
        site.apply(QUICKSTART)
        wait_until(site.are_services_ready, "the quickstart is ready", within=READY_WITHIN)
        for number in range(TRIES):
            nodes = sorted(node for node in site.nodes() if site.replicas_on(node))
            # The machine with most replicas every other time: it is the one that several services must leave together.
            crowded = max(nodes, key=lambda node: (len(site.replicas_on(node)), node))
            node = crowded if number % 2 == 0 else nodes[number % len(nodes)]
            losses.append(site.lose_and_watch(node, READY_WITHIN, BILL_WITHIN))
            remove_lost_disks(tmp_path)
            if losses[-1].ready_after_s is None:
                break
    print(table(losses))
    assert len(losses) == TRIES
    assert all(loss.is_healed for loss in losses)
