"""Prompts with a blank, their answers and candidates, read from the files of BMLAMA and mLAMA.

    prompts = read_bmlama_folder("bmlama53")            # by language: en.tsv
    prompts = read_mlama_folder("mlama", ["en", "fi"])  # en/templates.jsonl, en/P36.jsonl

A prompt that cannot be asked is counted by its reason and left out.
"""

import csv
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.errors import PrixError
from prixlm.files import parse_json

logger = logging.getLogger(__name__)
BLANK = "<mask>"
_COLUMNS = ["Prompt", "Ans", "Candidate Ans", "Subject"]
_TEMPLATE = ("relation", "template")


@dataclass(frozen=True)
class Prompt:
    """A sentence with one blank, its answer, and its candidates."""

    text: str
    answer: str
    candidates: tuple[str, ...]
    relation: str = ""


@dataclass(frozen=True)
class Prompts:
    """The prompts of one language, and how many were left out, by reason."""

    prompts: list[Prompt]
    problems: dict[str, int] = field(default_factory=dict)


def read_bmlama(path: Path | str) -> Prompts:
    """Read BMLAMA's TSV: `Prompt, Ans, Candidate Ans, Subject`; candidates joined by a comma."""
    path = Path(path)
    problems: Counter[str] = Counter()
    prompts = []
    for row in _read_rows(path):
        candidates = tuple(filter(None, map(str.strip, (row["Candidate Ans"] or "").split(", "))))
        prompt = Prompt((row["Prompt"] or "").strip(), (row["Ans"] or "").strip(), candidates)
        why = _problem(prompt)
        if why:
            problems[why] += 1
        else:
            prompts.append(prompt)
    return _checked(prompts, problems, path)


def read_bmlama_files(paths: Sequence[Path]) -> dict[str, Prompts]:
    """Read several of BMLAMA's TSVs, named by their languages: `en.tsv`."""
    prompts: dict[str, Prompts] = {}
    for path in paths:
        if path.stem in prompts:
            raise PrixError(f"two files of {path.stem}: pass one for each language.")
        prompts[path.stem] = read_bmlama(path)
    return prompts


def read_bmlama_folder(folder: Path | str) -> dict[str, Prompts]:
    """Read a folder of BMLAMA's TSVs, named by their languages: `en.tsv`."""
    files = sorted(Path(folder).glob("*.tsv"))
    if not files:
        raise PrixError(f"{folder} has no .tsv file: expected one for each language, en.tsv.")
    return read_bmlama_files(files)


def _read_rows(path: Path) -> Iterator[dict[str, str | None]]:
    try:
        # No quoting: a quotation mark in a prompt is part of it.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if not set(_COLUMNS) <= set(reader.fieldnames or ()):
                raise PrixError(
                    f"{path} has the columns {', '.join(reader.fieldnames or ['none'])}; expected "
                    f"{', '.join(_COLUMNS)}."
                )
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PrixError(f"{path} cannot be read as TSV: {error}.") from None


def read_mlama(folder: Path | str, lang: str) -> Prompts:
    """Read mLAMA's own layout: `LANG/templates.jsonl` and `LANG/P*.jsonl`.

    The candidates of a relation are all answers that it has in this language.
    """
    own = Path(folder) / lang
    problems: Counter[str] = Counter()
    rows = _read_json_lines(own / "templates.jsonl", problems)
    good = [row for row in rows if all(isinstance(row.get(x), str) for x in _TEMPLATE)]
    count_problem(problems, "a template without a relation or a text", len(rows) - len(good))
    templates = {row["relation"]: row["template"] for row in good}
    prompts = []
    for path in sorted(set(own.glob("*.jsonl")) - {own / "templates.jsonl"}):
        template = templates.get(path.stem)
        rows = _read_json_lines(path, problems)
        named = [row for row in rows if row.get("obj_label") and row.get("sub_label")]
        count_problem(problems, "a row without a subject or an object", len(rows) - len(named))
        # Distinct and in the order of the file, so that the same list is shared by all prompts.
        candidates = tuple(dict.fromkeys(str(row["obj_label"]) for row in named))
        for row in named:
            text = str(template or "").replace("[X]", str(row["sub_label"])).replace("[Y]", BLANK)
            prompt = Prompt(text, str(row["obj_label"]), candidates, path.stem)
            why = _problem(prompt) if template else "a relation without a template"
            if why:
                problems[why] += 1
            else:
                prompts.append(prompt)
    return _checked(prompts, problems, own)


def read_mlama_folder(folder: Path | str, langs: Sequence[str] | None = None) -> dict[str, Prompts]:
    """Read mLAMA's prompts in some languages, or in all that the folder has."""
    codes = langs or sorted(path.parent.name for path in Path(folder).glob("*/templates.jsonl"))
    if not codes:
        raise PrixError(f"{folder} has no LANG/templates.jsonl: expected mLAMA's layout.")
    return {code: read_mlama(folder, code) for code in codes}


def sample_prompts(prompts: Prompts, most: int | None, seed: int = 0) -> Prompts:
    """Return a sample of the prompts, in their order; all of them without a number.

    Of files with the same number of rows, as BMLAMA's, the same rows are drawn.
    """
    if most is not None and most < 1:
        raise PrixError(f"--most {most}: expected 1 or more prompts of each language.")
    if most is None or most >= len(prompts.prompts):
        return prompts
    rows = np.sort(np.random.default_rng(seed).permutation(len(prompts.prompts))[:most])
    return replace(prompts, prompts=[prompts.prompts[row] for row in rows.tolist()])


def describe_prompts(part: Prompts) -> Any:
    """Return prompts as JSON values, to recognise a table that was made from them.

    All prompts of an mLAMA relation have the same hundreds of candidates, which are listed once.
    """
    if not any(prompt.relation for prompt in part.prompts):
        return [asdict(prompt) for prompt in part.prompts]
    texts = [(prompt.text, prompt.answer, prompt.relation) for prompt in part.prompts]
    return [texts, {prompt.relation: prompt.candidates for prompt in part.prompts}]


def _read_json_lines(path: Path, problems: Counter[str]) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
        values = [parse_json(line, "a line") for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise PrixError(f"{path} cannot be read as JSON lines: {error}.") from None
    rows = [row for row in values if isinstance(row, dict)]
    count_problem(problems, "a line that is not a JSON object", len(values) - len(rows))
    return rows


def count_problem(problems: Counter[str], why: str, number: int) -> None:
    """Add to a count; a reason without a case is not listed."""
    if number:
        problems[why] += number


def _problem(prompt: Prompt) -> str:
    """Return why a prompt cannot be asked; nothing if it can."""
    blanks = prompt.text.count(BLANK)
    if blanks != 1:
        return "no blank" if not blanks else "more than one blank"
    return "" if prompt.answer else "no answer"


def _checked(prompts: list[Prompt], problems: Counter[str], path: Path) -> Prompts:
    for why, number in problems.items():
        logger.warning("%s: %d prompts left out: %s", path, number, why)
    if not prompts:
        raise PrixError(f"{path} has no prompt with one blank ({BLANK}) and an answer.")
    return Prompts(prompts, dict(problems))
