"""Knowledge probing (Sec. 3.5): a prompt with a blank, and what the model puts there.

    prompts = read_bmlama("en.tsv")
    result = probe(model, prompts, "en")

The prompt is read as `<s> prompt </s>`, in both directions, and the head is read at the mask itself
(no shift). Two protocols:

- the paper's: answers that are one piece of the vocabulary only; the best-scoring word at the
  mask is the answer, where a word is a piece that starts a word and is neither punctuation nor a
  stop word (`stopwordsiso`);
- candidate ranking (BMLAMA's own): every prompt brings its candidates; one of n pieces is scored
  with n masks, as the mean log-probability of its pieces.

A model that has never seen a sentence (`compact`) knows names and facts, not prompts: its figures
say how much of that is left when it is asked in words, and nothing about the paper's.

Dimension letters: B prompts in a pass, L its longest, V vocabulary.
"""

import csv
import json
import logging
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prixlm.errors import PrixError
from prixlm.lm.encoding import Batch
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names
from prixlm.training.sampler import cut_batches
from prixlm.types import Array

logger = logging.getLogger(__name__)
BLANK = "<mask>"
_BUDGET = 1 << 13
"""Padded tokens in one pass,"""
_LOGITS = 1 << 26
"""and scores: a mask has one for every piece of the vocabulary."""
_COLUMNS = ["Prompt", "Ans", "Candidate Ans", "Subject"]
_TEMPLATE = ("relation", "template")


@dataclass(frozen=True)
class Prompt:
    """A sentence with one blank, its answer, and what else it might be."""

    text: str
    answer: str
    candidates: tuple[str, ...]
    relation: str = ""


@dataclass(frozen=True)
class Prompts:
    """The prompts of one language, and what was left out."""

    prompts: list[Prompt]
    problems: dict[str, int] = field(default_factory=dict)


def read_bmlama(path: Path | str) -> Prompts:
    """BMLAMA's TSV: `Prompt, Ans, Candidate Ans, Subject`; candidates are joined by a comma."""
    path = Path(path)
    problems: dict[str, int] = {}
    found = []
    for row in _rows(path):
        candidates = tuple(filter(None, map(str.strip, (row["Candidate Ans"] or "").split(", "))))
        prompt = Prompt((row["Prompt"] or "").strip(), (row["Ans"] or "").strip(), candidates)
        why = _what_is_wrong(prompt)
        if why:
            _count(problems, why)
        else:
            found.append(prompt)
    return _checked(found, problems, path)


def _rows(path: Path) -> Iterator[dict[str, str | None]]:
    try:
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
    """mLAMA's own layout: `LANG/templates.jsonl` and `LANG/P*.jsonl`.

    The candidates of a relation are the answers that it has in this language.
    """
    own = Path(folder) / lang
    problems: dict[str, int] = {}
    rows = _lines(own / "templates.jsonl", problems)
    good = [row for row in rows if all(isinstance(row.get(x), str) for x in _TEMPLATE)]
    _count(problems, "a template without a relation or a text", len(rows) - len(good))
    templates = {row["relation"]: row["template"] for row in good}
    found = []
    for path in sorted(set(own.glob("*.jsonl")) - {own / "templates.jsonl"}):
        template = templates.get(path.stem)
        rows = _lines(path, problems)
        named = [row for row in rows if row.get("obj_label") and row.get("sub_label")]
        _count(problems, "a row without a subject or an object", len(rows) - len(named))
        candidates = tuple(dict.fromkeys(str(row["obj_label"]) for row in named))
        for row in named:
            text = str(template or "").replace("[X]", str(row["sub_label"]))
            prompt = Prompt(
                text.replace("[Y]", BLANK), str(row["obj_label"]), candidates, path.stem
            )
            why = _what_is_wrong(prompt) if template else "a relation without a template"
            if why:
                _count(problems, why)
            else:
                found.append(prompt)
    return _checked(found, problems, own)


