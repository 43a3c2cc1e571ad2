"""Link prediction: ranks and figures against hand-worked examples, and whole evaluations."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from prixlm import KB, EngineConfig, PrixError, SplitConfig, split_kb
from prixlm.evaluation import link_prediction
from prixlm.evaluation.link_prediction import (
    EvaluateConfig,
    evaluate_rankers,
    figures_by_language,
    figures_by_relation,
    rank_facts,
)
from prixlm.lm.lineage import Lineage
from prixlm.lm.model import PrixLM
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphConfig, train_graph
from prixlm.rankers.fusion import Fusion
from prixlm.rankers.heldout import HeldOut, read_facts
from prixlm.rankers.links import MergedLookup, WhereUnstated
from prixlm.rankers.suite import NAMES, load_suite
from prixlm.reports.ranks import compare_ranks


def test_figures_are_by_language_subset_and_relation(nordic: KB) -> None:
    table = rank_facts(nordic, MergedLookup(nordic), [read_facts(nordic, "en")])
    right = [row["object_name"] for row in table.to_pylist() if row["rank"] == 1]
    assert right == ["Stockholm"]
    found = figures_by_language(table)["en"]
    assert found["all"].hits_1 == pytest.approx(1 / 3)
    assert found["no transfer"].hits_1 == 0
    relations = figures_by_relation(table)
    assert [name.split(" (")[0] for name in relations] == ["capital", "borders"]
    assert next(iter(relations.values())).hits_1 == 0.5


def test_evaluation_writes_tables_and_answers(numbered: KB, model: Path, tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    train_graph(numbered, graph, GraphConfig(rank=4, epochs=1, batch=50))
    config = EvaluateConfig(models=(model,), graphs=(graph,), relations=2, search="exact")
    evaluation = evaluate_rankers(numbered, config, tmp_path / "out")
    titles = [result.title for result in evaluation.results]
    links = [f"links: {rule}" for rule in ("direct", "lookup", "pairs")]
    rules = ["rules: paths", "rules: similar"]
    rules += ["names: similar", "names: shared", "names: new objects"]
    assert titles == ["usual object", *links, *rules, "Prix-LM all", "ComplEx graph"]
    relations = evaluation.relations
    assert list(relations) == titles and all(len(part) == 2 for part in relations.values())
    answers = pq.read_table(tmp_path / "out" / "answers" / "prix-lm-all.parquet").to_pylist()
    assert len(answers) == numbered.num_triples(split="test")
    for row in answers:
        if row["rank"] <= 10:  # the truth stands at its rank in the list
            assert row["answer"].index(row["object"]) + 1 == row["rank"]
    rows = [
        tmp_path / "out" / "answers" / f"{row}.parquet" for row in ("usual-object", "prix-lm-all")
    ]
    hits = compare_ranks(*rows)[0].values("en")
    assert hits["second"] - hits["first"] == pytest.approx(-hits["difference"])
    carried = pq.read_table(tmp_path / "out" / "answers" / "links-lookup.parquet").to_pylist()
    assert any(origin for row in carried for origin in row["origin"])
    by_relation = json.loads((tmp_path / "out" / "relations" / "links-pairs.json").read_text())
    assert sum(part["number"] for part in by_relation.values()) == len(answers)
    for name in ("table.md", "table.json", "table.png"):
        assert (tmp_path / "out" / name).exists()
    tables = evaluation.tables()
    assert [table.title for table in tables[:6]] == [
        *("Hits@1", "Hits@3", "Hits@10", "MRR"),
        *("MRR, no transfer", "MRR, no inverse"),
    ]
    assert tables[6].title == "usual object, by relation" and len(tables) == 6 + len(titles)
    assert tables[6].headers() == ["Hits@1", "Hits@10", "MRR", "facts"]


def test_workers_rank_as_one_process_does(
    numbered: KB, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of five facts; the fusion is fitted by the driver."""
    monkeypatch.setattr("prixlm.evaluation.link_prediction._PART_FACTS", 5)
    config = EvaluateConfig(models=(model,), fuse=True, search="exact")
    direct = evaluate_rankers(numbered, config)
    files = []
    for workers in (1, 2):
        to, engine = tmp_path / str(workers), EngineConfig(workers=workers)
        evaluation = evaluate_rankers(numbered, config, to, engine=engine)
        assert [r.figures for r in evaluation.results] == [r.figures for r in direct.results]
        files.append({path.name: path.read_bytes() for path in (to / "answers").iterdir()})
    assert files[0] == files[1] and not list(tmp_path.glob("*.partial"))
    with pytest.raises(PrixError, match="--engine and --workers require --to"):
        evaluate_rankers(numbered, config, engine=EngineConfig(workers=2))


