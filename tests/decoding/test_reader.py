"""The reader: its scores against transformers' own pass, and the text that it is asked with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError
from prixlm.decoding import reader as module
from prixlm.decoding.reader import Question, Reader
from prixlm.lm.bases import base_fingerprint
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import encode_names


@pytest.fixture(scope="module", params=["gemma", "qwen"])
def reader(request: pytest.FixtureRequest, shared_toy: KB, families: dict[str, Path]) -> Reader:
    """A random decoder over the toy KB."""
    made = Reader(shared_toy, families[request.param])
    with torch.no_grad():  # far from uniform
        for parameter in made.model.parameters():
            parameter.mul_(2.0)
    return made


def find(kb: KB, lang: str, *names: str) -> list[int]:
    return [kb.find(name, lang)[0].id for name in names]


@torch.no_grad()
def plain_score(reader: Reader, prompt: list[int], name: str) -> float:
    """log P of a name and the end of its line, by transformers' own pass and a whole softmax."""
    [tokens] = encode_names(reader.model.encoder.tokenizer, [reader.space + name])
    tokens = [*tokens, reader.model.end_of_name]
    logits = reader.model.backbone(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]
    logs = logits.log_softmax(-1)
    return sum(logs[len(prompt) - 1 + i, token].item() for i, token in enumerate(tokens))


def test_scores_are_those_of_the_base_one_name_at_a_time(
    reader: Reader, shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    finland, france, helsinki, paris = find(
        shared_toy, "en", "Finland", "France", "Helsinki", "Paris"
    )
    questions = [
        Question(france, "capital", ((finland, helsinki),)),
        Question(paris, "country"),
        Question(finland, "currency", ((france, paris), (paris, france), (helsinki, finland))),
    ]
    entities = np.array(list(shared_toy.entity_range("en")))
    owner = np.tile(np.arange(3), len(entities))  # in any order
    entity = np.repeat(entities, 3)
    monkeypatch.setattr(module, "_BATCH", 2)
    scores = reader.scores("en", questions, owner, entity)
    prompts = reader.write(questions)
    for row, name, ours in zip(owner, shared_toy.names(entity.tolist()), scores, strict=True):
        assert ours == pytest.approx(plain_score(reader, prompts[row], name), abs=1e-3)


def test_scores_are_kept_and_only_new_ones_are_read(
    families: dict[str, Path], shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = families["llama"]
    finland, france, helsinki, paris = find(
        shared_toy, "en", "Finland", "France", "Helsinki", "Paris"
    )
    question = [Question(france, "capital", ((finland, helsinki),))]
    owner = np.zeros(2, np.int64)
    first = Reader(shared_toy, base).scores("en", question, owner, np.array([paris, finland]))
    read: list[int] = []
    score_nodes = module.score_nodes

    def counted(*args: Any) -> np.ndarray:
        read.append(len(args[3]))
        return score_nodes(*args)

    monkeypatch.setattr(module, "score_nodes", counted)
    again = Reader(shared_toy, base)  # as a command that was stopped
    assert np.array_equal(again.scores("en", question, owner, np.array([paris, finland])), first)
    assert read == []
    more = again.scores("en", question, np.zeros(3, np.int64), np.array([helsinki, paris, finland]))
    assert read == [1] and np.array_equal(more[1:], first)
    assert again.scores("en", question, owner[:1], np.array([helsinki])) == more[:1]
    assert read == [1]
    other = [Question(france, "capital", ((finland, paris),))]
    assert again.scores("en", other, owner[:1], np.array([paris])) != first[:1]


def test_models_of_equal_weights_and_other_masks_keep_scores_apart(
    families: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """As the untrained checkpoints of two runs are, with `--prefix own` and `both`."""
    finland, france, helsinki, paris = find(
        shared_toy, "en", "Finland", "France", "Helsinki", "Paris"
    )
    question = [Question(france, "capital", ((finland, helsinki),))]
    scores = {}
    for prefix in ("own", "both"):
        base = PrixLM.from_base(families["gemma"], shared_toy.languages, prefix=prefix)
        with torch.no_grad():  # far from uniform
            for parameter in base.backbone.parameters():
                parameter.mul_(2.0)
        base.save(tmp_path / prefix)
        found = Reader(shared_toy, tmp_path / prefix)
        scores[prefix] = found.scores("en", question, np.zeros(1, np.int64), np.array([paris]))
    assert base_fingerprint(tmp_path / "own") == base_fingerprint(tmp_path / "both")
    assert abs(scores["own"] - scores["both"]) > 1e-6


def test_a_kb_that_cannot_be_written_keeps_scores_in_memory(
    families: dict[str, Path], shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "mkdir", refuse)
    reader = Reader(shared_toy, families["llama"])
    [france] = find(shared_toy, "en", "France")
    question, zero = [Question(france, "x")], np.zeros(1, np.int64)
    entity = np.array([france])
    scores = [reader.scores("en", question, zero, entity) for _ in range(2)]
    assert np.isfinite(scores[0]).all() and scores[0] == scores[1]


def test_a_question_is_the_last_line_of_a_list(
    reader: Reader, shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    finland, france, helsinki, paris = find(
        shared_toy, "en", "Finland", "France", "Helsinki", "Paris"
    )
    question = Question(finland, "is near", ((france, paris), (paris, helsinki)))
    start, tokenizer = reader.model.encoder.start, reader.model.encoder.tokenizer

    def text() -> str:
        [ids] = reader.write([question])
        assert ids[: len(start)] == start
        return str(tokenizer.decode(ids[len(start) :], skip_special_tokens=False))

    lines = ["France, is near: Paris", "Paris, is near: Helsinki", "Finland, is near:"]
    assert text() == "\n".join(lines)
    monkeypatch.setattr(module, "_ROOM", 1)
    assert text() == lines[-1], "examples that do not fit are left out"


def test_a_name_that_is_too_long_has_no_score(
    reader: Reader, shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST", 0)
    reader.trie.cache_clear()
    [finland] = find(shared_toy, "en", "Finland")
    scores = reader.scores("en", [Question(finland, "x")], np.zeros(1, int), np.array([finland]))
    assert scores.tolist() == [-np.inf]
    reader.trie.cache_clear()


def test_an_encoder_cannot_read(shared_toy: KB, families: dict[str, Path]) -> None:
    with pytest.raises(PrixError, match="is not a decoder"):
        Reader(shared_toy, families["xlmr"])
