"""Enrichment: what is proposed, what never is, and that a killed run ends with the same bytes."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from prixlm import (
    KB,
    EngineConfig,
    EnrichConfig,
    PrixError,
    SplitConfig,
    enrich,
    import_kb,
    split_kb,
)
from prixlm.decoding.completer import Completer
from prixlm.enrichment.gaps import GapConfig, relations_of_one_object
from prixlm.enrichment.run import Whole, _translating_model
from prixlm.enrichment.trial import Trial
from prixlm.proposals.tables import read_manifest
from prixlm.rankers.base import Queries
from prixlm.rankers.complex import GraphConfig, train_graph
from prixlm.rankers.fusion import Explained, Fusion
from tests.enrichment.helpers import FUSION, write_countries

# All languages of the world KB state the same facts: what is missing is what is held out for test.
KNOWN = ("train", "valid")
ALL = EnrichConfig(
    into=("et", "fi"), min_confidence=0.2, fusion=FUSION, missing=GapConfig(known=KNOWN)
)
FEW = dataclasses.replace(ALL, relations=("capital", "currency"))
PART_QUESTIONS = 64


@pytest.fixture(scope="module")
def without_model(split: KB) -> Path:
    """Proposals for all relations, by links and rules."""
    enrich(split, split.folder.parent / "without-model", ALL)
    return split.folder.parent / "without-model"


@pytest.fixture(scope="module")
def with_model(split: KB, model: Path) -> Path:
    """Proposals for two relations, by a model too.

    The last digit of a model's score depends on the batch, and so on the size of the parts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prixlm.enrichment.run._PART_QUESTIONS", PART_QUESTIONS)
        enrich(split, split.folder.parent / "with-model", FEW, model=model)
    return split.folder.parent / "with-model"


def read_rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "proposals.parquet").to_pylist()
    return rows


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files, but for the one with the seconds."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    del contents["timings.json"]
    return contents


def triple(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["subject"], row["relation"], row["object"]


def read_triples(kb: KB, *, known: bool) -> set[tuple[int, int, int]]:
    """Return the facts that a run knows, or those that are held out from it."""
    condition = f"split {'IN' if known else 'NOT IN'} {KNOWN}"
    rows = kb.query(f"SELECT subject, relation, object FROM triples WHERE {condition}").fetchall()
    return set(rows)


def test_no_known_fact_and_no_second_object_is_proposed(split: KB, with_model: Path) -> None:
    triples = [triple(row) for row in read_rows(with_model)]
    known = read_triples(split, known=True)
    assert triples and not known & set(triples)
    assert len(set(triples)) == len(triples), "each is proposed once"
    has_one_object = relations_of_one_object(split)
    asked = [(s, r) for s, r, _ in triples if has_one_object[r]]
    assert not {(s, r) for s, r, _ in known} & set(asked) and len(set(asked)) == len(asked)


def test_proposals_are_sorted_and_counted_by_language(with_model: Path) -> None:
    rows, manifest = read_rows(with_model), read_manifest(with_model)
    assert sum(sum(kinds.values()) for kinds in manifest["proposals"].values()) == len(rows)
    assert [row["id"] for row in rows] == list(range(len(rows)))
    for lang in ("et", "fi"):
        levels = [row["confidence"] for row in rows if row["lang"] == lang]
        assert levels == sorted(levels, reverse=True) and min(levels) >= 0.2


def test_a_proposal_has_names_and_the_evidence_of_the_model(split: KB, with_model: Path) -> None:
    row = read_rows(with_model)[0]
    names = split.names([row["subject"], row["object"]])
    assert names == [row["subject_name"], row["object_name"]]
    assert row["model_rank"] is not None and row["model_score"] < 0 and row["graph_rank"] is None


def test_most_proposals_that_another_language_states_are_right(split: KB, with_model: Path) -> None:
    held_out = read_triples(split, known=False)
    is_right = [triple(row) in held_out for row in read_rows(with_model) if row["origin"]]
    assert is_right and np.mean(is_right) > 0.8


def test_the_origin_is_the_languages_that_state_the_fact(split: KB, without_model: Path) -> None:
    concept = split.concepts()
    stated: dict[tuple[int, int, int], set[str]] = {}
    query = f"SELECT lang, subject, relation, object FROM triples WHERE split IN {KNOWN}"
    for lang, subject, relation, object_ in split.query(query).fetchall():
        key = (int(concept[subject]), relation, int(concept[object_]))
        stated.setdefault(key, set()).add(lang)
    rows = read_rows(without_model)
    assert rows
    for row in rows:
        assert row["lang"] not in row["origin"]
        key = (int(concept[row["subject"]]), row["relation"], int(concept[row["object"]]))
        assert set(row["origin"]) == stated.get(key, set())


def test_what_was_fitted_is_kept_and_two_equal_runs_have_the_same_bytes(
    split: KB, without_model: Path, tmp_path: Path
) -> None:
    names = {"proposals.parquet", "manifest.json", "answerable.json"}
    fitted = {"fusion/fusion.skops", "fusion/fusion.json"}
    assert set(read_files(without_model)) == names | fitted
    enrich(split, tmp_path / "again", ALL)
    assert read_files(tmp_path / "again") == read_files(without_model)


@pytest.mark.parametrize("uses_model", [False, True])
def test_a_killed_run_resumes_at_its_part_and_ends_with_the_same_bytes(
    split: KB,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    uses_model: bool,
) -> None:
    whole: Path = request.getfixturevalue("with_model" if uses_model else "without_model")
    config, used = (FEW, model) if uses_model else (ALL, None)
    monkeypatch.setattr("prixlm.enrichment.run._PART_QUESTIONS", PART_QUESTIONS)
    explain, asked = Fusion.explain, []

    def dying(self: Fusion, queries: Queries, k: int) -> Explained:
        asked.append((queries.lang, queries.subject.tolist(), queries.relation.tolist()))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return explain(self, queries, k)

    monkeypatch.setattr(Fusion, "explain", dying)
    to, partial = tmp_path / "p", tmp_path / "p.partial"
    with pytest.raises(KeyboardInterrupt):
        enrich(split, to, config, model=used)
    assert not to.exists() and len(list(partial.glob("part-*"))) == 2
    monkeypatch.setattr(Fusion, "fit", None)  # it is not fitted again
    enrich(split, to, config, model=used)
    assert asked[3] == asked[2], "the part that died is the first one of the second run"
    assert read_files(to) == read_files(whole)
    assert not partial.exists()


def test_workers_propose_the_bytes_of_one_process(
    split: KB, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fusion is fitted once, in the driver; questions are asked by two workers."""
    monkeypatch.setattr("prixlm.enrichment.run._PART_QUESTIONS", PART_QUESTIONS)
    for workers in (1, 2):
        engine = EngineConfig(workers=workers)
        enrich(split, tmp_path / str(workers), FEW, model=model, engine=engine)
    assert read_files(tmp_path / "2") == read_files(tmp_path / "1")


def test_parts_of_other_settings_are_not_resumed(
    split: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(self: Fusion, queries: Queries, k: int) -> Explained:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fusion, "explain", dying)
        with pytest.raises(KeyboardInterrupt):
            enrich(split, tmp_path / "p", FEW)
    fits: list[object] = []
    fit = Fusion.fit

    def counting(*args: Any) -> Fusion:
        fits.append(args)
        return fit(*args)

    monkeypatch.setattr(Fusion, "fit", counting)
    enrich(split, tmp_path / "p", dataclasses.replace(FEW, relations=("capital",)))
    assert len(fits) == 1
    capital = split.relation_keys()[split.relation_names("en").index("capital")]
    assert {row["relation_key"] for row in read_rows(tmp_path / "p")} == {capital}


def test_a_limit_keeps_the_most_confident(split: KB, without_model: Path, tmp_path: Path) -> None:
    enrich(split, tmp_path / "few", dataclasses.replace(ALL, limit=7))
    best = sorted((row["confidence"] for row in read_rows(without_model)), reverse=True)[:7]
    few = sorted((row["confidence"] for row in read_rows(tmp_path / "few")), reverse=True)
    assert few == best


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
        for path in filter(Path.is_file, model.iterdir()):
            (other / path.name).write_bytes(path.read_bytes())
        settings["trained"]["kb_fingerprint"] = fingerprint
        (other / "prixlm.json").write_text(json.dumps(settings), "utf-8")
        with pytest.raises(PrixError, match=message):
            enrich(split, tmp_path / "p", FEW, model=other)


def test_an_encoder_of_another_kb_is_refused(
    split: KB, bases: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match="the encoder was trained on another KB"):
        enrich(split, tmp_path / "p", FEW, encoder=bases["xlmr"])


def test_a_kb_without_the_language_or_relation_or_valid_facts_is_refused(
    split: KB, world: KB, tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match="has no sv"):
        enrich(split, tmp_path / "p", dataclasses.replace(ALL, into=("sv",)))
    with pytest.raises(PrixError, match="no valid triples"):
        enrich(world, tmp_path / "p", ALL)
    with pytest.raises(PrixError, match="no relation 'mother'"):
        enrich(split, tmp_path / "p", dataclasses.replace(ALL, relations=("mother",)))


def test_bad_settings_are_refused() -> None:
    for settings, message in (
        ({"min_confidence": 1.5}, "expected 0 to 1"),
        ({"limit": 0}, "--limit 0: expected 1 or more"),
        ({"answers": 0}, "answers 0: expected 1 or more"),
        ({"tried": -1}, "tried -1: expected 0 or more"),
        ({"into": ()}, "no language"),
    ):
        with pytest.raises(PrixError, match=message):
            EnrichConfig(**({"into": ("et",)} | settings))  # type: ignore[arg-type]


def test_only_proposals_without_marks_are_replaced(
    split: KB, without_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "half").mkdir()
    with pytest.raises(PrixError, match="already there"):
        enrich(split, tmp_path / "half", ALL)
    for folder in (split.folder, tmp_path / "half"):
        with pytest.raises(PrixError, match="expected a proposals folder"):
            enrich(split, folder, ALL, overwrite=True)
    marked = shutil.copytree(without_model, tmp_path / "marked")
    for name in ("marks.db", "marks.json"):  # now, and in version 0.1
        (marked / name).write_text("{}")
        with pytest.raises(PrixError, match="has the marks of a review"):
            enrich(split, marked, ALL, overwrite=True)
        (marked / name).unlink()
    config = dataclasses.replace(ALL, relations=("capital",))
    assert enrich(split, marked, config, overwrite=True)["config"]["relations"] == ["capital"]


def test_labels_are_proposed_beside_the_facts(split: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(FEW, labels=True, into=("et",))
    manifest = enrich(split, tmp_path / "p", config)
    assert set(manifest["labels"]) == {"et"} and "links" not in manifest
    labels = pq.read_table(tmp_path / "p" / "labels.parquet").to_pylist()
    assert len(labels) == manifest["labels"]["et"]["names"]


def test_an_unknown_pivot_is_refused_before_anything_is_made(split: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(FEW, links=True, pivot="xx")
    with pytest.raises(PrixError, match="has no xx; it has"):
        enrich(split, tmp_path / "p", config)
    assert not list(tmp_path.iterdir())


def test_a_model_translates_for_links_only_if_the_split_withholds_some(
    split: KB, model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    assert _translating_model(split, FEW, None) is None and not caplog.text
    assert _translating_model(split, FEW, model) is None
    assert "withholds no links" in caplog.text
    monkeypatch.setattr(KB, "withholds_links", True)
    assert _translating_model(split, FEW, model) is None
    assert "a compact model's add nothing" in caplog.text

    def of_a_base(folder: Path, kb: KB) -> Completer:
        completer = Completer(folder, kb)
        settings = completer.model.settings
        lineage = dataclasses.replace(settings.lineage, base="xlm-roberta-base")
        completer.model.settings = dataclasses.replace(settings, lineage=lineage)
        return completer

    monkeypatch.setattr("prixlm.enrichment.run.Completer", of_a_base)
    assert _translating_model(split, FEW, model) is not None
    monkeypatch.setattr("prixlm.enrichment.run._MAX_TRANSLATED", 10)
    assert _translating_model(split, FEW, model) is None
    assert "are too many to translate" in caplog.text


def countries(folder: Path, *, linked: bool) -> KB:
    """English and Finnish state capitals, currencies and some languages; Swedish has names only."""
    files = write_countries(folder)
    kb = import_kb(files if linked else files[:1], folder / "kb")
    return split_kb(kb, folder / "split", SplitConfig(test=0.1, valid=0.2, langs=("en", "fi")))


def test_a_language_without_facts_gets_what_the_others_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kb = countries(tmp_path / "c", linked=True)
    enrich(kb, tmp_path / "p", EnrichConfig(into=("sv",), fusion=FUSION))
    assert "no facts in sv: only facts that other languages state are asked" in caplog.text
    rows = read_rows(tmp_path / "p")
    assert len(rows) > 60 and {row["why"] for row in rows} == {"elsewhere"}
    for row in rows:
        assert row["object_name"] == row["subject_name"].replace("land", "town")
        assert row["relation_name"] == "capital" and row["origin"]


def test_a_kb_without_links_gets_guesses_within_its_language(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kb = countries(tmp_path / "c", linked=False)
    config = EnrichConfig(into=("fi",), min_confidence=0.0, fusion=FUSION)
    enrich(kb, tmp_path / "p", config)
    assert "no links between its languages" in caplog.text
    rows = read_rows(tmp_path / "p")
    assert rows and {row["why"] for row in rows} == {"usual"}
    assert not any(row["origin"] for row in rows)
    assert {row["relation_name"] for row in rows} == {"language"}, "one country in four lacks it"


@pytest.fixture(scope="module")
def country_split(tmp_path_factory: pytest.TempPathFactory) -> KB:
    return countries(tmp_path_factory.mktemp("countries") / "c", linked=True)


@pytest.fixture(scope="module")
def country_kb(country_split: KB) -> KB:
    """What it is a split of."""
    return KB(country_split.folder.parent / "kb")


TRAIN_ONLY = EnrichConfig(
    into=("fi", "sv"), min_confidence=0.1, fusion=FUSION, missing=GapConfig(known=("train",))
)


@pytest.fixture(scope="module")
def of_train(country_split: KB) -> Path:
    """Proposals of a run that knows the train facts alone."""
    enrich(country_split, country_split.folder.parent / "of-train", TRAIN_ONLY)
    return country_split.folder.parent / "of-train"


@pytest.fixture(scope="module")
def of_whole(country_split: KB, country_kb: KB) -> Path:
    """The same, asked where all facts are train facts."""
    to = country_split.folder.parent / "of-whole"
    enrich(country_split, to, TRAIN_ONLY, whole=Whole(kb=country_kb))
    return to


def test_what_the_whole_kb_states_is_not_asked_again(
    country_split: KB, of_train: Path, of_whole: Path
) -> None:
    query = "SELECT subject, relation, object FROM triples"
    valid = set(country_split.query(f"{query} WHERE split = 'valid'").fetchall())
    stated = set(country_split.query(query).fetchall())
    finnish = {
        folder: {triple(row) for row in read_rows(folder)} for folder in (of_train, of_whole)
    }
    assert finnish[of_train] & valid, "they are missing from train"
    assert finnish[of_whole] and not finnish[of_whole] & stated


def test_held_out_facts_are_evidence_for_the_proposals(
    country_split: KB, of_train: Path, of_whole: Path
) -> None:
    """The capital of a country that no language trains on is proposed from the whole alone."""
    trained = country_split.query(
        "SELECT s.name FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN relations r ON r.id = t.relation WHERE t.split = 'train' AND r.key = 'capital'"
    ).fetchall()
    known = {int(name.split()[-1]) for (name,) in trained}
    assert 60 < len(known) < 80
    swedish = {}
    for folder in (of_train, of_whole):
        rows = [row for row in read_rows(folder) if row["lang"] == "sv"]
        swedish[folder] = {int(row["subject_name"].split()[-1]): row for row in rows}
    assert set(swedish[of_train]) <= known
    assert set(swedish[of_whole]) == set(range(80))
    assert {tuple(row["origin"]) for row in swedish[of_whole].values()} == {("en", "fi")}
    assert ("fi",) in {tuple(row["origin"]) for row in swedish[of_train].values()}


def test_the_confidence_is_fitted_without_the_facts_of_the_whole(
    country_split: KB,
    country_kb: KB,
    of_train: Path,
    of_whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = (read_manifest(folder) for folder in (of_train, of_whole))
    assert after["fitted_on_kb"] == before["fitted_on_kb"] == country_split.fingerprint()
    assert after["kb"] == country_kb.fingerprint() and before["kb"] == country_split.fingerprint()
    # The held-out facts are asked with the same evidence: the trials are the same to the last bit.
    assert after["trials"] == before["trials"] and after["trials"][0]["held_out"] > 0
    assert after["trials"][0]["right"] > 0

    def refuse(*args: Any) -> Fusion:
        kb, rankers = args[0], args[1]
        assert kb.fingerprint() == country_split.fingerprint()
        assert all(ranker.kb.fingerprint() == kb.fingerprint() for ranker in rankers)
        raise KeyboardInterrupt

    monkeypatch.setattr(Fusion, "fit", refuse)
    with pytest.raises(KeyboardInterrupt):
        enrich(country_split, tmp_path / "p", TRAIN_ONLY, whole=Whole(kb=country_kb))


def test_a_graph_of_the_whole_answers_and_one_of_the_split_is_fitted(
    country_split: KB, country_kb: KB, tmp_path: Path
) -> None:
    config = GraphConfig(rank=4, epochs=1)
    for kb, name in ((country_split, "graph"), (country_kb, "graph-all")):
        train_graph(kb, tmp_path / name, config)
    graph, of_all = tmp_path / "graph", tmp_path / "graph-all"
    few = dataclasses.replace(TRAIN_ONLY, into=("sv",), relations=("capital",), tried=0)
    trained = []
    for number, whole in enumerate((Whole(kb=country_kb, graph=of_all), Whole(kb=country_kb))):
        to = tmp_path / str(number)
        trained.append(enrich(country_split, to, few, graph=graph, whole=whole)["trained"])
        assert any(row["graph_rank"] is not None for row in read_rows(to))
    assert trained[0] != trained[1], "without one of the whole, that of the split answers"
    with pytest.raises(PrixError, match=r"was trained on the KB that .* is a split of"):
        enrich(country_split, tmp_path / "p", few, graph=of_all, whole=Whole(kb=country_kb))


def test_the_manifest_has_a_trial_of_each_language_with_test_facts(
    country_split: KB, of_whole: Path, tmp_path: Path
) -> None:
    trials = [Trial.from_dict(values) for values in read_manifest(of_whole)["trials"]]
    assert [(trial.lang, trial.subset) for trial in trials] == [
        ("fi", "all"),
        ("fi", "no transfer"),
        ("fi", "answer stated"),
        ("fi", "answer unstated"),
    ], "Swedish has no facts"
    assert trials[0].held_out == country_split.num_triples("fi", "test")
    assert [level.level for level in trials[0].levels] == [0.5, 0.8, 0.95]
    few = dataclasses.replace(TRAIN_ONLY, relations=("capital",), into=("fi",))
    for tried, expected in ((3, {3}), (0, set())):
        config = dataclasses.replace(few, tried=tried)
        manifest = enrich(country_split, tmp_path / str(tried), config)
        held_out = {trial["held_out"] for trial in manifest["trials"] if trial["subset"] == "all"}
        assert held_out == expected
