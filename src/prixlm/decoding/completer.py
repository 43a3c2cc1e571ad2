"""Complete facts and translate names (Sec. 2.2): queries as names in, named answers out.

    completer = Completer("model", "kb")
    completer.complete("Finland", "capital", lang="en")
    completer.translate("London", lang="en", to="es")

The subject may be a name that the KB does not have: that is what the model is for. The candidates
are the entities of the KB in the language asked for, or a subset of them.
"""

import difflib
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from prixlm.decoding.search import Found, beam_search, exact_search
from prixlm.decoding.trie import Trie, open_trie
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.encoding import language_token
from prixlm.lm.model import PrixLM, cached_tokens
from prixlm.lm.trim import warn_of_another_kb, warn_of_reading
from prixlm.remote import absolute
from prixlm.types import Answer, Array, Progress, Query

_BATCH = 16
"""Queries that are searched for together."""

# The answers that the KB already has: objects of the relation, or names of the same concept in the
# language asked for. A subject counts by its name and by its aliases.
_KNOWN = """
    WITH subjects AS (
        SELECT query, a.relation, target, e.id, e.concept
        FROM asked a JOIN entities e ON e.lang = a.lang AND e.name = a.name
        UNION
        SELECT query, a.relation, target, e.id, e.concept
        FROM asked a JOIN aliases n ON n.name = a.name
        JOIN entities e ON e.id = n.entity AND e.lang = a.lang
    )
    SELECT query, t.object AS id
    FROM subjects s JOIN triples t ON t.subject = s.id AND t.relation = s.relation
    UNION
    SELECT query, e.id
    FROM subjects s JOIN entities e ON e.concept = s.concept AND e.lang = s.target
    WHERE s.relation IS NULL
    ORDER BY query, id
"""


