"""status, why and logs: what is wrong, why something does not run, and what an empty log means."""

import json

import pytest
from build.lab_objects import NOW, READY_NODE, a_lab_node, a_lab_replica, failing
from build.objects import make_object

from lattice.cli.commands.logs import no_output_message
from lattice.diagnosis.documents import problems_document, service_document, workload_document
from lattice.diagnosis.problems import FleetObjects, find_problems
from lattice.diagnosis.replica import diagnose_replica
from lattice.diagnosis.service import diagnose_service
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.service import LatticeService

API = "/apis/lattice.dev/v1alpha1"
AT = {"at": format_timestamp(NOW)}
CRASHES = a_lab_replica(
    "Failed",
    4,
    slot=0,
    status=failing("RUNTIME_ERROR", "exited with code 3", lastExitCode=3, lastLog="one\ntwo\n"),
)
WEB = make_object(
    LatticeService,
    "web",
    "default",
    spec={"containers": {"main": {"command": ["true"]}}},
    status={
        "phase": "Down",
        "placements": [{"pool": "lab", "cluster": "lab-001", "replicas": 1}],
        "conditions": [
            {"type": "Available", "status": "False", "lastTransitionTime": "2026-11-15T11:58:00Z"}
        ],
    },
)


def answer_problems(server, objects):
    server.answers["GET", f"{API}/problems"] = [
        (200, [], AT | problems_document(find_problems(objects, NOW)))
    ]


def test_status_lists_problems_with_cause_and_command(server, lattice):
    answer_problems(
        server,
        FleetObjects(
            services=[WEB],
            workloads=[CRASHES],
            nodes=[a_lab_node(), a_lab_node("n2", "False", "HeartbeatMissed")],
        ),
    )
    ran = lattice("status")
    assert (ran.code, ran.out) == (
        1,
        (
            "1 critical, 1 warning\n"
            "\n"
            "critical  service/web: Down, for 2m\n"
            "          0 of 1 replicas ready; web-0: RUNTIME_ERROR: exited with code 3 (4 failures)\n"
            "          `lattice why service/web`\n"
            "\n"
            "warning   node/n2: NotReady, for 0s\n"
            "          node n2 is not ready: No heartbeat for 40 s\n"
            "          `lattice describe node/n2`\n"
        ),
    )


@pytest.mark.parametrize(
    ("nodes", "out"),
    [
        pytest.param([], "Nothing is wrong.\n", id="no problem"),
        pytest.param(
            [a_lab_node(meta={"name": "n1"})],
            "Nothing is wrong.\n",
            id="a ready node",
        ),
    ],
)
def test_status_exits_with_zero_if_nothing_is_wrong(server, lattice, nodes, out):
    answer_problems(server, FleetObjects(nodes=nodes))
    ran = lattice("status")
    assert (ran.code, ran.out) == (0, out)


def test_status_as_json_keeps_the_exit_code(server, lattice):
    answer_problems(server, FleetObjects(services=[WEB]))
    ran = lattice("status", "-o", "json")
    assert ran.code == 1
    assert json.loads(ran.out)["counts"] == {"critical": 1, "warning": 0, "info": 0}


def test_why_workload_shows_exit_code_log_and_next_attempt(server, lattice):
    document = workload_document(CRASHES, diagnose_replica(CRASHES, READY_NODE))
    server.answers["GET", f"{API}/diagnosis"] = [(200, [], AT | document)]
    ran = lattice("why", "workload/web-0")
    assert (ran.code, ran.out) == (
        0,
        (
            "workload/default/web-0: Failed: RUNTIME_ERROR: exited with code 3 (4 failures).\n"
            "\n"
            "Crash, for 0s\n"
            "  cause       RUNTIME_ERROR: exited with code 3 (4 failures)\n"
            "  exit code   3\n"
            "  next        attempt 5 follows after the back-off, in 40 s\n"
            "  fix         look at the log, and mend the program, its arguments or its environment\n"
            "  see         `lattice logs web-0`\n"
            "  last lines of the log\n"
            "    one\n"
            "    two\n"
        ),
    )
    assert server.log[-1] == ("GET", f"{API}/diagnosis", {"workload": "default/web-0"})


def test_why_service_answers_why_it_is_not_running_first(server, lattice):
    document = service_document(WEB, diagnose_service(WEB, [CRASHES], READY_NODE), [CRASHES])
    server.answers["GET", f"{API}/diagnosis"] = [(200, [], AT | document)]
    server.answers["POST", f"{API}/fleet/why"] = [
        (404, [], {"kind": "Status", "reason": "NotFound", "code": 404})
    ]
    assert lattice("why", "service/web").code != 0, "the placement is asked for, too"
    assert [path for _, path, _ in server.log if path.startswith(API)] == [
        f"{API}/diagnosis",
        f"{API}/fleet/why",
    ]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param(
            {"failureReason": "COMMAND_NOT_FOUND", "failureMessage": 'command "pyton3" does not exist'},
            "its last run failed: COMMAND_NOT_FOUND: command \"pyton3\" does not exist. `lattice why workload/web-0` shows more",
            id="a failure before the start",
        ),
        pytest.param(
            {"failureReason": "RUNTIME_ERROR", "lastExitCode": 3},
            "its last run failed: RUNTIME_ERROR (exit code 3). `lattice why workload/web-0` shows more",
            id="a program that printed nothing",
        ),
        pytest.param({"actualState": "Running"}, "its state is Running", id="a quiet program"),
    ],
)  # fmt: skip
def test_empty_log_names_the_failure(status, message):
    workload = {"metadata": {"name": "web-0"}, "status": status}
    assert no_output_message(workload) == f"web-0 has no output; {message}"
