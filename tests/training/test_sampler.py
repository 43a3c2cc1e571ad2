"""The facts of an epoch: every triple and link once, in a seeded order, long ones dropped."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from prixlm import KB, PrixError, import_kb
from prixlm.arrays import pair_keys
from prixlm.kb.carried import count_carried
from prixlm.lm.encoding import LINK, Facts
from prixlm.training.sampler import FactSupply, SupplyConfig, count_links, cut_batches, join_facts
from tests.lm.helpers import batch_encoder, make_encoder

Fact = tuple[int, int, int]


def make_supply(kb: KB, tokenizers: dict[str, Tokenizer], **options: object) -> FactSupply:
    batches = batch_encoder(make_encoder("xlmr", tokenizers, kb.languages), kb)
    return FactSupply(kb, batches, SupplyConfig(**{"max_tokens": 1000} | options))  # type: ignore[arg-type]


def rows(facts: Facts) -> list[Fact]:
    columns = (facts.subject, facts.relation, facts.object)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def epoch(supply: FactSupply, number: int, size: int = 5) -> list[Fact]:
    return [fact for block in supply.blocks(number, size) for fact in rows(block)]


def train_triples(kb: KB, langs: list[str] | None = None) -> list[Fact]:
    triples = [r for b in kb.batches("triples", langs=langs, split="train") for r in b.to_pylist()]
    return [(r["subject"], r["relation"], r["object"]) for r in triples]


def directed_links(kb: KB) -> list[Fact]:
    pairs = [(p["a"], p["b"]) for batch in kb.link_pairs() for p in batch.to_pylist()]
    return [(a, LINK, b) for a, b in pairs] + [(b, LINK, a) for a, b in pairs]


def test_an_epoch_has_every_triple_and_every_link_in_both_directions_once(
    shared_toy: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    supply = make_supply(shared_toy, tokenizers, max_links=100)
    for number in range(3):
        assert sorted(epoch(supply, number)) == sorted(
            train_triples(shared_toy) + directed_links(shared_toy)
        )
    assert epoch(supply, 0) != epoch(supply, 1)
    assert epoch(supply, 0) == epoch(make_supply(shared_toy, tokenizers, max_links=100), 0)
    assert len(supply) == 13 + 2 * 16
    assert supply.num_links == count_links(shared_toy, 100)
    assert sum(supply.count_links()[0].values()) == 2 * 16


def test_links_are_sampled_evenly_where_there_are_too_many(
    world: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    supply = make_supply(world, tokenizers, max_links=3)
    pairs = pa.Table.from_batches(world.link_pairs())
    ends = [pairs[name].to_numpy() for name in ("a", "b")]
    valid = np.concatenate([pair_keys(*ends), pair_keys(*ends[::-1])])
    sampled = []
    for number in range(12):
        facts = join_facts(list(supply.blocks(number, 10_000)))
        links = facts.select(facts.relation == LINK)
        sampled.append(pair_keys(links.subject, links.object))
        assert len(np.unique(sampled[-1])) == len(sampled[-1])
        assert np.bincount(links.subject).max() == 3
    keys = np.concatenate(sampled)
    assert np.isin(np.unique(keys), valid).all()
    num_asked = np.bincount(keys & 0xFFFFFFFF)[world.entity_range("de")]  # as objects
    assert 25 < np.median(num_asked) < 47  # 12 epochs of 3
    assert len(np.unique(keys)) > 0.8 * len(valid)


def test_single_has_the_triples_of_one_language_and_no_links(
    shared_toy: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    supply = make_supply(shared_toy, tokenizers, langs=("fi",))
    assert sorted(epoch(supply, 0)) == sorted(train_triples(shared_toy, ["fi"]))
    with pytest.raises(PrixError, match="has no sv; it has ar, en, fi, ja, te"):
        make_supply(shared_toy, tokenizers, langs=("sv",))


def test_long_facts_are_dropped_and_counted_by_language(
    shared_toy: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    everything = make_supply(shared_toy, tokenizers)
    lengths = everything.batches.num_tokens(everything.triples)
    limit = int(np.median(lengths))
    supply = make_supply(shared_toy, tokenizers, max_tokens=limit)
    assert supply.num_triples == (lengths < limit).sum() == 13 - sum(supply.dropped.values())
    for block in supply.blocks(0, 4):
        assert (supply.batches.num_tokens(block) < limit).all()


def test_only_train_facts_are_supplied(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    text = "lang\tsubject\trelation\tobject\tsplit\nen\ta\tb\tc\ttrain\nen\td\tb\te\ttest\n"
    (tmp_path / "facts.tsv").write_text(text)
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    supply = make_supply(kb, tokenizers)
    assert [kb.names([s, o]) for s, _, o in epoch(supply, 0)] == [["a", "c"]]


def test_an_epoch_can_be_resumed_from_any_block(
    shared_toy: KB, tokenizers: dict[str, Tokenizer]
) -> None:
    supply = make_supply(shared_toy, tokenizers)
    whole = [rows(block) for block in supply.blocks(3, 7)]
    assert [rows(block) for block in supply.blocks(3, 7, first=2)] == whole[2:]
    assert supply.num_blocks(7) == len(whole)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 300))
def test_batches_cover_all_rows_within_the_budget(lengths: list[int], budget: int) -> None:
    array = np.array(lengths)
    batches = list(cut_batches(array, budget))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or array[rows].max() * len(rows) <= budget


def test_links_carry_facts_over_but_none_that_a_language_holds_out(
    tmp_path: Path, tokenizers: dict[str, Tokenizer]
) -> None:
    facts = [
        "en\tHelsinki\tcountry\tFinland\ttrain",
        "en\tParis\tcountry\tFrance\ttrain",
        "en\tRome\tcountry\tItaly\ttrain",  # nobody else has Rome
        "en\tOslo\tcountry\tNorway\ttest",  # not known to training, so not carried
        "fi\tPariisi\tcountry\tRanska\ttest",  # English train has it: Finnish must not
        "fi\tOslo\tsister\tPariisi\tvalid",
        "en\tOslo\tsister\tHelsinki\ttrain",  # another answer to a question that Finnish tests
        "sv\tHelsingfors\tcountry\tFinland\ttrain",
    ]
    (tmp_path / "facts.tsv").write_text(
        "lang\tsubject\trelation\tobject\tsplit\n" + "\n".join(facts) + "\n"
    )
    names = [("Helsinki", "Helsinki"), ("Finland", "Suomi"), ("Paris", "Pariisi")]
    names += [("France", "Ranska"), ("Oslo", "Oslo"), ("Norway", "Norja")]
    links = [f"en\t{a}\tfi\t{b}" for a, b in names]
    links += ["en\tHelsinki\tsv\tHelsingfors", "en\tFinland\tsv\tFinland"]
    (tmp_path / "links.tsv").write_text(
        "lang_a\tname_a\tlang_b\tname_b\n" + "\n".join(links) + "\n"
    )
    kb = import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")

    def carried(**options: object) -> list[tuple[str, ...]]:
        supply = make_supply(kb, tokenizers, links="none", propagate=True, **options)
        stated = set(train_triples(kb))
        new = [fact for fact in epoch(supply, 0) if fact not in stated]
        assert supply.num_carried == len(new) == count_carried(kb, supply.config.langs)
        return sorted(
            (e.lang, e.name, kb.names([o])[0]) for s, _, o in new for e in kb.entities([s])
        )

    assert carried() == [("fi", "Helsinki", "Suomi")]
    assert carried(langs=("fi",)) == [("fi", "Helsinki", "Suomi")]
    assert carried(langs=("sv",)) == []


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(PrixError, match="max_tokens 1, max_links 8: expected max_tokens of 2"):
        SupplyConfig(max_tokens=1)
