"""Link prediction: filter, subsets and ranks against hand-worked examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from prixlm import KB, Completer, PrixError, PrixLM, import_kb
from prixlm.decoding.search import score_all
from prixlm.evaluation.link_prediction import (
    figures_by_language,
    figures_by_relation,
    rank_facts,
    write_ranks,
)
from prixlm.rankers.base import PerLanguage, Queries, Ranked, make_ranked, ranks_from_pairs
from prixlm.rankers.complex import ComplEx, GraphRanker
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import Transfer
from prixlm.rankers.lm import ModelRanker

FACTS = """\
lang\tsubject\trelation\tobject\tsplit
en\tFinland\tborders\tSweden\ttrain
en\tFinland\tborders\tNorway\ttest
en\tFinland\tborders\tRussia\tvalid
en\tNorway\tborders\tFinland\ttrain
en\tSweden\tcapital\tStockholm\ttest
en\tSweden\tcapital of\tOslo\ttrain
en\tNorway\tcapital\tOslo\ttest
fi\tRuotsi\tcapital\tTukholma\ttrain
fi\tNorja\tborders\tRuotsi\ttrain
"""
LINKS = """\
lang_a\tname_a\tlang_b\tname_b
en\tSweden\tfi\tRuotsi
en\tStockholm\tfi\tTukholma
en\tNorway\tfi\tNorja
"""


@pytest.fixture
def kb(tmp_path: Path) -> KB:
    (tmp_path / "facts.tsv").write_text(FACTS, "utf-8")
    (tmp_path / "links.tsv").write_text(LINKS, "utf-8")
    return import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")


def test_the_filter_and_the_subsets_are_those_worked_by_hand(kb: KB) -> None:
    facts = read_facts(kb, "en")
    subjects, objects = (kb.names(a.tolist()) for a in (facts.queries.subject, facts.objects))
    pairs = list(zip(subjects, objects, strict=True))
    by_pair = {pair: number for number, pair in enumerate(pairs)}
    assert set(by_pair) == {("Finland", "Norway"), ("Sweden", "Stockholm"), ("Norway", "Oslo")}
    border = by_pair["Finland", "Norway"]
    hidden = facts.queries.hidden[
        facts.queries.offset[border] : facts.queries.offset[border + 1]
    ].tolist()
    assert sorted(kb.names(hidden)) == ["Russia", "Sweden"]  # train and valid, not the truth
    in_ = {name: [pairs[n] for n in np.flatnonzero(rows)] for name, rows in facts.subsets.items()}
    assert len(in_["all"]) == 3
    assert ("Sweden", "Stockholm") not in in_["no transfer"]  # Finnish train says it
    assert len(in_["no transfer"]) == 2
    assert in_["no inverse"] != in_["all"] and ("Finland", "Norway") not in in_["no inverse"]


def test_a_sample_is_a_part_of_the_whole_and_nothing_is_an_error(kb: KB) -> None:
    some = read_facts(kb, "en", most=2)
    assert len(some) == 2 and len(some.queries) == 2 and len(some.queries.offset) == 3
    with pytest.raises(PrixError, match="has no test triples in fi: make some"):
        read_facts(kb, "fi")


def test_transfer_never_reads_what_is_tested(kb: KB) -> None:
    table = rank_facts(kb, Transfer(kb, "lookup"), [read_facts(kb, "en")])
    right = [row["object_name"] for row in table.to_pylist() if row["rank"] == 1]
    assert right == ["Stockholm"]
    found = figures_by_language(table)["en"]
    assert found["all"].hits_1 == pytest.approx(1 / 3)
    assert found["no transfer"].hits_1 == 0
    relations = figures_by_relation(table)
    assert [name.split(" (")[0] for name in relations] == ["capital", "borders"]
    assert next(iter(relations.values())).hits_1 == 0.5


def test_answers_are_written_out_with_their_ranks(kb: KB, tmp_path: Path) -> None:
    table = rank_facts(kb, Transfer(kb, "lookup"), [read_facts(kb, "en")], answers=3)
    write_ranks(table, tmp_path / "ranks.parquet")
    assert pq.read_table(tmp_path / "ranks.parquet").equals(table)
    write_ranks(table, tmp_path / "ranks.tsv")
    head, *lines = (tmp_path / "ranks.tsv").read_text("utf-8").splitlines()
    rows = [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]
    [row] = [row for row in rows if row["object_name"] == "Stockholm"]
    assert row["subject_name"] == "Sweden" and row["rank"] == "1" and row["lang"] == "en"
    assert row["answer_name"] == "Stockholm" and row["no_transfer"] == "False"
    with pytest.raises(PrixError, match=r"expected a name that ends in .parquet or .tsv"):
        write_ranks(table, tmp_path / "ranks.doc")


def test_ranks_of_scored_pairs_share_ties() -> None:
    nothing = np.zeros(0, np.int64)
    queries = Queries("en", np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(4, int), nothing)
    owner = np.array([0, 0, 0, 1, 1])
    entity = np.array([4, 5, 6, 4, 5])
    score = np.array([2.0, 2.0, 1.0, 3.0, 1.0])
    # 5 ties for the first place; 5 is second; nothing is known of the third query's 10 candidates.
    ranks = ranks_from_pairs(queries, owner, entity, score, np.array([5, 5, 5]), candidates=10)
    assert ranks.tolist() == [1.5, 2.0, 5.5]
    # Of ten candidates two are listed: the other eight share places 3 to 10.
    assert ranks_from_pairs(queries, owner, entity, score, np.array([9, 9, 9]), 10)[1] == 6.5
    ranked = make_ranked(3, owner, entity, score, 2)
    assert isinstance(ranked, Ranked) and ranked.entity.tolist() == [4, 5, 4, 5]
    assert ranked.offset.tolist() == [0, 2, 4, 4]


@pytest.fixture
def completer(kb: KB, bases: dict[str, Path]) -> Completer:
    model = PrixLM.from_base(bases["xlmr"], kb.languages)
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.mul_(4.0)
    return Completer(model, kb)


def test_the_models_ranks_are_those_of_scoring_every_entity(kb: KB, completer: Completer) -> None:
    facts = read_facts(kb, "en")
    exact = ModelRanker(completer, batch=2)
    ranks = exact.ranks(facts.queries, facts.objects)
    best = exact.best(facts.queries, 4)
    trie = completer.trie("en")
    relations = kb.relation_names("en")
    for number in range(len(facts)):
        name = kb.names([int(facts.queries.subject[number])])[0]
        relation = relations[facts.queries.relation[number]]
        prefix = completer.model.encoder.encode(name, relation, None)
        offset = facts.queries.offset
        hidden = facts.queries.hidden[offset[number] : offset[number + 1]]
        [whole] = score_all(completer.model, trie, [prefix], exclude=[hidden])
        place = whole.entity.tolist().index(facts.objects[number])
        assert ranks[number] == place + 1
        mine = best.entity[best.offset[number] : best.offset[number + 1]]
        assert mine.tolist() == whole.entity[:4].tolist()
    assert exact.ranks(facts.queries, facts.objects, beyond=1).max() == np.inf
    beam = ModelRanker(completer, search="beam", batch=2)
    assert beam.ranks(facts.queries, facts.objects).tolist() == ranks.tolist()


def test_entities_of_one_name_share_their_ranks_or_are_ranked_as_one_name(
    tmp_path: Path, bases: dict[str, Path]
) -> None:
    names = ["Springfield", "Springfield", "Springfield", "Salem", "Portland", "Oregon"]
    folder = tmp_path / "dbp"
    (folder / "entity").mkdir(parents=True), (folder / "kg").mkdir()
    (folder / "entity" / "en.tsv").write_text("\n".join(names) + "\n")
    (folder / "relations.txt").write_text("city\n")
    (folder / "kg" / "en-train.tsv").write_text("5\t0\t0\n")
    (folder / "kg" / "en-val.tsv").write_text("5\t0\t3\n")
    (folder / "kg" / "en-test.tsv").write_text("5\t0\t1\n5\t0\t4\n")
    kb = import_kb([folder], tmp_path / "kb")
    facts = read_facts(kb, "en")
    model = PrixLM.from_base(bases["xlmr"], kb.languages)
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.mul_(4.0)
    completer = Completer(model, kb)
    prefix = model.encoder.encode("Oregon", kb.relation_names("en")[0], None)
    [whole] = score_all(model, completer.trie("en"), [prefix])
    order = [kb.names([e])[0] for e in whole.entity.tolist()]
    portland, springfield = np.argsort(kb.names(facts.objects.tolist()))
    # It hides a Springfield, Salem and Portland; two Springfields and Oregon are left.
    above = int(order.index("Oregon") < order.index("Springfield"))
    for search in ("beam", "exact"):
        plain = ModelRanker(completer, search=search).ranks(facts.queries, facts.objects)
        assert plain[springfield] == above + 1.5
        named = ModelRanker(completer, search=search, by_name=True)
        ranks = named.ranks(facts.queries, facts.objects)
        assert ranks[springfield] == above + 1
        # Portland's query hides Salem and two Springfields, by name all three.
        assert ranks[portland] == 1 + int(order.index("Oregon") < order.index("Portland"))
        third = int(order.index("Springfield") < order.index("Portland"))
        assert plain[portland] == ranks[portland] + third


def test_scores_of_given_objects_are_those_of_the_lists(kb: KB, completer: Completer) -> None:
    facts = read_facts(kb, "en")
    nodes = int(kb.concepts().max()) + 1
    graph = GraphRanker(kb, ComplEx(nodes, kb.num_relations, 4, kb.num_entities))
    rankers: list[Any] = [ModelRanker(completer, batch=2), Transfer(kb), graph]
    rankers.append(PerLanguage("each", {"en": rankers[0]}))
    for ranker in rankers:
        ranked = ranker.best(facts.queries, 100)
        mixed = np.random.default_rng(0).permutation(len(ranked.entity))
        owner, entity = ranked.owners()[mixed], ranked.entity[mixed]
        scores = ranker.scores(facts.queries, owner, entity)
        np.testing.assert_allclose(scores, ranked.score[mixed], rtol=1e-4, atol=1e-4)
        none = ranker.scores(facts.queries, owner[:0], entity[:0])
        assert len(none) == 0
    with pytest.raises(PrixError, match="each has no fi: en"):
        rankers[-1].best(read_facts(kb, "fi", "train").queries, 1)
