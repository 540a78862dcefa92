"""Which function answers a call, whatever way it came in?"""

from collections.abc import Awaitable, Callable

from lattice import tracing as traces
from lattice.errors import LatticeError
from lattice.server.access.authorization import RequestAttributes, authorize, log_rejected_request
from lattice.server.requests.call import Call, Reply
from lattice.server.resources import lists, verbs, watch
from lattice.server.resources import subresources as retrying
from lattice.server.resources import subresources as scale
from lattice.server.resources.api import Api

VerbHandler = Callable[[Api, Call], Awaitable[Reply]]

OBJECT_HANDLERS: dict[str, VerbHandler] = {
    "GET": verbs.get,
    "PUT": verbs.update,
    "PATCH": verbs.patch,
    "DELETE": verbs.delete,
}
SUBRESOURCE_HANDLERS: dict[str, dict[str, VerbHandler]] = {
    "status": {"GET": verbs.get, "PUT": verbs.update, "PATCH": verbs.patch},
    "scale": {"GET": scale.get_scale, "PUT": scale.put_scale, "PATCH": scale.put_scale},
    "retry": {"POST": retrying.retry},
}
COLLECTION_HANDLERS: dict[str, VerbHandler] = {
    "list": lists.list_objects,
    "watch": watch.watch_objects,
    "create": verbs.create,
    "deletecollection": lists.delete_collection,
}


def handler_for(call: Call, verb: str) -> VerbHandler:
    target, resource = call.target, call.target.served.resource
    if target.subresource:
        chosen = SUBRESOURCE_HANDLERS.get(target.subresource, {}).get(call.method)
    elif target.name:
        chosen = OBJECT_HANDLERS.get(call.method)
    else:
        chosen = COLLECTION_HANDLERS.get(verb)
        if verb in {"create", "deletecollection"} and resource.namespaced and not target.namespace:
            chosen = None
    if chosen is None or (not target.subresource and verb not in resource.verbs):
        raise verbs.method_not_allowed(call)
    return chosen


async def handle_call(api: Api, call: Call, wanted: RequestAttributes) -> Reply:
    """Refused unless the user may."""
    resource = call.target.served.resource
    with traces.span(f"{wanted.verb} {resource.id}", verb=wanted.verb, resource=resource.id) as span:
        try:
            authorize(call.user, wanted, resource)
            reply = await handler_for(call, wanted.verb)(api, call)
        except LatticeError as error:
            log_rejected_request(
                error, call.user, call.method, f"{resource.id} {call.target.namespace}/{call.target.name}"
            )
            span.set_attributes(status=error.status)
            raise
        span.set_attributes(status=reply.status)
        return reply
