"""Completion (Sec. 2.2): the missing object of a fact, or a name in another language.

    completer = Completer("model", "kb")
    completer.complete("Finland", "capital", lang="en")
    completer.translate("London", lang="en", to="es")

The subject may be a name that the KB has never seen: that is the point of the model. The candidates
are the entities of the KB in the language that is asked for, or a subset.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from prixlm.decoding.search import Found, beam_search, exact_search
from prixlm.decoding.trie import Trie, open_trie
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import build_tokens, encode_names
from prixlm.types import Answer, Array, Progress, Query

BATCH = 16
"""Queries that are searched for together."""


_KNOWN = """
    WITH named AS (
        SELECT place, a.relation, target, e.id, e.concept
        FROM asked a JOIN entities e ON e.lang = a.lang AND e.name = a.name
        UNION
        SELECT place, a.relation, target, e.id, e.concept
        FROM asked a JOIN aliases n ON n.name = a.name
        JOIN entities e ON e.id = n.entity AND e.lang = a.lang
    )
    SELECT place, t.object AS id
    FROM named n JOIN triples t ON t.subject = n.id AND t.relation = n.relation
    UNION
    SELECT place, e.id
    FROM named n JOIN entities e ON e.concept = n.concept AND e.lang = n.target
    WHERE n.relation IS NULL
    ORDER BY place, id
"""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How to search."""

    k: int = 10  # answers to a query
    search: Literal["beam", "exact"] = "beam"
    beam: int = 50  # unfinished names a step, the paper's K
    new_only: bool = False  # leave out what the KB already has
    exclude_late: bool = False  # as the released code: known objects take places in the beam
    max_nodes: int = 100_000  # of an exact search, for one query

    def __post_init__(self) -> None:
        if self.k < 1 or self.beam < 1 or self.max_nodes < 1:
            raise PrixError("-k, --beam and max_nodes have to be 1 or more.")
        if self.search not in ("beam", "exact"):
            raise PrixError(f"search {self.search}: expected beam or exact.")
        if self.exclude_late and self.search == "exact":
            raise PrixError("exclude_late goes with the beam: an exact search has no places.")


