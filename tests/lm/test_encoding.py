"""The paper's two boxes, token by token, and batches against one fact at a time."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from prixlm import KB, PrixError, import_kb
from prixlm.lm.encoding import (
    LINK,
    MBERT,
    XLMR,
    BatchEncoder,
    FactEncoder,
    Facts,
    add_tokens,
    language_token,
)
from prixlm.lm.token_cache import build_tokens

BASES = {"xlmr": XLMR, "mbert": MBERT}


def make_encoder(base: str, tokenizers: dict[str, Tokenizer], langs: list[str]) -> FactEncoder:
    tokenizer = Tokenizer.from_str(tokenizers[base].to_str())
    assert add_tokens(tokenizer, langs) == 4 + len(langs)
    assert add_tokens(tokenizer, langs) == 0
    return FactEncoder(tokenizer, BASES[base], tuple(langs))


def all_facts(kb: KB) -> Facts:
    """Every triple, and every link in both directions."""
    triples = [row for batch in kb.batches("triples") for row in batch.to_pylist()]
    rows = [(row["subject"], row["relation"], row["object"]) for row in triples]
    for batch in kb.link_pairs():
        for pair in batch.to_pylist():
            rows += [(pair["a"], LINK, pair["b"]), (pair["b"], LINK, pair["a"])]
    return Facts(*np.array(rows).T)


def encode_one(encoder: FactEncoder, kb: KB, facts: Facts, row: int) -> list[int]:
    subject, object_ = kb.entities([facts.subject[row], facts.object[row]])
    relation = int(facts.relation[row])
    if relation == LINK:
        return encoder.encode(subject.name, (subject.lang, object_.lang), object_.name)
    return encoder.encode(subject.name, kb.relation_names(subject.lang)[relation], object_.name)


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
def test_a_triple_and_a_link_stand_as_in_the_papers_boxes(
    base: str, tokenizers: dict[str, Tokenizer]
) -> None:
    encoder = make_encoder(base, tokenizers, ["en", "fi"])
    start, sep = BASES[base].start, BASES[base].separator
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
def test_what_is_encoded_is_decoded(base: str, tokenizers: dict[str, Tokenizer]) -> None:
    encoder = make_encoder(base, tokenizers, ["en", "fi", "ja"])
    for fact in (("Finland", "capital", "Helsinki"), ("Finland", ("en", "ja"), "フィンランド")):
        assert encoder.decode(encoder.encode(*fact)) == fact


@pytest.mark.parametrize("base", ["xlmr", "mbert"])
@pytest.mark.parametrize("full", [True, False])
def test_a_batch_equals_its_facts_encoded_one_by_one(
    base: str, full: bool, toy: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    encoder = make_encoder(base, tokenizers, toy.languages)
    cache = build_tokens(toy, encoder.tokenizer)
    batches = BatchEncoder(encoder, toy, cache, full=full)
    facts = all_facts(toy)
    facts = facts.select(np.random.default_rng(0).permutation(len(facts)))
    batch = batches.encode(facts)
    pad, eos = encoder.id(BASES[base].padding), encoder.id("[EOS]")
    for row in range(len(facts)):
        expected = encode_one(encoder, toy, facts, row)
        end = len(expected) if full else len(expected) - 2
        assert batch.ids[row, : batch.length[row]].tolist() == expected[:end]
        assert (batch.ids[row, batch.length[row] :] == pad).all()
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


def test_an_empty_batch_has_no_rows(toy: KB, tokenizers: dict[str, Tokenizer]) -> None:
    encoder = make_encoder("xlmr", tokenizers, toy.languages)
    cache = build_tokens(toy, encoder.tokenizer)
    batch = BatchEncoder(encoder, toy, cache).encode(Facts(*np.zeros((3, 0), int)))
    assert batch.ids.shape == (0, 0) and len(batch.target) == 0


def test_a_tokenizer_without_the_tokens_is_refused(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(PrixError, match=r"has no token \[S\]"):
        FactEncoder(tokenizers["xlmr"], XLMR, ("en",))


def test_language_tokens_never_read_like_a_token_of_the_base() -> None:
    assert language_token("en") == "[EN]" and language_token("gsw") == "[GSW]"
    assert {language_token(code) for code in ("pad", "sep", "cls")} == {
        "[PAD-]",
        "[SEP-]",
        "[CLS-]",
    }


def test_the_length_rule_loses_what_paper_notes_says(data: Path, tmp_path: Path) -> None:
    kb = import_kb([data / "dbp5l"], tmp_path / "kb")
    tokenizer = Tokenizer.from_file(str(data / "xlmr" / "tokenizer.json"))
    add_tokens(tokenizer, kb.languages)
    encoder = FactEncoder(tokenizer, XLMR, tuple(kb.languages))
    batches = BatchEncoder(encoder, kb, build_tokens(kb, tokenizer), full=True)
    lost = {}
    for lang in ("ja", "el"):
        rows = [row for b in kb.batches("triples", langs=[lang]) for row in b.to_pylist()]
        facts = Facts(*np.array([(r["subject"], r["relation"], r["object"]) for r in rows]).T)
        with_special = (batches.num_inputs(facts) >= 30).mean()
        lost[lang] = (round(100 * (batches.num_tokens(facts) >= 30).mean(), 1), with_special)
    assert lost["ja"][0] == pytest.approx(0.7, abs=0.1) and lost["el"][0] == pytest.approx(
        0.4, abs=0.1
    )
    assert lost["ja"][1] == pytest.approx(0.20, abs=0.02)
    assert lost["el"][1] == pytest.approx(0.08, abs=0.02)
