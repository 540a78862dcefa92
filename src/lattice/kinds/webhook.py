"""Webhooks: an https address that Lattice posts to, and the notifications of pools, clouds and data centers."""

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Part
from lattice.kinds.meta.quantity import parse_millis, quantity_problems
from lattice.kinds.meta.selector import subdomain_problem

MAX_WEBHOOK_TIMEOUT_MS = 30_000


class Webhook(Part):
    """An HTTP POST request that describes the trigger and the object, as JSON."""

    url: Annotated[
        str,
        Meta(
            description=(
                "https address to post to. It must not contain credentials. Addresses inside the "
                "installation are rejected."
            )
        ),
    ]
    timeout: Annotated[
        str,
        Meta(
            description=(
                'Time to wait for an answer before the call fails, such as "5s" (the default); at most "30s".'
            )
        ),
    ] = "5s"
    secret_ref: Annotated[
        str,
        Meta(
            description=(
                "Name of a Secret in namespace lattice-system. Its value `key` signs the body: the header "
                "X-Lattice-Signature is sha256= and the HMAC-SHA256 of the body in hex. Absent: no signature."
            )
        ),
    ] = ""

    @property
    def timeout_ms(self) -> int:
        return parse_millis(self.timeout)

    def problems(self, path: str) -> Iterator[Cause]:
        unreadable = list(quantity_problems(f"{path}.timeout", self.timeout, parse_millis))
        yield from unreadable
        if not unreadable and self.timeout_ms > MAX_WEBHOOK_TIMEOUT_MS:
            yield Cause(f"{path}.timeout", f'must be at most 30s, got "{self.timeout}"')
        for wrong in _url_problems(self.url):
            yield Cause(f"{path}.url", wrong)
        if self.secret_ref and (wrong := subdomain_problem(self.secret_ref)):
            yield Cause(f"{path}.secretRef", wrong)


class Notify(Part):
    """Notifications when the object crosses a threshold: the alert threshold of its budget, its limit, and
    capacity pressure; one for each crossing, upwards and back to normal."""

    webhook: Annotated[Webhook, Meta(description="Call a webhook at every crossing.")] | None = None

    def problems(self, path: str) -> Iterator[Cause]:
        if self.webhook:
            yield from self.webhook.problems(f"{path}.webhook")


def _url_problems(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        # Reading `port` raises ValueError for a number out of range.
        usable = parts.scheme == "https" and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        yield f'must be an https address, got "{url}"'
        return
    # Viewers can read every rule: only Secrets are hidden from viewers (decision 0022).
    login = parts.username is not None or parts.password is not None
    if login:
        yield "must not carry a user name or password"
    if not usable:
        # The message does not repeat a URL that contains a password.
        yield "must be an https address" + ("" if login else f', got "{url}"')
