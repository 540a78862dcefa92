"""Every printed manifest is accepted; an invalid spec is reported with its field, its value and the allowed
values."""

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
import yaml

from lattice.kinds import CORE_KINDS, KINDS, LATTICE_KINDS
from lattice.kinds.constraints import Taint, Toleration
from lattice.kinds.meta import yaml_manifest as manifest
from lattice.kinds.meta.base import Kind, Part
from lattice.kinds.meta.schema import structural_schema
from lattice.kinds.meta.validator import Findings, compile_schema
from lattice.kinds.pool import PoolStatus
from lattice.kinds.service import ServiceStatus

EXAMPLES = Path(__file__).parents[2] / "examples"
BY_NAME = {kind.resource.kind: kind for kind in KINDS}
ENCODER = msgspec.json.Encoder(decimal_format="number")


def examples() -> list[object]:
    found = []
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        for document in manifest.load_documents(path.read_bytes(), str(path)):
            name = f"{path.relative_to(EXAMPLES)} {document.value['metadata']['name']}"
            found.append(pytest.param(document.value, id=name))
    return found


def decoded(value: dict) -> Kind:
    return msgspec.json.decode(ENCODER.encode(value), type=BY_NAME[value["kind"]])


def a(text: str) -> Kind:
    """A kind from the YAML of its spec, with the kind's name on the first line."""
    name, _, spec = text.strip().partition("\n")
    resource = BY_NAME[name].resource
    return decoded(
        {
            "apiVersion": resource.api_version,
            "kind": name,
            "metadata": {"name": "x"},
            "spec": yaml.safe_load(spec),
        }
    )


def the(*path: str) -> Kind:
    return decoded(manifest.load_documents(EXAMPLES.joinpath(*path).read_bytes(), "example")[0].value)


@pytest.mark.parametrize("value", examples())
def test_example_is_accepted(value):
    findings = Findings()
    compile_schema(structural_schema(BY_NAME[value["kind"]]))(value, "", findings)
    assert findings == Findings()
    found = decoded(value)
    assert list(found.problems()) == []
    assert msgspec.json.decode(ENCODER.encode(found), type=type(found)) == found


def test_examples_are_found():
    assert len(examples()) > 40


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_has_a_description(kind):
    silent = [
        path
        for path, schema in _fields(structural_schema(kind), "")
        if not schema.get("description") and path.split(".")[0] != "metadata"
    ]
    assert [path for path in silent if ".conditions[]." not in path] == []


def _fields(schema, path):
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}", inner
        yield from _fields(inner, f"{path}{name}.")
        yield from _fields(inner.get("items", {}), f"{path}{name}[].")
        if isinstance(inner.get("additionalProperties"), dict):
            yield from _fields(inner["additionalProperties"], f"{path}{name}{{}}.")


def test_names_are_unique():
    resources = [kind.resource for kind in KINDS]
    names = [name for r in resources for name in {r.plural, r.singular, *r.short_names}]
    assert len(names) == len(set(names))
    assert len({r.id for r in resources}) == len(KINDS)
    assert KINDS == LATTICE_KINDS + CORE_KINDS


