"""The paper's two input formats, token by token, and batches against one fact at a time."""

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from prixlm import KB, PrixError
from prixlm.lm.encoding import (
    LINK,
    ROLES,
    XLMR,
    BatchEncoder,
    FactEncoder,
    Facts,
    add_tokens,
    language_token,
)
from prixlm.lm.token_cache import build_tokens
from prixlm.romanise import READINGS, Reading
from tests.lm.helpers import BASE_TOKENS, all_facts, batch_encoder, encode_one, make_encoder


def decode(encoder: FactEncoder, ids: list[int]) -> tuple[str, str | tuple[str, ...], str]:
    """Subject, relation (or a link's languages) and object of an encoded fact."""
    tokens = [encoder.tokenizer.id_to_token(token) for token in ids]
    columns = [tokens.index(role) for role in ROLES]
    subject, predicate, object_ = (ids[a + 1 : b] for a, b in pairwise(columns))
    languages = {encoder.id(language_token(lang)): lang for lang in encoder.languages}
    texts = [
        encoder.tokenizer.decode(part, skip_special_tokens=False).strip()
        for part in (subject[:-2], predicate[:-2], object_)
    ]
    if all(token in languages for token in predicate[:-2]):
        return texts[0], tuple(languages[token] for token in predicate[:-2]), texts[2]
    return texts[0], texts[1], texts[2]


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
def test_a_triple_and_a_link_are_encoded_as_the_paper_prints_them(
    base: str, tokenizers: dict[str, Tokenizer]
) -> None:
    encoder = make_encoder(base, tokenizers, ["en", "fi"])
    start, sep = BASE_TOKENS[base].start, BASE_TOKENS[base].separator
    subject, capital, object_ = (
        encoder.tokenizer.encode(name, add_special_tokens=False).tokens
        for name in ("Finland", "capital", "Helsinki")
    )
    ids = encoder.encode("Finland", "capital", "Helsinki")
    expected = [start, "[S]", *subject, sep, sep, "[P]", *capital, sep, sep, "[O]"]
    assert [encoder.tokenizer.id_to_token(i) for i in ids] == [*expected, *object_, "[EOS]", sep]
    assert encoder.encode("Finland", "capital", None) == ids[: len(expected)]
    link = encoder.encode("Finland", ("en", "fi"), "Helsinki")
    assert [encoder.tokenizer.id_to_token(i) for i in link] == [
        *[start, "[S]", *subject, sep, sep, "[P]", "[EN]", "[FI]", sep, sep, "[O]"],
        *[*object_, "[EOS]", sep],
    ]


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
def test_an_encoded_fact_can_be_decoded(base: str, tokenizers: dict[str, Tokenizer]) -> None:
    encoder = make_encoder(base, tokenizers, ["en", "fi", "ja"])
    for fact in (("Finland", "capital", "Helsinki"), ("Finland", ("en", "ja"), "フィンランド")):
        assert decode(encoder, encoder.encode(*fact)) == fact


def test_names_are_encoded_as_the_model_reads_them(tokenizers: dict[str, Tokenizer]) -> None:
    encoder = make_encoder("xlmr", tokenizers, ["el", "en"])
    romanised, both = (dataclasses.replace(encoder, reading=r) for r in ("romanised", "both"))
    link = ("Αθήνα", ("el", "en"), "Athens")
    assert romanised.encode(*link) == encoder.encode("athina", ("el", "en"), "athens")
    assert both.encode(*link) == encoder.encode("Αθήνα athina", ("el", "en"), "athens")
    # A name without Latin letters is read in its script, and one that is Latin already once.
    assert romanised.tokenise(["\u0301", "athens"]) == encoder.tokenise(["\u0301", "athens"])
    assert both.tokenise(["\u0301", "Athens"]) == encoder.tokenise(["\u0301", "Athens"])


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("base", ["xlmr", "mbert"])
def test_a_batch_equals_its_facts_encoded_one_by_one(
    base: str, reading: Reading, shared_toy: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    encoder = make_encoder(base, tokenizers, shared_toy.languages)
    encoder = dataclasses.replace(encoder, reading=reading)
    batches = batch_encoder(encoder, shared_toy)
    facts = all_facts(shared_toy)
    facts = facts.select(np.random.default_rng(0).permutation(len(facts)))
    batch = batches.encode(facts)
    padding, eos = encoder.id(BASE_TOKENS[base].padding), encoder.id("[EOS]")
    for row in range(len(facts)):
        expected = encode_one(encoder, shared_toy, facts, row)
        # Inputs end before [EOS] and the last separator, which no prediction attends to.
        assert batch.ids[row, : batch.length[row]].tolist() == expected[:-2]
        assert (batch.ids[row, batch.length[row] :] == padding).all()
        prefix = expected.index(encoder.id("[O]")) + 1
        assert batch.prefix[row] == prefix
        here = batch.row == row
        assert batch.target[here].tolist() == expected[prefix:-1]
        assert batch.target[here][-1] == eos
        assert batch.column[here].tolist() == list(range(prefix - 1, len(expected) - 2))
        names = len(expected) - 10 - 2 * (facts.relation[row] == LINK)
        assert batches.num_tokens(facts)[row] == names
    assert batches.num_inputs(facts).tolist() == batch.length.tolist()
    assert batches.num_targets(facts).sum() == len(batch.target)


def test_an_empty_batch_has_no_rows(shared_toy: KB, tokenizers: dict[str, Tokenizer]) -> None:
    encoder = make_encoder("xlmr", tokenizers, shared_toy.languages)
    batch = batch_encoder(encoder, shared_toy).encode(Facts(*np.zeros((3, 0), int)))
    assert batch.ids.shape == (0, 0) and len(batch.target) == 0


def test_a_tokenizer_without_the_tokens_is_refused(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(PrixError, match=r"has no token \[S\]"):
        FactEncoder(tokenizers["xlmr"], XLMR, ("en",))


def test_language_tokens_never_equal_a_special_token_of_the_base() -> None:
    assert language_token("en") == "[EN]" and language_token("gsw") == "[GSW]"
    codes = ("pad", "sep", "cls")
    assert {language_token(code) for code in codes} == {"[PAD-]", "[SEP-]", "[CLS-]"}


def test_the_length_rule_drops_the_shares_that_the_paper_notes_state(data: Path, dbp5l: KB) -> None:
    tokenizer = Tokenizer.from_file(str(data / "xlmr" / "tokenizer.json"))
    add_tokens(tokenizer, dbp5l.languages)
    encoder = FactEncoder(tokenizer, XLMR, tuple(dbp5l.languages))
    batches = BatchEncoder(encoder, dbp5l, build_tokens(dbp5l, tokenizer))
    columns = ["subject", "relation", "object"]
    # Percent without special tokens, and share with the ten of the paper's format.
    for lang, dropped, dropped_with_special in (("ja", 0.7, 0.20), ("el", 0.4, 0.08)):
        rows = [b.to_pandas().to_numpy() for b in dbp5l.batches("triples", columns, langs=[lang])]
        facts = Facts(*np.concatenate(rows).T)
        share = (batches.num_tokens(facts) >= 30).mean()
        assert 100 * share == pytest.approx(dropped, abs=0.15)
        with_special = (batches.num_inputs(facts) + 2 >= 30).mean()
        assert with_special == pytest.approx(dropped_with_special, abs=0.02)
