"""Is there a login for a provider? A Secret with the keys that the provider needs; whether they open the door is tried elsewhere."""

from collections.abc import Mapping
from typing import NamedTuple

from lattice.kinds.meta.base import Condition
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.placement.model.supply import DEFAULT_SECRETS

# Any of these sets of keys will do; a provider that is not named here says nothing about its keys, so that one is enough.
KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "aws": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("aws_access_key_id", "aws_secret_access_key"),
        ("roleArn",),
    ),
    "gcp": (("service-account.json",), ("key.json",), ("GOOGLE_APPLICATION_CREDENTIALS",)),
    "azure": (
        ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
        ("clientId", "clientSecret", "tenantId"),
    ),
    "proxmox": (("token", "secret", "url"), ("PROXMOX_TOKEN", "PROXMOX_SECRET", "PROXMOX_URL")),
    "vsphere": (("username", "password"),),
    "openstack": (("clouds.yaml",), ("username", "password")),
}


class Login(NamedTuple):
    provider: str
    namespace: str
    secret: str


def login_of(supplier: LatticePool | CloudInfrastructure | StaticInfrastructure) -> Login | None:
    """None when it names none: a provider such as `local` needs none."""
    if isinstance(supplier, LatticePool):
        stated = supplier.spec.provider.credentials
        return Login(supplier.spec.provider.type, DEFAULT_SECRETS, stated.secret_ref) if stated else None
    named = supplier.spec.credentials_ref
    return Login(supplier.spec.provider, named.namespace, named.name) if named else None


def credentials_valid(login: Login | None, secret: Secret | None) -> Condition:
    if login is None:
        return Condition(
            type="CredentialsValid", status="True", reason="NotNeeded", message="it names no credentials"
        )
    where = f"secret {login.namespace}/{login.secret}"
    if secret is None:
        return Condition(
            type="CredentialsValid", status="False", reason="SecretNotFound", message=f"there is no {where}"
        )
    have = {key for key, value in {**secret.data, **secret.string_data}.items() if value}
    sets = KEYS.get(login.provider)
    if sets is None and have:
        return Condition(
            type="CredentialsValid", status="True", reason="SecretFound", message=f"{where} is there"
        )
    if sets and any(have >= set(keys) for keys in sets):
        return Condition(
            type="CredentialsValid",
            status="True",
            reason="KeysFound",
            message=f"{where} has the keys that {login.provider} needs",
        )
    first = sets[0] if sets else ("one at least",)
    missing = [key for key in first if key not in have]
    message = f"{where} lacks {', '.join(missing)} for provider {login.provider}"
    return Condition(type="CredentialsValid", status="False", reason="KeysMissing", message=message)
