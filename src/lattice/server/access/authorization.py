"""May this user do that? Three groups, default deny, and what only Lattice itself may write."""

from dataclasses import dataclass

from lattice.errors import Denied
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.stored import Object
from lattice.server.requests.call import User

ADMINS = "lattice:admins"
VIEWERS = "lattice:viewers"
SYSTEM = "lattice:system"  # Lattice's own processes: the only writers of status and of made kinds
OURS = "lattice.dev/"  # how the reporting component of Lattice's own events begins

READS = frozenset({"get", "list", "watch"})
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
USERS_MAY = {  # what people may do to kinds that Lattice makes
    "latticenodes.lattice.dev": frozenset(
        {"update", "patch", "delete", "deletecollection"}
    ),  # cordon, taint, remove
    "latticeworkloads.lattice.dev": frozenset(
        ALL_VERBS
    ),  # bare ones; owned ones are refused object by object
}
VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Deed:
    """Something a user wants to do, as access reviews describe it."""

    verb: str
    group: str
    plural: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    allowed: bool
    why: str = ""
    fix: str = ""


def judge(user: User, deed: Deed, resource: Resource | None) -> Verdict:
    """resource: the kind it is about, None when we serve no such kind."""
    if SYSTEM in user.groups:
        return Verdict(True, f"group {SYSTEM}")
    if ADMINS in user.groups:
        return _judge_admin(deed, resource)
    if VIEWERS in user.groups:
        if deed.verb not in READS:
            return Verdict(False, f"group {VIEWERS} may only read")
        if deed.plural == "secrets":
            return Verdict(False, f"group {VIEWERS} may not read secrets")
        return Verdict(True, f"group {VIEWERS}")
    return Verdict(False, f"the user is in none of the groups {ADMINS}, {VIEWERS}")


def _judge_admin(deed: Deed, resource: Resource | None) -> Verdict:
    if resource is None or deed.verb in READS:
        return Verdict(True, f"group {ADMINS}")
    if deed.subresource == "status":
        return Verdict(False, "status is written by Lattice only", "declare what you want in spec")
    if resource.made and deed.verb not in USERS_MAY.get(resource.id, frozenset()):
        return Verdict(False, f"{resource.plural} are made by Lattice only", resource.made)
    return Verdict(True, f"group {ADMINS}")


def authorize(user: User, deed: Deed, resource: Resource | None) -> None:
    verdict = judge(user, deed, resource)
    if not verdict.allowed:
        raise Denied(forbidden(user, deed, verdict.why), fix=verdict.fix)


def forbidden(user: User, deed: Deed, why: str) -> str:
    """Kubernetes' sentence, then ours."""
    what = f"{deed.plural}/{deed.subresource}" if deed.subresource else deed.plural
    whole = f"{deed.plural}.{deed.group}" if deed.group else deed.plural
    head = f'{whole} "{deed.name}" is forbidden' if deed.name else f"{whole} is forbidden"
    scope = f'in the namespace "{deed.namespace}"' if deed.namespace else "at the cluster scope"
    return f'{head}: User "{user.name}" cannot {deed.verb} resource "{what}" in API group "{deed.group}" {scope}: {why}'


def refuse_owned(user: User, resource: Resource, *objects: Object | None) -> None:
    """A workload that belongs to a service is that service's to change."""
    if resource.id != "latticeworkloads.lattice.dev" or SYSTEM in user.groups:
        return
    for obj in objects:
        owner = _owner(obj) if obj is not None else ""
        if owner:
            name = obj["metadata"].get("name", "") if obj else ""
            raise Denied(
                f'latticeworkloads.lattice.dev "{name}" is forbidden: it belongs to {owner} and is written by Lattice only',
                fix=f"change {owner} instead, or declare a workload without an owner",
            )


def refuse_told(user: User, resource: Resource, old: Object | None) -> None:
    """Lattice's own events never change; they go when their time is up."""
    if (
        old is None
        or resource.id != "events"
        or SYSTEM in user.groups
        or not str(old.get("reportingComponent")).startswith(OURS)
    ):
        return
    raise Denied(
        f'events "{old["metadata"]["name"]}" is forbidden: what Lattice told stays as it was told',
        fix="create an event of your own; this one goes when its time is up",
    )


def _owner(obj: Object) -> str:
    spec = obj.get("spec")
    service = spec.get("service") if isinstance(spec, dict) else None
    if service:
        return f"latticeservice {service}"
    references = obj["metadata"].get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("kind") == "LatticeService":
            return f"latticeservice {reference.get('name', '')}"
    return ""
