"""Choose the function that answers a call, authorize the user, and run the function inside a span."""

from collections.abc import Awaitable, Callable

from lattice import tracing as traces
from lattice.errors import LatticeError
from lattice.server.access.authorization import RequestAttributes, authorize, log_rejected_request
from lattice.server.requests.call import Call, Reply
from lattice.server.resources import lists, subresources, verbs, watch
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
    "scale": {
        "GET": subresources.get_scale,
        "PUT": subresources.put_scale,
        "PATCH": subresources.put_scale,
    },
    "retry": {"POST": subresources.retry},
    "finalize": {"PUT": subresources.finalize_namespace},
}
COLLECTION_HANDLERS: dict[str, VerbHandler] = {
    "list": lists.list_objects,
    "watch": watch.watch_objects,
    "create": verbs.create,
    "deletecollection": lists.delete_collection,
}


def handler_for(call: Call, verb: str) -> VerbHandler:
    """Return the handler of a call, or raise MethodNotAllowed."""
    target, resource = call.target, call.target.served.resource
    if target.subresource:
        handler = SUBRESOURCE_HANDLERS.get(target.subresource, {}).get(call.method)
    elif target.name:
        handler = OBJECT_HANDLERS.get(call.method)
    else:
        handler = COLLECTION_HANDLERS.get(verb)
        # A namespaced object is created or deleted in one namespace; only list and watch span every
        # namespace.
        if verb in {"create", "deletecollection"} and resource.namespaced and not target.namespace:
            handler = None
    if handler is None or (not target.subresource and verb not in resource.verbs):
        raise verbs.method_not_allowed(call)
    return handler


async def handle_call(api: Api, call: Call, attributes: RequestAttributes) -> Reply:
    """Authorize and answer a call that did not arrive by HTTP; a rejected call is logged. For HTTP, the app
    authorizes the call and uses `handler_for`."""
    resource = call.target.served.resource
    with traces.span(f"{attributes.verb} {resource.id}", verb=attributes.verb, resource=resource.id) as span:
        try:
            authorize(call.user, attributes, resource)
            reply = await handler_for(call, attributes.verb)(api, call)
        except LatticeError as error:
            log_rejected_request(
                error, call.user, call.method, f"{resource.id} {call.target.namespace}/{call.target.name}"
            )
            span.set_attributes(status=error.status)
            raise
        span.set_attributes(status=reply.status)
        return reply
