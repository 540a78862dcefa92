"""In which form does the client want its answer: plain JSON, a table to print, metadata only, or YAML?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from lattice.errors import NotAcceptable
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.stored import Object, splice, unpack
from lattice.server.resources.api import Api
from lattice.server.requests.call import JSON, Call, Reply
from lattice.server.resources.table_rows import Rendering, rows, table
from lattice.store.protocol import Entry

META_VERSIONS = frozenset({"v1", "v1beta1"})
ROWS = 50  # objects decoded at a time: a few milliseconds
PLAIN = 500  # objects passed on as stored at a time


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
    raise NotAcceptable(
        f"only application/json and application/yaml can be given, not {accept}", fix=f"send Accept: {JSON}"
    )


def partial(obj: Object, version: str) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


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


@dataclass(frozen=True, slots=True)
class ListForm:
    """How a list is written: what comes before its items, and some of them at a time."""

    opening: bytes
    items: Callable[[list[Entry]], bytes]
    at_once: int


def list_form(api: Api, call: Call, metadata: dict[str, Any]) -> ListForm:
    form, served = form_of(call.accept), call.target.served
    if form.kind == "table":
        how = rendering(api, call)
        return ListForm(
            encode(table(how, (), metadata)).removesuffix(b"]}"),
            lambda found: encode(rows(how, map(_decoded, found)))[1:-1],
            ROWS,
        )
    if form.kind == "partial":
        head = {
            "kind": "PartialObjectMetadataList",
            "apiVersion": f"meta.k8s.io/{form.version}",
            "metadata": metadata,
        }
        return ListForm(
            _opened(head),
            lambda found: encode([partial(_decoded(each), form.version) for each in found])[1:-1],
            ROWS,
        )
    head = {
        "kind": f"{served.resource.kind}List",
        "apiVersion": served.resource.api_version,
        "metadata": metadata,
    }
    return ListForm(
        _opened(head),
        lambda found: b",".join([splice(each.value, served.head, each.revision) for each in found]),
        PLAIN,
    )


def _opened(head: dict[str, Any]) -> bytes:
    return encode(head)[:-1] + b',"items":['


def _decoded(entry: Entry) -> Object:
    return unpack(entry.value, entry.revision)


def rendering(api: Api, call: Call) -> Rendering:
    form = form_of(call.accept)
    return Rendering(
        call.target.served.resource,
        api.clock.now(),
        call.query.get("includeObject", "Metadata"),
        form.version,
    )


def yaml_of(value: Any) -> bytes:
    plain = yaml.safe_load(encode(value))  # JSON is YAML: Decimals become plain numbers on the way
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode()
