"""Every metric, in one table; seeds' own names stay as they are, the rest begins with lattice_."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

REGISTRY = CollectorRegistry()

REQUESTS = Counter(
    "lattice_api_requests_total", "Requests answered, by verb, resource and status code.", ["verb", "resource", "code"], registry=REGISTRY
)
REQUEST_SECONDS = Histogram(
    "lattice_api_request_duration_seconds",
    "Time to answer a request (watches not counted).",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    registry=REGISTRY,
)
WATCHES = Gauge("lattice_api_watches", "Watches open now.", registry=REGISTRY)
REVISION = Gauge("lattice_store_revision", "Newest revision of the store that this server knows.", registry=REGISTRY)
LEADER = Gauge("lattice_leader", "1 on the server that acts, 0 on those that stand by.", registry=REGISTRY)
COLLECTED = Counter(
    "lattice_garbage_collected_total",
    "Objects removed because their owner or namespace went, or their time was up.",
    ["reason"],
    registry=REGISTRY,
)

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition() -> bytes:
    """What GET /metrics answers."""
    return generate_latest(REGISTRY)
