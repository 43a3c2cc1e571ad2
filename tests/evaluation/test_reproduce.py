"""The link-prediction table on a small KB: every row is made once, and a folder is resumed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from prixlm import KB, PretrainConfig, PrixError, import_kb
from prixlm.config import read_config
from prixlm.evaluation.link_prediction import EvaluateConfig, evaluate_rankers, rank_facts
from prixlm.evaluation.reproduce import (
    PAPER_SUBSETS,
    UNSEEN_ROWS,
    ReproduceConfig,
    Reproduction,
    reproduce_lp,
)
from prixlm.evaluation.trained import SearchSpace
from prixlm.kb.carried import carried_triples
from prixlm.rankers.base import read_merged_triples, read_triples
from prixlm.rankers.complex import GraphConfig, GraphTask
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.heldout import UNSEEN_SUBSETS, unseen_facts
from prixlm.rankers.pykeen import BaselineConfig
from prixlm.rankers.suite import UNTRAINED
from prixlm.reports.ranker_results import RankerResult
from tests.evaluation.conftest import TINY

pytest.importorskip("pykeen", reason="PyKEEN is an extra: pip install 'prixlm[baselines]'")
NUM_ROWS = len(UNTRAINED) + 1 + 8 + 8 + 4
"""Untrained rankers, the graph, Prix-LM, PyKEEN, and four fusions: rows that need no name."""
CONFIG = ReproduceConfig(
    pretrain=TINY,
    propagate_epochs=1,
    single_epochs=2,
    patience=1,
    graph=GraphConfig(rank=4, epochs=2, batch=50),
    fusion=FusionConfig(depth=5, facts=50, iterations=5, leaves=4, smallest=2),
    curve_facts=5,
    unseen=0.2,
    unseen_epochs=1,
    unseen_graph_epochs=1,
    search=SearchSpace(
        facts=20,
        batches=(16, 64),
        rates=(1e-3,),
        epochs=(1,),
        graph_batches=(50,),
        graph_epochs=(1, 8),
        graph_regularisers=(0.0,),
    ),
)


@pytest.fixture(scope="module")
def quick_baselines(request: pytest.FixtureRequest) -> None:
    """PyKEEN's models with few numbers and one epoch."""
    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)

    def small(cls: type[BaselineConfig], model: str, **_: object) -> BaselineConfig:
        return cls(model=model, dim=4, epochs=1)

    patch.setattr(BaselineConfig, "default", classmethod(small))
    patch.setattr(BaselineConfig, "tuned", classmethod(small))
    patch.setattr(BaselineConfig, "openke", classmethod(small))


