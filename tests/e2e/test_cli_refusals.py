"""Bad input through the command line: refused with the file, the line and the reason, and nothing is written."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from build.servers import Server
from build.wire import Wire

pytestmark = [pytest.mark.xdist_group("refusals"), pytest.mark.timeout(60)]

POOL = """\
apiVersion: lattice.dev/v1alpha1
kind: LatticePool
metadata:
  name: us-east
spec:
  provider: {type: aws, region: us-east-1}
  capacity:
    maxNodes: 100
"""
CONFIGMAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
"""
ALIAS_BOMB = (
    CONFIGMAP
    + "  a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"  {c}: &{c} [*{b}, *{b}, *{b}]\n" for b, c in zip("abcdefgh", "bcdefghi", strict=True))
)
NESTING = CONFIGMAP + "  a: " + "[" * 100_000 + "]" * 100_000 + "\n"


@dataclass(frozen=True)
class Case:
    text: str
    words: tuple[str, ...]  # FILE stands for the file's path
    code: int = 1


CASES = {
    "an unknown field": Case(
        POOL + "    colour: red\n", ("FILE:9: spec.capacity.colour", "field not declared in schema")
    ),
    "a value of the wrong type": Case(
        POOL + "    maxCores: many\n", ("FILE:9: spec.capacity.maxCores", '"many"')
    ),
    "several mistakes are all told": Case(
        POOL.replace("us-east\n", "US_East\n").replace("100", "-5") + "    maxCores: many\n    colour: red\n",
        (
            "FILE:4: metadata.name",
            '"US_East"',
            "FILE:8: spec.capacity.maxNodes",
            "-5",
            "FILE:9: spec.capacity.maxCores",
            "FILE:10: spec.capacity.colour",
        ),
    ),
    "an alias bomb": Case(ALIAS_BOMB, ("FILE:6: the anchor &a is not supported",)),
    "an alias alone": Case(CONFIGMAP + "  a: *b\n", ("FILE:6: the alias *b is not supported",)),
    "a key given twice": Case(
        POOL + "    maxNodes: 7\n", ('FILE:9: the key "maxNodes" appears twice, first on line 8',)
    ),
    "NaN": Case(POOL.replace("100", ".nan"), ("FILE:8: .nan is not a finite number",)),
    "infinity": Case(POOL.replace("100", ".inf"), ("FILE:8: .inf is not a finite number",)),
    "a number beyond all bounds": Case(
        POOL.replace("100", "1e999"), ("FILE:8: the number 1e999 is out of range",)
    ),
    "a hundred thousand levels": Case(NESTING, ("FILE:6: is nested deeper than 32 levels",)),
    "more than a megabyte": Case(CONFIGMAP + f"  a: {'x' * (1 << 20)}\n", ("FILE:6: is larger than 1 MiB",)),
    "a name in capitals": Case(
        POOL.replace("name: us-east", "name: US_East"), ("FILE:4: metadata.name", '"US_East"')
    ),
    "a name that leaves its place": Case(
        POOL.replace("name: us-east", "name: ../us-east"), ('FILE:4: "../us-east" is not a valid name',)
    ),
    "no name": Case(
        POOL.replace("  name: us-east\n", "  labels: {a: b}\n"), ("FILE:3: metadata.name is missing",)
    ),
    "a version that is not there": Case(
        POOL.replace("v1alpha1", "v9"), ("FILE:2: there is no LatticePool in lattice.dev/v9", "v1alpha1")
    ),
    "a kind that is not there": Case(
        POOL.replace("LatticePool", "LatticePond"),
        ("FILE:2: there is no kind 'LatticePond'", "did you mean LatticePool?"),
    ),
    "a namespace that is not there": Case(
        CONFIGMAP.replace("name: settings", "name: settings\n  namespace: nowhere"),
        ("FILE:1:", 'namespaces "nowhere" not found', "kind: Namespace, metadata: {name: nowhere}"),
    ),
    "not YAML": Case(POOL + "  : [\n", ("FILE:9: is not YAML",)),
    "not a manifest": Case("- just\n- a list\n", ("FILE:1: a manifest is a mapping, got a list",)),
    "nothing at all": Case("# empty\n", ("FILE: the file contains no manifest",)),
    "a mistake in the second of two": Case(
        CONFIGMAP + "  a: b\n---\n" + POOL + "    maxCores: {\n", ("FILE:16: is not YAML",)
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_bad_manifests_are_refused_at_their_line(case: Case, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(case.text)
    before = Wire(server.kubeconfig).revision
    done = server.lattice("apply", "-f", str(file))
    assert done.returncode == case.code, done.stderr[:2000]
    for words in case.words:
        assert words.replace("FILE", str(file)) in done.stderr, done.stderr[:2000]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert Wire(server.kubeconfig).revision == before


WHO = {
    "a token that nobody knows": ("forged", 4, ("Unauthorized", "fix:")),
    "a viewer who deletes": ("viewer", 4, ("vera", "delete", "latticepools")),
    "somebody without any rights": ("nobody", 4, ("bob", "lattice:admins")),
}


@pytest.fixture(scope="module")
def people(server: Server) -> dict[str, Path]:
    token = server.mint("toni", "lattice:admins", token=True)
    forged = token.with_name("forged.kubeconfig")
    forged.write_text(re.sub(r"token: \S+", "token: lat-0123456789ab.forged", token.read_text()))
    return {
        "viewer": server.mint("vera", "lattice:viewers"),
        "nobody": server.mint("bob", "guests"),
        "forged": forged,
    }


@pytest.mark.parametrize(
    ("who", "code", "words"), [pytest.param(*case, id=name) for name, case in WHO.items()]
)
def test_unauthorised_delete_is_refused_with_the_reason(
    who: str, code: int, words: tuple[str, ...], server: Server, people: dict[str, Path], tmp_path: Path
) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text(POOL.replace("name: us-east", "name: guarded"))
    assert server.lattice("apply", "-f", str(pool)).returncode == 0
    before = Wire(server.kubeconfig).revision
    done = server.lattice("delete", "pool", "guarded", "--kubeconfig", str(people[who]))
    assert done.returncode == code, done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert Wire(server.kubeconfig).revision == before
