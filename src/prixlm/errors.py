"""The exceptions that the command line turns into one line.

A `PrixError` says what was found, what was expected and what to do; the command prints its text and
exits with its code, mostly 2. Our own invariants use `assert` instead.
"""

from prixlm.untrusted import one_line

EXTRAS = {
    "model": (
        "accelerate",
        "anyascii",
        "faiss",
        "jinja2",
        "matplotlib",
        "rapidfuzz",
        "safetensors",
        "sklearn",
        "skops",
        "sparse_dot_topn",
        "stopwordsiso",
        "tokenizers",
        "tomli_w",
        "torch",
        "transformers",
        "wordfreq",
    ),
    "serve": (
        "anyascii",
        "fastapi",
        "jinja2",
        "mcp",
        "python_multipart",
        "rapidfuzz",
        "tantivy",
        "uvicorn",
    ),
    "lora": ("peft",),
    "baselines": ("pykeen",),
    "ray": ("ray",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
}
"""Packages of the optional dependencies, by the name of the extra in pyproject.toml."""


class PrixError(Exception):
    """An error that the user can fix: a wrong argument, a bad file, a full disk.

    Example:
        >>> try:
        ...     prixlm.KB("nowhere")
        ... except prixlm.PrixError as error:
        ...     print(error)
        nowhere is not a KB folder...
    """

    code = 2
    """The exit code of a command that ends with it."""

    def __init__(self, message: object = "") -> None:
        """Keep the message on one line; names and paths in it are untrusted, so it is printable."""
        super().__init__(one_line(str(message)))


class ShardsFailed(PrixError):
    """Parts of a job failed every time they were tried; all others are finished and kept."""

    code = 1


class Stopped(Exception):
    """The user stopped a run and its state is saved. The command exits with 128 + signal."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return which extra to install; None if the missing package belongs to no extra."""
    package = (error.name or "").split(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return (
                f"this needs the {extra} extra: pip install 'prixlm[{extra}]', or in a checkout "
                f"pip install -c constraints.txt '.[{extra}]' ({package} is not installed)."
            )
    return None
