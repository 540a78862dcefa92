"""The scheduling profile that a name stands for: a preset, or a file that holds one."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lattice.errors import Cause, Invalid, LatticeError

if TYPE_CHECKING:
    from lattice.kinds.meta.yaml_manifest import Document
    from lattice.scheduling.cycle.profile import ProfileSpec


class ProfileChoice(NamedTuple):
    """How to decide: by which profile, with which dice."""

    profile: "ProfileSpec"
    rng: random.Random
    seed: int


def load_profile(name: str, seed: int | None) -> ProfileChoice:
    """A preset, or a profile that the user wrote. Equals go by the table's own order unless the profile says how."""
    from lattice.scheduling.cycle.profile import PRESETS, preset

    if name in PRESETS or not (Path(name).suffix or "/" in name or Path(name).exists()):
        spec = preset(name)
    else:
        spec = _parse_profile_document(_profile_document(name))
    chosen = spec.seed if seed is None else seed
    return ProfileChoice(spec, random.Random(chosen), chosen)  # noqa: S311 - a tie, not a secret


def _parse_profile_document(document: "Document") -> "ProfileSpec":
    from lattice.scheduling.cycle.profile import parse_profile

    try:
        return parse_profile(document.value)
    except Invalid as e:
        in_order = sorted(e.causes, key=lambda cause: document.line_of(cause.field))
        causes = [
            Cause(f"{document.location(cause.field)}: {cause.field}", cause.message, cause.reason)
            for cause in in_order
        ]
        raise Invalid("is not a profile", where=document.source, fix=e.fix, causes=causes) from e


def _profile_document(name: str) -> "Document":
    """The one mapping in a file."""
    from lattice.manifest_files import load_manifests

    fix = "give a file with one mapping, such as `scores: {BinPacking: 1}`, or the name of a preset"
    if Path(name).is_dir():
        raise Invalid("is a folder, not a profile", where=name, fix=fix)
    try:
        found = load_manifests([name])
    except LatticeError as e:
        if "manifest" not in e.message:
            raise
        raise Invalid(e.message.replace("manifest", "profile"), where=e.where or name, fix=fix) from e
    if len(found) > 1:
        raise Invalid(f"holds {len(found)} documents, a profile is one", where=name, fix=fix)
    return found[0]
