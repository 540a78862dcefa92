"""Render a kubeconfig file with the server's address, the certificate authority, and the credentials of one
user."""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a client certificate or a token."""

    user: str
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""

    @property
    def entry(self) -> dict[str, Any]:
        """The user entry of the kubeconfig; a token takes precedence."""
        if self.token:
            return {"token": self.token}
        return {
            "client-certificate-data": b64encode(self.certificate).decode(),
            "client-key-data": b64encode(self.key).decode(),
        }


def render_kubeconfig(
    url: str, authority: bytes, credentials: Credentials, namespace: str = "default"
) -> str:
    """The YAML text of a kubeconfig with one cluster, one user and one context."""
    import yaml

    cluster = {"server": url, "certificate-authority-data": b64encode(authority).decode()}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lattice", "cluster": cluster}],
        "users": [{"name": credentials.user, "user": credentials.entry}],
        "contexts": [
            {
                "name": "lattice",
                "context": {"cluster": "lattice", "user": credentials.user, "namespace": namespace},
            }
        ],
        "current-context": "lattice",
    }
    return yaml.safe_dump(content, sort_keys=False)
