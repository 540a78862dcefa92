"""The /retry part of a workload: a person wants it tried again, whoever owns it."""

from lattice.errors import Conflict
from lattice.kinds.meta.stored import pack, splice, unpack
from lattice.lifecycle.retry import requested
from lattice.server.resources import admission
from lattice.server.resources.api import Api
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.options import write_options
from lattice.server.resources.verbs import existing, refuse_verb
from lattice.server.resources.write import ATTEMPTS
from lattice.store.protocol import Clash, Put


async def retry(api: Api, call: Call) -> Reply:
    """Only a mark on the stored object: the leader sees it, tries again, and takes it off."""
    if call.method != "POST":
        raise refuse_verb(call)
    options = write_options(call.query, "CreateOptions", call.agent)
    served = call.target.served
    for _ in range(ATTEMPTS):
        entry = await existing(api, call)
        obj = unpack(entry.value, entry.revision)
        if obj["metadata"].get("deletionTimestamp"):
            raise Conflict(
                f'{served.resource.id} "{call.target.name}" is being deleted',
                fix="declare it again once it is gone",
            )
        if (obj.get("spec") or {}).get("desiredState", "Running") != "Running":
            what = (
                f'{served.resource.id} "{call.target.name}" is to be stopped: there is nothing to try again'
            )
            raise Conflict(what, fix="start it first: set its spec.desiredState to Running")
        value = pack(served.resource, {**obj, "metadata": requested(obj["metadata"], api.now())})
        if options.dry_run:
            return Reply(splice(value, served.head, entry.revision))
        try:
            revision = await api.store.commit([Put(entry.key, value, entry.revision)])
        except Clash:
            continue
        return Reply(splice(value, served.head, revision))
    raise admission.stale(served, call.target.name)