class Completer:
    """A model, and the KB whose entities are its candidates."""

    def __init__(
        self, model: PrixLM | Path | str, kb: KB | Path | str, progress: Progress | None = None
    ) -> None:
        self.model = (model if isinstance(model, PrixLM) else _load(model)).eval()
        self.kb = kb if isinstance(kb, KB) else KB(kb)
        shared = set(self.kb.languages) & set(self.model.settings.languages)
        if not shared:
            raise PrixError(
                f"the model and {self.kb.folder} do not belong together: it was trained on "
                f"{', '.join(self.model.settings.languages)}, and the KB has "
                f"{', '.join(self.kb.languages)}."
            )
        self.cache = build_tokens(self.kb, self.model.encoder.tokenizer, progress)
        self.relations = lru_cache(maxsize=64)(self._read_relations)
        self.relation_names = lru_cache(maxsize=64)(self.kb.relation_names)
        self._tries = lru_cache(maxsize=8)(self._make_trie)

    @property
    def is_of_this_kb(self) -> bool:
        """Whether the model was trained on this very KB (or another, such as a split of it)."""
        return self.model.settings.trained.get("kb_fingerprint") == self.kb.fingerprint()

    def identity(self) -> str:
        """A hash of the model: its settings and some of its weights."""
        weight = self.model.backbone.get_input_embeddings().weight.detach().cpu().numpy()
        digest = hashlib.sha256(json.dumps(asdict(self.model.settings)).encode())
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
        """The objects that best complete a fact."""
        query = Query(lang, subject, relation)
        return self._one(query, config or SearchConfig(), candidates)

    def translate(
        self,
        name: str,
        *,
        lang: str,
        to: str,
        config: SearchConfig | None = None,
        candidates: Array | None = None,
    ) -> list[Answer]:
        """What a thing is called in another language."""
        return self._one(Query(lang, name, None, to), config or SearchConfig(), candidates)

    def _one(self, query: Query, config: SearchConfig, candidates: Array | None) -> list[Answer]:
        [found] = self.answer([query], config, candidates)
        if isinstance(found, PrixError):
            raise found
        return found

    def answer(
        self, queries: Sequence[Query], config: SearchConfig, candidates: Array | None = None
    ) -> list[list[Answer] | PrixError]:
        """Answers to many queries; one that cannot be asked gets its error instead."""
        results: list[list[Answer] | PrixError] = [[] for _ in queries]
        groups: dict[str, list[tuple[int, list[int]]]] = {}
        for place, query in enumerate(queries):
            try:
                groups.setdefault(query.to or query.lang, []).append((place, self.encode(query)))
            except PrixError as error:
                results[place] = error
        known: list[Array] = []
        if config.new_only:
            asked = [place for rows in groups.values() for place, _ in rows]
            known = [np.zeros(0, np.int64)] * len(queries)
            found_known = self._known([queries[place] for place in asked])
            for place, objects in zip(asked, found_known, strict=True):
                known[place] = objects
        for lang, rows in groups.items():
            try:
                trie = self.trie(lang, candidates)
            except PrixError as error:
                for place, _ in rows:
                    results[place] = error
                continue
            room = self.model.max_length - trie.height
            for place, prefix in rows:
                if len(prefix) > room:
                    results[place] = PrixError(
                        f"the query has {len(prefix)} tokens, and the model's positions leave "
                        f"{room} beside the longest candidate: shorten the name."
                    )
            rows = [row for row in rows if len(row[1]) <= room]
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH]
                hidden = [known[place] for place, _ in part] if known else None
                found = self._search(trie, [prefix for _, prefix in part], config, hidden)
                named = zip(part, found, self._named(found), strict=True)
                for (place, _), one, answers in named:
                    is_proven = config.search == "beam" or one.complete
                    results[place] = answers if is_proven else _unproven(config)
        return results

    def encode(self, query: Query) -> list[int]:
        """The prefix of a query; what cannot be asked is an error that says why."""
        lang = self.check_language(query.lang)
        tokens = encode_names(self.model.encoder.tokenizer, [query.subject])[0]
        if not tokens or not query.subject.strip():
            raise PrixError(f"the name {query.subject!r} has no tokens: there is nothing to ask.")
        if query.relation is None:
            to = self.check_language(query.to or "")
            if to == lang:
                raise PrixError(f"from {lang} to {to}: name two languages.")
            prefix = self.model.encoder.encode(query.subject, (lang, to), None)
        else:
            name = self.relation_names(lang)[self.relation_id(query.relation, lang)]
            prefix = self.model.encoder.encode(query.subject, name, None)
        if len(prefix) >= self.model.max_length:
            raise PrixError(
                f"the query has {len(prefix)} tokens, and the model {self.model.max_length} "
                "positions: shorten the name."
            )
        return prefix

    def check_language(self, lang: str) -> str:
        """The language, if the KB and the model have it."""
        for place, known in (
            (str(self.kb.folder), self.kb.languages),
            ("the model", self.model.settings.languages),
        ):
            if lang not in known:
                raise PrixError(f"{place} has no language {lang!r}; it has {', '.join(known)}.")
        return lang

    def relation_id(self, relation: str, lang: str) -> int:
        """A relation by its name in a language, by its English name or by its key."""
        known = self.relations(lang)
        number = known.get(relation, known.get(relation.casefold()))
        if number is not None:
            return number
        names = dict.fromkeys([*self.relation_names(lang), *self.kb.relation_keys()])
        near = similar(relation, list(names))
        raise PrixError(
            f"no relation {relation!r} in {self.kb.folder}."
            + (f" Did you mean {', '.join(near)}?" if near else "")
        )

    def _read_relations(self, lang: str) -> dict[str, int]:
        """Relation ids by name and key, as written and in small letters; a name that several share
        stands for the commonest."""
        counts = dict(
            self.kb.query(
                "SELECT relation, count(*) FROM triples WHERE lang = $lang GROUP BY relation",
                {"lang": lang},
            ).fetchall()
        )
        rare_first = sorted(range(self.kb.num_relations), key=lambda r: (counts.get(r, 0), -r))
        lists = [self.kb.relation_keys(), self.kb.relation_names(lang)]
        if "en" in self.kb.languages:
            lists.insert(1, self.kb.relation_names("en"))
        written = {names[number]: number for names in lists for number in rare_first}
        return {name.casefold(): number for name, number in written.items()} | written

    def suggest(self, name: str, lang: str, number: int = 3) -> list[str]:
        """Names of the KB that look like a name that it does not have."""
        rows = self.kb.query(
            "SELECT name FROM entities WHERE lang = $lang ORDER BY "
            "jaro_winkler_similarity(name, $name) DESC, name LIMIT $number",
            {"lang": lang, "name": name, "number": number},
        ).fetchall()
        return [row[0] for row in rows]

    def trie(self, lang: str, candidates: Array | None = None) -> Trie:
        """The candidates of a language, or those of a subset."""
        some = None if candidates is None else np.asarray(candidates, np.int64).tobytes()
        trie = self._tries(lang, some)
        if not len(trie.entity):
            raise PrixError(f"there are no candidates in {lang}: expected one name at least.")
        return trie

    def _make_trie(self, lang: str, candidates: bytes | None) -> Trie:
        longest = self.model.max_length // 2
        trie = open_trie(self.cache, lang, self.kb.entity_range(lang), longest)
        return trie if candidates is None else trie.restrict(np.frombuffer(candidates, np.int64))

    def num_too_long(self, lang: str) -> int:
        """How many names of a language are no candidates: they take over half of the positions."""
        return len(self.kb.entity_range(lang)) - len(self._tries(lang, None).entity)

    def _search(
        self, trie: Trie, prefixes: list[list[int]], config: SearchConfig, known: Any
    ) -> list[Found]:
        if config.search == "beam":
            return beam_search(
                self.model,
                trie,
                prefixes,
                config.k,
                beam=config.beam,
                exclude=known,
                exclude_late=config.exclude_late,
            )
        return exact_search(
            self.model, trie, prefixes, config.k, max_nodes=config.max_nodes, exclude=known
        )

    def _known(self, queries: Sequence[Query]) -> list[Array]:
        """What the KB already has for each query: objects of the relation, or linked names."""
        relations = [
            None if query.relation is None else self.relation_id(query.relation, query.lang)
            for query in queries
        ]
        asked = pa.table(
            {
                "place": pa.array(range(len(queries)), pa.int64()),
                "lang": pa.array([query.lang for query in queries], pa.string()),
                "name": pa.array([query.subject for query in queries], pa.string()),
                "relation": pa.array(relations, pa.int64()),
                "target": pa.array([query.to or query.lang for query in queries], pa.string()),
            }
        )
        rows = self.kb.join_table(asked, _KNOWN)
        place, ids = rows["place"].to_numpy(), rows["id"].to_numpy()
        starts = np.searchsorted(place, np.arange(len(queries) + 1))
        return [ids[a:b].astype(np.int64) for a, b in pairwise(starts)]

    def _named(self, found: Sequence[Found]) -> list[list[Answer]]:
        """Answers with the names of their entities, looked up once."""
        ids = np.concatenate([one.entity for one in found]) if found else np.zeros(0, np.int64)
        names = iter(self.kb.names(ids.tolist()))
        return [
            [
                Answer(int(entity), next(names), float(score), rank)
                for rank, (entity, score) in enumerate(
                    zip(one.entity, one.score, strict=True), start=1
                )
            ]
            for one in found
        ]


