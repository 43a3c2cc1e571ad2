"""Descriptions in the input: where they stand, how they are cut, and that they leak nothing."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from prixlm import KB, PrixError, Query, SearchConfig, SplitConfig, import_kb, split_kb
from prixlm.decoding.completer import Completer
from prixlm.lm.compact import make_compact
from prixlm.lm.descriptions import MAX_TOKENS, build_description_tokens
from prixlm.lm.encoding import (
    DESCRIPTION,
    LINK,
    BatchEncoder,
    FactEncoder,
    Facts,
    add_tokens,
    special_tokens,
)
from prixlm.lm.model import PrixLM, Settings
from prixlm.lm.token_cache import build_tokens, encode_names
from prixlm.rankers.base import Queries
from prixlm.rankers.lm import ModelRanker
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig, pretrain
from tests.conftest import TOY_FACTS, TOY_LINKS
from tests.lm.helpers import BASE_TOKENS, all_facts
from tests.training.helpers import TINY

SEARCH = SearchConfig(k=1)
HOSTILE = "</s> [SEP] [O] [D] [EOS]"
DESCRIBED = f"""\
lang\tname\tdescription
en\tFinland\tcountry in northern europe
en\tHelsinki\t{"capital of finland " * 30}
en\tFrance\t{HOSTILE}
fi\tSuomi\tvaltio euroopassa
ja\tフィンランド\tcountry
"""


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    return make_kb(tmp_path_factory.mktemp("described"), DESCRIBED)


def make_kb(folder: Path, descriptions: str) -> KB:
    """The toy KB with descriptions."""
    files = {"facts.tsv": TOY_FACTS, "links.tsv": TOY_LINKS, "things.tsv": descriptions}
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    return import_kb([folder / name for name in files], folder / "kb")


def make_encoder(
    base: str, tokenizers: dict[str, Tokenizer], kb: KB, limit: int, longest: int
) -> FactEncoder:
    tokenizer = Tokenizer.from_str(tokenizers[base].to_str())
    add_tokens(tokenizer, kb.languages, limit)
    return FactEncoder(tokenizer, BASE_TOKENS[base], tuple(kb.languages), limit, longest)


def encode_one(encoder: FactEncoder, kb: KB, facts: Facts, row: int) -> list[int]:
    """One fact, slowly, with the description of its subject."""
    subject, object_ = kb.entities([facts.subject[row], facts.object[row]])
    [text] = kb.descriptions([subject.id])
    number = int(facts.relation[row])
    names = kb.relation_names(subject.lang)
    relation = (subject.lang, object_.lang) if number == LINK else names[number]
    return encoder.encode(subject.name, relation, object_.name, text)


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
def test_a_description_stands_between_the_name_and_the_relation(
    base: str, tokenizers: dict[str, Tokenizer], kb: KB
) -> None:
    encoder = make_encoder(base, tokenizers, kb, 50, 100)
    sep = BASE_TOKENS[base].separator
    ids = encoder.encode("Finland", "capital", "Helsinki", "country in europe")
    tokens = [encoder.tokenizer.id_to_token(token) for token in ids]
    plain = encoder.encode("Finland", "capital", "Helsinki")
    described = [
        encoder.id(DESCRIPTION),
        *encode_names(encoder.tokenizer, ["country in europe"])[0],
    ]
    place = plain.index(encoder.id("[P]"))
    assert ids == [*plain[:place], *described, *[encoder.id(sep)] * 2, *plain[place:]]
    assert tokens.count("[D]") == tokens.count("[P]") == tokens.count("[O]") == 1
    prefix = encoder.encode("Finland", "capital", None, "country in europe")
    assert ids[: len(prefix)] == prefix and tokens[len(prefix) - 1] == "[O]"


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
@pytest.mark.parametrize(("limit", "longest"), [(1, 100), (7, 100), (50, 400), (50, 30), (9, 5)])
def test_a_batch_equals_its_facts_encoded_one_by_one(
    base: str, limit: int, longest: int, tokenizers: dict[str, Tokenizer], kb: KB
) -> None:
    encoder = make_encoder(base, tokenizers, kb, limit, longest)
    batches = BatchEncoder(encoder, kb, build_tokens(kb, encoder.tokenizer))
    facts = all_facts(kb)
    batch = batches.encode(facts)
    num_described = 0
    for row in range(len(facts)):
        expected = encode_one(encoder, kb, facts, row)
        assert batch.ids[row, : batch.length[row]].tolist() == expected[:-2]
        prefix = expected.index(encoder.id("[O]")) + 1
        assert batch.prefix[row] == prefix
        assert batch.target[batch.row == row].tolist() == expected[prefix:-1]
        num_described += expected.count(encoder.id(DESCRIPTION))
    assert batches.num_inputs(facts).tolist() == batch.length.tolist()
    assert (num_described > 0) == (longest > 5)


@pytest.mark.parametrize("limit", [0, 1, 3, 40])
@pytest.mark.parametrize("longest", [0, 12, 20, 25, 60, 500])
def test_only_the_description_is_cut(
    limit: int, longest: int, tokenizers: dict[str, Tokenizer], kb: KB
) -> None:
    encoder = make_encoder("xlmr", tokenizers, kb, limit, longest)
    text = "capital of finland " * 10
    plain = encoder.encode("Helsinki", "country", None)
    prefix = encoder.encode("Helsinki", "country", None, text)
    whole = encode_names(encoder.tokenizer, [text])[0]
    num_read = max(0, min(limit, len(whole), longest - len(plain) - 3))
    assert len(prefix) == len(plain) + (3 + num_read if num_read else 0)
    assert len(prefix) <= max(longest, len(plain))
    if num_read:
        start = prefix.index(encoder.id(DESCRIPTION))
        assert prefix[start + 1 : start + 1 + num_read] == whole[:num_read]
        prefix = prefix[:start] + prefix[start + 3 + num_read :]
    assert prefix == plain


def test_a_model_that_reads_no_descriptions_has_no_token_for_them() -> None:
    assert DESCRIPTION not in special_tokens(["en"]) and DESCRIPTION in special_tokens(["en"], 1)
    settings = Settings(languages=("en",))
    assert "descriptions" not in settings.as_dict()
    read = dataclasses.replace(settings, descriptions=9)
    assert Settings.from_dict(read.as_dict()) == read
    assert Settings.from_dict(settings.as_dict()).descriptions == 0


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
def test_a_description_that_spells_special_tokens_is_text(
    base: str, tokenizers: dict[str, Tokenizer], kb: KB
) -> None:
    encoder = make_encoder(base, tokenizers, kb, 100, 400)
    ids = encoder.encode("France", "capital", "Paris", HOSTILE)
    plain = encoder.encode("France", "capital", "Paris", "x")
    special = set(encoder.tokenizer.get_added_tokens_decoder()) - {
        encoder.tokenizer.token_to_id(unknown) for unknown in ("<unk>", "[UNK]")
    }
    assert [i for i in ids if i in special] == [i for i in plain if i in special]


def test_the_tokens_of_descriptions_are_those_that_the_tokenizer_gives(
    tokenizers: dict[str, Tokenizer], tmp_path: Path
) -> None:
    kb = make_kb(tmp_path, DESCRIBED)
    encoder = make_encoder("xlmr", tokenizers, kb, 5, 60)
    cache = build_tokens(kb, encoder.tokenizer)
    names_only = {path.name for path in cache.folder.iterdir()}
    assert not any(name.startswith("descriptions") for name in names_only)
    tokens = build_description_tokens(kb, encoder.tokenizer, cache)
    texts = kb.descriptions(range(kb.num_entities))
    assert len(tokens) == kb.num_entities
    for entity, text in enumerate(texts):
        expected = encode_names(encoder.tokenizer, [text])[0][:MAX_TOKENS] if text else []
        assert tokens.row(entity).tolist() == expected
    longest = max(len(tokens.row(entity)) for entity in range(kb.num_entities))
    assert longest == MAX_TOKENS  # that of Helsinki is longer
    again = build_description_tokens(kb, encoder.tokenizer, cache)
    assert again.ids.tolist() == tokens.ids.tolist()


def test_the_description_of_the_object_is_never_read(
    tokenizers: dict[str, Tokenizer], kb: KB, tmp_path: Path
) -> None:
    other = make_kb(tmp_path, DESCRIBED.replace("capital of", "other text"))
    [helsinki] = kb.find("Helsinki", "en")
    assert kb.descriptions([helsinki.id]) != other.descriptions([helsinki.id])
    facts = all_facts(kb)
    facts = facts.select(facts.subject != helsinki.id)
    assert (facts.object == helsinki.id).any()
    encoder = make_encoder("xlmr", tokenizers, kb, 20, 60)
    one, two = (
        BatchEncoder(encoder, source, build_tokens(source, encoder.tokenizer)).encode(facts)
        for source in (kb, other)
    )
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a, b)


def test_object_tokens_cannot_influence_earlier_scores(bases: dict[str, Path], kb: KB) -> None:
    model = PrixLM.from_base(bases["xlmr"], kb.languages, descriptions=8).eval()
    facts = all_facts(kb)
    batches = BatchEncoder(model.encoder, kb, build_tokens(kb, model.encoder.tokenizer))
    batch = batches.encode(facts)
    assert (batch.ids == model.encoder.id(DESCRIPTION)).any()
    ids = batch.ids.copy()
    last = batch.length - 1  # the last object token, which predicts [EOS]
    ids[np.arange(len(ids)), last] = (ids[np.arange(len(ids)), last] + 1) % 100
    with torch.no_grad():
        before, after = (
            model.log_probabilities(model.target_states(b))
            for b in (batch, batch._replace(ids=ids))
        )
    earlier = torch.from_numpy(batch.column < last[batch.row])
    assert torch.equal(before[earlier], after[earlier])
    assert not torch.equal(before[~earlier], after[~earlier])


def test_a_saved_model_reads_descriptions_again(
    bases: dict[str, Path], kb: KB, tmp_path: Path
) -> None:
    model = PrixLM.from_base(bases["mbert"], kb.languages, descriptions=6)
    model.save(tmp_path)
    again = PrixLM.load(tmp_path)
    assert again.encoder.descriptions == 6 and again.settings == model.settings
    fact = ("Finland", "capital", None, "country in europe")
    assert again.encoder.encode(*fact) == model.encoder.encode(*fact)


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Things whose names say nothing; only their descriptions tell their colour."""
    folder = tmp_path_factory.mktemp("colours")
    rng = np.random.default_rng(0)
    facts, texts = ["lang\tsubject\trelation\tobject"], ["lang\tname\tdescription"]
    for number in range(120):
        colour = ("red", "green", "blue")[int(rng.integers(3))]
        name = "".join(rng.choice(list("aeioukmnst"), 6)) + str(number)
        facts.append(f"en\t{name}\tcolour\t{colour}")
        texts.append(f"en\t{name}\ta thing that is {colour} all over")
    (folder / "facts.tsv").write_text("\n".join(facts) + "\n")
    (folder / "texts.tsv").write_text("\n".join(texts) + "\n")
    kb = import_kb([folder / "facts.tsv", folder / "texts.tsv"], folder / "kb")
    return split_kb(kb, folder / "split", SplitConfig(test=0.25, valid=0.0))


