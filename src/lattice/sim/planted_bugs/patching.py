"""How a bug gets into the real code: one name means something else."""

import inspect
from typing import Any


def patch_attribute(owner: object, name: str, other: Any) -> None:
    """What the code calls by that name is the other from now on. It takes what the right one takes, or it would only crash."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: this bug cannot be planted any more")
    if inspect.isfunction(right := getattr(owner, name)):
        taken = inspect.signature(right).parameters.values()
        stated = [each for each in taken if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        inspect.signature(other).bind(
            *stated, **{each.name: each for each in taken if each.kind is each.KEYWORD_ONLY}
        )
    setattr(owner, name, other)
