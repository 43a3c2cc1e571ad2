"""JMAC's protocol: what may be read for each language, and the rows made from that."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError
from prixlm.evaluation.link_prediction import figures_by_language, rank_facts
from prixlm.evaluation.protocols import JmacConfig, reproduce_jmac, support_kb
from prixlm.kb.store import SPLITS
from prixlm.rankers.complex import GraphConfig
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import RelatedPairs


def facts_of(kb: KB) -> dict[tuple[int, int, int], tuple[str, str]]:
    rows = kb.query("SELECT subject, relation, object, lang, split FROM triples").fetchall()
    return {(s, r, o): (lang, split) for s, r, o, lang, split in rows}


def test_valid_facts_of_supporters_are_train_and_half_of_the_links_are_kept(
    numbered: KB, tmp_path: Path
) -> None:
    found = support_kb(numbered, "fi", tmp_path / "kb", JmacConfig())
    before, after = facts_of(numbered), facts_of(found)
    assert before.keys() == after.keys()
    for fact, (lang, split) in before.items():
        expected = "train" if lang == "en" and split == "valid" else split
        assert after[fact] == (lang, expected)
    for lang in numbered.languages:
        for split in SPLITS:
            number = sum(value == (lang, split) for value in after.values())
            assert found.num_triples(lang, split) == number
    links = [pq.read_table(kb.path("links")).to_pylist() for kb in (numbered, found)]
    assert len(links[0]) == 15 and len(links[1]) == 8
    assert all(link in links[0] for link in links[1])
    concept = found.concepts()
    assert all(concept[link["a"]] == concept[link["b"]] for link in links[1])
    dropped = [link for link in links[0] if link not in links[1]]
    assert all(concept[link["a"]] != concept[link["b"]] for link in dropped)


def test_the_same_seed_draws_the_same_links_for_all_languages(numbered: KB, tmp_path: Path) -> None:
    def links(name: str, lang: str, seed: int) -> list[dict[str, int]]:
        kb = support_kb(numbered, lang, tmp_path / name, JmacConfig(seed=seed))
        rows: list[dict[str, int]] = pq.read_table(kb.path("links")).to_pylist()
        return rows

    assert links("a", "fi", 0) == links("b", "en", 0) != links("c", "en", 1)


def test_rows_are_made_from_the_kb_of_their_language(numbered: KB, tmp_path: Path) -> None:
    rows = ("usual", "pairs", "graph")
    config = JmacConfig(graph=GraphConfig(rank=4, epochs=1))
    results = reproduce_jmac(numbered, tmp_path / "jmac", config, rows)
    assert [result.title for result in results] == [
        "usual object",
        "links: pairs",
        "ComplEx, merged graph (ours)",
    ]
    for lang in ("en", "fi"):
        kb = KB(tmp_path / "jmac" / lang / "kb")
        table = rank_facts(kb, RelatedPairs(kb), [read_facts(kb, lang)])
        expected = figures_by_language(table)[lang]["all"]
        assert results[1].figures[lang]["all"].mrr == pytest.approx(expected.mrr)
    ranks = pq.read_table(tmp_path / "jmac" / "rows" / "pairs.parquet")
    assert set(ranks["lang"].to_pylist()) == {"en", "fi"}
    assert np.isfinite(ranks["rank"].to_numpy()).any()
    again = reproduce_jmac(numbered, tmp_path / "jmac", config, rows)
    assert repr(again) == repr(results)
    assert "links: pairs" in (tmp_path / "jmac" / "table.md").read_text("utf-8")


def test_bad_settings_are_refused(numbered: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="--rows nothing: expected some of usual"):
        reproduce_jmac(numbered, tmp_path / "x", rows=("nothing",))
    with pytest.raises(PrixError, match="above 0 and up to 1"):
        JmacConfig(links=0)
    with pytest.raises(PrixError, match="expected 0 or more"):
        JmacConfig(seed=-1)
    reproduce_jmac(numbered, tmp_path / "jmac", rows=("usual",))
    with pytest.raises(PrixError, match="was made with other"):
        reproduce_jmac(numbered, tmp_path / "jmac", JmacConfig(seed=1), rows=("usual",))
