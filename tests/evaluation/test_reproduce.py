"""The whole table on a small KB: every row, made once; the commands; bad input."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from prixlm import KB, PrixError, import_kb
from prixlm.cli.app import app
from prixlm.evaluation.rank import EvaluateConfig, evaluate_rankers
from prixlm.evaluation.reproduce import (
    UNSEEN_SUBSETS,
    ReproduceConfig,
    Reproduction,
    reproduce_lp,
    unseen_facts,
)
from prixlm.lm.compact import CompactConfig
from prixlm.metrics import Figures
from prixlm.rankers.complex import GraphConfig
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.pykeen import BaselineConfig
from prixlm.reports.tables import Row, load_row, markdown, plot_rows, print_rows, save_row
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig
from prixlm.training.sampler import SupplyConfig

pytest.importorskip("pykeen", reason="PyKEEN is an extra: pip install 'prixlm[baselines]'")
TINY = ReproduceConfig(
    pretrain=PretrainConfig(
        base="compact",
        epochs=1,
        batch=64,
        token_budget=2048,
        num_valid=20,
        supply=SupplyConfig(max_links=1),
        compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
        training=TrainingConfig(lr=1e-3, validate_every=3),
    ),
    propagate_epochs=1,
    single_epochs=2,
    patience=1,
    graph=GraphConfig(rank=4, epochs=2, batch=50),
    fusion=FusionConfig(depth=5, facts=50, iterations=5, leaves=4, smallest=2),
    curve_facts=5,
    unseen=0.2,
    unseen_epochs=1,
    unseen_graph_epochs=1,
)


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("kb")
    generator = np.random.default_rng(0)
    lines = ["lang\tsubject\trelation\tobject\tsplit"]
    for lang in ("en", "fi"):
        for n in range(30) if lang == "en" else range(3, 30):  # some are to be carried over
            for r in range(3):
                split = generator.choice(["train", "valid", "test"], p=[0.6, 0.25, 0.15])
                lines.append(f"{lang}\t{lang} {n}\trule {r}\t{lang} {(n + r + 1) % 30}\t{split}")
    links = [f"en\ten {n}\tfi\tfi {n}" for n in range(0, 30, 2)]
    (folder / "facts.tsv").write_text("\n".join(lines))
    (folder / "links.tsv").write_text("\n".join(["lang_a\tname_a\tlang_b\tname_b", *links]))
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


@pytest.fixture(scope="module")
def quick_baselines(request: pytest.FixtureRequest) -> None:
    """PyKEEN's models with few numbers and one epoch."""
    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)

    def small(cls: type[BaselineConfig], model: str, **_: object) -> BaselineConfig:
        return cls(model=model, dim=4, epochs=1)

    patch.setattr(BaselineConfig, "default", classmethod(small))
    patch.setattr(BaselineConfig, "tuned", classmethod(small))


