"""Label proposals: names for concepts that a language has no name for.

    table, summary = propose_labels(kb, ["et", "el"], LabelConfig())

A name is *taken* over from a language of the same script, or of another one where the language does
that, or *written* from the names in all other languages by what linked names teach. Both kinds are
candidates of one fit (see `naming`): trees learn from the concepts that the language does name
which candidate is its own name, a second model learns whether the first candidate of a concept is
right, and isotonic regression makes a probability of its score. Writers that are asked for the fit
have not read the concept that they are asked for. Nothing is proposed without a name in another
language, nor where a name exists.

Memory does not grow with the KB: the fit reads a sample, and proposals are made batch by batch.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from prixlm.arrays import random_positions
from prixlm.enrichment.naming.candidates import (
    Candidates,
    Kinds,
    Language,
    Lexicon,
    Namer,
    Thing,
    is_taken,
)
from prixlm.enrichment.naming.confidence import NUM_FOLDS, Judged, NameConfidence
from prixlm.enrichment.naming.patterns import Langs
from prixlm.enrichment.naming.writing import Examples, NameWriter
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.languages import script_of_language, script_of_text
from prixlm.proposals.tables import LABEL_SCHEMA
from prixlm.romanise import romanise
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
_BATCH_ROWS = 1 << 14
_BATCH_THINGS = 500
_MIN_CONCEPTS = 100
_LEXICON_NAMES = 200_000
"""Names of the language whose words are known words."""
_MOSTLY_TAKEN = 0.5
"""Share of names taken over from which on none are written: that would add little for its time."""
_TOO_DIFFERENT = (
    "its linked names are too few or too different from others to learn how it writes them."
)
_SCRIPTS = {"Jpan": ("Hani", "Hira", "Kana")}
"""Languages that are written in several scripts."""
_UNLIKE = 0.01
"""Share of the concepts learnt from that fewer languages name than a proposal's concept may."""
_COMPARED, _ALIKE = 300, 60
"""Names by which sources are compared, and the similarity (of 100) from which two are alike."""
_SAME_SCRIPT = 0.1
"""How much less a further source of the same script is worth: what it says is more alike."""
_MIN_FOREIGN = 0.01
"""Share of the names that are taken over in a foreign script, from which on it is a candidate."""
NUM_HIDDEN = 5
"""Parts of the concepts, by a hash of their id; an evaluation hides some of them."""

