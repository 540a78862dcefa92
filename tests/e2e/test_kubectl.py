"""One long scenario, typed into the oldest and the newest kubectl found, has the output that kubectl users
expect."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from build.kubectl_shell import Shell, open_shell
from build.kubectl_steps import STEPS
from build.kubectl_steps.step import Outcome, Step, complaints
from build.kubectl_versions import Kubectl, find_kubectls, in_ci, missing_kubectls
from build.servers import running_server

ALL = os.environ.get("LATTICE_ALL_KUBECTLS", "") not in {"", "0"}


def _versions() -> Iterator[object]:
    found = find_kubectls()
    for kubectl in found:
        chosen = not ALL and kubectl in (found[0], found[-1])
        group = pytest.mark.xdist_group(f"kubectl-{kubectl}")
        yield pytest.param(kubectl, id=str(kubectl), marks=[group] if chosen else [group, pytest.mark.prove])
    if not found:
        yield pytest.param(None, id="no kubectl", marks=pytest.mark.skip(missing_kubectls()))


def test_kubectl_versions_are_present_in_ci() -> None:
    missing = missing_kubectls()
    if missing and not in_ci():
        pytest.skip(missing)
    assert not missing


@pytest.mark.parametrize("kubectl", list(_versions()))
def test_kubectl(kubectl: Kubectl, tmp_path: Path, subtests: pytest.Subtests) -> None:
    with running_server(tmp_path / "data") as server:
        shell = open_shell(kubectl, server, tmp_path / "home")
        for step in STEPS:
            with subtests.test(step.says, kubectl=str(kubectl)):
                _try(shell, kubectl, step)


def _try(shell: Shell, kubectl: Kubectl, step: Step) -> None:
    if not step.applies_to(kubectl.version):
        pytest.skip(f"kubectl {kubectl} does not have it")
    outcome = shell.run(step)
    if wrong := complaints(step, outcome):
        pytest.fail(_report(kubectl, step, outcome, wrong), pytrace=False)


def _report(kubectl: Kubectl, step: Step, outcome: Outcome, wrong: list[str]) -> str:
    return "\n".join(
        [
            f"{step.says} (kubectl {kubectl}, as {step.who})",
            *(f"  {each}" for each in wrong),
            f"$ {step.run}",
            *([f"  meanwhile: {step.meanwhile}"] if step.meanwhile else []),
            f"exit code {outcome.rc}",
            f"--- stdout\n{outcome.out}",
            f"--- stderr\n{outcome.err}",
        ]
    )