def _count(problems: dict[str, int], why: str, number: int = 1) -> None:
    if number:
        problems[why] = problems.get(why, 0) + number


def _lines(path: Path, problems: dict[str, int]) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise PrixError(f"{path} cannot be read as JSON lines: {error}.") from None
    found = [row for row in rows if isinstance(row, dict)]
    _count(problems, "a line that is no JSON object", len(rows) - len(found))
    return found


def _what_is_wrong(prompt: Prompt) -> str:
    blanks = prompt.text.count(BLANK)
    if blanks != 1:
        return "no blank" if not blanks else "more than one blank"
    if not prompt.answer:
        return "no answer"
    return ""


def _checked(found: list[Prompt], problems: dict[str, int], path: Path) -> Prompts:
    for why, number in problems.items():
        logger.warning("%s: %d prompts left out: %s", path, number, why)
    if not found:
        raise PrixError(f"{path} has no prompt with one blank ({BLANK}) and an answer.")
    return Prompts(found, problems)


@dataclass(frozen=True)
class Probed:
    """What a model answers, prompt by prompt."""

    single: dict[int, bool]  # the paper's protocol, by the number of the prompt: right or not
    best: dict[int, str]  # and the best word
    ranked: dict[int, bool]  # candidate ranking
    problems: dict[str, int]  # what could not be asked, by reason
    relations: dict[str, tuple[float, int]]  # candidate ranking by relation, where it is known
    num_words: int  # words that the best one was found among


def probe(model: PrixLM, prompts: Prompts, lang: str) -> Probed:
    """Both protocols on the prompts of a language."""
    probing = _Probing(model, lang)
    probing.check(prompts.prompts)
    problems = dict(prompts.problems)
    pieces = probing.encode([prompt.answer for prompt in prompts.prompts])
    _count(problems, "an answer of no piece at all", sum(not row for row in pieces))
    words = probing.words()
    known = _Candidates(probing, prompts.prompts, problems)
    fits = probing.fit(prompts.prompts, known)
    _count(problems, f"longer than the model takes ({model.max_length})", int((~fits).sum()))
    rows = [place for place, row in enumerate(pieces) if len(row) == 1 and fits[place]]
    stops = sum(not words[pieces[row][0]] for row in rows)
    _count(problems, "an answer that is a stop word or none (never right as best word)", stops)
    best = probing.best_words([prompts.prompts[row].text for row in rows], words)
    single = {row: bool(best[i] == pieces[row][0]) for i, row in enumerate(rows)}
    ranked = probing.rank_candidates(prompts.prompts, known, fits)
    by_relation: dict[str, list[bool]] = {}
    for row, hit in ranked.items():
        if prompts.prompts[row].relation:
            by_relation.setdefault(prompts.prompts[row].relation, []).append(hit)
    return Probed(
        single,
        {row: probing.word(best[i]) for i, row in enumerate(rows)},
        ranked,
        problems,
        {name: (share(part), len(part)) for name, part in sorted(by_relation.items())},
        int(words.sum()),
    )


def share(hits: Iterable[bool]) -> float:
    """The share of right ones; NaN where nothing was asked."""
    found = list(hits)
    return float(np.mean(found)) if found else float("nan")


