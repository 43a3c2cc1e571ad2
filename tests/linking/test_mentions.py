"""Mentions without facts: linked in bulk, with a confidence that holds."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, EngineConfig, EntityEncoder, PrixError
from prixlm.entities.linker import link_file
from prixlm.linking import mentions as module
from prixlm.linking.mentions import MentionLinker, default_probability
from prixlm.metrics import reliability
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


def test_workers_link_with_the_confidence_that_was_fitted_once(
    linker: MentionLinker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.linker._PART", 16)
    (tmp_path / "m.txt").write_text("\n".join(linker.texts[:40]) + "\n", "utf-8")
    outs = [tmp_path / f"{workers}.parquet" for workers in (1, 2)]
    for workers, out in enumerate(outs, start=1):
        link_file(linker, tmp_path / "m.txt", out, engine=EngineConfig(workers=workers))
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_blocks_do_not_change_the_answers(
    linker: MentionLinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mentions = linker.texts[:30]
    whole = linker.candidates(mentions, 3)
    monkeypatch.setattr(module, "_BLOCK", 7)
    parts = linker.candidates(mentions, 3)
    assert np.array_equal(whole.row, parts.row) and np.array_equal(whole.mention, parts.mention)
    assert np.allclose(whole.confidence, parts.confidence)
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


def test_empty_mentions_and_unknown_languages_are_refused(linker: MentionLinker) -> None:
    with pytest.raises(PrixError, match="mention 2 is empty"):
        linker.link(["a", " "])
    with pytest.raises(PrixError, match="xx"):
        linker.link(["a"], lang="xx")
