"""The abuse cases with the tests that prove each rejection, and the proofs that no request can show, such as
how programs are started."""

import ast
import io
import json
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from lattice.cli.commands.server import configure_logging
from lattice.clock import SystemClock
from lattice.kinds.meta.metadata_validation import name_problem
from lattice.kinds.node import LatticeNode
from lattice.providers.local import LocalProvider

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "lattice"

CASES: dict[str, list[str]] = {
    "1: a node reports on, reads or deletes what is bound to another": [
        "server/agents/test_sessions.py::test_foreign_report_counts_as_orphan_of_reporter",
        "server/agents/test_sessions.py::test_node_receives_only_its_own_workloads",
        "server/agents/test_node_scope.py::test_report_does_not_grant_a_workload",
    ],
    "2: a node says that it is another": [
        "server/agents/test_sessions.py::test_node_name_comes_from_certificate_only",
        "server/agents/test_registration_messages.py::test_certificate_is_valid_for_its_own_node_only",
    ],
    "3: a node gives itself labels that attract work": [
        "server/agents/test_registration_messages.py::test_invalid_hello_is_refused_without_write",
        "server/agents/test_registration_messages.py::test_registration_writes_allowed_fields_once",
    ],
    "4: a node claims room that it does not have, or another each time": [
        "server/agents/test_implausible_capacity.py::test_node_is_quarantined_while_capacity_is_implausible",
        "server/agents/test_implausible_capacity.py::test_agent_cannot_quarantine_another_node",
        "controllers/nodes/test_quarantine.py::test_quarantined_node_gets_no_workloads_and_one_event",
        "server/agents/test_registration_messages.py::test_capacity_is_capped_by_node_class",
        "server/agents/test_implausible_capacity.py::test_node_with_flapping_capacity_is_quarantined",
    ],
    "5: a node asks for what it does not hold": [
        "server/agents/test_node_scope.py::test_agent_protocol_has_no_query_messages",
        "server/agents/test_node_scope.py::test_only_bound_node_receives_workload_secrets",
        "server/agents/test_node_scope.py::test_log_is_accepted_from_requested_node_only",
        "server/agents/test_node_scope.py::test_removed_node_is_refused_and_logged",
        "e2e/test_abuse.py::test_node_certificate_is_forbidden_every_verb_on_every_kind",
        "e2e/test_abuse.py::test_node_certificate_is_forbidden_queries_and_metrics",
        "e2e/test_abuse.py::test_node_certificate_is_denied_every_control_service_rpc",
    ],
    "6: a join token is used twice, too late, guessed, or for another name": [
        "server/agents/test_join.py::test_one_of_many_concurrent_joins_wins",
        "server/agents/test_join.py::test_wrong_token_is_rejected",
        "server/agents/test_join.py::test_token_is_rejected_once_expired",
        "server/agents/test_join.py::test_token_takes_no_other_or_existing_name",
        "server/agents/test_join.py::test_failed_joins_are_rate_limited_per_address",
        "server/agents/test_join.py::test_only_digest_of_token_is_stored",
    ],
    "7: a signing request asks to be more than a node": [
        "server/agents/test_join.py::test_signing_request_beyond_node_rights_is_denied",
        "server/agents/test_join.py::test_signing_request_of_another_key_is_rejected",
        "server/agents/test_join.py::test_only_exact_node_subject_is_a_node_identity",
    ],
    "8: a certificate that is over, foreign or a server's; a stream that outlives its own; old TLS": [
        "server/grpc/test_agent_listener.py::test_peer_without_node_certificate_is_rejected",
        "server/agents/test_sessions.py::test_connection_ends_when_certificate_expires",
        "server/agents/test_sessions.py::test_connection_ends_when_node_is_deleted",
        "e2e/test_abuse.py::test_server_refuses_old_tls_versions",
        "agent/test_removed_node.py::test_removal_is_trusted_from_own_servers_only",
    ],
    "9: a former leader writes, a former order is sent": [
        "contract/test_store.py::test_terms_grow_and_fence",
        "store/test_election.py::test_paused_leader_is_fenced_on_wake",
        "server/agents/test_registration_messages.py::test_fenced_leader_registers_no_node",
        "agent/test_executor.py::test_older_orders_are_ignored",
        "agent/test_executor.py::test_older_term_is_ignored_after_restart",
    ],
    "16: a webhook that is to call something inside": [
        "controllers/automation/test_webhook_client.py::test_private_addresses_are_refused",
        "controllers/automation/test_webhook_client.py::test_private_hosts_are_not_called",
        "controllers/automation/test_webhook_client.py::test_dns_rebinding_does_not_change_the_called_address",
        "controllers/automation/test_webhook_client.py::test_error_omits_response_body",
        "controllers/automation/test_webhook_client.py::test_endless_response_is_not_read_fully",
        "controllers/automation/test_webhook_client.py::test_plain_http_and_unknown_certificates_are_refused",
    ],
    "17: a login is used by naming it": [
        "e2e/test_abuse.py::test_viewer_can_neither_reference_nor_read_a_login_secret",
        "e2e/test_abuse.py::test_credential_references_to_other_namespaces_are_invalid",
        "controllers/services/test_supply_status.py::test_status_reveals_no_credentials",
    ],
    "18: names, images and labels that would be paths, lines or commands": [
        "e2e/test_abuse.py::test_malicious_names_are_rejected_by_validation",
        "e2e/test_abuse.py::test_nul_in_command_is_invalid_and_shell_syntax_is_literal",
        "e2e/test_abuse.py::test_encoded_path_segments_reach_no_other_object",
        "e2e/test_abuse.py::test_short_path_rejects_malformed_namespace",
        "kinds/test_container.py::test_bad_image_name_is_refused",
        "test_abuse_cases.py::test_no_shell_and_no_eval_is_used",
        "test_abuse_cases.py::test_machine_folder_is_a_child_of_the_provider_folder",
        "test_abuse_cases.py::test_log_record_is_one_line",
    ],
}


