"""User actions of the simulation: services and workloads are created, changed and deleted; nodes, pools,
budgets and prices change."""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from lattice.kinds.node import DRAINING_TAINT
from lattice.sim.world.recording_client import Body, Client
from lattice.sim.world.world import World

NODE_CLASSES: dict[str, tuple[float, float, str]] = {"small": (1, 2, "0.05"), "large": (2, 4, "0.09")}
POOL_CLASSES = {"east": ("small", "large"), "west": ("small",)}
# Labels that pools have unless a user changes the labels. Every label that a service of the simulation may
# require is on at least one of the pools.
POOL_LABELS: dict[str, Body] = {
    "east": {"tier": "production", "region": "east", "compliance": ["gdpr", "soc2"], "dataResidency": "eu"},
    "west": {
        "tier": ["production", "staging"],
        "region": "west",
        "compliance": ["SOC2"],
        "dataResidency": ["us", "eu"],
    },
}
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# A taint that some services tolerate.
SIM_TAINT_KEY = "sim.lattice.dev/kept-free"
SERVICE_NAMES = ("api", "web", "db", "batch")
STANDALONE_WORKLOADS = ("lone-0", "lone-1", "lone-2")
GANG_WORKLOADS = ("crew-0", "crew-1", "crew-2")


def node_class_body(cores: float, memory: float, price: str, labels: Body | None = None) -> Body:
    resources = {"cores": cores, "memoryGi": memory, "storageGi": 10}
    return {
        "spec": {
            "providers": {"fake": {}},
            "resources": resources,
            "costPerHour": {"fake": float(price)},
            "labels": labels or {},
        }
    }


def pool_body(
    region: str, classes: tuple[str, ...], limit: float, max_nodes: int = 4, labels: Body | None = None
) -> Body:
    return {
        "spec": {
            "provider": {"type": "fake", "region": region},
            "capacity": {"maxNodes": max_nodes},
            "budget": {"maxMonthlyCost": limit},
            "nodeClasses": list(classes),
            "labels": labels or {"tier": "production", "region": region},
        }
    }


def service_body(replicas: int, cores: float, version: int = 1, **fields: Any) -> Body:
    containers = {
        "main": {
            "command": ["run", f"v{version}"],
            **({"ports": [{"name": "http"}]} if fields.pop("port", False) else {}),
        }
    }
    placement = {"resources": {"cores": cores, "memoryGi": 0.25}, **fields.pop("placement", {})}
    return {
        "spec": {"containers": containers, "placement": placement, "replicas": {"min": replicas}, **fields}
    }


ANTI_AFFINITY: Body = {
    "affinity": {
        "antiWorkload": {"required": [{"selector": {"matchLabels": {"sort": "lone"}}, "topologyKey": "node"}]}
    }
}


def workload_body(cores: str = "250m", version: int = 1, **fields: Any) -> Body:
    return {
        "spec": {
            "containers": {"main": {"command": ["run", f"v{version}"]}},
            "requests": {"cpu": cores, "memory": "128Mi"},
            **fields,
        }
    }


async def apply_supply(world: World, client: Client, rng: random.Random) -> None:
    """Apply node classes and pools; a request is repeated until the server accepts."""
    objects: list[tuple[str, str, Body, str]] = []
    for name, (cores, memory, price) in NODE_CLASSES.items():
        body = node_class_body(cores, memory, price, {"size": name})
        objects.append(("latticenodeclasses", name, body, ""))
    for name, classes in POOL_CLASSES.items():
        body = pool_body(name, classes, rng.choice((75, 120, 200)), labels=POOL_LABELS[name])
        objects.append(("latticepools", name, body, ""))
    for kind, name, body, namespace in objects:
        while await client.apply(kind, name, body, namespace) is None:
            await world.true_clock.sleep(0.5)


