"""Every setting of a server: flag, environment variable, default value and help text."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # --name
    env: tuple[str, ...]
    default: Any
    help: str


# Names for the setting `controllers`: all controllers that run while a server leads, in alphabetical order.
CONTROLLER_NAMES = (
    "agreements",
    "automation",
    "clusters",
    "declarations",
    "departures",
    "drifts",
    "figures",
    "garbage",
    "jointokens",
    "ledgers",
    "nodes",
    "replicas",
    "scheduling",
    "services",
    "status",
    "supply",
    "webhooks",
    "workloads",
)

SETTINGS = (
    Setting(
        "data-dir", ("LATTICE_DATA_DIR",), "./.lattice", "Folder for the store, the log and the kubeconfig."
    ),
    Setting(
        "store",
        ("LATTICE_STORE",),
        "",
        (
            "Store of the state: empty for a SQLite file in the data folder, or "
            "etcd://HOST:PORT[,HOST:PORT][/PREFIX]."
        ),
    ),
    Setting("listen", ("LATTICE_LISTEN",), "127.0.0.1", "Address to listen on."),
    Setting("port", ("LATTICE_PORT",), 7443, "Port to listen on. 0 = any free port."),
    Setting(
        "agents-port",
        ("LATTICE_AGENTS_PORT",),
        0,
        "Port for agents. 0 = --port + 1, or any free port.",
    ),
    Setting(
        "advertise",
        ("LATTICE_ADVERTISE",),
        "",
        "Host name or address that clients use; written into the TLS certificate and the kubeconfig.",
    ),
    Setting(
        "instance-id",
        ("SCHEDULER_INSTANCE_ID",),
        "",
        "Name of this server among other servers; if empty, built from host name and process id.",
    ),
    Setting("lease-ttl", ("LEADER_LEASE_TTL",), 15.0, "Seconds after which a silent leader is replaced."),
    Setting("history", ("LATTICE_HISTORY",), 600.0, "Seconds of history that watches can resume from."),
    Setting("event-ttl", ("LATTICE_EVENT_TTL",), 604800.0, "Seconds that events are kept."),
    Setting(
        "prices",
        ("LATTICE_PRICES",),
        "",
        (
            "CSV files of prices; commas separate the file names. The files override the built-in "
            "prices; the server reads them again when they change."
        ),
    ),
    Setting(
        "latency",
        ("LATTICE_LATENCY",),
        "",
        "CSV file of measured round trips (from,to,ms); the server reads it again when it changes.",
    ),
    Setting(
        "fleet-time-limit",
        ("LATTICE_FLEET_TIME_LIMIT",),
        60.0,
        (
            "Seconds that a fleet query may wait in the queue, and seconds that it may then run. "
            "The search time of optimise is added."
        ),
    ),
    Setting("heartbeat", ("LATTICE_HEARTBEAT",), 10.0, "Seconds between two heartbeats of an agent."),
    Setting(
        "node-lost-after",
        ("LATTICE_NODE_LOST_AFTER",),
        40.0,
        "Seconds without a heartbeat after which a node is not ready.",
    ),
    Setting(
        "replace-after",
        ("LATTICE_REPLACE_AFTER",),
        120.0,
        "Seconds without a heartbeat after which the workloads of a node are started on other nodes.",
    ),
    Setting(
        "evictions-per-second",
        ("LATTICE_EVICTIONS_PER_SECOND",),
        0.1,
        "Maximum number of lost nodes per second and zone whose workloads are evicted.",
    ),
    Setting(
        "memory-pressure",
        ("LATTICE_MEMORY_PRESSURE",),
        0.05,
        (
            "Share of a node's memory; with less available, the node evicts workloads that use more than they "
            "request. 0 = never."
        ),
    ),
    Setting(
        "disk-pressure",
        ("LATTICE_DISK_PRESSURE",),
        0.02,
        (
            "Share of a node's disk; with less available, the node evicts workloads that use more than they "
            "request. 0 = never."
        ),
    ),
    Setting(
        "reconcile-interval",
        ("RECONCILE_INTERVAL",),
        5.0,
        "Maximum seconds between two reconciles of a workload that is not in its desired state.",
    ),
    Setting("reconcile-workers", ("RECONCILE_WORKERS",), 8, "Workloads that are reconciled in parallel."),
    Setting(
        "retry-first",
        ("LATTICE_RETRY_FIRST",),
        5.0,
        "Seconds of back-off after the first failure of a workload; doubles with every failure.",
    ),
    Setting(
        "retry-longest",
        ("LATTICE_RETRY_LONGEST",),
        120.0,
        "Maximum seconds of back-off before a failed workload without a service is restarted.",
    ),
    Setting(
        "retry-service-longest",
        ("LATTICE_RETRY_SERVICE_LONGEST",),
        300.0,
        "Maximum seconds of back-off before a failed replica of a service is restarted.",
    ),
    Setting(
        "retry-reset",
        ("LATTICE_RETRY_RESET",),
        600.0,
        "Seconds for which a workload must be ready before its failures are forgotten.",
    ),
    Setting(
        "retry-attempts",
        ("LATTICE_RETRY_ATTEMPTS",),
        5,
        "Number of failures after which a workload is reported as failed. A workload without a service is then "
        "not restarted.",
    ),
    Setting(
        "missing-grace",
        ("LATTICE_MISSING_GRACE",),
        15.0,
        "Seconds after a start command in which the node must report the workload.",
    ),
    Setting(
        "start-grace",
        ("LATTICE_START_GRACE",),
        300.0,
        "Seconds that a workload may take to start, including the image pull.",
    ),
    Setting(
        "stop-grace",
        ("LATTICE_STOP_GRACE",),
        60.0,
        "Seconds that a workload may take to stop before the stop command is repeated.",
    ),
    Setting(
        "room-grace",
        ("LATTICE_ROOM_GRACE",),
        10.0,
        (
            "Seconds that an unschedulable replica waits for free capacity before its cluster "
            "gets another node."
        ),
    ),
    Setting(
        "providers",
        ("LATTICE_PROVIDERS",),
        "local,docker=local",
        (
            "Providers of machines, each NAME or NAME=ADAPTER. Adapter local runs agents on this "
            "host; adapter manual creates nothing: you join machines of your own. By default docker is "
            "another name for local: Docker itself is not used."
        ),
    ),
    Setting(
        "local-stop-within",
        ("LATTICE_LOCAL_STOP_WITHIN",),
        15.0,
        (
            "Seconds that an agent of adapter local has to stop, two thirds of them for its "
            "workloads. Then the agent and its workloads are killed."
        ),
    ),
    Setting(
        "controllers",
        ("LATTICE_CONTROLLERS",),
        "*",
        (
            "Controllers that run while this server is the leader, separated by commas: * is all "
            f"controllers, -NAME excludes one. Names: {', '.join(CONTROLLER_NAMES)}."
        ),
    ),
    Setting(
        "webhook-allow",
        ("LATTICE_WEBHOOK_ALLOW",),
        "",
        "Private networks that webhooks may call, such as 10.1.0.0/16, separated by commas.",
    ),
    Setting(
        "webhook-ca",
        ("LATTICE_WEBHOOK_CA",),
        "",
        "PEM file of certificate authorities that webhooks trust in addition to the system's.",
    ),
    Setting(
        "profile",
        ("LATTICE_PROFILE",),
        "",
        (
            "Scheduling profile for all workloads: a built-in profile, or a file with a profile "
            "(scores, tieBreaker, binding …). Default: balanced for replicas of services, "
            "lowest-utilisation for workloads without a service."
        ),
    ),
    Setting(
        "allow-etcd-that-loses-writes",
        ("LATTICE_ALLOW_ETCD_THAT_LOSES_WRITES",),
        False,
        "Accept etcd 3.5.0 to 3.5.5 (or before 3.4.22), which can lose acknowledged writes. For tests only.",
    ),
)
SETTINGS_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: str = "./.lattice"
    store: str = ""
    listen: str = "127.0.0.1"
    port: int = 7443
    agents_port: int = 0
    advertise: str = ""
    instance_id: str = ""
    lease_ttl: float = 15.0
    history: float = 600.0
    event_ttl: float = 604800.0
    prices: str = ""
    latency: str = ""
    fleet_time_limit: float = 60.0
    heartbeat: float = 10.0
    node_lost_after: float = 40.0
    replace_after: float = 120.0
    evictions_per_second: float = 0.1
    memory_pressure: float = 0.05
    disk_pressure: float = 0.02
    reconcile_interval: float = 5.0
    reconcile_workers: int = 8
    retry_first: float = 5.0
    retry_longest: float = 120.0
    retry_service_longest: float = 300.0
    retry_reset: float = 600.0
    retry_attempts: int = 5
    missing_grace: float = 15.0
    start_grace: float = 300.0
    stop_grace: float = 60.0
    room_grace: float = 10.0
    providers: str = "local,docker=local"
    local_stop_within: float = 15.0
    controllers: str = "*"
    webhook_allow: str = ""
    webhook_ca: str = ""
    profile: str = ""
    allow_etcd_that_loses_writes: bool = False
