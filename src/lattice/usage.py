"""What is wrong with a command line as a whole; click finds what is wrong with one flag."""

from lattice.errors import Malformed


class Misused(Malformed):
    """Ends with the exit code of a wrong command line, before anybody is asked anything."""

    exit_code = 2
