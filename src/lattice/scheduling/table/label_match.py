"""Nodes that have a label or match node affinity terms, with one check per distinct label value instead of
one per node."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from lattice.engine.table import Flags, Rows
from lattice.kinds.constraints import NodeTerm
from lattice.kinds.meta.selector import Requirement
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable

# For few rows, a check per node costs less than a check per distinct label value.
MAX_ROWS_CHECKED_SINGLY = 64


def node_infos_on(rows: Rows) -> Sequence[NodeInfo | None]:
    """The node infos of the rows, with None for a row without a node."""
    return rows.select_list(cast("NodeTable", rows.table).node_infos)


def rows_with_label(rows: Rows, key: str, value: str) -> Flags:
    """Rows whose node has the label with the value."""

    def has_label(subset: Rows) -> Flags:
        coded = cast("NodeTable", subset.table).label_codes(key)
        # -2 matches no row: -1 is the code of rows without the label.
        flags: Flags = subset.select(coded.codes) == coded.code_by_value.get(value, -2)
        return flags

    return rows.derived(("label", key, value), has_label)


def rows_matching_any(rows: Rows, terms: tuple[NodeTerm, ...]) -> Flags:
    """Rows whose node matches at least one term; a node matches a term if it matches every expression of the
    term."""

    def matches_any(subset: Rows) -> Flags:
        matches = np.zeros(subset.count, np.bool_)
        for term in terms:
            matches_term = np.ones(subset.count, np.bool_)
            for requirement in term.match_expressions:
                matches_term &= _matching(subset, requirement)
            matches |= matches_term
        return matches

    return rows.derived(("labels", terms), matches_any)


def _matching(rows: Rows, requirement: Requirement) -> Flags:
    if rows.count <= MAX_ROWS_CHECKED_SINGLY:
        labels = [info.labels if info else {} for info in node_infos_on(rows)]
        return np.array([requirement.matches(node_labels) for node_labels in labels], np.bool_)
    coded = cast("NodeTable", rows.table).label_codes(requirement.key)
    matches_by_code = [requirement.matches({requirement.key: value}) for value in coded.values]
    # Code -1, a node without the label, selects the last item.
    matches_by_code.append(requirement.matches({}))
    matches: Flags = np.array(matches_by_code, np.bool_)[rows.select(coded.codes)]
    return matches
