"""Every setting of a server: flag, environment variable, default value and help text."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # --name
    env: tuple[str, ...]
    default: Any
    help: str


SETTINGS = (
    Setting(
        "data-dir", ("LATTICE_DATA_DIR",), "./.lattice", "Folder for the store, the log and the kubeconfig."
    ),
    Setting(
        "store",
        ("LATTICE_STORE",),
        "",
        "Where state lives: empty for a SQLite file in the data folder, "
        "or etcd://HOST:PORT[,HOST:PORT][/PREFIX].",
    ),
    Setting("listen", ("LATTICE_LISTEN",), "127.0.0.1", "Address to listen on."),
    Setting("port", ("LATTICE_PORT",), 7443, "Port to listen on; 0 picks a free one."),
    Setting(
        "agents-port",
        ("LATTICE_AGENTS_PORT",),
        0,
        "Port at which agents connect; 0 is the one after --port, or a free one.",
    ),
    Setting(
        "advertise",
        ("LATTICE_ADVERTISE",),
        "",
        "Host name or address that clients use; it goes into the certificate and the kubeconfig.",
    ),
    Setting(
        "instance-id",
        ("SCHEDULER_INSTANCE_ID",),
        "",
        "Name of this server among others; made from host name and process id if empty.",
    ),
    Setting("lease-ttl", ("LEADER_LEASE_TTL",), 15.0, "Seconds after which a silent leader is replaced."),
    Setting("history", ("LATTICE_HISTORY",), 600.0, "Seconds of history that watches can resume from."),
    Setting("event-ttl", ("LATTICE_EVENT_TTL",), 604800.0, "Seconds that events are kept."),
    Setting(
        "prices",
        ("LATTICE_PRICES",),
        "",
        "CSV files of prices that go before the built-in ones, separated by commas; "
        "read again when they change.",
    ),
    Setting(
        "latency",
        ("LATTICE_LATENCY",),
        "",
        "CSV file of measured round trips (from,to,ms); read again when it changes.",
    ),
    Setting(
        "fleet-time-limit",
        ("LATTICE_FLEET_TIME_LIMIT",),
        60.0,
        "Seconds that a question about the fleet may wait for its turn, and then take; "
        "what an optimise searches comes on top.",
    ),
    Setting("heartbeat", ("LATTICE_HEARTBEAT",), 10.0, "Seconds between two heartbeats of an agent."),
    Setting(
        "node-lost-after",
        ("LATTICE_NODE_LOST_AFTER",),
        40.0,
        "Seconds of silence after which a node is not ready.",
    ),
    Setting(
        "replace-after",
        ("LATTICE_REPLACE_AFTER",),
        120.0,
        "Seconds of silence after which what a node ran is started elsewhere.",
    ),
    Setting(
        "evictions-per-second",
        ("LATTICE_EVICTIONS_PER_SECOND",),
        0.1,
        "Silent nodes of one zone that are given up per second.",
    ),
    Setting(
        "reconcile-interval",
        ("RECONCILE_INTERVAL",),
        5.0,
        "Seconds at most between two looks at a workload that is not as it should be.",
    ),
    Setting("reconcile-workers", ("RECONCILE_WORKERS",), 8, "Workloads that are worked on at once."),
    Setting(
        "retry-first",
        ("LATTICE_RETRY_FIRST",),
        5.0,
        "Seconds from a workload's first failure until it is tried again; doubles with each.",
    ),
    Setting(
        "retry-longest",
        ("LATTICE_RETRY_LONGEST",),
        120.0,
        "Seconds that a workload which failed waits at most.",
    ),
    Setting("retry-attempts", ("LATTICE_RETRY_ATTEMPTS",), 5, "So many failures end a workload."),
    Setting(
        "missing-grace",
        ("LATTICE_MISSING_GRACE",),
        15.0,
        "Seconds that a node has to show a workload that it was told to start.",
    ),
    Setting(
        "start-grace",
        ("LATTICE_START_GRACE",),
        300.0,
        "Seconds that a workload may take to start, fetching its image included.",
    ),
    Setting(
        "stop-grace",
        ("LATTICE_STOP_GRACE",),
        60.0,
        "Seconds that a workload may take to stop before it is told once more.",
    ),
    Setting(
        "room-grace",
        ("LATTICE_ROOM_GRACE",),
        10.0,
        "Seconds that a replica which no node takes waits for room before its cluster grows.",
    ),
    Setting(
        "providers",
        ("LATTICE_PROVIDERS",),
        "local,docker=local",
        "Providers of machines, each NAME or NAME=ADAPTER: adapter local starts agents on this machine, "
        "fake has machines on paper. "
        "By default docker is another name of local, for pools that say so: docker itself is not used.",
    ),
    Setting(
        "local-stop-within",
        ("LATTICE_LOCAL_STOP_WITHIN",),
        15.0,
        "Seconds that an agent of adapter local has to stop what it runs, two thirds of them for the "
        "workloads; then both are killed.",
    ),
    Setting(
        "controllers",
        ("LATTICE_CONTROLLERS",),
        "*",
        "Controllers that run while this server leads, separated by commas: * is all, -NAME leaves one out.",
    ),
    Setting(
        "webhook-allow",
        ("LATTICE_WEBHOOK_ALLOW",),
        "",
        "Networks that webhooks may call though they are not public, such as 10.1.0.0/16, "
        "separated by commas.",
    ),
    Setting(
        "webhook-ca",
        ("LATTICE_WEBHOOK_CA",),
        "",
        "PEM file of certificate authorities that webhooks trust besides the system's.",
    ),
    Setting(
        "profile",
        ("LATTICE_PROFILE",),
        "",
        "How nodes are chosen and bound, for all workloads: a built-in profile, "
        "or a file with one (scores, tieBreaker, binding …). "
        "Absent: balanced for replicas of services, lowest-utilisation for workloads that belong to none.",
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
    reconcile_interval: float = 5.0
    reconcile_workers: int = 8
    retry_first: float = 5.0
    retry_longest: float = 120.0
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
