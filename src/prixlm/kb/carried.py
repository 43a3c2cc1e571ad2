"""Facts carried along links, as training facts: what other languages' train states of the same
things, in the words of a language that does not state it.

What a language holds out for testing stays unknown to its training, though another language may
state it: no held-out fact is carried, nor any other answer to a held-out question (a subject and a
relation), which would teach that the true one is wrong.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from prixlm.kb.store import KB

_NEW = """
    -- Materialised: else DuckDB may pair all entities of a language with each other first.
    WITH begun AS MATERIALIZED (
        SELECT DISTINCT s.lang, s.id AS subject, t.relation, b.concept
        FROM triples t
        JOIN entities a ON a.id = t.subject JOIN entities b ON b.id = t.object
        JOIN entities s ON s.concept = a.concept
        WHERE t.split = 'train' AND s.lang <> t.lang AND list_contains($langs, s.lang)
    ), carried AS MATERIALIZED (
        SELECT f.subject, f.relation, o.id AS object
        FROM begun f JOIN entities o ON o.concept = f.concept AND o.lang = f.lang
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
    """The facts that links carry into some languages, or all: subject, relation, object."""
    query = f"{_NEW} ORDER BY c.subject, c.relation, c.object"
    yield from kb.stream(query, batch_rows, {"langs": list(langs or kb.languages)})


def count_carried(kb: KB, langs: Sequence[str] | None = None) -> int:
    """How many facts links carry into some languages, or all."""
    wanted = {"langs": list(langs or kb.languages)}
    [[number]] = kb.query(f"SELECT count(*) FROM ({_NEW})", wanted).fetchall()
    return int(number)
