"""Which nodes have a label, or match demands on labels: one look per distinct value instead of one per node."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from lattice.engine.table import Flags, Rows
from lattice.kinds.constraint import NodeTerm
from lattice.kinds.meta.selector import Requirement
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable

MAX_ROWS_CHECKED_SINGLY = 64  # nodes looked at one by one: less work than every distinct value


def node_infos_on(rows: Rows) -> Sequence[NodeInfo | None]:
    """What is known of the nodes on these rows; None: there is no node."""
    return rows.select_list(cast("NodeTable", rows.table).node_infos)


def with_label(rows: Rows, key: str, value: str) -> Flags:
    return rows.derived(("label", key, value), lambda some: _with_label(some, key, value))


def _with_label(rows: Rows, key: str, value: str) -> Flags:
    coded = cast("NodeTable", rows.table).label_codes(key)
    found: Flags = rows.select(coded.codes) == coded.code_by_value.get(value, -2)  # -1 is: no such label
    return found


def matching_any(rows: Rows, terms: tuple[NodeTerm, ...]) -> Flags:
    """Any of the terms, of it all expressions."""
    return rows.derived(("labels", terms), lambda some: _matching_any(some, terms))


def _matching_any(rows: Rows, terms: tuple[NodeTerm, ...]) -> Flags:
    found = np.zeros(rows.count, np.bool_)
    for term in terms:
        each = np.ones(rows.count, np.bool_)
        for requirement in term.match_expressions:
            each &= _matching(rows, requirement)
        found |= each
    return found


def _matching(rows: Rows, requirement: Requirement) -> Flags:
    if rows.count <= MAX_ROWS_CHECKED_SINGLY:
        labels = [facts.labels if facts else {} for facts in node_infos_on(rows)]
        return np.array([requirement.matches(each) for each in labels], np.bool_)
    coded = cast("NodeTable", rows.table).label_codes(requirement.key)
    verdicts = [requirement.matches({requirement.key: value}) for value in coded.values]
    verdicts.append(requirement.matches({}))  # code -1 finds this one
    found: Flags = np.array(verdicts, np.bool_)[rows.select(coded.codes)]
    return found
