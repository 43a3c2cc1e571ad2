"""A model asked what belongs into the blank of prompts (Sec. 3.5).

    probed = probe(model, read_bmlama("en.tsv"), "en")

The model reads `<s> prompt </s>` in both directions and predicts at the mask itself (no shift).
A decoder has no mask: it reads what is before the blank and continues it. There are two protocols:

- the paper's: only answers that are one piece of the vocabulary are asked for. The best-scoring
  word at the mask is the model's answer. A word is a piece that starts a word and is neither
  punctuation nor a stop word (`stopwordsiso`).
- candidate ranking (BMLAMA's own): every prompt has a list of candidates. A candidate of n pieces
  is scored with n masks, as the mean log-probability of its pieces. A decoder scores it as the
  log-probability of the candidate and of the rest of the sentence.

Dimension letters: B prompts in a pass, L its longest, V vocabulary, C candidates, n pieces.
"""

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prixlm.decoding.incremental import Stepper, score_continuations
from prixlm.errors import PrixError
from prixlm.evaluation.probing.prompts import BLANK, Prompt, Prompts, count_problem
from prixlm.lm.encoding import Batch
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names, word_space
from prixlm.lm.trim import check_reading
from prixlm.training.sampler import cut_batches
from prixlm.types import Array

logger = logging.getLogger(__name__)
_TOKENS = 1 << 13
"""Most padded tokens in one pass."""
_LOGITS = 1 << 26
"""Most scores in one pass: each mask has one for every piece of the vocabulary."""
_PROMPTS = 16
"""Prompts that a decoder reads at once."""


@dataclass(frozen=True)
class Probed:
    """The answers of a model in one language, by the number of the prompt."""

    single: dict[int, bool]  # the paper's protocol: whether the best word is right
    best: dict[int, str]  # the best word
    ranked: dict[int, bool]  # candidate ranking: whether the answer comes first
    problems: dict[str, int]  # what could not be asked, by reason
    relations: dict[str, list[bool]]  # candidate ranking by relation
    num_words: int  # words that the best one was chosen from

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Probed":
        """Read what `dataclasses.asdict` returned, also after JSON, whose keys are texts."""
        by_prompt = {
            name: {int(prompt): value for prompt, value in values[name].items()}
            for name in ("single", "best", "ranked")
        }
        return cls(**{**values, **by_prompt})


def probe(model: PrixLM, prompts: Prompts, lang: str, *, rank: bool = True) -> Probed:
    """Ask a model the prompts of a language by both protocols, or by the paper's alone.

    rank: also rank the candidates.
    """
    asked = prompts.prompts
    probing = _Continuing(model, lang) if model.kind.is_decoder else _Probing(model, lang)
    probing.check(asked)
    problems = Counter(prompts.problems)
    # The paper's protocol asks only for answers of one piece; both need the prompt to fit.
    answers = probing.encode([prompt.answer for prompt in asked])
    count_problem(problems, "an answer of no piece at all", sum(not pieces for pieces in answers))
    words = probing.words()
    candidates = _Candidates(probing, asked, problems)
    fits = probing.fits(asked, candidates)
    count_problem(problems, f"longer than the model takes ({model.max_length})", int((~fits).sum()))
    rows = [row for row, pieces in enumerate(answers) if len(pieces) == 1 and fits[row]]
    stops = sum(not words[answers[row][0]] for row in rows)
    count_problem(
        problems, "an answer that is a stop word or not a word (never the best word)", stops
    )
    best = probing.best_words([asked[row].text for row in rows], words)
    ranked = probing.rank_candidates(asked, candidates, fits) if rank else {}
    by_relation: dict[str, list[bool]] = {}
    for row, hit in ranked.items():
        if asked[row].relation:
            by_relation.setdefault(asked[row].relation, []).append(hit)
    return Probed(
        {row: bool(piece == answers[row][0]) for row, piece in zip(rows, best, strict=True)},
        {row: probing.word(piece) for row, piece in zip(rows, best, strict=True)},
        ranked,
        dict(problems),
        dict(sorted(by_relation.items())),
        int(words.sum()),
    )


