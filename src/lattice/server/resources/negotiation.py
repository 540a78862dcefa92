"""In which form does the client want its answer: plain JSON, a table to print, metadata only, or YAML?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from lattice.errors import NotAcceptable
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.stored_encoding import Object, splice_revision, unpack
from lattice.server.requests.call import JSON, Call, Reply
from lattice.server.resources.api import Api
from lattice.server.resources.table_rows import TableOptions, rows, table
from lattice.store.protocol import Entry

META_VERSIONS = frozenset({"v1", "v1beta1"})
DECODED_CHUNK_SIZE = 50  # objects decoded at a time: a few milliseconds
RAW_CHUNK_SIZE = 500  # objects passed on as stored at a time


@dataclass(frozen=True, slots=True)
class Representation:
    kind: str = "json"  # json, table, partial, yaml
    version: str = "v1"

    @property
    def is_plain_json(self) -> bool:
        return self.kind == "json"

    @property
    def content_type(self) -> str:
        return "application/yaml" if self.kind == "yaml" else JSON


@lru_cache(maxsize=256)
def parse_accept(accept: str) -> Representation:
    """The first form in an Accept header that we can give."""
    for offer in (accept or "*/*").split(","):
        media, *rest = (part.strip() for part in offer.split(";"))
        params = dict(part.split("=", 1) for part in rest if "=" in part)
        wanted = params.get("as", "")
        if media in {"application/yaml", "application/x-yaml"}:
            return Representation("yaml")
        if media not in {JSON, "*/*", "application/*"}:
            continue
        if not wanted:
            return Representation()
        version = params.get("v", "v1")
        if params.get("g") == "meta.k8s.io" and version in META_VERSIONS:
            if wanted == "Table":
                return Representation("table", version)
            if wanted in {"PartialObjectMetadata", "PartialObjectMetadataList"}:
                return Representation("partial", version)
    raise NotAcceptable(
        f"only application/json and application/yaml can be given, not {accept}", fix=f"send Accept: {JSON}"
    )


def partial_metadata(obj: Object, version: str) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


def represent(api: Api, call: Call, entry: Entry) -> Reply:
    """One object in the asked form."""
    form = parse_accept(call.accept)
    obj = unpack(entry.value, entry.revision)
    if form.kind == "table":
        body: Any = table(table_options(api, call), [obj], {"resourceVersion": str(entry.revision)})
    elif form.kind == "partial":
        body = partial_metadata(obj, form.version)
    else:
        return Reply(yaml_of(obj), content_type=form.content_type)
    return Reply(encode(body))


@dataclass(frozen=True, slots=True)
class ListEncoding:
    """How a list is written: what comes before its items, and some of them at a time."""

    opening: bytes
    encode_items: Callable[[list[Entry]], bytes]
    chunk_size: int


def list_encoding(api: Api, call: Call, metadata: dict[str, Any]) -> ListEncoding:
    form, served = parse_accept(call.accept), call.target.served
    if form.kind == "table":
        how = table_options(api, call)
        return ListEncoding(
            encode(table(how, (), metadata)).removesuffix(b"]}"),
            lambda found: encode(rows(how, map(_decoded, found)))[1:-1],
            DECODED_CHUNK_SIZE,
        )
    if form.kind == "partial":
        head = {
            "kind": "PartialObjectMetadataList",
            "apiVersion": f"meta.k8s.io/{form.version}",
            "metadata": metadata,
        }
        return ListEncoding(
            _opened(head),
            lambda found: encode([partial_metadata(_decoded(each), form.version) for each in found])[1:-1],
            DECODED_CHUNK_SIZE,
        )
    head = {
        "kind": f"{served.resource.kind}List",
        "apiVersion": served.resource.api_version,
        "metadata": metadata,
    }
    return ListEncoding(
        _opened(head),
        lambda found: b",".join(
            [splice_revision(each.value, served.revision_offset, each.revision) for each in found]
        ),
        RAW_CHUNK_SIZE,
    )


def _opened(head: dict[str, Any]) -> bytes:
    return encode(head)[:-1] + b',"items":['


def _decoded(entry: Entry) -> Object:
    return unpack(entry.value, entry.revision)


def table_options(api: Api, call: Call) -> TableOptions:
    form = parse_accept(call.accept)
    return TableOptions(
        call.target.served.resource,
        api.clock.now(),
        call.query.get("includeObject", "Metadata"),
        form.version,
    )


def yaml_of(value: Any) -> bytes:
    plain = yaml.safe_load(encode(value))  # JSON is YAML: Decimals become plain numbers on the way
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode()
