"""The exceptions that the command line turns into one line.

A `PrixError` says what was found, what was expected and what to do; the command prints its text and
exits with code 2. Our own invariants use `assert` instead.
"""


class PrixError(Exception):
    """An error that the user can fix: a wrong argument, a bad file, a full disk.

    Example:
        >>> try:
        ...     prixlm.KB("nowhere")
        ... except prixlm.PrixError as error:
        ...     print(error)
        nowhere is not a KB folder...
    """


class Stopped(Exception):
    """The user stopped a run and its state is saved. The command exits with 128 + signal."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal
