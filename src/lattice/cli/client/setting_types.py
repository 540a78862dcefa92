"""What the settings of a server may be, checked where they are given: in a flag or its environment variable."""

import math
from typing import Any, NoReturn

import click


class _Checked(click.ParamType):  # type: ignore[type-arg]
    name = "text"

    def wrong(
        self, must: str, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        self.fail(f"must be {must}, got {value}", param, ctx)


class Port(_Checked):
    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            port = int(value)
        except ValueError:
            port = -1
        return port if 0 <= port <= 65535 else self.wrong("0 to 65535", value, param, ctx)


class Seconds(_Checked):
    """At least, or more than, so many; never without end."""

    name = "float"

    def __init__(self, least: float, *, more: bool = False) -> None:
        self.least, self.more = least, more

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        must = f"more than {self.least:g} seconds" if self.more else f"{self.least:g} or more seconds"
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        enough = seconds > self.least if self.more else seconds >= self.least
        return seconds if enough and math.isfinite(seconds) else self.wrong(must, value, param, ctx)


class AtLeast(_Checked):
    """A whole number, so large or larger."""

    name = "integer"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        return (
            number
            if number >= self.least
            else self.wrong(f"a whole number, {self.least} or more", value, param, ctx)
        )


class Folder(_Checked):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail("must name a folder, got nothing", param, ctx)
        return str(value)


class StoreAddress(_Checked):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value and not str(value).startswith("etcd://"):
            self.fail(
                f"{value!r} is not a store; leave it out for SQLite, or give etcd://HOST:PORT", param, ctx
            )
        return str(value)


LIMITS: dict[str, click.ParamType] = {  # type: ignore[type-arg]
    "data-dir": Folder(),
    "store": StoreAddress(),
    "port": Port(),
    "agents-port": Port(),
    "lease-ttl": Seconds(1),
    "history": Seconds(0),
    "event-ttl": Seconds(0, more=True),
    "fleet-time-limit": Seconds(0, more=True),
    "heartbeat": Seconds(0, more=True),
    "node-lost-after": Seconds(0, more=True),
    "replace-after": Seconds(0, more=True),
    "reconcile-interval": Seconds(0, more=True),
    "reconcile-workers": AtLeast(1),
    "retry-first": Seconds(0, more=True),
    "retry-longest": Seconds(0, more=True),
    "retry-attempts": AtLeast(1),
    "missing-grace": Seconds(0),
    "start-grace": Seconds(0),
    "stop-grace": Seconds(0),
}
