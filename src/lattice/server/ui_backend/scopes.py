"""Which rows of a kind does a view need? Of one service, on one node, without a node, or the newest that say these words."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from lattice.errors import Malformed
from lattice.server.ui_backend.row_summaries import Row

SAID = ("type", "reason", "kind", "about", "namespace", "message", "by")  # of an event


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is asked for must hold; without any of it everything is in."""

    service: str = ""  # namespace/name: its replicas
    node: str = ""  # what is bound to it
    unplaced: bool = False  # what finds no node
    type: str = ""
    words: str = ""
    newest: Annotated[int, msgspec.Meta(ge=0)] = 0  # at most so many; 0: all

    def keeps(self, row: Row) -> bool:
        return (
            (not self.service or self.service == f"{row.get('namespace', '')}/{row.get('service', '')}")
            and (not self.node or self.node == row.get("node"))
            and (not self.unplaced or bool(row.get("why") and not row.get("node")))
            and (not self.type or self.type == row.get("type"))
            and (not self.words or _says(row, self.words))
        )


ALL = Scope()
_read = msgspec.json.Decoder(dict[str, Scope]).decode


def scopes(text: str) -> Mapping[str, Scope]:
    """By plural name of the kind, as JSON."""
    try:
        return _read(text) if text else {}
    except msgspec.MsgspecError as error:
        fix = 'send a scope for each kind, such as {"latticeworkloads": {"service": "default/web"}}'
        raise Malformed(
            f"what is wanted of the kinds cannot be read: {error}", where="only", fix=fix
        ) from error


def _says(row: Row, words: str) -> bool:
    said = " ".join(str(row.get(name, "")) for name in SAID).lower()
    return all(word in said for word in words.lower().split())
