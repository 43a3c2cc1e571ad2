"""Link proposals: entities of two languages that mean the same and are not linked yet.

    table, summary = propose_links(kb, ["el"], "en")

The linker (`linking/linker.py`) is fitted on the links that the KB has, hidden in turn. With an
encoder or a model, which may know them, it is fitted on the links that the split withholds
(`prixlm split --hide-links`). Entities without any link count as entities without a counterpart, so
the confidence is rather too low than too high. Withheld links are known, so they are not proposed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from prixlm.decoding.completer import Completer
from prixlm.engine.jobs import EngineConfig
from prixlm.entities.encoder import EntityEncoder
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.linking.linker import LinkerConfig, LinkProblem, link_sides
from prixlm.linking.problems import kb_problem, withheld_links
from prixlm.proposals.tables import LINK_SCHEMA
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """Which links are proposed."""

    min_confidence: float = 0.5  # leave out links below it
    linker: LinkerConfig = field(default_factory=LinkerConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")


def propose_links(
    kb: KB,
    langs: Sequence[str],
    into: str,
    config: LinkConfig | None = None,
    encoder: EntityEncoder | None = None,
    progress: Progress | None = None,
    model: Completer | None = None,
    engine: EngineConfig | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Return link proposals from several languages into one, and a summary by language.

    model: its translations of all names are evidence; some minutes for ten thousand names.
    engine: where the names are encoded, if they were not before.
    The summary has the number of links, or the reason why a language has none.
    """
    tables = [LINK_SCHEMA.empty_table()]
    summary: dict[str, Any] = {}
    for lang in langs:
        if lang == into:
            summary[lang] = {"links": 0, "why": "it is the pivot; pass another --pivot."}
            continue
        try:
            settings = config or LinkConfig()
            problem = kb_problem(
                kb,
                lang,
                into,
                encoder=encoder,
                model=model,
                without=True,
                engine=engine,
                progress=progress,
            )
            tables.append(_propose(kb, lang, into, settings, problem, progress))
        except PrixError as error:
            logger.warning("no links for %s: %s", lang, error)
            summary[lang] = {"links": 0, "why": str(error)}
            continue
        summary[lang] = {"links": tables[-1].num_rows}
    return pa.concat_tables(tables), summary


def _propose(
    kb: KB,
    lang: str,
    into: str,
    config: LinkConfig,
    problem: LinkProblem,
    progress: Progress | None,
) -> pa.Table:
    """Return the links of one language, the most confident first."""
    if problem.without is not None and not len(problem.without):
        raise PrixError(f"all entities of {lang} are linked into {into}: no link is missing.")
    linked = link_sides(problem, config.linker, progress)
    rows = linked.best(problem.is_one_to_one())
    rows = rows[linked.confidence[rows] >= config.min_confidence]
    if kb.withholds_links:
        ends = [withheld_links(kb, lang, into, split) for split in ("valid", "test")]
        ours, theirs = (np.concatenate(side) for side in zip(*ends, strict=True))
        is_known = np.isin(linked.pairs.left[rows], ours)
        is_known |= np.isin(linked.pairs.right[rows], theirs)
        rows = rows[~is_known]
    # Equal confidences are ordered by the rank of the linker, which is finer.
    rows = rows[np.argsort(-linked.confidence[rows], kind="stable")]
    asked, others = (
        problem.ids[0][linked.pairs.left[rows]],
        problem.ids[1][linked.pairs.right[rows]],
    )
    spelled = np.fmax(linked.pairs.column("spelling"), linked.pairs.column("romanised"))
    evidence = [kinds.split(", ") if kinds else [] for kinds in linked.pairs.origins(rows)]
    return _table(kb, asked, others, linked.confidence[rows], spelled[rows], evidence)


def _table(
    kb: KB,
    asked: Array,
    others: Array,
    confidence: Array,
    similarity: Array,
    evidence: list[list[str]],
) -> pa.Table:
    ours, theirs = (kb.entities(ids.tolist()) for ids in (asked, others))
    columns: dict[str, Any] = {
        "lang": [one.lang for one in ours],
        "entity": [one.id for one in ours],
        "key": [one.key for one in ours],
        "name": [one.name for one in ours],
        "other_lang": [one.lang for one in theirs],
        "other": [one.id for one in theirs],
        "other_key": [one.key for one in theirs],
        "other_name": [one.name for one in theirs],
        "confidence": np.round(confidence, 6),
        "similarity": np.asarray(similarity, float),
        "evidence": evidence,
    }
    arrays = [pa.array(columns[column.name], column.type) for column in LINK_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=LINK_SCHEMA)
