"""Authorization: certificates, tokens, groups, and access reviews."""

from build.kubectl_steps.step import Step

STEPS = (
    Step("an admin may delete services", "kubectl auth can-i delete lsvc", out=r"\Ayes\n\Z"),
    Step(
        "an admin may not make clusters",
        "kubectl auth can-i create latticeclusters",
        rc=1,
        out=r"^no\b",
        err=r"\A(Warning: resource 'latticeclusters' is not namespace scoped.*\n+)?\Z",
    ),
    Step(
        "an admin may not write status",
        "kubectl auth can-i patch lsvc --subresource=status",
        rc=1,
        out=r"^no\b.*only Lattice may write status",
    ),
    Step(
        "Lattice may write status",
        "kubectl auth can-i patch lsvc --subresource=status",
        out=r"\Ayes\n\Z",
        who="system",
    ),
    Step("a viewer may read", "kubectl auth can-i list lsvc -A", out=r"\Ayes\n\Z", who="viewer"),
    Step(
        "a viewer may not delete",
        "kubectl auth can-i delete lsvc",
        rc=1,
        out=r"^no\b.*lattice:viewers may only read",
        who="viewer",
    ),
    Step(
        "a viewer may not read secrets",
        "kubectl auth can-i get secrets",
        rc=1,
        out=r"^no\b.*may not read secrets",
        who="viewer",
    ),
    Step(
        "what an admin may do, as a list",
        "kubectl auth can-i --list",
        out=(
            r"^latticeservices\.lattice\.dev\s+\[\]\s+\[\]\s+\[create delete deletecollection get list patch update watch\]$",
            r"^latticeclusters\.lattice\.dev\s+\[\]\s+\[\]\s+\[get list watch\]$",
        ),
    ),
    Step(
        "what a viewer may do, as a list",
        "kubectl auth can-i --list",
        out=r"^latticeservices\.lattice\.dev\s+\[\]\s+\[\]\s+\[get list watch\]$",
        but=r"^secrets|\[create delete",
        who="viewer",
    ),
    Step(
        "who am I, by certificate",
        "kubectl auth whoami -o jsonpath='{.status.userInfo.username} {.status.userInfo.groups}'",
        out=r'\Avera \["lattice:viewers","system:authenticated"\]\Z',
        who="viewer",
        since=(1, 28),
    ),
    Step(
        "who am I, by token",
        "kubectl auth whoami",
        out=(r"^Username\s+toni$", r"^Groups\s+\[lattice:admins system:authenticated\]$"),
        who="token",
        since=(1, 28),
    ),
    Step(
        "a viewer reads",
        "kubectl get lsvc api -o name",
        out=r"\Alatticeservice\.lattice\.dev/api\n\Z",
        who="viewer",
    ),
    Step(
        "a viewer does not delete",
        "kubectl delete lsvc api",
        rc=1,
        err=r'^Error from server \(Forbidden\): latticeservices\.lattice\.dev "api" is forbidden: User "vera" cannot delete '
        r'resource "latticeservices"'
        r' in API group "lattice\.dev" in the namespace "default"',
        who="viewer",
    ),
    Step(
        "a viewer does not apply",
        "kubectl apply -f service.yaml",
        rc=1,
        err=(
            r"^Error from server \(Forbidden\): ",
            r'User "vera" cannot patch resource "latticeservices" in API group',
        ),
        who="viewer",
    ),
    Step(
        "a viewer does not scale",
        "kubectl scale lsvc api --replicas=1",
        rc=1,
        err=r'\(Forbidden\): .*User "vera" cannot (patch|update) resource "latticeservices/scale"',
        who="viewer",
    ),
    Step(
        "a viewer does not read secrets",
        "kubectl get secret login -n t1",
        rc=1,
        err=r'\(Forbidden\): secrets "login" is forbidden: User "vera" cannot get resource "secrets"',
        who="viewer",
    ),
    Step(
        "a viewer watches",
        "kubectl get --raw '/api/v1/namespaces?watch=1&timeoutSeconds=1'",
        out=r'"type":"ADDED"',
        who="viewer",
    ),
    Step(
        "somebody in no group reads nothing",
        "kubectl get lsvc",
        rc=1,
        err=r'^Error from server \(Forbidden\): latticeservices\.lattice\.dev is forbidden: User "bob" cannot list',
        who="nobody",
    ),
    Step(
        "somebody in no group may ask what he may do",
        "kubectl auth can-i get lsvc",
        rc=1,
        out=r"^no\b.*in none of the groups",
        who="nobody",
    ),
    Step(
        "a token lets in",
        "kubectl get lp east -o name",
        out=r"\Alatticepool\.lattice\.dev/east\n\Z",
        who="token",
    ),
    Step(
        "a forged token does not",
        "kubectl get lp",
        rc=1,
        err=r"^error: You must be logged in to the server \(Unauthorized: the bearer token is unknown",
        who="forger",
    ),
    Step(
        "acting as somebody else is refused, never ignored",
        "kubectl delete lp west --as=bob",
        rc=1,
        err=r"(?i)\(Forbidden\): .*impersonation is not supported",
    ),
    Step(
        "for reading, too",
        "kubectl get lp --as=bob --as-group=lattice:viewers",
        rc=1,
        err=r"(?i)impersonation is not supported",
    ),
    Step(
        "and nothing was deleted", "kubectl get lp west -o name", out=r"\Alatticepool\.lattice\.dev/west\n\Z"
    ),
)