_ORDER = [("confidence", "descending"), ("concept", "ascending"), ("name", "ascending")]
_HASH = "((concept * 2654435761) % 4294967296)"
_OWN = f"""
    SELECT concept, min(name) AS name FROM entities
    WHERE lang = $lang AND NOT list_contains($hidden, {_HASH} % {NUM_HIDDEN}) GROUP BY concept
"""
# Names in other languages, grouped by concept: either of concepts that the language names too (a
# sample of one in $every, by a hash of their id), or of concepts that it does not name.
_NAMES = f"""
    WITH own AS ({_OWN})
    SELECT e.concept, e.name, list(DISTINCT e.lang ORDER BY e.lang), min(e.key), any_value(o.name)
    FROM entities e LEFT JOIN own o USING (concept)
    WHERE e.lang <> $lang AND (o.name IS NOT NULL) = $named
        AND ($named = FALSE OR ({_HASH.replace("concept", "e.concept")} // 4096) % $every = 0)
    GROUP BY e.concept, e.name ORDER BY e.concept, e.name
"""
_AGREEMENT = f"""
    WITH own AS ({_OWN})
    SELECT y.lang, count(*), count(*) FILTER (x.name = y.name)
    FROM own x JOIN entities y ON x.concept = y.concept WHERE y.lang <> $lang GROUP BY y.lang
"""
_LINKED = f"""
    WITH own AS ({_OWN})
    SELECT count(DISTINCT o.concept) FROM own o JOIN entities e USING (concept)
    WHERE e.lang <> $lang
"""
# Concepts that the language does not name, those with most facts first: they are missed most.
_MOST_WANTED = f"""
    WITH own AS ({_OWN}), unnamed AS (
        SELECT concept FROM entities WHERE concept NOT IN (SELECT concept FROM own)
        GROUP BY concept HAVING count(DISTINCT (name, lang)) >= $least
    ), ends AS (
        SELECT subject AS entity FROM triples UNION ALL SELECT object FROM triples
    ), facts AS (
        SELECT e.concept, count(*) AS number FROM ends JOIN entities e ON e.id = ends.entity
        GROUP BY e.concept
    )
    SELECT concept FROM unnamed LEFT JOIN facts USING (concept)
    ORDER BY coalesce(number, 0) DESC, concept LIMIT $most
"""
_KINDS = """
    SELECT DISTINCT concept, relation, role FROM (
        SELECT a.concept, t.relation, 0 AS role FROM asked a
        JOIN entities e USING (concept) JOIN triples t ON t.subject = e.id
        UNION ALL SELECT a.concept, t.relation, 1 AS role FROM asked a
        JOIN entities e USING (concept) JOIN triples t ON t.object = e.id
    ) ORDER BY ALL
"""


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Which labels are proposed."""

    min_confidence: float = 0.5  # leave out names below it
    answers: int = 3  # most names of a concept
    fitted: int = 20_000  # concepts that rates of names taken over are counted from, about
    learnt: int = 8_000  # linked names that each writer learns from, at most
    asked: int = 4_000  # concepts that writers are tried on to fit the confidence, at most
    sources: int = 10  # languages that names are written from, at most
    written: int = 5_000  # concepts that names are written for, at most; the others: taken over
    seed: int = 0  # of the drawn concepts

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.fitted < _MIN_CONCEPTS:
            raise PrixError(f"fitted {self.fitted}: expected {_MIN_CONCEPTS} concepts or more.")
        for name in ("answers", "learnt", "asked"):
            if getattr(self, name) < 1:
                raise PrixError(f"{name} {getattr(self, name)}: expected 1 or more.")
        for name in ("sources", "written"):
            if getattr(self, name) < 0:
                raise PrixError(f"{name} {getattr(self, name)}: expected 0 or more.")


class LabelProposer:
    """Proposes names for the concepts that one language does not name."""

    def __init__(
        self,
        kb: KB,
        lang: str,
        config: LabelConfig | None = None,
        hidden: Sequence[int] = (),
    ) -> None:
        """Learn how the language names things.

        hidden: parts of the concepts (of NUM_HIDDEN) whose names in the language are not read, as
        if it had none. That is for evaluation.
        """
        self.kb, self.lang, self.config = kb, lang, config or LabelConfig()
        kb.entity_range(lang)  # refuses a language that the KB lacks
        self._asked = {"lang": lang, "hidden": list(hidden)}
        script = script_of_language(lang)
        self._scripts = _SCRIPTS.get(script, (script,))
        self._language = Language({})
        things = self._sample()
        # How often the language uses the name of each other language. Two pseudo-counts lower the
        # rate of languages that share few concepts with it.
        rows = kb.query(_AGREEMENT, self._asked).fetchall()
        self._rate = {other: same / (both + 2) for other, both, same in rows}
        self.sources: list[str] = []  # languages that names are written from
        self.why_none_written = ""  # although names were to be written
        self._foreign = _foreign_scripts(things, self._scripts)
        self._fit(things)

    def _sample(self) -> list[Thing]:
        """Return concepts that the language names, each with its names in other languages."""
        [(num_linked,)] = self.kb.query(_LINKED, self._asked).fetchall()
        if num_linked < _MIN_CONCEPTS:
            # The manifest of a run quotes these sentences.
            raise PrixError(
                f"{num_linked:,} of its named entities have a name in another language: too few to "
                f"learn from (expected {_MIN_CONCEPTS}). Add links between this language and "
                "others."
            )
        every = max(1, num_linked // self.config.fitted)
        return [thing for batch in self._read(named=True, every=every) for thing in batch]

    def _lexicon(self, without: Sequence[Thing] = ()) -> Lexicon:
        """Return the words of the language's names, but for those of some things."""
        left_out = {thing.concept for thing in without}
        names = (name for concept, name in self._names() if concept not in left_out)
        return Lexicon(names, self._language)

    def _names(self) -> list[tuple[int, str]]:
        sql = f"SELECT concept, name FROM ({_OWN}) ORDER BY {_HASH}, concept LIMIT {_LEXICON_NAMES}"
        return self.kb.query(sql, self._asked).fetchall()

    def _fit(self, things: list[Thing]) -> None:
        """Learn writers and the confidence, which is measured on concepts that were not read."""
        position = random_positions(len(things), self.config.seed)
        # The first ones by `position` are asked: each fold has its share of them.
        share = min(1.0, self.config.asked / len(things))
        fold = (position / share * NUM_FOLDS).astype(np.int64) % NUM_FOLDS
        taken = np.array([is_taken(thing) for thing in things])
        examples: dict[str, _Linked] = {}
        if self.config.sources and taken.mean() < _MOSTLY_TAKEN:
            examples = self._examples(things, position)
            self.sources = list(examples)
        if examples:
            self._language = Language.of(self.lang)
        else:
            self.why_none_written = self._why_none_written(float(taken.mean()))
        if not taken.any() and not examples:
            raise PrixError(f"none of its names is used in another language, and {_TOO_DIFFERENT}")
        # Concepts that fewer languages name than almost all of these are unlike what is learnt.
        num_langs = [_num_langs(thing) for thing in things]
        self._fewest_langs = int(np.quantile(num_langs, _UNLIKE, method="lower"))
        kind = self._kind(things)
        # Without writers every sampled thing is cheap to ask.
        asked = np.flatnonzero(position < share)
        if not examples:
            asked = np.arange(len(things))
        parts = [
            self._ask_fold(things, kind, fold, asked[fold[asked] == number], number, examples)
            for number in range(NUM_FOLDS)
        ]
        folds = np.concatenate([np.full(len(p.concept), n) for n, p in enumerate(parts)])
        self._confidence = NameConfidence.fit(
            np.concatenate([part.concept for part in parts]),
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.is_right for part in parts]),
            folds,
        )
        self.reliability = self._confidence.reliability
        lexicon = self._lexicon()
        writers = {
            lang: NameWriter(linked.examples, vocabulary=lexicon.vocabulary)
            for lang, linked in examples.items()
        }
        self._namer = self._make_namer(writers, lexicon, Kinds(kind, things, self.lang))

    def _why_none_written(self, share_taken: float) -> str:
        """Return why no names are written, as a sentence; "" if none were asked for."""
        if not (self.config.sources and self.config.written):
            return ""
        if share_taken < _MOSTLY_TAKEN:
            return _TOO_DIFFERENT
        return (
            f"{share_taken:.0%} of its linked names are used in another language, so names are "
            "only taken over: written ones would add little for their time."
        )

    def _examples(self, things: Sequence[Thing], position: Array) -> "dict[str, _Linked]":
        """Return linked names of the languages that teach most about this one's spelling."""
        names: dict[str, list[tuple[int, str]]] = {}
        for row, thing in enumerate(things):
            for name, langs, _ in thing.names:
                for lang in langs:
                    names.setdefault(lang, []).append((row, name))
        # The first ones by `position` are a random sample.
        chosen = {
            lang: sorted(pairs, key=lambda pair: position[pair[0]])[: self.config.learnt]
            for lang, pairs in names.items()
            if len(pairs) >= _MIN_CONCEPTS
        }
        worth = {lang: _worth(things, pairs, (lang, self.lang)) for lang, pairs in chosen.items()}
        found: dict[str, _Linked] = {}
        for lang in _choose(worth, self.config.sources):
            pairs = [(name, things[row].own or "") for row, name in chosen[lang]]
            rows = np.array([row for row, _ in chosen[lang]])
            found[lang] = _Linked(Examples(pairs, self._scripts, (lang, self.lang)), rows)
        return found

    def _ask_fold(
        self,
        things: Sequence[Thing],
        kind: Sequence[Sequence[int]],
        fold: Array,
        asked: Array,
        number: int,
        examples: "dict[str, _Linked]",
    ) -> Candidates:
        """Return candidates of a fold's things, by writers that have read the other folds only."""
        # Nor may the words and the kinds of their own names be known.
        inside, outside = (
            np.flatnonzero(mask).tolist() for mask in (fold == number, fold != number)
        )
        lexicon = self._lexicon([things[row] for row in inside])
        kinds = Kinds([kind[row] for row in outside], [things[row] for row in outside], self.lang)
        writers = {
            lang: NameWriter(
                linked.examples,
                np.flatnonzero(fold[linked.rows] != number).tolist(),
                lexicon.vocabulary,
            )
            for lang, linked in examples.items()
        }
        namer = self._make_namer(writers, lexicon, kinds)
        rows = asked.tolist()
        return namer.candidates([things[row] for row in rows], [kind[row] for row in rows])

    def _make_namer(
        self, writers: Mapping[str, NameWriter], lexicon: Lexicon, kinds: Kinds
    ) -> Namer:
        return Namer(self._scripts, self._rate, writers, lexicon, kinds, self._foreign, self.lang)

    def _kind(self, things: Sequence[Thing]) -> list[list[int]]:
        """Return the relations of each thing, as subject (even) and as object (odd)."""
        if not things:
            return []
        concepts = pa.table({"concept": pa.array([t.concept for t in things], pa.int64())})
        rows = self.kb.join_table(concepts, _KINDS)
        kind: dict[int, list[int]] = {}
        columns = (rows[name].to_pylist() for name in ("concept", "relation", "role"))
        for concept, relation, role in zip(*columns, strict=True):
            kind.setdefault(concept, []).append(2 * relation + role)
        return [kind.get(thing.concept, []) for thing in things]

    def propose(self, progress: Progress | None = None) -> pa.Table:
        """Return names for every concept without one, the most confident first.

        Names are written for the concepts with most facts, and taken over for all.
        """
        tables = []
        self.num_unnamed = self.num_written_for = self.num_unlike = 0
        wanted = self._most_wanted() if self.sources else set()
        for batch in self._read(named=False):
            things = [t for t in batch if _num_langs(t) >= self._fewest_langs]
            self.num_unnamed += len(batch)
            self.num_unlike += len(batch) - len(things)
            # One join over all triples for the batch: for a small part it takes as long.
            kind = self._kind(things)
            for write in (True, False):
                rows = [n for n, thing in enumerate(things) if (thing.concept in wanted) == write]
                for start in range(0, len(rows), _BATCH_THINGS):
                    some = rows[start : start + _BATCH_THINGS]
                    judged = self._judge(
                        [things[n] for n in some], [kind[n] for n in some], write=write
                    )
                    tables.append(self._as_table(judged, [things[n] for n in some]))
                    self.num_written_for += write * len(some)
                    if progress is not None and wanted:
                        progress(f"names in {self.lang}", self.num_written_for, len(wanted))
        return pa.concat_tables([LABEL_SCHEMA.empty_table(), *tables]).sort_by(_ORDER)

    def _most_wanted(self) -> set[int]:
        """Return the concepts that names are written for."""
        asked = {**self._asked, "least": self._fewest_langs, "most": self.config.written}
        return {concept for (concept,) in self.kb.query(_MOST_WANTED, asked).fetchall()}

    def _judge(
        self, things: Sequence[Thing], kind: Sequence[Sequence[int]], *, write: bool = True
    ) -> Judged:
        """Return the candidates of some things with their confidence."""
        namer = self._namer if write else replace(self._namer, writes=False)
        return self._confidence.judge(namer.candidates(things, kind))

    def best(self, things: Sequence[Thing]) -> list[tuple[str, float, float]]:
        """Return the best name of each thing, its confidence and its score; "" without any.

        The confidence has steps; the score orders names of one step, too.
        """
        judged = self._judge(things, self._kind(things))
        candidates = judged.candidates
        found = {
            int(candidates.concept[row]): (
                candidates.text[row],
                float(judged.confidence[row]),
                float(judged.score[row]),
            )
            for row in judged.best(1)
        }
        return [found.get(thing.concept, ("", 0.0, -np.inf)) for thing in things]

    def write_one(self, name: str, lang: str) -> tuple[str, float]:
        """Return the first answer of one source's writer and its probability; "" and 0 if none."""
        writer = self._namer.writers.get(lang)
        written = writer.write(name)[:1] if writer and name else []
        for answer in written:
            return self._namer.lexicon.casing.variants(answer.text)[0], answer.probability
        return "", 0.0

    def lexicon_names(self) -> list[str]:
        """Return names of the language, a sample of them if there are many."""
        return [name for _, name in self._names()]

    def _as_table(self, judged: Judged, things: Sequence[Thing]) -> pa.Table:
        """Return the names that are sure enough as proposals."""
        candidates, confidence = judged.candidates, judged.confidence
        best = judged.best(self.config.answers)
        best = best[confidence[best] >= self.config.min_confidence]
        keys = {thing.concept: min(key for _, _, key in thing.names) for thing in things}
        columns = {
            "lang": [self.lang] * len(best),
            "concept": candidates.concept[best],
            "key": [keys[concept] for concept in candidates.concept[best].tolist()],
            "name": [candidates.text[row] for row in best],
            "confidence": np.round(confidence[best], 6),
            "origin": [candidates.origin[row] for row in best],
            "source": [candidates.source[row] for row in best],
            "how": np.where(candidates.is_taken[best], "taken", "written").tolist(),
        }
        arrays = [pa.array(columns[field.name], field.type) for field in LABEL_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=LABEL_SCHEMA)

    def unnamed(self) -> Iterator[list[Thing]]:
        """Yield the concepts without a name in the language, batch by batch."""
        yield from self._read(named=False)

    def _read(self, *, named: bool, every: int = 1) -> Iterator[list[Thing]]:
        """Yield things with their names in other languages, batch by batch."""
        pending: Thing | None = None
        asked = {**self._asked, "named": named, "every": every}
        for batch in self.kb.stream(_NAMES, _BATCH_ROWS, asked):
            things: list[Thing] = []
            columns = (column.to_pylist() for column in batch.columns)
            for concept, name, langs, key, own in zip(*columns, strict=True):
                # The next batch may have more names of the last concept: it waits.
                if pending is None or pending.concept != concept:
                    if pending is not None:
                        things.append(pending)
                    pending = Thing(concept, [], own)
                pending.names.append((name, langs, key))
            if things:
                yield things
        if pending is not None:
            yield [pending]


