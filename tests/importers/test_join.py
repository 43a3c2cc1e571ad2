"""The joins: redirects, shared counterparts, splits and samples, through small imports."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, import_kb
from prixlm.importers.join import _sampler
from tests.importers.helpers import (
    LABEL,
    SAME_AS,
    concept_of,
    import_text,
    names_of,
    sums,
    triples_of,
    write_dump,
)

REDIRECTS_TO = "<http://dbpedia.org/ontology/wikiPageRedirects>"


def iri(lang: str, name: str) -> str:
    return f"<http://{lang}.dbpedia.org/resource/{name}>"


def import_lines(folder: Path, *lines: str) -> KB:
    return import_text(folder, "dump.nt", "".join(f"{line} .\n" for line in lines))


def test_a_chain_of_redirects_leads_to_its_end(tmp_path: Path) -> None:
    pages = [iri("fi", f"Sivu{number}") for number in range(150)]
    moves = [f"{a} {REDIRECTS_TO} {b}" for a, b in itertools.pairwise(pages)]
    names = [f'{pages[-1]} {LABEL} "Loppu"@fi', f'{pages[0]} {LABEL} "Alku"@fi']
    kb = import_lines(tmp_path, *moves, *names, f"{pages[0]} <http://a.org/sees> {pages[70]}")
    assert names_of(kb, "fi") == ["Loppu"]
    assert kb.aliases(0) == ["Alku"], "a name that came through a redirect is an alias"
    assert triples_of(kb) == {("fi", "Loppu", "sees", "Loppu")}
    assert kb.manifest.account["imported"]["redirects"] == 149
    assert sums(kb)[0] == sums(kb)[1]


def test_entities_with_the_same_nameless_counterpart_mean_the_same(tmp_path: Path) -> None:
    item, other = "<http://www.wikidata.org/entity/Q33>", "<http://www.wikidata.org/entity/Q1>"
    kb = import_lines(
        tmp_path,
        f'{iri("fi", "Suomi")} {LABEL} "Suomi"@fi',
        f'{iri("sv", "Finland")} {LABEL} "Finland"@sv',
        f'{iri("et", "Soome")} {LABEL} "Soome"@et',
        f"{iri('fi', 'Suomi')} {SAME_AS} {item}",
        f"{item} {SAME_AS} {iri('sv', 'Finland')}",
        f"{iri('et', 'Soome')} {SAME_AS} {other}",
    )
    assert concept_of(kb, "Suomi", "fi") == {("fi", "Suomi"), ("sv", "Finland")}
    assert concept_of(kb, "Soome", "et") == {("et", "Soome")}
    assert kb.manifest.counts["links"] == 0 and kb.manifest.counts["linked"] == {
        "et": 0,
        "fi": 1,
        "sv": 1,
    }
    assert kb.manifest.account["rejected"] == {"link to an entity that is not there": 1}


def test_a_link_is_kept_once_and_not_to_itself(tmp_path: Path) -> None:
    suomi, finland = iri("fi", "Suomi"), iri("sv", "Finland")
    links = [f"{suomi} {SAME_AS} {finland}", f"{finland} {SAME_AS} {suomi}"]
    kb = import_lines(tmp_path, *links, f"{suomi} {SAME_AS} {suomi}")
    assert kb.manifest.counts["links"] == 1
    assert kb.manifest.account["filtered"] == {"duplicate": 1, "link to itself": 1}


def item_line(key: str, names: dict[str, str], *objects: str) -> str:
    """Return a line of Wikidata's dump: an item, its labels, and statements of P1."""
    statements = []
    for other in objects:
        value = {"entity-type": "item", "id": other}
        datavalue = {"type": "wikibase-entityid", "value": value}
        snak = {"snaktype": "value", "property": "P1", "datavalue": datavalue}
        statements.append({"mainsnak": snak, "rank": "normal"})
    labels = {lang: {"language": lang, "value": name} for lang, name in names.items()}
    return json.dumps({"type": "item", "id": key, "labels": labels, "claims": {"P1": statements}})


