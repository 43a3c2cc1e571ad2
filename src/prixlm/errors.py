"""The one exception for anything the user can fix.

The command line prints its text as a single line and exits with code 2, so the text says what was
found, what was expected and what to do. Our own invariants use `assert` instead.
"""


class PrixError(Exception):
    """Something the user can fix: a wrong argument, a bad file, a full disk."""
