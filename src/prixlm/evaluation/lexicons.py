"""Bilingual lexicon induction (Sec. 3.4): find the translation of a word in the vector space.

    dictionary = read_dictionary("en-it.train", "en-it.test")
    induced = induce(encoder, dictionary)
    tables = evaluate_lexicons({"encoder": encoder}, {"en-it": (dictionary, "it")})

The words of both languages become vectors. Supervised VecMap brings them into one space with the
training dictionary. A word's translation is its nearest neighbour by CSLS. Counts of letters that
are mapped in the same way are a row too: they are what an encoder has to beat. If a source word has
several targets, any of them counts. The paper does not name the candidates: the figures are given
among the target words of the two dictionaries and, harder, among those and the most frequent words
of the language.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import mean_similarity
from prixlm.entities.spelling import HASHED_GRAMS, SPELLINGS, HashedGrams, Spelling
from prixlm.entities.vecmap import fit_mapping
from prixlm.errors import PrixError
from prixlm.kb.store import KB, quote_texts
from prixlm.languages import frequent_words
from prixlm.lm.trim import check_reading
from prixlm.metrics import Figures, figures
from prixlm.reports.kept import Kept
from prixlm.reports.tables import ResultTable, name_rows
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
_ROWS = 512
"""Test words whose scores of all candidates are in memory at once."""
_NEIGHBOURS = 10
"""Nearest sources whose mean cosine is a target's penalty in CSLS."""
_OVERLAPS = {"as written": "{}", "in any case": "lower({})"}
"""How a test pair is compared with linked names, as SQL."""
_PAIR = re.compile(r"(?<![a-z])[a-z]{2,3}-[a-z]{2,3}(?![a-z])")
"""A pair of language codes in the name of a file."""


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
    """Read the dictionaries of all pairs of languages: one *train* and one *test* file each.

    A pair is a folder (`en-it/`), or files that name it: `en-it.train.tsv` and `en-it.test.tsv`.
    """
    files: dict[str, list[Path]] = {}  # by pair
    for path in sorted(Path(folder).glob("*")):
        if path.is_dir() and "-" in path.name:
            files.setdefault(path.name, []).extend(sorted(path.iterdir()))
        elif path.is_file() and (match := _PAIR.search(path.name)):
            files.setdefault(match[0], []).append(path)
    dictionaries: dict[str, tuple[Dictionary, str | None]] = {}
    for pair, paths in sorted(files.items()):
        train, test = ([path for path in paths if kind in path.name] for kind in ("train", "test"))
        if len(train) != 1 or len(test) != 1:
            raise PrixError(
                f"{Path(folder) / pair} has {len(train)} *train* and {len(test)} *test* files: "
                "expected one of each."
            )
        dictionaries[pair] = (read_dictionary(train[0], test[0]), pair.split("-")[1])
    if not dictionaries:
        raise PrixError(
            f"{folder} has no folder for a pair of languages, such as en-it, and no files that "
            "name one, such as en-it.train.tsv."
        )
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
    """Ranks by candidate set, then by subset: all test words, and those not in train."""

    num_candidates: dict[str, int]
    ranks: dict[str, dict[str, Array]]  # (test words,) the rank of each

    @property
    def figures(self) -> dict[str, dict[str, Figures]]:
        """Hits and MRR, by candidate set and subset."""
        return {
            name: {
                subset: figures(some, self.num_candidates[name]) for subset, some in subsets.items()
            }
            for name, subsets in self.ranks.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the ranks as JSON values."""
        ranks = {
            candidates: {subset: some.tolist() for subset, some in subsets.items()}
            for candidates, subsets in self.ranks.items()
        }
        return {"num_candidates": self.num_candidates, "ranks": ranks}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Induced":
        """Read what `to_json` returned."""
        ranks = {
            candidates: {subset: np.array(some, float) for subset, some in subsets.items()}
            for candidates, subsets in values["ranks"].items()
        }
        return cls(values["num_candidates"], ranks)


def induce(
    encoder: EntityEncoder | HashedGrams,
    dictionary: Dictionary,
    frequent: Sequence[str] = (),
    into: str | None = None,
) -> Induced:
    """Rank the translations of all test words by an encoder, VecMap and CSLS.

    frequent: further candidates, the frequent words of the target language. into: the language of
    the targets, for n-grams of romanised words.
    """
    words = _Words.of(dictionary, frequent)
    # (sources, H) and (targets, H); rows are the numbers of the words.
    sources, targets = list(words.sources), list(words.targets)
    if isinstance(encoder, HashedGrams):
        x, z = encoder.encode(sources), encoder.encode(targets, into)
    else:
        x, z = encoder.encode(sources), encoder.encode(targets)
    pairs = np.array([(words.sources[a], words.targets[b]) for a, b in dictionary.train])
    asked = [words.sources[word] for word in words.answers]
    result: dict[str, Array] = {}
    for name, number in words.candidates.items():
        # VecMap centres each vocabulary, so each candidate set has its own mapping.
        mapping = fit_mapping(x, z[:number], pairs)
        crowding = mean_similarity(mapping.target, mapping.source, _NEIGHBOURS)
        right = list(words.answers.values())
        result[name] = csls_ranks(mapping.source[asked], mapping.target, right, crowding)
    return words.induced(result)


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
        result[name] = ranks
    return words.induced(result)


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

    def induced(self, ranks: Mapping[str, Array]) -> Induced:
        """Return the result of ranks by candidate set: all test words, and those not in train."""
        by_subset = {
            name: {"all": part, "not in train": part[self.is_new]} for name, part in ranks.items()
        }
        return Induced(self.candidates, by_subset)


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
    kept: Kept | None = None,
    identity: Mapping[str, str] | None = None,
) -> list[ResultTable]:
    """Return accuracy (Hits@1) and MRR by encoder and pair of languages, among both candidate sets.

    spelling: comparisons of spelling, and counts of letters that are mapped like the encoders, are
    the first rows. kept: what is measured so far. identity: what tells the encoder of a row from
    others, if the caller does not know that all that is kept is of the same encoders and words.
    Refuses an encoder with a trimmed vocabulary that reads too many of the words in other pieces
    than its base.
    """
    kept = kept or Kept()
    for title, loaded in encoders.items():  # all of them, before the first is measured
        _check_reading(title, loaded, dictionaries, num_frequent)
    methods: dict[str, EntityEncoder | HashedGrams | Spelling] = {}
    if spelling:
        methods |= {one.title: one for one in (*SPELLINGS, *HASHED_GRAMS)}
    methods |= encoders
    # By metric, candidates and subset; and by candidates and pair the number of candidates.
    tables: dict[tuple[str, str, str], ResultTable] = {}
    num_candidates: dict[str, dict[str, int]] = {}
    done = 0
    for method, by in methods.items():
        for pair, (dictionary, lang) in dictionaries.items():
            measure = partial(_induce, by, dictionary, lang, num_frequent)
            key = [method, pair]
            if identity is not None:
                pairs = dictionary.train, dictionary.test
                whole = json.dumps([identity.get(method), lang, num_frequent, pairs])
                key.append(hashlib.sha256(whole.encode()).hexdigest())
            induced = Induced.from_json(kept.get(key, measure))
            for candidates, number in induced.num_candidates.items():
                num_candidates.setdefault(candidates, {})[pair] = number
                for subset, ranks in induced.ranks[candidates].items():
                    for metric, values in (("accuracy", ranks <= 1), ("MRR", 1 / ranks)):
                        words = "" if subset == "all" else f"sources {subset}"
                        new = ResultTable(metric, candidates, words)
                        table = tables.setdefault((metric, candidates, words), new)
                        table.add_questions(method, pair, values)
            done += 1
            if progress is not None:
                progress("induce", done, len(methods) * len(dictionaries))
    for table in tables.values():
        counts = num_candidates[table.candidates].items()
        table.notes.append("Candidates: " + ", ".join(f"{pair} {n:,}" for pair, n in counts))
    return list(tables.values())


def count_overlap(kb: KB, dictionaries: Dictionaries) -> ResultTable:
    """Return the share of the test pairs that are linked names of a KB, by pair of languages.

    The paper states the overlap of its test pairs with the links that it trains on in a footnote
    (Sec. 3.4). DBpedia's names begin with a capital letter, so the case decides most of it.
    """
    table = ResultTable("test pairs that are linked names of the KB")
    for pair, (dictionary, lang) in dictionaries.items():
        source = pair.split("-")[0]
        if source not in kb.languages or lang not in kb.languages:
            table.notes.append(f"{pair}: the KB lacks one of the languages.")
            for row in _OVERLAPS:
                table.add(row, pair, float("nan"))
            continue
        columns = dict(zip("ab", zip(*dictionary.test, strict=True), strict=True))
        asked = pa.table(columns | {"row": range(len(dictionary.test))})
        first, second = (f"lang = {quote_texts([code])}" for code in (source, lang))
        counts = []
        for how in _OVERLAPS.values():
            # Names and words in the same form: (x, y) are linked names, (a, b) a test pair.
            # Concepts are joined by the words: a concept may have very many pairs of names.
            name, a, b = map(how.format, ("name", "a", "b"))
            found = kb.join_table(
                asked,
                f"WITH s AS (SELECT DISTINCT {name} AS x, concept FROM entities WHERE {first}), "
                f"t AS (SELECT DISTINCT {name} AS y, concept FROM entities WHERE {second}), "
                f"named AS MATERIALIZED "
                f"(SELECT row, {b} AS y, concept FROM asked JOIN s ON x = {a}) "
                "SELECT count(DISTINCT row) FROM named SEMI JOIN t USING (y, concept)",
            )
            counts.append(int(found.column(0)[0].as_py()))
        num_links = _count_pairs(kb, first, second)
        for row, count in zip(_OVERLAPS, counts, strict=True):
            table.add(row, pair, count / len(asked), len(asked))
        table.notes.append(
            f"{pair}: {counts[0]:,} of {len(asked):,} test pairs ({counts[1]:,} in any case) are "
            f"among the KB's {num_links:,} links of these languages."
        )
    return table


def _count_pairs(kb: KB, first: str, second: str) -> int:
    """Return how many pairs of entities of two languages are linked; each is given as SQL."""
    number = "SELECT concept, count(*) AS number FROM entities WHERE {} GROUP BY concept"
    [[pairs]] = kb.query(
        f"SELECT coalesce(sum(s.number * t.number), 0) FROM ({number.format(first)}) s "
        f"JOIN ({number.format(second)}) t USING (concept)"
    ).fetchall()
    return int(pairs)


def _induce(
    by: EntityEncoder | HashedGrams | Spelling,
    dictionary: Dictionary,
    lang: str | None,
    num_frequent: int,
) -> dict[str, Any]:
    """Rank the translations of all test words by an encoder or by spelling; for JSON."""
    frequent = _frequent(lang, num_frequent)
    if isinstance(by, Spelling):
        return induce_by_spelling(dictionary, frequent, by, lang).to_json()
    return induce(by, dictionary, frequent, lang).to_json()


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
    *,
    kept: Kept | None = None,
) -> list[ResultTable]:
    """Evaluate encoder folders on files of word pairs; rows and columns are named by the paths.

    Without an encoder, the rows are those that need none.
    targets: the code of each target language, to rank among its frequent words, too.
    kept: what an earlier call measured, which is taken if it was of the same encoder and words.
    """
    if num_frequent < 0:
        raise PrixError(f"--frequent {num_frequent}: expected 0 or more.")
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
    identity = {title: encoder.fingerprint() for title, encoder in loaded.items()}
    return evaluate_lexicons(
        loaded, dictionaries, num_frequent, progress, kept=kept, identity=identity
    )
