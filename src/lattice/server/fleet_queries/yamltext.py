"""Manifests that a question gives as text, as people write them: read with their lines, and refused with them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Raw

from lattice.errors import Cause, LatticeError
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.yaml_manifest import Document, load
from lattice.server.fleet_queries.schema import Question

_PLACE = re.compile(r"manifests\[(\d+)\]\.?(.*)")


@dataclass(frozen=True)
class Given:
    """All manifests of a question: those that came as JSON, then those in its text."""

    manifests: Sequence[Raw]
    documents: Sequence[Document]

    @property
    def all(self) -> list[Raw]:
        return [*self.manifests, *(Raw(encode(each.value)) for each in self.documents)]

    def located(self, error: LatticeError) -> LatticeError:
        """With the line of each field that was written as text."""
        if not self.documents or not error.causes:
            return error
        in_order = sorted(map(self._located, error.causes), key=lambda each: each[0])
        return type(error)(
            error.what, where=error.where, fix=error.fix, causes=[cause for _, cause in in_order]
        )

    def _located(self, cause: Cause) -> tuple[int, Cause]:
        """And the line, 0 for what was not written as text."""
        found = _PLACE.fullmatch(cause.field)
        number = int(found[1]) - len(self.manifests) if found else -1
        if found is None or number < 0:
            return 0, cause
        line = self.documents[number].line_of(found[2])
        return line, Cause(f"yaml:{line} {found[2]}".rstrip(), cause.message, cause.reason)


def given(question: Question) -> Given:
    return Given(question.manifests, load(question.yaml, "yaml") if question.yaml else ())
