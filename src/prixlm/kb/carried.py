"""Facts carried along links: what other languages' train triples state of linked entities.

A fact is carried into a language that names both its ends but does not state it. What the language
holds out stays unknown to its training, even where another language states it: neither a held-out
fact is carried, nor any other answer to a held-out question (a subject and a relation), because
that would teach that the true answer is wrong.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from prixlm.kb.store import KB

_CARRIED = """
    -- `moved`: train facts with the subject in another language. The two steps are materialised,
    -- because DuckDB may otherwise pair all entities of a language with each other first.
    WITH moved AS MATERIALIZED (
        SELECT DISTINCT s.lang, s.id AS subject, t.relation, b.concept
        FROM triples t
        JOIN entities a ON a.id = t.subject JOIN entities b ON b.id = t.object
        JOIN entities s ON s.concept = a.concept
        WHERE t.split = 'train' AND s.lang <> t.lang AND list_contains($langs, s.lang)
    ), carried AS MATERIALIZED (
        SELECT m.subject, m.relation, o.id AS object
        FROM moved m JOIN entities o ON o.concept = m.concept AND o.lang = m.lang
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
    yield from kb.stream(query, batch_rows, {"langs": list(langs or kb.languages)})


def count_carried(kb: KB, langs: Sequence[str] | None = None) -> int:
    """Return the number of facts that links carry into `langs` (all by default)."""
    asked = {"langs": list(langs or kb.languages)}
    [[count]] = kb.query(f"SELECT count(*) FROM ({_CARRIED})", asked).fetchall()
    return int(count)