# The description of the subject, if exactly one entity has its name: it tells nothing of namesakes.
_DESCRIBED = """
    SELECT query, any_value(d.text) AS text
    FROM asked a JOIN entities e ON e.lang = a.lang AND e.name = a.name
    LEFT JOIN descriptions d ON d.entity = e.id
    GROUP BY query HAVING count(*) = 1 AND any_value(d.text) IS NOT NULL
"""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How to search for answers.

    Example:
        >>> config = prixlm.SearchConfig(k=3, search="exact")
    """

    k: int = 10  # answers per query
    search: Literal["beam", "exact"] = "beam"  # exact proves its answers
    beam: int = 50  # unfinished names per step, the paper's K
    new_only: bool = False  # leave out answers that the KB already has
    max_nodes: int = 100_000  # limit of an exact search, per query

    def __post_init__(self) -> None:
        for name in ("k", "beam", "max_nodes"):
            if getattr(self, name) < 1:
                raise PrixError(f"{name} {getattr(self, name)}: expected 1 or more.")
        if self.search not in ("beam", "exact"):
            raise PrixError(f"search {self.search}: expected beam or exact.")


class Completer:
    """A model, and the KB whose entities are its candidates.

    For one thread at a time: a server asks it through one `service.batching.Batcher`. Its `kb` may
    be shared by threads.

    Example:
        >>> completer = prixlm.Completer("model", "kb")
        >>> len(completer.complete("France", "capital", lang="en"))  # of 5 English entities
        5
        >>> config = prixlm.SearchConfig(k=2)
        >>> len(completer.translate("Finland", lang="en", to="ja", config=config))
        2
    """

    def __init__(
        self,
        model: PrixLM | Path | str,
        kb: KB | Path | str,
        progress: Progress | None = None,
        *,
        mask: str | None = None,
    ) -> None:
        """Load the model and tokenise the names of the KB, if that was not done before.

        model: a Prix-LM, its folder, or a checkpoint in the authors' layout (see `PrixLM.open`).
        mask: read it with another mask than its own, such as `released`.
        """
        # Where workers load the model from; those of other machines fetch a remote one themselves.
        self.folder = None if isinstance(model, PrixLM) else absolute(model)
        self.mask = mask
        self.kb = kb if isinstance(kb, KB) else KB(kb)
        opened = model if isinstance(model, PrixLM) else _load(model, self.kb, mask)
        self.model = opened.eval()
        if not set(self.kb.languages) & set(self.model.settings.languages):
            raise PrixError(
                f"the model and {self.kb.folder} have no language in common: the model has "
                f"{', '.join(self.model.settings.languages)}, the KB has "
                f"{', '.join(self.kb.languages)}. Use a model that was trained on this KB."
            )
        warn_of_another_kb(self.model, self.kb)
        # Errors are rows of files of answers: they must not depend on where the KB lies.
        self._kb_name = self.kb.folder.resolve().name
        self._has_warned = False  # of subjects that a trimmed model reads unlike its base
        self.cache = cached_tokens(self.model, self.kb, progress)
        self.relation_names = lru_cache(maxsize=64)(self.kb.relation_names)
        self._relation_ids = lru_cache(maxsize=64)(self._read_relation_ids)
        self._tries = lru_cache(maxsize=8)(self._make_trie)

    @property
    def is_of_this_kb(self) -> bool:
        """Whether the model was trained on this very KB, and not, say, on a split of it."""
        return self.model.settings.lineage.kb_fingerprint == self.kb.fingerprint()

    def identity(self) -> str:
        """Return a hash of the model: of its settings and of every n-th row of its embeddings."""
        # All weights of a large model would take seconds; two models differ in these rows, too.
        weight = self.model.backbone.get_input_embeddings().weight.detach().cpu().numpy()
        digest = hashlib.sha256(json.dumps(self.model.settings.as_dict()).encode())
        digest.update(np.ascontiguousarray(weight[:: max(1, len(weight) // 1000)]).tobytes())
        return digest.hexdigest()

    def complete(
        self,
        subject: str,
        relation: str,
        *,
        lang: str,
        config: SearchConfig | None = None,
        candidates: Array | None = None,
    ) -> list[Answer]:
        """Return the objects that best complete a fact, best first.

        relation: its name in `lang`, its English name or its key. candidates: entity ids; without
        them, all entities of the language are candidates.
        """
        return self._answer_one(Query(lang, subject, relation), config, candidates)

    def translate(
        self,
        name: str,
        *,
        lang: str,
        to: str,
        config: SearchConfig | None = None,
        candidates: Array | None = None,
    ) -> list[Answer]:
        """Return the names in the language `to` that best translate a name, best first."""
        return self._answer_one(Query(lang, name, None, to), config, candidates)

    def _answer_one(
        self, query: Query, config: SearchConfig | None, candidates: Array | None
    ) -> list[Answer]:
        [answers] = self.answer([query], config or SearchConfig(), candidates)
        if isinstance(answers, PrixError):
            raise answers
        return answers

    def answer(
        self, queries: Sequence[Query], config: SearchConfig, candidates: Array | None = None
    ) -> list[list[Answer] | PrixError]:
        """Return the answers to many queries; the error of each query that cannot be asked.

        Warns once of subjects that a trimmed model reads in other pieces than its base.
        """
        if not self._has_warned:
            subjects = [query.subject for query in queries]
            self._has_warned = warn_of_reading(self.model, subjects, "names asked")
        # Queries are grouped by the language of their candidates, since a search walks one trie,
        # and cut into batches. A query that fails has its error instead of answers.
        results: list[list[Answer] | PrixError] = [[] for _ in queries]
        prefixes: dict[int, list[int]] = {}  # by the query's position in `queries`
        rows_by_language: dict[str, list[int]] = {}  # of the candidates
        for row, query in enumerate(self._described(queries)):
            try:
                prefixes[row] = self.encode(query)
                rows_by_language.setdefault(query.to or query.lang, []).append(row)
            except PrixError as error:
                results[row] = error
        known = self._known_answers(queries, list(prefixes)) if config.new_only else None
        for lang, rows in rows_by_language.items():
            try:
                trie = self.trie(lang, candidates)
            except PrixError as error:
                for row in rows:
                    results[row] = error
                continue
            # The model's positions must hold the query and the longest candidate after it.
            room = self.model.max_length - trie.height
            for row in rows:
                if len(prefixes[row]) > room:
                    results[row] = _too_long(len(prefixes[row]), room)
            rows = [row for row in rows if len(prefixes[row]) <= room]
            for start in range(0, len(rows), _BATCH):
                batch = rows[start : start + _BATCH]
                exclude = None if known is None else [known[row] for row in batch]
                found = self._search(trie, [prefixes[row] for row in batch], config, exclude)
                for row, proof, answers in zip(batch, found, self._name(found), strict=True):
                    is_proven = config.search == "beam" or proof.complete
                    results[row] = answers if is_proven else _unproven(config)
        return results

    def encode(self, query: Query) -> list[int]:
        """Return the prefix of a query, or raise an error that says why it cannot be asked."""
        lang = self.check_language(query.lang)
        description = self._described([query])[0].description or ""
        # Some tokenizers turn white space into a token, others turn odd characters into none.
        tokens = self.model.encoder.tokenise([query.subject], lang)[0]
        if not tokens or not query.subject.strip():
            raise PrixError(f"the name {query.subject!r} has no tokens: expected some text.")
        if query.relation is None:
            to = self.check_language(query.to or "")
            if to == lang:
                raise PrixError(f"from {lang} to {to}: expected two different languages.")
            for code in (lang, to):
                if code not in self.model.encoder.languages:
                    raise PrixError(
                        f"the model has no token {language_token(code)}, so it cannot translate "
                        f"from or to {code}. It completes facts."
                    )
            prefix = self.model.encoder.encode(query.subject, (lang, to), None, description)
        else:
            name = self.relation_names(lang)[self.relation_id(query.relation, lang)]
            prefix = self.model.encoder.encode(query.subject, name, None, description, lang=lang)
        if len(prefix) >= self.model.max_length:
            raise PrixError(
                f"the query has {len(prefix)} tokens, and the model {self.model.max_length} "
                "positions: shorten the name."
            )
        return prefix

    def _described(self, queries: Sequence[Query]) -> Sequence[Query]:
        """Return the queries with the descriptions of their subjects, if the model reads them."""
        rows = [row for row, query in enumerate(queries) if query.description is None]
        if not rows or not self.model.encoder.descriptions:
            return queries
        found: dict[int, str] = {}
        if self.kb.has_descriptions:
            asked = {
                "query": pa.array(rows, pa.int64()),
                "lang": pa.array([queries[row].lang for row in rows], pa.string()),
                "name": pa.array([queries[row].subject for row in rows], pa.string()),
            }
            table = self.kb.join_table(pa.table(asked), _DESCRIBED)
            found = dict(zip(table["query"].to_pylist(), table["text"].to_pylist(), strict=True))
        described = list(queries)
        for row in rows:
            described[row] = replace(queries[row], description=found.get(row, ""))
        return described

    def check_language(self, lang: str) -> str:
        """Return the language; refuse one that the KB or the model does not have."""
        languages: dict[str, Collection[str]] = {
            self._kb_name: self.kb.languages,
            "the model": self.model.settings.languages,
        }
        for owner, known in languages.items():
            if lang not in known:
                raise PrixError(f"{owner} has no language {lang!r}; it has {', '.join(known)}.")
        return lang

    def relation_id(self, relation: str, lang: str) -> int:
        """Return a relation's id, by its name in a language, by its English name or by its key."""
        ids = self._relation_ids(lang)
        relation_id = ids.get(relation, ids.get(relation.casefold()))
        if relation_id is not None:
            return relation_id
        # A dict as an ordered set: many relations have their key as their name.
        names = dict.fromkeys([*self.relation_names(lang), *self.kb.relation_keys()])
        similar = difflib.get_close_matches(relation, list(names), 3, cutoff=0.5)
        raise PrixError(
            f"no relation {relation!r} in {self._kb_name}."
            + (f" Did you mean {', '.join(similar)}?" if similar else "")
        )

    def _read_relation_ids(self, lang: str) -> dict[str, int]:
        """Return relation ids by name and by key, as written and in small letters.

        Where several relations share a name, it stands for the most frequent of them.
        """
        counts = self.kb.relation_counts(lang)
        rare_first = sorted(
            range(self.kb.num_relations),
            key=lambda relation: (counts.get((lang, relation), 0), -relation),
        )
        # Later entries replace earlier ones: a name in `lang` wins over an English one and a key,
        # and a frequent relation over a rare one.
        lists = [self.kb.relation_keys(), self.kb.relation_names(lang)]
        if "en" in self.kb.languages:
            lists.insert(1, self.kb.relation_names("en"))
        as_written = {names[relation]: relation for names in lists for relation in rare_first}
        return {name.casefold(): relation for name, relation in as_written.items()} | as_written

    def suggest(self, name: str, lang: str, count: int = 3) -> list[str]:
        """Return the names of the KB that are spelled most like a name that it does not have."""
        rows = self.kb.query(
            "SELECT name FROM entities WHERE lang = $lang ORDER BY "
            "jaro_winkler_similarity(name, $name) DESC, name LIMIT $count",
            {"lang": lang, "name": name, "count": count},
        ).fetchall()
        return [row[0] for row in rows]

    def trie(self, lang: str, candidates: Array | None = None) -> Trie:
        """Return the trie of a language's candidates: all of its entities, or a subset."""
        # Arrays cannot be keys of the cache, and bytes can.
        key = None if candidates is None else np.asarray(candidates, np.int64).tobytes()
        trie = self._tries(lang, key)
        if not len(trie.entity):
            raise PrixError(f"there are no candidates in {lang}: expected at least one name.")
        return trie

    def _make_trie(self, lang: str, candidates: bytes | None) -> Trie:
        longest = self.model.max_length // 2
        trie = open_trie(self.cache, lang, self.kb.entity_range(lang), longest)
        return trie if candidates is None else trie.restrict(np.frombuffer(candidates, np.int64))

    def num_too_long(self, lang: str) -> int:
        """Count the names of a language that are too long for the model to be candidates.

        A candidate may take half of the model's positions; the other half is for the query.
        """
        return len(self.kb.entity_range(lang)) - len(self._tries(lang, None).entity)

    def _search(
        self,
        trie: Trie,
        prefixes: list[list[int]],
        config: SearchConfig,
        exclude: list[Array] | None,
    ) -> list[Found]:
        model, k = self.model, config.k
        if config.search == "beam":
            return beam_search(model, trie, prefixes, k, beam=config.beam, exclude=exclude)
        return exact_search(model, trie, prefixes, k, max_nodes=config.max_nodes, exclude=exclude)

    def _known_answers(self, queries: Sequence[Query], rows: list[int]) -> dict[int, Array]:
        """Return the entities that the KB already has as answers to these rows of `queries`."""
        chosen = [queries[row] for row in rows]
        relations = [
            None if query.relation is None else self.relation_id(query.relation, query.lang)
            for query in chosen
        ]
        asked = pa.table(
            {
                "query": pa.array(range(len(rows)), pa.int64()),
                "lang": pa.array([query.lang for query in chosen], pa.string()),
                "name": pa.array([query.subject for query in chosen], pa.string()),
                "relation": pa.array(relations, pa.int64()),
                "target": pa.array([query.to or query.lang for query in chosen], pa.string()),
            }
        )
        known = self.kb.join_table(asked, _KNOWN)
        entities = known["id"].to_numpy().astype(np.int64)
        # The table is sorted by query: the answers to each are one slice.
        bounds = np.searchsorted(known["query"].to_numpy(), np.arange(len(rows) + 1))
        slices = [entities[start:end] for start, end in pairwise(bounds)]
        return dict(zip(rows, slices, strict=True))

    def _name(self, found: Sequence[Found]) -> list[list[Answer]]:
        """Return answers with the names of their entities, all looked up in one go."""
        ids = np.concatenate([result.entity for result in found])
        names = iter(self.kb.names(ids.tolist()))
        return [
            [
                Answer(int(entity), next(names), float(score), rank)
                for rank, (entity, score) in enumerate(
                    zip(result.entity, result.score, strict=True), start=1
                )
            ]
            for result in found
        ]


