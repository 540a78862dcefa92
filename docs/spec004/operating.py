"""Sections 9 to 11: access control, observability and scale."""

from docs.specification import Later, Row

JOINING = "server/agents/test_join.py"

SECURITY = (
    Row(
        "mTLS: a server takes a node for what its certificate says",
        "server.access.node_certificates:node_identity",
        f"{JOINING}::test_only_exact_node_subject_is_a_node_identity",
        ("server/access/node_certificates.py", "groups != [NODES_GROUP]", "False"),
    ),
    Row(
        "mTLS: and only while it has the key that joined",
        "server.agents.join:verify_joined_key",
        "server/agents/test_registration_messages.py::test_certificate_is_valid_for_its_own_node_only[a key of another machine]",
        (
            "server/agents/join.py",
            '    if node["metadata"].get("annotations", {}).get(AGENT_KEY_ANNOTATION) != peer.key_digest:',
            "    if False:",
        ),
    ),
    Row(
        "certificates are issued",
        "server.access.node_certificates:sign_node_certificate",
        f"{JOINING}::test_join_creates_node_with_granted_fields",
        (
            "server/access/node_certificates.py",
            ".not_valid_after(now + NODE_CERTIFICATE_LIFETIME)",
            ".not_valid_after(now + NODE_CERTIFICATE_LIFETIME + NODE_CERTIFICATE_LIFETIME)",
        ),
    ),
    Row(
        "and rotated, when a third of their life is left",
        "agent.certificate_renewal:CertificateRenewal",
        "agent/test_identity.py::test_certificate_renews_at_two_thirds_of_lifetime",
        ("agent/identity.py", "lifetime / RENEWAL_LIFETIME_DIVISOR - now", "lifetime / 2 - now"),
    ),
    Row(
        "RBAC: viewers only look",
        "server.access.authorization:check_access",
        "server/grpc/test_control_service.py::test_rights_equal_those_of_the_rest_api[a viewer reads]",
        ("server/access/authorization.py", "        if request.verb not in READ_VERBS:", "        if False:"),
    ),
    Row(
        "RBAC: nodes have no rights in the API",
        "server.access.authorization:check_access",
        f"{JOINING}::test_nodes_have_no_api_access",
        (
            "server/access/authorization.py",
            'return AuthorizationDecision(False, f"the user is in none',
            'return AuthorizationDecision(True, f"the user is in none',
        ),
    ),
)
SECURITY_LATER = (
    Later(
        "certificates from an external authority", "each installation has its own, made with its first start"
    ),
    Later(
        "RBAC beyond administrators, viewers and nodes",
        "three groups decide what a user may do; a user outside them may do nothing",
    ),
)
SEEN = (
    Row(
        "/metrics",
        "metrics:render_metrics",
        "e2e/test_protocol_access.py::test_health_is_public_and_metrics_require_a_user",
        (
            "server/app.py",
            '            authorize(user, RequestAttributes("get", "", "metrics"), None)',
            "            raise unknown_path_error(path)",
        ),
    ),
    Row(
        "/health",
        "server.app:App",
        "e2e/test_protocol_access.py::test_health_is_public_and_metrics_require_a_user",
        ("server/app.py", "return Reply(encode(dict(self.health())))", "return Reply(encode({}))"),
    ),
    Row(
        "scheduling_attempts_total",
        "metrics:SCHEDULING_ATTEMPTS",
        "controllers/test_spec004_loops.py::test_scheduling_attempts_and_failures_are_counted",
        (
            "controllers/scheduler/scheduler.py",
            "metrics.SCHEDULING_ATTEMPTS.inc(len(run))",
            "metrics.SCHEDULING_ATTEMPTS.inc()",
        ),
    ),
    Row(
        "reconciliation_actions_total",
        "metrics:RECONCILIATION_ACTIONS",
        "controllers/nodes/test_workloads.py::test_each_action_is_counted_once",
        (
            "controllers/nodes/workloads.py",
            "    metrics.RECONCILIATION_ACTIONS.labels(decision.action).inc()",
            "    pass",
        ),
    ),
    Row(
        "retry_total",
        "metrics:WORKLOAD_RETRIES",
        "controllers/nodes/test_workloads.py::test_exiting_workload_backs_off_and_fails_after_five",
        (
            "controllers/nodes/workloads.py",
            "RETRIES = frozenset({Action.RECREATE, Action.RETRY})",
            "RETRIES = frozenset({Action.RETRY})",
        ),
    ),
    Row(
        "node_unhealthy_total",
        "metrics:NODES_UNHEALTHY",
        "controllers/nodes/test_node_health.py::test_node_is_ready_on_heartbeat_and_lost_after_40_seconds",
        ("controllers/nodes/node_health.py", "            metrics.NODES_UNHEALTHY.inc()", "            pass"),
    ),
)
SCALE = (
    Row(
        "thousands of workloads",
        "controllers.services.replicas:ReplicaController",
        "controllers/services/test_replicas.py::test_10000_workloads_are_created_in_100_commits",
        (
            "store/commit_packing.py",
            "if self.operations and not self.limits.allow(operations, size_bytes):",
            "if self.operations:",
        ),
    ),
    Row(
        "hundreds of nodes",
        "agent.session:Agent",
        "agent/test_session.py::test_hundred_agents_reconnect_within_30_seconds",
        (
            "agent/session.py",
            "FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 0.5, 10.0",
            "FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 40.0, 60.0",
        ),
    ),
)
