"""Link prediction: filter, subsets and ranks against hand-worked examples."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, Completer, PrixError, PrixLM, import_kb
from prixlm.decode import score_all
from prixlm.model_ranking import ModelRanker
from prixlm.ranking import Queries, Ranked, make_ranked, ranks_from_pairs
from prixlm.tasks.link_prediction import evaluate, read_facts
from prixlm.transfer import Transfer

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
    row, ranks = evaluate(Transfer(kb, "lookup"), [read_facts(kb, "en")])
    facts = read_facts(kb, "en")
    right = [kb.names([o])[0] for o, r in zip(facts.objects, ranks["en"], strict=True) if r == 1]
    assert right == ["Stockholm"]
    assert row.figures["en"]["all"].hits_1 == pytest.approx(1 / 3)
    assert row.figures["en"]["no transfer"].hits_1 == 0


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
    torch.set_num_threads(1)
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
