"""The checklist of the control plane by demand: the code that meets a demand, and the test that proves it."""

from docs.spec004.bounds import ACCEPTANCE, KNOWN_GAPS, KNOWN_GAPS_LATER, OUT_OF_SCOPE, PRIORITIES
from docs.spec004.nodes import NODE_MANAGER, PLACEMENT, PLACEMENT_LATER
from docs.spec004.operating import SCALE, SECURITY, SECURITY_LATER, SEEN
from docs.spec004.purpose import ARCHITECTURE, PRINCIPLES, PURPOSE
from docs.spec004.reconciling import RECONCILIATION, RETRY
from docs.spec004.records import API, STORE
from docs.spec004.running import CONCURRENCY, FAILURES, LIFE, SERVERS
from docs.spec004.telling import AUTOMATION, EVENTS
from docs.specification import Section, Specification

SPEC004 = Specification(
    "004",
    "control plane",
    (
        Section("1. Purpose", PURPOSE),
        Section("2. Design Principles", PRINCIPLES),
        Section("3. Architecture", ARCHITECTURE),
        Section("4.1 API Server", API),
        Section("4.2 State Store", STORE),
        Section("4.3 Node Manager", NODE_MANAGER),
        Section("4.4 Placement Engine", PLACEMENT, PLACEMENT_LATER),
        Section("4.5 Reconciliation Engine", RECONCILIATION),
        Section("4.6 Retry Engine", RETRY),
        Section("4.7 Event System", EVENTS),
        Section("4.8 Automation Hooks", AUTOMATION),
        Section("5. Workload Lifecycle", LIFE),
        Section("6. Failure Handling", FAILURES),
        Section("7. Concurrency Model", CONCURRENCY),
        Section("8. High Availability", SERVERS),
        Section("9. Security", SECURITY, SECURITY_LATER),
        Section("10. Observability", SEEN),
        Section("11. Scale Targets", SCALE),
        Section("12. Out of Scope", OUT_OF_SCOPE),
        Section("13. Known Gaps", KNOWN_GAPS, KNOWN_GAPS_LATER),
        Section("14. Acceptance Criteria", ACCEPTANCE),
        Section("Priority Gap List", PRIORITIES),
    ),
)

__all__ = ["SPEC004"]
