"""Load a scheduling profile by name: a preset or a file."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lattice.errors import Cause, Invalid, LatticeError

if TYPE_CHECKING:
    from lattice.scheduling.cycle.profile import ProfileSpec


class ProfileChoice(NamedTuple):
    """A scheduling profile with its seed and random generator."""

    profile: "ProfileSpec"
    rng: random.Random
    seed: int


def load_profile(name: str, seed: int | None) -> ProfileChoice:
    """Load a preset or a profile file; `seed` overrides the seed of the profile, which breaks ties between
    equal nodes."""
    from lattice.scheduling.cycle.profile import PRESETS, parse_profile, preset

    if name in PRESETS or not (Path(name).suffix or "/" in name or Path(name).exists()):
        spec = preset(name)
    else:
        # The single document of a profile file; raise Invalid for a folder or several documents.
        from lattice.manifest_files import load_manifests

        fix = "use a file with one mapping, such as `scores: {BinPacking: 1}`, or the name of a preset"
        if Path(name).is_dir():
            raise Invalid("is a folder, not a profile", where=name, fix=fix)
        try:
            documents = load_manifests([name])
        except LatticeError as error:
            if "manifest" not in error.message:
                raise
            raise Invalid(
                error.message.replace("manifest", "profile"), where=error.where or name, fix=fix
            ) from error
        if len(documents) > 1:
            raise Invalid(
                f"has {len(documents)} documents, but a profile must be exactly one", where=name, fix=fix
            )
        document = documents[0]
        try:
            spec = parse_profile(document.value)
        except Invalid as error:
            # Every problem is reported with its line in the file, in the order of the lines.
            causes = [
                Cause(f"{document.location(cause.field)}: {cause.field}", cause.message, cause.reason)
                for cause in sorted(error.causes, key=lambda cause: document.line_of(cause.field))
            ]
            raise Invalid("is not a profile", where=document.source, fix=error.fix, causes=causes) from error
    chosen_seed = spec.seed if seed is None else seed
    return ProfileChoice(spec, random.Random(chosen_seed), chosen_seed)  # noqa: S311 - breaks ties only
