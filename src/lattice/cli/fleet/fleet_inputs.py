"""The inputs of a fleet command: the world (all objects that placement reads), the changes to the world, and
the price and latency files."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice.cli.client.options import Connection
from lattice.errors import NotFound, TooLarge

if TYPE_CHECKING:
    from lattice.kinds.meta.yaml_manifest import Document


@dataclass(frozen=True)
class FleetInputs:
    """The source of the world of a query (server or files) and the changes to apply to the world."""

    connection: Connection
    world_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    recursive: bool = False
    prices: tuple[str, ...] = ()
    latency: str = ""
    deletions: tuple[str, ...] = ()
    # Take over fields from other field managers.
    force: bool = False
    # Manifests that were read already; used instead of `files`.
    manifests: tuple[tuple["Document", Any], ...] = ()

    @property
    def is_offline(self) -> bool:
        return bool(self.world_files)

    @property
    def namespace(self) -> str:
        explicit = self.connection.explicit_namespace
        # An offline command reads no kubeconfig: objects without a namespace get `default`.
        return explicit or ("default" if self.is_offline else self.connection.namespace)

    @property
    def change_flags(self) -> str:
        """The flags of the change and of its prices and latencies, as the user would type them."""
        named = [
            ("-f", self.files),
            ("--delete", self.deletions),
            ("--prices", self.prices),
            ("--latency", (self.latency,)),
        ]
        words = _quoted_flags(named)
        switches = [("-R", self.recursive), ("--force-conflicts", self.force)]
        return " ".join([*words, *(flag for flag, is_set in switches if is_set)])

    @property
    def flags(self) -> str:
        """All flags: the change, and the world or the server."""
        named = [
            ("--world", self.world_files),
            ("--kubeconfig", (self.connection.kubeconfig,)),
            ("--context", (self.connection.context,)),
        ]
        words = _quoted_flags(named)
        return " ".join([*([self.change_flags] if self.change_flags else []), *words])


def _quoted_flags(named: Sequence[tuple[str, tuple[str | None, ...]]]) -> list[str]:
    words = []
    for flag, values in named:
        words += [f"{flag} {shlex.quote(value)}" for value in values if value]
    return words


def read_table(path: str) -> str:
    from lattice.placement.inputs.price_book import MAX_TABLE_CHARS

    try:
        with Path(path).open(encoding="utf-8") as file:
            # One character more than allowed shows that the file is too large, without reading all of it.
            text = file.read(MAX_TABLE_CHARS + 1)
    except (OSError, UnicodeError) as e:
        reason = (e.strerror or str(e)).lower() if isinstance(e, OSError) else "is not UTF-8 text"
        raise NotFound(
            f"cannot be read: {reason}", where=path, fix="check the path and its permissions"
        ) from e
    if len(text) > MAX_TABLE_CHARS:
        raise TooLarge(
            f"is larger than {MAX_TABLE_CHARS >> 20} MiB",
            where=path,
            fix="keep only the regions that you use",
        )
    return text
