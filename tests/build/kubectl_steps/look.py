"""Reading: tables, forms, selectors, pages."""

from build.kubectl_steps.step import Step

SERVICE_HEADS = r"NAME\s+WANTED\s+READY\s+UPDATED\s+POOLS\s+COST/H\s+PHASE\s+VERDICT\s+AGE"

STEPS = (
    Step(
        "get prints the kind's own columns",
        "kubectl get lsvc",
        out=(rf"\A{SERVICE_HEADS}\n", r"^api\s.*\s\d+s$", r"^db\s.*\s\d+s$", r"^web\s.*\s\d+s$"),
    ),
    Step(
        "get -o wide prints more columns",
        "kubectl get lp east -o wide",
        out=(
            r"\ANAME\s+PROVIDER\s+REGION\s+NODES\s+MAX\s+BUDGET\s+PROJECTED\s+PHASE\s+CLASSES\s+CLUSTERS\s+READY\s+AGE\n",
            r"^east\s+aws\s+us-east-1\s+.*\b10\s+1200\.5\b.*\ssmall\b.*\d+s$",
        ),
    ),
    Step(
        "get -A tells the namespace and labels",
        "kubectl get lsvc -A --show-labels",
        out=(r"^NAMESPACE\s+NAME\s.*\sLABELS$", r"^default\s+db\s.*\sapp=db,z=1$"),
    ),
    Step("get -L makes a label a column", "kubectl get lsvc -L app", out=(r"\sAPP$", r"^web\s.*\sweb$")),
    Step(
        "get of two kinds",
        "kubectl get lp,lsvc",
        out=(r"^latticepool\.lattice\.dev/east\s+aws\s", r"^latticeservice\.lattice\.dev/api\s"),
    ),
    Step(
        "get by our category",
        "kubectl get lattice -A",
        out=(
            r"latticepool\.lattice\.dev/west\s",
            r"latticeservice\.lattice\.dev/web\s",
            r"automationrule\.lattice\.dev/sleeper\s",
        ),
    ),
    Step(
        "get all shows services",
        "kubectl get all",
        out=r"^latticeservice\.lattice\.dev/api\s",
        but=r"latticepool",
    ),
    Step("get --no-headers", "kubectl get lsvc --no-headers", out=r"\Aapi\s", but="NAME"),
    Step("get -o name", "kubectl get lp west -o name", out=r"\Alatticepool\.lattice\.dev/west\n\Z"),
    Step(
        "get -o yaml gives the whole object",
        "kubectl get lp east -o yaml",
        out=(
            r"\AapiVersion: lattice\.dev/v1alpha1\nkind: LatticePool\n",
            r'^  resourceVersion: "[1-9]\d*"$',
            r"^  uid: [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
            r"^  creationTimestamp: \"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\"$",
            r"^    alertThreshold: 0\.8$",
            r"^    maxMonthlyCost: 1200\.5$",
            r"^    compliance:\n    - soc2\n    - hipaa$",
        ),
    ),
    Step(
        "get -o json is a List of items",
        "kubectl get lp -o json",
        out=(r'^    "kind": "List"', r'"maxNodes": 3\b'),
    ),
    Step(
        "get -o jsonpath",
        "kubectl get lsvc -o jsonpath='{range .items[*]}{.metadata.name}={.spec.replicas.min} {end}'",
        out=r"\Aapi=1 db=2 web=3 \Z",
    ),
    Step(
        "get -o custom-columns",
        "kubectl get lp east west -o custom-columns=N:.metadata.name,R:.spec.provider.region,M:.spec.capacity.maxNodes",
        out=r"\AN\s+R\s+M\neast\s+us-east-1\s+10\nwest\s+us-west1\s+3\n\Z",
    ),
    Step(
        "get -o go-template", "kubectl get lp west -o go-template='{{.spec.provider.type}}'", out=r"\Agcp\Z"
    ),
    Step(
        "get --sort-by a field",
        "kubectl get lsvc --sort-by=.spec.replicas.min",
        out=r"^api\s.*\ndb\s.*\nweb\s",
    ),
    Step(
        "a selector by set, absence and difference",
        "kubectl get lsvc -l 'app in (web,db,api),!z,app!=api' -o name",
        out=r"\Alatticeservice\.lattice\.dev/web\n\Z",
    ),
    Step(
        "a selector by equality",
        "kubectl get lsvc -l app=db,z=1 -o name",
        out=r"\Alatticeservice\.lattice\.dev/db\n\Z",
    ),
    Step(
        "a selector by presence",
        "kubectl get lsvc -l z -o name",
        out=r"\Alatticeservice\.lattice\.dev/db\n\Z",
    ),
    Step(
        "a selector by outsiders",
        "kubectl get lsvc -l 'app notin (web,db)' -o name",
        out=r"\Alatticeservice\.lattice\.dev/api\n\Z",
    ),
    Step(
        "a selector that matches nothing",
        "kubectl get lsvc -l app=zzz",
        err=r"^No resources found in default namespace\.$",
    ),
    Step(
        "a selector that cannot be read",
        "kubectl get lsvc -l 'app in web'",
        rc=1,
        err=r'\(BadRequest\): .*cannot read the label selector "app in web": expected "\("',
    ),
    Step(
        "a field selector by name",
        "kubectl get lsvc --field-selector metadata.name=api -o name",
        out=r"\Alatticeservice\.lattice\.dev/api\n\Z",
    ),
    Step(
        "a field selector by difference and namespace",
        "kubectl get lsvc -A --field-selector metadata.namespace=default,metadata.name!=api -o name",
        out=r"\Alatticeservice\.lattice\.dev/db\nlatticeservice\.lattice\.dev/web\n\Z",
    ),
    Step(
        "a field selector that is not served",
        "kubectl get lsvc --field-selector spec.x=1",
        rc=1,
        err=r'^Error from server \(BadRequest\): .*field label not supported: "?spec\.x"?',
    ),
    Step(
        "get of what is not there",
        "kubectl get lsvc nope",
        rc=1,
        err=r'^Error from server \(NotFound\): latticeservices\.lattice\.dev "nope" not found$',
    ),
    Step(
        "get of what is not there, and do not mind", "kubectl get lsvc nope --ignore-not-found", out=r"\A\Z"
    ),
    Step(
        "get of two, one of them there",
        "kubectl get lp east nope",
        rc=1,
        out=r"^east\s+aws\s",
        err=r'^Error from server \(NotFound\): latticepools\.lattice\.dev "nope" not found$',
    ),
    Step(
        "get by file",
        "kubectl get -f service.yaml -o jsonpath='{.kind}/{.metadata.name}'",
        out=r"\ALatticeService/api\Z",
    ),
    Step(
        "seven objects to turn pages over",
        "kubectl apply -f pages.yaml",
        out=r"\A(configmap/page-\d created\n){7}\Z",
    ),
    Step(
        "a list in pages is the whole list",
        "kubectl get cm -l set=pages --chunk-size=3 -o name | tr '\\n' ' '",
        out=r"\A(configmap/page-\d ){7}\Z",
    ),
    Step(
        "a page says how to go on",
        "kubectl get --raw '/api/v1/namespaces/default/configmaps?limit=1&labelSelector=set%3Dpages'",
        out=(r'"continue":"[^"]+"', r'"name":"page-1"'),
        but="page-2",
    ),
    Step(
        "the next page goes on there",
        """next=$(kubectl get --raw '/api/v1/namespaces/default/configmaps?limit=5&labelSelector=set%3Dpages' """
        """| sed 's/.*"continue":"\\([^"]*\\)".*/\\1/');"""
        """ kubectl get --raw "/api/v1/namespaces/default/configmaps?limit=5&labelSelector=set%3Dpages&continue=$next" """,
        out=(r'"name":"page-6"', r'"name":"page-7"'),
        but=(r"page-5", r'"continue":"[^"]'),
    ),
    Step(
        "a page that cannot be is refused",
        "kubectl get --raw '/api/v1/namespaces/default/configmaps?limit=1&continue=rubbish'",
        rc=1,
        err=r"^Error from server \(BadRequest\): .*continue key is not valid",
    ),
    Step(
        "a revision that has not happened cannot be shown",
        "kubectl get --raw '/api/v1/namespaces?resourceVersion=999999999'",
        rc=1,
        err=r"Error from server \(Timeout\): .*Too large resource version: 999999999",
    ),
    Step(
        "describe shows the object in words, and that nothing happened yet",
        "kubectl describe lp east",
        out=(
            r"^Name:\s+east$",
            r"^Labels:\s+tier=prod$",
            r"^Kind:\s+LatticePool$",
            r"^ +Max Monthly Cost:\s+1200\.5$",
            r"^Events:\s+<none>$",
        ),
    ),
)
