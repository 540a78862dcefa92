"""Normalisation of scores over the candidates, so that preferences of different units can be weighed."""

import numpy as np

from lattice.engine.table import Doubles, Flags


def min_max(values: Doubles, candidates: Flags, *, largest_first: bool = True) -> Doubles:
    """Scores from 0 to 1 between the smallest and the largest value of the candidates; 1 for all candidates
    if their values are equal."""
    score = np.zeros(len(values))
    if candidates.any():
        chosen = values[candidates]
        least, most = chosen.min(), chosen.max()
        worse = most - chosen if largest_first else chosen - least
        score[candidates] = 1.0 - worse / (most - least) if most > least else 1.0
    return score
