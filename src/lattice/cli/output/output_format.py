"""Output formats of `-o`: the click type that parses the flag, and serialization of objects."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from lattice.cli.output import render
from lattice.errors import LatticeError
from lattice.kinds.meta.jsonpath import Template, compile_template


class OutputFormat(NamedTuple):
    """Output format: `table`, `wide`, `name`, `json`, `yaml`, or `jsonpath` with its template."""

    name: str = "table"
    template: Template | None = None

    @property
    def is_table(self) -> bool:
        return self.name in ("table", "wide")


class OutputFormatType(click.ParamType):  # type: ignore[type-arg]
    """Click type of `-o` that accepts only the formats a command can print."""

    name = "form"

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OutputFormat:
        if isinstance(value, OutputFormat):
            return value
        # kubectl users write -o=json, too.
        name, _, text = value.removeprefix("=").partition("=")
        if name not in self.allowed or (text and name != "jsonpath"):
            self.fail(
                f"{value!r} is not an output format of this command; use {', '.join(self.allowed)}",
                param,
                ctx,
            )
        if name != "jsonpath":
            return OutputFormat(name)
        if not text:
            self.fail("jsonpath needs a template: -o jsonpath='{.metadata.name}'", param, ctx)
        try:
            return OutputFormat(name, compile_template(text))
        except LatticeError as e:
            self.fail(str(e), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in self.allowed if name.startswith(incomplete)]


def output_option(*allowed: str, help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The `-o` flag for the allowed formats, which a command gets as the argument `form`."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=OutputFormatType(*allowed),
        default=OutputFormat(),
        metavar="FORMAT",
        help=help_text,
    )


def serialize(value: Any, form: OutputFormat) -> str:
    """Serialize a value as JSON or YAML, or render the value through the jsonpath template."""
    if form.template is not None:
        return form.template.render(value)
    return render.to_yaml(value) if form.name == "yaml" else f"{render.to_json(value)}\n"


def one_or_list(items: Sequence[Any], single: bool) -> Any:
    return items[0] if single and len(items) == 1 else render.as_list(list(items))


def print_raw(text: str) -> None:
    click.echo(text, nl=False)
