"""Deleting: one, some, all; with finalizers, owners, and whole namespaces."""

from build.kubectl_steps.step import Step

OWNED = (
    "uid=$(kubectl get cm {owner} -o jsonpath='{{.metadata.uid}}'); "
    'printf "apiVersion: v1\\nkind: ConfigMap\\nmetadata:\\n  name: {name}\\n'
    '  ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: {owner}, uid: $uid, blockOwnerDeletion: true}}]\\n" | kubectl create -f -'
)


def owned(name: str, owner: str) -> str:
    return OWNED.format(name=name, owner=owner)


STEPS = (
    Step(
        "a dry run deletes nothing",
        "kubectl delete lsvc db --dry-run=server && kubectl get lsvc db -o name",
        out=r'"db" deleted.*\(server dry run\).*\nlatticeservice\.lattice\.dev/db\n\Z',
    ),
    Step(
        "delete one",
        "kubectl delete lsvc db",
        out=r'\Alatticeservice\.lattice\.dev "db" deleted( from default namespace)?\n\Z',
    ),
    Step(
        "and it is gone",
        "kubectl get lsvc db",
        rc=1,
        err=r'\(NotFound\): latticeservices\.lattice\.dev "db" not found$',
    ),
    Step(
        "delete what is gone",
        "kubectl delete lsvc db",
        rc=1,
        err=r'^Error from server \(NotFound\): latticeservices\.lattice\.dev "db" not found$',
    ),
    Step("delete what is gone, and do not mind", "kubectl delete lsvc db --ignore-not-found", out=r"\A\Z"),
    Step(
        "delete by file",
        "kubectl delete -f rule.yaml",
        out=r'\Aautomationrule\.lattice\.dev "sleeper" deleted\n\Z',
    ),
    Step(
        "delete by selector",
        "kubectl delete lp -l made=yes",
        out=r'\A(latticepool\.lattice\.dev "made-[a-z0-9]{5}" deleted\n){2}\Z',
    ),
    Step(
        "the others are still there",
        "kubectl get lp east west -o name",
        out=r"\Alatticepool\.lattice\.dev/east\nlatticepool\.lattice\.dev/west\n\Z",
    ),
    Step(
        "delete by path",
        "kubectl delete --raw /apis/lattice.dev/v1alpha1/latticepools/odd",
        out=r'"status":\s*"Success"',
    ),
    Step(
        "delete by path and selector",
        "kubectl delete --raw '/api/v1/namespaces/default/configmaps?labelSelector=set%3Dpages' >/dev/null && kubectl get cm -l set=pages",
        err=r"^No resources found in default namespace\.$",
    ),
    Step(
        "delete if it is still the one I mean",
        """printf '{"preconditions":{"uid":"00000000-0000-0000-0000-000000000000"}}' """
        """| kubectl delete --raw /apis/lattice.dev/v1alpha1/latticepools/east -f -""",
        rc=1,
        err=r"\(Conflict\): .*the UID in the precondition \(00000000-.*does not match the UID in record",
    ),
    Step("an object with a finalizer", "kubectl create -f held.yaml", out=r"^configmap/held created$"),
    Step(
        "is only marked by a delete",
        "kubectl delete cm held --wait=false && kubectl get cm held -o jsonpath='{.metadata.deletionTimestamp} {.metadata.generation}'",
        out=r'"held" deleted.*\n\d{4}-\S+Z',
    ),
    Step(
        "takes no new finalizer then",
        """kubectl patch cm held --type=merge -p '{"metadata":{"finalizers":["example.com/hold","example.com/more"]}}'""",
        rc=1,
        err=r"metadata\.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
    ),
    Step(
        "is waited for in vain",
        "kubectl delete cm held --timeout=1s",
        rc=1,
        out=r'"held" deleted',
        err=r"timed out waiting for the condition on configmaps/held",
    ),
    Step(
        "and goes with its last finalizer",
        """(kubectl patch cm held --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null &); """
        """kubectl delete cm held --timeout=10s --ignore-not-found; kubectl get cm held""",
        rc=1,
        out=r'\A(configmap "held" deleted.*\n)?\Z',
        err=r'^Error from server \(NotFound\): configmaps "held" not found$',
    ),
    Step(
        "an owner", "kubectl create cm owner && " + owned("child", "owner"), out=r"^configmap/child created$"
    ),
    Step(
        "takes what it owns along",
        "kubectl delete cm owner >/dev/null && kubectl wait --for=delete cm/child --timeout=15s; kubectl get cm child --ignore-not-found",
        out=r"\A(configmap/child condition met\n)?\Z",
        err=r"\A(Error from server \(NotFound\): configmaps \"child\" not found\n|error: no matching resources found\n)?\Z",
    ),
    Step(
        "a second owner",
        "kubectl create cm boss && " + owned("clerk", "boss"),
        out=r"^configmap/clerk created$",
    ),
    Step(
        "goes last when told to wait for what it owns",
        "kubectl delete cm boss --cascade=foreground --timeout=20s && kubectl get cm boss clerk --ignore-not-found",
        out=r'\Aconfigmap "boss" deleted.*\n\Z',
    ),
    Step(
        "a third owner",
        "kubectl create cm parent && " + owned("orphan", "parent"),
        out=r"^configmap/orphan created$",
    ),
    Step(
        "leaves what it owns behind when told to",
        "kubectl delete cm parent --cascade=orphan --timeout=20s && kubectl get cm parent --ignore-not-found"
        " && kubectl get cm orphan -o jsonpath='{.metadata.name} [{.metadata.ownerReferences}]'",
        out=r'\Aconfigmap "parent" deleted.*\norphan \[\]\Z',
    ),
    Step(
        "a service in a namespace of its own",
        "kubectl apply -n t1 -f service.yaml",
        out=r"^latticeservice\.lattice\.dev/api created$",
    ),
    Step(
        "a namespace takes its contents along",
        "kubectl delete ns t1 --timeout=30s",
        out=r'\Anamespace "t1" deleted\n\Z',
    ),
    Step(
        "and is gone with them",
        "kubectl get lsvc,secret,cm -n t1; kubectl get ns t1",
        rc=1,
        err=(r"^No resources found in t1 namespace\.$", r'\(NotFound\): namespaces "t1" not found$'),
    ),
    Step(
        "delete all of a kind",
        "kubectl delete lp --all && kubectl get lp",
        out=r'^latticepool\.lattice\.dev "east" deleted$',
        err=r"^No resources found$",
    ),
    Step(
        "delete everything in a namespace",
        "kubectl delete all --all && kubectl get all",
        out=r'^latticeservice\.lattice\.dev "api" deleted',
        err=r"^No resources found in default namespace\.$",
    ),
)
