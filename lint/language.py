"""`python -m lint.language [FOLDER]`: lint names and docstrings, then print how the code reads in figures.

The lint fails on what no reader should meet: vague names, questions as docstrings, people-pronouns for components. The figures are a mirror:
goals come from measuring well-known schedulers and servers with the same rules.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lattice"
MAX_LINE = 110
LONG_DOCSTRING_WORDS = 6  # shorter ones need no noun of the domain

VAGUE_NAMES = frozenset(
    "each found known here there left held wanted kept made said told it this that those some others more less one other then what who"
    " why which how all every again seen asked given taken whole thing things rest before".split()
)
METAPHORS = frozenset(
    "office teller deed deeds aside adrift lesson lessons parties seat seats roster census told said turns grounds".split()
)
PEOPLE = frozenset("who whoever whom nobody somebody anybody everybody someone anyone everyone".split())
MIN_MESSAGE_WORDS = 3  # a string of fewer words is a key or a name, not a sentence
PRONOUNS = PEOPLE | frozenset(
    "it its they them their those these this that whatever whichever what which one ones other others another something anything nothing"
    " everything none each all such there here".split()
)
ALLOWED_NAMES = {  # a name that would be vague elsewhere, and why it is right there
    ("kinds/meta/jsonpath.py", "left"): "the left operand of a comparison",
    ("agent/host/runtime_protocol.py", "asked"): "a field of the agent's state file",
    ("agent/state_file.py", "wanted"): "a field of the agent's state file",
    ("engine/plugin.py", "what"): "a field of the JSON answers",
    ("cli/commands/why.py", "why"): "the name of the command",
    ("cli/output/plan_tables.py", "before"): "a plan compares the fleet before and after a change",
    ("cli/output/simulation_report.py", "before"): "the usage before and after the simulation",
    ("placement/plan/plan.py", "before"): "a plan compares the fleet before and after a change",
    ("placement/plan/whatif.py", "before"): "a plan compares the fleet before and after a change",
    ("placement/queries/plan_document.py", "before"): "a plan compares the fleet before and after a change",
    ("placement/status/supply_status.py", "before"): "a status before and after a reconcile",
    ("sim/invariants/checker.py", "before"): "the versions before and during a request",
}
TERMS = frozenset(
    """
    admission affinity agent agents agreement allocatable allocation allocations annotation annotations api argument arguments assignment
    assignments atomic backoff batch bind binding bindings bound budget budgets byte bytes cache caches candidate candidates capacity
    certificate certificates cgroup cgroups child class classes client clients clock cluster clusters column columns command commands commit
    commits compliance condition conditions conflict conflicts connection connections constraint constraints container containers controller
    controllers core cores cost costs counter cpu crash credential credentials deadline decision decisions default defaults demand demands
    digest digests disk document documents domain domains drain drained draining error errors etcd event events evict evicted eviction
    evictions evicts exception exit expiry failure failures fault faults feasible fence fenced field fields figure figures file files filter
    filters finalizer finalizers fleet folder function gang garbage gpu gpus group groups grpc handler header headers heartbeat heartbeats
    history host http identity image index infrastructure informer input instance instances invariant invariants json key keys kind kinds
    kubernetes label labels latency leader leadership lease leases ledger ledgers lifecycle limit limits line lines list lock log logs loop
    machine machines manifest manifests memory message messages metadata method metric metrics migration migrations module mount move moves
    name names namespace namespaces network node nodes object objects offer offers offset operation operator option options output overflow
    owner parameter parameters path paths payload percent plan plans plugin plugins podman policy policies pool pools port ports preempt
    preempted preemption price prices priority probe probes process processes profile program prometheus property protobuf protocol provider
    providers proxy query queue queues quota quote quotes ranking rate ratio reason reasons reconcile reconciles record records region
    regions registry rejection rejections replica replicas reply request requests requeue reservation reservations reserve reserved resource
    resources response retries retry revision revisions role rollout route routes row rows rule rules runtime runtimes scenario schedule
    scheduled scheduler scheduling schema score scores second seconds secret secrets seed seeds selector selectors server servers service
    services session sessions setting settings shape signal simulation size slot slots snapshot socket spec spread sqlite stale state states
    status store stores stream streams string subresource suffix supply surge table tables taint taints task tasks tenant term terms test
    tests thread threads time timeout timeouts timestamp timestamps tls token tokens tolerations topology trace transaction type types uid
    unit units unschedulable update updates usage user users utilisation validation value values verb verbs verdict verdicts version
    victim victims volume watch watches webhook webhooks weight window workload workloads world worker workers yaml zone zones
    """.split()
)


class Finding(NamedTuple):
    where: str
    problem: str


class Goal(NamedTuple):
    """One figure of the table: a value, and what it should be."""

    name: str
    value: float
    goal: str
    is_met: bool


@dataclass
class Figures:
    """Counts over all modules of a folder."""

    words: Counter[str] = field(default_factory=Counter)
    long_docstrings: int = 0
    docstrings_without_term: int = 0
    names: Counter[str] = field(default_factory=Counter)
    functions: int = 0
    called_once: int = 0
    code_lines: int = 0
    wide_lines: int = 0
    comment_lines: int = 0
    comprehensions: int = 0
    nested_comprehensions: int = 0
    classes: dict[tuple[str, str], set[Path]] = field(default_factory=lambda: defaultdict(set))

    def goals(self) -> list[Goal]:
        total = max(1, sum(self.words.values()))
        per_1000_words = 1000 / total
        pronouns = per_1000_words * sum(self.words[word] for word in PRONOUNS)
        people = per_1000_words * sum(self.words[word] for word in PEOPLE)
        terms = per_1000_words * sum(self.words[word] for word in TERMS)
        plain = 100 * self.docstrings_without_term / max(1, self.long_docstrings)
        vague = 100 * sum(self.names[name] for name in VAGUE_NAMES) / max(1, self.names.total())
        once = 100 * self.called_once / max(1, self.functions)
        comprehensions = 1000 * self.comprehensions / max(1, self.code_lines)
        wide = 100 * self.wide_lines / max(1, self.code_lines)
        comments = 100 * self.comment_lines / max(1, self.code_lines)
        twice = sum(len(paths) > 1 for paths in self.classes.values())
        return [
            Goal("pronouns per 1,000 words of docstrings and comments", pronouns, "<= 80", pronouns <= 80),
            Goal("who, whom, nobody, somebody per 1,000 words", people, "<= 0.5", people <= 0.5),
            Goal("domain and technical nouns per 1,000 words", terms, ">= 130", terms >= 130),
            Goal("docstrings of six words or more without such a noun, %", plain, "<= 15", plain <= 15),
            Goal("vague names, % of assigned names", vague, "<= 1.5", vague <= 1.5),
            Goal("private functions called once, %", once, "<= 15", once <= 15),
            Goal("comprehensions per 1,000 lines", comprehensions, "<= 40", comprehensions <= 40),
            Goal(
                "comprehensions with two loops or more",
                self.nested_comprehensions,
                "<= 100",
                self.nested_comprehensions <= 100,
            ),
            Goal(f"lines over {MAX_LINE} characters, %", wide, "<= 1", wide <= 1),
            Goal("lines with a comment, %", comments, ">= 4", comments >= 4),
            Goal("public class names used twice inside one package", twice, "0", twice == 0),
        ]


def modules(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.py")):
        if "_pb2" not in path.name:
            yield path, path.read_text()


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def assigned_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that the code chooses: variables, attributes, parameters, aliases, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """String constants of several words, which users may read; docstrings are left out."""
    is_docstring = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in is_docstring:
            continue
        if len(node.value.split()) >= MIN_MESSAGE_WORDS:
            yield node.lineno, node.value


def words_of(text: str) -> list[str]:
    """Lower-case words, without what is quoted as code."""
    return [word.lower() for word in re.findall(r"[A-Za-z][A-Za-z'-]*", re.sub(r"`[^`]*`", " ", text))]


def lint(path: Path, text: str, folder: Path) -> Iterator[Finding]:
    """What must not be in a module, whatever the figures say."""
    tree, name = ast.parse(text), str(path.relative_to(folder))
    for line, docstring in docstrings(tree):
        sentence = docstring.split("\n\n")[0].strip()
        if re.search(r"\?(\s|$)", re.sub(r"`[^`]*`", "", sentence)):
            yield Finding(f"{name}:{line}", f"a docstring states, it does not ask: {sentence[:60]!r}")
    for line, prose in (*docstrings(tree), *comments(text), *messages(tree)):
        for word in sorted(set(words_of(prose)) & PEOPLE):
            yield Finding(f"{name}:{line}", f"{word!r} for a component: name the component")
    for line, identifier in assigned_names(tree):
        if identifier in VAGUE_NAMES and (name, identifier) not in ALLOWED_NAMES:
            yield Finding(f"{name}:{line}", f"the name {identifier!r} says nothing: name the thing")
        words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", identifier).lower())
        for word in sorted(set(words) & METAPHORS):
            problem = f"{identifier}: the field has a word for {word!r}, see docs/glossary.md"
            yield Finding(f"{name}:{line}", problem)
    for word in sorted(set(path.stem.split("_")) & METAPHORS):
        yield Finding(name, f"the module name says {word!r}: name what the module holds")


def measure(folder: Path) -> Figures:
    figures = Figures()
    for path, text in modules(folder):
        tree = ast.parse(text)
        for _, prose in (*docstrings(tree), *comments(text)):
            words = words_of(prose)
            figures.words.update(words)
            if len(words) >= LONG_DOCSTRING_WORDS:
                figures.long_docstrings += 1
                figures.docstrings_without_term += not TERMS & set(words)
        figures.names.update(name for _, name in assigned_names(tree))
        count_lines(figures, text)
        count_code(figures, tree, Counter(re.findall(r"\b_[a-z]\w*\b", text)))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                figures.classes[path.relative_to(folder).parts[0], node.name].add(path)
    return figures


def count_lines(figures: Figures, text: str) -> None:
    lines = [line for line in text.splitlines() if line.strip()]
    figures.code_lines += len(lines)
    figures.wide_lines += sum(len(line) > MAX_LINE for line in lines)
    figures.comment_lines += len({line for line, _ in comments(text)})


def count_code(figures: Figures, tree: ast.Module, private_names: Counter[str]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            figures.functions += 1
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            figures.called_once += is_private and private_names[node.name] == 2  # its definition and one use
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            figures.comprehensions += 1
            figures.nested_comprehensions += len(node.generators) > 1


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]).resolve() if arguments else SOURCE
    if not any(modules(folder)):
        sys.stdout.write(f"{folder}: there is no Python module here; name a folder of modules\n")
        return 2
    goals = measure(folder).goals()
    for goal in goals:
        sys.stdout.write(
            f"{goal.value:8.1f}  {goal.goal:8} {'' if goal.is_met else 'missed':7} {goal.name}\n"
        )
    findings = [finding for path, text in modules(folder) for finding in lint(path, text, folder)]
    for finding in findings:
        sys.stdout.write(f"{finding.where}: {finding.problem}\n")
    if findings:
        sys.stdout.write(f"{len(findings)} findings; docs/contributing.md has the words to use\n")
    return 1 if findings or not all(goal.is_met for goal in goals) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
