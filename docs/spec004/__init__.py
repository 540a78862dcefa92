"""The checklist of the control plane, demand by demand: where each is met and what proves it."""

from docs.specification import Specification

SPEC004 = Specification("004", "control plane", ())

__all__ = ["SPEC004"]
