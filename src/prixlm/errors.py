"""The one exception for anything the user can fix.

The command line prints its text as a single line and exits with code 2, so the text says what was
found, what was expected and what to do. Our own invariants use `assert` instead.
"""


class PrixError(Exception):
    """Something the user can fix: a wrong argument, a bad file, a full disk."""


class Stopped(Exception):
    """The user stopped a run, and what it had is saved. The command exits with 128 + signal."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal
