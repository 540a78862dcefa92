"""Which kind, object and verb does a path mean?"""

from lattice.errors import NotFound
from lattice.server.access.authorization import VERBS, Deed
from lattice.server.requests.call import Target
from lattice.server.requests.catalog import Catalog
from lattice.server.requests.subresources import has_part


def locate(catalog: Catalog, path: str) -> Target:
    """/apis/GROUP/VERSION/[namespaces/NS/]PLURAL[/NAME[/SUBRESOURCE]], or the same below /api/v1."""
    parts = path.strip("/").split("/")
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    served = catalog.find(group, version, rest[0]) if rest else None
    if served is None or len(rest) > 3 or (namespace and not served.resource.namespaced):
        raise unknown_path(path)
    target = Target(served, namespace, *rest[1:])
    if target.name and served.resource.namespaced and not namespace:
        raise unknown_path(path)
    if target.subresource and not has_part(served.resource, target.subresource):
        raise unknown_path(path)
    return target


def unknown_path(path: str) -> NotFound:
    return NotFound(
        "the server could not find the requested resource",
        where=path,
        fix="`kubectl api-resources` lists what there is",
    )


def deed(method: str, target: Target, *, watching: bool) -> Deed:
    """What a request wants, as authorization knows it."""
    verb = VERBS.get(method, method.lower())
    if not target.name:
        verb = {"get": "watch" if watching else "list", "delete": "deletecollection"}.get(verb, verb)
    resource = target.served.resource
    return Deed(verb, resource.group, resource.plural, target.subresource, target.namespace, target.name)
