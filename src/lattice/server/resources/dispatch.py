"""Which function answers a call, whatever way it came in?"""

from collections.abc import Awaitable, Callable

from lattice import tracing as traces
from lattice.errors import LatticeError
from lattice.server.resources import lists, retrying, subresources as scale, verbs, watch
from lattice.server.resources.api import Api
from lattice.server.access.audit import note_refusal
from lattice.server.access.authorization import Deed, authorize
from lattice.server.requests.call import Call, Reply

Verb = Callable[[Api, Call], Awaitable[Reply]]

ON_OBJECT: dict[str, Verb] = {
    "GET": verbs.get,
    "PUT": verbs.update,
    "PATCH": verbs.patch,
    "DELETE": verbs.delete,
}
ON_PART: dict[str, dict[str, Verb]] = {
    "status": {"GET": verbs.get, "PUT": verbs.update, "PATCH": verbs.patch},
    "scale": {"GET": scale.get_scale, "PUT": scale.put_scale, "PATCH": scale.put_scale},
    "retry": {"POST": retrying.retry},
}
ON_KIND: dict[str, Verb] = {
    "list": lists.list_objects,
    "watch": watch.watch_objects,
    "create": verbs.create,
    "deletecollection": lists.delete_collection,
}


def verb_for(call: Call, verb: str) -> Verb:
    target, resource = call.target, call.target.served.resource
    if target.subresource:
        chosen = ON_PART.get(target.subresource, {}).get(call.method)
    elif target.name:
        chosen = ON_OBJECT.get(call.method)
    else:
        chosen = ON_KIND.get(verb)
        if verb in {"create", "deletecollection"} and resource.namespaced and not target.namespace:
            chosen = None
    if chosen is None or (not target.subresource and verb not in resource.verbs):
        raise verbs.refuse_verb(call)
    return chosen


async def answer(api: Api, call: Call, wanted: Deed) -> Reply:
    """Refused unless the user may."""
    resource = call.target.served.resource
    with traces.span(f"{wanted.verb} {resource.id}", verb=wanted.verb, resource=resource.id) as span:
        try:
            authorize(call.user, wanted, resource)
            reply = await verb_for(call, wanted.verb)(api, call)
        except LatticeError as error:
            note_refusal(
                error, call.user, call.method, f"{resource.id} {call.target.namespace}/{call.target.name}"
            )
            span.tell(status=error.status)
            raise
        span.tell(status=reply.status)
        return reply
