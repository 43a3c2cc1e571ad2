"""The two languages of a KB as sides."""

import math
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, EngineConfig, EntityEncoder, PrixError, SplitConfig, split_kb
from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.linking.problems import kb_problem, read_facts, read_names, withheld_links
from prixlm.lm.compact import make_compact
from tests.helpers import make_linked_kb
from tests.training.helpers import TINY


@pytest.fixture(scope="module")
def withheld(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("links")
    config = SplitConfig(hide_links=0.3, valid=0.2)
    return split_kb(make_linked_kb(folder, 200), folder / "split", config)


def test_sides_hold_the_names_links_and_facts_of_the_kb(toy: KB) -> None:
    problem = kb_problem(toy, "fi", "en")
    assert [problem.ours.texts[row] for row in range(3)] == toy.names(problem.ids[0][:3].tolist())
    left, right = problem.links()
    concept = toy.concepts()
    for a, b in zip(problem.ids[0][left], problem.ids[1][right], strict=True):
        assert concept[a] == concept[b]
    linked = np.isin(concept[problem.ids[0]], concept[problem.ids[1]])
    assert len(left) == linked.sum() > 0
    assert problem.facts is not None and len(problem.facts.subject) == toy.num_triples()


def test_only_the_facts_of_some_splits_are_read(toy: KB, tmp_path: Path) -> None:
    split = split_kb(toy, tmp_path / "split", SplitConfig(test=0.3))
    train = read_facts(split, ("train",))
    assert len(train.subject) == split.num_triples(split="train") < split.num_triples()
    assert len(read_facts(split).subject) == split.num_triples()


def test_withheld_links_are_positions_and_not_among_the_known(withheld: KB) -> None:
    problem = kb_problem(withheld, "fi", "en", without=True)
    known = set(zip(*(side.tolist() for side in problem.links()), strict=True))
    hidden: set[tuple[int, int]] = set()
    for split in ("valid", "test"):
        left, right = withheld_links(withheld, "fi", "en", split)
        hidden |= set(zip(left.tolist(), right.tolist(), strict=True))
        back = withheld_links(withheld, "en", "fi", split)
        assert set(zip(*(side.tolist() for side in back), strict=True)) == {
            (b, a) for a, b in zip(left.tolist(), right.tolist(), strict=True)
        }
    assert hidden and not known & hidden
    assert problem.without is not None
    assert not set(problem.without.tolist()) & {a for a, _ in known | hidden}


def test_aliases_follow_the_name_of_their_entity(toy: KB) -> None:
    names = read_names(toy, "en")
    assert (np.diff(names.owner) >= 0).all() and names.owner[0] == 0


def test_one_language_is_not_two_sides(toy: KB) -> None:
    with pytest.raises(PrixError, match="two different languages"):
        kb_problem(toy, "en", "en")
    with pytest.raises(PrixError, match="xx"):
        kb_problem(toy, "xx", "en")


def test_an_encoder_reads_the_names_in_the_workers_of_an_engine(
    withheld: KB, bases: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("prixlm.entities.index._append_vectors", None)  # what one process does
        encoder, engine = EntityEncoder.load(bases["xlmr"]), EngineConfig(workers=2)
        problem = kb_problem(withheld, "fi", "en", encoder=encoder, engine=engine)
    expected = encoder.encode(problem.ours.texts, langs=["fi"] * len(problem.ours.texts))
    np.testing.assert_allclose(problem.ours.vectors, expected, atol=1e-5)


def test_a_model_translates_in_both_directions(withheld: KB, tmp_path: Path) -> None:
    model = Completer(make_compact(withheld, TINY.compact), withheld)
    problem = kb_problem(withheld, "fi", "en", model=model)
    assert problem.translated is not None and problem.cases is not None
    assert problem.cases[0].tolist() == withheld_links(withheld, "fi", "en", "valid")[0].tolist()
    there, back = problem.translated
    label = problem.ours.texts[0]
    answers = model.translate(label, lang="fi", to="en", config=SearchConfig(k=10, beam=20))
    first = withheld.entity_range("en").start
    expected = {one.entity - first: math.exp(one.score) for one in answers}
    asked = there.left == 0
    assert dict(zip(there.right[asked], there.score[asked], strict=True)) == pytest.approx(expected)
    assert back.right.max() < len(problem.ids[1]) and back.left.max() < len(problem.ids[0])
    assert len(np.unique(back.right)) == len(problem.ids[1]), "each of theirs was asked"
