"""Scenarios that read as documentation: a command, `----`, what Lattice says. The same words each time, since time and chance are ours."""

import inspect
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any, get_args

from lattice.errors import Malformed
from lattice.sim.scenarios.stage import OPTIONS, Stage, whole

SEPARATOR = "----"
BEGIN = "world"
Deed = Callable[..., Any]

SHOWN: Mapping[str, Deed] = {
    "workloads": Stage.show_workloads,
    "services": Stage.show_services,
    "nodes": Stage.show_nodes,
    "money": Stage.show_money,
    "events": Stage.show_events,
    "running": Stage.show_running,
    "attempts": Stage.show_attempts,
    "leader": Stage.show_leader,
}
COMMANDS: Mapping[str, Deed] = {
    BEGIN: Stage.begin,
    "wait": Stage.wait,
    "class": Stage.node_class,
    "pool": Stage.pool,
    "service": Stage.service,
    "workload": Stage.workload,
    "scale": Stage.scale,
    "delete": Stage.delete,
    "retry": Stage.retry,
    "cordon": Stage.cordon,
    "uncordon": Stage.uncordon,
    "taint": Stage.taint,
    "drain": Stage.drain,
    "kill": Stage.kill,
    "start": Stage.start,
    "pause": Stage.pause,
    "resume": Stage.resume,
    "cut": Stage.cut,
    "heal": Stage.heal,
    "power-off": Stage.power_off,
    "power-on": Stage.power_on,
    "lose": Stage.lose,
    "runtime": Stage.runtime,
    "provider": Stage.provider,
    "jump": Stage.jump,
    **{f"show {what}": deed for what, deed in SHOWN.items()},
}


@dataclass
class Block:
    """Comments and commands, and what was said after them. `at`: the line it begins in."""

    head: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    at: int = 1

    @property
    def commands(self) -> list[tuple[int, str]]:
        """Each with its line."""
        return [
            (self.at + number, line)
            for number, line in enumerate(self.head)
            if line.strip() and not line.startswith("#")
        ]


def blocks(text: str) -> list[Block]:
    """Separated by empty lines; a block without the separator says nothing."""
    found = []
    at = 1 + len(text) - len(text.lstrip("\n"))
    for part in text.strip("\n").split("\n\n"):
        head, _, said = f"{part}\n".partition(f"{SEPARATOR}\n")
        found.append(
            Block(head.rstrip("\n").split("\n"), said.rstrip("\n").split("\n") if said.strip() else [], at)
        )
        at += part.count("\n") + 2
    return found


def written(found: list[Block]) -> str:
    parts = []
    for block in found:
        said = [SEPARATOR, *block.said] if block.said else []
        parts.append("\n".join([*block.head, *said]))
    return "\n\n".join(parts) + "\n"


def played(text: str, name: str = "scenario") -> str:
    """The same scenario with what is said now. Raises Malformed with `name` and the line of a command that cannot be done."""
    stage = Stage()
    found = blocks(text)
    for block in found:
        block.said = []
        for line, command in block.commands:
            try:
                block.said += do(stage, command)
            except Malformed as error:
                raise Malformed(
                    error.what, where=f"{name}, line {line}, `{command}`", fix=error.fix
                ) from error
    return written(found)


def do(stage: Stage, command: str) -> Iterator[str]:
    verb, deed, words = _parted(command)
    if not stage.is_begun and verb != BEGIN:
        raise Malformed(
            "there is no world yet", fix=f"begin the scenario with `{BEGIN}`, such as `{BEGIN} racks=1`"
        )
    words = [stage.home(word[1:]) if word.startswith("@") else word for word in words]
    names, options = _understood(verb, deed, words)
    yield from deed(stage, *names, **options) or ()


def _parted(command: str) -> tuple[str, Deed, list[str]]:
    """Which command it is, what it does, and the words after it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Malformed(f"it cannot be read: {error}", fix="close the quotation") from error
    for length in (2, 1):
        if deed := COMMANDS.get(verb := " ".join(words[:length])):
            return verb, deed, words[length:]
    if words[0] == "show":
        raise Malformed(
            f"there is no {' '.join(words[1:2]) or 'such thing'!r} to show",
            fix=f"show one of {', '.join(SHOWN)}",
        )
    known = [name for name in COMMANDS if not name.startswith("show ")]
    raise Malformed(f"there is no command {words[0]!r}", fix=f"use one of {', '.join(known)}, show")


def _understood(verb: str, deed: Deed, words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """The words as the command takes them."""
    parameters = _parameters(deed)
    names = [each for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    options = {each.name: each for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    plain = [word for word in words if "=" not in word]
    fix = f"write it as `{usage(verb)}`"
    if len(plain) < sum(each.default is Parameter.empty for each in names):
        raise Malformed(f"{names[len(plain)].name.upper()} is missing", fix=fix)
    if len(plain) > len(names):
        raise Malformed(f"{plain[len(names)]!r} is a word too many", fix=fix)
    given: dict[str, Any] = {}
    for name, _, value in (word.partition("=") for word in words if "=" in word):
        if name in options:
            given[name] = _read(name, value, options[name].annotation)
        elif name in OPTIONS and verb in OPTIONS[name].of:
            given[name] = value
        else:
            raise Malformed(f"there is no option {name!r}", fix=fix)
    return [
        _read(each.name.upper(), word, each.annotation) for each, word in zip(names, plain, strict=False)
    ], given


def _parameters(deed: Deed) -> list[Parameter]:
    return list(inspect.signature(deed).parameters.values())[1:]


def _read(name: str, word: str, kind: Any) -> Any:
    if kind is int:
        return whole(name, word)
    if kind is float:
        return _number(name, word)
    if (known := get_args(kind)) and word not in known:
        raise Malformed(f"{name} cannot be {word!r}", fix=f"use one of {', '.join(known)}")
    return word


def _number(name: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Malformed(f"{name} must be a number, not {word!r}", fix="write it in digits, such as 2.5")
    return number


def usage(verb: str) -> str:
    """How a line with that command is written."""
    words = [verb]
    for each in _parameters(COMMANDS[verb]):
        choices = "|".join(get_args(each.annotation))
        name = choices or each.name.upper()
        if each.kind is Parameter.VAR_KEYWORD:
            words += [f"[{name}={option.example}]" for name, option in OPTIONS.items() if verb in option.of]
        elif each.kind is Parameter.KEYWORD_ONLY:
            words.append(f"[{each.name}={choices or each.default}]")
        else:
            words.append(name if each.default is Parameter.empty else f"[{name}]")
    return " ".join(words)
