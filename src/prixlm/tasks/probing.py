"""Knowledge probing (Sec. 3.5): a prompt with a blank, and what the model puts there.

    prompts = read_bmlama("en.tsv", "en")
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prixlm.encoding import Batch
from prixlm.errors import PrixError
from prixlm.model import PrixLM
from prixlm.supply import cut_batches
from prixlm.tokens import encode_names

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
BLANK = "<mask>"
_BUDGET = 1 << 13
_COLUMNS = ["Prompt", "Ans", "Candidate Ans", "Subject"]


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
            problems[why] = problems.get(why, 0) + 1
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
    templates = {
        row.get("relation"): row.get("template") for row in _lines(own / "templates.jsonl")
    }
    found = []
    for path in sorted(own.glob("P*.jsonl")):
        template = templates.get(path.stem)
        rows = [row for row in _lines(path) if row.get("obj_label") and row.get("sub_label")]
        candidates = tuple(dict.fromkeys(row["obj_label"] for row in rows))
        for row in rows:
            text = (template or "").replace("[X]", row["sub_label"]).replace("[Y]", BLANK)
            prompt = Prompt(text, row["obj_label"], candidates, path.stem)
            why = _what_is_wrong(prompt) if template else "a relation without a template"
            if why:
                problems[why] = problems.get(why, 0) + 1
            else:
                found.append(prompt)
    return _checked(found, problems, own)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise PrixError(f"{path} cannot be read as JSON lines: {error}.") from None
    return [row for row in rows if isinstance(row, dict)]


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
    """Shares of right answers; NaN where nothing was asked."""

    single: float  # the paper's protocol: of the answers that are one piece
    num_single: int
    ranked: float  # candidate ranking: of all prompts that bring candidates
    num_ranked: int
    problems: dict[str, int]
    relations: dict[str, tuple[float, int]]  # candidate ranking by relation, where it is known
    answers: list[str]  # the best word for every prompt of the paper's protocol


def probe(model: PrixLM, prompts: Prompts, lang: str) -> Probed:
    """Both protocols on the prompts of a language."""
    probing = _Probing(model, lang)
    probing.check(prompts.prompts)
    problems = dict(prompts.problems)
    texts = [prompt.answer for prompt in prompts.prompts]
    pieces = [probing.pieces(text) for text in texts]
    nothing = sum(not row for row in pieces)
    if nothing:
        problems["an answer that is no piece at all"] = nothing
    rows = [place for place, row in enumerate(pieces) if len(row) == 1]
    words, best = probing.best_words([prompts.prompts[row] for row in rows])
    right = [word == pieces[row][0] for word, row in zip(words, rows, strict=True)]
    kept = [p for p, row in zip(prompts.prompts, pieces, strict=True) if row]
    asked, hits = probing.rank_candidates(kept)
    by_relation: dict[str, list[bool]] = {}
    for place, hit in zip(asked, hits, strict=True):
        if kept[place].relation:
            by_relation.setdefault(kept[place].relation, []).append(hit)
    return Probed(
        _share(right),
        len(right),
        _share(hits),
        len(hits),
        problems,
        {name: (_share(part), len(part)) for name, part in sorted(by_relation.items())},
        best,
    )


def _share(hits: Sequence[bool]) -> float:
    return float(np.mean(hits)) if hits else float("nan")


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
        texts = [part for p in prompts for part in (*p.text.split(BLANK), p.answer)]
        now, then = encode_names(self.tokenizer, texts), encode_names(before, texts)
        for text, own, old in zip(texts, now, then, strict=True):
            spelled = [self.tokenizer.id_to_token(i) for i in own]
            if spelled != [before.id_to_token(i) for i in old]:
                raise PrixError(
                    f"the model's vocabulary was trimmed without the pieces of {text!r}: it would "
                    "read other pieces than its base. Pretrain with `--trim --keep FILE`, where "
                    "the file has the prompts and answers, or without --trim."
                )

    def pieces(self, text: str) -> list[int]:
        """An answer's pieces where it stands: after a space (XLM-R), or at a word's start."""
        return self._encode([text])[0]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return encode_names(self.tokenizer, texts)

    def best_words(self, prompts: Sequence[Prompt]) -> tuple[list[int], list[str]]:
        """The best word at each prompt's mask."""
        allowed = torch.from_numpy(self._words())
        inputs = [self._fill(prompt.text, 1) for prompt in prompts]
        best = np.empty(len(inputs), np.int64)
        for rows, scores in self._scores(inputs):
            table = scores.masked_fill(~allowed, float("-inf"))
            best[rows] = table.argmax(dim=1).numpy()
        names = [self.tokenizer.id_to_token(int(word)) or "" for word in best]
        return best.tolist(), [name.removeprefix("▁") for name in names]

    def rank_candidates(self, prompts: Sequence[Prompt]) -> tuple[list[int], list[bool]]:
        """Which prompts bring candidates, and whether the answer is the best of them."""
        asked, hits = [], []
        inputs: list[list[int]] = []
        owner: list[tuple[int, list[int], bool]] = []
        for place, prompt in enumerate(prompts):
            candidates = dict.fromkeys([prompt.answer, *prompt.candidates])
            pieces = dict(zip(candidates, self._encode(list(candidates)), strict=True))
            if len(candidates) > 1:
                asked.append(place)
                for text, row in pieces.items():
                    if row:
                        owner.append((len(asked) - 1, row, text == prompt.answer))
        # A prompt with n masks is read once for all its candidates of n pieces.
        reads: dict[tuple[int, int], int] = {}
        for number, row, _ in owner:
            key = (number, len(row))
            if key not in reads:
                reads[key] = len(inputs)
                inputs.append(self._fill(prompts[asked[number]].text, len(row)))
        wanted: list[list[int]] = [[] for _ in inputs]
        for index, (number, row, _) in enumerate(owner):
            wanted[reads[number, len(row)]].append(index)
        score = np.empty(len(owner))
        for rows, table in self._scores(inputs):
            start = 0
            for row in rows.tolist():
                size = sum(token == self.mask for token in inputs[row])
                part = table[start : start + size].log_softmax(dim=1)
                for index in wanted[row]:
                    targets = torch.tensor(owner[index][1])[:, None]
                    score[index] = float(part.gather(1, targets).mean())
                start += size
        best = np.full(len(asked), -np.inf)
        right = np.full(len(asked), -np.inf)
        for value, (number, _, is_right) in zip(score.tolist(), owner, strict=True):
            which = right if is_right else best
            which[number] = max(which[number], value)
        hits = (right > best).tolist()
        return asked, hits

    def _fill(self, text: str, masks: int) -> list[int]:
        start, rest = text.split(BLANK)
        before, after = self._encode([start.rstrip(), rest])  # a mask takes the space before it
        return [self.start, *before, *[self.mask] * masks, *after, self.end]

    @torch.inference_mode()
    def _scores(self, inputs: Sequence[list[int]]) -> Iterator[tuple[Array, torch.Tensor]]:
        """The logits at all masks of some inputs at a time: (rows, (masks, V)), rows in order."""
        lengths = np.array([len(row) for row in inputs], np.int64)
        most = self.model.max_length
        if lengths.max(initial=0) > most:
            raise PrixError(f"a prompt has {lengths.max()} tokens; the model takes {most}.")
        for rows in cut_batches(lengths, _BUDGET):
            rows = np.sort(rows)
            length = lengths[rows]
            ids = np.full((len(rows), int(length.max())), self.padding, np.int64)
            for place, row in enumerate(rows):
                ids[place, : lengths[row]] = inputs[row]
            row, column = np.nonzero(ids == self.mask)
            batch = Batch(ids, length, length, row, column, column)
            yield rows, self.model.logits(self.model.target_states(batch)).cpu()

    def _words(self) -> Array:
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
