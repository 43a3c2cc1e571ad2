"""Bilingual lexicon induction: files, ranks by CSLS and by spelling, and the tables."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.spelling import HASHED_GRAMS, SPELLINGS
from prixlm.evaluation import lexicons
from prixlm.evaluation.lexicons import (
    Dictionary,
    count_overlap,
    csls_ranks,
    evaluate_dictionary_files,
    evaluate_lexicons,
    induce,
    induce_by_spelling,
    read_dictionary,
    read_folder,
)
from prixlm.reports.kept import Kept
from prixlm.reports.tables import ResultTable
from tests.trimmed import save_trimmed

Array = np.ndarray


def unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_ranks_by_csls_equal_a_double_loop() -> None:
    generator = np.random.default_rng(3)
    asked = unit(generator.normal(size=(6, 5))).astype(np.float32)
    target = unit(generator.normal(size=(15, 5))).astype(np.float32)
    target[3] = target[4]
    crowding = generator.random(15).astype(np.float32)
    crowding[3] = crowding[4]
    answers = [[0], [1, 2], [3], [4], [5, 6, 7], [14]]
    found = csls_ranks(asked, target, answers, crowding)
    for x, right, rank in zip(asked, answers, found, strict=True):
        scores = [2 * float(x @ y) - float(r) for y, r in zip(target, crowding, strict=True)]
        best = max(scores[i] for i in right)
        others = [s for i, s in enumerate(scores) if i not in right]
        higher = sum(s > best + 1e-6 for s in others)
        equal = sum(abs(s - best) <= 1e-6 for s in others)
        assert rank == 1 + higher + equal / 2


def test_the_words_of_both_sides_are_found_when_they_are_the_same(
    bases: dict[str, Path],
) -> None:
    """A language translated into itself: every word is its own nearest neighbour."""
    words = [f"{a}{b}{c}" for a in "bdfghklmn" for b in "aeiou" for c in "nrst"]
    same = [(word, word) for word in words]
    dictionary = Dictionary(same[:150], [*same[140:], ("ban", "bar")])
    found = induce(EntityEncoder.load(bases["xlmr"]), dictionary, ["frequent", *words])
    assert found.num_candidates == {"dictionary": 180, "and frequent words": 181}
    for part in found.figures.values():
        assert part["all"].hits_1 > 0.9
        assert part["all"].number == 41 and part["not in train"].number == 30


def test_an_encoder_that_reads_the_words_unlike_its_base_is_refused(tmp_path: Path) -> None:
    sources = [f"{a}{b}{c}" for a in "bdf" for b in "aeiou" for c in "nrst"]
    targets = [word[::-1] for word in sources]
    pairs = list(zip(sources, targets, strict=True))
    dictionary = Dictionary(pairs[:50], pairs[50:])
    whole = EntityEncoder.load(save_trimmed(tmp_path / "a", [*sources, *targets], []))
    assert evaluate_lexicons({"whole": whole}, {"en-it": (dictionary, None)})
    trimmed = EntityEncoder.load(save_trimmed(tmp_path / "b", sources, targets))
    with pytest.raises(PrixError, match=r"60 of 60 target words of en-it, asked of trimmed"):
        evaluate_lexicons({"whole": whole, "trimmed": trimmed}, {"en-it": (dictionary, None)})


def test_what_was_measured_of_the_same_encoder_and_words_is_kept(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    train.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdef" for b in "ghijk"))
    test.write_text("ab\tba\nbc\tcb\n")
    folder = shutil.copytree(bases["xlmr"], tmp_path / "encoder")
    path = tmp_path / "bli-parts.jsonl"

    def evaluate() -> list[ResultTable]:
        return evaluate_dictionary_files([folder], [train], [test], kept=Kept(path))

    first = evaluate()
    measured: list[Any] = []
    induce_one = lexicons._induce

    def counted(by: Any, *rest: Any) -> dict[str, Any]:
        measured.append(by)
        return induce_one(by, *rest)

    monkeypatch.setattr(lexicons, "_induce", counted)
    assert [table.rows for table in evaluate()] == [table.rows for table in first]
    assert measured == []
    shutil.rmtree(folder)
    shutil.copytree(bases["mbert"], folder)
    evaluate()
    assert len(measured) == 1, "another encoder under the same name"
    test.write_text("ab\tba\n")
    evaluate()
    assert len(measured) == 1 + len(first[0].rows), "other words"


def test_spelling_finds_what_is_written_alike() -> None:
    train = [("house", "casa"), ("tree", "albero")]
    test = [("music", "musica"), ("music", "canzone"), ("water", "acqua"), ("tree", "pianta")]
    found = induce_by_spelling(Dictionary(train, test), ["acqua", "waterloo"])
    assert found.num_candidates == {"dictionary": 6, "and frequent words": 7}
    # musica is right at once; acqua and pianta share one or two letters with their sources.
    near, far = (found.figures[name] for name in found.num_candidates)
    assert near["all"].number == 3 and near["not in train"].number == 2
    assert near["not in train"].hits_1 == pytest.approx(0.5)  # water: albero is nearer than acqua
    assert far["all"].mrr < near["all"].mrr  # waterloo


def test_mapped_n_grams_learn_which_letters_stand_for_which() -> None:
    """A language written in other letters: spelling has nothing to compare, the map has."""
    letters = dict(zip("abdefghiklmnorstu", "абдефгхиклмнорсту", strict=True))
    words = [f"{a}{b}{c}{d}" for a in "bdfghk" for b in "aeiou" for c in "lmn" for d in "aeiou"]
    pairs = [(word, "".join(letters[letter] for letter in word)) for word in words]
    order = np.random.default_rng(0).permutation(len(pairs))
    dictionary = Dictionary([pairs[i] for i in order[:400]], [pairs[i] for i in order[400:]])
    raw, romanised = HASHED_GRAMS
    assert induce(raw, dictionary).figures["dictionary"]["all"].hits_1 > 0.8
    assert induce(romanised, dictionary, into="ru").figures["dictionary"]["all"].hits_1 > 0.9
    spelled = induce_by_spelling(dictionary).figures["dictionary"]["all"]
    assert spelled.hits_1 < 0.05


def test_lines_that_are_no_pairs_are_counted(tmp_path: Path) -> None:
    train, test = tmp_path / "train", tmp_path / "test"
    train.write_text("a\tb\r\nc d\n\none\ne\t\na\tb\n", "utf-8")
    test.write_text("x\ty z\n", "utf-8")
    found = read_dictionary(train, test)
    assert found.train == [("a", "b"), ("c", "d")]
    assert found.test == [("x", "y z")]
    assert found.problems == {"train: not two words": 2, "train: twice the same pair": 1}
    test.write_text("\n")
    with pytest.raises(PrixError, match="no pair of words"):
        read_dictionary(train, test)
    with pytest.raises(PrixError, match="cannot be read"):
        read_dictionary(train, tmp_path / "none")


def test_the_real_dictionaries_are_read_whole(data: Path) -> None:
    folder = data / "bli" / "fi-ru"
    found = read_dictionary(
        folder / "yacle.train.freq.5k.fi-ru.tsv", folder / "yacle.test.freq.2k.fi-ru.tsv"
    )
    assert (len(found.train), len(found.test)) == (5000 - 185, 2000 - 31)
    assert sorted(found.problems.values()) == [31, 185]
    in_train = {word for word, _ in found.train}
    assert sum(word in in_train for word, _ in found.test) >= 296


def test_a_folder_of_dictionaries(data: Path, tmp_path: Path) -> None:
    found = read_folder(data / "bli")
    assert {name: code for name, (_, code) in found.items()} == {
        "en-fi": "fi",
        "en-it": "it",
        "fi-ru": "ru",
    }
    with pytest.raises(PrixError, match="no folder for a pair"):
        read_folder(tmp_path)
    (tmp_path / "a-b").mkdir()
    with pytest.raises(PrixError, match=r"0 \*train\* and 0 \*test\* files: expected one of each"):
        read_folder(tmp_path)


def test_the_papers_six_pairs_are_read_from_folders_or_from_files_that_name_them(
    tmp_path: Path,
) -> None:
    pairs = ("en-fi", "en-it", "en-ru", "en-tr", "fi-ru", "fi-tr")
    for number, pair in enumerate(pairs):
        folder = tmp_path / pair if number % 2 else tmp_path
        folder.mkdir(exist_ok=True)
        for split in ("train.freq.5k", "test.freq.2k"):
            text = f"{split}\t{pair}\n"
            (folder / f"yacle.{split}.{pair}.tsv").write_text(text)
    (tmp_path / "README.md").write_text("train test")
    found = read_folder(tmp_path)
    assert tuple(found) == pairs
    for pair, (dictionary, lang) in found.items():
        assert lang == pair[3:] and dictionary.test == [("test.freq.2k", pair)]
    (tmp_path / "second.train.en-fi.txt").write_text("a\tb\n")
    with pytest.raises(PrixError, match=r"en-fi has 2 \*train\* and 1 \*test\* files"):
        read_folder(tmp_path)


@pytest.fixture
def linked(tmp_path: Path) -> KB:
    """Three linked concepts of English and Italian, with the capitals of a title, and one alone."""
    rows = ["lang_a\tname_a\tlang_b\tname_b"]
    rows += ["en\tCat\tit\tGatto", "en\tRome\tit\tRoma", "en\teye\tit\tocchio"]
    (tmp_path / "links.tsv").write_text("\n".join(rows))
    facts = "lang\tsubject\trelation\tobject\nen\tDog\tis a\tCat\nit\tCane\tè un\tGatto\n"
    (tmp_path / "facts.tsv").write_text(facts)
    return import_kb([tmp_path / "links.tsv", tmp_path / "facts.tsv"], tmp_path / "kb")


def test_test_pairs_that_are_links_are_counted_as_written_and_in_any_case(linked: KB) -> None:
    test = [("cat", "gatto"), ("Rome", "Roma"), ("eye", "gatto"), ("dog", "cane"), ("x", "y")]
    lexicons = {
        "en-it": (Dictionary([("eye", "occhio")], test), "it"),  # train pairs do not count
        "it-en": (Dictionary([("a", "b")], [("occhio", "eye"), ("gatto", "cat")]), "en"),
        "en-fi": (Dictionary([("a", "b")], [("eye", "silmä")]), "fi"),
    }
    table = count_overlap(linked, lexicons)
    assert table.values("as written") == pytest.approx(
        {"en-it": 1 / 5, "it-en": 1 / 2, "en-fi": float("nan")}, nan_ok=True
    )
    assert table.values("in any case") == pytest.approx(
        {"en-it": 2 / 5, "it-en": 1.0, "en-fi": float("nan")}, nan_ok=True
    )
    assert table.notes == [
        "en-it: 1 of 5 test pairs (2 in any case) are among the KB's 3 links of these languages.",
        "it-en: 1 of 2 test pairs (2 in any case) are among the KB's 3 links of these languages.",
        "en-fi: the KB lacks one of the languages.",
    ]


WORDS = [f"{a}{b}" for a in "abcdef" for b in "ghijk"]
PAIRS = [(word, word[::-1]) for word in WORDS]


def test_tables_tell_candidates_and_subsets_apart(bases: dict[str, Path]) -> None:
    encoder = EntityEncoder.load(bases["xlmr"])
    dictionaries = {
        "en-fi": (Dictionary(PAIRS[:20], PAIRS[15:]), "fi"),
        "en-xx": (Dictionary(PAIRS[:20], PAIRS[20:]), None),
    }
    tables = evaluate_lexicons({"xlmr": encoder}, dictionaries, num_frequent=50)
    assert [table.title for table in tables] == [
        "accuracy among dictionary",
        "MRR among dictionary",
        "accuracy among dictionary, sources not in train",
        "MRR among dictionary, sources not in train",
        "accuracy among and frequent words",
        "MRR among and frequent words",
        "accuracy among and frequent words, sources not in train",
        "MRR among and frequent words, sources not in train",
    ]
    spelled = [row.title for row in (*SPELLINGS, *HASHED_GRAMS)]
    assert all(list(table.rows) == [*spelled, "xlmr"] for table in tables)
    assert tables[0].numbers() == {"en-fi": 15, "en-xx": 10}
    assert tables[2].numbers() == {"en-fi": 10, "en-xx": 10}
    assert tables[0].notes == ["Candidates: en-fi 30, en-xx 30"]
    assert tables[4].columns() == ["en-fi"], "only one target language is known"
    assert tables[4].notes[0].startswith("Candidates: en-fi ")
    encoded = evaluate_lexicons({"xlmr": encoder}, dictionaries, 0, spelling=False)
    assert len(encoded) == 4 and list(encoded[0].rows) == ["xlmr"]
    assert encoded[0].rows["xlmr"] == tables[0].rows["xlmr"]


def test_a_language_without_frequent_words_has_the_candidates_of_the_dictionary(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tables = evaluate_lexicons({}, {"en-xx": (Dictionary(PAIRS[:20], PAIRS[20:]), "xx")})
    assert {table.candidates for table in tables} == {"dictionary"}
    assert "candidates of the dictionary only" in caplog.text


def test_files_are_columns_and_encoders_are_rows(bases: dict[str, Path], tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    tables = evaluate_dictionary_files([bases["xlmr"]], [words], [words])
    assert tables[0].columns() == ["words"] and "xlmr" in tables[0].rows
    tables = evaluate_dictionary_files([], [words], [words])
    assert list(tables[0].rows) == [row.title for row in (*SPELLINGS, *HASHED_GRAMS)]
    with pytest.raises(PrixError, match="1 files to learn from, 1 to test and 2 target languages"):
        evaluate_dictionary_files([bases["xlmr"]], [words], [words], ["fi", "it"])
