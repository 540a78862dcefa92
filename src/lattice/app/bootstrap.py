"""What a store must hold before it can be served: the permanent namespaces and the certificate authority."""

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
    """Make what is missing. Any number of servers may do this at once: the first one wins, the others read."""
    for name in sorted(PERMANENT_NAMESPACES):
        await _ensure(api, api.catalog.by_id("namespaces"), {"metadata": {"name": name}})
    _, pair = new_authority()
    data = {"tls.crt": b64encode(pair.certificate).decode(), "tls.key": b64encode(pair.key).decode()}
    secret = {
        "metadata": {"name": CA_SECRET.name, "namespace": CA_SECRET.namespace},
        "type": "kubernetes.io/tls",
        "data": data,
    }
    entry = await _ensure(api, api.catalog.by_id("secrets"), secret)
    kept = unpack(entry.value, entry.revision)["data"]
    return load_authority(CertificateKeyPair(b64decode(kept["tls.crt"]), b64decode(kept["tls.key"])))


async def _ensure(api: Api, served: ServedKind, obj: Object) -> Entry:
    key = served.key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    found = await api.store.get(key)
    if found is None:
        value = pack(
            served.resource,
            apply_kind_defaults(served, new_object(obj, uid=api.new_uid(), now=api.now()), None),
        )
        try:
            return Entry(key, value, await api.store.commit([Put(key, value, ABSENT)]))
        except RevisionConflict:
            found = await api.store.get(key)
    assert found is not None  # noqa: S101 - permanent: nobody may delete them
    return found
