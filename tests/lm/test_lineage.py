"""Lineage: what is written, and which models are refused."""

import logging
from pathlib import Path

import pytest

from prixlm import KB, PrixError, SplitConfig, split_kb
from prixlm.lm.lineage import Lineage


@pytest.fixture(scope="module")
def split(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> KB:
    """A split of the toy KB: its parent is the toy KB."""
    return split_kb(shared_toy, tmp_path_factory.mktemp("split") / "kb", SplitConfig(test=0.1))


def test_a_lineage_is_read_as_it_was_written() -> None:
    lineage = Lineage(kb_fingerprint="a", base="compact", earlier_kbs=[], links_an_epoch={})
    assert list(lineage.as_dict()) == ["base", "kb_fingerprint", "earlier_kbs", "links_an_epoch"]
    assert Lineage.from_dict(lineage.as_dict()) == lineage
    assert Lineage.from_dict({"base": "b", "a later field": 3}) == Lineage(base="b")
    assert Lineage().as_dict() == {}


def test_a_model_of_the_kb_itself_may_be_evaluated(split: KB) -> None:
    own = split.fingerprint()
    Lineage(kb_fingerprint=own).check_unseen_facts(split, "the model")
    Lineage(kb_fingerprint=own, links_of_kb=own).check_unseen_facts(split, "the model")


def test_a_model_that_may_know_the_held_out_facts_is_refused(shared_toy: KB, split: KB) -> None:
    own, parent = split.fingerprint(), shared_toy.fingerprint()
    for lineage in (
        Lineage(kb_fingerprint=parent),
        Lineage(kb_fingerprint=own, earlier_kbs=[parent]),
        Lineage(kb_fingerprint=own, links_of_kb=parent),
    ):
        with pytest.raises(PrixError, match=r"^the model was trained on the KB that .* split of"):
            lineage.check_unseen_facts(split, "the model")
    for lineage in (Lineage(), Lineage(kb_fingerprint="other"), Lineage(links_of_kb="other")):
        with pytest.raises(PrixError, match=r"^the encoder was trained on another KB than"):
            lineage.check_unseen_facts(split, "the encoder")


def test_a_model_of_a_split_may_answer_about_the_whole(shared_toy: KB, split: KB) -> None:
    """It knows less than the whole, so nothing is given away."""
    own, whole = split.fingerprint(), shared_toy.fingerprint()
    Lineage(kb_fingerprint=own).check_unseen_facts(shared_toy, "the model", split)
    Lineage(kb_fingerprint=whole).check_unseen_facts(shared_toy, "the model", split)
    for lineage in (
        Lineage(kb_fingerprint=own, links_of_kb=whole),
        Lineage(kb_fingerprint=own, earlier_kbs=["other"]),
        Lineage(),
    ):
        with pytest.raises(PrixError, match="the model was trained on another KB than"):
            lineage.check_unseen_facts(shared_toy, "the model", split)
    with pytest.raises(PrixError, match="the model was trained on another KB than"):
        Lineage(kb_fingerprint=own).check_unseen_facts(shared_toy, "the model")


def test_a_model_is_not_measured_on_facts_that_it_was_trained_on(
    shared_toy: KB, split: KB, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, parent = split.fingerprint(), shared_toy.fingerprint()
    for lineage in (
        Lineage(kb_fingerprint=parent),
        Lineage(kb_fingerprint=own, earlier_kbs=[parent]),
    ):
        with pytest.raises(
            PrixError, match=r"^Prix-LM all was trained on the KB that .* asked for"
        ):
            lineage.check_tested_facts(split, "Prix-LM all")
    with caplog.at_level(logging.WARNING):
        # One of the split itself, and one that says nothing, such as the authors'.
        Lineage(kb_fingerprint=own, links_of_kb=own).check_tested_facts(split, "ours")
        Lineage().check_tested_facts(split, "theirs")
        # Where links alone are withheld, train is that of the KB.
        withheld = split_kb(split, tmp_path / "kb", SplitConfig(hide_links=0.9, valid=0.0))
        Lineage(kb_fingerprint=own).check_tested_facts(withheld, "ours")
        assert not caplog.records
        Lineage(kb_fingerprint="other").check_tested_facts(split, "Prix-LM other")
    assert "Prix-LM other was trained on another KB, perhaps on the held-out facts" in caplog.text


def test_a_model_that_saw_the_withheld_links_is_refused(shared_toy: KB, split: KB) -> None:
    parent = shared_toy.fingerprint()
    for lineage in (
        Lineage(links_of_kb=parent),
        Lineage(earlier_kbs=[parent]),
        Lineage(kb_fingerprint=parent, links_an_epoch={"en": 3}),
        Lineage(kb_fingerprint=parent, triples_carried_along_links=2),
    ):
        with pytest.raises(PrixError, match="on the withheld links that it would be asked for"):
            lineage.check_unseen_links(split, "All")
    # Single reads no links: training on the parent's triples does not reveal any.
    Lineage(kb_fingerprint=parent, links_an_epoch={}).check_unseen_links(split, "Single")


def test_a_model_of_an_unrelated_kb_is_evaluated_with_a_warning(
    split: KB, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Lineage(links_of_kb=split.fingerprint()).check_unseen_links(split, "ours")
        assert not caplog.records
        Lineage(links_of_kb="other").check_unseen_links(split, "theirs")
    assert "theirs was trained on another KB" in caplog.text


def test_a_second_training_on_links_keeps_the_first_in_mind(shared_toy: KB, split: KB) -> None:
    once = Lineage(kb_fingerprint="a").with_links(shared_toy)
    assert once.kbs == ["a", shared_toy.fingerprint()] and once.earlier_kbs is None
    assert once.with_links(shared_toy) == once
    twice = once.with_links(split)
    assert twice.kbs == [shared_toy.fingerprint(), "a", split.fingerprint()]
    assert shared_toy.fingerprint() in twice.link_kbs


def test_counts_are_listed_by_language() -> None:
    lineage = Lineage(triples={"et": 5}, links_an_epoch={"fi": 2}, triples_too_long={"et": 1})
    assert lineage.facts_by_language == {
        "triples": {"et": 5},
        "links an epoch": {"fi": 2},
        "triples too long": {"et": 1},
        "links too long": {},
    }


def test_the_checks_name_the_folder_to_train_on(split: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match=f"Train one on {split.folder} alone"):
        Lineage(kb_fingerprint="other").check_unseen_facts(split, "the model")