@dataclass
class Churn:
    """Random actions of a user, chosen by weight."""

    world: World
    client: Client
    rng: random.Random
    # Average seconds between actions; a pause is half to one and a half times the interval.
    interval_s: float = 4.0
    versions: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Act until cancelled."""
        client, choice = self.client, self.rng.choice
        actions: list[tuple[float, Callable[[], Coroutine[Any, Any, object]]]] = [
            (6, self.apply_service),
            (4, lambda: client.scale(choice(SERVICE_NAMES), self.rng.randint(0, 4))),
            (2, lambda: client.delete("latticeservices", choice(SERVICE_NAMES))),
            (3, self._apply_standalone),
            (2, lambda: client.delete("latticeworkloads", choice(STANDALONE_WORKLOADS))),
            (2, self._recreate_standalone),
            (1, self._flap_pool_limits),
            (2, self._edit),
            (1, self._gang),
            (2, self._cordon),
            (1, self._drain),
            (1, self._taint),
            (1, self._remove_node),
            (0.5, self._remove_pool),
            (1, self._label),
            (1, self._budget),
            (1, self._price),
            (1, lambda: client.get("latticeservices", choice(SERVICE_NAMES))),
            (1, lambda: client.retry(choice(STANDALONE_WORKLOADS))),
        ]
        weights = [weight for weight, _ in actions]
        while True:
            await self.world.true_clock.sleep(self.interval_s * (0.5 + self.rng.random()))
            await self.rng.choices([action for _, action in actions], weights)[0]()

    async def apply_service(self) -> None:
        """Create or change a service."""
        name = self.rng.choice(SERVICE_NAMES)
        version = self.versions[name] = self.versions.get(name, 0) + (self.rng.random() < 0.5)
        body = service_body(
            self.rng.randint(1, 3),
            self.rng.choice((0.25, 0.5, 0.75)),
            version,
            port=name == "web",
            **self._options(name),
        )
        await self.client.apply("latticeservices", name, body)

    def _options(self, name: str) -> dict[str, Any]:
        """Spec fields by service: db stops when its node is disconnected, batch has low priority, web selects
        pools, and api has high priority and may require compliance or spread."""
        placement: Body
        match name:
            case "db":
                placement = self.rng.choice(({}, {"dataResidency": "EU"}, {"dataResidency": "us"}))
                return {
                    "disconnect": self._stop_policy(),
                    "placement": placement,
                    "spread": self.rng.choice(([], [{"topologyKey": "node"}])),
                }
            case "batch":
                placement = self.rng.choice(
                    (
                        {},
                        {"nodeSelector": {"size": "large"}},
                        {"tolerations": [{"key": SIM_TAINT_KEY, "operator": "Exists"}]},
                    )
                )
                return {"priority": -10, "placement": placement}
            case "api":
                placement = self.rng.choice(({}, {"compliance": ["gdpr"]}, {"compliance": ["soc2"]}))
                return {
                    "priority": 10,
                    "placement": placement,
                    "spread": self.rng.choice(([], [{"topologyKey": "region"}])),
                }
        regional = {"matchLabels": {"region": self.rng.choice(sorted(POOL_CLASSES))}}
        staging = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["staging"]}]}
        return {"placement": self.rng.choice(({}, {"pools": regional}, {"pools": staging}))}

    def _stop_policy(self) -> Body:
        return {"policy": "stop", "stopAfter": f"{self.rng.choice((12, 18, 24, 27, 29))}s"}

    async def _apply_standalone(self) -> None:
        fields: Body = {"disconnect": self._stop_policy() if self.rng.random() < 0.5 else {"policy": "keep"}}
        if self.rng.random() < 0.5:
            fields["constraints"] = self.rng.choice(
                (ANTI_AFFINITY, {"nodeSelector": {"kind": "rack"}}, {"nodeSelector": {"size": "small"}})
            )
        state = "Stopped" if self.rng.random() < 0.2 else "Running"
        name = self.rng.choice(STANDALONE_WORKLOADS)
        version = self.versions[name] = self.versions.get(name, 0) + (self.rng.random() < 0.4)
        body = workload_body(self.rng.choice(("250m", "500m")), version, desiredState=state, **fields)
        await self.client.apply("latticeworkloads", name, {"metadata": {"labels": {"sort": "lone"}}, **body})

    async def _recreate_standalone(self) -> None:
        """Delete a workload and create a workload of the same name as soon as possible."""
        name = self.rng.choice(STANDALONE_WORKLOADS)
        await self.client.delete("latticeworkloads", name)
        for _ in range(self.rng.randint(1, 4)):
            await self.world.true_clock.sleep(self.rng.uniform(0.2, 2.0))
            created = await self.client.create(
                "latticeworkloads", name, workload_body("250m", 1, disconnect=self._stop_policy())
            )
            if created is not None:
                return

    async def _flap_pool_limits(self) -> None:
        """Scale a service up while the budget and the machine limit of a pool change repeatedly."""
        name, pool_name = self.rng.choice(SERVICE_NAMES), self.rng.choice(sorted(POOL_CLASSES))
        await self.client.apply(
            "latticeservices", name, service_body(self.rng.randint(2, 4), 0.75, self.versions.get(name, 0))
        )
        for _ in range(self.rng.randint(4, 12)):
            limit, max_nodes = self.rng.choice(((40, 4), (200, 4), (200, 1), (200, 2)))
            body = {"spec": {"budget": {"maxMonthlyCost": limit}, "capacity": {"maxNodes": max_nodes}}}
            await self.client.patch("latticepools", pool_name, body, "")
            await self.world.true_clock.sleep(self.rng.choice((0.0, 0.01, 0.05)))

    async def _edit(self) -> None:
        """Read a service, wait, and replace the service by an edited object, as with an editor."""
        name = self.rng.choice(SERVICE_NAMES)
        service = await self.client.get("latticeservices", name)
        if service is None:
            return
        await self.world.true_clock.sleep(self.rng.choice((0.0, 0.05, 1.0)))
        service["spec"]["replicas"] = {"min": self.rng.randint(1, 3)}
        await self.client.put("latticeservices", name, service)

    async def _gang(self) -> None:
        """Apply a gang, or delete the gang."""
        if self.rng.random() < 0.4:
            for name in GANG_WORKLOADS:
                await self.client.delete("latticeworkloads", name)
            return
        for name in GANG_WORKLOADS:
            await self.client.apply(
                "latticeworkloads",
                name,
                workload_body("500m", group={"name": "crew", "minMember": len(GANG_WORKLOADS)}, priority=5),
            )

    async def _cordon(self) -> None:
        """Cordon or uncordon a node."""
        if self.world.machines:
            name = self.rng.choice(sorted(self.world.machines))
            await self.client.patch(
                "latticenodes", name, {"spec": {"unschedulable": self.rng.random() < 0.5, "taints": []}}
            )

    async def _drain(self) -> None:
        if self.world.machines:
            name = self.rng.choice(sorted(self.world.machines))
            taint = {"key": DRAINING_TAINT, "effect": "NoSchedule"}
            await self.client.patch(
                "latticenodes", name, {"spec": {"unschedulable": True, "taints": [taint]}}
            )

    async def _taint(self) -> None:
        """Taint a node without a cordon."""
        if self.world.machines:
            name, effect = self.rng.choice(sorted(self.world.machines)), self.rng.choice(TAINT_EFFECTS)
            await self.client.patch(
                "latticenodes", name, {"spec": {"taints": [{"key": SIM_TAINT_KEY, "effect": effect}]}}
            )

    async def _remove_node(self) -> None:
        """Delete a node of a cluster; the cluster creates a replacement."""
        created = [name for name in sorted(self.world.machines) if not name.startswith("rack")]
        if created:
            await self.client.delete("latticenodes", self.rng.choice(created))

    async def _remove_pool(self) -> None:
        """Delete a pool and apply the pool again later; its machines stay."""
        name = self.rng.choice(sorted(POOL_CLASSES))
        await self.client.delete("latticepools", name, "")
        await self.world.true_clock.sleep(self.rng.choice((0.2, 3.0, 20.0)))
        await self.client.apply(
            "latticepools",
            name,
            pool_body(name, POOL_CLASSES[name], self.rng.choice((40, 120, 200)), labels=POOL_LABELS[name]),
            "",
        )

    async def _label(self) -> None:
        """Remove a label of a pool, or restore the labels; placed replicas stay."""
        name = self.rng.choice(sorted(POOL_CLASSES))
        lost = self.rng.choice((None, *sorted(POOL_LABELS[name])))
        await self.client.patch(
            "latticepools",
            name,
            {"spec": {"labels": {**POOL_LABELS[name], **({lost: None} if lost else {})}}},
            "",
        )

    async def _budget(self) -> None:
        name = self.rng.choice(sorted(POOL_CLASSES))
        limit = self.rng.choice((40, 75, 120, 200))
        body = {
            "spec": {"budget": {"maxMonthlyCost": limit}, "capacity": {"maxNodes": self.rng.randint(2, 5)}}
        }
        await self.client.patch("latticepools", name, body, "")

    async def _price(self) -> None:
        name = self.rng.choice(sorted(NODE_CLASSES))
        price = round(float(NODE_CLASSES[name][2]) * self.rng.choice((0.5, 1, 1.5)), 4)
        await self.client.patch("latticenodeclasses", name, {"spec": {"costPerHour": {"fake": price}}}, "")
