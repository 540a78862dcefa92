"""Settings from a file: what a command's flags may say, said in YAML; a flag or an environment variable wins over it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lattice.usage import Misused
from lattice.errors import LatticeError

if TYPE_CHECKING:
    from lattice.kinds.meta.yaml_manifest import Document

NEVER = frozenset({"config", "help"})  # flags that are about the command line itself


def config_flag(environment: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--config FILE`. Put it on a command that has flags; the file may say each of them, by its name."""
    return click.option(
        "--config",
        default="",
        envvar=environment,
        show_envvar=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_take,
        help="YAML file with settings, by the names of these flags. Flags and environment variables win over it.",
    )


def _take(context: click.Context, _: click.Parameter, path: str) -> None:
    if path and not context.resilient_parsing:
        context.default_map = {**(context.default_map or {}), **read(path, context)}


def read(path: str, context: click.Context) -> dict[str, Any]:
    """What the file says, as if it had been typed; each value is checked now, where its line is known."""
    from lattice.kinds.meta.spelling import nearest

    known = {
        word: each
        for each in context.command.params
        if isinstance(each, click.Option) and (word := _word(each)) not in NEVER
    }
    said: dict[str, Any] = {}
    for document in _documents(path):
        for key, value in document.value.items():
            where = document.at(key)
            if key not in known:
                listed = f"`lattice {context.info_name} --help` lists them"
                raise Misused(
                    f"there is no setting {key!r}{nearest(key, known)}",
                    where=where,
                    fix=f"use the name of a flag; {listed}",
                )
            said[known[key].name or key] = _value(known[key], value, context, f"{where} {key}")
    return said


def _documents(path: str) -> "list[Document]":
    from lattice.kinds.meta.yaml_manifest import load

    try:
        found = load(Path(path).read_bytes(), path, lists=False)
    except OSError as error:
        raise Misused(
            f"cannot be read: {(error.strerror or str(error)).lower()}",
            where=path,
            fix="check the path in --config",
        ) from error
    except LatticeError as error:
        raise Misused(
            error.what, where=error.where, fix=error.fix or "write each setting as `name: value`"
        ) from error
    if len(found) > 1:
        raise Misused("settings are one document", where=found[1].at(), fix="leave out the line with ---")
    return found


def _word(option: click.Option) -> str:
    return max(option.opts, key=len).removeprefix("--")


def _value(option: click.Option, value: Any, context: click.Context, where: str) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise Misused(f"must be true or false, got {value!r}", where=where, fix="write true or false")
        return value
    words = value if option.multiple and isinstance(value, list) else [value]
    if any(isinstance(each, bool | dict | list) or each is None for each in words):
        fix = "write one value, or a list of them" if option.multiple else "write one value"
        raise Misused(f"must be {_form(option)}, got {_shown(value)}", where=where, fix=fix)
    typed: Any = [str(each) for each in words] if option.multiple else str(value)
    try:
        option.type_cast_value(context, typed)
    except click.BadParameter as error:
        raise Misused(error.message, where=where, fix="write it as you would after the flag") from error
    return typed


def _form(option: click.Option) -> str:
    return "text" if option.type.name == "text" else f"of type {option.type.name}"


def _shown(value: Any) -> str:
    return (
        "nothing"
        if value is None
        else str(value).lower()
        if isinstance(value, bool)
        else "a mapping"
        if isinstance(value, dict)
        else "a list"
    )
