"""`python -m lint.commits [RANGE]`: subjects of commits say where and what: `area: verb …`, at most 72 characters; src/ needs a body."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SINCE = (
    ROOT / ".ci" / "commits-since"
)  # the commit after which subjects are checked; older ones stay as they are
MAX_SUBJECT = 72
SUBJECT = re.compile(r"(?P<areas>[a-z0-9_./-]+(?:, [a-z0-9_./-]+)*): (?P<verb>[a-z][a-z-]*)(?P<rest>.*)")
NOT_VERBS = frozenset(
    "a an the of in on at to for with from by and or if as it its this that these those there who whoever whom what which one all each no"
    " nobody somebody everything every some any more less also now then".split()
)


class Commit(NamedTuple):
    id: str
    subject: str
    body: str
    files: tuple[str, ...]


def problems(commit: Commit) -> Iterator[str]:
    match = SUBJECT.fullmatch(commit.subject)
    if len(commit.subject) > MAX_SUBJECT:
        yield f"the subject has {len(commit.subject)} characters, at most {MAX_SUBJECT} fit a line"
    if match is None:
        yield "the subject must read `area: verb …` in lower case, where the area is a folder"
    elif unknown := [area for area in match["areas"].split(", ") if not is_area(area)]:
        yield f"{unknown[0]!r} is no folder or module of the project"
    elif match["verb"] in NOT_VERBS:
        yield f"the subject must begin with a verb, not with {match['verb']!r}"
    if not commit.body.strip() and any(name.startswith("src/") for name in commit.files):
        yield "a change of src/ needs a body that says why"


def is_area(name: str) -> bool:
    """Whether the area of a subject is a folder or module of the project, from its root, `src/lattice` or `docs`."""
    paths = [base / name for base in (ROOT, ROOT / "src", ROOT / "src" / "lattice", ROOT / "docs")]
    return any(path.exists() or path.with_suffix(".py").exists() for path in paths)


def has_whole_history() -> bool:
    """Whether this is a git checkout with all its commits."""
    command = ["git", "rev-parse", "--is-shallow-repository"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return process.returncode == 0 and process.stdout.strip() == "false"


def read_commits(commits: str) -> list[Commit]:
    """The commits of a git range, newest first; merges are left out."""
    log = ["git", "log", "--no-merges", "--name-only", "--format=%x1e%h%x1f%s%x1f%b%x1f", commits]
    text = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for entry in text.split("\x1e")[1:]:
        identifier, subject, body, files = entry.split("\x1f")
        found.append(Commit(identifier, subject, body, tuple(files.split())))
    return found


def main(arguments: list[str]) -> int:
    commits = arguments[0] if arguments else f"{SINCE.read_text().strip()}..HEAD"
    try:
        checked = read_commits(commits)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stdout.write(f"commit subjects are not checked: git cannot read {commits} here ({error})\n")
        # A source archive or a shallow clone lacks the default range. A whole clone and a range that the user names
        # must have it.
        return 2 if arguments or has_whole_history() else 0
    count = 0
    for commit in checked:
        for problem in problems(commit):
            sys.stdout.write(f"{commit.id} {commit.subject[:60]}: {problem}\n")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
