"""Splits: what is held out stays out, worked by hand and checked on the world KB."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prixlm import KB, PrixError, SplitConfig, import_kb, split_kb
from prixlm.kb.split import _draw, known_objects, unseen_triples
from tests.helpers import make_proposals

Fact = tuple[str, int, int, int]


def facts(kb: KB, *splits: str) -> set[Fact]:
    rows = [row for batch in kb.batches("triples") for row in batch.to_pylist()]
    return {
        (r["lang"], r["subject"], r["relation"], r["object"]) for r in rows if r["split"] in splits
    }


@pytest.fixture(scope="module")
def random_split(world: KB, tmp_path_factory: pytest.TempPathFactory) -> KB:
    return split_kb(world, tmp_path_factory.mktemp("split") / "kb")


def test_no_fact_stands_in_two_splits_and_none_is_lost(world: KB, random_split: KB) -> None:
    parts = [facts(random_split, split) for split in ("train", "valid", "test", "known")]
    assert sum(map(len, parts)) == len(set().union(*parts)) == world.num_triples()
    assert set().union(*parts) == facts(world, "train")


def test_a_tenth_of_each_language_is_drawn_for_the_test(world: KB, random_split: KB) -> None:
    for lang in world.languages:
        total, of = world.num_triples(lang), random_split.num_triples
        # Redundant triples leave valid and test, and no split for training gets them back.
        assert total - of(lang, "train") == round(0.1 * total) + round(0.05 * total)
        assert 0 < of(lang, "test") <= round(0.1 * total)
        assert 0 < of(lang, "valid") <= round(0.05 * total)


def test_inverse_of_a_training_triple_leaves_the_test_set(random_split: KB) -> None:
    trained = {(s, o) for _, s, _, o in facts(random_split, "train")}
    for _, subject, _, object_ in facts(random_split, "valid", "test"):
        assert (object_, subject) not in trained
    for _, subject, _, object_ in facts(random_split, "known"):
        assert (object_, subject) in trained


def test_a_split_worked_by_hand(tmp_path: Path) -> None:
    rows = ["a\tnext to\tb", "b\tclose to\ta", "a\tlikes\tc", "c\tlikes\td", "d\tlikes\te"]
    (tmp_path / "facts.tsv").write_text("".join(f"en\t{row}\n" for row in rows))
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    for seed in range(20):
        to = tmp_path / str(seed)
        split = split_kb(kb, to, SplitConfig(test=0.2, valid=0.2, seed=seed))
        assert split.num_triples(split="train") == 3
        names = kb.names(range(5))
        keys = [name.replace(" ", "") for name in kb.relation_names("en")]
        marks = {
            f"{names[s]} {keys[r]} {names[o]}": mark
            for mark in ("train", "valid", "test", "known")
            for _, s, r, o in facts(split, mark)
        }
        pair = {marks["a nextto b"], marks["b closeto a"]}
        # One of the two in train makes the other redundant; both may be held out together.
        assert pair in ({"train"}, {"train", "known"}, {"valid", "test"})
        assert {marks[x] for x in ("a likes c", "c likes d", "d likes e")} <= {
            "train",
            "valid",
            "test",
        }


def test_the_same_seed_gives_the_same_bytes(world: KB, random_split: KB, tmp_path: Path) -> None:
    again = split_kb(world, tmp_path / "again")
    other = split_kb(world, tmp_path / "other", SplitConfig(seed=1))
    for table in ("triples", "entities", "links"):
        assert again.path(table).read_bytes() == random_split.path(table).read_bytes()
    assert other.path("triples").read_bytes() != random_split.path("triples").read_bytes()


def test_only_the_asked_languages_are_tested(world: KB, tmp_path: Path) -> None:
    split = split_kb(world, tmp_path / "kb", SplitConfig(langs=("et", "te")))
    for lang in world.languages:
        assert (split.num_triples(lang, "test") > 0) == (lang in ("et", "te"))
        if lang not in ("et", "te"):
            assert split.num_triples(lang, "train") == world.num_triples(lang)


@pytest.mark.parametrize("links", ["keep", "remove"])
def test_held_out_entities_are_seen_nowhere_in_training(
    links: Any, world: KB, tmp_path: Path
) -> None:
    split = split_kb(world, tmp_path / "kb", SplitConfig(unseen=0.05, links=links))
    concept = {e.id: e.concept for e in world.entities(range(world.num_entities))}
    trained = {concept[e] for _, s, _, o in facts(split, "train") for e in (s, o)}
    tested = facts(split, "test")
    assert len(tested) > 1000
    for _, subject, _, object_ in tested:
        assert concept[subject] not in trained or concept[object_] not in trained
    unseen = unseen_triples(split, links=links == "keep")
    assert unseen.num_rows == (0 if links == "keep" else len(tested))
    assert unseen_triples(split, links=False).num_rows == len(tested)
    members = defaultdict(list)
    for entity in split.entities(range(split.num_entities)):
        members[entity.concept].append(entity.id)
    assert len(members) == split.manifest.counts["concepts"]
    if links == "remove":
        single = {ids[0] for ids in members.values() if len(ids) == 1}
        assert all(subject in single or object_ in single for _, subject, _, object_ in tested)


def test_a_fact_held_out_by_concept_is_in_no_languages_train(world: KB, tmp_path: Path) -> None:
    split = split_kb(world, tmp_path / "kb", SplitConfig(by_concept=True, langs=("et", "fi")))
    concept = [e.concept for e in world.entities(range(world.num_entities))]

    def merged(*splits: str) -> set[tuple[int, int, int]]:
        return {(concept[s], r, concept[o]) for _, s, r, o in facts(split, *splits)}

    assert not merged("train") & merged("valid", "test")
    assert {lang for lang, *_ in facts(split, "test")} == {"et", "fi"}
    pairs = {(a, b) for a, _, b in merged("train")}
    assert not {(b, a) for a, _, b in merged("valid", "test")} & pairs
    held_out = len(merged("valid", "test", "known")) / len(
        merged("train", "valid", "test", "known")
    )
    assert 0.12 < held_out < 0.25


@pytest.fixture(scope="module")
def mixed_split(world: KB, tmp_path_factory: pytest.TempPathFactory) -> KB:
    """A fifth of Estonian and Finnish is held out, 60 % of that in every language at once."""
    config = SplitConfig(test=0.15, valid=0.05, everywhere=0.6, langs=("et", "fi"))
    return split_kb(world, tmp_path_factory.mktemp("mixed") / "kb", config)


def test_a_share_of_the_held_out_facts_is_held_out_everywhere(world: KB, mixed_split: KB) -> None:
    concept = world.concepts()

    def merged(rows: set[Fact]) -> set[tuple[int, int, int]]:
        return {(int(concept[s]), r, int(concept[o])) for _, s, r, o in rows}

    trained = merged(facts(mixed_split, "train"))
    for lang in ("et", "fi"):
        own = {row for row in facts(mixed_split, "valid", "test", "known") if row[0] == lang}
        total = world.num_triples(lang)
        # What another language states is in its train facts, unless it is held out there, too.
        in_train = sum((concept[s], r, concept[o]) in trained for _, s, r, o in own)
        assert (len(own) - in_train) / total == pytest.approx(0.6 * 0.2, abs=0.03)
        assert in_train / total == pytest.approx(0.4 * 0.2, abs=0.03)
        assert mixed_split.num_triples(lang, "test") > 2 * mixed_split.num_triples(lang, "valid")


def test_a_fact_held_out_everywhere_is_in_no_languages_train(world: KB, mixed_split: KB) -> None:
    """Drawn for the fact, not for the triple: a language that is not tested knows it no more."""
    concept = world.concepts()
    known = facts(mixed_split, "known")
    others = {row for row in known if row[0] not in ("et", "fi")}
    assert {row[0] for row in others} == set(world.languages) - {"et", "fi"}
    everywhere = {(int(concept[s]), r, int(concept[o])) for _, s, r, o in others}
    trained = facts(mixed_split, "train")
    assert not {(int(concept[s]), r, int(concept[o])) for _, s, r, o in trained} & everywhere


def test_only_the_asked_languages_are_tested_in_a_mixed_split(world: KB, mixed_split: KB) -> None:
    assert {row[0] for row in facts(mixed_split, "valid", "test")} == {"et", "fi"}
    for lang in world.languages:
        if lang not in ("et", "fi"):
            held_out = 1 - mixed_split.num_triples(lang, "train") / world.num_triples(lang)
            assert held_out == pytest.approx(0.6 * 0.2, abs=0.03), "those held out everywhere"
    assert mixed_split.num_triples() == world.num_triples()
    assert mixed_split.manifest.split is not None
    assert mixed_split.manifest.split["method"] == "mixed"
    assert mixed_split.manifest.split["everywhere"] == 0.6


def test_all_facts_of_new_concepts_are_held_out_beside_the_others(
    world: KB, tmp_path: Path
) -> None:
    config = SplitConfig(test=0.05, valid=0.15, everywhere=0.5, new=0.2)
    split = split_kb(world, tmp_path / "split", config)
    concept = world.concepts()
    ends: dict[str, set[int]] = {}
    for name in ("train", "valid", "test", "known"):
        rows = facts(split, name)
        ends[name] = {int(concept[end]) for _, s, _, o in rows for end in (s, o)}
    new = set.union(*ends.values()) - ends["train"]
    without = split_kb(
        world, tmp_path / "without", SplitConfig(test=0.05, valid=0.15, everywhere=0.5)
    )
    ends_without = {int(concept[end]) for _, s, _, o in facts(without, "train") for end in (s, o)}
    # Besides those that are drawn, concepts whose only facts are about these have none left.
    assert 0.15 < len(new & ends_without) / len(ends_without) < 0.3
    assert facts(split, "train") < facts(without, "train"), "nothing else has changed"
    assert split.num_triples(split="valid") > 2 * split.num_triples(split="test")
    assert split.manifest.split is not None and split.manifest.split["method"] == "mixed"


def test_nothing_held_out_everywhere_is_the_random_split(
    world: KB, random_split: KB, tmp_path: Path
) -> None:
    again = split_kb(world, tmp_path / "again", SplitConfig(everywhere=0.0))
    assert again.path("triples").read_bytes() == random_split.path("triples").read_bytes()


def test_dbp5l_has_no_unseen_entity_in_its_test_set(dbp5l: KB, tmp_path: Path) -> None:
    kb = dbp5l
    assert unseen_triples(kb, links=False).num_rows == 0
    trained = {(s, o) for _, s, _, o in facts(kb, "train")}
    inverses = defaultdict(int)
    for lang, subject, _, object_ in facts(kb, "test"):
        inverses[lang] += (object_, subject) in trained
    for lang in kb.languages:  # paper-notes: 8 to 11 % are inverses of training triples
        assert 0.07 < inverses[lang] / kb.num_triples(lang, "test") < 0.12
    with pytest.raises(PrixError, match=r"is split already.*--resplit"):
        split_kb(kb, tmp_path / "split")
    again = split_kb(kb, tmp_path / "split", SplitConfig(resplit=True))
    assert again.num_triples() == kb.num_triples()


def test_known_objects_are_those_of_all_splits(random_split: KB) -> None:
    known = defaultdict(set)
    everything = facts(random_split, "train", "valid", "test", "known")
    for _, subject, relation, object_ in everything:
        known[subject, relation].add(object_)
    rng = np.random.default_rng(0)
    queries = [(s, r) for _, s, r, _ in sorted(everything)]
    chosen = [queries[i] for i in rng.integers(0, len(queries), 500)] + [(0, 0), (1, 8)]
    subjects, relations = (np.array(column) for column in zip(*chosen, strict=True))
    offsets, objects = known_objects(random_split, subjects, relations)
    assert len(offsets) == len(chosen) + 1
    for i, query in enumerate(chosen):
        assert objects[offsets[i] : offsets[i + 1]].tolist() == sorted(known[query])
    assert known_objects(random_split, np.array([], int), np.array([], int))[0].tolist() == [0]


def test_draws_are_even_and_depend_on_every_value() -> None:
    columns = [np.arange(100_000) % 317, np.arange(100_000) // 317, np.zeros(100_000, int)]
    drawn = _draw(0, *columns)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert np.abs(np.histogram(drawn, 20)[0] / 5000 - 1).max() < 0.06
    assert len(np.unique(drawn)) == 100_000
    assert not (drawn == _draw(1, *columns)).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, "--test 1.0: expected a share"),
        ({"valid": -0.1}, "--valid -0.1: expected a share"),
        ({"test": 0.6, "valid": 0.5}, r"nothing would be left for train\. Pass smaller"),
        ({"unseen": 0.1, "by_concept": True}, "different splits. Choose one"),
        ({"unseen": 0.0}, "would hold out nothing"),
        ({"hide_links": 0.0}, "--hide-links 0 would withhold nothing"),
        ({"hide_links": 1.0}, "--hide-links 1.0: expected a share"),
        ({"hide_links": 0.1, "unseen": 0.1}, "--hide-links cannot be combined"),
        ({"hide_links": 0.1, "langs": ("fi",)}, "Leave out --langs"),
        ({"keep_split": True}, "--keep-split requires --unseen"),
        ({"keep_split": True, "unseen": 0.1, "resplit": True}, "are opposites"),
        ({"keep_split": True, "unseen": 0.1, "hide_links": 0.1, "valid": 0.9}, "nothing would be"),
        ({"everywhere": 1.0}, "--everywhere 1.0: expected a share"),
        ({"everywhere": 0.5, "by_concept": True}, "--everywhere and --new cannot be combined"),
        ({"new": 0.5, "unseen": 0.1}, "--everywhere and --new cannot be combined"),
        ({"new": 0.1, "test": 0.0, "valid": 0.0}, "--new requires a share"),
        ({"everywhere": 0.5, "unseen": 0.1}, "--everywhere and --new cannot be combined"),
        ({"everywhere": 0.5, "hide_links": 0.1}, "--everywhere and --new cannot be combined"),
        ({"seed": -1}, "--seed -1: expected 0 or more"),
        ({"links": "remove"}, "requires --unseen"),
        ({"unseen": 0.1, "links": "some"}, "expected keep or remove"),
    ],
)
def test_an_impossible_split_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PrixError, match=message):
        SplitConfig(**options)


def test_a_split_in_a_language_that_is_not_there_is_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="has no sv; its languages are ar, en, fi, ja, te"):
        split_kb(toy, tmp_path / "split", SplitConfig(langs=("sv",)))
    with pytest.raises(PrixError, match="already there"):
        split_kb(toy, toy.folder)
    with pytest.raises(PrixError, match="holds the source"):
        split_kb(toy, toy.folder, overwrite=True)


def test_a_split_never_replaces_proposals_and_their_marks(toy: KB, tmp_path: Path) -> None:
    proposals = make_proposals(tmp_path / "proposals", [])
    (proposals / "marks.json").write_text('{"facts": {"0": "accept"}}')
    message = "proposals: found a proposals folder, expected a KB folder"
    with pytest.raises(PrixError, match=message):
        split_kb(toy, proposals, overwrite=True)
    assert (proposals / "marks.json").read_text() == '{"facts": {"0": "accept"}}'


def test_a_split_says_what_it_was_made_from(toy: KB, tmp_path: Path) -> None:
    split = split_kb(toy, tmp_path / "split", SplitConfig(test=0.3, seed=5))
    assert split.manifest.split is not None
    assert split.manifest.split["from"] == toy.fingerprint()
    assert split.manifest.split["method"] == "random" and split.manifest.split["seed"] == 5
    assert split.manifest.licence == toy.manifest.licence


def test_links_are_withheld_for_whole_concepts(world: KB, tmp_path: Path) -> None:
    split = split_kb(world, tmp_path / "split", SplitConfig(hide_links=0.2, valid=0.05))
    before, after = world.concepts(), split.concepts()
    withheld = {name: split.withheld_links(name) for name in ("test", "valid")}
    test_a, test_b = (np.asarray(column) for column in withheld["test"].columns)
    assert (before[test_a] == before[test_b]).all()
    alone = np.bincount(after)[after] == 1
    assert alone[test_a].all() and alone[test_b].all(), "no third language is left"
    several = [np.unique(before[np.asarray(h.column(0))]) for h in withheld.values()]
    assert not set(several[0]) & set(several[1])
    sizes = np.bincount(before)
    assert len(several[0]) == pytest.approx(0.2 * (sizes > 1).sum(), rel=0.02)
    # Every pair of a withheld concept is there, and nothing else of the KB has changed.
    language = world.language_of(np.arange(world.num_entities))
    concept = several[0][0]
    members = np.flatnonzero(before == concept)
    pairs = {(a, b) for a in members for b in members if a < b and language[a] != language[b]}
    assert {(a, b) for a, b in zip(test_a, test_b, strict=True) if before[a] == concept} == pairs
    assert split.num_triples(split="train") == world.num_triples(split="train")
    with pytest.raises(PrixError, match="withholds links already"):
        split_kb(split, tmp_path / "again", SplitConfig(hide_links=0.2))
    with pytest.raises(PrixError, match="withholds no links"):
        world.withheld_links()


def test_a_kept_split_holds_out_concepts_and_links_beside_its_own_facts(
    world: KB, random_split: KB, tmp_path: Path
) -> None:
    config = SplitConfig(keep_split=True, unseen=0.05, valid=0.05, hide_links=0.2)
    split = split_kb(random_split, tmp_path / "kept", config)
    before = {mark: facts(random_split, mark) for mark in ("train", "valid", "test", "known")}
    after = {mark: facts(split, mark) for mark in before}
    assert after["known"] == before["known"], "no inverse is judged again"
    assert before["test"] < after["test"] and after["train"] < before["train"]
    assert after["valid"] <= before["valid"] | before["train"]
    # What was moved is about concepts that train knows no more, in any language.
    concept = world.concepts()
    trained = {int(concept[end]) for _, s, _, o in after["train"] for end in (s, o)}
    moved = (after["test"] - before["test"]) | (after["valid"] - before["valid"])
    assert len(moved) > 1000
    for _, subject, _, object_ in moved:
        assert concept[subject] not in trained or concept[object_] not in trained
    # Links are withheld as by --hide-links alone, and a lineage sees that it is another KB.
    alone = split_kb(random_split, tmp_path / "alone", SplitConfig(hide_links=0.2))
    for table in ("hidden_links", "links", "entities"):
        assert split.path(table).read_bytes() == alone.path(table).read_bytes()
    assert split.manifest.split is not None and split.manifest.split["method"] == "kept"
    assert split.manifest.split["from"] == random_split.fingerprint()
    counts = {mark: split.num_triples(split=mark) for mark in after}
    assert counts == {mark: len(rows) for mark, rows in after.items()}


def test_a_kept_split_may_also_remove_the_links_of_unseen_concepts(
    random_split: KB, tmp_path: Path
) -> None:
    config = SplitConfig(keep_split=True, unseen=0.05, links="remove", hide_links=0.2)
    split = split_kb(random_split, tmp_path / "kept", config)
    kept = split_kb(random_split, tmp_path / "links", SplitConfig(hide_links=0.2))
    assert split.path("hidden_links").read_bytes() == kept.path("hidden_links").read_bytes()
    assert split.manifest.counts["concepts"] > kept.manifest.counts["concepts"]
    # No entity that is unseen by train has a link left that could name it.
    assert unseen_triples(split, links=True).num_rows > 1000
    without_hiding = SplitConfig(keep_split=True, unseen=0.05, links="remove")
    shown = split_kb(random_split, tmp_path / "shown", without_hiding)
    assert facts(shown, "train") == facts(split, "train") and not shown.withholds_links


def test_a_kept_split_leaves_what_is_not_train_where_only_some_languages_are_tested(
    random_split: KB, tmp_path: Path
) -> None:
    config = SplitConfig(keep_split=True, unseen=0.05, langs=("et",))
    split = split_kb(random_split, tmp_path / "kept", config)
    for mark in ("valid", "test"):
        moved = facts(split, mark) - facts(random_split, mark)
        assert {lang for lang, *_ in moved} == {"et"}
        held = {fact for fact in facts(random_split, mark) if fact[0] != "et"}
        assert held <= facts(split, "valid", "test", "known")
    assert facts(random_split, "test") <= facts(split, "test")


def test_too_few_linked_concepts_to_withhold_are_an_error(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match=r"linked concepts: too few .*larger --hide-links"):
        split_kb(toy, tmp_path / "split", SplitConfig(hide_links=0.01))
    assert not (tmp_path / "split").exists()


def test_a_split_that_failed_is_made_again(toy: KB, tmp_path: Path) -> None:
    (tmp_path / "split.partial" / "kb").mkdir(parents=True)
    (tmp_path / "split.partial" / "kb" / "triples.parquet").write_text("half")
    (tmp_path / "split.partial" / "lock").touch()
    split_kb(toy, tmp_path / "split")
    whole = split_kb(toy, tmp_path / "whole")
    for path in sorted(whole.folder.iterdir()):
        assert (tmp_path / "split" / path.name).read_bytes() == path.read_bytes()
    assert not (tmp_path / "split.partial").exists()
