"""Flags that commands share: the connection to a server, kubectl's spellings of flags, and durations."""

import functools
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lattice.cli.client.config import Server, find_server
from lattice.cli.client.http import Client

# The value of a flag that the user writes without a value.
BARE_FLAG_VALUES = {"--dry-run": "server", "--cascade": "background"}
# The `m` of minutes must not match the first letter of `ms` (milliseconds).
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


class Command(click.Command):
    """Click command that accepts flags as kubectl does: `--wait=false`, `--dry-run` with and without a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches: dict[str, click.Option] = {}
        for parameter in self.params:
            if isinstance(parameter, click.Option) and parameter.is_flag:
                switches.update(dict.fromkeys((*parameter.opts, *parameter.secondary_opts), parameter))
        words = [word for arg in args if (word := _normalize_flag(arg, switches))]
        try:
            return super().parse_args(ctx, list(words))
        except click.NoSuchOption as error:
            # The beginning of an option says more than its likeness to another one.
            names = [name for parameter in self.get_params(ctx) for name in parameter.opts]
            if longer := sorted(name for name in names if name.startswith(error.option_name)):
                message = f"{error.message} Did you mean {' or '.join(map(repr, longer))}?"
                raise click.NoSuchOption(error.option_name, message, ctx=error.ctx) from error
            raise
        except click.UsageError as error:
            reject_file_arguments(self, words, error)
            raise


def _normalize_flag(arg: str, switches: dict[str, click.Option]) -> str:
    """One argument in click's form; an empty string if the argument must be dropped, as for `=false` on a
    flag without a negative form."""
    if arg in BARE_FLAG_VALUES:
        return f"{arg}={BARE_FLAG_VALUES[arg]}"
    name, equals, value = arg.partition("=")
    switch = switches.get(name)
    if switch is None or not equals or value.lower() not in ("true", "false"):
        return arg
    if value.lower() == "true":
        return name
    # `--wait=false` becomes `--no-wait`; a flag without a negative form is dropped.
    return next(iter(switch.secondary_opts), "")


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Click type of a duration in seconds, from `90`, `90s`, `1m30s` or `500ms`; 0 means no limit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value)
        match = _DURATION.fullmatch(value)
        if not value or match is None:
            self.fail(f"{value!r} is not a duration; write a duration such as 30s, 5m or 1h30m", param, ctx)
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


@dataclass
class Connection:
    """The user's connection flags; the kubeconfig is read and the connection opened on first use."""

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


def reject_file_arguments(command: click.Command, args: Sequence[str], error: click.UsageError) -> None:
    """Raise a UsageError that names -f, if the wrong arguments are manifests given without the flag."""
    if not any(parameter.name == "files" for parameter in command.params):
        return
    is_missing = isinstance(error, click.MissingParameter) and error.param and error.param.name == "files"
    words = [word for word in args if not word.startswith("-")]
    files = [word for word in words if Path(word).exists() or word.endswith((".yaml", ".yml", ".json"))]
    if files and (is_missing or "unexpected extra argument" in error.message):
        flags = " ".join(f"-f {shlex.quote(word)}" for word in files)
        message = f"got unexpected extra argument {files[0]!r}: name manifests with -f, as in {flags}"
        raise click.UsageError(message, ctx=error.ctx) from error


def manifests_option(
    help_text: str, *, required: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The `-f` flag, which a command gets as the argument `files`."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=required,
        metavar="FILE|DIR|URL|-",
        help=help_text,
    )


# The `--dry-run` flag of commands that change objects.
dry_run_option = click.option(
    "--dry-run",
    type=click.Choice(["none", "client", "server"]),
    default="none",
    help="Print what would happen; change nothing.",
    metavar="[=server|client|none]",
)
# End of the line that reports a change, by the value of `--dry-run`.
DRY_RUN_SUFFIXES = {"none": "", "server": " (server dry run)", "client": " (dry run)"}

_CONNECTION_OPTIONS = [
    click.option(
        "--kubeconfig", metavar="FILE", help="Kubeconfig with the server's address and your credentials."
    ),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig to use."),
    click.option("-n", "--namespace", metavar="NAME", help="Namespace of the objects."),
]


def with_connection(function: Callable[..., Any], default_timeout: str = "30s") -> Callable[..., Any]:
    """Add the connection flags to a command, which gets a Connection as first argument.

    `default_timeout` is the default of --request-timeout.
    """

    @functools.wraps(function)
    def call(
        *,
        kubeconfig: str | None,
        context: str | None,
        namespace: str | None,
        request_timeout: float,
        **other_options: Any,
    ) -> Any:
        return function(Connection(kubeconfig, context, namespace, request_timeout), **other_options)

    wrapped: Callable[..., Any] = call
    timeout = click.option(
        "--request-timeout",
        type=Duration(),
        default=default_timeout,
        show_default=True,
        help="Timeout of one request; 0 waits without limit.",
    )
    # click applies decorators from the bottom up: reversed keeps the order of the help text.
    for option in reversed([*_CONNECTION_OPTIONS, timeout]):
        wrapped = option(wrapped)
    return wrapped


def complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of kinds, also after a comma."""
    from lattice.cli.client.kind_names import completions

    prefix, comma, last = incomplete.rpartition(",")
    return [f"{prefix}{comma}{name}" for name in completions() if name.startswith(last)]
