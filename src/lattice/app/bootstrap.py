"""Create the objects that every store needs: the permanent namespaces and the certificate authority."""

import contextlib
from base64 import b64decode, b64encode

from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import Object, pack, unpack
from lattice.server.access.certificate_authority import (
    CertificateAuthority,
    CertificateKeyPair,
    load_authority,
    new_authority,
)
from lattice.server.requests.catalog import ServedKind
from lattice.server.resources.admission import CA_SECRET, PERMANENT_NAMESPACES, apply_kind_defaults
from lattice.server.resources.api import Api
from lattice.store.protocol import ABSENT, Entry, Put, RevisionConflict


async def bootstrap(api: Api) -> CertificateAuthority:
    """Create missing objects and return the certificate authority. If several servers start at the same time,
    the first server creates an object, and the others read it."""
    for name in sorted(PERMANENT_NAMESPACES):
        await _ensure(api, api.catalog.by_id("namespaces"), {"metadata": {"name": name}})
    await _label_namespaces(api)
    _, pair = new_authority()
    data = {"tls.crt": b64encode(pair.certificate).decode(), "tls.key": b64encode(pair.key).decode()}
    secret = {
        "metadata": {"name": CA_SECRET.name, "namespace": CA_SECRET.namespace},
        "type": "kubernetes.io/tls",
        "data": data,
    }
    entry = await _ensure(api, api.catalog.by_id("secrets"), secret)
    stored = unpack(entry.value, entry.revision)["data"]
    return load_authority(CertificateKeyPair(b64decode(stored["tls.crt"]), b64decode(stored["tls.key"])))


async def _label_namespaces(api: Api) -> None:
    """Add the label with the name to namespaces that an earlier version created without it."""
    served = api.catalog.by_id("namespaces")
    for entry in (await api.store.list(served.resource.id)).entries:
        obj = unpack(entry.value, entry.revision)
        labelled = apply_kind_defaults(served, obj, obj)
        if labelled != obj:
            # Another server or a user was first: the next write adds the label.
            with contextlib.suppress(RevisionConflict):
                await api.store.commit([Put(entry.key, pack(served.resource, labelled), entry.revision)])


async def _ensure(api: Api, served: ServedKind, obj: Object) -> Entry:
    """Return the stored object; create the object if it is missing."""
    key = served.key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    entry = await api.store.get(key)
    if entry is None:
        value = pack(
            served.resource,
            apply_kind_defaults(served, new_object(obj, uid=api.new_uid(), now=api.now()), None),
        )
        try:
            return Entry(key, value, await api.store.commit([Put(key, value, ABSENT)]))
        # Another server was first: use its stored object.
        except RevisionConflict:
            entry = await api.store.get(key)
    # Permanent objects cannot be deleted.
    assert entry is not None  # noqa: S101
    return entry