def test_every_abuse_case_is_listed() -> None:
    assert [int(case.partition(":")[0]) for case in CASES] == [*range(1, 10), 16, 17, 18]


@pytest.mark.parametrize(("case", "test"), [(case, test) for case, tests in CASES.items() for test in tests])
def test_the_proving_test_exists(case: str, test: str) -> None:
    path, _, name = test.partition("::")
    functions = {
        node.name
        for node in ast.parse((TESTS / path).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in functions, (
        f"case {case} was proved by {test}, which is gone: name the test that proves it now"
    )


SHELLS = {"system", "popen", "create_subprocess_shell", "getoutput", "getstatusoutput"}
RUNNERS = {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_shell_and_no_eval_is_used(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "marshal", "shelve", "dill"} & set(names), f"{path}:{node.lineno}"
        if not isinstance(node, ast.Call):
            continue
        assert not any(each.arg == "shell" for each in node.keywords), f"{path}:{node.lineno}: shell="
        called = (
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else node.func.id
            if isinstance(node.func, ast.Name)
            else ""
        )
        assert called not in SHELLS, f"{path}:{node.lineno}: {called}"
        assert not (isinstance(node.func, ast.Name) and called in RUNNERS), f"{path}:{node.lineno}: {called}"


@given(name=st.text(alphabet="ab.-/\\\0~A1", min_size=1, max_size=12))
def test_machine_folder_is_a_child_of_the_provider_folder(name: str) -> None:
    folder = Path("/machines")
    if name_problem(LatticeNode.resource, name):
        return
    home = LocalProvider(folder, lambda: "", SystemClock())._machine_dir(name)
    assert (home.parent, home.resolve().parent, ".." in home.parts) == (folder, folder.resolve(), False)


@pytest.mark.parametrize("name", ["..", ".", "a..b", "../b", "a/b", "/a", "a\0b", "~", "-a", ""])
def test_path_traversal_names_are_invalid(name: str) -> None:
    assert name_problem(LatticeNode.resource, name)


@pytest.mark.parametrize(
    "text", ['a\n{"event": "forged"}', "a\r\nb", "a\u2028b", "\x1b[2J", "a\0b", "\ud800"]
)
def test_log_record_is_one_line(text: str) -> None:
    configure_logging(verbose=False)
    out = io.StringIO()
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(out))
    try:
        structlog.get_logger().warning("request rejected", path=text, user=text)
    finally:
        structlog.reset_defaults()
    [line, rest] = out.getvalue().split("\n")
    assert rest == ""
    assert line.isascii()
    assert {name: json.loads(line)[name] for name in ("event", "path", "user")} == {
        "event": "request rejected",
        "path": text,
        "user": text,
    }
