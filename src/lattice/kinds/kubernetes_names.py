"""What Lattice has in place of the kinds of Kubernetes that users name out of habit."""

from typing import NamedTuple

from lattice.kinds.meta.base import GROUP


class Counterpart(NamedTuple):
    """The words for a kind of Kubernetes, and what to use instead. `resource` is the plural for `lattice get`."""

    kind: str
    words: tuple[str, ...]
    resource: str
    advice: str


_SERVICE = "declare a LatticeService (apiVersion: lattice.dev/v1alpha1)"
COUNTERPARTS = (
    Counterpart("Pod", ("pod", "pods", "po"), "workloads", f"{_SERVICE}, or a LatticeWorkload that runs once"),
    Counterpart("Deployment", ("deployment", "deployments", "deploy"), "services", _SERVICE),
    Counterpart("ReplicaSet", ("replicaset", "replicasets", "rs"), "services", _SERVICE),
    Counterpart("StatefulSet", ("statefulset", "statefulsets", "sts"), "services", _SERVICE),
    Counterpart("DaemonSet", ("daemonset", "daemonsets", "ds"), "services", f"{_SERVICE} with a spread over nodes"),
    Counterpart("Job", ("job", "jobs"), "workloads", "declare a LatticeWorkload (apiVersion: lattice.dev/v1alpha1)"),
    Counterpart("CronJob", ("cronjob", "cronjobs", "cj"), "workloads", "create a LatticeWorkload from your own schedule"),
    Counterpart(
        "Service",
        ("service", "services", "svc"),
        "services",
        f"{_SERVICE}; callers of a service get its addresses as environment, declared under spec.resources",
    ),
    Counterpart(
        "Ingress",
        ("ingress", "ingresses", "ing"),
        "services",
        "point your load balancer at the addresses in the agreements: `lattice get agreements`",
    ),
    Counterpart("Node", ("node", "nodes", "no"), "nodes", "run `lattice agent` on the machine, or declare a LatticePool"),
    Counterpart(
        "PersistentVolumeClaim",
        ("persistentvolumeclaim", "persistentvolumeclaims", "pvc"),
        "services",
        "state spec.placement.resources.storageGi in the LatticeService",
    ),
    Counterpart(
        "HorizontalPodAutoscaler",
        ("horizontalpodautoscaler", "horizontalpodautoscalers", "hpa"),
        "services",
        "set spec.replicas.min of the LatticeService, or an AutomationRule that does",
    ),
)  # fmt: skip
# Where manifests of these kinds come from; users also write the kinds of Kubernetes in the group of Lattice.
GROUPS = frozenset({"apps", "batch", "extensions", "autoscaling", GROUP})
_BY_KIND = {counterpart.kind: counterpart for counterpart in COUNTERPARTS}
_BY_WORD = {word: counterpart for counterpart in COUNTERPARTS for word in counterpart.words}


def counterpart_of_kind(api_version: str, kind: str) -> Counterpart | None:
    """The counterpart of the kind of a manifest, such as Deployment; None for a kind of that name in an API group
    of a third party, such as serving.knative.dev."""
    group, slash, _ = api_version.rpartition("/")
    is_of_kubernetes = not slash or group in GROUPS or group.endswith(".k8s.io")
    return _BY_KIND.get(kind) if is_of_kubernetes else None


def counterpart_of_word(word: str) -> Counterpart | None:
    """The counterpart of a word of `get`, such as `pods` or `deploy`."""
    return _BY_WORD.get(word.lower())