@pytest.fixture(scope="module")
def table(kb: KB, quick_baselines: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    reproduce_lp(kb, folder, TINY)
    return folder


def test_every_row_is_there_with_its_ranks(kb: KB, table: Path) -> None:
    keys = list(Reproduction(kb, table, TINY).makers)
    assert len(keys) == 6 + 1 + 8 + 8 + 1
    values = json.loads((table / "table.json").read_text())
    assert [len(values[title]) for title in ("Link prediction", "Unseen entities")] == [24, 8]
    for row in values["Unseen entities"]:
        for parts in row["figures"].values():
            assert list(parts) == list(UNSEEN_SUBSETS)
            assert parts["all"]["number"] == sum(
                parts[name]["number"] for name in UNSEEN_SUBSETS[1:]
            )
    tested = kb.num_triples(split="test")
    for key in keys:
        row = load_row(table / "rows" / f"{key}.json")
        assert set(row.figures) == {"en", "fi"}
        ranks = pq.read_table(table / "rows" / f"{key}.parquet")
        assert len(ranks) == tested and ranks["rank"].to_numpy().min() >= 1
        no_training = key in ("usual", "direct", "lookup", "pairs", "paths", "similar")
        assert (row.training_seconds is None) == no_training
    assert "| fused |" in (table / "table.md").read_text()
    for picture in ("table.png", "checkpoints.png"):
        assert (table / picture).read_bytes().startswith(b"\x89PNG")
    curves = json.loads((table / "checkpoints.json").read_text())
    assert curves["en"][0][0] == 0 and len(curves["en"]) > 1


def test_what_is_there_is_not_made_again(kb: KB, table: Path, quick_baselines: None) -> None:
    before = {path: path.read_bytes() for path in table.rglob("*.safetensors")}
    assert before
    seconds = load_row(table / "rows" / "all-beam.json").training_seconds
    (table / "rows" / "all-beam.json").unlink()
    rows = reproduce_lp(kb, table, TINY, ["all-beam", "pairs"])
    assert [row.title for row in rows] == ["Prix-LM (All), beam", "links: pairs"]
    assert before == {path: path.read_bytes() for path in table.rglob("*.safetensors")}
    assert rows[0].training_seconds == seconds
    values = json.loads((table / "table.json").read_text())
    assert len(values["Link prediction"]) == 24  # all that is there, not only what was asked for
    other = dataclasses.replace(TINY, curve_facts=6)
    with pytest.raises(PrixError, match="was made with other curve_facts: name another folder"):
        reproduce_lp(kb, table, other, ["pairs"])


def test_parts_of_the_table_can_be_asked_for_alone(
    kb: KB, table: Path, quick_baselines: None
) -> None:
    rows = reproduce_lp(kb, table, TINY, ["unseen-remove"])
    assert rows and all("links" in row.title for row in rows)
    (table / "checkpoints.png").unlink()
    reproduce_lp(kb, table, TINY, ["checkpoints"])
    assert (table / "checkpoints.png").exists()
    with pytest.raises(PrixError, match=r"row unseen: expected one of usual, .*, unseen-remove"):
        reproduce_lp(kb, table, TINY, ["unseen"])


def test_unseen_facts_are_told_apart_by_which_end_is_unseen(tmp_path: Path) -> None:
    lines = [
        ("Ahti", "born in", "Turku", "train"),
        ("Impi", "born in", "Turku", "test"),  # only the subject is new
        ("Ahti", "works in", "Vaasa", "test"),  # the object is
        ("Impi", "works in", "Vaasa", "test"),  # both
        ("Turku", "home of", "Ahti", "test"),  # neither: no unseen fact
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


def test_no_training_set_has_a_fact_of_valid_or_test(kb: KB) -> None:
    """Of any row: what each of them reads is train, and what links carry is never held out."""
    from prixlm.kb.carried import carried_triples
    from prixlm.rankers.complex import GraphTask
    from prixlm.rankers.pykeen import _read_triples

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
        start = kb.entity_range(lang).start
        triples = {(s + start, r, o + start) for s, r, o in _read_triples(kb, lang)[0].tolist()}
        assert triples <= train
    concept = kb.concepts().tolist()
    merged = {(concept[s], r, concept[o]) for s, r, o in train}
    assert merged == set(map(tuple, _read_triples(kb, None)[0].tolist()))
    backwards = {(o, r + kb.num_relations, s) for s, r, o in train}
    graph = GraphTask(kb, GraphConfig()).triples
    assert set(map(tuple, graph.T.tolist())) == train | backwards


def test_evaluation_writes_tables_and_answers(kb: KB, table: Path, tmp_path: Path) -> None:
    models = table / "models"
    config = EvaluateConfig(
        models=(models / "all",), graphs=(table / "graph",), relations=2, search="exact"
    )
    rows, relations = evaluate_rankers(kb, config, tmp_path / "out")
    titles = [row.title for row in rows]
    links = [f"links: {rule}" for rule in ("direct", "lookup", "pairs")]
    rules = ["rules: paths", "rules: similar"]
    assert titles == ["usual object", *links, *rules, "Prix-LM all", "ComplEx graph"]
    assert list(relations) == titles and all(len(part) == 2 for part in relations.values())
    answers = pq.read_table(tmp_path / "out" / "answers" / "prix-lm-all.parquet").to_pylist()
    assert len(answers) == kb.num_triples(split="test")
    for row in answers:
        if row["rank"] <= 10:  # the truth stands at its rank in the list
            assert row["answer"].index(row["object"]) + 1 == row["rank"]
    carried = pq.read_table(tmp_path / "out" / "answers" / "links-lookup.parquet").to_pylist()
    assert any(origin for row in carried for origin in row["origin"])
    relations_ = json.loads((tmp_path / "out" / "relations" / "links-pairs.json").read_text())
    assert sum(part["number"] for part in relations_.values()) == len(answers)
    assert (tmp_path / "out" / "table.md").exists() and (tmp_path / "out" / "table.png").exists()


def test_the_commands_rank_and_say_what_is_wrong(kb: KB, table: Path, tmp_path: Path) -> None:
    run = CliRunner()
    model = str(table / "models" / "all")
    options = ["evaluate", "lp", "--kb", str(kb.folder), "--model", model, "--most", "5"]
    done = run.invoke(app, [*options, "--relations", "1", "--by-name"])
    assert done.exit_code == 0, done.output
    assert "MRR (%)" in done.output and "by relation" in done.output
    done = run.invoke(app, [*options, "--json", "--langs", "fi"])
    assert list(json.loads(done.stdout)["rows"][0]["figures"]) == ["fi"]
    shutil.copytree(table, tmp_path / "table")
    (tmp_path / "table" / "reproduce.json").unlink()  # made with other settings than the default
    rows = ["reproduce", "lp", "--kb", str(kb.folder), "--to", str(tmp_path / "table")]
    done = run.invoke(app, [*rows, "--rows", "lookup,pairs"])
    assert done.exit_code == 0 and "links: pairs" in done.output
    wrong = {
        "--split train": "expected test or valid",
        "--search wide": "expected beam or exact",
        "--most 0": "--most is 1 or more",
        "--fuse --split valid": "evaluate it on test",
        "--fuse --by-name": "leave out --by-name",
        "--langs sv": "no test triples in sv",
    }
    for option, message in wrong.items():
        done = run.invoke(app, [*options, *option.split()])
        assert isinstance(done.exception, PrixError) and message in str(done.exception), option
    done = run.invoke(app, [*rows, "--rows", "all-wide"])
    assert "row all-wide: expected one of usual" in str(done.exception)
    with pytest.raises(PrixError, match="counts are 1 or more"):
        dataclasses.replace(TINY, patience=0)


def test_a_kb_without_test_facts_is_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="has no test triples: make some with `prixlm split`"):
        evaluate_rankers(toy, EvaluateConfig())
    with pytest.raises(PrixError, match="has no test or no valid triples"):
        reproduce_lp(toy, tmp_path / "table", TINY)


def test_rows_are_files_and_tables_and_hide_nothing(tmp_path: Path) -> None:
    one = Figures(10, 0.1, 0.2, 0.5, 0.25, 0.01)
    nan = float("nan")
    none = Figures(0, nan, nan, nan, nan, 0.0)
    figures = {"en": {"all": one, "no transfer": none}, "fi": {"all": one, "no transfer": one}}
    row = Row("a | $x$ [b]", figures, "exact", 100.0, 2.0)
    save_row(row, tmp_path / "rows" / "a.json")
    assert repr(load_row(tmp_path / "rows" / "a.json")) == repr(row)
    text = markdown([row], ("all", "no transfer"))
    assert "| a \\| $x$ [b] | 10.0 / 20.0 / 50.0 / 25.0 |" in text and "| 2 min |" in text
    assert "– / – / – / –" in text
    plot_rows([row, dataclasses.replace(row, title="_hidden")], tmp_path / "table.png")
    from rich.console import Console

    screen = Console(record=True, width=100)
    print_rows(screen, [row])
    assert "a | $x$ [b]" in screen.export_text()
    beam = dataclasses.replace(row, how="beam K = 50, to rank 10")
    assert "| 10.0 / 20.0 / 50.0 / – |" in markdown([beam])
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(PrixError, match="is no row of a table"):
        load_row(tmp_path / "b.json")
