"""What the commands' flags share: how to reach the server, kubectl's ways of writing flags, durations."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.client.config import Server, find_server
from lattice.cli.client.http import Client

BARE_FLAG_VALUES = {
    "--dry-run": "server",
    "--cascade": "background",
}  # what a flag means when nothing follows it
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


class Command(click.Command):
    """Understands flags as kubectl users write them: `--wait=false`, `--dry-run` with and without a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches = {
            o: p
            for p in self.params
            if isinstance(p, click.Option) and p.is_flag
            for o in (*p.opts, *p.secondary_opts)
        }
        return super().parse_args(ctx, [word for arg in args if (word := _normalize_flag(arg, switches))])


def _normalize_flag(arg: str, switches: dict[str, click.Option]) -> str:
    if arg in BARE_FLAG_VALUES:
        return f"{arg}={BARE_FLAG_VALUES[arg]}"
    name, equals, value = arg.partition("=")
    switch = switches.get(name)
    if switch is None or not equals or value.lower() not in ("true", "false"):
        return arg
    if value.lower() == "true":
        return name
    return next(iter(switch.secondary_opts), "")


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds, from `90`, `90s`, `1m30s`, `500ms`; 0 is for ever."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value)
        found = _DURATION.fullmatch(value)
        if not value or found is None:
            self.fail(f"{value!r} is not a duration; write it like 30s, 5m or 1h30m", param, ctx)
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


@dataclass
class Connection:
    """How the user asked to reach a server; nothing is read or opened before it is needed."""

    kubeconfig: str | None = None
    context: str | None = None
    explicit_namespace: str | None = None
    timeout: float = 30.0

    @functools.cached_property
    def server(self) -> Server:
        return find_server(self.kubeconfig, self.context)

    @functools.cached_property
    def client(self) -> Client:
        return Client(self.server, self.timeout)

    @property
    def namespace(self) -> str:
        return self.explicit_namespace or self.server.namespace or "default"


_CONNECTION_OPTIONS = [
    click.option("--kubeconfig", metavar="FILE", help="File that says where the server is and who you are."),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig to use."),
    click.option("-n", "--namespace", metavar="NAME", help="Namespace of the objects."),
]


def with_connection(function: Callable[..., Any], patience: str = "30s") -> Callable[..., Any]:
    """Adds the flags that say how to reach the server; the command gets them as its first argument. `patience`: unless it is told."""

    @functools.wraps(function)
    def call(
        *,
        kubeconfig: str | None,
        context: str | None,
        namespace: str | None,
        request_timeout: float,
        **rest: Any,
    ) -> Any:
        return function(Connection(kubeconfig, context, namespace, request_timeout), **rest)

    wrapped: Callable[..., Any] = call
    told = "How long to wait for one answer; 0 for ever."
    timeout = click.option(
        "--request-timeout", type=Duration(), default=patience, show_default=True, help=told
    )
    for option in reversed([*_CONNECTION_OPTIONS, timeout]):
        wrapped = option(wrapped)
    return wrapped


def complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Kinds for the shell to offer, after a comma too."""
    from lattice.cli.client.kind_names import completions

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in completions() if name.startswith(last)]