def _too_long(num_tokens: int, room: int) -> PrixError:
    return PrixError(
        f"the query has {num_tokens} tokens, and the model's positions leave {room} beside the "
        "longest candidate: shorten the name."
    )


def _unproven(config: SearchConfig) -> PrixError:
    return PrixError(
        f"the best {config.k} could not be proven: the exact search reached its limit of "
        f"{config.max_nodes:,} nodes or of memory. Ask for fewer answers, or use the beam."
    )


def _load(folder: Path | str, kb: KB, mask: str | None) -> PrixLM:
    """Load a model, onto the GPU if there is one."""
    model = PrixLM.open(folder, kb.languages, mask)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def read_candidates(kb: KB, path: Path) -> tuple[Array, int]:
    """Read entities from a file with one name or key per line, in any language.

    Returns their ids, sorted, and the number of distinct lines that match no entity.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"--candidates {path} cannot be read: {error}.") from None
    wanted = pa.table({"name": pa.array([line.strip() for line in lines if line.strip()])})
    if not wanted.num_rows:
        raise PrixError(f"--candidates {path} is empty: expected one name or key per line.")
    rows = kb.join_table(
        wanted,
        "SELECT a.name, e.id FROM asked a JOIN entities e ON e.name = a.name UNION "
        "SELECT a.name, e.id FROM asked a JOIN entities e ON e.key = a.name",
    )
    if not rows.num_rows:
        raise PrixError(
            f"--candidates {path}: no line is a name or a key of an entity of {kb.folder}."
        )
    unknown = set(wanted["name"].to_pylist()) - set(rows["name"].to_pylist())
    return np.unique(rows["id"].to_numpy()).astype(np.int64), len(unknown)
