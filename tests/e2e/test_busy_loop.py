"""An automation rule about busy nodes fires once, by event and webhook, for a workload that keeps its node
busy."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from build.process_site import TIMES, Object, Site
from build.rack import workload
from build.waiting import wait_until

from lattice.server.access.certificate_authority import CertificateAuthority, new_authority

pytestmark = [pytest.mark.xdist_group("busy-loop"), pytest.mark.timeout(180)]

RULES = "/apis/lattice.dev/v1alpha1/automationrules"
BUSY = ("sh", "-c", "while true; do :; done")


@contextmanager
def listening(folder: Path, authority: CertificateAuthority) -> Iterator[tuple[str, list[Any]]]:
    """An https address and what was posted to it."""
    heard: list[Any] = []

    class Ear(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:  # type: ignore[override]
            return None

    pair = authority.issue_server(["127.0.0.1"])
    (folder / "ear.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "ear.pem")
    with HTTPServer(("127.0.0.1", 0), Ear) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}/busy", heard
        finally:
            server.shutdown()
            serving.join()


def a_busy_node_rule(url: str) -> Object:
    actions = [{"event": {"reason": "NodeBusy"}}, {"webhook": {"url": url}}]
    spec = {"when": {"nodeCpu": {"above": 0.5, "for": "1s"}}, "actions": actions}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "AutomationRule",
        "metadata": {"name": "busy"},
        "spec": spec,
    }


def test_busy_loop_triggers_the_rule_once(tmp_path: Path) -> None:
    authority, _ = new_authority()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.pem)
    flags = {**TIMES, "webhook-allow": "127.0.0.1/32", "webhook-ca": str(trusted)}
    with listening(tmp_path, authority) as (url, heard), Site(tmp_path, flags) as site:
        for node in ("north", "south"):
            site.start_agent(node, site.token(node), "--cpu", "200m")
        alone: Object = {"requests": {"cpu": "150m"}}  # two of them do not fit on one node
        site.apply(
            a_busy_node_rule(url),
            workload(site, "rests", "sleep", "1000", **alone),
            workload(site, "burns", *BUSY, **alone),
        )
        wait_until(lambda: site.is_running("rests") and site.is_running("burns"), "both run")
        busy, calm = site.node_of("burns"), site.node_of("rests")
        wait_until(lambda: "NodeBusy" in site.reasons(busy), "it is told of that its node is busy")
        posted = wait_until(lambda: heard, "the webhook is called")
        assert [(each["rule"], each["object"]) for each in posted] == [("busy", f"latticenode/{busy}")]
        assert "of 200m cpu in use" in posted[0]["message"]
        assert "NodeBusy" not in site.reasons(calm)
        status = site.get(f"{RULES}/busy")["status"]
        assert (status["fired"], list(status["crossed"]), status.get("lastError", "")) == (
            1,
            [f"latticenode/{busy}"],
            "",
        )
