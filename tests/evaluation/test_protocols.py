"""JMAC's protocol: what may be read for each language, and the rows made from that."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError
from prixlm.evaluation import protocols
from prixlm.evaluation.link_prediction import figures_by_language, rank_facts
from prixlm.evaluation.protocols import JMAC_ROWS, JmacConfig, reproduce_jmac, support_kb
from prixlm.kb.store import SPLITS
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphConfig
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.heldout import HeldOut, read_facts
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
        ranks = pq.read_table(tmp_path / "jmac" / "rows" / "pairs" / f"{lang}.parquet")
        assert set(ranks["lang"].to_pylist()) == {lang}
        assert np.isfinite(ranks["rank"].to_numpy()).any()
    again = reproduce_jmac(numbered, tmp_path / "jmac", config, rows)
    assert repr(again) == repr(results)
    assert "links: pairs" in (tmp_path / "jmac" / "table.md").read_text("utf-8")


def test_fusions_are_rows_and_read_no_names(numbered: KB, tmp_path: Path) -> None:
    fusion = FusionConfig(depth=5, facts=50, iterations=5, leaves=4, smallest=2, parts=2)
    config = JmacConfig(graph=GraphConfig(rank=4, epochs=1), fusion=fusion)
    rows = reproduce_jmac(numbered, tmp_path, config, JMAC_ROWS[-2:], ["en"])
    titles = ["fused: links and rules", "fused: links, rules and the graph"]
    assert [row.title for row in rows] == titles
    with pytest.raises(PrixError, match=r"made with other config\.fusion"):
        reproduce_jmac(numbered, tmp_path, JmacConfig(graph=config.graph), ["usual"], ["en"])
    for name, last in (("fusion-untrained", "rules: similar"), ("fusion-graph", "ComplEx")):
        fitted = json.loads((tmp_path / "en" / name / "fusion.json").read_text("utf-8"))
        assert fitted["rankers"][-1].startswith(last)
        assert not any("names" in ranker for ranker in fitted["rankers"])
        assert fitted["config"]["facts"] == 50


def test_languages_follow_one_another_and_a_stopped_row_resumes(
    numbered: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reproduce_jmac(numbered, tmp_path / "whole", rows=("usual", "pairs"))
    to, ranked = tmp_path / "jmac", []

    def rank(kb: KB, ranker: Ranker, facts: Sequence[HeldOut]) -> pa.Table:
        ranked.append((facts[0].queries.lang, ranker.name))
        if ranked[-1] == ("en", "links: pairs") and len(ranked) < 5:
            raise KeyboardInterrupt
        return rank_facts(kb, ranker, facts)

    monkeypatch.setattr(protocols, "rank_facts", rank)
    part = reproduce_jmac(numbered, to, rows=("usual", "pairs"), langs=["fi"])
    assert [list(row.figures) for row in part] == [["fi"], ["fi"]]
    with pytest.raises(KeyboardInterrupt):
        reproduce_jmac(numbered, to, rows=("usual", "pairs"))
    assert repr(reproduce_jmac(numbered, to, rows=("usual", "pairs"))) == repr(whole)
    first = [("fi", "usual object"), ("fi", "links: pairs"), ("en", "usual object")]
    assert ranked == [*first, ("en", "links: pairs"), ("en", "links: pairs")]


def write_links(folder: Path, kb: KB, links: Sequence[tuple[int, int]]) -> Path:
    """Some links of the numbered KB in the layout of JMAC's dataset."""
    lists = {
        lang: [e.key.partition(":")[2] for e in kb.entities(kb.entity_range(lang))]
        for lang in kb.languages
    }
    for place in ("entity", "seed_train_pairs"):
        (folder / place).mkdir(parents=True)
    for lang, names in lists.items():
        (folder / "entity" / f"{lang}.tsv").write_text("\n".join(names) + "\n")
    pairs = [
        f"{lists['en'].index(f'en {a}')}.0\t{lists['fi'].index(f'fi {b}')}.0" for a, b in links
    ]
    to = folder / "seed_train_pairs"
    (to / "en-fi.tsv").write_text("\n".join(pairs) + "\n")
    return to


def test_the_links_of_a_folder_are_read_instead_of_a_draw(numbered: KB, tmp_path: Path) -> None:
    folder = write_links(tmp_path / "dataset", numbered, [(4, 4), (10, 10)])
    config = JmacConfig(links_from=str(folder))
    kb = support_kb(numbered, "fi", tmp_path / "kb", config)
    links = [(link["a"], link["b"]) for link in pq.read_table(kb.path("links")).to_pylist()]
    named = [tuple(kb.names(pair)) for pair in links]
    assert named == [("en 10", "fi 10"), ("en 4", "fi 4")] and kb.manifest.counts["links"] == 2
    concept = kb.concepts()
    assert all(concept[a] == concept[b] for a, b in links)
    assert len(set(concept.tolist())) == kb.num_entities - 2

    reproduce_jmac(numbered, tmp_path / "jmac", config, ("usual",))
    with pytest.raises(PrixError, match=r"made with other config\.links_from"):
        reproduce_jmac(numbered, tmp_path / "jmac", JmacConfig(), ("usual",))
    write_links(tmp_path / "other", numbered, [(4, 6)])
    (tmp_path / "other" / "seed_train_pairs" / "en-fi.tsv").replace(folder / "en-fi.tsv")
    with pytest.raises(PrixError, match=r"made with other config\.links_from"):
        reproduce_jmac(numbered, tmp_path / "jmac", config, ("usual",))


def test_links_of_another_benchmark_are_refused(numbered: KB, tmp_path: Path) -> None:
    folder = write_links(tmp_path / "dataset", numbered, [(4, 4), (10, 10)])
    entities = folder.parent / "entity" / "fi.tsv"
    entities.write_text(entities.read_text().replace("fi 4\n", "unknown\n"))
    with pytest.raises(PrixError, match=r"has 1 links of entities that .* does not have"):
        support_kb(numbered, "fi", tmp_path / "kb", JmacConfig(links_from=str(folder)))
    assert not (tmp_path / "kb").exists()


def test_bad_settings_are_refused(numbered: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="--rows nothing: expected some of usual"):
        reproduce_jmac(numbered, tmp_path / "x", rows=("nothing",))
    with pytest.raises(PrixError, match="above 0 and up to 1"):
        JmacConfig(links=0)
    with pytest.raises(PrixError, match="expected 0 or more"):
        JmacConfig(seed=-1)
    with pytest.raises(PrixError, match="has no test triples in te"):
        reproduce_jmac(numbered, tmp_path / "x", langs=("te",))
    reproduce_jmac(numbered, tmp_path / "jmac", rows=("usual",))
    with pytest.raises(PrixError, match="was made with other"):
        reproduce_jmac(numbered, tmp_path / "jmac", JmacConfig(seed=1), rows=("usual",))
