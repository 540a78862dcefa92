"""What is a node to do about one workload? Told as three words, so that the node's answer can be held against them."""

from typing import Literal, NamedTuple


class Wanted(NamedTuple):
    """Running or Stopped, which revision, and the number of the start."""

    state: Literal["Running", "Stopped"]
    revision: str
    run: int
