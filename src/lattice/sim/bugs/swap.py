"""How a bug gets into the real code: one name means something else."""


def swap(owner: object, name: str, other: object) -> None:
    """What the code calls by that name is the other from now on."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: this bug cannot be planted any more")
    setattr(owner, name, other)
