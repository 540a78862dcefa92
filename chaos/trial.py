"""A chaos run inside the hub's namespace: start all programs, inject the planned faults, heal, wait for rest,
judge."""

import argparse
import random
import secrets
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from build.wire import Wire

from chaos.figures import figures, left_out
from chaos.judge import Evidence, judge, stretch, written_lately
from chaos.nemesis import Nemesis
from chaos.network import ETCDS, GROUPS, SERVERS
from chaos.people import CLASS, POOL, Crowd, supply
from chaos.plan import disturbed, plan
from chaos.programs import FAKETIME, PREFIX, Fleet
from chaos.record import Follower, History
from lattice.kinds.join_token import Grant, JoinToken, fingerprint, token_secret
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.checker import Violation

SECRETS = "/api/v1/namespaces/lattice-system/secrets"
PEOPLE = 3
# Time until all programs are up.
STARTUP_TIMEOUT_S = 120.0
# Time after the last fault in which all desired workloads run.
CONVERGE_TIMEOUT_S = 100.0
# Further time until no component writes.
SETTLE_TIMEOUT_S = 90.0


@dataclass
class Trial:
    """A run of a seed: programs, recorded history and users."""

    run: int
    seed: int
    seconds: float
    count: int
    folder: Path
    only: str = ""
    began: float = field(default_factory=time.monotonic)
    violations: list[Violation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.fleet = Fleet(self.run, self.folder)
        self.history = History(PREFIX)
        self.followers: list[Follower] = []
        self.crowd = Crowd({}, random.Random(self.rng.getrandbits(64)))

    def say(self, words: str) -> None:
        print(f"{time.monotonic() - self.began:8.2f} s  {words}", flush=True)

    def until(self, holds: Callable[[], bool], within: float) -> bool:
        """Wait until `holds` is true; returns False after `within` seconds."""
        ends = time.monotonic() + within
        while not holds():
            if time.monotonic() > ends:
                return False
            time.sleep(0.25)
        return True

    def begin(self) -> None:
        self.fleet.add_etcds()
        self.followers = [
            Follower(name, endpoint, self.history) for name, endpoint in self.fleet.endpoints.items()
        ]
        for follower in self.followers:
            follower.start()
        first, *other_servers = SERVERS
        self._add_server(first)
        cluster_size = self.count * 2 // 3
        client = self.crowd.client("chaos")
        for kind, name, body in supply(cluster_size):
            self._need(partial(client.apply, kind, name, body), f"{kind}/{name}")
        machines_file = self.fleet.machines_of(first)
        self._need(
            lambda: machines_file.exists() and machines_file.read_bytes().count(b'"Running"') == cluster_size,
            "the machines of the cluster",
        )
        for server in other_servers:
            self._add_server(server, machines_file.read_bytes())
        cluster = f"{POOL}-001-{CLASS}-"
        self._add_agents(
            [
                *(f"{cluster}{number + 1}" for number in range(cluster_size)),
                *(f"free-{number}" for number in range(self.count - cluster_size)),
            ]
        )
        self._need(self._all_ready, "all nodes are ready")
        self.fleet.age()
        self.say(f"{len(ETCDS)} members of etcd, {len(SERVERS)} servers and {self.count} agents are up")

    def _add_server(self, name: str, machines: bytes = b"") -> None:
        self.fleet.add_server(name, machines)
        kubeconfig = self.folder / name / "kubeconfig"
        self._need(lambda: kubeconfig.exists() and self.history.leader in SERVERS, f"{name} serves")
        self.crowd.kubeconfigs[name] = kubeconfig

    def _need(self, holds: Callable[[], bool], goal: str) -> None:
        if not self.until(holds, STARTUP_TIMEOUT_S):
            raise RuntimeError(f"waited {STARTUP_TIMEOUT_S:g} s in vain for: {goal}")

    def _add_agents(self, names: list[str]) -> None:
        wire = Wire(self.crowd.kubeconfigs[SERVERS[0]])
        authority = fingerprint(b64decode(wire.get(f"{SECRETS}/lattice-ca").value["data"]["tls.crt"]))
        for number, name in enumerate(names):
            token = JoinToken(secrets.token_hex(6), secrets.token_urlsafe(24), authority)
            grant = Grant(expires=format_timestamp(datetime.now(UTC) + timedelta(hours=3)), node=name)
            answer = wire.post(SECRETS, token_secret(token, grant))
            if answer.status != 201:
                raise RuntimeError(f"no token for {name}: {answer.raw!r}")
            self.fleet.add_agent(name, GROUPS[number % len(GROUPS)], str(token))

    def _all_ready(self) -> bool:
        nodes = self.history.objects(LatticeNode)
        ready = [
            node
            for node in nodes
            if any(
                condition.type == "Ready" and condition.status == "True"
                for condition in node.status.conditions
            )
        ]
        return len(ready) == self.count

    def disturb(self) -> Nemesis:
        nemesis = Nemesis(
            self.fleet, self.history, plan(self.seed, disturbed(self.seconds), self.only), self.say
        )
        if not FAKETIME:
            self.say("wall clocks are left alone: libfaketime is not there (apt-get install faketime)")
        self.crowd.begin(sorted(self.fleet.agents), PEOPLE)
        nemesis.run()
        self.say(f"{len(nemesis.done)} faults, all healed")
        return nemesis

    def calm_down(self) -> None:
        """Stop the users, raise the budget, uncordon nodes and retry failed workloads, so that every desired
        workload can run."""
        healed = time.monotonic()
        self.crowd.end()
        client = self.crowd.client("host")
        self._need(
            lambda: client.patch("latticepools", POOL, {"spec": {"budget": {"maxMonthlyCost": 9000}}}),
            "the budget is raised",
        )
        for name in self.fleet.agents:
            self._need(
                partial(client.patch, "latticenodes", name, {"spec": {"unschedulable": False}}),
                f"{name} is uncordoned",
            )
        self.until(self.is_at_rest, 20)
        for workload in self.history.objects(LatticeWorkload):
            if workload.status.actual_state == "Failed":
                client.retry(workload.metadata.name)
        if self.until(self.is_at_rest, CONVERGE_TIMEOUT_S):
            self.say(
                f"everything wanted runs {time.monotonic() - healed:.1f} s after the last fault was healed"
            )
        self.until(lambda: not written_lately(self.history.records(), time.monotonic()), SETTLE_TIMEOUT_S)

    def is_at_rest(self) -> bool:
        """Report whether the store shows every desired workload ready; the judge asks the machines too."""
        workloads = self.history.objects(LatticeWorkload)
        counts = Counter(
            workload.spec.service
            for workload in workloads
            if workload.status.ready and not workload.metadata.deletion_timestamp
        )
        services = self.history.objects(LatticeService)
        return (
            self._all_ready()
            and not any(obj.metadata.deletion_timestamp for obj in (*workloads, *services))
            and all(counts[service.metadata.name] == service.spec.desired_replicas() for service in services)
            and all(
                workload.status.ready
                for workload in workloads
                if workload.spec.group is None and workload.spec.desired_state == "Running"
            )
        )

    def report(self, nemesis: Nemesis) -> int:
        evidence = Evidence(
            self.history, self.crowd, list(self.fleet.agents.values()), nemesis.done, time.monotonic()
        )
        violations, records = judge(evidence)
        violations += [Violation("I-00", words, evidence.ended) for words in nemesis.surprises]
        self._print_faults(nemesis)
        self._print_counts(evidence, len(records))
        measured = figures(evidence)
        print("\n| recovery | aim | times | least | median | most | |\n|---|---|---|---|---|---|---|")
        print("\n".join(figure.row for figure in measured))
        print()
        print("\n".join(left_out(evidence, self.seconds, self.only, measured)))
        print(f"\n{len(violations)} violations")
        for violation in violations[:40]:
            print(
                f"{violation.invariant} at {violation.at - self.began:.2f} s,"
                f" revision {violation.revision}: {violation.message}"
            )
            print("\n".join(stretch(violation, records, nemesis.done, self.began)))
        return 1 if violations else 0

    def _print_faults(self, nemesis: Nemesis) -> None:
        print("\n| fault | to whom | times |\n|---|---|---|")
        for (name, target), count in sorted(
            Counter((fault.strike.kind.name, fault.strike.kind.target) for fault in nemesis.done).items()
        ):
            print(f"| {name} | {target} | {count} |")
        print(f"| all | | {len(nemesis.done)} |")
        if nemesis.skipped:
            print(f"\nnot done, since nobody it could befall was free: {len(nemesis.skipped)}")

    def _print_counts(self, evidence: Evidence, revisions: int) -> None:
        outcomes = Counter(operation.outcome for operation in self.crowd.told)
        starts = 0
        for agent in evidence.agents:
            lines = agent.notes.read_bytes().splitlines() if agent.notes.exists() else []
            starts += sum(line.startswith(b'{"at"') and b'"start"' in line for line in lines)
        print(
            f"\n{revisions} revisions, {len(self.history.terms)} terms;"
            f" operations of people: {outcomes['ok']} done, {outcomes['refused']} refused,"
            f" {outcomes['unknown']} without an answer; {starts} starts on {len(evidence.agents)} machines"
        )

    def end(self) -> None:
        self.crowd.end()
        self.fleet.end()
        for follower in self.followers:
            follower.stop()


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag, kind in (
        ("--run", int),
        ("--seed", int),
        ("--seconds", float),
        ("--agents", int),
        ("--folder", Path),
    ):
        parser.add_argument(flag, type=kind, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    trial = Trial(options.run, options.seed, options.seconds, options.agents, options.folder, options.only)
    try:
        trial.begin()
        nemesis = trial.disturb()
        trial.calm_down()
        return trial.report(nemesis)
    finally:
        trial.end()
        trial.crowd.write_down(options.folder / "told.jsonl")


if __name__ == "__main__":
    sys.exit(main())
