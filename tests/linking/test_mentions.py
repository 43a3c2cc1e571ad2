"""Mentions without facts: linked in bulk, with a confidence that holds."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from prixlm import KB, EngineConfig, EntityEncoder, PrixError, import_kb
from prixlm.entities.linker import link_file
from prixlm.entities.matching_fit import Asked
from prixlm.linking import grams
from prixlm.linking import mentions as module
from prixlm.linking.grams import Pairs, nearest
from prixlm.linking.mentions import MentionLinker, default_probability
from prixlm.metrics import reliability
from prixlm.romanise import has_dictionary
from tests.helpers import make_linked_kb


@pytest.fixture(scope="module")
def linker(tmp_path_factory: pytest.TempPathFactory) -> MentionLinker:
    return MentionLinker(make_linked_kb(tmp_path_factory.mktemp("mentions")))


def test_misspelt_names_are_found_and_strange_ones_are_not(linker: MentionLinker) -> None:
    generator = np.random.default_rng(1)
    rows = generator.permutation(len(linker.texts))[:200]
    slips = [linker.texts[row][:-2] + linker.texts[row][-1] for row in rows]
    strange = ["".join(generator.choice(list("qwxyzvjh"), 9)) for _ in range(100)]
    found = linker.candidates(slips + strange, 1)
    truth = np.concatenate([linker.side.owner[rows], np.full(100, -1)])
    right = linker.side.owner[found.row] == truth[found.mention]
    assert right[found.mention < 200].mean() > 0.9
    assert found.confidence[found.mention >= 200].max(initial=0) < 0.3
    assert reliability(found.confidence, right).ece < 0.1


def test_the_concept_answers_in_the_language_that_is_asked_for(linker: MentionLinker) -> None:
    finnish = linker.kb.names([linker.kb.entity_range("fi").start])[0]
    [answers] = linker.link([finnish], k=3, lang="fi")
    assert answers[0].name == finnish and answers[0].score > 0.5
    [plain] = linker.link([finnish], k=3)
    assert plain[0].name == finnish
    english = linker.kb.entity_range("en")
    [[best, *_]] = linker.link([finnish], lang="en")
    assert best.entity in english and [a.rank for a in answers] == [1, 2, 3][: len(answers)]


def test_each_answer_says_which_evidence_put_it_first(linker: MentionLinker) -> None:
    finnish = linker.kb.names([linker.kb.entity_range("fi").start])[0]
    [[best, second, *_]] = linker.link([finnish], k=3, lang="fi")
    assert best.evidence.split(", ")[:2] == ["spelling", "romanised"]
    assert "spelling" not in second.evidence


def import_labels(folder: Path, labels: list[tuple[str, str, str]]) -> KB:
    """Import entities by key, name and language; the languages of a key are one concept."""
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    lines = [f'<http://x/{key}> {label} "{name}"@{lang} .' for key, name, lang in labels]
    keys = sorted({key for key, _, _ in labels})
    lines += [f"<http://x/{key}> <http://x/r> <http://x/{keys[0]}> ." for key in keys[1:]]
    folder.mkdir(exist_ok=True)
    (folder / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    return import_kb([folder / "facts.nt"], folder / "kb", format="rdf")


def test_namesakes_in_other_languages_take_no_place(tmp_path: Path, bases: dict[str, Path]) -> None:
    french = [(f"f{n}", "Springfield", "fr") for n in range(60)]
    english = [("e", "Springfield", "en"), *((f"o{n}", f"Other {n}", "en") for n in range(20))]
    kb = import_labels(tmp_path, french + english)
    for encoder in (None, EntityEncoder.load(bases["xlmr"])):
        linker = MentionLinker(kb, encoder=encoder)
        [answers] = linker.link(["Springfield"], lang="en")
        assert answers[0].name == "Springfield" and answers[0].entity in kb.entity_range("en")


def test_a_name_in_many_languages_takes_one_place(tmp_path: Path) -> None:
    langs = ["en", "fr", "es", "de", "it", "pt", "nl", "sv", "pl", "cs", "da", "ro"]
    cities = [(f"c{n}", "Paris", lang) for n in range(2) for lang in langs]
    others = [("m", "Paris (mythology)", "en"), *((f"o{n}", f"Other {n}", "en") for n in range(9))]
    linker = MentionLinker(import_labels(tmp_path, cities + others))
    assert linker.texts.count("Paris") == 2, "one for each concept"
    [answers] = linker.link(["Paris"])
    assert [answer.name for answer in answers] == ["Paris", "Paris", "Paris (mythology)"]


def test_more_answers_are_found_than_the_usual_places(tmp_path: Path) -> None:
    linker = MentionLinker(import_labels(tmp_path, [(f"c{n}", "Paris", "en") for n in range(30)]))
    [answers] = linker.link(["Paris"], k=25)
    assert len({answer.entity for answer in answers}) == 25


def test_a_name_that_one_language_loses_stays_if_another_has_it(tmp_path: Path) -> None:
    names = [("a", "Oslo", "en"), ("a", "Oslo", "fr"), ("b", "Bergen", "en"), ("b", "Берген", "ru")]
    linker = MentionLinker(import_labels(tmp_path, names))
    rows = [linker.texts.index(name) for name in ("Oslo", "Bergen")]
    asked = [
        Asked(int(linker.entity[row]), linker.texts[row], 0, linker.texts[row], True, False)
        for row in rows
    ]
    assert linker._is_kept(asked, np.arange(2), np.array(rows)).tolist() == [True, False]


@pytest.mark.skipif(not has_dictionary(), reason="needs the extra [ja]")
def test_kanji_are_read_in_the_language_of_the_mention(tmp_path: Path) -> None:
    kb = import_labels(
        tmp_path, [("t", "Tōkyō", "en"), ("d", "Dongjing", "en"), ("o", "Oslo", "en")]
    )
    firsts = []
    for source in ("ja", "zh", None):
        linker = MentionLinker(kb, source=source)
        [[best, *_]] = linker.link(["東京"])
        firsts.append(best.name)
    assert firsts == ["Tōkyō", "Dongjing", "Dongjing"]
    assert linker.identity() != MentionLinker(kb, source="ja").identity()
    load = MentionLinker(kb, source="ja").recipe()
    assert load is not None and load().link(["東京"])[0][0].name == "Tōkyō"
    with pytest.raises(PrixError, match="unknown language"):
        MentionLinker(kb, source="qqqq")


def test_the_confidence_is_fitted_once_for_a_kb(
    linker: MentionLinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mentions = [name[:-2] + name[-1] for name in linker.texts[:50]]
    expected = linker.candidates(mentions)
    [kept] = (linker.kb.folder / "linking").glob("*.skops")
    content, fit = kept.read_bytes(), MentionLinker._fit

    def fails(self: MentionLinker, seed: int) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(MentionLinker, "_fit", fails)
    found = MentionLinker(linker.kb).candidates(mentions)
    assert np.array_equal(found.row, expected.row)
    assert np.array_equal(found.confidence, expected.confidence), "to the last bit"
    with pytest.raises(AssertionError, match="fitted again"):
        MentionLinker(linker.kb, seed=1)
    monkeypatch.setattr(module, "VERSION", 0)
    with pytest.raises(AssertionError, match="fitted again"):
        MentionLinker(linker.kb)
    monkeypatch.undo()
    kept.write_bytes(content[:1000])
    assert MentionLinker._fit is fit and MentionLinker(linker.kb).confidence is not None
    assert kept.read_bytes() == content, "a damaged one is replaced by the same"


def test_workers_link_with_the_confidence_that_was_fitted_once(
    linker: MentionLinker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.linker._PART", 16)
    (tmp_path / "m.txt").write_text("\n".join(linker.texts[:40]) + "\n", "utf-8")
    outs = [tmp_path / f"{workers}.parquet" for workers in (1, 2)]
    for workers, out in enumerate(outs, start=1):
        link_file(linker, tmp_path / "m.txt", out, engine=EngineConfig(workers=workers))
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert "spelling" in pq.read_table(outs[0])["evidence"][0].as_py()


def test_blocks_do_not_change_the_answers(
    linker: MentionLinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mentions = linker.texts[:30]
    whole = linker.candidates(mentions, 3)
    monkeypatch.setattr(module, "_BLOCK", 7)
    parts = linker.candidates(mentions, 3)
    assert np.array_equal(whole.row, parts.row) and np.array_equal(whole.mention, parts.mention)
    assert np.allclose(whole.confidence, parts.confidence) and whole.evidence == parts.evidence
    assert len(linker.candidates([], 3).row) == 0


def test_a_small_kb_uses_the_default_of_the_service(shared_toy: KB) -> None:
    linker = MentionLinker(shared_toy)
    assert linker.confidence is None
    [[best, *others], nothing] = linker.link(["Finland", "qqqqq"], lang="en")
    assert best.name == "Finland" and best.score > 0.5
    assert all(other.score <= best.score for other in others)
    assert all(answer.score < 0.5 for answer in nothing)
    pairs = linker._evidence(["Finland"]).pairs(np.arange(1), np.ones(len(linker.side), bool))
    assert default_probability(pairs, ["Finland"]).sum() <= 1


def test_an_encoder_adds_candidates_and_cosines(shared_toy: KB, bases: dict[str, Path]) -> None:
    linker = MentionLinker(shared_toy, encoder=EntityEncoder.load(bases["xlmr"]))
    [[best, *_]] = linker.link(["Finland"], lang="en")
    assert best.name == "Finland"
    pairs = linker._evidence(["Finland"]).pairs(np.arange(1), np.ones(len(linker.side), bool))
    exact = pairs.column("exact") == 1
    assert exact.any() and pairs.column("encoder")[exact] == pytest.approx(1, abs=1e-4)


ODD = ["x", "7", "2001", "🙂", "𐎠𐎡", "Ж日", "Αlpha 東京", "…", "ー", "\u0301"]
"""One character, digits, emoji, scripts nobody reads, two scripts in one name, a bare accent."""


def import_names(folder: Path, names: list[str]) -> KB:
    """Import one entity for each name, each with a fact."""
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    lines = [f'<http://x/{i}> {label} "{name}"@en .' for i, name in enumerate(names)]
    lines += [f"<http://x/{i}> <http://x/r> <http://x/0> ." for i in range(1, len(names))]
    (folder / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    return import_kb([folder / "facts.nt"], folder / "kb", format="rdf")


def test_odd_names_and_mentions_find_their_like(linker: MentionLinker, tmp_path: Path) -> None:
    for answers in linker.link([*ODD, "\ud800"]):
        assert all(0 <= answer.score <= 1 for answer in answers)
    odd = MentionLinker(import_names(tmp_path, [*ODD, "Athens", "Sparta"]))
    found = odd.link([*ODD, "\ud800"], k=1)
    assert [answers[0].name for answers in found[:-1]] == ODD
    assert found[-1] == [], "half a character finds nothing"


def test_ten_thousand_things_and_mentions_of_one_name_stay_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    others = ["".join(generator.choice(list("abcdeiklmnorstu"), 8)) for _ in range(300)]
    linker = MentionLinker(import_names(tmp_path, ["Saint Mary"] * 10_000 + others))
    searched: list[int] = []

    def counting(queries: sp.csr_matrix, names: sp.csr_matrix, k: int) -> Pairs:
        searched.append(queries.shape[0])
        return nearest(queries, names, k)

    monkeypatch.setattr(grams, "nearest", counting)
    found = linker.candidates(["Saint Mary"] * 10_000 + others, 5)
    assert max(searched) <= 301, "a text is searched once"
    assert np.bincount(found.mention).max() <= 5
    same = found.mention < 10_000
    assert found.confidence[same].max() < 0.1, "none of them can be told from the others"
    best = np.unique(found.mention[~same], return_index=True)[1]
    right = [linker.texts[row] for row in found.row[~same][best]]
    assert np.mean([a == b for a, b in zip(right, others, strict=True)]) > 0.99


def test_empty_mentions_and_unknown_languages_are_refused(linker: MentionLinker) -> None:
    with pytest.raises(PrixError, match="mention 2 is empty"):
        linker.link(["a", " "])
    with pytest.raises(PrixError, match="xx"):
        linker.link(["a"], lang="xx")