@pytest.fixture(scope="module")
def table(numbered: KB, quick_baselines: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole table."""
    folder = tmp_path_factory.mktemp("table")
    reproduce_lp(numbered, folder, CONFIG)
    return folder


def test_every_row_is_there_with_its_ranks(numbered: KB, table: Path) -> None:
    keys = Reproduction(numbered, table, CONFIG).usual_keys
    assert len(keys) == NUM_ROWS
    values = json.loads((table / "table.json").read_text())
    assert [len(values[title]) for title in ("Link prediction", "Unseen entities")] == [
        NUM_ROWS,
        2 * len(UNSEEN_ROWS),
    ]
    for row in values["Unseen entities"]:
        for parts in row["figures"].values():
            assert list(parts) == list(UNSEEN_SUBSETS)
            assert parts["all"]["number"] == sum(
                parts[name]["number"] for name in UNSEEN_SUBSETS[1:]
            )
    tested = numbered.num_triples(split="test")
    for key in keys:
        row = RankerResult.load(table / "rows" / f"{key}.json")
        assert set(row.figures) == {"en", "fi"}
        ranks = pq.read_table(table / "rows" / f"{key}.parquet")
        assert len(ranks) == tested and ranks["rank"].to_numpy().min() >= 1
        assert (row.training_seconds is None) == (key in UNTRAINED)
    text = (table / "table.md").read_text()
    names = ("fused: links, rules and names", "fused, without Prix-LM", "fused, without the graph")
    assert all(f"| {title} |" in text for title in (*names, "fused"))
    # Each fusion has rankers of its own: what training adds is the last one's lead.
    fitted = {
        name: json.loads((table / name / "fusion.json").read_text())["rankers"]
        for name in ("fusion-untrained", "fusion-graph", "fusion-model", "fusion")
    }
    model, graph = fitted["fusion"][0], fitted["fusion"][-1]
    untrained = fitted["fusion-untrained"]
    assert model.startswith("Prix-LM") and graph.startswith("ComplEx")
    assert fitted["fusion-model"] == [model, *untrained]
    assert fitted["fusion-graph"] == [*untrained, graph]
    assert fitted["fusion"] == [model, *untrained, graph]
    for picture in ("table.png", "checkpoints.png"):
        assert (table / picture).read_bytes().startswith(b"\x89PNG")
    curves = json.loads((table / "checkpoints.json").read_text())
    assert curves["en"][0][0] == 0 and len(curves["en"]) > 1


def test_a_row_says_how_deep_its_ranks_are_known(table: Path) -> None:
    expected = {
        "pairs": ("exact", 1000),
        "fused": ("exact", 1000),
        "all-beam": ("beam K = 50, to rank 10", 10),
        "single-beam": ("beam K = 50, to rank 10", 10),
        "all-exact": ("exact, to rank 100", 100),
        "single-early-exact": ("exact, to rank 100", 100),
    }
    for key, (how, max_rank) in expected.items():
        row = RankerResult.load(table / "rows" / f"{key}.json")
        assert (row.how, row.max_rank) == (how, max_rank), key


def test_what_is_there_is_not_made_again(numbered: KB, table: Path, quick_baselines: None) -> None:
    before = {path: path.read_bytes() for path in table.rglob("*.safetensors")}
    assert before
    path = table / "rows" / "all-beam.json"
    seconds = RankerResult.load(path).training_seconds
    path.unlink()
    # A row of version 0.1 says in its text alone how deep its ranks are known.
    old = json.loads((table / "rows" / "all-exact.json").read_text())
    del old["max_rank"]
    (table / "rows" / "all-exact.json").write_text(json.dumps(old))
    rows = reproduce_lp(numbered, table, CONFIG, ["all-beam", "all-exact", "pairs"])
    assert [row.title for row in rows] == [
        "Prix-LM (All), beam",
        "Prix-LM (All), exact",
        "links: pairs",
    ]
    assert before == {path: path.read_bytes() for path in table.rglob("*.safetensors")}
    assert rows[0].training_seconds == seconds and rows[1].max_rank == CONFIG.beyond
    values = json.loads((table / "table.json").read_text())
    assert len(values["Link prediction"]) == NUM_ROWS, (
        "all rows, not only those that were asked for"
    )
    other = dataclasses.replace(CONFIG, curve_facts=6)
    with pytest.raises(PrixError, match=r"was made with other config.curve_facts: name another"):
        reproduce_lp(numbered, table, other, ["pairs"])


def test_a_row_that_was_stopped_resumes_after_the_languages_that_are_ranked(
    numbered: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked: list[str] = []

    def stop_in_finnish(kb: KB, ranker: Any, facts: Any, **options: Any) -> Any:
        ranked.extend(part.queries.lang for part in facts)
        if ranked == ["en", "fi"]:
            raise KeyboardInterrupt
        return rank_facts(kb, ranker, facts, **options)

    monkeypatch.setattr("prixlm.evaluation.rows.rank_facts", stop_in_finnish)
    with pytest.raises(KeyboardInterrupt):
        reproduce_lp(numbered, tmp_path / "table", CONFIG, ["usual"])
    parts = tmp_path / "table" / "rows" / "usual.partial"
    assert [path.name for path in parts.iterdir()] == ["en.parquet"]
    (row,) = reproduce_lp(numbered, tmp_path / "table", CONFIG, ["usual"])
    assert ranked == ["en", "fi", "fi"] and not parts.exists()
    assert row.ranking_seconds is not None and row.ranking_seconds > 0
    monkeypatch.undo()
    (unbroken,) = reproduce_lp(numbered, tmp_path / "other", CONFIG, ["usual"])
    assert row.figures == unbroken.figures
    tables = [
        pq.read_table(tmp_path / name / "rows" / "usual.parquet") for name in ("table", "other")
    ]
    assert tables[0].equals(tables[1], check_metadata=True)


def test_a_row_with_a_model_for_each_language_is_made_one_language_at_a_time(
    numbered: KB, quick_baselines: None, tmp_path: Path
) -> None:
    keys = ["graph-single", "single-searched-exact"]
    partly = reproduce_lp(numbered, tmp_path, CONFIG, keys, langs=["fi"])
    assert [list(row.figures) for row in partly] == [["fi"], ["fi"]]
    assert not (tmp_path / "rows" / "graph-single.json").exists()
    assert "| ComplEx, softmax, one language (ours) |" in (tmp_path / "table.md").read_text()
    # Every run of a search has its figure on valid facts, and the best one has its model.
    for key, folder in (("graph-single", "graph-single"), (keys[1], "single-searched")):
        searched = tmp_path / "searched" / folder / "fi"
        tried = json.loads((searched / "search.json").read_text())
        assert len(tried) == 2, key
        best = max(tried, key=lambda name: tried[name]["valid_mrr"])
        assert [path.name for path in searched.iterdir() if path.is_dir()] == [best]
    before = (tmp_path / "rows" / "graph-single" / "fi.parquet").read_bytes()
    whole = reproduce_lp(numbered, tmp_path, CONFIG, keys)
    assert [list(row.figures) for row in whole] == [["en", "fi"], ["en", "fi"]]
    assert whole[0].figures["fi"] == partly[0].figures["fi"]
    assert (tmp_path / "rows" / "graph-single" / "fi.parquet").read_bytes() == before
    ranks = pq.read_table(tmp_path / "rows" / "graph-single.parquet")
    assert len(ranks) == numbered.num_triples(split="test")
    with pytest.raises(PrixError, match="row graph has one model of all languages"):
        reproduce_lp(numbered, tmp_path, CONFIG, ["graph"], langs=["fi"])
    with pytest.raises(PrixError, match="has no test triples in te"):
        reproduce_lp(numbered, tmp_path, CONFIG, ["transe-softmax"], langs=["te"])
    with pytest.raises(PrixError, match="--langs requires --rows"):
        reproduce_lp(numbered, tmp_path, CONFIG, langs=["fi"])


def test_rows_that_take_long_are_made_if_they_are_named(
    numbered: KB, quick_baselines: None, tmp_path: Path
) -> None:
    keys = ["transe-openke", "rotate-softmax", "transe-softmax-merged", "transe-searched"]
    assert not set(keys) & set(Reproduction(numbered, tmp_path, CONFIG).usual_keys)
    grid = [BaselineConfig(model="TransE", dim=4, epochs=n) for n in (1, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaselineConfig, "grid", lambda _: grid)
        rows = reproduce_lp(numbered, tmp_path, CONFIG, keys)
    assert [row.title for row in rows] == [
        "TransE, OpenKE's rounds",
        "RotatE, softmax, one language (ours)",
        "TransE, softmax, merged graph (ours)",
        "TransE, searched",
    ]
    assert (tmp_path / "searched" / "transe-softmax-merged" / "merged" / "search.json").exists()
    assert all(set(row.figures) == {"en", "fi"} and row.training_seconds for row in rows)


def test_parts_of_the_table_can_be_asked_for_alone(
    numbered: KB, table: Path, quick_baselines: None
) -> None:
    rows = reproduce_lp(numbered, table, CONFIG, ["unseen-remove"])
    assert all("links" in row.title for row in rows)
    assert rows[-1].title == "fused: all of these, links removed"
    (table / "checkpoints.png").unlink()
    reproduce_lp(numbered, table, CONFIG, ["checkpoints"])
    assert (table / "checkpoints.png").exists()
    with pytest.raises(PrixError, match=r"row unseen: expected one of usual, .*, unseen-remove"):
        reproduce_lp(numbered, table, CONFIG, ["unseen"])
    with pytest.raises(PrixError, match="--rows names no row"):
        reproduce_lp(numbered, table, CONFIG, [])


def test_rows_of_unseen_entities_that_need_no_model_are_made_alone(
    numbered: KB, tmp_path: Path
) -> None:
    rows = reproduce_lp(numbered, tmp_path, CONFIG, ["unseen-names"])
    titles = ["usual object", "links: pairs", "names: similar", "names: shared"]
    titles += ["names: new objects", "fused: links, rules and names"]
    assert [row.title for row in rows] == [
        f"{title}, links {links}" for links in ("kept", "removed") for title in titles
    ]
    assert not (tmp_path / "unseen" / "keep" / "models").exists()
    # A row that is there is not made again.
    path = tmp_path / "unseen" / "remove" / "usual.json"
    before = path.stat().st_mtime_ns
    (tmp_path / "unseen" / "remove" / "pairs.json").unlink()
    again = reproduce_lp(numbered, tmp_path, CONFIG, ["unseen-names"])
    assert [row.title for row in again] == [row.title for row in rows]
    assert path.stat().st_mtime_ns == before


def test_rows_of_unseen_entities_with_a_graph_need_no_model(numbered: KB, tmp_path: Path) -> None:
    rows = reproduce_lp(numbered, tmp_path, CONFIG, ["unseen-graph"])
    titles = ["usual object", "links: pairs", "names: similar", "names: shared"]
    titles += ["names: new objects", "ComplEx, merged", "graph: new objects"]
    titles += ["fused: links, rules and names"]
    titles += ["fused: links, rules, names and new objects by the graph"]
    assert [row.title for row in rows] == [
        f"{title}, links {links}" for links in ("kept", "removed") for title in titles
    ]
    folder = tmp_path / "unseen" / "remove"
    assert (folder / "graph").is_dir() and not (folder / "models").exists()
    # Each fusion has a folder of its own: one refuses the rankers of the other.
    assert (folder / "fusion").is_dir() and (folder / "fusion-graph").is_dir()


def make_ring(folder: Path, *more: str) -> KB:
    """Twenty linked concepts whose entities are all in train, and more facts."""
    lines = ["lang\tsubject\trelation\tobject\tsplit"]
    for lang in ("en", "fi"):
        for n in range(20):
            for r, split in enumerate(("train", "train", "valid", "test")):
                lines.append(f"{lang}\t{lang} {n}\trule {r}\t{lang} {(n + r) % 20}\t{split}")
    (folder / "facts.tsv").write_text("\n".join([*lines, *more]))
    links = [f"en\ten {n}\tfi\tfi {n}" for n in range(20)] + ["en\ten 1\tfi\tuusi"]
    (folder / "links.tsv").write_text("\n".join(["lang_a\tname_a\tlang_b\tname_b", *links]))
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


def test_the_papers_unseen_table_has_the_ranks_of_test_facts_with_a_new_entity(
    tmp_path: Path,
) -> None:
    # Two entities are in test alone; only the first of them is linked.
    new = ("fi\tuusi\trule 0\tfi 3\ttest", "fi\tfi 3\trule 1\ttoinen\ttest")
    kb = make_ring(tmp_path, *new)
    reproduce_lp(kb, tmp_path / "table", CONFIG, ["usual"])
    rows = reproduce_lp(kb, tmp_path / "table", CONFIG, ["unseen-paper"])
    assert [row.title for row in rows] == ["usual object", "Prix-LM (All), beam"]
    for row in rows:
        assert list(row.figures) == ["fi"], "English has no unseen entity"
        numbers = [row.figures["fi"][name].number for name in PAPER_SUBSETS]
        assert numbers == [2, 1, 1, 1]
    # The ranks are those of the table.
    ranks = pq.read_table(tmp_path / "table" / "rows" / "usual.parquet").to_pylist()
    known = {(row["subject_name"], row["object_name"]): row["rank"] for row in ranks}
    figures = rows[0].figures["fi"]
    assert figures["only the subject unseen"].mrr == 1 / known["uusi", "fi 3"]
    assert figures["the object unseen"] == figures["unseen in links, too"]
    assert "## Unseen entities, as in the paper" in (tmp_path / "table" / "table.md").read_text()
    evaluated = evaluate_rankers(kb, EvaluateConfig(unseen=True, langs=("en", "fi")))
    found = evaluated.results[0].figures["fi"]
    assert all(found[name] == figures[name] for name in UNSEEN_SUBSETS)
    titles = [table.title for table in evaluated.tables()]
    assert titles[4:6] == ["MRR, no transfer", "MRR, no inverse"]
    assert titles[6:] == [
        f"{metric}, {subset}"
        for subset in ("only the subject unseen", "the object unseen")
        for metric in ("Hits@1", "Hits@3", "Hits@10", "MRR")
    ]


def test_a_kb_whose_test_entities_are_all_in_train_has_no_unseen_table(tmp_path: Path) -> None:
    kb = make_ring(tmp_path)
    assert not unseen_facts(kb, ["en", "fi"])
    with pytest.raises(PrixError, match=r"train has every entity of the test facts .* --resplit"):
        reproduce_lp(kb, tmp_path / "table", CONFIG, ["unseen-paper"])
    assert not (tmp_path / "table" / "models").exists(), "nothing is trained for it"
    with pytest.raises(PrixError, match=r"train has every entity of the test facts .* --unseen"):
        evaluate_rankers(kb, EvaluateConfig(unseen=True))


def test_unseen_facts_are_told_apart_by_which_end_is_unseen(tmp_path: Path) -> None:
    lines = [
        ("Ahti", "born in", "Turku", "train"),
        ("Impi", "born in", "Turku", "test"),  # only the subject is new
        ("Ahti", "works in", "Vaasa", "test"),  # the object is
        ("Impi", "works in", "Vaasa", "test"),  # both
        ("Turku", "home of", "Ahti", "test"),  # neither: not an unseen fact
    ]
    text = ["lang\tsubject\trelation\tobject\tsplit", *("\t".join(("fi", *x)) for x in lines)]
    (tmp_path / "facts.tsv").write_text("\n".join(text))
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    (facts,) = unseen_facts(kb, ["fi"])
    ends = zip(
        kb.names(facts.queries.subject.tolist()), kb.names(facts.objects.tolist()), strict=True
    )
    everything, subject, object_ = (part.tolist() for part in facts.subsets.values())
    assert dict(zip(ends, zip(everything, subject, object_, strict=True), strict=True)) == {
        ("Impi", "Turku"): (True, True, False),
        ("Ahti", "Vaasa"): (True, False, True),
        ("Impi", "Vaasa"): (True, False, True),
    }
    assert tuple(facts.subsets) == UNSEEN_SUBSETS


def test_no_training_set_has_a_fact_of_valid_or_test(numbered: KB) -> None:
    """Each row reads train alone, and what links carry over is never held out."""
    kb = numbered
    rows = kb.query("SELECT subject, relation, object, split FROM triples").fetchall()
    held_out = {row[:3] for row in rows if row[3] != "train"}
    train = {row[:3] for row in rows if row[3] == "train"}
    assert held_out and train
    carried = {
        tuple(row.values())
        for batch in carried_triples(kb, batch_rows=100)
        for row in batch.to_pylist()
    }
    assert carried and not carried & held_out and not carried & train
    for lang in kb.languages:
        assert set(map(tuple, read_triples(kb, lang=lang).T.tolist())) <= train
    concept = kb.concepts().tolist()
    merged = {(concept[s], r, concept[o]) for s, r, o in train}
    assert merged == set(map(tuple, read_merged_triples(kb).T.tolist()))
    backwards = {(o, r + kb.num_relations, s) for s, r, o in train}
    graph = GraphTask(kb, GraphConfig()).triples
    assert set(map(tuple, graph.T.tolist())) == train | backwards


def test_the_recipes_of_searched_rows_have_one_run_each() -> None:
    examples = Path(__file__).parents[2] / "examples"
    single = read_config(examples / "single.toml", ReproduceConfig())
    assert list(single.search.singles(single.pretrain)) == ["batch-64-rate-0.001-epochs-30"]
    graph = read_config(examples / "graph-single.toml", ReproduceConfig())
    [config] = graph.search.graphs(graph.graph).values()
    assert (config.rank, config.batch, config.epochs) == (100, 250, 10)


def test_a_pretrained_base_has_the_papers_settings() -> None:
    config = ReproduceConfig.of_base("xlm-roberta-base")
    assert config.pretrain == dataclasses.replace(PretrainConfig(), base="xlm-roberta-base")
    assert config.unseen_epochs == config.propagate_epochs == config.pretrain.epochs
    assert ReproduceConfig.of_base("compact") == ReproduceConfig()


def test_wrong_settings_and_a_kb_without_a_split_are_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="counts are 1 or more"):
        dataclasses.replace(CONFIG, patience=0)
    with pytest.raises(PrixError, match="has no test or no valid triples"):
        reproduce_lp(toy, tmp_path / "table", CONFIG)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_example_of_another_seed_changes_every_seed_and_nothing_else(seed: int) -> None:
    path = Path(__file__).parents[2] / "examples" / f"seed-{seed}.toml"
    before = dataclasses.asdict(ReproduceConfig())
    after = dataclasses.asdict(read_config(path, ReproduceConfig()))

    def changes(old: Any, new: Any, name: str = "") -> list[str]:
        if isinstance(old, dict):
            return [one for key in old for one in changes(old[key], new[key], f"{name}.{key}")]
        return [name] if old != new else []

    assert changes(before, after) == [
        *(".pretrain.supply.seed", ".pretrain.training.seed"),
        *(".graph.training.seed", ".fusion.seed"),
    ]
    assert after["fusion"]["seed"] == after["pretrain"]["supply"]["seed"] == seed
