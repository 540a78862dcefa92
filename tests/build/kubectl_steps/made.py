"""Managed kinds: creating one is refused with the kind to declare instead."""

from build.kubectl_steps.step import Step

STEPS = (
    Step(
        "a cluster is not for people to create",
        "kubectl create -f cluster.yaml",
        rc=1,
        err=r"\(Forbidden\): .*only Lattice may write latticeclusters.*Lattice creates clusters for services: declare a LatticeService",
    ),
    Step(
        "not by apply either",
        "kubectl apply --server-side -f cluster.yaml",
        rc=1,
        err=r"\(Forbidden\): .*declare a LatticeService",
    ),
    Step(
        "a node registers itself",
        "printf 'apiVersion: lattice.dev/v1alpha1\\nkind: LatticeNode\\nmetadata: {name: n1}\\nspec: {}\\n' | kubectl create -f -",
        rc=1,
        err=r"\(Forbidden\): .*nodes register themselves: run `lattice agent`",
    ),
    Step(
        "an agreement follows from services",
        "printf 'apiVersion: lattice.dev/v1alpha1\\nkind: LatticeAgreement\\nmetadata: {name: a1}\\nspec: {caller: {name: a}, "
        "callee: {name: b}}\\n' "
        "| kubectl create --validate=false -f -",
        rc=1,
        err=r"\(Forbidden\): .*Lattice creates agreements for services: list both services under spec\.resources",
    ),
    Step(
        "Lattice makes a cluster",
        "kubectl create -f cluster.yaml",
        out=r"\Alatticecluster\.lattice\.dev/east-7 created\n\Z",
        who="system",
    ),
    Step(
        "people see it",
        "kubectl get lc east-7",
        out=(
            r"\ANAME\s+POOL\s+REGION\s+NODES\s+READY\s+SERVICES\s+COST/H\s+PHASE\s+AGE\n",
            r"^east-7\s+east\s.*\d+s$",
        ),
        who="viewer",
    ),
    Step(
        "people do not change it",
        """kubectl patch lc east-7 --type=merge -p '{"spec":{"maxNodes":9}}'""",
        rc=1,
        err=r"\(Forbidden\): .*only Lattice may write latticeclusters",
    ),
    Step(
        "people do not delete it",
        "kubectl delete lc east-7",
        rc=1,
        err=r"\(Forbidden\): .*only Lattice may write latticeclusters",
    ),
    Step(
        "people do not delete all of them",
        "kubectl delete lc --all",
        rc=1,
        err=r"\(Forbidden\): .*only Lattice may write latticeclusters",
    ),
    Step(
        "a workload that belongs to a service is its service's",
        "printf 'apiVersion: lattice.dev/v1alpha1\\nkind: LatticeWorkload\\nmetadata:\\n  name: api-0\\n  ownerReferences: "
        "[{apiVersion: lattice.dev/v1alpha1, kind: LatticeService, name: api, uid: x}]\\nspec: {service: api, containers: "
        "{main: {image: a}}}\\n' | kubectl create -f -",
        rc=1,
        err=r'\(Forbidden\): .*latticeworkloads\.lattice\.dev "api-0" is forbidden: it belongs to latticeservice api',
    ),
    Step(
        "so is one that only says so",
        "printf 'apiVersion: lattice.dev/v1alpha1\\nkind: LatticeWorkload\\nmetadata: {name: api-9}\\nspec: {service: api, containers: "
        "{main: {image: a}}}\\n' | kubectl create -f -",
        rc=1,
        err=r'\(Forbidden\): .*latticeworkloads\.lattice\.dev "api-9" is forbidden: it belongs to latticeservice api',
    ),
    Step(
        "a workload of one's own is for people to make",
        "printf 'apiVersion: lattice.dev/v1alpha1\\nkind: LatticeWorkload\\nmetadata: {name: own}\\nspec: {containers: {main: {image: a}}, "
        "constraints: {nodeSelector: {no: such}}}\\n' | kubectl create --validate=false -f -",
        out=r"^latticeworkload\.lattice\.dev/own created$",
    ),
    Step(
        "Lattice registers a node",
        "printf 'apiVersion: lattice.dev/v1alpha1\\nkind: LatticeNode\\nmetadata: {name: n1}\\nspec: {}\\n' | kubectl create -f -",
        out=r"^latticenode\.lattice\.dev/n1 created$",
        who="system",
    ),
    Step(
        "people close a node",
        """kubectl patch ln n1 --type=merge -p '{"spec":{"unschedulable":true}}' -o jsonpath='{.spec.unschedulable}'""",
        out=r"\Atrue\Z",
    ),
    Step(
        "people remove a node",
        "kubectl delete ln n1 --wait=false",
        out=r'^latticenode\.lattice\.dev "n1" deleted',
    ),
    Step(
        "Lattice deletes the cluster",
        "kubectl delete lc east-7",
        out=r'^latticecluster\.lattice\.dev "east-7" deleted',
        who="system",
    ),
)
