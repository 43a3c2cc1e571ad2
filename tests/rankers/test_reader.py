"""The reader: its scores against transformers' own pass, its examples, and the protocol."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError
from prixlm.lm.token_cache import encode_names
from prixlm.rankers.base import Queries
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.reader import ReadingRanker
from prixlm.rankers.suite import load_suite
from tests.rankers.conftest import import_tables

Array = np.ndarray


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Towns of four countries in two languages; every third fact is held out."""
    lines = ["lang\tsubject\trelation\tobject\tsplit"]
    for lang, number in itertools.product(("en", "fi"), range(18)):
        split = "test" if number % 3 == 0 else "train"
        lines.append(f"{lang}\tTown {number}\tcountry\tLand {number % 4}\t{split}")
        lines.append(f"{lang}\tTown {number}\ttwin\tTown {number * 5 % 18}\ttrain")
    links = "lang_a\tname_a\tlang_b\tname_b\nen\tTown 1\tfi\tTown 1\n"
    return import_tables(tmp_path_factory.mktemp("towns"), "\n".join(lines), links)


@pytest.fixture(scope="module", params=["gemma", "qwen"])
def reader(request: pytest.FixtureRequest, towns: KB, families: dict[str, Path]) -> ReadingRanker:
    """A random decoder over the KB of towns."""
    made = ReadingRanker(towns, families[request.param], num_examples=2, num_candidates=5, batch=3)
    with torch.no_grad():  # far from uniform
        for parameter in made.model.parameters():
            parameter.mul_(2.0)
    return made


def ask(kb: KB, lang: str) -> tuple[Queries, Array]:
    facts = read_facts(kb, lang)
    rows = np.arange(min(7, len(facts)))
    return facts.queries.select(rows), facts.objects[rows]


@torch.no_grad()
def plain_score(reader: ReadingRanker, prompt: list[int], name: str) -> float:
    """log P of a name and the end of its line, by transformers' own pass and a whole softmax."""
    [tokens] = encode_names(reader.model.encoder.tokenizer, [reader._space + name])
    tokens = [*tokens, reader.model.end_of_name]
    logits = reader.model.backbone(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]
    logs = logits.log_softmax(-1)
    return sum(logs[len(prompt) - 1 + i, token].item() for i, token in enumerate(tokens))


def test_scores_are_those_of_the_base_one_name_at_a_time(reader: ReadingRanker, towns: KB) -> None:
    queries, objects = ask(towns, "en")
    prompts = reader._prompts(queries, np.arange(len(queries)))
    owner, entity, score = reader.scored(queries)
    assert len(owner) > len(queries)
    for row, name, ours in zip(owner, towns.names(entity.tolist()), score, strict=True):
        assert ours == pytest.approx(plain_score(reader, prompts[row], name), abs=1e-3)
    wanted = reader.scores(queries, np.arange(len(queries)), objects)
    assert np.isfinite(wanted).all(), "any object can be asked for"


def test_a_question_is_a_list_of_train_facts_without_its_subject(
    reader: ReadingRanker, towns: KB
) -> None:
    queries, _ = ask(towns, "en")
    tokenizer = reader.model.encoder.tokenizer
    train = {
        (row["subject"], row["relation"], row["object"])
        for batch in towns.batches("triples", split="train", langs=["en"])
        for row in batch.to_pylist()
    }
    names = towns.relation_names("en")
    found = 0
    for row, prompt in enumerate(reader._prompts(queries, np.arange(len(queries)))):
        ids = prompt[len(reader.model.encoder.start) :]
        lines = tokenizer.decode(ids, skip_special_tokens=False).split("\n")
        subject = towns.names([int(queries.subject[row])])[0]
        relation = names[int(queries.relation[row])]
        assert lines[-1].strip() == f"{subject}, {relation}:"
        known = {
            f"{s}, {relation}: {o}"
            for s, o in (towns.names([a, b]) for a, r, b in train if r == queries.relation[row])
        }
        for line in lines[:-1]:
            assert line.strip() in known and not line.strip().startswith(f"{subject},")
            found += 1
        assert len(lines) <= 3
    assert found > 3


def test_a_reader_keeps_the_protocol(reader: ReadingRanker, towns: KB) -> None:
    queries, objects = ask(towns, "en")
    ranked = reader.best(queries, 3)
    for row in range(len(queries)):
        answers = ranked.entity[ranked.offset[row] : ranked.offset[row + 1]]
        assert not set(answers) & set(queries.filtered_of(row))
        assert set(answers) <= set(towns.entity_range("en"))
    ranks = reader.ranks(queries, objects)
    assert ((ranks >= 1) & (ranks <= len(towns.entity_range("en")))).all()
    given = np.arange(len(queries)), objects
    answered = reader.ask(queries, 3, given)
    # A given object that is better than the candidates is among the best.
    scores = answered.scores(*given)
    np.testing.assert_allclose(scores, reader.scores(queries, *given), atol=1e-4)
    for row in range(len(queries)):
        part = slice(answered.ranked.offset[row], answered.ranked.offset[row + 1])
        assert (answered.ranked.score[part] >= min(scores[row], ranked.score.max())).any()
    again = reader.scores(queries, *given)
    assert np.array_equal(again, reader.scores(queries, *given))


def test_a_reader_takes_part_in_the_suite(nordic: KB, families: dict[str, Path]) -> None:
    suite = load_suite(nordic, reader=families["gemma"])
    assert suite.reader is not None and suite.rankers[-1].name == "reader"
    assert suite.identity and suite.identity != load_suite(nordic).identity


def test_an_encoder_cannot_read(nordic: KB, families: dict[str, Path]) -> None:
    with pytest.raises(PrixError, match="is not a decoder"):
        ReadingRanker(nordic, families["xlmr"])
