"""Requests made up from our own OpenAPI documents against a real server: `python tests/fuzz/api.py --requests 20000`.

Every document that the server lists, and joining, which is in none. Fails on an answer of 5xx, on one that takes over five seconds, when
the server does not live on, when a document is not there, and when fewer requests were sent than asked for.
"""

import argparse
import base64
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))
from build.servers import Server, start

SLOW = 5.0
ROUNDS = (
    8  # some operations can be asked in a few ways only: the others are asked more often, in another round
)
HOME = "/apis/lattice.dev/v1alpha1"
EXPECTED = {  # whatever the documents come to be, these are asked
    f"POST {HOME}/join",
    *(f"POST {HOME}/fleet/{question}" for question in ("plan", "why", "fit", "whatif", "cost", "optimise")),
    f"POST {HOME}/namespaces/{{namespace}}/latticeservices",
    "POST /api/v1/namespaces/{namespace}/configmaps",
}
TEXT = {"type": "string"}
JOIN = {
    "openapi": "3.0.0",
    "info": {"title": "joining", "version": "1"},
    "paths": {
        "/apis/lattice.dev/v1alpha1/join": {
            "post": {
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "token": TEXT,
                                    "request": TEXT,
                                    "name": TEXT,
                                    "certificate": TEXT,
                                    "signature": TEXT,
                                },
                            }
                        }
                    },
                },
                "responses": {"201": {"description": "It has joined."}},
            }
        }
    },
}


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
    operations = [
        found.ok() for schema in documents(session, server.url) for found in schema.get_all_operations()
    ]
    asked = {operation.label for operation in operations}
    count.bad += [f"no document tells of {label}" for label in sorted(EXPECTED - asked)]
    for round_ in range(ROUNDS):
        left = wanted - count.answers.total()
        if left <= 0:
            break
        each = -(-left // len(operations)) * (
            round_ + 1
        )  # rounded up, and more when some have nothing more to say
        for operation in operations:
            settings_ = settings(
                max_examples=each,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            seed(number + round_)(
                settings_(given(operation.as_strategy())(sender(session, server.url, count)))
            )()
    if count.answers.total() < wanted:
        count.bad.append(f"{count.answers.total():,} requests were sent, {wanted:,} were asked for")
    return count


def documents(session: requests.Session, url: str) -> Iterator[Any]:
    """All that the server lists, and one for joining. Raises HTTPError if one of them is not there."""
    listed = session.get(f"{url}/openapi/v3", timeout=30)
    listed.raise_for_status()
    for place in listed.json()["paths"].values():
        answer = session.get(f"{url}{place['serverRelativeURL']}", timeout=30)
        answer.raise_for_status()
        yield _schema(answer.json(), url)
    yield _schema(JOIN, url)


def _schema(document: dict[str, Any], url: str) -> Any:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    return schema


def sender(session: requests.Session, url: str, count: Count) -> Callable[[schemathesis.Case], None]:
    def send(case: schemathesis.Case) -> None:
        if case.query and "watch" in case.query:
            case.query["timeoutSeconds"] = "1"  # 0 is as long as the server likes
        try:
            answer = case.call(
                session=session, base_url=url, timeout=10, verify=session.verify, cert=session.cert
            )
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
            alive = (
                server.process.poll() is None
                and session_of(server).get(f"{server.url}/readyz", timeout=10).ok
            )
        finally:
            server.stop()
    print("| answer | times |\n|---|---|")
    for status, times in sorted(count.answers.items()):
        print(f"| {status} | {times:,} |")
    print(
        f"\n{count.answers.total():,} requests in {time.monotonic() - began:.0f} s; {len(dict.fromkeys(count.bad))} findings"
    )
    for line in dict.fromkeys(count.bad):
        print(line)
    if not alive:
        print("the server is not ready any more")
    return int(bool(count.bad) or not alive)


if __name__ == "__main__":
    sys.exit(main())
