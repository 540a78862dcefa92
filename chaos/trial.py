"""One run inside the hub's namespace: everything up, faults by the plan, all healed, at rest, judged."""

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
from lattice.clock import format_timestamp
from lattice.kinds.join_token import Grant, JoinToken, fingerprint, token_secret
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.checker import Violation

SECRETS = "/api/v1/namespaces/lattice-system/secrets"
PEOPLE = 3
PATIENCE = 120.0  # seconds until everything is up
CONVERGE = 100.0  # seconds in which everything wanted runs after the last fault
SETTLE = 90.0  # seconds in which nobody writes any more after that


@dataclass
class Trial:
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
        """Whether it came to hold."""
        ends = time.monotonic() + within
        while not holds():
            if time.monotonic() > ends:
                return False
            time.sleep(0.25)
        return True

    # --- up ---

    def begin(self) -> None:
        self.fleet.add_etcds()
        self.followers = [
            Follower(name, endpoint, self.history) for name, endpoint in self.fleet.endpoints.items()
        ]
        for follower in self.followers:
            follower.start()
        first, *others = SERVERS
        self._add_server(first)
        racked = self.count * 2 // 3
        client = self.crowd.client("chaos")
        for kind, name, body in supply(racked):
            self._need(partial(client.apply, kind, name, body), f"{kind}/{name}")
        made = self.fleet.machines_of(first)
        self._need(
            lambda: made.exists() and made.read_bytes().count(b'"Running"') == racked,
            "the machines of the cluster",
        )
        for server in others:
            self._add_server(server, made.read_bytes())
        cluster = f"{POOL}-001-{CLASS}-"
        self._add_agents(
            [
                *(f"{cluster}{number + 1}" for number in range(racked)),
                *(f"free-{number}" for number in range(self.count - racked)),
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

    def _need(self, holds: Callable[[], bool], what: str) -> None:
        if not self.until(holds, PATIENCE):
            raise RuntimeError(f"waited {PATIENCE:g} s in vain for: {what}")

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
            if any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
        ]
        return len(ready) == self.count

    # --- faults, and the peace after them ---

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
        """People ask for nothing more, and whatever they want can be had."""
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
        if self.until(self.is_at_rest, CONVERGE):
            self.say(
                f"everything wanted runs {time.monotonic() - healed:.1f} s after the last fault was healed"
            )
        self.until(lambda: not written_lately(self.history.records(), time.monotonic()), SETTLE)

    def is_at_rest(self) -> bool:
        """By the word of the store; the judge asks the machines too."""
        workloads = self.history.objects(LatticeWorkload)
        counts = Counter(
            each.spec.service
            for each in workloads
            if each.status.ready and not each.metadata.deletion_timestamp
        )
        services = self.history.objects(LatticeService)
        return (
            self._all_ready()
            and not any(each.metadata.deletion_timestamp for each in (*workloads, *services))
            and all(counts[each.metadata.name] == each.spec.wanted() for each in services)
            and all(
                each.status.ready
                for each in workloads
                if each.spec.group is None and each.spec.desired_state == "Running"
            )
        )

    # --- the verdict ---

    def report(self, nemesis: Nemesis) -> int:
        evidence = Evidence(
            self.history, self.crowd, list(self.fleet.agents.values()), nemesis.done, time.monotonic()
        )
        violations, records = judge(evidence)
        violations += [Violation("I-00", words, evidence.ended) for words in nemesis.surprises]
        self._tell_faults(nemesis)
        self._tell_counts(evidence, len(records))
        found = figures(evidence)
        print("\n| recovery | aim | times | least | median | most | |\n|---|---|---|---|---|---|---|")
        print("\n".join(figure.row for figure in found))
        print()
        print("\n".join(left_out(evidence, self.seconds, self.only, found)))
        print(f"\n{len(violations)} violations")
        for violation in violations[:40]:
            print(
                f"{violation.invariant} at {violation.at - self.began:.2f} s, revision {violation.revision}: {violation.message}"
            )
            print("\n".join(stretch(violation, records, nemesis.done, self.began)))
        return 1 if violations else 0

    def _tell_faults(self, nemesis: Nemesis) -> None:
        print("\n| fault | to whom | times |\n|---|---|---|")
        for (name, target), count in sorted(
            Counter((each.strike.kind.name, each.strike.kind.target) for each in nemesis.done).items()
        ):
            print(f"| {name} | {target} | {count} |")
        print(f"| all | | {len(nemesis.done)} |")
        if nemesis.skipped:
            print(f"\nnot done, since nobody it could befall was free: {len(nemesis.skipped)}")

    def _tell_counts(self, evidence: Evidence, revisions: int) -> None:
        told = Counter(each.outcome for each in self.crowd.told)
        starts = sum(
            line.startswith(b'{"at"') and b'"start"' in line
            for agent in evidence.agents
            for line in _lines(agent.notes)
        )
        print(
            f"\n{revisions} revisions, {len(self.history.terms)} terms; operations of people: {told['ok']} done, {told['refused']} refused,"
            f" {told['unknown']} without an answer; {starts} starts on {len(evidence.agents)} machines"
        )

    def end(self) -> None:
        self.crowd.end()
        self.fleet.end()
        for follower in self.followers:
            follower.stop()


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


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
    asked = parser.parse_args()
    trial = Trial(asked.run, asked.seed, asked.seconds, asked.agents, asked.folder, asked.only)
    try:
        trial.begin()
        nemesis = trial.disturb()
        trial.calm_down()
        return trial.report(nemesis)
    finally:
        trial.end()
        trial.crowd.write_down(asked.folder / "told.jsonl")


if __name__ == "__main__":
    sys.exit(main())
