"""Status is written by Lattice only and can be waited for."""

from build.kubectl_steps.step import Step

# kubectl waits for the generation that the status describes, too.
READY = (
    '{"status":{"phase":"Up","fired":3,"observedGeneration":99,'
    '"conditions":[{"type":"Ready","status":"True","reason":"Tested","message":"fine",'
    '"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}'
)
RULE = "/apis/lattice.dev/v1alpha1/automationrules/sleeper"

STEPS = (
    Step(
        "people do not write status",
        f"kubectl patch ar sleeper --subresource=status --type=merge -p '{READY}'",
        rc=1,
        err=r'^Error from server \(Forbidden\): automationrules\.lattice\.dev "sleeper" is forbidden: .*only Lattice may write status',
        since=(1, 27),
    ),
    Step(
        "status in the object itself is not looked at",
        f"kubectl patch ar sleeper --type=merge -p '{READY}' && kubectl get ar sleeper -o jsonpath='[{{.status.phase}}]'",
        out=r"sleeper patched \(no change\)\n\[\]\Z",
    ),
    Step(
        "a condition that does not come is not waited for forever",
        "kubectl wait ar/sleeper --for=condition=Ready --timeout=1s",
        rc=1,
        err=r"^error: timed out waiting for the condition on automationrules/sleeper$",
    ),
    Step(
        "Lattice writes status",
        f"kubectl patch ar sleeper --subresource=status --type=merge -p '{READY}' -o jsonpath='{{.status.phase}}'",
        out=r"\AUp\Z",
        who="system",
        since=(1, 27),
    ),
    Step(
        "Lattice writes status, asked by an old kubectl",
        f'kubectl get ar sleeper -o json | sed \'/^    "status": {{/,/^    }}/c "status": {{"phase": "Up","fired":3,"conditions":'
        f'[{{"type":"Ready","status":"True","reason":"Tested"}}]}}\' | kubectl replace --raw {RULE}/status -f -',
        out=r'"phase":"Up"',
        who="system",
        before=(1, 27),
    ),
    Step(
        "status is no new generation, and shows in the table",
        "kubectl get ar sleeper",
        out=r"^NAME\s+FIRED\s+LAST\s+SUSPENDED\s+AGE\nsleeper\s+3\s+true\s+\d+s$",
    ),
    Step(
        "wait for a condition",
        "kubectl wait ar/sleeper --for=condition=Ready --timeout=10s",
        out=r"\Aautomationrule\.lattice\.dev/sleeper condition met\n\Z",
    ),
    Step(
        "wait for a value",
        "kubectl wait ar sleeper --for=jsonpath='{.status.phase}'=Up --timeout=10s",
        out=r"\Aautomationrule\.lattice\.dev/sleeper condition met\n\Z",
        since=(1, 23),
    ),
    Step(
        "wait for what is not there",
        "kubectl wait ar/nope --for=condition=Ready --timeout=1s",
        rc=1,
        err=r'^Error from server \(NotFound\): automationrules\.lattice\.dev "nope" not found$',
    ),
    Step("an object with a short life", "kubectl create cm brief", out=r"^configmap/brief created$"),
    Step(
        "wait for the end of an object",
        "kubectl wait cm/brief --for=delete --timeout=10s",
        meanwhile="kubectl delete cm brief --ignore-not-found",
        out=r"\Aconfigmap/brief condition met\n\Z",
    ),
    Step(
        "status is read by itself",
        "kubectl get ar sleeper --subresource=status -o jsonpath='{.status.fired}'",
        out=r"\A3\Z",
        since=(1, 27),
    ),
    Step(
        "wait for nothing by label",
        "kubectl wait ar -l no=such --for=condition=Ready --timeout=1s",
        rc=1,
        err=r"^error: no matching resources found$",
    ),
)