class _Probing:
    """One model in one language."""

    def __init__(self, model: PrixLM, lang: str) -> None:
        self.model, self.lang = model.eval(), lang
        self.tokenizer = model.encoder.tokenizer
        masks = [self.tokenizer.token_to_id(token) for token in ("<mask>", "[MASK]")]
        found = [mask for mask in masks if mask is not None]
        if not found:
            raise PrixError("the model's tokenizer has no mask: it cannot be probed.")
        self.mask = found[0]
        base = model.encoder.base
        self.start, self.end, self.padding = (
            model.encoder.id(token) for token in (base.start, base.separator, base.padding)
        )

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse a vocabulary that was trimmed without what the prompts need."""
        before = self.model.untrimmed
        if before is None:
            return
        parts = (part for p in prompts for part in (*p.text.split(BLANK), p.answer, *p.candidates))
        texts = list(dict.fromkeys(parts))
        now, then = encode_names(self.tokenizer, texts), encode_names(before, texts)
        for text, own, old in zip(texts, now, then, strict=True):
            spelled = [self.tokenizer.id_to_token(i) for i in own]
            if spelled != [before.id_to_token(i) for i in old]:
                raise PrixError(
                    f"the model's vocabulary was trimmed without the pieces of {text!r}: it would "
                    "read other pieces than its base. Pretrain with `--trim --keep FILE`, where "
                    "the file has the prompts and answers, or without --trim."
                )

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Pieces of texts where they stand: after a space (XLM-R), or at a word's start."""
        return encode_names(self.tokenizer, texts)

    def word(self, piece: int) -> str:
        return (self.tokenizer.id_to_token(int(piece)) or "").removeprefix("▁")

    @torch.inference_mode()
    def best_words(self, texts: Sequence[str], words: Array) -> Array:
        """The best word at the mask of each text."""
        allowed = torch.from_numpy(words)
        inputs = [self._fill(text, 1) for text in texts]
        best = np.empty(len(inputs), np.int64)
        for rows, scores in self._scores(inputs):
            scores[:, ~allowed] = float("-inf")
            best[rows] = scores.argmax(dim=1).numpy()
        return best

    def rank_candidates(
        self, prompts: Sequence[Prompt], known: "_Candidates", fits: Array
    ) -> dict[int, bool]:
        """Whether the answer is the best of a prompt's candidates, by the prompt's number."""
        asked = [place for place in range(len(prompts)) if known.is_asked[place] and fits[place]]
        # A prompt with n masks is read once for all its candidates of n pieces.
        reads = [(place, size) for place in asked for size in known.sizes(place)]
        inputs = [self._fill(prompts[place].text, size) for place, size in reads]
        best = np.full((len(prompts), 2), -np.inf)  # of the others, and of the answer
        for rows, scores in self._scores(inputs):
            table = scores.log_softmax(dim=1).numpy()
            start = 0
            for row in rows.tolist():
                place, size = reads[row]
                pieces, is_answer = known.of_size(place, size)
                found = table[start + np.arange(size), pieces].mean(axis=1)
                for kind in (0, 1):
                    part = found[is_answer == kind]
                    best[place, kind] = max(best[place, kind], part.max(initial=-np.inf))
                start += size
        return {place: bool(best[place, 1] > best[place, 0]) for place in asked}

    def fit(self, prompts: Sequence[Prompt], known: "_Candidates") -> Array:
        """Whether a prompt has room for its longest candidate: (prompts,)."""
        longest = [max([1, *known.sizes(place)]) for place in range(len(prompts))]
        lengths = [
            len(self._fill(prompt.text, masks))
            for prompt, masks in zip(prompts, longest, strict=True)
        ]
        return np.array(lengths, np.int64) <= self.model.max_length

    def _fill(self, text: str, masks: int) -> list[int]:
        start, rest = text.split(BLANK)
        before, after = self.encode([start.rstrip(), rest])  # a mask takes the space before it
        return [self.start, *before, *[self.mask] * masks, *after, self.end]

    @torch.inference_mode()
    def _scores(self, inputs: Sequence[list[int]]) -> Iterator[tuple[Array, torch.Tensor]]:
        """The logits at all masks of some inputs at a time: (rows, (masks, V)), rows in order."""
        lengths = np.array([len(row) for row in inputs], np.int64)
        for rows in self._passes(inputs, lengths):
            length = lengths[rows]
            ids = np.full((len(rows), int(length.max())), self.padding, np.int64)
            for place, row in enumerate(rows):
                ids[place, : lengths[row]] = inputs[row]
            row, column = np.nonzero(ids == self.mask)
            batch = Batch(ids, length, length, row, column, column)
            states = self.model.target_states(batch, both_ways=True)
            yield rows, self.model.logits(states).cpu()

    def _passes(self, inputs: Sequence[list[int]], lengths: Array) -> Iterator[Array]:
        """Rows of about equal length, with so few masks that their scores can be held."""
        masks = np.array([row.count(self.mask) for row in inputs], np.int64)
        most = max(1, _LOGITS // len(self.model.decoder()[1]))
        for rows in cut_batches(lengths, _BUDGET):
            rows = np.sort(rows)
            place = (np.cumsum(masks[rows]) - 1) // most
            yield from np.split(rows, np.flatnonzero(np.diff(place)) + 1)

    def words(self) -> Array:
        """Which pieces may be an answer: starts of words, no punctuation, no stop words."""
        from stopwordsiso import stopwords

        stops = {word.casefold() for word in stopwords(self.lang)}
        if not stops:
            logger.warning("no stop words are known for %s: none are left out", self.lang)
        special = set(self.tokenizer.get_added_tokens_decoder())
        size = len(self.model.decoder()[1])
        allowed = np.zeros(size, bool)
        marks_start = any(piece.startswith("▁") for piece in self.tokenizer.get_vocab())
        for piece, place in self.tokenizer.get_vocab().items():
            starts = piece.startswith("▁") if marks_start else not piece.startswith("##")
            word = piece.removeprefix("▁")
            is_word = any(unicodedata.category(letter)[0] in "LN" for letter in word)
            if starts and is_word and place not in special and word.casefold() not in stops:
                allowed[place] = True
        return allowed


class _Candidates:
    """The candidates of prompts, in pieces; a list that many prompts share is encoded once."""

    def __init__(
        self, probing: _Probing, prompts: Sequence[Prompt], problems: dict[str, int]
    ) -> None:
        self.prompts = prompts
        texts = list(dict.fromkeys(t for p in prompts for t in (p.answer, *p.candidates)))
        self.pieces = dict(zip(texts, probing.encode(texts), strict=True))
        nothing = sum(not row for row in self.pieces.values())
        _count(problems, "a candidate of no piece at all", nothing)
        self._lists: dict[tuple[str, ...], dict[int, tuple[list[str], Array]]] = {}
        counts = [self._number(prompt) for prompt in prompts]
        self.is_asked = [number > 1 for number in counts]
        _count(problems, "no second candidate (not ranked)", sum(number == 1 for number in counts))

    def _number(self, prompt: Prompt) -> int:
        if not self.pieces[prompt.answer]:
            return 0
        own = self._of(prompt)
        number = sum(len(texts) for texts, _ in own.values())
        return number + (prompt.answer not in prompt.candidates)

    def _of(self, prompt: Prompt) -> dict[int, tuple[list[str], Array]]:
        """A prompt's candidates by their number of pieces: texts, and pieces (C, n)."""
        if prompt.candidates not in self._lists:
            groups: dict[int, list[str]] = {}
            for text in dict.fromkeys(prompt.candidates):
                if self.pieces[text]:
                    groups.setdefault(len(self.pieces[text]), []).append(text)
            self._lists[prompt.candidates] = {
                size: (texts, np.array([self.pieces[text] for text in texts]))
                for size, texts in groups.items()
            }
        return self._lists[prompt.candidates]

    def sizes(self, place: int) -> list[int]:
        prompt = self.prompts[place]
        return sorted({*self._of(prompt), len(self.pieces[prompt.answer])})

    def of_size(self, place: int, size: int) -> tuple[Array, Array]:
        """Candidates of so many pieces, (C, n), and which is the answer."""
        prompt = self.prompts[place]
        texts, pieces = self._of(prompt).get(size, ([], np.zeros((0, size), np.int64)))
        is_answer = np.array([text == prompt.answer for text in texts], bool)
        if len(self.pieces[prompt.answer]) == size and not is_answer.any():
            pieces = np.concatenate([pieces, [self.pieces[prompt.answer]]])
            is_answer = np.append(is_answer, True)
        return pieces, is_answer
