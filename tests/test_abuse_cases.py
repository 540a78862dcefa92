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
        "server/agents/test_sessions.py::test_a_report_about_anothers_workload_counts_for_the_reporter_only",
        "server/agents/test_sessions.py::test_a_node_is_told_of_its_own_workloads_only",
        "server/agents/test_node_scope.py::test_saying_that_one_has_it_does_not_make_it_ones_own",
    ],
    "2: a node says that it is another": [
        "server/agents/test_sessions.py::test_the_name_is_in_the_certificate_and_nowhere_else",
        "server/agents/test_registration_messages.py::test_a_certificate_counts_only_for_the_node_that_joined_with_its_key",
    ],
    "3: a node gives itself labels that attract work": [
        "server/agents/test_registration_messages.py::test_a_hello_that_cannot_be_right_is_refused_and_writes_nothing",
        "server/agents/test_registration_messages.py::test_registration_is_written_once_and_only_what_an_agent_may_say",
    ],
    "4: a node claims room that it does not have, or another each time": [
        "server/agents/test_implausible_capacity.py::test_a_node_that_claims_room_that_cannot_be_is_refused_and_quarantined_until_it_says_better",
        "server/agents/test_implausible_capacity.py::test_nobody_quarantines_another_node",
        "controllers/nodes/test_quarantine.py::test_nothing_is_put_on_a_node_that_is_quarantined_and_that_is_told_once",
        "server/agents/test_registration_messages.py::test_a_machine_of_a_class_has_no_more_room_than_that_class",
        "server/agents/test_implausible_capacity.py::test_a_node_that_says_something_else_each_time_is_refused",
    ],
    "5: a node asks for what it does not hold": [
        "server/agents/test_node_scope.py::test_a_node_can_say_who_it_is_and_how_it_is_and_nothing_that_asks_for_anything",
        "server/agents/test_node_scope.py::test_what_a_replica_is_given_goes_to_its_node_while_it_is_bound_there_and_to_no_other",
        "server/agents/test_node_scope.py::test_what_a_log_says_is_heard_from_the_node_that_was_asked",
        "server/agents/test_node_scope.py::test_a_node_that_was_removed_gets_nothing_more_and_the_log_says_why",
        "e2e/test_abuse.py::test_node_certificate_is_forbidden_every_verb_on_every_kind",
        "e2e/test_abuse.py::test_node_certificate_is_forbidden_queries_and_metrics",
        "e2e/test_abuse.py::test_node_certificate_is_denied_every_control_service_rpc",
    ],
    "6: a join token is used twice, too late, guessed, or for another name": [
        "server/agents/test_join.py::test_of_many_machines_with_one_token_one_becomes_a_node",
        "server/agents/test_join.py::test_a_token_that_is_not_right_is_refused",
        "server/agents/test_join.py::test_an_expired_token_is_refused_and_was_good_a_moment_before",
        "server/agents/test_join.py::test_a_token_for_one_node_makes_no_other_and_an_open_one_takes_no_name_that_is_there",
        "server/agents/test_join.py::test_guessing_is_limited_per_address_and_only_guessing",
        "server/agents/test_join.py::test_only_a_digest_of_a_token_is_stored_and_nothing_shows_it",
    ],
    "7: a signing request asks to be more than a node": [
        "server/agents/test_join.py::test_a_request_that_asks_for_more_than_a_node_may_be_is_refused",
        "server/agents/test_join.py::test_a_request_that_is_signed_by_another_key_is_refused",
        "server/agents/test_join.py::test_who_is_not_exactly_a_node_is_none",
    ],
    "8: a certificate that is over, foreign or a server's; a stream that outlives its own; old TLS": [
        "server/grpc/test_agent_listener.py::test_who_is_no_node_is_not_let_in",
        "server/agents/test_sessions.py::test_a_connection_ends_with_its_certificate",
        "server/agents/test_sessions.py::test_a_connection_ends_with_its_node",
        "e2e/test_abuse.py::test_server_refuses_old_tls_versions",
        "agent/test_removed_node.py::test_whom_a_machine_believes_that_it_is_no_node_any_more",
    ],
    "9: a former leader writes, a former order is sent": [
        "contract/test_store.py::test_terms_grow_and_fence",
        "store/test_election.py::test_a_paused_leader_that_wakes_knows_it_and_is_refused_anyway",
        "server/agents/test_registration_messages.py::test_a_former_leader_registers_nobody",
        "agent/test_executor.py::test_older_orders_are_not_obeyed",
        "agent/test_executor.py::test_a_leader_of_an_earlier_term_is_not_obeyed_after_a_restart_either",
    ],
    "16: a webhook that is to call something inside": [
        "controllers/automation/test_webhook_client.py::test_addresses_inside_are_refused",
        "controllers/automation/test_webhook_client.py::test_the_inside_is_not_called",
        "controllers/automation/test_webhook_client.py::test_a_name_that_means_something_else_a_moment_later_changes_nothing",
        "controllers/automation/test_webhook_client.py::test_trouble_is_told_without_the_other_sides_words",
        "controllers/automation/test_webhook_client.py::test_an_endless_answer_is_not_read_to_its_end",
        "controllers/automation/test_webhook_client.py::test_plain_http_is_refused_and_an_unknown_certificate_too",
    ],
    "17: a login is used by naming it": [
        "e2e/test_abuse.py::test_viewer_can_neither_reference_nor_read_a_login_secret",
        "e2e/test_abuse.py::test_credential_references_to_other_namespaces_are_invalid",
        "controllers/services/test_supply_status.py::test_nothing_of_a_login_is_told",
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
        structlog.get_logger().warning("refused", path=text, user=text)
    finally:
        structlog.reset_defaults()
    [line, rest] = out.getvalue().split("\n")
    assert rest == ""
    assert line.isascii()
    assert {name: json.loads(line)[name] for name in ("event", "path", "user")} == {
        "event": "refused",
        "path": text,
        "user": text,
    }
