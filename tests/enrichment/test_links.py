"""Links that are missing: the confidence is fitted on withheld ones."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, EntityEncoder, PrixError, SplitConfig, import_kb, split_kb
from prixlm.enrichment.links import LinkConfig, LinkProposer, propose_links
from prixlm.metrics import reliability


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Names that are alike in two languages, for 900 entities; some have no counterpart."""
    folder = tmp_path_factory.mktemp("links")
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    generator = np.random.default_rng(0)
    facts, links = ["lang\tsubject\trelation\tobject"], ["lang_a\tname_a\tlang_b\tname_b"]
    names = ["".join(generator.choice(syllables, 4)).title() for _ in range(900)]
    names = list(dict.fromkeys(names))
    # Every third has a quite different name, so that not all can be found.
    others = [name[::-1].title() if i % 3 == 0 else f"{name}i" for i, name in enumerate(names)]
    for number, name in enumerate(names):
        facts.append(f"en\t{name}\tnext\t{names[number - 1]}")
        facts.append(f"fi\t{others[number]}\tnext\t{others[number - 1]}")
        if number % 10:
            links.append(f"en\t{name}\tfi\t{others[number]}")
    (folder / "facts.tsv").write_text("\n".join(facts) + "\n", "utf-8")
    (folder / "links.tsv").write_text("\n".join(links) + "\n", "utf-8")
    kb = import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")
    return split_kb(kb, folder / "split", SplitConfig(hide_links=0.3, valid=0.2))


@pytest.fixture(scope="module")
def encoder(bases: dict[str, Path]) -> EntityEncoder:
    return EntityEncoder.load(bases["xlmr"])


@pytest.fixture(scope="module")
def proposer(split: KB, encoder: EntityEncoder) -> LinkProposer:
    return LinkProposer(split, encoder, "fi", "en", LinkConfig(min_confidence=0.0))


def test_the_confidence_holds_on_withheld_links_that_it_was_not_fitted_on(
    proposer: LinkProposer,
) -> None:
    asked, truth = proposer._cases("test")
    entity, features = proposer._candidates(asked)
    confidence = proposer._confidence(features)
    rows, best = np.arange(len(asked)), confidence.argmax(axis=1)
    measured = reliability(confidence[rows, best], entity[rows, best] == truth)
    assert measured.number > 200 and measured.ece < 0.12


def test_only_entities_without_a_link_get_one_each(split: KB, proposer: LinkProposer) -> None:
    table = proposer.propose()
    columns = [c for name in ("test", "valid") for c in split.withheld_links(name).columns]
    withheld = {entity for column in columns for entity in column.to_pylist()}
    assert not withheld & {*table["entity"].to_pylist(), *table["other"].to_pylist()}
    assert len(set(table["other"].to_pylist())) == table.num_rows, "one to one"
    # Linked entities are not asked for, on either side.
    concept = split.concepts()
    group_size = np.bincount(concept)[concept[table["entity"].to_numpy()]]
    assert (group_size == 1).all()


def test_the_most_confident_links_come_first_and_are_more_often_right(
    proposer: LinkProposer,
) -> None:
    table = proposer.propose()
    names = zip(table["name"].to_pylist(), table["other_name"].to_pylist(), strict=True)
    is_right = np.array([a in (b + "i", b[::-1].title()) for a, b in names])
    assert (np.diff(table["confidence"].to_numpy()) <= 0).all()
    assert is_right[:20].mean() > is_right.mean()


def test_languages_are_proposed_together_and_the_pivot_is_left_out(
    split: KB, proposer: LinkProposer, encoder: EntityEncoder
) -> None:
    table, summary = propose_links(split, encoder, ["en", "fi"], "en", proposer.config)
    assert table.to_pylist() == proposer.propose().to_pylist()
    assert summary == {"fi": {"links": table.num_rows}}


def test_a_language_without_withheld_links_has_its_reason(
    toy: KB, encoder: EntityEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    table, summary = propose_links(toy, encoder, ["te"], "en")
    assert table.num_rows == 0 and summary["te"]["links"] == 0
    assert "withholds no links" in summary["te"]["why"] and "no links for te" in caplog.text


def test_one_language_twice_and_bad_settings_are_refused(split: KB, encoder: EntityEncoder) -> None:
    with pytest.raises(PrixError, match="expected two different languages"):
        LinkProposer(split, encoder, "fi", "fi")
    with pytest.raises(PrixError, match="k 1: expected 2 or more"):
        LinkConfig(k=1)
    with pytest.raises(PrixError, match="expected 0 to 1"):
        LinkConfig(min_confidence=-1)