@pytest.mark.parametrize("kind", LATTICE_KINDS, ids=lambda kind: kind.__name__)
def test_every_status_has_conditions_and_observed_generation(kind):
    status = structural_schema(kind)["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert {"phase", "observedGeneration"} <= status.keys()


def test_service_status_of_the_design_round_trips():
    text = """
phase: Running
placements:
  - pool: us-east
    cluster: us-east-prod-7a3b
    replicas: 2
    node: medium
    cost: {hourly: 0.384}
  - pool: eu-west
    cluster: eu-west-prod-2c1d
    replicas: 1
    node: medium
    cost: {hourly: 0.192}
totalCost: {hourly: 0.576, projected30Day: 414.72}
health: {available: 3, ready: 3}
lastScheduled: "2024-01-15T10:30:00Z"
schedulerDecision:
  reason: "Placed in us-east and eu-west per requiredRegions constraint"
  alternatives:
    - pool: ap-south
      rejected: "No GDPR compliance label"
"""
    status = msgspec.convert(yaml.safe_load(text), ServiceStatus)
    assert status.total_cost.projected30_day == status.total_cost.hourly * 720 == Decimal("414.72")
    assert msgspec.json.decode(ENCODER.encode(status)) == yaml.safe_load(text)


def test_pool_status_of_the_design_round_trips():
    text = """
phase: Ready
capacity: {allocatedNodes: 45, allocatedCores: 720, allocatedMemoryGi: 2880}
utilization: {nodes: 0.45, cores: 0.36, memory: 0.36}
budget: {currentMonthCost: 4523.50, projectedMonthCost: 8200.00, utilizationPercent: 0.82}
clusters:
  - {name: us-east-prod-7a3b, nodes: 15, services: 23}
"""
    status = msgspec.convert(yaml.safe_load(text), PoolStatus)
    assert msgspec.json.decode(ENCODER.encode(status)) == yaml.safe_load(text)


def test_pool_amounts_are_integers():
    pool = the("seeds", "000-latticepool", "us-east.yaml").spec
    assert pool.capacity.max_millicores == 2_000_000
    assert pool.capacity.max_memory_bytes == 8000 << 30
    assert pool.budget.limit_micros == 10_000_000_000
    assert pool.budget.alert_millionths == 800_000
    assert pool.compliance == ("soc2", "hipaa")
    assert pool.data_residency == ()


@pytest.mark.parametrize(
    ("provider", "cores", "memory", "price"),
    [
        pytest.param(
            "aws", 4000, 16 << 30, 192_000, id="a provider that states no size has the abstract one"
        ),
        pytest.param("proxmox", 4000, 16 << 30, 50_000, id="a plain number of memory is MiB"),
        pytest.param("docker", 4000, 4 << 30, 0, id="docker states less, and is free"),
    ],
)
def test_a_class_has_one_size_per_provider(provider, cores, memory, price):
    spec = the("seeds", "000-latticenodeclass", "medium.yaml").spec
    size = spec.size_on(provider)
    assert (size.millicores, size.memory, size.storage, spec.price_on(provider)) == (
        cores,
        memory,
        100 << 30,
        price,
    )
    assert spec.size_on("gcp") is None
    assert spec.price_on("gcp") is None


def test_region_overrides_lists_and_quotas():
    spec = the("seeds", "001-cloudinfrastructure", "aws-production.yaml").spec
    assert spec.compliance_of("us-west-2") == ("SOC2",)
    assert spec.capabilities_of("us-west-2") == ()
    assert (spec.max_clusters_of("us-east-1"), spec.max_nodes_per_cluster_of("us-east-1")) == (10, 100)
    assert (spec.max_clusters_of("us-west-2"), spec.max_nodes_per_cluster_of("us-west-2")) == (5, 50)
    assert spec.budget.hard_limit is True
    assert spec.budget.alert_millionths == 800_000


def test_data_centre_amounts_are_integers():
    spec = the("seeds", "001-staticinfrastructure", "dc-east.yaml").spec
    assert (spec.capacity.millicores, spec.capacity.memory_bytes, spec.capacity.storage_bytes) == (
        800_000,
        3200 << 30,
        500 << 40,
    )
    assert spec.network.egress_bits == 10**10
    assert spec.network.latency_ms == {"us-west-dc1": 65, "eu-west-dc1": 85, "aws-us-east-1": 2}
    assert spec.reservation.admits({"priority": "critical", "x": "y"})
    assert not spec.reservation.admits({"priority": "low"})
    assert the("seeds", "001-overflow", "dc-east.yaml").spec.overflow.trigger_millionths == 900_000


def test_service_needs_a_replica_per_region():
    spec = the("seeds", "000-latticeservice", "api-gateway.yaml").spec
    assert (spec.min_replicas, spec.desired_replicas(), spec.desired_replicas(min_regions=5)) == (3, 3, 5)
    assert spec.requests == {"cpu": 2000, "memory": 4 << 30}
    assert spec.resources["database"].is_service
    assert spec.resources["database"].is_outbound
    assert not spec.resources["database"].is_inbound


def test_container_requests_override_placement_resources():
    service = a("""LatticeService
containers:
  main: {image: x, resources: {requests: {cpu: 0.5, memory: 1Gi}, limits: {cpu: "1", memory: 1Gi}}}
  side: {image: y, resources: {requests: {cpu: 250m}, limits: {cpu: 1}}}
placement: {resources: {cores: 8}}
""")
    assert service.spec.requests == {"cpu": 750, "memory": 1 << 30}
    assert service.spec.limits == {"cpu": 2000}  # side may use any memory, so the whole has no limit
    assert list(service.problems()) == []


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x}}\nreplicas: {min: 5, max: 3}",
            "spec.replicas.min",
            "must be at most replicas.max (3), got 5",
            id="more replicas than the most",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x}}\nplacement: {requiredRegions: [a, b, c]}\nreplicas: {max: 2}",
            "spec.placement.requiredRegions",
            "names 3 regions, but replicas.max allows only 2",
            id="more regions than replicas",
        ),
        pytest.param(
            "LatticeService\ncontainers: {}", "spec.containers", "at least one container", id="no container"
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {}}",
            "spec.containers.main",
            "neither image nor command",
            id="nothing to run",
        ),
        pytest.param(
            "LatticeService\ncontainers: {Main: {image: x}}",
            "spec.containers.Main",
            "lower-case",
            id="a container in capitals",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x, resources: {requests: {memory: 4g}}}}",
            "spec.containers.main.resources.requests.memory",
            'got "4g"',
            id="docker's unit in a request",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x, resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}}}",
            "spec.containers.main.resources.requests.cpu",
            "must be at most the limit (1500m), got 2",
            id="a request above its limit",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x, resources: {limits: {cpu: 1500m}}}}\nplacement: {resources: {cores: 2}}",
            "spec.placement.resources",
            "request 2 cpu in total: must be at most the total limit (1500m)",
            id="a service that needs more than its containers may use",
        ),
        pytest.param(
            "LatticeService\ncontainers: {a: {image: x, ports: [{name: p, port: 80}]}, b: {image: x, ports: [{name: p, port: 80}]}}",
            "spec.containers.b.ports[0].port",
            "must be free, but a/p already uses 80/TCP",
            id="two containers on one port",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x, ports: [{name: p}, {name: p}]}}",
            "spec.containers.main.ports[1].name",
            'is used twice: "p"',
            id="one name for two ports",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x, probes: {readiness: {tcp: {port: web}}}}}",
            "spec.containers.main.probes.readiness.tcp.port",
            "the name of a port of this container (none)",
            id="a probe of no port",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x, probes: {liveness: {}}}}",
            "spec.containers.main.probes.liveness",
            "exactly one of exec, tcp and http, got none",
            id="a probe that asks nothing",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x}}\ndisconnect: {policy: stop, stopAfter: 3m}",
            "spec.disconnect.stopAfter",
            "below 120s, the time until a replacement starts, got 3m",
            id="stopping after the replacement started",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x}}\nplacement: {pools: {matchLabels: {tier: 'a b'}}}",
            "spec.placement.pools.matchLabels.tier",
            "label value must be",
            id="a selector that nothing can match",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x}}\nplacement: {resources: {cores: 1.0e+12}}",
            "spec.placement.resources.cores",
            "from 0 to 1,000,000,000",
            id="more cores than there are",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x}}\nplacement: {resources: {gpu: 1.5}}",
            "spec.placement.resources.gpu",
            "a fraction up to 1 or a whole number, got 1.5",
            id="one GPU and a half",
        ),
        pytest.param(
            "LatticeService\ncontainers: {main: {image: x, resources: {requests: {gpu: 1500m}}}}",
            "spec.containers.main.resources.requests.gpu",
            "must be a whole number of GPUs, or a part of one GPU below 1, got 1500m",
            id="one GPU and a half for a container",
        ),
        pytest.param(
            "LatticeWorkload\ncontainers: {main: {image: x}}\nrequests: {gpu: 1.5}",
            "spec.requests.gpu",
            "must be a whole number of GPUs, or a part of one GPU below 1, got 1.5",
            id="one GPU and a half for a workload",
        ),
        pytest.param(
            "LatticeWorkload\ncontainers: {a: {image: x, resources: {requests: {gpu: 1}}},"
            " b: {image: x, resources: {requests: {gpu: 0.5}}}}",
            "spec.containers",
            "a whole number of GPUs in total, or a part of one GPU below 1, got 1500m",
            id="one GPU and a half for two containers",
        ),
        pytest.param(
            "LatticePool\nprovider: {type: aws}\nlabels: {tier: 3}",
            "spec.labels.tier",
            "string or a list of strings, got 3",
            id="a number as a label",
        ),
        pytest.param(
            "LatticePool\nprovider: {type: aws}\nlabels: {a.b/c: [x, {}]}",
            "spec.labels[a.b/c]",
            "got {}",
            id="an object in a label",
        ),
        pytest.param(
            "LatticePool\nprovider: {type: aws}\nbudget: {alertThreshold: 180}",
            "spec.budget.alertThreshold",
            "got 180",
            id="an alert at more than all",
        ),
        pytest.param(
            "LatticePool\nprovider: {type: aws}\nbudget: {maxMonthlyCost: -1}",
            "spec.budget.maxMonthlyCost",
            "got -1",
            id="a negative budget",
        ),
        pytest.param(
            "LatticeNodeClass\ncostPerHour: {aws: -0.1}",
            "spec.costPerHour.aws",
            "got -0.1",
            id="a negative price",
        ),
        pytest.param(
            "LatticeNodeClass\nproviders: {docker: {memory: lots}}",
            "spec.providers.docker.memory",
            'got "lots"',
            id="memory in words",
        ),
        pytest.param(
            "LatticeNodeClass\nproviders: {docker: {cores: 2, cpus: 4}}",
            "spec.providers.docker.cpus",
            "must equal cores (2)",
            id="two sizes at once",
        ),
        pytest.param(
            "LatticePlacementPolicy\nclusterPolicy: {minNodes: 9, maxNodes: 3}",
            "spec.clusterPolicy.minNodes",
            "at most maxNodes (3), got 9",
            id="min above max",
        ),
        pytest.param(
            "LatticePlacementPolicy\nclusterPolicy: {binPackingThreshold: 0.5, consolidation: {minUtilization: 60}}",
            "spec.clusterPolicy.consolidation.minUtilization",
            "must be below binPackingThreshold (0.5)",
            id="merging what is being filled",
        ),
        pytest.param(
            "LatticePlacementPolicy\nselector: {matchExpressions: [{key: a, operator: In}]}",
            "spec.selector.matchExpressions[0].values",
            "at least one value for In",
            id="in nothing",
        ),
        pytest.param(
            "CloudInfrastructure\nprovider: aws\nregions: {'a b': {}}",
            "spec.regions.a b",
            "label value",
            id="a region with a space",
        ),
        pytest.param(
            "CloudInfrastructure\nprovider: aws\nregions: {r: {budget: {alertThreshold: 0}}}",
            "spec.regions.r.budget.alertThreshold",
            "got 0",
            id="an alert at nothing",
        ),
        pytest.param(
            "StaticInfrastructure\nlocation: {name: x}\ncapacity: {nodes: 1, memory: 4g}",
            "spec.capacity.memory",
            'got "4g"',
            id="docker's unit",
        ),
        pytest.param(
            "StaticInfrastructure\nlocation: {name: x}\ncapacity: {nodes: 1}\nnetwork: {latencyTo: {y: '65'}}",
            "spec.network.latencyTo.y",
            "must be a duration",
            id="a latency without unit",
        ),
        pytest.param(
            "StaticInfrastructure\nlocation: {name: x}\ncapacity: {nodes: 1}\nnetwork: {egress: 10G}",
            "spec.network.egress",
            "10Gbps",
            id="a bandwidth without unit",
        ),
        pytest.param(
            "StaticInfrastructure\nlocation: {name: x}\ncapacity: {nodes: 1, cores: 8}\nreservation: {reserved: {cores: 9}}",
            "spec.reservation.reserved.cores",
            "must be at most capacity.cores (8), got 9",
            id="more reserved than there is",
        ),
        pytest.param(
            "StaticInfrastructure\nlocation: {name: x}\ncapacity: {nodes: 1}\noverflow: {enabled: true}",
            "spec.overflow.target",
            "must name a CloudInfrastructure",
            id="overflow into nowhere",
        ),
        pytest.param(
            "StaticInfrastructure\nlocation: {name: x}\ncapacity: {nodes: 1, accelerators: [{type: t4, count: 1}, {type: t4, count: 2}]}",
            "spec.capacity.accelerators",
            'lists "t4" more than once',
            id="one model twice",
        ),
        pytest.param(
            "LatticeCluster\npool: p\nnodes: {medium: 4}\nmaxNodes: 3",
            "spec.nodes",
            "at most maxNodes (3), got 4",
            id="a cluster above its size",
        ),
        pytest.param(
            "LatticeWorkload\ncontainers: {main: {image: x}}\nrequests: {memory: 2Gi}\nlimits: {memory: 1Gi}",
            "spec.requests.memory",
            "must be at most the limit (1Gi), got 2Gi",
            id="a workload's request above its limit",
        ),
        pytest.param(
            "LatticeWorkload\ncontainers: {main: {image: x}}\nconstraints: {tolerations: [{value: x}]}",
            "spec.constraints.tolerations[0].key",
            "is required for operator Equal",
            id="a toleration of nothing",
        ),
        pytest.param(
            "LatticeAgreement\ncaller: {name: a}\ncallee: {name: a}",
            "spec.callee",
            "must differ from the caller",
            id="talking to oneself",
        ),
        pytest.param(
            "AutomationRule\nwhen: {nodeCpu: {above: 0.85, for: soon}}\nactions: [{event: {reason: Busy}}]",
            "spec.when.nodeCpu.for",
            'got "soon"',
            id="a duration in words",
        ),
        pytest.param(
            "AutomationRule\nwhen: {}\nactions: [{event: {reason: Busy}}]",
            "spec.when",
            "exactly one of nodeCpu, workloadFailures, budget, capacity, got none",
            id="a rule without cause",
        ),
        pytest.param(
            "AutomationRule\nwhen: {nodeCpu: {above: 85}}\nactions: [{retryWorkload: {}}]",
            "spec.actions[0].retryWorkload",
            "use it with when.workloadFailures",
            id="a retry of nothing",
        ),
        pytest.param(
            "AutomationRule\nwhen: {workloadFailures: {count: 3}}\nactions: [{webhook: {url: 'ftp://x'}}]",
            "spec.actions[0].webhook.url",
            'must be an https address, got "ftp://x"',
            id="a webhook that is none",
        ),
        pytest.param(
            "AutomationRule\nwhen: {workloadFailures: {count: 3}}\nactions: [{webhook: {url: 'https://me:secret@x'}}]",
            "spec.actions[0].webhook.url",
            "must not carry a user name or password",
            id="a password in the open",
        ),
    ],
)
def test_invalid_spec_is_reported(text, where, says):
    (cause,) = a(text).problems()
    assert cause.field == where
    assert says in cause.message
    assert "secret" not in cause.message


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        pytest.param(Toleration(key="gpu", value="yes"), True, id="the same key and value"),
        pytest.param(Toleration(key="gpu"), False, id="another value"),
        pytest.param(Toleration(key="gpu", operator="Exists"), True, id="any value"),
        pytest.param(Toleration(operator="Exists"), True, id="everything"),
        pytest.param(
            Toleration(key="gpu", operator="Exists", effect="NoExecute"), False, id="another effect"
        ),
    ],
)
def test_toleration(toleration, tolerates):
    assert toleration.tolerates(Taint(key="gpu", value="yes", effect="NoSchedule")) is tolerates


