"""Objects come into being: create, apply, dry runs, differences, and everything that is refused."""

from build.kubectl_steps.step import Step

STEPS = (
    Step(
        "create makes what a file holds",
        "kubectl create -f pools.yaml",
        out=(r"^latticepool\.lattice\.dev/east created$", r"^latticepool\.lattice\.dev/west created$"),
    ),
    Step(
        "create refuses what exists",
        "kubectl create -f pools.yaml",
        rc=1,
        err=(
            r'^Error from server \(AlreadyExists\): error when creating "pools\.yaml": latticepools\.lattice\.dev "east" already exists$',
            r'latticepools\.lattice\.dev "west" already exists$',
        ),
    ),
    Step(
        "a client's dry run sends nothing",
        "kubectl apply -f service.yaml --dry-run=client",
        out=r"^latticeservice\.lattice\.dev/api created \(dry run\)$",
    ),
    Step(
        "a server's dry run passes every check",
        "kubectl apply -f service.yaml --dry-run=server",
        out=r"^latticeservice\.lattice\.dev/api created \(server dry run\)$",
    ),
    Step(
        "and stores nothing",
        "kubectl get lsvc api",
        rc=1,
        err=r'^Error from server \(NotFound\): latticeservices\.lattice\.dev "api" not found$',
    ),
    Step(
        "diff shows what an apply would create",
        "kubectl diff -f service.yaml",
        rc=1,
        out=(r"^\+kind: LatticeService$", r"^\+ +image: registry\.example/api:1$"),
    ),
    Step(
        "apply creates",
        "kubectl apply -f service.yaml",
        out=r"\Alatticeservice\.lattice\.dev/api created\n\Z",
    ),
    Step(
        "apply again changes nothing",
        "kubectl apply -f service.yaml",
        out=r"\Alatticeservice\.lattice\.dev/api unchanged\n\Z",
    ),
    Step("diff finds nothing to do", "kubectl diff -f service.yaml", out=r"\A\Z"),
    Step(
        "diff shows a changed field and a removed one",
        "kubectl diff -f service-2.yaml",
        rc=1,
        out=(
            r"^- +image: registry\.example/api:1$",
            r"^\+ +image: registry\.example/api:2$",
            r"^- +COLOUR: blue$",
            r"^- +generation: 1$",
            r"^\+ +generation: 2$",
        ),
    ),
    Step(
        "apply changes",
        "kubectl apply -f service-2.yaml",
        out=r"\Alatticeservice\.lattice\.dev/api configured\n\Z",
    ),
    Step(
        "what the new file leaves out is gone, and the generation counts",
        "kubectl get lsvc api -o jsonpath='{.spec.containers.main.env} {.metadata.generation}'",
        out=r'\A\{"MODE":"fast"\} 2\Z',
    ),
    Step(
        "apply from stdin",
        "cat services.yaml | kubectl apply -f -",
        out=(r"^latticeservice\.lattice\.dev/web created$", r"^latticeservice\.lattice\.dev/db created$"),
    ),
    Step(
        "apply of a rule", "kubectl apply -f rule.yaml", out=r"^automationrule\.lattice\.dev/sleeper created$"
    ),
    Step(
        "every mistake is told at once, each with its field",
        "kubectl apply -f wrong-service.yaml",
        rc=1,
        err=(
            r'The LatticeService "wrong" is invalid: $',
            r"^\* spec\.containers\.main: has neither image nor command",
            r"^\* spec\.containers\.main\.resources\.requests\.cpu: must be at most the limit \(1\), got 2$",
            r"^\* spec\.replicas\.min: must be at most replicas\.max \(5\), got 7$",
            r"^\* spec\.disconnect\.stopAfter: must be above 0s and below 120s, the time until a replacement starts, got 500s$",
        ),
    ),
    Step(
        "a wrong type names the field and the type",
        """sed 's/maxNodes: 3/maxNodes: "three"/' pools.yaml | kubectl apply --validate=false -f -""",
        rc=1,
        out=r"latticepool\.lattice\.dev/east (configured|unchanged)",
        err=(r'The LatticePool "west" is invalid: ', r"spec\.capacity\.maxNodes: Invalid value: .*integer"),
    ),
    Step(
        "old kubectl finds a wrong type by itself, from our schema",
        """sed 's/maxNodes: 3/maxNodes: "three"/' pools.yaml | kubectl apply -f -""",
        rc=1,
        err=r'LatticePool\.spec\.capacity\.maxNodes\): invalid type for .*maxNodes: got "string", expected "integer"',
        before=(1, 27),
    ),
    Step(
        "a negative number is refused",
        "sed 's/maxNodes: 3/maxNodes: -3/' pools.yaml | kubectl apply --dry-run=server -f -",
        rc=1,
        out=r"latticepool\.lattice\.dev/east (configured|unchanged) \(server dry run\)",
        err=r'The LatticePool "west" is invalid: spec\.capacity\.maxNodes: Invalid value: -3: must be 0 or more$',
    ),
    Step(
        "an unknown field is refused",
        "kubectl apply -f unknown-field.yaml --validate=strict",
        rc=1,
        err=r'LatticePool in version "v1alpha1" cannot be handled as a LatticePool: strict decoding error: unknown field '
        r'"spec\.provider\.regoin"',
        since=(1, 27),
    ),
    Step(
        "an unknown field is refused by old kubectl itself",
        "kubectl apply -f unknown-field.yaml",
        rc=1,
        err=r'unknown field "regoin" in dev\.lattice\.v1alpha1\.LatticePool\.spec\.provider',
        before=(1, 27),
    ),
    Step(
        "an unknown field is warned about and left out when asked so",
        "kubectl apply -f unknown-field.yaml --validate=warn -o jsonpath='{.spec}'",
        out=r'\A\{"provider":\{"type":"aws"\}\}\Z',
        err=r'^Warning: unknown field "spec\.provider\.regoin"; did you mean region\?$',
        since=(1, 27),
    ),
    Step(
        "an unknown field is left out silently when asked so",
        "kubectl delete lp odd --ignore-not-found >/dev/null; kubectl create -f unknown-field.yaml --validate=false -o jsonpath='{.spec}'",
        out=r'\A\{"provider":\{"type":"aws"\}\}\Z',
        err=r'\A(Warning: unknown field "spec\.provider\.regoin"; did you mean region\?\n)?\Z',  # kubectl before 1.25 cannot ask for silence
    ),
    Step(
        "a field given twice is refused",
        "kubectl create --raw '/api/v1/namespaces/default/configmaps?fieldValidation=Strict' -f twice.json",
        rc=1,
        err=r'\(BadRequest\): .*strict decoding error: duplicate field "data\.a"',
    ),
    Step(
        "a name must be a name",
        "sed 's/name: odd/name: Odd_Name/; s/, regoin: us-east-1//' unknown-field.yaml | kubectl create -f -",
        rc=1,
        err=r'The LatticePool "Odd_Name" is invalid: metadata\.name: Invalid value: "Odd_Name": must be 1 to 253 lower-case letters',
    ),
    Step(
        "a label must be a label",
        "kubectl label lp west 'x=b@d'",
        rc=1,
        err=r"^error: invalid label (value|spec): \"?x=b@d",
    ),
    Step(
        "the kind must be the one of the address",
        "kubectl create --raw /apis/lattice.dev/v1alpha1/latticepools -f rule.json",
        rc=1,
        err=r'^The LatticePool ".*" is invalid: kind: Invalid value: "AutomationRule": must be LatticePool$',
    ),
    Step(
        "a namespace that is not there is not found",
        "kubectl apply -n nowhere -f service.yaml",
        rc=1,
        err=r'^Error from server \(NotFound\): .*namespaces "nowhere" not found',
    ),
    Step(
        "a name may be left to the server",
        "kubectl create -f generated.yaml && kubectl create -f generated.yaml",
        out=r"\Alatticepool\.lattice\.dev/made-[a-z0-9]{5} created\nlatticepool\.lattice\.dev/made-[a-z0-9]{5} created\n\Z",
    ),
    Step(
        "several errors of metadata come together with those of the spec",
        'sed \'s/name: wrong/name: wrong\\n  labels: {app: "b@d"}/; '
        "s/ports:/&\\n        - {name: http, port: 8081}/' wrong-service.yaml | kubectl create -f -",
        rc=1,
        err=(
            r'The LatticeService "wrong" is invalid',
            r"^\* metadata\.labels\.app: Invalid value: \"b@d\"",
            r'^\* spec\.containers\.main\.ports\[1\]: Duplicate value: \{"name":"http"\}$',
        ),
    ),
)