@dataclass(frozen=True)
class _Linked:
    """Linked names of one source language."""

    examples: Examples
    rows: Array  # the thing of each pair


def _foreign_scripts(things: Sequence[Thing], scripts: Sequence[str]) -> tuple[str, ...]:
    """Return the scripts of other languages that names are taken over in, as bands' in Greek."""
    counts = Counter(script_of_text(thing.own or "") for thing in things if is_taken(thing))
    least = max(_MIN_FOREIGN * len(things), 1)
    return tuple(
        sorted(
            script
            for script, count in counts.items()
            if script and script not in scripts and count >= least
        )
    )


def _num_langs(thing: Thing) -> int:
    return sum(len(langs) for _, langs, _ in thing.names)


def _worth(things: Sequence[Thing], pairs: Sequence[tuple[int, str]], langs: Langs) -> float:
    """Return about how many names of a source sound like those of the language.

    pairs: positions of things, and their names in the source. langs: the source and the language.
    """
    from rapidfuzz import fuzz

    some = pairs[:_COMPARED]
    own = romanise([things[row].own or "" for row, _ in some], langs[1])
    others = romanise([name for _, name in some], langs[0])
    alike = [fuzz.ratio(a, b) >= _ALIKE for a, b in zip(own, others, strict=True)]
    return len(pairs) * sum(alike) / len(some)