def test_a_run_that_was_stopped_resumes_without_workers(
    numbered: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.evaluation.link_prediction._PART_FACTS", 5)
    config, ranked = EvaluateConfig(without=("paths", *NAMES)), []
    real = link_prediction.rank_facts

    def stop_at_the_seventh(
        kb: KB, ranker: Ranker, facts: Sequence[HeldOut], **options: Any
    ) -> Any:
        ranked.append(ranker.name)
        if len(ranked) == 7:
            raise KeyboardInterrupt
        return real(kb, ranker, facts, **options)

    whole = evaluate_rankers(numbered, config, tmp_path / "whole")
    monkeypatch.setattr(link_prediction, "rank_facts", stop_at_the_seventh)
    to = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        evaluate_rankers(numbered, config, to)
    assert len(list((tmp_path / "stopped.partial").glob("part-*.parquet"))) == 6
    resumed = evaluate_rankers(numbered, config, to)
    assert [r.figures for r in resumed.results] == [r.figures for r in whole.results]
    parts = [-(-numbered.num_triples(lang, "test") // 5) for lang in ("en", "fi")]
    assert len(ranked) == len(resumed.results) * sum(parts) + 1, (
        "the six finished parts are not made again"
    )
    assert all(result.ranking_seconds for result in resumed.results)
    for path in (tmp_path / "whole" / "answers").iterdir():
        assert path.read_bytes() == (to / "answers" / path.name).read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_a_fusion_has_a_seed(numbered: KB, tmp_path: Path) -> None:
    rows = []
    for seed in (0, 0, 1):
        config = EvaluateConfig(fuse=True, fuse_seed=seed, without=("paths", *NAMES))
        *_, fused = evaluate_rankers(numbered, config).results
        rows.append(fused.figures)
    assert rows[0] == rows[1] != rows[2]
    with pytest.raises(PrixError, match="--fuse-seed requires --fuse"):
        EvaluateConfig(fuse_seed=1)
    with pytest.raises(PrixError, match="--fuse-seed -1: expected 0 or more"):
        EvaluateConfig(fuse=True, fuse_seed=-1)


def test_trained_folders_are_told_apart_by_content_and_not_by_time(
    numbered: KB, tmp_path: Path
) -> None:
    """A copy on another machine is the same; another training of the same size is not."""
    folders = [tmp_path / name for name in ("one", "copy", "other")]
    for folder, content in zip(folders, (b"abc", b"abc", b"abd"), strict=True):
        folder.mkdir()
        (folder / "weights").write_bytes(content)
        os.utime(folder / "weights", (len(folder.name), 0))
    os.utime(folders[2] / "weights", (3, 0))
    one, copy, other = (
        link_prediction._inputs(numbered, EvaluateConfig(models=(folder,))) for folder in folders
    )
    assert one == copy != other and set(one) == {"KB", "models 1"}


def test_depth_answers_and_facts_of_the_fusion_are_as_asked(
    numbered: KB, model: Path, tmp_path: Path
) -> None:
    config = EvaluateConfig(
        models=(model,), fuse=True, search="exact", beyond=12, answers=0, fuse_facts=3, most=8
    )
    deep = dataclasses.replace(config, beyond=1000, answers=10, fuse_facts=2500)
    steps: list[tuple[str, int, int]] = []
    evaluation = evaluate_rankers(
        numbered, config, tmp_path / "out", lambda *step: steps.append(step)
    )
    evaluate_rankers(numbered, deep, tmp_path / "deep")
    shallow = next(row for row in evaluation.results if row.title == "Prix-LM all")
    assert shallow.max_rank == 12 and shallow.how == "exact, to rank 12"
    ranks = [
        pq.read_table(tmp_path / run / "answers" / "prix-lm-all.parquet") for run in ("out", "deep")
    ]
    near, far = (table["rank"].to_numpy() for table in ranks)
    assert (far > 12).any() and np.isinf(near[far > 12]).all()
    np.testing.assert_array_equal(near[far <= 12], far[far <= 12])
    assert "answer" not in ranks[0].column_names and "answer" in ranks[1].column_names
    fitted = [step for step in steps if step[0] == "fit the confidence"]
    assert fitted[-1] == ("fit the confidence", 6, 6), "three valid facts of two languages"


def test_a_beam_is_told_apart_from_exact_ranks(numbered: KB, model: Path) -> None:
    config = EvaluateConfig(models=(model, model), most=3, by_name=True, langs=("fi",), relations=1)
    evaluation = evaluate_rankers(numbered, config)
    beam = evaluation.results[-1]
    assert beam.title == "Prix-LM all (2)", "rows of one name are numbered"
    assert beam.max_rank == 10 and beam.how == "beam K = 50, to rank 10, by name"
    assert list(beam.figures) == ["fi"] and beam.figures["fi"]["all"].number == 3
    values = evaluation.to_json()
    (relation,) = values["relations"][beam.title].values()
    assert relation["mrr"] is None and relation["hits_10"] is not None
    (relation,) = values["relations"]["links: pairs"].values()
    assert relation["mrr"] is not None
    assert evaluation.tables()[-1].cells(next(iter(evaluation.relations[beam.title])))[2] == "–"


def test_a_model_that_was_trained_on_the_test_facts_is_refused(
    numbered: KB, model: Path, families: dict[str, Path], tmp_path: Path
) -> None:
    unseen = SplitConfig(unseen=0.2, valid=0.2, resplit=True)
    split = split_kb(numbered, tmp_path / "split", unseen)
    with pytest.raises(PrixError, match=r"Prix-LM all was trained on the KB that .*split is a"):
        evaluate_rankers(split, EvaluateConfig(models=(model,), most=2))
    base = PrixLM.from_base(families["gemma"], numbered.languages)
    lineage = Lineage(kb_fingerprint=numbered.fingerprint())
    base.settings = dataclasses.replace(base.settings, lineage=lineage)
    base.save(tmp_path / "read")
    with pytest.raises(PrixError, match="reader read was trained on the KB that"):
        evaluate_rankers(split, EvaluateConfig(readers=(tmp_path / "read",), most=2))
    with pytest.raises(PrixError, match="the reader was trained on the KB that"):
        load_suite(split, reader=tmp_path / "read")
    # Links alone are withheld: its test facts are still unknown to the model.
    withheld = split_kb(numbered, tmp_path / "withheld", SplitConfig(hide_links=0.2))
    assert evaluate_rankers(withheld, EvaluateConfig(models=(model,), most=2)).results


def test_rankers_can_be_left_out_of_the_rows_and_of_the_fusion(numbered: KB) -> None:
    whole, part = (
        evaluate_rankers(numbered, EvaluateConfig(fuse=True, without=without, most=20))
        for without in ((), ("similar-names", "shared-names", "new-objects"))
    )
    titles = [result.title for result in whole.results]
    assert [title for title in titles if not title.startswith("names: ")] == [
        result.title for result in part.results
    ]
    assert len(titles) == len(part.results) + 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "train"}, "expected test or valid"),
        ({"search": "wide"}, "expected beam or exact"),
        ({"most": 0}, "--most is 1 or more"),
        ({"without": ("usual", "paths")}, "--without usual: expected direct, "),
        ({"fuse": True, "split": "valid"}, "evaluate it on test"),
        ({"fuse": True, "by_name": True}, "leave out --by-name"),
        (
            {"search": "exact", "beyond": 9},
            "--beyond 9: expected 10, which Hits@10 needs, to 1,000",
        ),
        ({"beyond": 100}, "--beyond is of --search exact"),
        ({"answers": -1}, "--answers is 0 or more"),
        ({"fuse_facts": 5}, "--fuse-facts requires --fuse"),
        ({"open_world": True}, "--open-world requires --graph"),
        ({"subset": ("seen", "odd")}, "--subset odd: expected no-transfer, no-inverse, seen"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PrixError, match=message):
        EvaluateConfig(**options)


def test_a_graph_ranks_new_objects_beside_the_others(
    numbered: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SplitConfig(keep_split=True, unseen=0.2, valid=0.2)
    split = split_kb(numbered, tmp_path / "split", config)
    train_graph(split, tmp_path / "graph", GraphConfig(rank=4, epochs=1, batch=50))
    fused: list[Ranker] = []
    fit = Fusion.fit

    def recorded(kb: KB, rankers: list[Ranker], *rest: Any) -> Any:
        fused.extend(rankers)
        return fit(kb, rankers, *rest)

    monkeypatch.setattr(Fusion, "fit", recorded)
    folders = (tmp_path / "graph",)
    config = EvaluateConfig(graphs=folders, open_world=True, fuse=True, subset=("object-unseen",))
    rows = {row.title: row for row in evaluate_rankers(split, config).results}
    assert list(rows)[-3:] == ["ComplEx graph", "ComplEx graph: new objects", "fused"]
    new, known = rows["ComplEx graph: new objects"], rows["usual object"]
    assert np.mean([part["all"].mrr for part in new.figures.values()]) > np.mean(
        [part["all"].mrr for part in known.figures.values()]
    ), "a guess by frequency knows no new object"
    # As in every other fusion: new objects are looked for also where a language states another.
    restricted = {ranker.name for ranker in fused if isinstance(ranker, WhereUnstated)}
    assert restricted == {"names: similar", "names: shared"}


def test_a_subset_is_asked_alone_and_named(numbered: KB) -> None:
    config = EvaluateConfig(subset=("no-inverse", "seen"), most=7)
    result = evaluate_rankers(numbered, config).results[0]
    assert "facts: no-inverse and seen" in result.how
    for figures in result.figures.values():
        assert figures["all"].number == figures["no inverse"].number == 7
    with pytest.raises(PrixError, match=r"no test fact of .* is in object-unseen, seen"):
        evaluate_rankers(numbered, EvaluateConfig(subset=("object-unseen", "seen")))


def test_a_kb_without_test_facts_is_refused(toy: KB) -> None:
    with pytest.raises(PrixError, match="has no test triples: make some with `prixlm split`"):
        evaluate_rankers(toy, EvaluateConfig())


def test_a_table_that_prixlm_did_not_write_is_refused_before_the_work(
    numbered: KB, tmp_path: Path
) -> None:
    (tmp_path / "table.md").write_text("# Mine")
    with pytest.raises(PrixError, match=r"table\.md was not written by prixlm"):
        evaluate_rankers(numbered, EvaluateConfig(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]
