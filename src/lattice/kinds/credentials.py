"""Which Secret holds a provider's login? Only one that lives where logins are kept: else naming a Secret would be a way to use it."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Part
from lattice.kinds.meta.selector import subdomain_problem

LOGINS = "lattice-system"  # the namespace of providers' logins


class CredentialsRef(Part):
    """The Secret that holds the login for the provider."""

    name: Annotated[str, Meta(min_length=1, description="Name of the Secret.")]
    namespace: Annotated[
        str,
        Meta(
            description="Namespace of the Secret: lattice-system, where logins are kept, and no other; the same if absent."
        ),
    ] = LOGINS

    def problems(self, path: str) -> Iterator[Cause]:
        yield from secret_problems(f"{path}.name", self.name)
        if self.namespace != LOGINS:
            yield Cause(
                f"{path}.namespace", f'must be {LOGINS}, where logins are kept, got "{self.namespace[:80]}"'
            )


def secret_problems(path: str, name: str) -> Iterator[Cause]:
    if wrong := subdomain_problem(name):
        yield Cause(path, wrong)
