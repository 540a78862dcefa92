"""Discovery: versions, kinds, fields, health."""

from build.kubectl_steps.step import Step

KINDS = {  # kind -> a field of its spec with the type that `explain` must show
    "AutomationRule": ("automationrules", "actions"),
    "CloudInfrastructure": ("cloudinfrastructures", "provider"),
    "LatticeAgreement": ("latticeagreements", "caller"),
    "LatticeCluster": ("latticeclusters", "pool"),
    "LatticeLedger": ("latticeledgers", "budget"),
    "LatticeNode": ("latticenodes", "nodeClass"),
    "LatticeNodeClass": ("latticenodeclasses", "costPerHour"),
    "LatticePlacementPolicy": ("latticeplacementpolicies", "clusterPolicy"),
    "LatticePool": ("latticepools", "nodeClasses"),
    "LatticeService": ("latticeservices", "containers"),
    "LatticeWorkload": ("latticeworkloads", "desiredState"),
    "StaticInfrastructure": ("staticinfrastructures", "location"),
}
PLURALS = tuple(plural for plural, _ in KINDS.values())

EXPLAINED = tuple(
    Step(
        f"explain tells what {kind} is and what its spec holds",
        f"kubectl explain {plural}.spec",
        out=(
            rf"^KIND:\s+{kind}$",
            r"^VERSION:\s+(lattice\.dev/)?v1alpha1$",
            rf"^ +{field}\t<\S+>",
            r"^ {3,5}\S.*\w",
        ),
    )
    for kind, (plural, field) in KINDS.items()
)

STEPS = (
    Step(
        "version tells both sides",
        "kubectl version",
        out=(r"^Client Version: ", r"^Server Version: .*v1\.\d+\.\d+\+lattice-\d+\.\d+\.\d+"),
        err=r"\A(WARNING: .*version .*\n)*\Z",
    ),
    Step(
        "api-versions lists every group that is served",
        "kubectl api-versions",
        out=(
            r"^lattice\.dev/v1alpha1$",
            r"^v1$",
            r"^coordination\.k8s\.io/v1$",
            r"^authorization\.k8s\.io/v1$",
            r"^authentication\.k8s\.io/v1$",
            r"^apiextensions\.k8s\.io/v1$",
        ),
        but="apps/v1",
    ),
    Step(
        "api-resources shows short names, scope and verbs",
        "kubectl api-resources --api-group=lattice.dev -o wide",
        out=(
            r"^NAME\s+SHORTNAMES\s+APIVERSION\s+NAMESPACED\s+KIND\s+VERBS",
            r"^latticepools\s+lp\s+lattice\.dev/v1alpha1\s+false\s+LatticePool\s+\[?create[, ]delete[, ]deletecollection[, ]get[, ]list",
            r"^latticeservices\s+lsvc\s+lattice\.dev/v1alpha1\s+true\s+LatticeService\s",
        ),
    ),
    Step(
        "api-resources by category lists exactly our twelve kinds",
        "kubectl api-resources --categories=lattice -o name | sort | tr '\\n' ' '",
        out=r"\A" + " ".join(rf"{plural}\.lattice\.dev" for plural in sorted(PLURALS)) + r" \Z",
        since=(1, 27),
    ),
    Step(
        "api-resources by name lists every kind of the group",
        "kubectl api-resources --api-group=lattice.dev -o name | sort | tr '\\n' ' '",
        out=r"\A" + " ".join(rf"{plural}\.lattice\.dev" for plural in sorted(PLURALS)) + r" \Z",
    ),
    Step(
        "api-resources knows what is in no namespace",
        "kubectl api-resources --namespaced=false",
        out=r"^namespaces\s+ns\s",
        but="secrets",
    ),
    Step(
        "cluster-info finds the server",
        "kubectl cluster-info",
        out=r"control plane.* is running at .*https://127\.0\.0\.1:\d+",
    ),
    Step("the server says that it is ready", "kubectl get --raw /readyz", out=r"\Aok\Z"),
    Step("the server says that it lives", "kubectl get --raw /livez", out=r"\Aok\Z"),
    Step(
        "the group document names the preferred version",
        "kubectl get --raw /apis/lattice.dev",
        out=r'"preferredVersion":\s*\{[^}]*"v1alpha1"',
    ),
    Step(
        "an unknown path is not found",
        "kubectl get --raw /apis/nope.dev/v1",
        rc=1,
        err=r"^Error from server \(NotFound\): .*nope\.dev/v1",
    ),
    Step(
        "an unknown kind is told by kubectl itself",
        "kubectl get gizmos",
        rc=1,
        err=r"^error: the server doesn't have a resource type \"gizmos\"$",
    ),
    Step(
        "what runs on nodes of Kubernetes is not here",
        "kubectl get pods",
        rc=1,
        err=r"^error: the server doesn't have a resource type \"pods\"$",
    ),
    Step(
        "explain opens with the kind's own sentence",
        "kubectl explain latticepool",
        out=(
            r"^KIND:\s+LatticePool$",
            r"Capacity and budget in one region of one provider\.",
            r"^ +spec\t<\S+> -required-",
            r"^ +status\t<",
        ),
    ),
    Step(
        "explain goes down to a field inside a map",
        "kubectl explain lsvc.spec.containers.image",
        out=(r"^FIELD:\s+image <string>$", r"Container image; it needs a node with a container runtime"),
    ),
    Step(
        "explain --recursive lists nested fields",
        "kubectl explain lsvc --recursive",
        out=(
            r"^\s+requiredRegions\t<\[\]string>",
            r"^\s+maxMs\t<integer>( -required-)?$",
            r"^\s+projected30Day\t<number>$",
        ),
    ),
    Step(
        "explain reads the old document as well",
        "kubectl explain lp.spec.budget --output=plaintext-openapiv2",
        out=(r"^KIND:\s+LatticePool$", r"^ +maxMonthlyCost\t<number>"),
        since=(1, 27),
    ),
    Step(
        "explain refuses a field that there is not",
        "kubectl explain lp.spec.colour",
        rc=1,
        err=r'^error: field "?(colour|spec\.colour)"? does not exist',
    ),
    *EXPLAINED,
    Step(
        "our kinds are shown as custom resource definitions",
        "kubectl get crd",
        out=(
            r"^NAME\s+SCOPE\s+AGE$",
            *(rf"^{plural}\.lattice\.dev\s+(Cluster|Namespaced)\s+\d+\w+$" for plural in PLURALS),
        ),
    ),
    Step(
        "a definition carries the schema",
        "kubectl get crd latticepools.lattice.dev -o jsonpath='{.spec.versions[0].schema.openAPIV3Schema.properties.spec.required}'",
        out=r'\A\["provider"\]\Z',
    ),
    Step(
        "definitions cannot be changed",
        "kubectl delete crd latticepools.lattice.dev",
        rc=1,
        err=r"^Error from server \(MethodNotAllowed\): the server does not allow this method on the requested resource",
    ),
    Step(
        "get all works on an empty server",
        "kubectl get all",
        err=r"^No resources found in default namespace\.$",
    ),
    Step(
        "get by our category works on an empty server", "kubectl get lattice -A", err=r"^No resources found$"
    ),
)
