"""Every setting of a server: its flag, its environment variable, its default and what it means."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # --name
    env: tuple[str, ...]
    default: Any
    help: str


SETTINGS = (
    Setting("data-dir", ("LATTICE_DATA_DIR",), "./.lattice", "Folder for the store, the log and the kubeconfig."),
    Setting(
        "store",
        ("LATTICE_STORE",),
        "",
        "Where state lives: empty for a SQLite file in the data folder, or etcd://HOST:PORT[,HOST:PORT][/PREFIX].",
    ),
    Setting("listen", ("LATTICE_LISTEN",), "127.0.0.1", "Address to listen on."),
    Setting("port", ("LATTICE_PORT",), 7443, "Port to listen on; 0 picks a free one."),
    Setting(
        "advertise", ("LATTICE_ADVERTISE",), "", "Host name or address that clients use; it goes into the certificate and the kubeconfig."
    ),
    Setting(
        "instance-id", ("SCHEDULER_INSTANCE_ID",), "", "Name of this server among others; made from host name and process id if empty."
    ),
    Setting("lease-ttl", ("LEADER_LEASE_TTL",), 15.0, "Seconds after which a silent leader is replaced."),
    Setting("history", ("LATTICE_HISTORY",), 600.0, "Seconds of history that watches can resume from."),
    Setting("event-ttl", ("LATTICE_EVENT_TTL",), 604800.0, "Seconds that events are kept."),
    Setting(
        "prices",
        ("LATTICE_PRICES",),
        "",
        "CSV files of prices that go before the built-in ones, separated by commas; read again when they change.",
    ),
    Setting("latency", ("LATTICE_LATENCY",), "", "CSV file of measured round trips (from,to,ms); read again when it changes."),
    Setting(
        "fleet-time-limit",
        ("LATTICE_FLEET_TIME_LIMIT",),
        60.0,
        "Seconds that a question about the fleet may wait for its turn, and then take; what an optimise searches comes on top.",
    ),
    Setting(
        "allow-etcd-that-loses-writes",
        ("LATTICE_ALLOW_ETCD_THAT_LOSES_WRITES",),
        False,
        "Accept etcd 3.5.0 to 3.5.5 (or before 3.4.22), which can lose acknowledged writes. For tests only.",
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: str = "./.lattice"
    store: str = ""
    listen: str = "127.0.0.1"
    port: int = 7443
    advertise: str = ""
    instance_id: str = ""
    lease_ttl: float = 15.0
    history: float = 600.0
    event_ttl: float = 604800.0
    prices: str = ""
    latency: str = ""
    fleet_time_limit: float = 60.0
    allow_etcd_that_loses_writes: bool = False
