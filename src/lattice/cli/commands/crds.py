"""`lattice crds`: the kinds as CustomResourceDefinitions, from the schemas that the server uses; needs no
server."""

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
    metavar="FORMAT",
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

    wanted_resources = {resource for word in kinds for resource in kind_names().resolve(word)}
    chosen = [
        kind
        for kind in KINDS
        if kind.resource.group == GROUP and (not wanted_resources or kind.resource in wanted_resources)
    ]
    pairs = sorted(((kind.resource, structural_schema(kind)) for kind in chosen), key=lambda pair: pair[0].id)
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
