"""What people do all day: services and workloads come, change and go, nodes are drained and tainted, budgets, prices, labels change."""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lattice.kinds.node import DRAINING_TAINT
from lattice.sim.world.client import Body, Client

if TYPE_CHECKING:
    from lattice.sim.world.world import World

NODE_CLASSES: dict[str, tuple[float, float, str]] = {"small": (1, 2, "0.05"), "large": (2, 4, "0.09")}
POOL_CLASSES = {"east": ("small", "large"), "west": ("small",)}
POOL_LABELS: dict[
    str, Body
] = {  # of pools, when nobody has changed them: whatever a service demands is somewhere
    "east": {"tier": "production", "region": "east", "compliance": ["gdpr", "soc2"], "dataResidency": "eu"},
    "west": {
        "tier": ["production", "staging"],
        "region": "west",
        "compliance": ["SOC2"],
        "dataResidency": ["us", "eu"],
    },
}
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
SIM_TAINT_KEY = "sim.lattice.dev/kept-free"  # a taint that some put up with
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
    region: str, classes: tuple[str, ...], limit: float, most: int = 4, labels: Body | None = None
) -> Body:
    return {
        "spec": {
            "provider": {"type": "fake", "region": region},
            "capacity": {"maxNodes": most},
            "budget": {"maxMonthlyCost": limit},
            "nodeClasses": list(classes),
            "labels": labels or {"tier": "production", "region": region},
        }
    }


def service_body(replicas: int, cores: float, version: int = 1, **rest: Any) -> Body:
    containers = {
        "main": {
            "command": ["run", f"v{version}"],
            **({"ports": [{"name": "http"}]} if rest.pop("port", False) else {}),
        }
    }
    placement = {"resources": {"cores": cores, "memoryGi": 0.25}, **rest.pop("placement", {})}
    return {"spec": {"containers": containers, "placement": placement, "replicas": {"min": replicas}, **rest}}


ANTI_AFFINITY: Body = {
    "affinity": {
        "antiWorkload": {"required": [{"selector": {"matchLabels": {"sort": "lone"}}, "topologyKey": "node"}]}
    }
}


def workload_body(cores: str = "250m", version: int = 1, **rest: Any) -> Body:
    return {
        "spec": {
            "containers": {"main": {"command": ["run", f"v{version}"]}},
            "requests": {"cpu": cores, "memory": "128Mi"},
            **rest,
        }
    }


async def apply_supply(client: Client, rng: random.Random) -> None:
    """Supply and the first services; asked for until nobody refuses or fails to answer."""
    wanted: list[tuple[str, str, Body, str]] = [
        *(
            ("latticenodeclasses", name, node_class_body(*each, {"size": name}), "")
            for name, each in NODE_CLASSES.items()
        ),
        *(
            (
                "latticepools",
                name,
                pool_body(name, classes, rng.choice((75, 120, 200)), labels=POOL_LABELS[name]),
                "",
            )
            for name, classes in POOL_CLASSES.items()
        ),
    ]
    for kind, name, body, namespace in wanted:
        while await client.apply(kind, name, body, namespace) is None:
            await client.world.true_clock.sleep(0.5)


