"""Click types and the `--config` file of the flags of `lattice server`, `up` and `agent`. An error names the
flag, or the line of the file, in which the user wrote the value."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lattice.errors import LatticeError, UsageError

# Flags that a settings file cannot set, because they concern the command line itself.
EXCLUDED_FLAGS = frozenset({"config", "help"})


class _CheckedType(click.ParamType):  # type: ignore[type-arg]
    name = "text"

    def fail_value(
        self, must: str, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        self.fail(f"must be {must}, got {value}", param, ctx)


class Port(_CheckedType):
    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            port = int(value)
        except ValueError:
            port = -1
        return port if 0 <= port <= 65535 else self.fail_value("0 to 65535", value, param, ctx)


class Seconds(_CheckedType):
    """Click type of finite seconds with a minimum, which may be exclusive."""

    name = "float"

    def __init__(self, minimum: float, *, is_exclusive: bool = False) -> None:
        self.minimum, self.is_exclusive = minimum, is_exclusive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        requirement = (
            f"more than {self.minimum:g} seconds"
            if self.is_exclusive
            else f"{self.minimum:g} or more seconds"
        )
        try:
            seconds = float(value)
        except ValueError:
            # NaN fails every comparison below.
            seconds = math.nan
        is_in_range = seconds > self.minimum if self.is_exclusive else seconds >= self.minimum
        return (
            seconds
            if is_in_range and math.isfinite(seconds)
            else self.fail_value(requirement, value, param, ctx)
        )


class MinInteger(_CheckedType):
    """Click type of an integer with a minimum."""

    name = "integer"

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = self.minimum - 1
        return (
            number
            if number >= self.minimum
            else self.fail_value(f"a whole number, {self.minimum} or more", value, param, ctx)
        )


class Folder(_CheckedType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail("must name a folder, got nothing", param, ctx)
        return str(value)


class StoreAddress(_CheckedType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value and not str(value).startswith("etcd://"):
            self.fail(
                f"{value!r} is not a store; omit --store for SQLite, or use etcd://HOST:PORT", param, ctx
            )
        return str(value)


# click infers the type of other settings from their defaults.
SETTING_TYPES: dict[str, click.ParamType] = {  # type: ignore[type-arg]
    "data-dir": Folder(),
    "store": StoreAddress(),
    "port": Port(),
    "agents-port": Port(),
    "lease-ttl": Seconds(1),
    "history": Seconds(0),
    "event-ttl": Seconds(0, is_exclusive=True),
    "fleet-time-limit": Seconds(0, is_exclusive=True),
    "heartbeat": Seconds(0, is_exclusive=True),
    "node-lost-after": Seconds(0, is_exclusive=True),
    "replace-after": Seconds(0, is_exclusive=True),
    "reconcile-interval": Seconds(0, is_exclusive=True),
    "reconcile-workers": MinInteger(1),
    "retry-first": Seconds(0, is_exclusive=True),
    "retry-longest": Seconds(0, is_exclusive=True),
    "retry-service-longest": Seconds(0, is_exclusive=True),
    "retry-reset": Seconds(0, is_exclusive=True),
    "retry-attempts": MinInteger(1),
    "missing-grace": Seconds(0),
    "start-grace": Seconds(0),
    "stop-grace": Seconds(0),
}


if TYPE_CHECKING:
    from lattice.kinds.meta.yaml_manifest import Document


def config_flag(environment: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The `--config FILE` flag for a command; the file may set every other flag of the command by name."""

    def load_config(context: click.Context, _: click.Parameter, path: str) -> None:
        # Shell completion parses resiliently and must not read the file.
        if path and not context.resilient_parsing:
            context.default_map = {**(context.default_map or {}), **read_settings_file(path, context)}

    # Eager: the file must become the default map before click reads the other flags.
    return click.option(
        "--config",
        default="",
        envvar=environment,
        show_envvar=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=load_config,
        help="YAML file with settings, named like these flags. Flags and environment variables override the file.",
    )


def read_settings_file(path: str, context: click.Context) -> dict[str, Any]:
    """Settings of the file as flag values; each value is checked here, where the line of the value is known."""
    from lattice.kinds.meta.validator import did_you_mean

    options = {}
    for option in context.command.params:
        name = max(option.opts, key=len).removeprefix("--")
        if isinstance(option, click.Option) and name not in EXCLUDED_FLAGS:
            options[name] = option
    settings: dict[str, Any] = {}
    for document in _documents(path):
        for key, value in document.value.items():
            where = document.location(key)
            if key not in options:
                listed = f"`lattice {context.info_name} --help` lists them"
                raise UsageError(
                    f"there is no setting {key!r}{did_you_mean(key, options)}",
                    where=where,
                    fix=f"use the name of a flag; {listed}",
                )
            settings[options[key].name or key] = _checked_value(
                options[key], value, context, f"{where} {key}"
            )
    return settings


def _documents(path: str) -> "list[Document]":
    from lattice.kinds.meta.yaml_manifest import load_documents

    try:
        # A settings file is never a Kubernetes List.
        documents = load_documents(Path(path).read_bytes(), path, expand_lists=False)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {(error.strerror or str(error)).lower()}",
            where=path,
            fix="check the path in --config",
        ) from error
    except LatticeError as error:
        raise UsageError(
            error.message, where=error.where, fix=error.fix or "write each setting as `name: value`"
        ) from error
    if len(documents) > 1:
        raise UsageError(
            "a settings file holds one document",
            where=documents[1].location(),
            fix="remove the line with ---",
        )
    return documents


def _checked_value(option: click.Option, value: Any, context: click.Context, where: str) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"must be true or false, got {value!r}", where=where, fix="write true or false")
        return value
    words = value if option.multiple and isinstance(value, list) else [value]
    if any(isinstance(item, bool | dict | list) or item is None for item in words):
        fix = "write one value, or a list of them" if option.multiple else "write one value"
        expected = "text" if option.type.name == "text" else f"of type {option.type.name}"
        raise UsageError(f"must be {expected}, got {_describe_value(value)}", where=where, fix=fix)
    # click converts the value later; the conversion here only checks, where the line is known.
    typed: Any = [str(item) for item in words] if option.multiple else str(value)
    try:
        option.type_cast_value(context, typed)
    except click.BadParameter as error:
        raise UsageError(error.message, where=where, fix="write the value as after the flag") from error
    return typed


def _describe_value(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return "a mapping" if isinstance(value, dict) else "a list"
