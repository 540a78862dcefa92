"""Patching: a planted bug replaces an attribute of the real code."""

import inspect
from typing import Any


def patch_attribute(owner: object, name: str, replacement: Any) -> None:
    """Replace the attribute `name` of `owner`. The replacement must accept the parameters of the original."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: this bug can no longer be planted")
    if inspect.isfunction(original := getattr(owner, name)):
        parameters = inspect.signature(original).parameters.values()
        positional = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        # A replacement with another signature would crash instead of planting the bug.
        inspect.signature(replacement).bind(
            *positional,
            **{
                parameter.name: parameter
                for parameter in parameters
                if parameter.kind is parameter.KEYWORD_ONLY
            },
        )
    setattr(owner, name, replacement)