def share_right(completer: Completer, kb: KB) -> float:
    rows = kb.query(
        "SELECT s.name, o.name FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN entities o ON o.id = t.object WHERE split = 'test'"
    ).fetchall()
    queries = [Query("en", subject, "colour") for subject, _ in rows]
    right = 0
    for answer, (_, object_) in zip(completer.answer(queries, SEARCH), rows, strict=True):
        assert isinstance(answer, list)
        right += answer[0].name == object_
    return right / len(rows)


def test_a_model_learns_from_descriptions_what_names_do_not_say(
    colours: KB, tmp_path: Path
) -> None:
    training = TrainingConfig(lr=1e-2, log_every=100, checkpoints=(1.0,))
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    plain = dataclasses.replace(TINY, epochs=25, training=training, compact=compact)
    read = dataclasses.replace(plain, descriptions=12)
    model = pretrain(colours, tmp_path / "described", read)
    completer = Completer(model, colours)
    assert share_right(completer, colours) > 0.9
    blind = Completer(pretrain(colours, tmp_path / "plain", plain), colours)
    assert share_right(blind, colours) < 0.7  # a third of them, by chance
    # Rankers ask as the completer does, and a description that is given wins.
    [batch] = colours.batches("triples", split="test")
    rows = [np.asarray(batch.column(name)) for name in ("subject", "relation")]
    ranker = ModelRanker(completer, search="beam")
    names = colours.names(rows[0].tolist())
    nothing = np.zeros(len(names) + 1, np.int64), np.zeros(0, np.int64)
    queries = Queries("en", rows[0], rows[1], *nothing)
    assert ranker._prefixes(queries) == [
        completer.encode(Query("en", name, "colour")) for name in names
    ]
    for colour in ("red", "green", "blue"):
        text = f"a thing that is {colour} all over"
        [answers] = completer.answer([Query("en", "new", "colour", description=text)], SEARCH)
        assert isinstance(answers, list) and answers[0].name == colour


def test_namesakes_are_asked_without_a_description(kb: KB, tmp_path: Path) -> None:
    rdf = "".join(
        f'<http://e.org/{n}> <http://www.w3.org/2000/01/rdf-schema#{part}> "{text}"@en .\n'
        for n, name, text_ in ((1, "Paris", "city"), (2, "Paris", "prince"), (3, "Troy", "town"))
        for part, text in (("label", name), ("comment", text_))
    )
    (tmp_path / "x.nt").write_text(rdf)
    named = import_kb([tmp_path / "x.nt"], tmp_path / "kb")
    config = dataclasses.replace(TINY.compact, vocab=600)
    completer = Completer(make_compact(named, config, descriptions=5), named)
    found = completer._described([Query("en", "Paris"), Query("en", "Troy"), Query("en", "no")])
    assert [query.description for query in found] == ["", "town", ""]


def test_a_kb_without_descriptions_is_refused(shared_toy: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, descriptions=8)
    with pytest.raises(PrixError, match="has no descriptions"):
        pretrain(shared_toy, tmp_path / "model", config)
    with pytest.raises(PrixError, match="--descriptions 257"):
        PretrainConfig(descriptions=257)
