"""Server-side apply: field ownership."""

from build.kubectl_steps.step import Step

MANAGERS = """-o jsonpath='{range .metadata.managedFields[*]}{.manager}/{.operation} {end}'"""

STEPS = (
    Step(
        "apply on the server creates",
        "kubectl apply --server-side -f applied.yaml",
        out=r"\Alatticepool\.lattice\.dev/ssa serverside-applied\n\Z",
    ),
    Step(
        "and notes who owns what",
        "kubectl get lp ssa -o yaml --show-managed-fields",
        out=(
            r"^    manager: kubectl$",
            r"^    operation: Apply$",
            r"^        f:capacity:\n          f:maxCores: \{\}\n          f:maxNodes: \{\}$",
        ),
        since=(1, 21),
    ),
    Step(
        "managed fields are hidden unless asked for",
        "kubectl get lp ssa -o yaml",
        but="managedFields",
        out=r"^kind: LatticePool$",
        since=(1, 21),
    ),
    Step(
        "apply on the server again changes nothing",
        "kubectl get lp ssa -o jsonpath='{.metadata.resourceVersion} ' && kubectl apply --server-side -f applied.yaml >/dev/null "
        "&& kubectl get lp ssa -o jsonpath='{.metadata.resourceVersion}'",
        out=r"\A(\d+) \1\Z",
    ),
    Step("diff on the server finds nothing", "kubectl diff --server-side -f applied.yaml", out=r"\A\Z"),
    Step(
        "diff on the server shows a change",
        "kubectl diff --server-side -f applied-2.yaml",
        rc=1,
        out=(r"^- +maxNodes: 5$", r"^\+ +maxNodes: 6$", r"^- +maxCores: 40$"),
    ),
    Step(
        "what I no longer apply is gone",
        "kubectl apply --server-side -f applied-2.yaml >/dev/null && kubectl get lp ssa -o jsonpath='{.spec.capacity}'",
        out=r'\A\{"maxNodes":6\}\Z',
    ),
    Step(
        "somebody else scales by hand",
        """kubectl patch lp ssa --type=merge -p '{"spec":{"capacity":{"maxNodes":7}}}'""",
        out=r"ssa patched$",
    ),
    Step(
        "a field that somebody else owns is a conflict",
        "kubectl apply --server-side -f applied-2.yaml",
        rc=1,
        err=(
            r"Apply failed with 1 conflict: conflict with \"kubectl-patch\" using lattice\.dev/v1alpha1: \.spec\.capacity\.maxNodes",
        ),
    ),
    Step("nothing was applied", "kubectl get lp ssa -o jsonpath='{.spec.capacity.maxNodes}'", out=r"\A7\Z"),
    Step(
        "a conflict can be won by force",
        "kubectl apply --server-side --force-conflicts -f applied-2.yaml >/dev/null "
        "&& kubectl get lp ssa -o jsonpath='{.spec.capacity.maxNodes}'",
        out=r"\A6\Z",
    ),
    Step("by force the field changed hands", f"kubectl get lp ssa {MANAGERS}", out=r"\Akubectl/Apply \Z"),
    Step(
        "a second manager adds a field of its own",
        "printf 'apiVersion: lattice.dev/v1alpha1\\nkind: LatticePool\\nmetadata: {name: ssa}\\nspec: {provider: {type: aws}, "
        "nodeClasses: [big]}\\n' "
        "| kubectl apply --server-side --field-manager=second -f - >/dev/null "
        "&& kubectl get lp ssa -o jsonpath='{.spec.nodeClasses} {.spec.capacity.maxNodes}'",
        out=r'\A\["big"\] 6\Z',
    ),
    Step(
        "both managers are known",
        f"kubectl get lp ssa {MANAGERS}",
        out=(r"\bkubectl/Apply ", r"\bsecond/Apply "),
    ),
    Step(
        "an unknown field is always refused",
        "kubectl apply --server-side --validate=false -f unknown-field.yaml",
        rc=1,
        err=r"spec\.provider\.regoin: field not declared in schema",
    ),
    Step(
        "a wrong object is refused",
        "kubectl apply --server-side -f wrong-service.yaml",
        rc=1,
        err=(
            r'The LatticeService "wrong" is invalid: ',
            r"spec\.replicas\.min: must be at most replicas\.max \(5\), got 7",
        ),
    ),
    Step(
        "a dry run on the server",
        "sed 's/name: ssa/name: rehearsed/' applied.yaml | kubectl apply --server-side --dry-run=server -f - "
        "&& kubectl get lp rehearsed --ignore-not-found",
        out=r"\Alatticepool\.lattice\.dev/rehearsed serverside-applied \(server dry run\)\n\Z",
    ),
    Step(
        "an object made by client-side apply",
        "sed 's/name: ssa/name: moved/' applied.yaml | kubectl apply -f -",
        out=r"moved created$",
    ),
    Step(
        "moves to server-side apply",
        "sed 's/name: ssa/name: moved/' applied.yaml | kubectl apply --server-side -f -",
        out=r"^latticepool\.lattice\.dev/moved serverside-applied$",
        since=(1, 27),
    ),
    Step(
        "and its old manager is gone: a field that the next file leaves out goes, a changed one is no conflict",
        "sed 's/name: ssa/name: moved/' applied-2.yaml | kubectl apply --server-side -f - >/dev/null "
        "&& kubectl get lp moved -o jsonpath='{range .metadata.managedFields[*]}{.manager}/{.operation} {end}{.spec.capacity}'",
        out=r'\A((kubectl|kubectl-last-applied)/Apply ){1,2}\{"maxNodes":6\}\Z',
        since=(1, 27),
    ),
)
