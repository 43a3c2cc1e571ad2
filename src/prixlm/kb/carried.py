"""Facts carried along links: what other languages' train triples state of linked entities.

A fact is carried into a language that names both its ends but does not state it. What the language
holds out stays unknown to its training, even where another language states it: neither a held-out
fact is carried, nor any other answer to a held-out question (a subject and a relation), because
that would teach that the true answer is wrong.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from prixlm.errors import PrixError
from prixlm.kb.store import KB

_FREE_FACTS, _NAMES = 1 << 22, 16
"""Facts that may be carried in any case, or for each triple and language: concepts with many names
in one language give a fact for each pair of them."""

# `wanted`: train facts between concepts, and the languages that name both ends, beside one that
# states it. The steps are materialised: DuckDB may otherwise pair all entities of a language first.
_WANTED = """
    WITH stated AS MATERIALIZED (
        SELECT DISTINCT a.concept AS a, t.relation, b.concept AS b, t.lang
        FROM triples t JOIN entities a ON a.id = t.subject JOIN entities b ON b.id = t.object
        WHERE t.split = 'train'
    ), named AS MATERIALIZED (
        SELECT concept, lang, count(*) AS number FROM entities
        WHERE list_contains($langs, lang) GROUP BY ALL
    ), subjects AS MATERIALIZED (
        SELECT DISTINCT f.a, f.relation, f.b, x.lang, x.number
        FROM stated f JOIN named x ON x.concept = f.a AND x.lang <> f.lang
    ), wanted AS MATERIALIZED (
        SELECT f.a, f.relation, f.b, f.lang, f.number * y.number AS number
        FROM subjects f JOIN named y ON y.concept = f.b AND y.lang = f.lang
    )
"""
_CARRIED = f"""
    {_WANTED}, moved AS MATERIALIZED (
        SELECT s.lang, s.id AS subject, w.relation, w.b
        FROM wanted w JOIN entities s ON s.concept = w.a AND s.lang = w.lang
    ), carried AS MATERIALIZED (
        SELECT m.subject, m.relation, o.id AS object
        FROM moved m JOIN entities o ON o.concept = m.b AND o.lang = m.lang
    )
    SELECT c.subject, c.relation, c.object FROM carried c
    ANTI JOIN triples k
    ON k.subject = c.subject AND k.relation = c.relation AND k.object = c.object
    ANTI JOIN (SELECT * FROM triples WHERE split <> 'train') h
    ON h.subject = c.subject AND h.relation = c.relation
"""


def carried_triples(
    kb: KB, langs: Sequence[str] | None = None, *, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the facts that links carry into `langs` (all by default): subject, relation, object."""
    query = f"{_CARRIED} ORDER BY c.subject, c.relation, c.object"
    yield from kb.stream(query, batch_rows, _asked(kb, langs))


def count_carried(kb: KB, langs: Sequence[str] | None = None) -> int:
    """Return the number of facts that links carry into `langs` (all by default)."""
    asked = _asked(kb, langs)
    [[count]] = kb.query(f"SELECT count(*) FROM ({_CARRIED})", asked).fetchall()
    return int(count)


def _asked(kb: KB, langs: Sequence[str] | None) -> dict[str, Any]:
    """Return the parameters of `_CARRIED`; refuse a KB whose concepts would give facts without end.

    They are counted by the numbers of names, before any fact is made.
    """
    asked = {"langs": list(langs or kb.languages)}
    [[found]] = kb.query(f"{_WANTED} SELECT coalesce(sum(number), 0) FROM wanted", asked).fetchall()
    most = max(_FREE_FACTS, _NAMES * kb.num_triples() * len(kb.languages))
    if found > most:
        raise PrixError(
            f"{kb.folder}: {int(found):,} facts would be carried along its links, expected at most "
            f"{most:,}: some concepts have very many names. Train without `propagate`, or import "
            "the KB again."
        )
    return asked
