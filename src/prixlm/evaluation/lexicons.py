"""Bilingual lexicon induction (Sec. 3.4): the translation of a word, found in the vector space.

    task = read_dictionaries("en-it.train", "en-it.test")
    result = induce(encoder, task)

Both languages' words become vectors, supervised VecMap brings them into one space with the training
dictionary, and a word's translation is its nearest neighbour by CSLS. A source word with several
targets counts any of them. The paper names no candidates: the figures are given among the target
words of the two dictionaries and, harder, among those and the most frequent words of the language.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import mean_similarity
from prixlm.entities.spelling import similarities
from prixlm.entities.vecmap import fit_mapping
from prixlm.errors import PrixError
from prixlm.metrics import Figures, figures
from prixlm.types import Array

logger = logging.getLogger(__name__)
_ROWS = 512
"""Test words whose scores of all candidates are held at once."""


@dataclass(frozen=True)
class Dictionary:
    """Pairs of words to learn the map from, and to test it with."""

    train: list[tuple[str, str]]
    test: list[tuple[str, str]]
    problems: dict[str, int] = field(default_factory=dict)  # lines that were left out, by reason


def read_dictionaries(train: Path | str, test: Path | str) -> Dictionary:
    """`source<TAB>target` (or a space) a line; lines that are not so are counted."""
    problems: dict[str, int] = {}
    parts = [_read_pairs(Path(path), problems) for path in (train, test)]
    for why, number in problems.items():
        logger.warning("%d lines left out: %s", number, why)
    return Dictionary(parts[0], parts[1], problems)


def read_folder(folder: Path | str) -> dict[str, tuple[Dictionary, str]]:
    """A folder for each pair of languages (`en-it`), with one *train* and one *test* file in it.

    With the code of the target language.
    """
    found = {}
    for own in sorted(path for path in Path(folder).glob("*-*") if path.is_dir()):
        files = [sorted(own.glob(f"*{part}*")) for part in ("train", "test")]
        if any(len(part) != 1 for part in files):
            raise PrixError(f"{own} has not one *train* and one *test* file.")
        found[own.name] = (read_dictionaries(files[0][0], files[1][0]), own.name.split("-")[1])
    if not found:
        raise PrixError(f"{folder} has no folder for a pair of languages, such as en-it.")
    return found


def _read_pairs(path: Path, problems: dict[str, int]) -> list[tuple[str, str]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"{path} cannot be read as text: {error}.") from None
    found: dict[tuple[str, str], None] = {}
    for line in filter(str.strip, lines):
        words = tuple(word.strip() for word in (line.split("\t") if "\t" in line else line.split()))
        if len(words) != 2 or not all(words):
            _count(problems, f"{path.name}: not two words")
        elif (pair := (words[0], words[1])) in found:
            _count(problems, f"{path.name}: twice the same pair")
        else:
            found[pair] = None
    if not found:
        raise PrixError(f"{path} has no pair of words: expected source<TAB>target a line.")
    return list(found)


def _count(problems: dict[str, int], why: str) -> None:
    problems[why] = problems.get(why, 0) + 1


@dataclass(frozen=True)
class Induced:
    """Figures by candidate set: all test words, and those that are not in train too."""

    figures: dict[str, dict[str, Figures]]
    num_candidates: dict[str, int]


def induce(
    encoder: EntityEncoder,
    dictionary: Dictionary,
    frequent: Sequence[str] = (),
    *,
    neighbours: int = 10,
) -> Induced:
    """Rank the translations of all test words.

    frequent: further candidates, the frequent words of the target language.
    """
    words = _Words.of(dictionary, frequent)
    x, z = encoder.encode(list(words.sources)), encoder.encode(list(words.targets))
    pairs = np.array([(words.sources[a], words.targets[b]) for a, b in dictionary.train])
    asked = [words.sources[word] for word in words.answers]
    found: dict[str, dict[str, Figures]] = {}
    for name, number in words.sets.items():
        # The mean over the vocabulary is part of the map: each candidate set has its own.
        mapping = fit_mapping(x, z[:number], pairs)
        crowding = mean_similarity(mapping.target, mapping.source, neighbours)
        right = list(words.answers.values())
        ranks = csls_ranks(mapping.source[asked], mapping.target, right, crowding)
        found[name] = words.figures(ranks, number)
    return Induced(found, words.sets)


def induce_by_spelling(dictionary: Dictionary, frequent: Sequence[str] = ()) -> Induced:
    """The same by string similarity: what can be found without a model, and without train."""
    words = _Words.of(dictionary, frequent)
    right = list(words.answers.values())
    found = {}
    for name, number in words.sets.items():
        ranks = np.empty(len(right))
        done = 0
        for table in similarities(list(words.answers), list(words.targets)[:number]):
            ranks[done : done + len(table)] = _best_ranks(table, right[done : done + len(table)])
            done += len(table)
        found[name] = words.figures(ranks, number)
    return Induced(found, words.sets)


@dataclass(frozen=True)
class _Words:
    """The words of a dictionary and its candidates, by number."""

    sources: dict[str, int]
    targets: dict[str, int]
    sets: dict[str, int]  # by name: how many of the targets are candidates
    answers: dict[str, list[int]]  # of every test word
    is_new: Array  # of every test word: not in train

    @classmethod
    def of(cls, dictionary: Dictionary, frequent: Sequence[str]) -> "_Words":
        pairs = [*dictionary.train, *dictionary.test]
        sources = _numbered(source for source, _ in pairs)
        targets = _numbered(target for _, target in pairs)
        sets = {"dictionary": len(targets)}
        if frequent:
            for word in frequent:
                targets.setdefault(word, len(targets))
            sets["and frequent words"] = len(targets)
        answers: dict[str, list[int]] = {}
        for word, translation in dictionary.test:
            answers.setdefault(word, []).append(targets[translation])
        in_train = {word for word, _ in dictionary.train}
        is_new = np.array([word not in in_train for word in answers])
        return cls(sources, targets, sets, answers, is_new)

    def figures(self, ranks: Array, beyond: int) -> dict[str, Figures]:
        return {"all": figures(ranks, beyond), "not in train": figures(ranks[self.is_new], beyond)}


def csls_ranks(
    asked: Array, target: Array, answers: Sequence[Sequence[int]], crowding: Array
) -> Array:
    """The rank of the best of each query's answers among all targets, by CSLS, ties shared.

    Other right answers do not stand before it. asked: (Q, H), target: (M, H), unit vectors;
    crowding: (M,), the mean cosine of each target to its nearest sources. What a query loses for
    its own neighbourhood is the same for all targets and changes no rank.
    """
    ranks = np.empty(len(asked))
    for start in range(0, len(asked), _ROWS):
        part = asked[start : start + _ROWS]
        scores = 2 * part @ target.T - crowding
        ranks[start : start + len(part)] = _best_ranks(scores, answers[start : start + len(part)])
    return ranks


def _best_ranks(scores: Array, answers: Sequence[Sequence[int]]) -> Array:
    """The rank of the best of each row's answers, ties shared. It writes into the scores."""
    ranks = np.empty(len(scores))
    for place, (row, right) in enumerate(zip(scores, answers, strict=True)):
        best = row[list(right)].max()
        row[list(right)] = -np.inf
        ranks[place] = 1 + (row > best).sum() + (row == best).sum() / 2
    return ranks


def _numbered(words: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found.setdefault(word, len(found))
    return found
