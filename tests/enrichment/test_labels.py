"""Names of other languages that a language may use."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.enrichment.labels import LabelConfig, LabelProposer, propose_labels
from tests.enrichment.naming.test_chunks import SYLLABLES, spell


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """German uses the French names of people and never those of cities, for 600 entities."""
    folder = tmp_path_factory.mktemp("labels")
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    lines = []
    for number in range(600):
        is_person = number % 2
        entity = f"<http://x/{number}>"
        french = f"Person {number}" if is_person else f"Ville {number}"
        italian = french if is_person else f"Città {number}"
        lines += [f'{entity} {label} "{french}"@fr .', f'{entity} {label} "{italian}"@it .']
        lines.append(f'{entity} {label} "Человек {number}"@ru .')
        if number % 3:
            german = french if is_person else f"Stadt {number}"
            lines.append(f'{entity} {label} "{german}"@de .')
        lines.append(f"{entity} <http://x/r> <http://x/{(number + 1) % 600}> .")
    source = folder / "facts.nt"
    source.write_text("\n".join(lines) + "\n", "utf-8")
    return import_kb([source], folder / "kb", format="rdf")


@pytest.fixture(scope="module")
def german(kb: KB) -> LabelProposer:
    return LabelProposer(kb, "de", LabelConfig(min_confidence=0.0))


def test_names_that_other_languages_share_are_proposed(german: LabelProposer) -> None:
    rows = {row["key"]: row for row in german.propose().to_pylist() if row["confidence"] >= 0.8}
    people = {f"http://x/{n}" for n in range(600) if n % 2 and n % 3 == 0}
    assert set(rows) == people, "people without a German name, and no city"
    row = rows["http://x/3"]
    assert row["name"] == "Person 3" and row["origin"] == ["fr", "it"] and row["lang"] == "de"


def test_a_name_in_another_script_is_not_proposed(german: LabelProposer) -> None:
    names = german.propose()["name"].to_pylist()
    assert names and not any("Человек" in name for name in names)


def test_the_confidence_is_measured_on_concepts_that_it_was_not_learnt_from(
    german: LabelProposer,
) -> None:
    assert german.reliability.number == 100
    assert german.reliability.ece < 0.05


def test_small_batches_do_not_change_the_proposals(
    kb: KB, german: LabelProposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = german.propose().to_pylist()
    monkeypatch.setattr("prixlm.enrichment.labels._BATCH_ROWS", 7)
    assert LabelProposer(kb, "de", german.config).propose().to_pylist() == whole


def test_the_facts_of_a_batch_are_joined_once(
    german: LabelProposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = german.propose().to_pylist()
    joined = []
    join = KB.join_table
    monkeypatch.setattr("prixlm.enrichment.labels._BATCH_THINGS", 10)
    monkeypatch.setattr(
        KB, "join_table", lambda kb, asked, sql: joined.append(len(asked)) or join(kb, asked, sql)
    )
    assert german.propose().to_pylist() == whole
    assert joined == [199, 1], "all but the last concept, which could have had more names"


def test_languages_are_proposed_together_and_one_without_examples_has_its_reason(kb: KB) -> None:
    table, summary = propose_labels(kb, ["de", "ru"], LabelConfig(min_confidence=0.8))
    assert set(table["lang"].to_pylist()) == {"de"}
    assert summary["de"]["names"] == table.num_rows and summary["de"]["ece"] < 0.05
    assert summary["ru"]["names"] == 0 and "too few" in summary["ru"]["why"]


def test_too_few_examples_and_bad_settings_are_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="too few to learn from"):
        LabelProposer(toy, "fi")
    with pytest.raises(PrixError, match="has no language xx"):
        LabelProposer(toy, "xx")
    with pytest.raises(PrixError, match="expected 0 to 1"):
        LabelConfig(min_confidence=2)
    with pytest.raises(PrixError, match="fitted 10: expected 100 concepts or more"):
        LabelConfig(fitted=10)


def test_a_word_that_is_always_translated_is_written_so(tmp_path: Path) -> None:
    links = [f"en\ttown {n}\tet\tlinn {n}" for n in range(150)]
    facts = [
        f"{lang}\t{name} {n}\tnear\t{name} {(n + 1) % 150}"
        for n in range(150)
        for lang, name in (("en", "town"), ("et", "linn"))
    ]
    (tmp_path / "facts.tsv").write_text("lang\tsubject\trelation\tobject\n" + "\n".join(facts))
    (tmp_path / "links.tsv").write_text("lang_a\tname_a\tlang_b\tname_b\n" + "\n".join(links))
    kb = import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")
    proposer = LabelProposer(kb, "et")
    assert proposer.sources == ["en"]
    assert proposer.write_one("town 999", "en")[0].lower() == "linn 999"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Russian spells the English name of 600 entities; it names three in four of them."""
    folder = tmp_path_factory.mktemp("scripts")
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    generator = np.random.default_rng(0)
    lines = []
    for number in range(600):
        word = "".join(generator.choice(SYLLABLES, 3))
        entity = f"<http://x/{number}>"
        lines += [f'{entity} {label} "{word.title()}"@en .', f'{entity} {label} "{word}"@de .']
        if number % 4:
            lines.append(f'{entity} {label} "{spell(word).title()}"@ru .')
        if number < 120:  # names that no other language has
            lines.append(f'<http://y/{number}> {label} "Ειδος {number}"@el .')
        lines.append(f"{entity} <http://x/r> <http://x/{(number + 1) % 600}> .")
        lines.append(f"{entity} <http://x/r> <http://y/{number % 120}> .")
    (folder / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    return import_kb([folder / "facts.nt"], folder / "kb", format="rdf")


def test_names_are_written_in_another_script(scripts: KB) -> None:
    table, summary = propose_labels(scripts, ["ru"], LabelConfig(min_confidence=0.5))
    rows = table.to_pylist()
    assert len({row["concept"] for row in rows}) > 100, "of 150 without a Russian name"
    assert all(row["how"] == "written" and row["origin"] for row in rows)
    right = [row["name"] == spell(row["source"].lower()).title() for row in rows]
    assert np.mean(right) > 0.9
    assert summary["ru"]["written"] == len(rows) and summary["ru"]["taken"] == 0
    assert summary["ru"]["unnamed"] == 150 + 120
    # Greek alone names 120 of them, and every concept it was learnt from has two other names.
    assert summary["ru"]["unlike"] == 120 and summary["ru"]["written_for"] == 150


def test_names_of_a_foreign_script_are_taken_over_where_the_language_does(tmp_path: Path) -> None:
    """Russian spells cities, and takes the names of bands over as they are."""
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    generator = np.random.default_rng(1)
    lines = []
    for number in range(600):
        word = "".join(generator.choice(SYLLABLES, 3))
        is_band = number % 5 == 0
        entity, relation = (
            f"<http://x/{number}>",
            "<http://x/plays>" if is_band else "<http://x/in>",
        )
        lines += [f'{entity} {label} "{word.title()}"@{lang} .' for lang in ("en", "de")]
        if number % 4:
            own = word.title() if is_band else spell(word).title()
            lines.append(f'{entity} {label} "{own}"@ru .')
        lines.append(f"{entity} {relation} <http://x/{(number + 5) % 600}> .")
    (tmp_path / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    kb = import_kb([tmp_path / "facts.nt"], tmp_path / "kb", format="rdf")
    table, summary = propose_labels(kb, ["ru"], LabelConfig(min_confidence=0.5))
    rows = table.to_pylist()
    how = {int(row["key"].rsplit("/")[-1]): row["how"] for row in rows}
    assert len(how) > 130, "of 150 without a Russian name"
    agree = [(how[number] == "taken") == (number % 5 == 0) for number in how]
    assert np.mean(agree) > 0.95 and summary["ru"]["taken"] >= 25
    assert all(row["name"] == row["source"] for row in rows if row["how"] == "taken")


@pytest.mark.parametrize("name", ["Linn {}", "{}", "🙂🙃{}"])
def test_a_language_that_takes_every_name_over_gets_its_names(name: str, tmp_path: Path) -> None:
    """Estonian has the German name of 200 entities; of 100 it has none."""
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    lines = []
    for number in range(300):
        text = name.format(number)
        lines.append(f'<http://x/{number}> {label} "{text}"@de .')
        if number % 3:
            lines.append(f'<http://x/{number}> {label} "{text}"@et .')
        lines.append(f"<http://x/{number}> <http://x/r> <http://x/{(number + 1) % 300}> .")
    (tmp_path / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    kb = import_kb([tmp_path / "facts.nt"], tmp_path / "kb", format="rdf")
    table, summary = propose_labels(kb, ["et"])
    rows = table.to_pylist()
    assert {row["key"] for row in rows} == {f"http://x/{n}" for n in range(0, 300, 3)}
    assert all(row["name"] == row["source"] and row["how"] == "taken" for row in rows)
    assert {row["confidence"] for row in rows} == {round(200.5 / 201, 6)}
    assert summary["et"]["ece"] < 0.02
    assert summary["et"]["why_none_written"].startswith("100% of its linked names")


def test_a_language_says_why_its_names_are_taken_over_only(kb: KB) -> None:
    _, summary = propose_labels(kb, ["de"])
    assert summary["de"]["sources"] == [] and summary["de"]["written"] == 0
    assert "50% of its linked names are used in" in summary["de"]["why_none_written"]
    _, summary = propose_labels(kb, ["de"], LabelConfig(written=0))
    assert "why_none_written" not in summary["de"], "none were asked for"


def test_a_name_that_exists_is_never_proposed_over(scripts: KB) -> None:
    table, _ = propose_labels(scripts, ["ru"], LabelConfig(min_confidence=0.0))
    named = {int(key.rsplit("/")[-1]) % 4 for key in table["key"].to_pylist()}
    assert named == {0}


def test_equal_runs_propose_the_same(scripts: KB) -> None:
    config = LabelConfig(min_confidence=0.3)
    first, second = (propose_labels(scripts, ["ru"], config) for _ in range(2))
    assert first[0].equals(second[0]) and first[1] == second[1]


def test_the_confidence_can_be_fitted_on_a_sample(scripts: KB) -> None:
    proposer = LabelProposer(scripts, "ru", LabelConfig(asked=200))
    assert proposer.reliability.number == 50, "a quarter of the 200"
    things = [thing for batch in proposer.unnamed() for thing in batch if len(thing.names) == 2]
    right = [
        name == spell(thing.names[0][0].lower()).title()
        for thing, (name, _, _) in zip(things, proposer.best(things), strict=True)
    ]
    assert len(right) == 150 and np.mean(right) > 0.8


def test_a_limit_leaves_the_others_to_be_taken_over(scripts: KB) -> None:
    _, summary = propose_labels(scripts, ["ru"], LabelConfig(written=0))
    assert summary["ru"]["written_for"] == 0 and summary["ru"]["names"] == 0


def test_names_are_written_for_the_concepts_with_most_facts(scripts: KB) -> None:
    config = LabelConfig(written=40, min_confidence=0.0)
    table, summary = propose_labels(scripts, ["ru"], config)
    assert summary["ru"]["written_for"] == 40
    concept = scripts.query("SELECT id, concept FROM entities").fetchall()
    of_entity = dict(concept)
    facts = Counter(
        of_entity[end]
        for row in scripts.query("SELECT subject, object FROM triples").fetchall()
        for end in row
    )
    everything, _ = propose_labels(scripts, ["ru"], LabelConfig(min_confidence=0.0))
    unnamed = set(everything["concept"].to_pylist())
    written = set(table["concept"].to_pylist())
    assert len(written) == 40 and written < unnamed
    assert min(facts[c] for c in written) >= max(facts[c] for c in unnamed - written)


def test_a_language_without_a_link_says_so(scripts: KB) -> None:
    _, summary = propose_labels(scripts, ["el"])
    assert summary["el"]["names"] == 0 and summary["el"]["why"].startswith("0 of its named")
    assert "Add links" in summary["el"]["why"]
