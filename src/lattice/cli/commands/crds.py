"""`lattice crds`: our kinds as CustomResourceDefinitions, from the same schemas that the server uses; needs no server."""

import click

from lattice.cli.client.options import Command
from lattice.cli.output import output_format as output


@click.command(cls=Command)
@click.argument("kinds", nargs=-1, metavar="[KIND...]")
@click.option(
    "-o",
    "--output",
    "form",
    type=output.OutputFormatType("yaml", "json", "name"),
    default=output.OutputFormat("yaml"),
    metavar="FORM",
    help="yaml, json or name.",
)
def crds(kinds: tuple[str, ...], form: output.OutputFormat) -> None:
    """Print the kinds as CustomResourceDefinitions, for Kubernetes.

    \b
    Examples:
      lattice crds | kubectl apply -f -
      lattice crds pools services
    """
    from lattice.cli.client.kind_names import kind_names
    from lattice.cli.output.render import as_list
    from lattice.kinds import KINDS
    from lattice.kinds.meta.base import GROUP
    from lattice.kinds.meta.schema import structural_schema
    from lattice.server.discovery.crds import crd, dump_crds

    wanted = {r for word in kinds for r in kind_names().resolve(word)}
    chosen = [k for k in KINDS if k.resource.group == GROUP and (not wanted or k.resource in wanted)]
    pairs = sorted(((k.resource, structural_schema(k)) for k in chosen), key=lambda pair: pair[0].id)
    if form.name == "yaml":
        output.print_raw(dump_crds(pairs))
    elif form.name == "json":
        output.print_raw(
            output.serialize(as_list([crd(resource, schema) for resource, schema in pairs]), form)
        )
    else:
        output.print_raw(
            "".join(f"customresourcedefinition.apiextensions.k8s.io/{resource.id}\n" for resource, _ in pairs)
        )
