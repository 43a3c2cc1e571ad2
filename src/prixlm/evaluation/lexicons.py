"""Bilingual lexicon induction (Sec. 3.4): find the translation of a word in the vector space.

    dictionary = read_dictionary("en-it.train", "en-it.test")
    induced = induce(encoder, dictionary)
    tables = evaluate_lexicons({"encoder": encoder}, {"en-it": (dictionary, "it")})

The words of both languages become vectors. Supervised VecMap brings them into one space with the
training dictionary. A word's translation is its nearest neighbour by CSLS. If a source word has
several targets, any of them counts. The paper does not name the candidates: the figures are given
among the target words of the two dictionaries and, harder, among those and the most frequent words
of the language.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import mean_similarity
from prixlm.entities.spelling import SPELLINGS, Spelling
from prixlm.entities.vecmap import fit_mapping
from prixlm.errors import PrixError
from prixlm.languages import frequent_words
from prixlm.lm.trim import check_reading
from prixlm.metrics import Figures, figures
from prixlm.reports.tables import ResultTable, name_rows
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
_ROWS = 512
"""Test words whose scores of all candidates are in memory at once."""
_NEIGHBOURS = 10
"""Nearest sources whose mean cosine is a target's penalty in CSLS."""


@dataclass(frozen=True)
class Dictionary:
    """Pairs of words to fit the mapping on, and pairs to test it with."""

    train: list[tuple[str, str]]
    test: list[tuple[str, str]]
    problems: dict[str, int] = field(default_factory=dict)  # lines that were left out, by reason


Dictionaries = Mapping[str, tuple[Dictionary, str | None]]
"""Dictionaries by title, each with the code of its target language if that is known."""


def read_dictionary(train: Path | str, test: Path | str) -> Dictionary:
    """Read two files with `source<TAB>target` (or a space) per line; count all other lines."""
    problems: Counter[str] = Counter()
    pairs = [_read_pairs(Path(path), problems) for path in (train, test)]
    for why, number in problems.items():
        logger.warning("%d lines left out: %s", number, why)
    return Dictionary(pairs[0], pairs[1], dict(problems))


def read_folder(folder: Path | str) -> dict[str, tuple[Dictionary, str | None]]:
    """Read a folder per pair of languages (`en-it`), with one *train* and one *test* file each."""
    dictionaries: dict[str, tuple[Dictionary, str | None]] = {}
    for pair in sorted(path for path in Path(folder).glob("*-*") if path.is_dir()):
        train, test = (sorted(pair.glob(f"*{split}*")) for split in ("train", "test"))
        if len(train) != 1 or len(test) != 1:
            raise PrixError(
                f"{pair} has {len(train)} *train* and {len(test)} *test* files: expected one of "
                "each."
            )
        dictionaries[pair.name] = (read_dictionary(train[0], test[0]), pair.name.split("-")[1])
    if not dictionaries:
        raise PrixError(f"{folder} has no folder for a pair of languages, such as en-it.")
    return dictionaries


