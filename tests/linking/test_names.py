"""The forms of names."""

import numpy as np

from prixlm.linking.names import Names, NameSide


def test_names_are_folded_read_and_counted() -> None:
    texts = ["Αθήνα", "Athens", "1984 (film)", "…", "ΑΒ 12"]
    side = NameSide(Names(texts, np.array([0, 0, 1, 2, 3]), langs="el"))
    assert len(side) == 4 and side.labels.tolist() == [0, 2, 3, 4]
    assert side.folded[0] == "αθήνα" and side.read[:2] == ["athina", "athens"]
    assert side.read[3], "a name without letters stands for itself"
    assert side.digits.tolist() == [-1, -1, 1984, -1, 12]
    assert side.is_alias.tolist() == [0, 1, 0, 0, 0]
    assert side.chunks.shape[0] == side.spelled_index.vectors.shape[0] == 5
    assert side.length[0] == 6


def test_names_of_an_entity_that_differ_are_selected() -> None:
    texts = ["Oslo", "OSLO", "Осло", "Bergen", "Oslo"]
    side = NameSide(Names(texts, np.array([0, 0, 0, 1, 2])))
    rows, number = side.distinct()
    assert rows.tolist() == [0, 2, 3, 4] and number.tolist() == [0, 0, 1, 2, 3]
    some = side.select(rows)
    assert some.folded == ["oslo", "осло", "bergen", "oslo"] and some.owner.tolist() == [0, 0, 1, 2]
    assert len(some) == 3 and some.labels.tolist() == [0, 2, 3]


def test_ten_thousand_letters_and_digits_are_cut() -> None:
    side = NameSide(Names(["7" * 10_000], np.zeros(1, int)))
    assert side.length[0] < 1000 and side.digits[0] >= 0
