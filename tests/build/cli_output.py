"""Output of commands in a form that does not depend on the width of columns."""


def squeezed_lines(text: str) -> list[str]:
    """The lines with each run of blanks reduced to one."""
    return [" ".join(line.split()) for line in text.splitlines()]
