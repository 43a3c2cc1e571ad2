"""Questions on disk: the same as those that are found, in shards that depend on the KB alone."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, EngineConfig, SplitConfig, enrich, split_kb
from prixlm.engine import parts
from prixlm.engine.workspace import open_workspace
from prixlm.enrichment import gaps as module
from prixlm.enrichment import run
from prixlm.enrichment.gaps import GapFinder, Gaps, Questions, find_questions
from prixlm.errors import Stopped
from tests.enrichment.helpers import INTO, PROPOSALS


def values_of(gaps: list[Gaps]) -> list[tuple[int, int, list[int], float, int, bool]]:
    """One tuple for each question."""
    return [
        (
            int(one.queries.subject[row]),
            int(one.queries.relation[row]),
            one.queries.filtered_of(row).tolist(),
            float(one.expected[row]),
            int(one.kind[row]),
            bool(one.by_name[row]),
        )
        for one in gaps
        for row in range(len(one.queries))
    ]


@pytest.fixture
def questions(kb: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Questions:
    """Questions in row groups of seven, found in blocks of other sizes."""
    monkeypatch.setattr(module, "_GROUP_ROWS", 7)
    monkeypatch.setattr(module, "_BLOCK_SUBJECTS", 29)
    with open_workspace(tmp_path / "work", {}) as work:
        return find_questions(work, INTO, lambda: GapFinder(kb))


@pytest.mark.parametrize("usual", [1, 10, 50])
def test_shards_have_every_question_once_as_it_was_found(
    kb: KB, questions: Questions, usual: int
) -> None:
    shards = questions.shards(usual)
    for lang in INTO:
        read = [questions.read(*shard.value) for shard in shards if shard.value[0] == lang]
        found = values_of(list(GapFinder(kb).find(lang)))
        assert values_of(read) == found and len(found) >= 20
        assert {one.queries.lang for one in read} == {lang}
        for one in read:
            assert one.queries.subject.dtype == one.queries.filtered.dtype == np.int64
    assert [shard.part for shard in shards] == [f"part-{n:07d}.parquet" for n in range(len(shards))]
    assert max(shard.size for shard in shards) == usual


def test_very_many_questions_have_larger_shards(
    questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(shard.size for shard in questions.shards(1))
    monkeypatch.setattr(parts, "_MAX_PARTS", 12)
    shards = questions.shards(1)
    # The last shard of each language may be smaller.
    assert 12 <= len(shards) <= 12 + len(INTO) and sum(one.size for one in shards) == total


def test_a_resumed_run_finds_nothing_again_and_workers_need_no_finder(
    kb: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = split_kb(kb, tmp_path / "split", SplitConfig(test=0.1, valid=0.2))
    monkeypatch.setattr(run, "_PART_QUESTIONS", 40)

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "enrich" and done:
            raise Stopped("stopped by Ctrl-C", 2)

    with pytest.raises(Stopped):
        enrich(split, tmp_path / "p", PROPOSALS, engine=EngineConfig(workers=1), progress=stop)
    monkeypatch.setattr(GapFinder, "__init__", None)
    monkeypatch.setattr(run, "_write_labels", lambda *_: {})  # it finds gaps of another kind
    enrich(split, tmp_path / "p", PROPOSALS, engine=EngineConfig(workers=1))
    assert (tmp_path / "p" / "manifest.json").is_file()