def _read_pairs(path: Path, problems: Counter[str]) -> list[tuple[str, str]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{path} cannot be read as text: {error}.") from None
    pairs: dict[tuple[str, str], None] = {}
    for line in filter(str.strip, lines):
        words = tuple(word.strip() for word in (line.split("\t") if "\t" in line else line.split()))
        if len(words) != 2 or not all(words):
            problems[f"{path.name}: not two words"] += 1
        elif (pair := (words[0], words[1])) in pairs:
            problems[f"{path.name}: twice the same pair"] += 1
        else:
            pairs[pair] = None
    if not pairs:
        raise PrixError(f"{path} has no pair of words: expected source<TAB>target on each line.")
    return list(pairs)


@dataclass(frozen=True)
class Induced:
    """Figures by candidate set, then by subset: all test words, and those not in train."""

    figures: dict[str, dict[str, Figures]]
    num_candidates: dict[str, int]


def induce(encoder: EntityEncoder, dictionary: Dictionary, frequent: Sequence[str] = ()) -> Induced:
    """Rank the translations of all test words by an encoder, VecMap and CSLS.

    frequent: further candidates, the frequent words of the target language.
    """
    words = _Words.of(dictionary, frequent)
    # (sources, H) and (targets, H); rows are the numbers of the words.
    x, z = encoder.encode(list(words.sources)), encoder.encode(list(words.targets))
    pairs = np.array([(words.sources[a], words.targets[b]) for a, b in dictionary.train])
    asked = [words.sources[word] for word in words.answers]
    result: dict[str, dict[str, Figures]] = {}
    for name, number in words.candidates.items():
        # VecMap centres each vocabulary, so each candidate set has its own mapping.
        mapping = fit_mapping(x, z[:number], pairs)
        crowding = mean_similarity(mapping.target, mapping.source, _NEIGHBOURS)
        right = list(words.answers.values())
        ranks = csls_ranks(mapping.source[asked], mapping.target, right, crowding)
        result[name] = words.figures(ranks, number)
    return Induced(result, words.candidates)


def induce_by_spelling(
    dictionary: Dictionary,
    frequent: Sequence[str] = (),
    spelling: Spelling = SPELLINGS[0],
    into: str | None = None,
) -> Induced:
    """Rank the translations of all test words by their spelling, without a model or train.

    into: the language of the targets.
    """
    words = _Words.of(dictionary, frequent)
    right = list(words.answers.values())
    result = {}
    for name, number in words.candidates.items():
        ranks = np.empty(len(right))
        done = 0
        targets = list(words.targets)[:number]
        for scores in spelling.compare(list(words.answers), targets, None, into):
            end = done + len(scores)
            ranks[done:end] = _best_ranks(scores, right[done:end])
            done = end
        result[name] = words.figures(ranks, number)
    return Induced(result, words.candidates)


@dataclass(frozen=True)
class _Words:
    """The words of a dictionary and its candidates, numbered in the order of the files."""

    sources: dict[str, int]
    targets: dict[str, int]
    candidates: dict[str, int]  # by candidate set: its size; it is a prefix of the targets
    answers: dict[str, list[int]]  # the targets of every test word
    is_new: Array  # (test words,) not in train

    @classmethod
    def of(cls, dictionary: Dictionary, frequent: Sequence[str]) -> "_Words":
        """Number the words of a dictionary and of further candidates."""
        # Train words come first, then test words, then frequent words: each candidate set is a
        # prefix of the targets.
        pairs = [*dictionary.train, *dictionary.test]
        sources = _numbered(source for source, _ in pairs)
        targets = _numbered(target for _, target in pairs)
        candidates = {"dictionary": len(targets)}
        if frequent:
            for word in frequent:
                targets.setdefault(word, len(targets))
            candidates["and frequent words"] = len(targets)
        answers: dict[str, list[int]] = {}
        for word, translation in dictionary.test:
            answers.setdefault(word, []).append(targets[translation])
        in_train = {word for word, _ in dictionary.train}
        is_new = np.array([word not in in_train for word in answers])
        return cls(sources, targets, candidates, answers, is_new)

    def figures(self, ranks: Array, beyond: int) -> dict[str, Figures]:
        """Return the figures of all test words, and of those that are not in train."""
        new = figures(ranks[self.is_new], beyond)
        return {"all": figures(ranks, beyond), "not in train": new}


def _numbered(words: Iterable[str]) -> dict[str, int]:
    """Number distinct words in the order of their first occurrence."""
    return {word: number for number, word in enumerate(dict.fromkeys(words))}


def csls_ranks(
    asked: Array, target: Array, answers: Sequence[Sequence[int]], crowding: Array
) -> Array:
    """Return the rank of the best of each query's answers among all targets by CSLS, ties shared.

    Other right answers do not count as better. asked: (Q, H), target: (M, H), unit vectors;
    crowding: (M,) mean cosine of each target to its nearest sources. CSLS also subtracts the
    query's own crowding, which is the same for all targets and changes no rank.
    """
    ranks = np.empty(len(asked))
    # (rows, M) scores at a time, as M may be 50,000 words.
    for start in range(0, len(asked), _ROWS):
        end = min(start + _ROWS, len(asked))
        scores = 2 * asked[start:end] @ target.T - crowding
        ranks[start:end] = _best_ranks(scores, answers[start:end])
    return ranks


def _best_ranks(scores: Array, answers: Sequence[Sequence[int]]) -> Array:
    """Return the rank of the best of each row's answers, ties shared; overwrite `scores`."""
    ranks = np.empty(len(scores))
    for index, (row, right) in enumerate(zip(scores, answers, strict=True)):
        # Set the right answers below all others: only wrong ones can be better or tie.
        best = row[list(right)].max()
        row[list(right)] = -np.inf
        ranks[index] = 1 + (row > best).sum() + (row == best).sum() / 2
    return ranks


def evaluate_lexicons(
    encoders: Mapping[str, EntityEncoder],
    dictionaries: Dictionaries,
    num_frequent: int = 50_000,
    progress: Progress | None = None,
    *,
    spelling: bool = True,
) -> list[ResultTable]:
    """Return accuracy (Hits@1) and MRR by encoder and pair of languages, among both candidate sets.

    spelling: comparisons of spelling are the first rows. Refuses an encoder with a trimmed
    vocabulary that reads too many of the words in other pieces than its base.
    """
    for title, loaded in encoders.items():  # all of them, before the first is measured
        _check_reading(title, loaded, dictionaries, num_frequent)
    methods: dict[str, EntityEncoder | Spelling] = {}
    if spelling:
        methods |= {one.title: one for one in SPELLINGS}
    methods |= encoders
    # By metric, candidates and subset; and by candidates and pair the number of candidates.
    tables: dict[tuple[str, str, str], ResultTable] = {}
    num_candidates: dict[str, dict[str, int]] = {}
    done = 0
    for method, by in methods.items():
        for pair, (dictionary, lang) in dictionaries.items():
            frequent = _frequent(lang, num_frequent)
            if isinstance(by, Spelling):
                induced = induce_by_spelling(dictionary, frequent, by, lang)
            else:
                induced = induce(by, dictionary, frequent)
            for candidates, number in induced.num_candidates.items():
                num_candidates.setdefault(candidates, {})[pair] = number
                for subset, part in induced.figures[candidates].items():
                    for metric, value in (("accuracy", part.hits_1), ("MRR", part.mrr)):
                        words = "" if subset == "all" else f"sources {subset}"
                        new = ResultTable(metric, candidates, words)
                        table = tables.setdefault((metric, candidates, words), new)
                        table.add(method, pair, value, part.number)
            done += 1
            if progress is not None:
                progress("induce", done, len(methods) * len(dictionaries))
    for table in tables.values():
        counts = num_candidates[table.candidates].items()
        table.notes.append("Candidates: " + ", ".join(f"{pair} {n:,}" for pair, n in counts))
    return list(tables.values())


def _check_reading(
    title: str, encoder: EntityEncoder, dictionaries: Dictionaries, num_frequent: int
) -> None:
    """Refuse an encoder that reads too many words of either side unlike its base."""
    if encoder.model.untrimmed is None:
        return
    for pair, (dictionary, lang) in dictionaries.items():
        words = _Words.of(dictionary, _frequent(lang, num_frequent))
        for side, texts in (("source", words.sources), ("target", words.targets)):
            check_reading(encoder.model, list(texts), f"{side} words of {pair}, asked of {title}")


def _frequent(lang: str | None, number: int) -> list[str]:
    """Return the frequent words of a language; none if there is no list for it."""
    if lang is None or not number:
        return []
    try:
        return frequent_words(lang, number)
    except PrixError as error:
        logger.warning("candidates of the dictionary only: %s", error)
        return []


def evaluate_dictionary_files(
    encoders: Sequence[Path],
    train: Sequence[Path],
    test: Sequence[Path],
    targets: Sequence[str] | None = None,
    num_frequent: int = 50_000,
    progress: Progress | None = None,
) -> list[ResultTable]:
    """Evaluate encoder folders on files of word pairs; rows and columns are named by the paths.

    targets: the code of each target language, to rank among its frequent words, too.
    """
    if num_frequent < 0:
        raise PrixError(f"--frequent {num_frequent}: expected 0 or more.")
    if not encoders:
        raise PrixError("name an encoder: --encoder FOLDER, made with `prixlm mirror`.")
    codes: Sequence[str | None] = targets or [None] * len(train)
    if not len(train) == len(test) == len(codes):
        raise PrixError(
            f"{len(train)} files to learn from, {len(test)} to test and {len(codes)} target "
            "languages: expected as many of each."
        )
    files = zip(name_rows(test).items(), train, codes, strict=True)
    dictionaries = {
        title: (read_dictionary(first, second), code) for (title, second), first, code in files
    }
    loaded = {title: EntityEncoder.load(path) for title, path in name_rows(encoders).items()}
    return evaluate_lexicons(loaded, dictionaries, num_frequent, progress)
