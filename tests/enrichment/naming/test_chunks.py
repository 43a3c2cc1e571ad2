"""A transliteration learnt from pairs of words."""

import itertools
import math

import pytest

from prixlm.enrichment.naming.chunks import ChunkModel, align_pairs, usable_chunks
from prixlm.enrichment.naming.vocabulary import Vocabulary

LETTERS = dict(zip("abdegiklmnoprstuv", "абдегиклмнопрстув", strict=True)) | {"sh": "ш", "q": "кс"}
SYLLABLES = [c + v for c in "bdgklmnprstv" for v in "aeiou"]


def spell(word: str) -> str:
    """Write a word by the rules that a model has to find."""
    for latin in ("sh", "q"):
        word = word.replace(latin, LETTERS[latin])
    return "".join(LETTERS.get(letter, letter) for letter in word)


WORDS = ["".join(pair) for pair in itertools.product(SYLLABLES[::3], SYLLABLES[1::4])]
WORDS += [f"{a}sh{b}q{c}" for a in SYLLABLES[::5] for b in "aoiu" for c in ("", "ra", "to")]
PAIRS = [(word, spell(word)) for word in WORDS]


@pytest.fixture(scope="module")
def model() -> ChunkModel:
    return ChunkModel.fit(PAIRS)


def test_the_chunks_of_a_pair_join_to_the_pair() -> None:
    aligned = align_pairs(PAIRS)
    for pair, found in zip(PAIRS, aligned, strict=True):
        assert found is not None
        assert ("".join(s for s, _ in found.chunks), "".join(t for _, t in found.chunks)) == pair


def test_letters_are_aligned_to_the_letters_that_they_stand_for() -> None:
    aligned = [found for found in align_pairs(PAIRS) if found]
    cut = {chunk for chunks in usable_chunks(aligned) for chunk in chunks}
    assert {("b", "б"), ("a", "а"), ("k", "к"), ("r", "р")} <= cut


def test_words_that_were_not_seen_are_written_by_the_rules(model: ChunkModel) -> None:
    for word in ("tovari", "melonushaq", "gadiru"):
        assert word not in WORDS
        answers = model.write(word)
        assert answers[0][0] == spell(word)
        assert sum(share for _, share in answers) <= 1 + 1e-9


def test_a_translation_is_told_from_a_transliteration() -> None:
    translations = [("belarus", "швеция"), ("church", "дом"), ("frenzy", "ночь")]
    aligned = align_pairs([*PAIRS, *translations])
    margins = [found.margin if found else -math.inf for found in aligned]
    assert max(margins[-3:]) < min(margins[:50])
    assert len(usable_chunks(found for found in aligned[-3:] if found)) == 0


def test_a_word_with_an_unknown_letter_is_not_written(model: ChunkModel) -> None:
    assert model.write("日本") == [] and model.write("a日") == [] and model.write("🙂") == []


def test_a_narrow_beam_agrees_with_every_spelling_there_is() -> None:
    sequences = [[("a", "x"), ("b", "y")], [("a", "z"), ("b", "y")], [("ab", "w")]] * 3
    model = ChunkModel([*sequences, [("a", "x"), ("b", "v")]], order=3)
    found = dict(model.write("ab", beam=50))
    # All cuts of the word, and all targets of each chunk, scored one by one.
    numbers = {("a", "x"): 1, ("b", "y"): 2, ("a", "z"): 3, ("ab", "w"): 4, ("b", "v"): 5}
    slow: dict[str, float] = {}
    for path in ([("a", t), ("b", u)] for t in "xz" for u in "yv"):
        slow["".join(t for _, t in path)] = probability(model, [numbers[pair] for pair in path])
    slow["w"] = probability(model, [4])
    total = sum(slow.values())
    assert found.keys() == slow.keys()
    for text, value in slow.items():
        assert found[text] == pytest.approx(value / total)


def probability(model: ChunkModel, chunks: list[int]) -> float:
    """P of a sequence: the product over its chunks and the end, with the last two as context."""
    value, context = 1.0, [-1]
    for chunk in [*chunks, 0]:
        value *= model.ngrams.probability(chunk, tuple(context[-2:]))
        context.append(chunk)
    return value


def test_the_probabilities_of_what_can_follow_add_up_to_one(model: ChunkModel) -> None:
    for context in ((), (-1,), (-1, 1), (2, 3), (10**6,)):
        total = sum(
            model.ngrams.probability(chunk, context) for chunk in range(model.num_chunks + 1)
        )
        assert total == pytest.approx(1)


def test_equal_pairs_give_equal_answers(model: ChunkModel) -> None:
    again = ChunkModel.fit(PAIRS)
    assert [again.write(word) for word in WORDS[:20]] == [model.write(word) for word in WORDS[:20]]


def test_no_pairs_make_a_model_that_writes_nothing() -> None:
    assert align_pairs([]) == []
    assert ChunkModel.fit([]).write("a") == []


def test_known_words_are_found_behind_better_spellings() -> None:
    # Each letter has two spellings; the rare one never is among the best of a long word.
    common = [[("a", "а"), ("b", "б")]] * 30
    rare = [[("a", "о")], [("b", "п")]] * 3
    model = ChunkModel([*common, *rare])
    word, odd = "ab" * 5, "оп" * 5
    assert odd not in dict(model.write(word))
    known = Vocabulary({odd: 1e-6})
    found = dict(model.write(word, known=known))
    assert found[odd] > 0 and max(found, key=found.__getitem__) != odd
    assert dict(model.write(word)).keys() <= found.keys()


def test_a_search_among_known_words_agrees_with_scoring_each_of_them(model: ChunkModel) -> None:
    words = ["товари", "товаре", "тувари", "тофари", "мелон"]
    found = model._search("tovari", 50, Vocabulary(dict.fromkeys(words, 1e-06)))
    possible = {word: model.joint("tovari", word) for word in words}
    assert found.keys() == {word for word, log in possible.items() if log > -math.inf}
    for word, log in found.items():
        assert log >= possible[word] - 1e-9, "a sum over cuts is not below the best cut"


def test_the_joint_probability_is_that_of_the_best_cut(model: ChunkModel) -> None:
    free = model._search("tovari", 50, None)
    assert free["товари"] >= model.joint("tovari", "товари") - 1e-9
    assert model.joint("tovari", "товари") > model.joint("tovari", "товару")
    assert model.joint("tovari", "") == model.joint("日", "товари") == -math.inf
