"""Facts carried along links: into languages that name them, and never what is held out."""

from pathlib import Path

import pytest

from prixlm import KB, import_kb
from prixlm.kb.carried import carried_triples, count_carried

FACTS = """\
lang\tsubject\trelation\tobject\tsplit
en\tFinland\tcapital\tHelsinki\ttrain
en\tFrance\tcapital\tParis\ttrain
en\tFrance\tcurrency\tEuro\ttrain
en\tNorway\tcapital\tOslo\ttest
fi\tRanska\tcapital\tPariisi\ttest
fi\tRanska\tnaapuri\tSuomi\ttrain
fi\tNorja\tcapital\tOslo\tvalid
"""
LINKS = """\
lang_a\tname_a\tlang_b\tname_b
en\tFinland\tfi\tSuomi
en\tHelsinki\tfi\tHelsinki
en\tFrance\tfi\tRanska
en\tParis\tfi\tPariisi
en\tNorway\tfi\tNorja
"""


@pytest.fixture
def kb(tmp_path: Path) -> KB:
    (tmp_path / "facts.tsv").write_text(FACTS)
    (tmp_path / "links.tsv").write_text(LINKS)
    return import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")


def carried(kb: KB, *langs: str) -> list[tuple[str, str, str]]:
    batches = carried_triples(kb, langs or None, batch_rows=1)
    rows = [row for batch in batches for row in batch.to_pylist()]
    names = kb.relation_names("en")
    found = [(*kb.names([r["subject"], r["object"]]), names[r["relation"]]) for r in rows]
    assert count_carried(kb, langs or None) == len(rows)
    return sorted((subject, relation, object_) for subject, object_, relation in found)


def test_a_train_fact_is_carried_where_both_ends_have_a_counterpart(kb: KB) -> None:
    # Paris is held out in Finnish, the euro has no Finnish name, and Oslo is not a train fact.
    assert carried(kb, "fi") == [("Suomi", "capital", "Helsinki")]
    assert carried(kb, "en") == [("France", "naapuri", "Finland")]
    assert len(carried(kb)) == 2
