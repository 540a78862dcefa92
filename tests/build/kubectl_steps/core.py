"""Kubernetes' own kinds that clients take for granted: namespaces, secrets, config maps, events, leases."""

from build.kubectl_steps.step import Step

STEPS = (
    Step("create a namespace", "kubectl create ns t1", out=r"\Anamespace/t1 created\n\Z"),
    Step(
        "a namespace is active at once", "kubectl get ns t1", out=r"^NAME\s+STATUS\s+AGE\nt1\s+Active\s+\d+s$"
    ),
    Step("describe a namespace", "kubectl describe ns t1", out=(r"^Name:\s+t1$", r"^Status:\s+Active$")),
    Step(
        "create a namespace twice",
        "kubectl create ns t1",
        rc=1,
        err=r'^Error from server \(AlreadyExists\): namespaces "t1" already exists$',
    ),
    Step(
        "create a secret",
        "kubectl create secret generic login -n t1 --from-literal=password=s3cret",
        out=r"\Asecret/login created\n\Z",
    ),
    Step(
        "a secret is read back",
        "kubectl get secret login -n t1 -o jsonpath='{.data.password}' | base64 -d",
        out=r"\As3cret\Z",
    ),
    Step(
        "the table counts its values, and shows none",
        "kubectl get secret -n t1",
        out=r"^login\s+Opaque\s+1\s+\d+s$",
        but=r"s3cret|czNjcmV0",
    ),
    Step(
        "describe hides the value",
        "kubectl describe secret login -n t1",
        out=(r"^password:\s+6 bytes$", r"^Type:\s+Opaque$"),
        but=r"s3cret|czNjcmV0",
    ),
    Step(
        "plain text goes in by stringData and comes out encoded",
        "printf 'apiVersion: v1\\nkind: Secret\\nmetadata: {name: plain}\\nstringData: {key: open}\\n' | kubectl apply -n t1 -f - "
        "&& kubectl get secret plain -n t1 -o jsonpath='{.data.key} [{.stringData}]'",
        out=r"\Asecret/plain created\nb3Blbg== \[\]\Z",
    ),
    Step(
        "apply of a changed secret, which is a strategic merge",
        "printf 'apiVersion: v1\\nkind: Secret\\nmetadata: {name: plain}\\nstringData: {key: shut}\\n' | kubectl apply -n t1 -f - "
        "&& kubectl get secret plain -n t1 -o jsonpath='{.data.key}'",
        out=r"\Asecret/plain configured\nc2h1dA==\Z",
    ),
    Step(
        "the type of a secret stays",
        """kubectl patch secret plain -n t1 -p '{"type":"other"}'""",
        rc=1,
        err=r'The Secret "plain" is invalid: type: .*immutable',
    ),
    Step("apply a config map", "kubectl apply -f config.yaml", out=r"\Aconfigmap/settings created\n\Z"),
    Step(
        "apply a changed config map, which is a strategic merge",
        "kubectl apply -f config-2.yaml",
        out=r"\Aconfigmap/settings configured\n\Z",
    ),
    Step(
        "keys were changed, added and removed",
        "kubectl get cm settings -o jsonpath='{.data}'",
        out=r'\A\{"colour":"green","shape":"round"\}\Z',
    ),
    Step(
        "create a config map from words",
        "kubectl create cm words --from-literal=a=1 --from-literal=b=2 -o jsonpath='{.data}'",
        out=r'\A\{"a":"1","b":"2"\}\Z',
    ),
    Step(
        "a strategic merge patch by hand",
        """kubectl patch cm words -p '{"data":{"a":null,"c":"3"}}' -o jsonpath='{.data}'""",
        out=r'\A\{"b":"2","c":"3"\}\Z',
    ),
    Step("describe a config map", "kubectl describe cm words", out=(r"^Name:\s+words$", r"^b:\n----\n2\n")),
    Step(
        "what is immutable stays",
        """kubectl patch cm words -p '{"immutable":true}' >/dev/null && kubectl patch cm words -p '{"data":{"b":"9"}}'""",
        rc=1,
        err=r'^The ConfigMap "words" is invalid: data: Forbidden: field is immutable when `immutable` is set$',
    ),
    Step(
        "apply with a set remembers its members",
        "KUBECTL_APPLYSET=true kubectl apply --server-side --prune --applyset=configmaps/members -n default -f pages.yaml",
        out=r"\A(configmap/page-\d serverside-applied\n){7}\Z",
        err=r"\AWarning: configmaps/members not found|\A\Z",
        since=(1, 27),
    ),
    Step(
        "and prunes what is no longer in it",
        "sed '/^---/,$d' pages.yaml | KUBECTL_APPLYSET=true kubectl apply --server-side --prune --applyset=configmaps/members "
        "-n default -f -"
        " && kubectl get cm -l set=pages -o name",
        out=(
            r"^configmap/page-1 serverside-applied$",
            r"^configmap/page-7 pruned$",
            r"\nconfigmap/page-1\n\Z",
        ),
        since=(1, 27),
    ),
    Step(
        "a namespace gets a label by apply",
        "printf 'apiVersion: v1\\nkind: Namespace\\nmetadata: {name: t1, labels: {team: red}}\\n' | kubectl apply --server-side -f -",
        out=r"^namespace/t1 serverside-applied$",
    ),
    Step(
        "there are no events about the service yet",
        "kubectl get events --field-selector involvedObject.name=words",
        err=r"^No resources found in default namespace\.$",
    ),
    Step(
        "an event is stored",
        "sed \"s/name: api}/name: api, uid: $(kubectl get lsvc api -o jsonpath='{.metadata.uid}')}/\" event.yaml | kubectl create -f -",
        out=r"\Aevent/api\.seen created\n\Z",
    ),
    Step(
        "get events",
        "kubectl get events --field-selector reason=Inspected",
        out=(
            r"^LAST SEEN\s+TYPE\s+REASON\s+OBJECT\s+MESSAGE$",
            r"^\d+d\s+Normal\s+Inspected\s+latticeservice/api\s+somebody looked at it$",
        ),
    ),
    Step(
        "events of one object",
        "kubectl events --for lsvc/api",
        out=r"\sNormal\s+Inspected\s+LatticeService/api\s+somebody looked at it$",
        since=(1, 27),
    ),
    Step(
        "describe shows events",
        "kubectl describe lsvc api",
        out=(r"^Events:$", r"^\s+Normal\s+Inspected\s+\S+( \(.*\))?\s+inspector\s+somebody looked at it$"),
    ),
    Step(
        "a lease is held",
        "printf 'apiVersion: coordination.k8s.io/v1\\nkind: Lease\\nmetadata: {name: chair}\\nspec: {holderIdentity: me, "
        "leaseDurationSeconds: 15}\\n' "
        "| kubectl create -f - && kubectl get lease chair",
        out=(r"^lease\.coordination\.k8s\.io/chair created$", r"^chair\s+me\s+\d+s$"),
    ),
    Step(
        "there are no services of Kubernetes' own",
        "kubectl get svc",
        err=r"^No resources found in default namespace\.$",
    ),
    Step(
        "a value that is not base64 is refused and not repeated",
        "printf 'apiVersion: v1\\nkind: Secret\\nmetadata: {name: bad}\\ndata: {key: \"!!!hidden\"}\\n' "
        "| kubectl create --validate=false -f -",
        rc=1,
        err=r'^The Secret "bad" is invalid: data\.key: must be base64; use stringData for plain text$',
        but="hidden",
    ),
    Step(
        "the default namespace stays",
        "kubectl delete ns default",
        rc=1,
        err=r'^Error from server \(Forbidden\): namespaces "default" is forbidden: the namespace must not be deleted',
    ),
)
