"""Links that are missing: the linker is fitted on those that the KB has."""

from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from prixlm import KB, EntityEncoder, PrixError, SplitConfig, import_kb, split_kb
from prixlm.decoding.completer import Completer
from prixlm.enrichment.links import LinkConfig, propose_links
from prixlm.linking.grams import Pairs
from prixlm.linking.linker import LinkerConfig
from prixlm.linking.names import Names
from prixlm.linking.problems import kb_problem
from tests.helpers import make_linked_kb


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("links")
    kb = make_linked_kb(folder)
    return split_kb(kb, folder / "split", SplitConfig(hide_links=0.3, valid=0.2))


@pytest.fixture(scope="module")
def encoder(bases: dict[str, Path]) -> EntityEncoder:
    return EntityEncoder.load(bases["xlmr"])


QUICK = LinkConfig(min_confidence=0.0, linker=LinkerConfig(folds=2, rounds=1))


@pytest.fixture(scope="module")
def table(split: KB) -> pa.Table:
    """Proposals without an encoder, whatever their confidence."""
    return propose_links(split, ["fi"], "en", QUICK)[0]


def test_only_entities_without_a_link_get_one_each(split: KB, table: pa.Table) -> None:
    columns = [c for name in ("test", "valid") for c in split.withheld_links(name).columns]
    withheld = {entity for column in columns for entity in column.to_pylist()}
    assert table.num_rows > 50
    assert not withheld & {*table["entity"].to_pylist(), *table["other"].to_pylist()}
    assert len(set(table["other"].to_pylist())) == table.num_rows, "one to one"
    # Linked entities are not asked for, on either side.
    concept = split.concepts()
    group_size = np.bincount(concept)[concept[table["entity"].to_numpy()]]
    assert (group_size == 1).all()


def test_the_most_confident_links_come_first_with_their_evidence(table: pa.Table) -> None:
    names = list(zip(table["name"].to_pylist(), table["other_name"].to_pylist(), strict=True))
    is_right = np.array([a in (b + "i", b[::-1].title()) for a, b in names])
    assert (np.diff(table["confidence"].to_numpy()) <= 0).all()
    assert is_right[:20].all() and is_right.mean() > 0.9, "the graph is a chain"
    kinds = {kind for row in table["evidence"].to_pylist() for kind in row}
    assert {"spelling", "romanised", "words", "graph"} == kinds
    similarity = dict(zip(names, table["similarity"].to_pylist(), strict=True))
    assert all(similarity[pair] > 0.9 for pair in names if pair[0] == pair[1] + "i")


def test_an_encoder_is_one_more_kind_of_evidence_fitted_on_withheld_links(
    split: KB, encoder: EntityEncoder
) -> None:
    table, summary = propose_links(split, ["en", "fi"], "en", QUICK, encoder)
    assert summary["fi"] == {"links": table.num_rows}
    assert summary["en"]["links"] == 0 and "it is the pivot" in summary["en"]["why"]
    assert "encoder" in {kind for row in table["evidence"].to_pylist() for kind in row}


def test_translations_of_a_model_are_evidence_fitted_on_withheld_links(
    split: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_backwards(model: Completer, ours: Names, lang: str, into: str, *_: object) -> Pairs:
        """Translate what `make_linked_kb` spells backwards, as a model that knows the trick."""
        other = {name: row for row, name in enumerate(split.names(split.entity_range(into)))}
        pairs = [(row, other.get(name[::-1].title())) for row, name in enumerate(ours.texts)]
        found = np.array([pair for pair in pairs if pair[1] is not None], np.int64)
        return Pairs(found[:, 0], found[:, 1], np.full(len(found), 0.9, np.float32))

    monkeypatch.setattr("prixlm.linking.problems.translate_names", read_backwards)
    model = cast(Completer, object())
    table, _ = propose_links(split, ["fi"], "en", QUICK, model=model)
    kinds = {kind for row in table["evidence"].to_pylist() for kind in row}
    assert "decoder" in kinds and table.num_rows > 50


def test_a_language_without_links_has_its_reason(
    toy: KB, encoder: EntityEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    table, summary = propose_links(toy, ["te"], "en")
    assert table.num_rows == 0 and summary["te"]["links"] == 0
    assert "too few" in summary["te"]["why"] and "no links for te" in caplog.text
    _, summary = propose_links(toy, ["te"], "en", encoder=encoder)
    assert "withholds no links" in summary["te"]["why"]


def test_names_of_one_sign_that_nobody_romanises_get_links(tmp_path: Path) -> None:
    signs = [chr(0x12000 + number) for number in range(150)]  # cuneiform
    facts = [f"{lang}\t{a}\tnext\t{b}" for lang in ("en", "fi") for a, b in pairwise(signs)]
    links = [f"en\t{sign}\tfi\t{sign}" for sign in signs[:100]]
    (tmp_path / "f.tsv").write_text("\n".join(["lang\tsubject\trelation\tobject", *facts]), "utf-8")
    (tmp_path / "l.tsv").write_text("\n".join(["lang_a\tname_a\tlang_b\tname_b", *links]), "utf-8")
    kb = import_kb([tmp_path / "f.tsv", tmp_path / "l.tsv"], tmp_path / "kb")
    table, summary = propose_links(kb, ["fi"], "en", QUICK)
    assert table["name"].to_pylist() == table["other_name"].to_pylist()
    assert summary["fi"]["links"] == table.num_rows == 50


def test_one_language_twice_and_bad_settings_are_refused(split: KB) -> None:
    with pytest.raises(PrixError, match="expected two different languages"):
        kb_problem(split, "fi", "fi")
    with pytest.raises(PrixError, match="expected 0 to 1"):
        LinkConfig(min_confidence=-1)
