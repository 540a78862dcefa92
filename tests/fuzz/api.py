"""Requests made up from our own OpenAPI documents against a real server: `python tests/fuzz/api.py --requests 20000`.

Fails on an answer of 5xx, on one that takes over five seconds, and when the server does not live on.
"""

import argparse
import base64
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))
from servers import Server, start

SLOW = 5.0
DOCUMENTS = ("apis/lattice.dev/v1alpha1", "api/v1", "apis/coordination.k8s.io/v1", "version", "apis")


class Count:
    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.bad: list[str] = []

    def note(self, what: str, answer: schemathesis.Response) -> None:
        self.answers[answer.status_code] += 1
        if answer.status_code >= 500:
            self.bad.append(f"{answer.status_code} {what}: {answer.text[:300]}")
        if answer.elapsed > SLOW:
            self.bad.append(f"{answer.elapsed:.1f} s {what}")


def session_of(server: Server) -> requests.Session:
    """As an administrator, by certificate."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    session = requests.Session()
    session.trust_env = False  # neither proxies nor authorities of this machine
    files = {}
    for name, data in (
        ("ca", config["clusters"][0]["cluster"]["certificate-authority-data"]),
        ("cert", config["users"][0]["user"]["client-certificate-data"]),
        ("key", config["users"][0]["user"]["client-key-data"]),
    ):
        files[name] = server.data_dir / f"fuzz-{name}.pem"
        files[name].write_bytes(base64.b64decode(data))
    session.verify, session.cert = str(files["ca"]), (str(files["cert"]), str(files["key"]))
    return session


def fuzz(server: Server, wanted: int, number: int) -> Count:
    session, count = session_of(server), Count()
    operations = []
    for document in DOCUMENTS:
        answer = session.get(f"{server.url}/openapi/v3/{document}", timeout=30)
        if answer.ok:
            schema = schemathesis.openapi.from_dict(answer.json())
            schema.config.update(base_url=server.url)
            operations += [found.ok() for found in schema.get_all_operations()]
    each = -(-wanted // len(operations))  # rounded up
    for operation in operations:
        settings_ = settings(
            max_examples=each, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        seed(number)(settings_(given(operation.as_strategy())(sender(session, server.url, count))))()
    return count


def sender(session: requests.Session, url: str, count: Count) -> Callable[[schemathesis.Case], None]:
    def send(case: schemathesis.Case) -> None:
        if case.query and "watch" in case.query:
            case.query["timeoutSeconds"] = "1"  # 0 is as long as the server likes
        try:
            answer = case.call(session=session, base_url=url, timeout=10, verify=session.verify, cert=session.cert)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # never sent
        count.note(f"{case.method} {case.formatted_path} {str(case.body)[:200]}", answer)

    return send


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given_ = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder), "--controllers", "*,-clusters")
        began = time.monotonic()
        try:
            count = fuzz(server, given_.requests, given_.seed)
            alive = server.process.poll() is None and session_of(server).get(f"{server.url}/readyz", timeout=10).ok
        finally:
            server.stop()
    told = ", ".join(f"{status}: {times:,}" for status, times in sorted(count.answers.items()))
    print(f"{count.answers.total():,} requests in {time.monotonic() - began:.0f} s; {told}")
    for line in dict.fromkeys(count.bad):
        print(line)
    if not alive:
        print("the server is not ready any more")
    return int(bool(count.bad) or not alive)


if __name__ == "__main__":
    sys.exit(main())
