"""Changing what is there: labels, annotations, patches, scale, edit, replace."""

from build.kubectl_steps.step import Step

STEPS = (
    Step("label adds", "kubectl label lp west team=red", out=r"\Alatticepool\.lattice\.dev/west labeled\n\Z"),
    Step(
        "label refuses to overwrite",
        "kubectl label lp west team=blue",
        rc=1,
        err=r"'team' already has a value \(red\), and --overwrite is false",
    ),
    Step(
        "label overwrites when told",
        "kubectl label lp west team=blue --overwrite -o jsonpath='{.metadata.labels.team}'",
        out=r"\Ablue\Z",
    ),
    Step(
        "label removes",
        "kubectl label lp west team- && kubectl get lp west -o jsonpath='{.metadata.labels}'",
        out=r'west (un)?labeled\n\{"tier":"dev"\}\Z',
    ),
    Step(
        "a label that the server must refuse",
        """kubectl patch lp west --type=merge -p '{"metadata":{"labels":{"x":"b@d"}}}'""",
        rc=1,
        err=r'The LatticePool "west" is invalid: metadata\.labels\.x: Invalid value: "b@d"',
    ),
    Step(
        "annotate",
        "kubectl annotate lp west note=one",
        out=r"\Alatticepool\.lattice\.dev/west annotated?\n\Z",
    ),
    Step(
        "annotate overwrites when told",
        "kubectl annotate lp west note=two --overwrite -o jsonpath='{.metadata.annotations.note}'",
        out=r"\Atwo\Z",
    ),
    Step(
        "labels and annotations are no new generation",
        "kubectl get lp west -o jsonpath='{.metadata.generation}'",
        out=r"\A1\Z",
    ),
    Step(
        "a merge patch changes one field and leaves the rest",
        """kubectl patch lp west --type=merge -p '{"spec":{"capacity":{"maxNodes":4,"maxCores":64}}}' -o jsonpath='{.spec} """
        """{.metadata.generation}'""",
        out=(r'"maxCores":64', r'"maxNodes":4', r'"type":"gcp"', r" 2\Z"),
    ),
    Step(
        "null in a merge patch removes",
        """kubectl patch lp west --type=merge -p '{"spec":{"capacity":{"maxCores":null}}}' -o jsonpath='{.spec.capacity}'""",
        out=r'\A\{"maxNodes":4\}\Z',
    ),
    Step(
        "a patch that changes nothing says so",
        """kubectl patch lp west --type=merge -p '{"spec":{"capacity":{"maxNodes":4}}}'""",
        out=r"west patched \(no change\)$",
    ),
    Step(
        "a JSON patch",
        """kubectl patch lp west --type=json -p '[{"op":"test","path":"/spec/capacity/maxNodes","value":4},"""
        """{"op":"replace","path":"/spec/capacity/maxNodes","value":5}]' -o jsonpath='{.spec.capacity.maxNodes}'""",
        out=r"\A5\Z",
    ),
    Step(
        "a JSON patch whose test fails is refused",
        """kubectl patch lp west --type=json -p '[{"op":"test","path":"/spec/capacity/maxNodes","value":99},"""
        """{"op":"remove","path":"/spec/capacity"}]'""",
        rc=1,
        err=r'^The LatticePool "west" is invalid: .*/spec/capacity/maxNodes',
    ),
    Step("and changes nothing", "kubectl get lp west -o jsonpath='{.spec.capacity.maxNodes}'", out=r"\A5\Z"),
    Step(
        "a strategic merge patch is for Kubernetes' own kinds",
        """kubectl patch lp west --type=strategic -p '{"spec":{"capacity":{"maxNodes":6}}}'""",
        rc=1,
        err=r"the body of the request was in an unknown format - .*application/merge-patch\+json.*add --type=merge",
    ),
    Step(
        "a patch by file",
        """printf 'spec: {capacity: {maxNodes: 3}}' > "$HOME/patch.yaml"; """
        """kubectl patch lp west --type=merge --patch-file "$HOME/patch.yaml" """
        """-o jsonpath='{.spec.capacity.maxNodes}'""",
        out=r"\A3\Z",
        since=(1, 21),
    ),
    Step(
        "a patch that makes the object wrong is refused",
        """kubectl patch lsvc api --type=merge -p '{"spec":{"replicas":{"min":9}}}'""",
        rc=1,
        err=r'^The LatticeService "api" is invalid: spec\.replicas\.min: must be at most replicas\.max \(5\), got 9$',
    ),
    Step(
        "a patch cannot rename",
        """kubectl patch lp west --type=merge -p '{"metadata":{"name":"south"}}'""",
        rc=1,
        err=r"\(BadRequest\): .*the name of the object \(south\) does not match the name on the URL \(west\)",
    ),
    Step(
        "scale moves the number of replicas",
        "kubectl scale lsvc api --replicas=4",
        out=r"\Alatticeservice\.lattice\.dev/api scaled\n\Z",
    ),
    Step(
        "and it has arrived in the spec",
        "kubectl get lsvc api -o jsonpath='{.spec.replicas}'",
        out=r'\A\{"max":5,"min":4\}\Z',
    ),
    Step(
        "scale if it is as I think",
        "kubectl scale lsvc api --current-replicas=4 --replicas=2",
        out=r"\Alatticeservice\.lattice\.dev/api scaled\n\Z",
    ),
    Step(
        "scale refuses if it is not as I think",
        "kubectl scale lsvc api --current-replicas=4 --replicas=3",
        rc=1,
        err=r"Expected replicas to be 4, was 2",
    ),
    Step(
        "scale above the ceiling is refused",
        "kubectl scale lsvc api --replicas=6",
        rc=1,
        err=r"spec\.replicas\.min: must be at most replicas\.max \(5\), got 6",
    ),
    Step("and nothing was scaled", "kubectl get lsvc api -o jsonpath='{.spec.replicas.min}'", out=r"\A2\Z"),
    Step(
        "the scale can be read by itself",
        "kubectl get lsvc api --subresource=scale -o jsonpath='{.kind} {.spec.replicas}'",
        out=r"\AScale 2\Z",
        since=(1, 27),
    ),
    Step(
        "the scale can be patched by itself",
        """kubectl patch lsvc api --subresource=scale --type=merge -p '{"spec":{"replicas":3}}' -o jsonpath='{.spec.replicas}'"""
        """ && kubectl get lsvc api -o jsonpath=' {.spec.replicas.min}'""",
        out=r"\A3 3\Z",
        since=(1, 27),
    ),
    Step(
        "what has no number cannot be scaled",
        "kubectl scale lp west --replicas=2",
        rc=1,
        err=r"^Error from server \(NotFound\): .*could not find the requested resource",
    ),
    Step(
        "edit",
        "EDITOR=\"sed -i 's/maxNodes: [0-9]*/maxNodes: 8/'\" kubectl edit lp west",
        out=r"^latticepool\.lattice\.dev/west edited$",
    ),
    Step(
        "and the edit has arrived",
        "kubectl get lp west -o jsonpath='{.spec.capacity.maxNodes}'",
        out=r"\A8\Z",
    ),
    Step(
        "edit without a change",
        "EDITOR=true kubectl edit lp west",
        err=r"\A(Edit cancelled, no changes made\.\n)?\Z",
        out=r"\A(Edit cancelled, no changes made\.\n)?\Z",
    ),
    Step(
        "replace what was read",
        "kubectl get ar sleeper -o yaml | sed 's/count: 3/count: 4/' | kubectl replace -f - "
        "&& kubectl get ar sleeper -o jsonpath='{.spec.when}'",
        out=r'\Aautomationrule\.lattice\.dev/sleeper replaced\n\{"workloadFailures":\{"count":4\}\}\Z',
    ),
    Step(
        "replace what somebody else has changed since",
        'kubectl get ar sleeper -o yaml > "$HOME/old.yaml"; kubectl label ar sleeper touched=1 >/dev/null; '
        'kubectl replace -f "$HOME/old.yaml"',
        rc=1,
        err=r"^Error from server \(Conflict\): .*the object has been modified; please apply your changes to the latest version",
    ),
    Step(
        "replace by force is a delete and a create",
        "kubectl get lp west -o jsonpath='{.metadata.uid} ' && sed -n '/^---/,$p' pools.yaml | kubectl replace --force -f - >/dev/null "
        "&& kubectl get lp west -o jsonpath='{.metadata.uid} {.metadata.generation}'",
        out=r"\A(\S+) (?!\1)\S+ 1\Z",
    ),
    Step(
        "replace what is not there",
        "sed 's/sleeper/stranger/' rule.yaml | kubectl replace -f -",
        rc=1,
        err=r'^Error from server \(NotFound\): .*"stranger" not found',
    ),
)