def _unproven(config: SearchConfig) -> PrixError:
    return PrixError(
        f"the best {config.k} could not be proven: the exact search stopped at its limit of "
        f"{config.max_nodes:,} nodes, or of memory. Ask for fewer answers, or use the beam."
    )


def _load(folder: Path | str) -> PrixLM:
    """A model, on the GPU if there is one."""
    return PrixLM.load(folder).to("cuda" if torch.cuda.is_available() else "cpu")


def read_candidates(kb: KB, path: Path) -> tuple[Array, int]:
    """The entities of a file of names or keys, one a line, in whatever languages have them; and how
    many lines no entity has."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrixError(f"--candidates {path} cannot be read: {error}.") from None
    wanted = pa.table({"name": pa.array([line.strip() for line in lines if line.strip()])})
    if not wanted.num_rows:
        raise PrixError(f"--candidates {path} is empty: expected a name or a key a line.")
    rows = kb.join_table(
        wanted,
        "SELECT a.name, e.id FROM asked a JOIN entities e ON e.name = a.name UNION "
        "SELECT a.name, e.id FROM asked a JOIN entities e ON e.key = a.name",
    )
    if not rows.num_rows:
        raise PrixError(f"none of the names in {path} is an entity of {kb.folder}.")
    found = len(set(rows["name"].to_pylist()))
    unknown = len(set(wanted["name"].to_pylist())) - found
    return np.unique(rows["id"].to_numpy()).astype(np.int64), unknown


def similar(word: str, words: list[str], number: int = 3) -> list[str]:
    """The words that look most like a word."""
    import difflib

    return difflib.get_close_matches(word, words, number, cutoff=0.5)
