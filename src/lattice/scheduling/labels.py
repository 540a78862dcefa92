"""Which nodes have a label, or match demands on labels: one look per distinct value instead of one per node."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from lattice.engine.table import Flags, Table
from lattice.kinds.constraint import NodeTerm
from lattice.kinds.selector import Requirement
from lattice.scheduling.nodes import NodeTable


def having(table: Table, key: str, value: str) -> Flags:
    nodes = cast("NodeTable", table)
    names = nodes.domain_names(key)
    code = names.index(value) if value in names else -2  # -1 is: no such label
    found: Flags = nodes.codes(key) == code
    return found


def matching(table: Table, requirement: Requirement) -> Flags:
    nodes, key = cast("NodeTable", table), requirement.key
    verdicts = [requirement.matches({key: value}) for value in nodes.domain_names(key)]
    verdicts.append(requirement.matches({}))  # code -1 finds this one
    found: Flags = np.array(verdicts, np.bool_)[nodes.codes(key)]
    return found


def matching_any(table: Table, terms: Sequence[NodeTerm]) -> Flags:
    """Any of the terms, of it all expressions."""
    found = np.zeros(table.count, np.bool_)
    for term in terms:
        each = np.ones(table.count, np.bool_)
        for requirement in term.match_expressions:
            each &= matching(table, requirement)
        found |= each
    return found
