"""Scenario files: blocks of a command, `----` and the output of Lattice. The output is the same in every run,
because time and randomness are simulated."""

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
    **{f"show {subject}": handler for subject, handler in SHOW_COMMANDS.items()},
}


@dataclass
class Block:
    """Comments and commands with their output. `first_line` is the line number of the block in the file."""

    input_lines: list[str] = field(default_factory=list)
    output_lines: list[str] = field(default_factory=list)
    first_line: int = 1

    @property
    def commands(self) -> list[tuple[int, str]]:
        """Commands with their line numbers."""
        return [
            (self.first_line + number, line)
            for number, line in enumerate(self.input_lines)
            if line.strip() and not line.startswith("#")
        ]


def parse_blocks(text: str) -> list[Block]:
    """The blocks of a scenario, separated by empty lines; a block without the separator has no output."""
    blocks = []
    first_line = 1 + len(text) - len(text.lstrip("\n"))
    for part in text.strip("\n").split("\n\n"):
        head, _, output = f"{part}\n".partition(f"{SEPARATOR}\n")
        blocks.append(
            Block(
                head.rstrip("\n").split("\n"),
                output.rstrip("\n").split("\n") if output.strip() else [],
                first_line,
            )
        )
        first_line += part.count("\n") + 2
    return blocks


def format_blocks(blocks: list[Block]) -> str:
    parts = []
    for block in blocks:
        output = [SEPARATOR, *block.output_lines] if block.output_lines else []
        parts.append("\n".join([*block.input_lines, *output]))
    return "\n\n".join(parts) + "\n"


def run_scenario(text: str, name: str = "scenario") -> str:
    """The scenario with its current output. Raises Malformed with `name` and the line of a command that
    cannot be executed."""
    world = ScenarioWorld()
    blocks = parse_blocks(text)
    for block in blocks:
        block.output_lines = []
        for line, command in block.commands:
            try:
                block.output_lines += run_command(world, command)
            except Malformed as error:
                raise Malformed(
                    error.message, where=f"{name}, line {line}, `{command}`", fix=error.fix
                ) from error
    return format_blocks(blocks)


def run_command(world: ScenarioWorld, command: str) -> Iterator[str]:
    """Execute a command and yield its output; `@lone` in a command is the node of workload `lone`."""
    verb, handler, words = _split_command(command)
    if not world.has_started and verb != BEGIN_COMMAND:
        raise Malformed(
            "no world exists yet",
            fix=f"begin the scenario with `{BEGIN_COMMAND}`, such as `{BEGIN_COMMAND} racks=1`",
        )
    words = [world.node_of_workload(word[1:]) if word.startswith("@") else word for word in words]
    names, options = _parse_arguments(verb, handler, words)
    yield from handler(world, *names, **options) or ()


def _split_command(command: str) -> tuple[str, CommandHandler, list[str]]:
    """The verb of a command, its handler and the remaining words."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Malformed(f"cannot parse the command: {error}", fix="close the quotation marks") from error
    # Commands of two words, such as `show nodes`, come first.
    for length in (2, 1):
        if handler := COMMANDS.get(verb := " ".join(words[:length])):
            return verb, handler, words[length:]
    if words[0] == "show":
        raise Malformed(
            f"cannot show {' '.join(words[1:2]) or 'nothing'!r}",
            fix=f"show one of {', '.join(SHOW_COMMANDS)}",
        )
    names = [name for name in COMMANDS if not name.startswith("show ")]
    raise Malformed(f"unknown command {words[0]!r}", fix=f"use one of {', '.join(names)}, show")


def _parse_arguments(
    verb: str, handler: CommandHandler, words: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional values and options of a command, converted by the handler's annotations."""
    parameters = _parameters(handler)
    names = [parameter for parameter in parameters if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD]
    options = {
        parameter.name: parameter for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY
    }
    plain = [word for word in words if "=" not in word]
    fix = f"write the command as `{usage(verb)}`"
    if len(plain) < sum(parameter.default is Parameter.empty for parameter in names):
        raise Malformed(f"{names[len(plain)].name.upper()} is missing", fix=fix)
    if len(plain) > len(names):
        raise Malformed(f"{plain[len(names)]!r} is an unexpected argument", fix=fix)
    values: dict[str, Any] = {}
    for name, _, value in (word.partition("=") for word in words if "=" in word):
        if name in options:
            values[name] = _parse_value(name, value, options[name].annotation)
        elif name in OPTIONS and verb in OPTIONS[name].commands:
            values[name] = value
        else:
            raise Malformed(f"unknown option {name!r}", fix=fix)
    return [
        _parse_value(parameter.name.upper(), word, parameter.annotation)
        for parameter, word in zip(names, plain, strict=False)
    ], values


def _parameters(handler: CommandHandler) -> list[Parameter]:
    return list(inspect.signature(handler).parameters.values())[1:]


def _parse_value(name: str, word: str, kind: Any) -> Any:
    if kind is int:
        return parse_int(name, word)
    if kind is float:
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise Malformed(
                f"{name} must be a number, not {word!r}", fix="write the number in digits, such as 2.5"
            )
        return number
    if (choices := get_args(kind)) and word not in choices:
        raise Malformed(f"{name} cannot be {word!r}", fix=f"use one of {', '.join(choices)}")
    return word


def usage(verb: str) -> str:
    """The syntax of a command in a scenario."""
    words = [verb]
    for parameter in _parameters(COMMANDS[verb]):
        choices = "|".join(get_args(parameter.annotation))
        name = choices or parameter.name.upper()
        if parameter.kind is Parameter.VAR_KEYWORD:
            words += [
                f"[{name}={option.example}]" for name, option in OPTIONS.items() if verb in option.commands
            ]
        elif parameter.kind is Parameter.KEYWORD_ONLY:
            words.append(f"[{parameter.name}={choices or parameter.default}]")
        else:
            words.append(name if parameter.default is Parameter.empty else f"[{name}]")
    return " ".join(words)
