"""In which form does the client want its answer: plain JSON, a table to print, metadata only, or YAML?"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from lattice.errors import NotAcceptable
from lattice.kinds.body import encode
from lattice.kinds.stored import Object, unpack
from lattice.server.api import Api
from lattice.server.call import JSON, Call, Reply
from lattice.server.table import Rendering, table
from lattice.store.protocol import Entry

META_VERSIONS = frozenset({"v1", "v1beta1"})


@dataclass(frozen=True, slots=True)
class Form:
    kind: str = "json"  # json, table, partial, yaml
    version: str = "v1"

    @property
    def plain(self) -> bool:
        return self.kind == "json"

    @property
    def content_type(self) -> str:
        return "application/yaml" if self.kind == "yaml" else JSON


@lru_cache(maxsize=256)
def form_of(accept: str) -> Form:
    """The first form in an Accept header that we can give."""
    for offer in (accept or "*/*").split(","):
        media, *rest = (part.strip() for part in offer.split(";"))
        params = dict(part.split("=", 1) for part in rest if "=" in part)
        wanted = params.get("as", "")
        if media in {"application/yaml", "application/x-yaml"}:
            return Form("yaml")
        if media not in {JSON, "*/*", "application/*"}:
            continue
        if not wanted:
            return Form()
        version = params.get("v", "v1")
        if params.get("g") == "meta.k8s.io" and version in META_VERSIONS:
            if wanted == "Table":
                return Form("table", version)
            if wanted in {"PartialObjectMetadata", "PartialObjectMetadataList"}:
                return Form("partial", version)
    raise NotAcceptable(f"only application/json and application/yaml can be given, not {accept}", fix=f"send Accept: {JSON}")


def partial(obj: Object, version: str) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}


def represent(api: Api, call: Call, entry: Entry) -> Reply:
    """One object in the asked form."""
    form = form_of(call.accept)
    obj = unpack(entry.value, entry.revision)
    if form.kind == "table":
        body: Any = table(rendering(api, call), [obj], {"resourceVersion": str(entry.revision)})
    elif form.kind == "partial":
        body = partial(obj, form.version)
    else:
        return Reply(yaml_of(obj), content_type=form.content_type)
    return Reply(encode(body))


def represent_list(api: Api, call: Call, objects: Iterable[Object], metadata: dict[str, Any]) -> Reply:
    form, resource = form_of(call.accept), call.target.served.resource
    if form.kind == "table":
        return Reply(encode(table(rendering(api, call), objects, metadata)))
    if form.kind == "partial":
        items = [partial(obj, form.version) for obj in objects]
        return Reply(
            encode({"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{form.version}", "metadata": metadata, "items": items})
        )
    whole = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List", "metadata": metadata, "items": list(objects)}
    return Reply(yaml_of(whole), content_type=form.content_type) if form.kind == "yaml" else Reply(encode(whole))


def rendering(api: Api, call: Call) -> Rendering:
    form = form_of(call.accept)
    return Rendering(call.target.served.resource, api.clock.now(), call.query.get("includeObject", "Metadata"), form.version)


def yaml_of(value: Any) -> bytes:
    plain = yaml.safe_load(encode(value))  # JSON is YAML: Decimals become plain numbers on the way
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode()
