"""Sections 9 to 11: who may, what can be seen, and how much it carries."""

from docs.specification import Later, Row

JOINING = "server/agents/test_join.py"

SECURITY = (
    Row(
        "mTLS: a server takes a node for what its certificate says",
        "server.access.node_certificates:node_identity",
        f"{JOINING}::test_who_is_not_exactly_a_node_is_none",
        ("server/access/node_certificates.py", "if groups != [NODES_GROUP] or len(names)", "if len(names)"),
    ),
    Row(
        "mTLS: and only while it has the key that joined",
        "server.agents.join:verify_joined_key",
        "server/agents/test_registration_messages.py::test_a_certificate_counts_only_for_the_node_that_joined_with_its_key[a key that did not join as it]",
        (
            "server/agents/join.py",
            '    if node["metadata"].get("annotations", {}).get(AGENT_KEY_ANNOTATION) != peer.key_digest:',
            "    if False:",
        ),
    ),
    Row(
        "certificates are issued",
        "server.access.node_certificates:sign_node_certificate",
        f"{JOINING}::test_a_token_makes_a_node_with_what_it_grants",
        (
            "server/access/node_certificates.py",
            ".not_valid_after(now + NODE_CERTIFICATE_LIFETIME)",
            ".not_valid_after(now + NODE_CERTIFICATE_LIFETIME + NODE_CERTIFICATE_LIFETIME)",
        ),
    ),
    Row(
        "and rotated, when a third of their life is left",
        "agent.certificate_renewal:CertificateRenewal",
        "agent/test_identity.py::test_a_certificate_is_renewed_when_a_third_of_its_life_is_left",
        ("agent/identity.py", "life / RENEWAL_LIFETIME_DIVISOR - now", "life / 2 - now"),
    ),
    Row(
        "RBAC: viewers only look",
        "server.access.authorization:check_access",
        "server/grpc/test_control_service.py::test_rights_are_those_of_the_rest_of_the_api[a viewer reads]",
        ("server/access/authorization.py", "        if deed.verb not in READ_VERBS:", "        if False:"),
    ),
    Row(
        "RBAC: nodes have no rights in the API",
        "server.access.authorization:check_access",
        f"{JOINING}::test_nodes_have_no_rights_in_the_api",
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
        "what a user may is decided by three groups; who is in none may nothing",
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
            "            raise unknown_path(path)",
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
        "controllers/test_spec004_loops.py::test_attempts_to_find_a_node_are_counted_and_so_are_those_that_fail",
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
        "controllers/nodes/test_workloads.py::test_one_that_ends_waits_longer_each_time_and_is_given_up_after_the_fifth",
        (
            "controllers/nodes/workloads.py",
            "RETRIES = frozenset({Action.RECREATE, Action.RETRY})",
            "RETRIES = frozenset({Action.RETRY})",
        ),
    ),
    Row(
        "node_unhealthy_total",
        "metrics:NODES_UNHEALTHY",
        "controllers/nodes/test_node_health.py::test_a_node_is_ready_once_its_agent_is_heard_and_lost_after_forty_seconds",
        ("controllers/nodes/node_health.py", "            metrics.NODES_UNHEALTHY.inc()", "            pass"),
    ),
)
SCALE = (
    Row(
        "thousands of workloads",
        "controllers.services.replicas:ReplicaController",
        "controllers/services/test_replicas.py::test_ten_thousand_are_made_in_a_hundred_commits",
        ("controllers/runtime/context.py", "if batch and len(batch) + len(group) > most:", "if batch:"),
    ),
    Row(
        "hundreds of nodes",
        "agent.session:Agent",
        "agent/test_session.py::test_a_storm_of_a_hundred_agents_is_over_within_half_a_minute",
        (
            "agent/session.py",
            "FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 0.5, 10.0",
            "FIRST_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 40.0, 60.0",
        ),
    ),
)
