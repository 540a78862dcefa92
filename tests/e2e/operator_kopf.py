"""A plain kopf operator for services: it holds them by a finalizer, annotates them and emits events."""

import kopf

PLURAL = ("lattice.dev", "v1alpha1", "latticeservices")


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: object) -> None:
    settings.persistence.finalizer = "kopf.example.com/hold"
    settings.watching.server_timeout = 60
    settings.networking.error_backoffs = [0.2, 0.5, 0.5, 1, 1, 1, 2]


@kopf.on.create(*PLURAL)
def created(body: kopf.Body, patch: kopf.Patch, name: str, **_: object) -> None:
    patch.metadata.annotations["example.com/created"] = name
    patch.status["phase"] = "Adopted"
    patch.status["conditions"] = [
        {"type": "Ready", "status": "True", "reason": "Adopted", "message": "by the operator"}
    ]
    kopf.info(body, reason="Adopted", message=f"{name} is ours now")


@kopf.on.update(*PLURAL, field="spec.replicas.min")
def scaled(body: kopf.Body, patch: kopf.Patch, old: int, new: int, **_: object) -> None:
    patch.metadata.annotations["example.com/scaled"] = f"{old}->{new}"
    patch.status["observedGeneration"] = body["metadata"]["generation"]
    kopf.warn(body, reason="Scaled", message=f"from {old} to {new}")


@kopf.on.delete(*PLURAL)
def deleted(body: kopf.Body, name: str, **_: object) -> None:
    kopf.info(body, reason="Released", message=f"{name} may go")
