"""Watching: every change arrives, in every form."""

from build.kubectl_steps.step import Step

STEPS = (
    Step(
        "a watch shows what is there, then what changes",
        "kubectl get lsvc -w",
        meanwhile="kubectl annotate lsvc web n=$N --overwrite",
        out=(r"^NAME\s+WANTED\s+READY\s", r"^api\s", r"^web\s[^\n]*\n(.*\n)*web\s"),
    ),
    Step(
        "a watch of changes only, as whole objects",
        "kubectl get lsvc web --watch-only -o yaml",
        meanwhile="kubectl annotate lsvc web tick=w$N --overwrite",
        out=(r"^apiVersion: lattice\.dev/v1alpha1$", r"^    tick: w\d+$", r"^kind: LatticeService$"),
    ),
    Step(
        "a watch tells what kind of change it was",
        "kubectl get cm -A -w --output-watch-events",
        meanwhile="kubectl create cm fleeting && kubectl label cm fleeting n=$N && kubectl delete cm fleeting",
        out=(
            r"^EVENT\s+NAMESPACE\s+NAME\s+DATA\s+AGE$",
            r"^ADDED\s+default\s+page-1\s",
            r"^ADDED\s+default\s+fleeting\s+0\s",
            r"^MODIFIED\s+default\s+fleeting\s+0\s",
            r"^DELETED\s+default\s+fleeting\s+0\s",
        ),
    ),
    Step(
        "leaving the selector looks like a deletion, coming back like an addition",
        "kubectl get lp -l tier=dev -w --output-watch-events",
        meanwhile="kubectl label lp west tier=out --overwrite && kubectl label lp west tier=dev --overwrite",
        out=r"^ADDED\s+west\s.*\nDELETED\s+west\s.*\nADDED\s+west\s",
    ),
    Step(
        "a watch of one name leaves the others out",
        "kubectl get lp west -w -o name",
        meanwhile="kubectl annotate lp east n=$N --overwrite && kubectl annotate lp west n=$N --overwrite",
        out=r"\A(latticepool\.lattice\.dev/west\n){2}",
        but="east",
    ),
    Step(
        "a watch from a revision that has not happened is told to start again",
        "kubectl get --raw '/api/v1/configmaps?watch=1&resourceVersion=999999999&timeoutSeconds=1'",
        rc=1,
        err=r"^Error from server \((Expired|Gone)\): .*999999999",
    ),
    Step(
        "a watch ends when it was told to",
        "kubectl get --raw '/api/v1/namespaces?watch=true&timeoutSeconds=1'",
        out=r'^\{"type":"ADDED","object":\{.*"name":"default"',
    ),
    Step(
        "a watch may begin with what is there and say where that ends",
        "kubectl get --raw '/api/v1/namespaces?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        "&allowWatchBookmarks=true&timeoutSeconds=1'",
        out=(
            r'^\{"type":"ADDED".*"name":"lattice-system"',
            r'^\{"type":"BOOKMARK".*"k8s\.io/initial-events-end":"true"',
        ),
    ),
)