def test_the_rejects_file_shows_the_statements_of_a_line_that_were_rejected(tmp_path: Path) -> None:
    lines = [
        item_line("Q1", {"en": "One"}, "Q2", "Q8", "Q3", "Q9"),  # Q8 and Q9 are not there
        item_line("Q2", {"en": "Two"}),
        item_line("Q3", {"fi": "Kolme"}),  # no language names both One and Kolme
    ]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    kb = import_text(tmp_path, "dump.json", text, format="wikidata", langs=["en", "fi"])
    rows = [row.split("\t") for row in (kb.folder / "rejects.tsv").read_text().splitlines()[1:]]
    assert [(reason, text) for reason, _source, _line, text in rows] == [
        ("entity without a name", "Q1 P1 Q8"),
        ("entity without a name", "Q1 P1 Q9"),
        ("no language names both ends", "Q1 P1 Q3"),
    ]
    assert kb.manifest.account["rejected"] == {
        "entity without a name": 2,
        "no language names both ends": 1,
    }


def test_a_fact_of_several_splits_keeps_the_first(tmp_path: Path) -> None:
    rows = ["en\ta\tr\tb\ttest", "en\ta\tr\tb\ttrain", "en\ta\tr\tb\ttrain", "en\tb\tr\ta\tvalid"]
    kb = import_text(tmp_path, "facts.tsv", "\n".join(rows) + "\n")
    assert triples_of(kb, "split") == {
        ("en", "a", "r", "b", "train"),
        ("en", "b", "r", "a", "valid"),
    }
    assert kb.manifest.account["filtered"] == {
        "duplicate": 1,
        "stands in an earlier split too": 1,
    }


def test_the_common_name_of_a_relation_is_english_or_the_first(tmp_path: Path) -> None:
    relations = ["<http://a.org/one>", "<http://a.org/two>", "<http://a.org/threeWords>"]
    facts = [f"{iri('fi', 'A')} {relation} {iri('fi', 'B')}" for relation in relations]
    names = [f'{relations[0]} {LABEL} "{name}"@{name}' for name in ("fi", "en", "de")]
    names += [f'{relations[1]} {LABEL} "{name}"@{name}' for name in ("fi", "de")]
    names += [f'{relations[0]} {LABEL} "other"@en']
    kb = import_lines(tmp_path, *facts, *names)
    by_key = {
        lang: dict(zip(kb.relation_keys(), kb.relation_names(lang), strict=True))
        for lang in ("fi", "ja")
    }
    assert by_key["fi"] == {
        "http://a.org/one": "fi",
        "http://a.org/two": "fi",
        "http://a.org/threeWords": "three words",
    }
    assert by_key["ja"]["http://a.org/one"] == "en" and by_key["ja"]["http://a.org/two"] == "de"
    assert kb.manifest.account["filtered"] == {"further name of a relation": 1}


def test_a_sample_has_the_asked_size_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    files = {}
    for number, seed in itertools.product((1, 2), (0, 1)):
        to = tmp_path / f"{number}-{seed}"
        kb = import_kb([dump], to, max_triples=500, seed=seed)
        assert kb.num_triples() == 500
        assert sums(kb)[0] == sums(kb)[1]
        files[number, seed] = (to / "triples.parquet").read_bytes()
    assert files[1, 0] == files[2, 0] != files[1, 1]


def test_a_sample_of_facts_in_many_languages_adds_up(tmp_path: Path) -> None:
    kb = import_kb([], tmp_path / "kb", format="world", langs=["fi", "et"], max_triples=1000)
    assert kb.num_triples() == 1000
    assert sums(kb)[0] == sums(kb)[1]


@pytest.mark.parametrize("wanted", [1, 30, 100])
def test_every_row_is_equally_likely_to_be_sampled(wanted: int) -> None:
    chosen = np.zeros(100)
    for seed in range(300):
        keep = _sampler(100, wanted, seed)
        batches = [keep(rows) for rows in (7, 60, 33)]
        mask = np.concatenate(batches)
        assert mask.sum() == wanted
        chosen += mask
    assert abs(chosen[:50].sum() / chosen[50:].sum() - 1) < 0.35
    assert _sampler(100, None, 0)(100).all()