class _Probing:
    """One model asked in one language."""

    def __init__(self, model: PrixLM, lang: str) -> None:
        self.model, self.lang = model.eval(), lang
        self.tokenizer = model.encoder.tokenizer
        self.mask = self._find_mask()
        if model.settings.reading != "script":
            raise PrixError(
                f"the model reads names {model.settings.reading}, and prompts are in their script: "
                "probe a model of `prixlm pretrain --reading script`."
            )
        self.start, self.end = model.encoder.start, model.encoder.id(model.encoder.base.end)
        self.padding = model.encoder.padding
        # An answer is a word in a sentence, which many tokenizers keep with the space before it.
        self.space = word_space(self.tokenizer)

    def _find_mask(self) -> int:
        masks = [self.tokenizer.token_to_id(token) for token in ("<mask>", "[MASK]", "<|mask|>")]
        known = [mask for mask in masks if mask is not None]
        if not known:
            raise PrixError("the model's tokenizer has no mask: it cannot be probed.")
        return int(known[0])

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse a vocabulary that was trimmed without the pieces that the prompts need."""
        if self.model.untrimmed is None:
            return
        # The texts as they are encoded: with a space, a word may have other pieces.
        answers = (self.space + text for p in prompts for text in (p.answer, *p.candidates))
        parts = [part for p in prompts for part in self.around(p.text)]
        # Each answer counts on its own, so none may be read differently.
        texts = list(dict.fromkeys([*parts, *answers]))
        what = f"texts of the {self.lang} prompts"
        check_reading(self.model, texts, what, most=0.0, as_names=False)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the pieces of answers as they are after a space."""
        return encode_names(self.tokenizer, texts, self.space)

    def around(self, text: str) -> list[str]:
        """Return what is before and after the blank of a prompt: the blank has the space before it.

        The two are encoded apart, because a tokenizer might join them with what is between.
        """
        start, rest = text.split(BLANK)
        return [start.rstrip(), rest]

    def word(self, piece: int) -> str:
        """Return a piece as text."""
        text = self.tokenizer.id_to_token(int(piece)) or ""
        if text.startswith("Ġ"):  # pieces of bytes are not text
            return str(self.tokenizer.decode([int(piece)])).strip()
        return text.removeprefix("▁")

    def words(self) -> Array:
        """Return (V,) which pieces may be an answer: starts of words that are not stop words."""
        from stopwordsiso import stopwords

        stops = {word.casefold() for word in stopwords(self.lang)}
        if not stops:
            logger.warning("no stop words are known for %s: none are left out", self.lang)
        special = set(self.tokenizer.get_added_tokens_decoder())
        vocabulary = self.tokenizer.get_vocab()
        # XLM-R marks pieces that start a word with ▁, Llama with Ġ; mBERT marks all others with ##.
        mark = next((m for m in ("▁", "Ġ") if any(p.startswith(m) for p in vocabulary)), "")
        allowed = np.zeros(len(self.model.decoder()[0]), bool)
        for piece, number in vocabulary.items():
            starts = piece.startswith(mark) if mark else not piece.startswith("##")
            word = self.word(number) if starts else ""
            is_word = any(unicodedata.category(letter)[0] in "LN" for letter in word)
            if starts and is_word and number not in special and word.casefold() not in stops:
                allowed[number] = True
        return allowed

    @torch.inference_mode()
    def best_words(self, texts: Sequence[str], words: Array) -> Array:
        """Return the best word at the mask of each text."""
        # Only whole words may win: pieces inside words and punctuation score higher at times.
        allowed = torch.from_numpy(words)
        inputs = [self.fill(text, 1) for text in texts]
        best = np.empty(len(inputs), np.int64)
        for rows, scores in self.mask_scores(inputs):
            scores[:, ~allowed] = float("-inf")
            best[rows] = scores.argmax(dim=1).numpy()
        return best

    def rank_candidates(
        self, prompts: Sequence[Prompt], candidates: "_Candidates", fits: Array
    ) -> dict[int, bool]:
        """Return whether the answer is the best of a prompt's candidates, by prompt."""
        asked = [row for row in range(len(prompts)) if candidates.is_asked[row] and fits[row]]
        # A prompt with n masks is read once for all its candidates of n pieces.
        reads = [(row, size) for row in asked for size in candidates.sizes(row)]
        inputs = [self.fill(prompts[row].text, size) for row, size in reads]
        best = np.full((len(prompts), 2), -np.inf)  # columns: the other candidates, the answer
        for indices, scores in self.mask_scores(inputs):
            log_probabilities = scores.log_softmax(dim=1).numpy()  # (masks, V)
            start = 0
            for row, size in (reads[index] for index in indices.tolist()):
                pieces, is_answer = candidates.of_size(row, size)
                # (C,): the i-th piece of a candidate is read at the i-th mask of the prompt.
                values = log_probabilities[start + np.arange(size), pieces].mean(axis=1)
                for column in (0, 1):
                    highest = values[is_answer == column].max(initial=-np.inf)
                    best[row, column] = max(best[row, column], highest)
                start += size
        return {row: bool(best[row, 1] > best[row, 0]) for row in asked}

    def fits(self, prompts: Sequence[Prompt], candidates: "_Candidates") -> Array:
        """Return (prompts,) whether a prompt has room for its longest candidate."""
        lengths = [
            len(self.fill(prompt.text, max([1, *candidates.sizes(row)])))
            for row, prompt in enumerate(prompts)
        ]
        return np.array(lengths, np.int64) <= self.model.max_length

    def fill(self, text: str, masks: int) -> list[int]:
        """Return the input for a prompt with that many masks in its blank."""
        before, after = encode_names(self.tokenizer, self.around(text))
        return [*self.start, *before, *[self.mask] * masks, *after, self.end]

    @torch.inference_mode()
    def mask_scores(self, inputs: Sequence[list[int]]) -> Iterator[tuple[Array, torch.Tensor]]:
        """Yield rows of the inputs, ascending, and the logits at all their masks: (masks, V)."""
        lengths = np.array([len(row) for row in inputs], np.int64)
        for rows in self._passes(inputs, lengths):
            length = lengths[rows]
            ids = np.full((len(rows), int(length.max())), self.padding, np.int64)  # (B, L)
            for index, row in enumerate(rows):
                ids[index, : lengths[row]] = inputs[row]
            # The whole prompt is prefix, and each mask is a target that predicts itself.
            row, column = np.nonzero(ids == self.mask)
            batch = Batch(ids, length, length, row, column, column)
            states = self.model.target_states(batch, both_ways=True)
            yield rows, self.model.logits(states).cpu()

    def _passes(self, inputs: Sequence[list[int]], lengths: Array) -> Iterator[Array]:
        """Yield rows of similar length whose masks have at most `_LOGITS` scores."""
        masks = np.array([row.count(self.mask) for row in inputs], np.int64)
        # Masks whose scores of the whole vocabulary fit into one pass.
        most = max(1, _LOGITS // len(self.model.decoder()[0]))
        for rows in cut_batches(lengths, _TOKENS):
            rows = np.sort(rows)
            # The pass of each row: cut where the running number of masks passes a multiple.
            number = (np.cumsum(masks[rows]) - 1) // most
            yield from np.split(rows, np.flatnonzero(np.diff(number)) + 1)


class _Continuing(_Probing):
    """A decoder asked in one language: it reads what is before the blank."""

    def _find_mask(self) -> int:
        return -1  # it needs none

    def split(self, text: str) -> tuple[list[int], list[int]]:
        """Return the pieces before and after the blank of a prompt."""
        before, after = encode_names(self.tokenizer, self.around(text))
        return [*self.start, *before], after

    def fits(self, prompts: Sequence[Prompt], candidates: "_Candidates") -> Array:
        """Return (prompts,) whether a prompt has room for its longest candidate."""
        fit = []
        for row, prompt in enumerate(prompts):
            before, after = self.split(prompt.text)
            longest = max([1, *candidates.sizes(row)])
            # A prompt that begins with its blank has nothing to continue, if there is no <bos>.
            fit.append(bool(before) and len(before + after) + longest <= self.model.max_length)
        return np.array(fit, bool)

    def best_words(self, texts: Sequence[str], words: Array) -> Array:
        """Return the most probable next word of each prompt, as its piece."""
        inputs = [self.split(text)[0] for text in texts]
        best = np.zeros(len(texts), np.int64)
        banned = np.flatnonzero(~words)
        for start in range(0, len(inputs), _PROMPTS):
            stepper = Stepper(self.model, inputs[start : start + _PROMPTS], 1)
            # The end of a name is always returned, too, and is never a word: take the best other.
            pieces, scores = stepper.best_first(2, banned)
            scores = np.where(words[pieces], scores, -np.inf)
            best[start : start + len(pieces)] = pieces[np.arange(len(pieces)), scores.argmax(1)]
        return best

    def rank_candidates(
        self, prompts: Sequence[Prompt], candidates: "_Candidates", fits: Array
    ) -> dict[int, bool]:
        """Return whether the answer is the best of a prompt's candidates, by prompt."""
        asked = [row for row in range(len(prompts)) if candidates.is_asked[row] and fits[row]]
        found: dict[int, bool] = {}
        for start in range(0, len(asked), _PROMPTS):
            rows = asked[start : start + _PROMPTS]
            texts = [self.split(prompts[row].text) for row in rows]
            owner, tokens, is_answer = [], [], []
            for index, row in enumerate(rows):
                for size in candidates.sizes(row):
                    pieces, right = candidates.of_size(row, size)
                    tokens += [[*ids, *texts[index][1]] for ids in pieces.tolist()]
                    owner += [index] * len(pieces)
                    is_answer += right.tolist()
            scores = score_continuations(
                self.model, [before for before, _ in texts], np.array(owner), tokens
            )
            right, own = np.array(is_answer, bool), np.array(owner)
            for index, row in enumerate(rows):
                mine = own == index
                others = scores[mine & ~right].max(initial=-np.inf)
                found[row] = bool(scores[mine & right].max(initial=-np.inf) > others)
        return found


class _Candidates:
    """The candidates of prompts, in pieces; a list that many prompts share is encoded once."""

    def __init__(
        self, probing: _Probing, prompts: Sequence[Prompt], problems: Counter[str]
    ) -> None:
        self.prompts = prompts
        # Many prompts share their candidates: each text is encoded once.
        texts = list(dict.fromkeys(t for p in prompts for t in (p.answer, *p.candidates)))
        self.pieces = dict(zip(texts, probing.encode(texts), strict=True))
        empty = sum(not pieces for pieces in self.pieces.values())
        count_problem(problems, "a candidate of no piece at all", empty)
        self._by_size: dict[tuple[str, ...], dict[int, tuple[list[str], Array]]] = {}
        counts = [self._num_candidates(prompt) for prompt in prompts]
        self.is_asked = [number > 1 for number in counts]
        count_problem(
            problems, "no second candidate (not ranked)", sum(number == 1 for number in counts)
        )

    def _num_candidates(self, prompt: Prompt) -> int:
        """Count the candidates with the answer, which need not be among them; 0 if it is empty."""
        if not self.pieces[prompt.answer]:
            return 0
        number = sum(len(texts) for texts, _ in self._of(prompt).values())
        return number + (prompt.answer not in prompt.candidates)

    def _of(self, prompt: Prompt) -> dict[int, tuple[list[str], Array]]:
        """Return a prompt's candidates by their number of pieces: texts, and pieces (C, n)."""
        if prompt.candidates not in self._by_size:
            groups: dict[int, list[str]] = {}
            for text in dict.fromkeys(prompt.candidates):
                if self.pieces[text]:
                    groups.setdefault(len(self.pieces[text]), []).append(text)
            self._by_size[prompt.candidates] = {
                size: (texts, np.array([self.pieces[text] for text in texts]))
                for size, texts in groups.items()
            }
        return self._by_size[prompt.candidates]

    def sizes(self, row: int) -> list[int]:
        """Return the numbers of pieces that the candidates of a prompt have."""
        prompt = self.prompts[row]
        return sorted({*self._of(prompt), len(self.pieces[prompt.answer])})

    def of_size(self, row: int, size: int) -> tuple[Array, Array]:
        """Return the candidates of that many pieces, (C, n), and (C,) which is the answer."""
        prompt = self.prompts[row]
        texts, pieces = self._of(prompt).get(size, ([], np.zeros((0, size), np.int64)))
        is_answer = np.array([text == prompt.answer for text in texts], bool)
        if len(self.pieces[prompt.answer]) == size and not is_answer.any():
            # The candidates of some prompts do not have the answer among them.
            pieces = np.concatenate([pieces, [self.pieces[prompt.answer]]])
            is_answer = np.append(is_answer, True)
        return pieces, is_answer
