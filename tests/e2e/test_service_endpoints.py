"""A process gets the addresses of the ready replicas of the services that it calls, from its next start on."""

import os
import signal
from pathlib import Path

import pytest
from build.process_site import SERVICES, Object, Site
from build.rack import declared, join, supply
from build.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("calling"), pytest.mark.timeout(180)]

AGREEMENTS = "/apis/lattice.dev/v1alpha1/namespaces/default/latticeagreements"


def a_linked_service(site: Site, name: str, other: str, direction: str, **container: object) -> Object:
    main = {"command": ["sleep", "100000"], "env": {"SITE": site.mark}, **container}
    resources = {other: {"type": "Service", "direction": direction}}
    spec = {
        "containers": {"main": main},
        "resources": resources,
        "replicas": {"min": 1},
        "placement": {"resources": {"cores": 0.1}},
    }
    return declared("LatticeService", name, spec, namespace="default")


def test_new_caller_gets_endpoints_without_restarting_others(tmp_path: Path) -> None:
    with Site(tmp_path) as site:
        site.apply(*supply(), a_linked_service(site, "shop", "stock-api", "outbound"))
        join(site, "box")
        wait_until(lambda: site.is_running("shop-0"), "the caller runs before the other is there")
        before = site.pid("shop-0")
        assert "STOCK_API_HOST" not in site.environment(before)
        site.apply(a_linked_service(site, "stock-api", "shop", "inbound", ports=[{"name": "http"}]))
        found = wait_until(lambda: _endpoints(site), "the agreement has addresses")
        assert site.pid("shop-0") == before, "nobody is started anew because somebody else moved"
        os.kill(before, signal.SIGKILL)
        now = wait_until(
            lambda: site.is_running("shop-0") and site.pids("shop-0") - {before}, "it is started again"
        )
        told = site.environment(now.pop())
        [end] = found
        assert told["STOCK_API_ENDPOINTS"] == f"{end['address']}:{end['port']}"
        assert (told["STOCK_API_HOST"], told["STOCK_API_PORT"]) == (end["address"], str(end["port"]))
        assert site.get(f"{SERVICES}/shop")["status"]["placements"]


def _endpoints(site: Site) -> list[Object]:
    return [
        end for each in site.get(AGREEMENTS)["items"] for end in each.get("status", {}).get("endpoints", ())
    ]