@dataclass
class Churn:
    """One person's day: one deed after the other, of each sort as often as its weight says."""

    client: Client
    rng: random.Random
    interval_s: float = 4.0  # seconds between operations, half of it up to one and a half
    versions: dict[str, int] = field(default_factory=dict)

    @property
    def world(self) -> "World":
        return self.client.world

    async def run(self) -> None:
        """Until cancelled."""
        deeds = [
            (6, self._apply_service),
            (4, self._scale),
            (2, self._delete_service),
            (3, self._apply_standalone),
            (2, self._delete_standalone),
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
            (1, self._read_service),
            (1, self._retry),
        ]
        weights = [weight for weight, _ in deeds]
        while True:
            await self.world.true_clock.sleep(self.interval_s * (0.5 + self.rng.random()))
            await self.rng.choices([deed for _, deed in deeds], weights)[0]()

    async def apply_first_service(self) -> None:
        await self._apply_service()

    async def _apply_service(self) -> None:
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
        """Each service is of a kind: db never runs twice, batch has to go first, web goes by labels, api by certificates or evenly."""
        place: Body
        match name:
            case "db":
                place = self.rng.choice(({}, {"dataResidency": "EU"}, {"dataResidency": "us"}))
                return {
                    "disconnect": self._stop_policy(),
                    "placement": place,
                    "spread": self.rng.choice(([], [{"topologyKey": "node"}])),
                }
            case "batch":
                place = self.rng.choice(
                    (
                        {},
                        {"nodeSelector": {"size": "large"}},
                        {"tolerations": [{"key": SIM_TAINT_KEY, "operator": "Exists"}]},
                    )
                )
                return {"priority": -10, "placement": place}
            case "api":
                place = self.rng.choice(({}, {"compliance": ["gdpr"]}, {"compliance": ["soc2"]}))
                return {
                    "priority": 10,
                    "placement": place,
                    "spread": self.rng.choice(([], [{"topologyKey": "region"}])),
                }
        somewhere = {"matchLabels": {"region": self.rng.choice(sorted(POOL_CLASSES))}}
        staged = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["staging"]}]}
        return {"placement": self.rng.choice(({}, {"pools": somewhere}, {"pools": staged}))}

    def _stop_policy(self) -> Body:
        return {"policy": "stop", "stopAfter": f"{self.rng.choice((12, 18, 24, 27, 29))}s"}

    async def _scale(self) -> None:
        await self.client.scale(self.rng.choice(SERVICE_NAMES), self.rng.randint(0, 4))

    async def _delete_service(self) -> None:
        await self.client.delete("latticeservices", self.rng.choice(SERVICE_NAMES))

    async def _apply_standalone(self) -> None:
        rest: Body = {"disconnect": self._stop_policy() if self.rng.random() < 0.5 else {"policy": "keep"}}
        if self.rng.random() < 0.5:
            rest["constraints"] = self.rng.choice(
                (ANTI_AFFINITY, {"nodeSelector": {"kind": "rack"}}, {"nodeSelector": {"size": "small"}})
            )
        state = "Stopped" if self.rng.random() < 0.2 else "Running"
        name = self.rng.choice(STANDALONE_WORKLOADS)
        version = self.versions[name] = self.versions.get(name, 0) + (self.rng.random() < 0.4)
        body = workload_body(self.rng.choice(("250m", "500m")), version, desiredState=state, **rest)
        await self.client.apply("latticeworkloads", name, {"metadata": {"labels": {"sort": "lone"}}, **body})

    async def _delete_standalone(self) -> None:
        await self.client.delete("latticeworkloads", self.rng.choice(STANDALONE_WORKLOADS))

    async def _recreate_standalone(self) -> None:
        """Deleted, and made anew under its name as soon as that can be: nobody is to notice that it is another."""
        name = self.rng.choice(STANDALONE_WORKLOADS)
        await self.client.delete("latticeworkloads", name)
        for _ in range(self.rng.randint(1, 4)):
            await self.world.true_clock.sleep(self.rng.uniform(0.2, 2.0))
            made = await self.client.create(
                "latticeworkloads", name, workload_body("250m", 1, disconnect=self._stop_policy())
            )
            if made is not None:
                return

    async def _flap_pool_limits(self) -> None:
        """A service wants more while whoever pays for a pool cannot decide how much."""
        name, pool_name = self.rng.choice(SERVICE_NAMES), self.rng.choice(sorted(POOL_CLASSES))
        await self.client.apply(
            "latticeservices", name, service_body(self.rng.randint(2, 4), 0.75, self.versions.get(name, 0))
        )
        for _ in range(self.rng.randint(4, 12)):
            limit, most = self.rng.choice(((40, 4), (200, 4), (200, 1), (200, 2)))
            body = {"spec": {"budget": {"maxMonthlyCost": limit}, "capacity": {"maxNodes": most}}}
            await self.client.patch("latticepools", pool_name, body, "")
            await self.world.true_clock.sleep(self.rng.choice((0.0, 0.01, 0.05)))

    async def _edit(self) -> None:
        """As with an editor: read, thought about, and written whole over what was read."""
        name = self.rng.choice(SERVICE_NAMES)
        found = await self.client.get("latticeservices", name)
        if found is None:
            return
        await self.world.true_clock.sleep(self.rng.choice((0.0, 0.05, 1.0)))
        found["spec"]["replicas"] = {"min": self.rng.randint(1, 3)}
        await self.client.put("latticeservices", name, found)

    async def _gang(self) -> None:
        """All of them or none; sooner or later they go again."""
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
        """Uncordoned as often."""
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
        """Without a cordon: only those stay away who do not put up with it."""
        if self.world.machines:
            name, effect = self.rng.choice(sorted(self.world.machines)), self.rng.choice(TAINT_EFFECTS)
            await self.client.patch(
                "latticenodes", name, {"spec": {"taints": [{"key": SIM_TAINT_KEY, "effect": effect}]}}
            )

    async def _remove_node(self) -> None:
        """Of a cluster, which makes another in its place."""
        made = [each for each in sorted(self.world.machines) if not each.startswith("rack")]
        if made:
            await self.client.delete("latticenodes", self.rng.choice(made))

    async def _remove_pool(self) -> None:
        """What is there stays until it is there again."""
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
        """A pool loses a label, or gets its own back; what is there stays there."""
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

    async def _read_service(self) -> None:
        await self.client.get("latticeservices", self.rng.choice(SERVICE_NAMES))

    async def _retry(self) -> None:
        await self.client.retry(self.rng.choice(STANDALONE_WORKLOADS))
