"""Which of the known words was meant by one that is not known?"""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean BinPacking?`, whatever the case; nothing if nothing is near."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
