"""Links that are missing: fitted on hidden ones."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, SplitConfig, import_kb, split_kb
from prixlm.enrichment.links import LinkConfig, LinkRule, propose_links
from prixlm.entities.encoder import EntityEncoder


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Names that are alike in two languages, for 900 things; some have no counterpart."""
    folder = tmp_path_factory.mktemp("counterparts")
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    generator = np.random.default_rng(0)
    facts, links = ["lang\tsubject\trelation\tobject"], ["lang_a\tname_a\tlang_b\tname_b"]
    names = ["".join(generator.choice(syllables, 4)).title() for _ in range(900)]
    names = list(dict.fromkeys(names))
    # Every third is called otherwise, so that not all can be found.
    theirs = [name[::-1].title() if i % 3 == 0 else f"{name}i" for i, name in enumerate(names)]
    for number, name in enumerate(names):
        facts.append(f"en\t{name}\tnext\t{names[number - 1]}")
        facts.append(f"fi\t{theirs[number]}\tnext\t{theirs[number - 1]}")
        if number % 10:
            links.append(f"en\t{name}\tfi\t{theirs[number]}")
    (folder / "facts.tsv").write_text("\n".join(facts) + "\n", "utf-8")
    (folder / "links.tsv").write_text("\n".join(links) + "\n", "utf-8")
    kb = import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")
    return split_kb(kb, folder / "split", SplitConfig(hide_links=0.3, valid=0.2))


def test_hidden_links_are_found_again_with_a_confidence(split: KB, bases: dict[str, Path]) -> None:
    encoder = EntityEncoder.load(bases["xlmr"])
    rule = LinkRule(split, encoder, "fi", "en", LinkConfig(min_confidence=0.0))
    tried = rule.try_on_hidden()
    assert tried.number > 200 and tried.ece < 0.12
    table = rule.proposals()
    columns = [c for name in ("test", "valid") for c in split.hidden_links(name).columns]
    hidden = {one for column in columns for one in column.to_pylist()}
    assert not hidden & {*table["entity"].to_pylist(), *table["other"].to_pylist()}
    assert len(set(table["other"].to_pylist())) == table.num_rows, "one to one"
    names = list(zip(table["name"].to_pylist(), table["other_name"].to_pylist(), strict=True))
    right = np.array([a in (b + "i", b[::-1].title()) for a, b in names])
    sure = table["confidence"].to_numpy()
    assert (np.diff(sure) <= 0).all()
    assert right[:20].mean() > right.mean()
    # What is linked is not asked for, on either side.
    concept = split.concepts()
    both = np.bincount(concept)[concept[table["entity"].to_numpy()]]
    assert (both == 1).all()


def test_what_cannot_be_done_is_said(split: KB, toy: KB, bases: dict[str, Path]) -> None:
    encoder = EntityEncoder.load(bases["xlmr"])
    with pytest.raises(PrixError, match="name two languages"):
        propose_links(split, encoder, "fi", "fi")
    with pytest.raises(PrixError, match="hides no links"):
        propose_links(toy, encoder, "te", "en")
    with pytest.raises(PrixError, match="k has to be 2"):
        LinkConfig(k=1)
