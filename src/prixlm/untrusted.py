r"""Text from input, made safe for a terminal, a log, an error and a spreadsheet.

    printable("a\x1b[31mb")           # r"a\x1b[31mb": shown, not obeyed
    guard_formula("=HYPERLINK(...)")   # "'=HYPERLINK(...)": shown, not computed

Names, keys, paths and values come from files that others wrote. What a terminal or a spreadsheet
would obey is escaped where it leaves the program; the KB itself keeps a name as it is.
"""

import logging
import os
import re
import sys
import threading
import traceback
import warnings
from types import TracebackType

OBEYED = (
    "\x00-\x1f\x7f-\x9f"  # controls: colours, titles, cursor, bell; C1 has a CSI of its own
    "\u00ad\u061c\u180e"  # soft hyphen, mark of Arabic letters, Mongolian one: nothing is seen
    "\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # fillers of Korean and vowels of Khmer, as empty
    "\u2028\u2029"  # line and paragraph separators
    "\u202a-\u202e"  # embeddings and overrides of direction
    "\u2060-\u206f"  # joiner of words, invisible operators, isolates of direction
    "\ufff9-\ufffb\ufeff"  # annotations, byte order mark
    "\U000e0000-\U000e007f"  # tags: letters that an agent reads and nobody sees
    "\ud800-\udfff"  # surrogates: no text at all, and print() fails on them
)
"""Characters, as a class of a regular expression, that change what is shown or hide. Joiners and
the marks U+200E and U+200F are not among them: Persian, Hindi and Arabic names need those."""
# One after a letter chooses its form, as in Mongolian and, from U+E0100, in Japanese names. There
# are 256 of them, so that a row of them is a text that nobody sees.
_SELECTORS = "\u034f\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_HAN = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
ESCAPED = f"[{OBEYED}]|(?<![^\\s{_SELECTORS}])[{_SELECTORS}]|(?<![{_HAN}])[\U000e0100-\U000e01ef]"
"""What is escaped, as a regular expression: `OBEYED`, and selectors of form that choose none."""
_ESCAPED = re.compile(ESCAPED)
_LINE_END = re.compile(r"\s*[\r\n]\s*")
# What begins a formula, also in full width, or a quoted cell, which would swallow the next ones.
_BEGINS = '[=+\\-@\t\r"\uff1d\uff0b\uff0d\uff20]'
# Some spreadsheets drop space before it, a line end in a cell of CSV among it.
_FORMULA = re.compile(rf"'*\s*{_BEGINS}")
_GUARDED = re.compile(rf"'+\s*{_BEGINS}")


def printable(text: str, limit: int | None = None) -> str:
    """Return text on one line, at most `limit` characters of it; what would be obeyed is escaped.

    Line ends and tabs are escaped too: no text can forge another line.
    """
    return _ESCAPED.sub(_escape, text if limit is None else text[:limit])


def one_line(text: str) -> str:
    """Return a message on one line: line ends become spaces, all else is `printable`."""
    return printable(_LINE_END.sub(" ", text.strip()))


def guard_formula(text: str) -> str:
    """Return a cell that no spreadsheet computes: an apostrophe in front of what it would.

    An apostrophe is also added where one stands before a formula, so that nothing is lost.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def unguard_formula(text: str) -> str:
    """Return the text of a cell that `guard_formula` wrote."""
    return text[1:] if _GUARDED.match(text) else text


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


class SafeFormatter(logging.Formatter):
    """Writes a record so that no name in it can move the cursor or forge another record."""

    def __init__(self, prefix: str | None = None, limit: int | None = None) -> None:
        """Begin lines with `prefix`, else with time and level; cut messages at `limit`."""
        super().__init__()
        self._prefix, self._limit = prefix, limit

    def format(self, record: logging.LogRecord) -> str:
        """Return the record; the lines of a traceback are indented."""
        prefix = self._prefix or f"{self.formatTime(record)} {record.levelname} "
        lines = [prefix + printable(record.getMessage(), self._limit)]
        if record.exc_info:
            trace = self.formatException(record.exc_info).split("\n")
            lines += [f"    {printable(line, self._limit)}" for line in trace]
        return "\n".join(lines)


class _SafeRecord(logging.LogRecord):
    """A record whose message is printable for any handler: some libraries bring their own."""

    def getMessage(self) -> str:
        """Return the message; what would be obeyed is escaped."""
        return printable(super().getMessage())


def log_to_stderr() -> None:
    """Write warnings and failures to stderr, line by line, so that nothing in them is obeyed.

    Call it first in each process of ours: the command, and every worker. With PRIXLM_LOG=info,
    prixlm also says what it has chosen, such as its number of threads.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("prixlm: "))
    logging.setLogRecordFactory(_SafeRecord)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if os.environ.get("PRIXLM_LOG", "").lower() == "info":
        logging.getLogger("prixlm").setLevel(logging.INFO)
    warnings.showwarning = _log_warning
    sys.excepthook = print_traceback
    if threading.excepthook is threading.__excepthook__:  # not that of a test runner
        threading.excepthook = _print_failure_of_thread


def _log_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Log what a library warns of; for `warnings.showwarning`."""
    logging.getLogger("py.warnings").warning("%s: %s", category.__name__, one_line(str(message)))


def print_traceback(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    """Print a failure of our own as Python does, line by line; for `sys.excepthook`."""
    for line in "".join(traceback.format_exception(kind, error, trace)).split("\n"):
        print(printable(line), file=sys.stderr)


def _print_failure_of_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit:  # as Python does
        print_traceback(failed.exc_type, failed.exc_value, failed.exc_traceback)