def test_webhook_url_problems_hide_the_password():
    rule = a(
        "AutomationRule\nwhen: {workloadFailures: {count: 3}}\nactions: [{webhook: {url: 'http://me:secret@x'}}]"
    )
    assert [cause.message for cause in rule.problems()] == [
        "must not carry a user name or password",
        "must be an https address",
    ]


def test_data_of_secrets_is_base64():
    secret = decoded(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s"},
            "data": {"a": "x!"},
            "stringData": {"b": "x!"},
        }
    )
    assert [str(cause) for cause in secret.problems()] == [
        "data.a: must be base64; use stringData for plain text"
    ]


def test_event_last_seen_comes_from_its_series():
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "LatticePool", "name": "p"},
    }
    assert (
        decoded(
            event
            | {"lastTimestamp": "T1", "eventTime": None, "series": {"count": 2, "lastObservedTime": "T2"}}
        ).last_seen
        == "T2"
    )
    assert decoded(event | {"lastTimestamp": "T1", "eventTime": "T0"}).last_seen == "T1"
    assert decoded(event).last_seen is None


def test_parts_are_never_changed_in_place():
    part = the("seeds", "000-latticepool", "us-east.yaml").spec
    assert isinstance(part, Part)
    with pytest.raises(AttributeError):
        part.budget = None
