"""Objects of the load: the service of the first example, about 1 KB of JSON."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from bench.load import request

SERVICES = "/apis/lattice.dev/v1alpha1/namespaces/default/latticeservices"
SIZE = 1_000  # bytes
_EXAMPLE = Path(__file__).parent.parent / "examples/seeds/000-latticeservice/api-gateway.yaml"


@cache
def _template() -> str:
    obj = yaml.safe_load(_EXAMPLE.read_text())
    obj["metadata"]["name"] = "NAME"
    obj["metadata"]["annotations"] = {"example.com/notes": ""}
    missing = SIZE - len(json.dumps(obj))
    obj["metadata"]["annotations"]["example.com/notes"] = "n" * max(0, missing)
    return json.dumps(obj)


def service(name: str) -> bytes:
    return _template().replace('"NAME"', f'"{name}"').encode()


def creates(prefix: str, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield request("POST", SERVICES, service(f"{prefix}-{number:06d}"))


def gets(prefix: str, existing: int, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield request("GET", f"{SERVICES}/{prefix}-{number % existing:06d}")
