"""Enrichment: what is proposed, what never is, and that a kill changes nothing."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from prixlm import KB, PretrainConfig, PrixError, SplitConfig, import_kb, split_kb
from prixlm.cli.app import app
from prixlm.enrichment.gaps import MissingConfig, relations_of_one_object
from prixlm.enrichment.proposals import read_manifest
from prixlm.enrichment.run import EnrichConfig, enrich
from prixlm.evaluation.proposals import reliability_curves, save_trials, trial_grids, try_enrichment
from prixlm.lm.compact import CompactConfig
from prixlm.rankers.fusion import Fusion, FusionConfig
from prixlm.reports.plots import plot_reliability
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import pretrain

FUSION = FusionConfig(facts=200, iterations=20, smallest=5, depth=10)
# All languages of the world KB state the same: what is hidden for testing is what is missing.
KNOWN = ("train", "valid")
CONFIG = EnrichConfig(
    into=("et", "fi"),
    min_confidence=0.2,
    fusion=FUSION,
    relations=("capital", "currency"),
    missing=MissingConfig(known=KNOWN),
)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("enrich")
    kb = import_kb([], folder / "kb", format="world", langs=["et", "fi", "en"])
    return split_kb(kb, folder / "split", SplitConfig(test=0.2, valid=0.1))


@pytest.fixture(scope="module")
def model(split: KB) -> Path:
    config = PretrainConfig(
        base="compact",
        epochs=1,
        batch=256,
        training=TrainingConfig(lr=1e-3),
        compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
    )
    pretrain(split, split.folder.parent / "model", config)
    return split.folder.parent / "model"


def rows(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(folder / "proposals.parquet").to_pylist()
    return found


def test_proposals_are_new_named_and_sorted(split: KB, model: Path, tmp_path: Path) -> None:
    manifest = enrich(split, tmp_path / "p", CONFIG, model)
    found = rows(tmp_path / "p")
    assert found and manifest == read_manifest(tmp_path / "p")
    assert sum(sum(part.values()) for part in manifest["proposals"].values()) == len(found)
    query = f"SELECT subject, relation, object FROM triples WHERE split IN {KNOWN}"
    known = set(split.query(query).fetchall())
    triples = [(row["subject"], row["relation"], row["object"]) for row in found]
    assert not known & set(triples), "nothing that is known is proposed"
    assert len(set(triples)) == len(triples)
    single = relations_of_one_object(split)
    has = {(s, r) for s, r, _ in known}
    asked = [(s, r) for s, r, _ in triples if single[r]]
    assert not has & set(asked) and len(set(asked)) == len(asked), "never a second object"
    assert [row["id"] for row in found] == list(range(len(found)))
    for lang in ("et", "fi"):
        levels = [row["confidence"] for row in found if row["lang"] == lang]
        assert levels == sorted(levels, reverse=True) and min(levels) >= 0.2
    row = found[0]
    assert [split.names([row["subject"]])[0], split.names([row["object"]])[0]] == [
        row["subject_name"],
        row["object_name"],
    ]
    assert row["model_rank"] is not None and row["model_score"] < 0 and row["graph_rank"] is None
    hidden = set(split.query(query.replace("IN", "NOT IN")).fetchall())
    stated = [row for row in found if row["origin"]]
    right = [(row["subject"], row["relation"], row["object"]) in hidden for row in stated]
    assert right and np.mean(right) > 0.8


def test_the_origin_is_who_states_it(split: KB, tmp_path: Path) -> None:
    enrich(split, tmp_path / "p", dataclasses.replace(CONFIG, into=("et",), relations=None))
    concept = split.concepts()
    stated: dict[tuple[int, int, int], set[str]] = {}
    query = f"SELECT lang, subject, relation, object FROM triples WHERE split IN {KNOWN}"
    for lang, subject, relation, object_ in split.query(query).fetchall():
        key = (int(concept[subject]), relation, int(concept[object_]))
        stated.setdefault(key, set()).add(lang)
    assert rows(tmp_path / "p")
    for row in rows(tmp_path / "p"):
        assert row["lang"] not in row["origin"]
        key = (int(concept[row["subject"]]), row["relation"], int(concept[row["object"]]))
        assert set(row["origin"]) == stated.get(key, set())


@pytest.mark.parametrize("with_model", [False, True])
def test_a_killed_run_ends_with_the_same_bytes(
    split: KB, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_model: bool
) -> None:
    monkeypatch.setattr("prixlm.enrichment.run._PART", 64)
    relations = ("capital", "currency") if with_model else None
    config = dataclasses.replace(CONFIG, into=("fi",), relations=relations)
    asked = model if with_model else None
    enrich(split, tmp_path / "whole", config, asked)
    real, calls = Fusion.explain, []

    def dying(self: Fusion, *args: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Fusion, "explain", dying)
        with pytest.raises(KeyboardInterrupt):
            enrich(split, tmp_path / "parts", config, asked)
        assert not (tmp_path / "parts").exists()
        enrich(split, tmp_path / "parts", config, asked)
    names = ("proposals.parquet", "manifest.json")
    for name in names:
        ours, theirs = ((tmp_path / which / name).read_bytes() for which in ("parts", "whole"))
        assert ours == theirs
    with monkeypatch.context() as patch:
        again: list[int] = []

        def counting(self: Fusion, *args: object) -> object:
            again.append(1)
            return real(self, *args)  # type: ignore[arg-type]

        patch.setattr(Fusion, "explain", counting)
        enrich(split, tmp_path / "third", config, asked)
    assert len(calls) == len(again) + 1, "two parts were there already, and one died"
    assert not (tmp_path / "parts.partial").exists()


def test_a_limit_takes_the_most_confident(split: KB, tmp_path: Path) -> None:
    enrich(split, tmp_path / "all", CONFIG)
    enrich(split, tmp_path / "few", dataclasses.replace(CONFIG, limit=7))
    best = sorted((row["confidence"] for row in rows(tmp_path / "all")), reverse=True)[:7]  # type: ignore[type-var]
    few = sorted((row["confidence"] for row in rows(tmp_path / "few")), reverse=True)  # type: ignore[type-var]
    assert few == best


def test_only_the_wanted_relations(split: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, relations=("capital",))
    enrich(split, tmp_path / "p", config)
    key = split.relation_keys()[split.relation_names("en").index("capital")]
    assert {row["relation_key"] for row in rows(tmp_path / "p")} == {key}
    with pytest.raises(PrixError, match="no relation 'mother'"):
        enrich(split, tmp_path / "q", dataclasses.replace(CONFIG, relations=("mother",)))


def test_a_model_that_knows_the_valid_facts_is_refused(
    split: KB, model: Path, tmp_path: Path
) -> None:
    settings = json.loads((model / "prixlm.json").read_text("utf-8"))
    for fingerprint, message in (
        ((split.manifest.split or {})["from"], "the KB that .* is a split of"),
        ("0" * 64, "trained on another KB"),
    ):
        other = tmp_path / fingerprint[:4]
        other.mkdir()
        for path in model.iterdir():
            if path.is_file():
                (other / path.name).write_bytes(path.read_bytes())
        settings["trained"]["kb_fingerprint"] = fingerprint
        (other / "prixlm.json").write_text(json.dumps(settings), "utf-8")
        with pytest.raises(PrixError, match=message):
            enrich(split, tmp_path / "p", CONFIG, other)


def test_what_cannot_be_done_is_said(split: KB, world: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="expected 0 to 1"):
        EnrichConfig(into=("et",), min_confidence=1.5)
    with pytest.raises(PrixError, match="has no sv"):
        enrich(split, tmp_path / "p", dataclasses.replace(CONFIG, into=("sv",)))
    with pytest.raises(PrixError, match="no valid triples"):
        enrich(world, tmp_path / "p", CONFIG)
    (tmp_path / "half").mkdir()
    with pytest.raises(PrixError, match="already there"):
        enrich(split, tmp_path / "half", CONFIG)
    for folder in (split.folder, tmp_path / "half"):
        with pytest.raises(PrixError, match=r"not a KB folder|holds the source"):
            enrich(split, folder, CONFIG, overwrite=True)
    with pytest.raises(PrixError, match="half of them"):
        read_manifest(tmp_path / "half")


def countries(folder: Path, *, linked: bool) -> KB:
    """English and Finnish state capitals, currencies and, here and there, languages; Swedish has
    names alone."""
    rows = ["lang\tsubject\trelation\tobject"]
    pairs = ["lang_a\tname_a\tlang_b\tname_b"]
    for n in range(80):
        for lang in ("en", "fi"):
            rows.append(f"{lang}\t{lang} land {n}\tcapital\t{lang} town {n}")
            rows.append(f"{lang}\t{lang} land {n}\tcurrency\t{lang} coin {n % 5}")
            if n % 4:
                rows.append(f"{lang}\t{lang} land {n}\tlanguage\t{lang} tongue {n % 3}")
        pairs += [f"en\ten {what} {n}\tfi\tfi {what} {n}" for what in ("land", "town")]
        pairs += [f"en\ten {what} {n}\tsv\tsv {what} {n}" for what in ("land", "town")]
    pairs += [f"en\ten coin {n}\tfi\tfi coin {n}" for n in range(5)]
    pairs += [f"en\ten tongue {n}\tfi\tfi tongue {n}" for n in range(3)]
    folder.mkdir()
    files = [folder / "facts.tsv", folder / "links.tsv"]
    for path, lines in zip(files, (rows, pairs), strict=True):
        path.write_text("\n".join(lines) + "\n", "utf-8")
    kb = import_kb(files if linked else files[:1], folder / "kb")
    return split_kb(kb, folder / "split", SplitConfig(test=0.1, valid=0.2, langs=("en", "fi")))


def test_a_language_without_a_triple_gets_what_the_others_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kb = countries(tmp_path / "c", linked=True)
    enrich(kb, tmp_path / "p", EnrichConfig(into=("sv",), fusion=FUSION))
    assert "no triple in sv: only what others state is asked" in caplog.text
    found = rows(tmp_path / "p")
    assert len(found) > 60 and {row["why"] for row in found} == {"elsewhere"}
    for row in found:
        assert str(row["object_name"]) == str(row["subject_name"]).replace("land", "town")
        assert row["relation_name"] == "capital" and row["origin"]


def test_a_kb_without_links_is_said_and_guesses_by_its_own_language(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kb = countries(tmp_path / "c", linked=False)
    config = EnrichConfig(into=("fi",), min_confidence=0.0, fusion=FUSION)
    enrich(kb, tmp_path / "p", config)
    assert "no links between its languages" in caplog.text
    found = rows(tmp_path / "p")
    assert found and {row["why"] for row in found} == {"usual"}
    assert not any(row["origin"] for row in found)
    assert {row["relation_name"] for row in found} == {"language"}, "what 1 of 4 lacks"


def test_confidence_is_believable_on_facts_that_nothing_was_fitted_on(
    split: KB, model: Path, tmp_path: Path
) -> None:
    trials = try_enrichment(split, ["et"], model, config=FusionConfig(facts=400, smallest=20))
    found = {(one.way, one.subset): one for one in trials}
    weak = found.get(("model alone", "all"))  # where it is never right, it has no confidence at all
    assert weak is None or weak.levels[0].recall < 0.1
    fused, alone = found["fused", "all"], found["transfer alone", "all"]
    assert fused.hidden == split.num_triples("et", "test")
    assert min(fused.right, alone.right) > 0.8 and fused.reliability.ece < 0.15
    assert [one.level for one in fused.levels] == [0.5, 0.8, 0.95]
    # In a KB whose languages all state the same there is next to nothing that no other states.
    assert found["fused", "no transfer"].hidden < 0.1 * fused.hidden
    save_trials(trials, tmp_path / "trials.json")
    json.loads((tmp_path / "trials.json").read_text("utf-8"))
    plot_reliability(reliability_curves(trials), tmp_path / "reliability.png")
    grids = trial_grids(trials)
    assert grids[0].rows["fused"]["right"] == fused.right
    assert grids[0].heads()[-2:] == ["P.95", "R.95"], "figures have no mean"
    with pytest.raises(PrixError, match="no test triples in en"):
        try_enrichment(KB(split.folder.parent / "kb"), ["en"])


def test_labels_and_links_are_proposed_beside_the_facts(
    split: KB, bases: dict[str, Path], tmp_path: Path
) -> None:
    """Languages that give nothing to learn from are said, and the facts are there all the same."""
    config = dataclasses.replace(CONFIG, labels=True, into=("et",))
    manifest = enrich(split, tmp_path / "p", config)
    assert set(manifest["labels"]) == {"et"} and "links" not in manifest
    labels = pq.read_table(tmp_path / "p" / "labels.parquet").to_pylist()
    assert len(labels) == manifest["labels"]["et"]["names"]
    with pytest.raises(PrixError, match="the encoder was trained on another KB"):
        enrich(split, tmp_path / "q", config, encoder=bases["xlmr"])


def test_the_commands_from_enrich_to_a_report(split: KB, tmp_path: Path) -> None:
    def done(*args: object) -> str:
        made = CliRunner().invoke(app, list(map(str, args)), catch_exceptions=False)
        assert made.exit_code == 0, made.output
        return made.output

    p, kb = tmp_path / "p", split.folder
    asked = ("--into", "et", "--relations", "capital", "--min-confidence", 0.1)
    assert "Written to" in done("enrich", kb, *asked, "--to", p)
    done("review", p, "--to", tmp_path / "r.tsv")
    assert "open" in done("review", p, "--marks", tmp_path / "r.tsv")
    assert "facts in" in done("export", p, "--format", "nt", "--to", tmp_path / "f.nt")
    rows = done("evaluate", "lp", "--kb", kb, "--most", 20, "--to", tmp_path / "lp")
    assert "Hits@1" in rows
    tables = ("--table", tmp_path / "lp" / "table.json")
    told = done("report", p, "--kb", kb, "--to", tmp_path / "report", *tables, "--json")
    page = Path(json.loads(told)["report"]).read_text("utf-8")
    assert "Hits@10" in page and "links: lookup" in page and "How long it took" in page
    assert "Proposed into Estonian, from confidence 0.1 on, only capital" in page
    made = CliRunner().invoke(app, ["report", str(p), "--kb", str(kb.parent / "kb"), "--to", "x"])
    assert isinstance(made.exception, PrixError) and "another KB" in str(made.exception)
