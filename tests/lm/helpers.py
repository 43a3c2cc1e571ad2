"""Facts of a KB and their slow encoding, for tests of the language model."""

import numpy as np
from tokenizers import Tokenizer

from prixlm import KB
from prixlm.lm.encoding import (
    LINK,
    MBERT,
    XLMR,
    Batch,
    BatchEncoder,
    FactEncoder,
    Facts,
    add_tokens,
)
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import build_tokens

BASE_TOKENS = {"xlmr": XLMR, "mbert": MBERT}


def make_encoder(base: str, tokenizers: dict[str, Tokenizer], langs: list[str]) -> FactEncoder:
    """An encoder for a small tokenizer with role and language tokens."""
    tokenizer = Tokenizer.from_str(tokenizers[base].to_str())
    assert add_tokens(tokenizer, langs) == 4 + len(langs)
    assert add_tokens(tokenizer, langs) == 0
    return FactEncoder(tokenizer, BASE_TOKENS[base], tuple(langs))


def batch_encoder(encoder: FactEncoder, kb: KB) -> BatchEncoder:
    cache = build_tokens(kb, encoder.tokenizer, reading=encoder.reading, space=encoder.space)
    return BatchEncoder(encoder, kb, cache)


def all_facts(kb: KB) -> Facts:
    """Every triple, and every link in both directions."""
    triples = [row for batch in kb.batches("triples") for row in batch.to_pylist()]
    rows = [(row["subject"], row["relation"], row["object"]) for row in triples]
    for batch in kb.link_pairs():
        for pair in batch.to_pylist():
            rows += [(pair["a"], LINK, pair["b"]), (pair["b"], LINK, pair["a"])]
    return Facts(*np.array(rows).T)


def some_facts(kb: KB, count: int) -> Facts:
    """A random sample of all facts."""
    facts = all_facts(kb)
    return facts.select(np.random.default_rng(1).permutation(len(facts))[:count])


def encode_one(encoder: FactEncoder, kb: KB, facts: Facts, row: int) -> list[int]:
    """One fact as the paper prints it, with `[EOS]` and the last separator."""
    subject, object_ = kb.entities([facts.subject[row], facts.object[row]])
    relation = int(facts.relation[row])
    if relation == LINK:
        return encoder.encode(subject.name, (subject.lang, object_.lang), object_.name)
    name = kb.relation_names(subject.lang)[relation]
    return encoder.encode(subject.name, name, object_.name, lang=subject.lang)


def num_after(model: PrixLM) -> int:
    """The tokens after an object: `[EOS]` and, if the base has one, a separator."""
    return 1 + len(model.encoder.separators[:1])


def paper_batch(model: PrixLM, kb: KB, facts: Facts) -> Batch:
    """A batch whose inputs end with `[EOS]` and a separator, as the paper prints them."""
    short = batch_encoder(model.encoder, kb).encode(facts)
    length = short.length + num_after(model)
    padding = model.encoder.padding
    ids = np.full((len(facts), int(length.max())), padding, np.int64)
    for row in range(len(facts)):
        ids[row, : length[row]] = encode_one(model.encoder, kb, facts, row)
    return short._replace(ids=ids, length=length)