def _choose(worth: Mapping[str, float], number: int) -> list[str]:
    """Return the most valuable languages; each further one of a script counts for less."""
    chosen: list[str] = []
    used: Counter[str] = Counter()
    left = sorted(lang for lang in worth if worth[lang])
    while left and len(chosen) < number:
        best = max(
            left, key=lambda lang: worth[lang] / (1 + _SAME_SCRIPT * used[script_of_language(lang)])
        )
        chosen.append(best)
        left.remove(best)
        used[script_of_language(best)] += 1
    return chosen


def propose_labels(
    kb: KB,
    langs: Sequence[str],
    config: LabelConfig | None = None,
    progress: Progress | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Return label proposals for several languages, and a summary by language.

    The summary has the number of names, by whether they are taken over or written, and the
    calibration error; or the reason why a language has none (`why`), such as no links, or why
    its names are taken over only (`why_none_written`).
    """
    tables, summary = [LABEL_SCHEMA.empty_table()], {}
    for lang in langs:
        table, summary[lang] = propose_language(kb, lang, config, progress)
        tables.append(table)
    order = [("lang", "ascending"), *_ORDER]
    return pa.concat_tables(tables).sort_by(order), summary


def propose_language(
    kb: KB,
    lang: str,
    config: LabelConfig | None = None,
    progress: Progress | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Return the label proposals of one language, and their summary."""
    config = config or LabelConfig()
    try:
        proposer = LabelProposer(kb, lang, config)
    except PrixError as error:
        logger.info("no labels for %s: %s", lang, error)
        return LABEL_SCHEMA.empty_table(), {"names": 0, "why": str(error)}
    table = proposer.propose(progress)
    num_written = table["how"].to_pylist().count("written")
    ece = proposer.reliability.ece
    summary = {
        "names": table.num_rows,
        "taken": table.num_rows - num_written,
        "written": num_written,
        "unnamed": proposer.num_unnamed,  # entities without a name
        "unlike": proposer.num_unlike,  # of these, named by too few other languages to be judged
        "written_for": proposer.num_written_for,  # of these, those that names were written for
        "sources": proposer.sources,
        "ece": None if np.isnan(ece) else round(ece, 4),
    }
    if proposer.why_none_written:
        logger.info("no names are written for %s: %s", lang, proposer.why_none_written)
        summary["why_none_written"] = proposer.why_none_written
    return table, summary
