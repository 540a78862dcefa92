"""Is this the name of a container image? By the grammar of references: none can be taken for a flag, a path or another transport."""

import re

LONGEST = 512
_WORD = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(rf"(?:{_HOST}/)?{_WORD}(?:/{_WORD})*(?::{_TAG})?(?:@{_DIGEST})?")


def image_problem(text: str) -> str:
    """Empty when nothing is wrong."""
    if len(text) <= LONGEST and _REFERENCE.fullmatch(text):
        return ""
    return f'must be the name of an image, such as nginx:1.27 or registry.example/team/web@sha256:…, got "{text[:80]}"'
