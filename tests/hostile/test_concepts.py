"""Concepts of thousands of names: what is made of all pairs of them is bounded, or counted only."""

from pathlib import Path
from string import ascii_lowercase

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.evaluation.lexicons import Dictionary, count_overlap
from prixlm.kb.carried import carried_triples, count_carried
from prixlm.kb.lookup import build_lookup
from tests.helpers import run_python
from tests.hostile.attacks import attack

LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
COUNT = r"""
import re, sys
from pathlib import Path
from string import ascii_lowercase
from prixlm import KB
from prixlm.kb.coverage import count_coverage
kb = KB(Path(sys.argv[1]))
before = Path("/proc/self/status").read_text()
print(sum(count_coverage(kb).statable.values()))
for status in (before, Path("/proc/self/status").read_text()):
    print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024)
"""


def write_names(folder: Path, number: int, relations: int = 1) -> list[Path]:
    """Write facts of `number` names in each of two languages, and links between all of them."""
    folder.mkdir(exist_ok=True)
    ends = [(f"r{i % relations}", f"x{i}") for i in range(number)]
    facts = [f"{lang}\t{x}\t{r}\t{x}" for lang in ("en", "fi") for r, x in ends]
    facts += ["en\tFinland\tcapital\tHelsinki", "fi\tSuomi\tcapital\tHelsinki"]
    links = [f"en\tx{a}\tfi\tx{b}" for i in range(number) for a, b in ((0, i), (i, 0))]
    links += ["en\tFinland\tfi\tSuomi", "en\tHelsinki\tfi\tHelsinki"]
    heads = ("lang\tsubject\trelation\tobject", "lang_a\tname_a\tlang_b\tname_b")
    paths = [folder / "facts.tsv", folder / "links.tsv"]
    for path, head, rows in zip(paths, heads, (facts, links), strict=True):
        path.write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return paths


def merge_concepts(folder: Path) -> None:
    """Give all names `x…` of a KB one concept, as a KB of others may have it."""
    path = folder / "entities.parquet"
    table = pq.read_table(path)
    names, concepts = (table[column].to_pylist() for column in ("name", "concept"))
    one = concepts[names.index("x0")]
    merged = [one if name[0] == "x" else own for name, own in zip(names, concepts, strict=True)]
    concepts = pa.array(merged, pa.int32())
    place = table.column_names.index("concept")
    pq.write_table(table.set_column(place, table.schema.field(place), concepts), path)


def test_links_that_make_a_concept_of_thousands_of_names_are_rejected(tmp_path: Path) -> None:
    """57 kB of links gave a million pairs, and 3 MB 2.5 billion."""
    number, written = 1000, []
    for turn in (1, -1):
        facts, links = write_names(tmp_path / str(turn), number)
        head, *rows = links.read_text("utf-8").splitlines()
        links.write_text("\n".join([head, *rows[::turn]]) + "\n", "utf-8")
        kb = import_kb([facts, links], tmp_path / f"kb {turn}")
        written.append([kb.path(table).read_bytes() for table in ("entities", "links")])
        reason = "link in a concept of more than 1,024 names"
        assert kb.manifest.account["rejected"] == {reason: 2 * number - 1}
        assert reason in (kb.folder / "rejects.tsv").read_text("utf-8")
        assert sum(batch.num_rows for batch in kb.link_pairs()) == 2, "other links stay"
        assert kb.manifest.counts["linked"] == {"en": 2, "fi": 2}
    assert written[0] == written[1], "the order of the links does not matter"


def test_links_of_a_concept_that_is_just_small_enough_are_kept(tmp_path: Path) -> None:
    kb = import_kb(write_names(tmp_path, 512), tmp_path / "kb")
    assert not kb.manifest.account["rejected"]
    assert sum(batch.num_rows for batch in kb.link_pairs()) == 512**2 + 2


def test_a_key_in_thousands_of_languages_is_no_concept(tmp_path: Path) -> None:
    codes = [f"{a}{b}{c}" for a in "abcdefgh" for b in ascii_lowercase for c in ascii_lowercase]
    lines = [f'<http://a> <{LABEL}> "name"@{code} .\n' for code in codes]
    (tmp_path / "a.nt").write_text("".join(lines), "utf-8")
    kb = import_kb([tmp_path / "a.nt"], tmp_path / "kb")
    assert kb.num_entities > 1024
    assert kb.manifest.counts["concepts"] == kb.num_entities
    assert not [*kb.link_pairs()]


def test_pairs_of_a_kb_of_others_without_end_are_refused(tmp_path: Path) -> None:
    number = 4000
    kb = import_kb(write_names(tmp_path, number, 500), tmp_path / "kb")
    merge_concepts(kb.folder)
    kb = KB(kb.folder)
    with pytest.raises(PrixError, match="its concepts have 16,000,002 pairs of entities"):
        next(kb.link_pairs())
    for count in (lambda: next(carried_triples(kb, batch_rows=9)), lambda: count_carried(kb)):
        with pytest.raises(PrixError, match=r"16,000,000,002 facts would be carried"):
            count()


def test_a_split_keeps_the_links_of_concepts_of_thousands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kb = import_kb(write_names(tmp_path, 2000), tmp_path / "kb")
    merge_concepts(kb.folder)
    attack("split", kb.folder, "--hide-links", 0.6, "--to", tmp_path / "split", codes=(0,))
    assert "1 concepts with more than 1024 names keep their links" in caplog.text
    assert KB(tmp_path / "split").withheld_links().num_rows == 1


def test_words_are_found_among_links_without_pairs(tmp_path: Path) -> None:
    number = 4000
    kb = import_kb(write_names(tmp_path, number), tmp_path / "kb")
    merge_concepts(kb.folder)
    pairs = [("x1", "x2"), ("x1", "y"), ("finland", "suomi"), ("x1", "x2")]
    table = count_overlap(KB(kb.folder), {"en-fi": (Dictionary([], pairs), "fi")})
    assert "2 of 4 test pairs (3 in any case)" in table.notes[0]
    assert f"the KB's {number**2 + 2:,} links" in table.notes[0]


def test_a_server_looks_at_a_part_of_a_concept_of_thousands(tmp_path: Path) -> None:
    kb = import_kb(write_names(tmp_path, 2000), tmp_path / "kb")
    merge_concepts(kb.folder)
    lookup = build_lookup(KB(kb.folder))
    concept = int(lookup.concept[kb.find("x1", "en")[0].id])
    assert len(lookup.entities_of(concept)) == 1024


def test_names_of_one_concept_are_counted_without_pairs(tmp_path: Path) -> None:
    number = 4000
    kb = import_kb(write_names(tmp_path, number), tmp_path / "kb")
    merge_concepts(kb.folder)
    ran = run_python(COUNT, tmp_path / "kb")
    count, before, after = map(int, ran.stdout.split())
    assert count == 2 * number**2 + 2
    assert after - before < 200
