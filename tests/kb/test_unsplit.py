"""The opposite of a split: every known fact is a train fact again, and nothing else changes."""

from pathlib import Path

import pytest

from prixlm import KB, PrixError, SplitConfig, split_kb
from prixlm.kb.unsplit import unsplit_kb
from tests.helpers import make_proposals


@pytest.fixture(scope="module")
def split(world: KB, tmp_path_factory: pytest.TempPathFactory) -> KB:
    """A split with facts of all four marks, and with withheld links."""
    folder = tmp_path_factory.mktemp("split")
    config = SplitConfig(test=0.1, valid=0.1, everywhere=0.5, langs=("et", "fi"))
    facts = split_kb(world, folder / "facts", config)
    return split_kb(facts, folder / "split", SplitConfig(hide_links=0.1))


def read(kb: KB) -> dict[tuple[str, int, int, int], str]:
    rows = kb.query("SELECT lang, subject, relation, object, split FROM triples").fetchall()
    return {tuple(row[:4]): row[4] for row in rows}


def test_all_facts_are_train_facts(world: KB, split: KB, tmp_path: Path) -> None:
    assert all(split.num_triples(split=name) for name in ("train", "valid", "test", "known"))
    whole = unsplit_kb(split, tmp_path / "whole")
    assert read(whole) == read(world), "all of them are train facts there"
    for lang in world.languages:
        assert whole.num_triples(lang, "train") == world.num_triples(lang)
    assert not any(whole.num_triples(split=name) for name in ("valid", "test", "known"))


def test_everything_else_is_that_of_the_split(split: KB, tmp_path: Path) -> None:
    whole = unsplit_kb(split, tmp_path / "whole")
    names = {path.name for path in split.folder.iterdir()}
    assert {path.name for path in whole.folder.iterdir()} == names
    for name in names - {"triples.parquet", "manifest.json"}:
        assert (whole.folder / name).read_bytes() == (split.folder / name).read_bytes()
    assert whole.manifest.licence == split.manifest.licence
    assert whole.manifest.counts["linked"] == split.manifest.counts["linked"]
    assert not (tmp_path / "whole.partial").exists()


def test_only_the_named_splits_are_joined(split: KB, tmp_path: Path) -> None:
    whole = unsplit_kb(split, tmp_path / "whole", ("train", "valid"))
    before, after = read(split), read(whole)
    assert set(before) == set(after)
    for fact, mark in before.items():
        assert after[fact] == ("train" if mark == "valid" else mark)
    for lang in split.languages:
        assert whole.num_triples(lang, "test") == split.num_triples(lang, "test")
    assert whole.manifest.split == {
        "method": "unsplit",
        "from": split.fingerprint(),
        "splits": ["train", "valid"],
    }


def test_the_same_split_gives_the_same_bytes(split: KB, tmp_path: Path) -> None:
    one, two = (unsplit_kb(split, tmp_path / name) for name in ("one", "two"))
    assert one.fingerprint() == two.fingerprint() != split.fingerprint()
    assert one.path("triples").read_bytes() == two.path("triples").read_bytes()


def test_only_a_kb_is_replaced_and_only_when_asked(toy: KB, tmp_path: Path) -> None:
    unsplit_kb(toy, tmp_path / "whole")
    with pytest.raises(PrixError, match="already there"):
        unsplit_kb(toy, tmp_path / "whole")
    unsplit_kb(toy, tmp_path / "whole", overwrite=True)
    proposals = make_proposals(tmp_path / "proposals", [])
    with pytest.raises(PrixError, match="found a proposals folder, expected a KB folder"):
        unsplit_kb(toy, proposals, overwrite=True)
    with pytest.raises(PrixError, match="holds the source"):
        unsplit_kb(toy, toy.folder, overwrite=True)
