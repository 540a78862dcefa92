"""Scenarios that read as documentation: a command, `----`, what Lattice says. The same words each time, since time and chance are ours."""

import inspect
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any, get_args

from lattice.errors import Malformed
from lattice.sim.scenarios.scenario_world import OPTIONS, ScenarioWorld, parse_int

SEPARATOR = "----"
BEGIN_COMMAND = "world"
CommandHandler = Callable[..., Any]

SHOW_COMMANDS: Mapping[str, CommandHandler] = {
    "workloads": ScenarioWorld.show_workloads,
    "services": ScenarioWorld.show_services,
    "nodes": ScenarioWorld.show_nodes,
    "money": ScenarioWorld.show_money,
    "events": ScenarioWorld.show_events,
    "running": ScenarioWorld.show_running,
    "attempts": ScenarioWorld.show_attempts,
    "leader": ScenarioWorld.show_leader,
}
COMMANDS: Mapping[str, CommandHandler] = {
    BEGIN_COMMAND: ScenarioWorld.begin,
    "wait": ScenarioWorld.wait,
    "class": ScenarioWorld.node_class,
    "pool": ScenarioWorld.pool,
    "service": ScenarioWorld.service,
    "workload": ScenarioWorld.workload,
    "scale": ScenarioWorld.scale,
    "delete": ScenarioWorld.delete,
    "retry": ScenarioWorld.retry,
    "cordon": ScenarioWorld.cordon,
    "uncordon": ScenarioWorld.uncordon,
    "taint": ScenarioWorld.taint,
    "drain": ScenarioWorld.drain,
    "kill": ScenarioWorld.kill,
    "start": ScenarioWorld.start,
    "pause": ScenarioWorld.pause,
    "resume": ScenarioWorld.resume,
    "cut": ScenarioWorld.cut,
    "heal": ScenarioWorld.heal,
    "power-off": ScenarioWorld.power_off,
    "power-on": ScenarioWorld.power_on,
    "lose": ScenarioWorld.lose,
    "runtime": ScenarioWorld.runtime,
    "provider": ScenarioWorld.provider,
    "jump": ScenarioWorld.jump,
    **{f"show {what}": deed for what, deed in SHOW_COMMANDS.items()},
}


@dataclass
class Block:
    """Comments and commands, and what was said after them. `at`: the line it begins in."""

    input_lines: list[str] = field(default_factory=list)
    output_lines: list[str] = field(default_factory=list)
    first_line: int = 1

    @property
    def commands(self) -> list[tuple[int, str]]:
        """Each with its line."""
        return [
            (self.first_line + number, line)
            for number, line in enumerate(self.input_lines)
            if line.strip() and not line.startswith("#")
        ]


def parse_blocks(text: str) -> list[Block]:
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


def format_blocks(found: list[Block]) -> str:
    parts = []
    for block in found:
        said = [SEPARATOR, *block.output_lines] if block.output_lines else []
        parts.append("\n".join([*block.input_lines, *said]))
    return "\n\n".join(parts) + "\n"


def run_scenario(text: str, name: str = "scenario") -> str:
    """The same scenario with what is said now. Raises Malformed with `name` and the line of a command that cannot be done."""
    stage = ScenarioWorld()
    found = parse_blocks(text)
    for block in found:
        block.output_lines = []
        for line, command in block.commands:
            try:
                block.output_lines += run_command(stage, command)
            except Malformed as error:
                raise Malformed(
                    error.message, where=f"{name}, line {line}, `{command}`", fix=error.fix
                ) from error
    return format_blocks(found)


def run_command(stage: ScenarioWorld, command: str) -> Iterator[str]:
    verb, deed, words = _split_command(command)
    if not stage.has_started and verb != BEGIN_COMMAND:
        raise Malformed(
            "there is no world yet",
            fix=f"begin the scenario with `{BEGIN_COMMAND}`, such as `{BEGIN_COMMAND} racks=1`",
        )
    words = [stage.node_of_workload(word[1:]) if word.startswith("@") else word for word in words]
    names, options = _parse_arguments(verb, deed, words)
    yield from deed(stage, *names, **options) or ()


def _split_command(command: str) -> tuple[str, CommandHandler, list[str]]:
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
            fix=f"show one of {', '.join(SHOW_COMMANDS)}",
        )
    known = [name for name in COMMANDS if not name.startswith("show ")]
    raise Malformed(f"there is no command {words[0]!r}", fix=f"use one of {', '.join(known)}, show")


def _parse_arguments(verb: str, deed: CommandHandler, words: list[str]) -> tuple[list[Any], dict[str, Any]]:
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
            given[name] = _parse_value(name, value, options[name].annotation)
        elif name in OPTIONS and verb in OPTIONS[name].commands:
            given[name] = value
        else:
            raise Malformed(f"there is no option {name!r}", fix=fix)
    return [
        _parse_value(each.name.upper(), word, each.annotation)
        for each, word in zip(names, plain, strict=False)
    ], given


def _parameters(deed: CommandHandler) -> list[Parameter]:
    return list(inspect.signature(deed).parameters.values())[1:]


def _parse_value(name: str, word: str, kind: Any) -> Any:
    if kind is int:
        return parse_int(name, word)
    if kind is float:
        return _parse_float(name, word)
    if (known := get_args(kind)) and word not in known:
        raise Malformed(f"{name} cannot be {word!r}", fix=f"use one of {', '.join(known)}")
    return word


def _parse_float(name: str, word: str) -> float:
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
            words += [
                f"[{name}={option.example}]" for name, option in OPTIONS.items() if verb in option.commands
            ]
        elif each.kind is Parameter.KEYWORD_ONLY:
            words.append(f"[{each.name}={choices or each.default}]")
        else:
            words.append(name if each.default is Parameter.empty else f"[{name}]")
    return " ".join(words)
