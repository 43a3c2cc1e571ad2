"""Held-out facts: filter and subsets worked by hand, samples, questions with several objects."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, SplitConfig, import_kb, split_kb
from prixlm.rankers.base import read_triples
from prixlm.rankers.heldout import SUBSETS, read_facts, unseen_facts


def test_the_filter_and_the_subsets_are_those_worked_by_hand(nordic: KB) -> None:
    facts = read_facts(nordic, "en")
    subjects, objects = (nordic.names(a.tolist()) for a in (facts.queries.subject, facts.objects))
    pairs = list(zip(subjects, objects, strict=True))
    assert set(pairs) == {("Finland", "Norway"), ("Sweden", "Stockholm"), ("Norway", "Oslo")}
    filtered = facts.queries.filtered_of(pairs.index(("Finland", "Norway")))
    assert sorted(nordic.names(filtered.tolist())) == ["Russia", "Sweden"]  # not the truth
    subsets = {
        name: [pairs[row] for row in np.flatnonzero(mask)] for name, mask in facts.subsets.items()
    }
    assert tuple(subsets) == SUBSETS == ("all", "no transfer", "no inverse")
    assert len(subsets["all"]) == 3
    assert ("Sweden", "Stockholm") not in subsets["no transfer"]  # Finnish train states it
    assert len(subsets["no transfer"]) == 2
    assert subsets["no inverse"] != subsets["all"]
    assert ("Finland", "Norway") not in subsets["no inverse"]  # Norway borders Finland


def test_only_the_named_splits_are_filtered(nordic: KB) -> None:
    facts = read_facts(nordic, "en", filtered=("train",))
    assert sorted(nordic.names(facts.queries.filtered.tolist())) == ["Sweden"]


def test_a_sample_is_part_of_the_facts(nordic: KB) -> None:
    some = read_facts(nordic, "en", most=2)
    assert len(some) == 2 and len(some.queries) == 2 and len(some.queries.offset) == 3
    assert all(len(mask) == 2 for mask in some.subsets.values())


def test_facts_of_a_subset_are_chosen_before_the_draw(chain: KB, tmp_path: Path) -> None:
    everything = read_facts(chain, "en")
    alone = read_facts(chain, "en", within=("no-transfer",))
    assert 3 < len(alone) < len(everything) and alone.subsets["no transfer"].all()
    assert len(read_facts(chain, "en", within=("no-transfer",), most=3)) == 3
    both = read_facts(chain, "en", within=("no-transfer", "no-inverse"))
    assert len(both) == (alone.subsets["no inverse"]).sum()
    # Ends that train has, in any language.
    split = split_kb(chain, tmp_path / "split", SplitConfig(keep_split=True, unseen=0.2, valid=0.1))
    asked = read_facts(split, "en")
    known = set(read_triples(split)[[0, 2]].ravel().tolist())
    pairs = list(zip(asked.queries.subject.tolist(), asked.objects.tolist(), strict=True))
    expected = {
        "seen": [(s in known and o in known) for s, o in pairs],
        "subject-unseen": [(s not in known and o in known) for s, o in pairs],
        "object-unseen": [o not in known for _, o in pairs],
    }
    for key, rows in expected.items():
        found = read_facts(split, "en", within=(key,))
        assert 0 < len(found) < len(asked)
        assert found.objects.tolist() == asked.objects[rows].tolist()
    # With the links kept, a name may be known, but no fact.
    [unseen] = unseen_facts(split, ["en"], within=("subject-unseen",))
    assert len(unseen) == sum(expected["subject-unseen"])
    assert unseen.subsets["only the subject unseen"].all()


def test_a_split_without_facts_is_an_error(nordic: KB) -> None:
    with pytest.raises(PrixError, match="has no test triples in fi: make some"):
        read_facts(nordic, "fi")


def test_a_question_has_all_of_its_objects_and_is_sampled_as_a_whole(tmp_path: Path) -> None:
    lines = ["lang\tsubject\trelation\tobject\tsplit", "en\ta\tr\tz\ttrain"]
    lines += [f"en\t{s}\tr\t{o}\ttest" for s in "abc" for o in "uvw"]
    (tmp_path / "f.tsv").write_text("\n".join(lines))
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    facts = read_facts(kb, "en", filtered=("train",))
    questions = facts.questions()
    assert len(facts) == 9 and len(questions.queries) == 3
    assert np.bincount(questions.owner).tolist() == [3, 3, 3]
    assert kb.names(questions.queries.filtered.tolist()) == ["z"]
    [u] = kb.find("u", "en")
    owner, entity = np.array([0, 1, 1]), np.array([u.id, u.id, questions.queries.subject[1]])
    assert questions.is_right(owner, entity).tolist() == [True, True, False]
    assert len(facts.singly().queries) == 9
    some = read_facts(kb, "en", most=2, filtered=("train",), by_question=True)
    assert len(some) == 6 and len(some.questions().queries) == 2
