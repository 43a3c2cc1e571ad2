"""Benchmark folders in the shape of DBP-5L: the real one, and small ones with bad rows."""

from pathlib import Path

import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.importers.dbp5l import _read, read_links
from prixlm.importers.format import Limits
from tests.importers.helpers import concept_of, names_of, rejects_of, sums, triples_of


def test_dbp5l_has_exactly_the_counts_of_its_files(data: Path, dbp5l: KB) -> None:
    kb = dbp5l
    counts = kb.manifest.counts
    expected = {"el": 5231, "en": 13996, "es": 12381, "fr": 13176, "ja": 11805}
    assert counts["entities"] == expected
    for lang, splits in counts["triples"].items():
        for split, number in splits.items():
            file = data / "dbp5l" / "kg" / f"{lang}-{'val' if split == 'valid' else split}.tsv"
            assert number == file.read_bytes().count(b"\n")
    assert counts["triples"]["en"] == {"train": 48652, "valid": 24051, "test": 7464}
    assert counts["links"] == 37592
    assert counts["concepts"] == 29440
    assert counts["relations"] == 960
    assert len(set(kb.relation_names("en"))) < 960 == len(set(kb.relation_keys()))
    assert sums(kb)[0] == sums(kb)[1]
    egypt = kb.find("Egypt", "en")
    assert [e.key.partition("#")[0] for e in egypt] == ["http://dbpedia.org/resource/Egypt"] * 4


def test_only_the_asked_languages_are_imported(data: Path, tmp_path: Path) -> None:
    kb = import_kb([data / "dbp5l"], tmp_path / "kb", langs=["el", "ja"])
    assert kb.languages == ["el", "ja"]
    assert kb.num_triples("el") == 8670 + 4152 + 1017
    assert sums(kb)[0] == sums(kb)[1]


def write_benchmark(folder: Path, **files: bytes) -> Path:
    """A folder in the shape of DBP-5L; `en`, `ja`, `relations`, `facts` and `links` replace one."""
    content = {
        "en": b"http://dbpedia.org/resource/Finland\r\nhttp://dbpedia.org/resource/Helsinki\r\n",
        "ja": "http://ja.dbpedia.org/resource/フィンランド\r\nヘルシンキ\r\n".encode(),
        "relations": b"http://dbpedia.org/ontology/capital\r\nhttp://dbpedia.org/ontology/seat\r\n",
        "facts": b"0\t0\t1\r\n",
        "links": b"0.0\t0.0\r\n1.0\t1.0\r\n",
    }
    places = {
        "en": "entity/en.tsv",
        "ja": "entity/ja.tsv",
        "relations": "relations.txt",
        "facts": "kg/en-train.tsv",
        "links": "seed_alignlinks/en-ja.tsv",
    }
    for name, place in places.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(files.get(name, content[name]))
    return folder


def test_a_benchmark_list_may_hold_names_instead_of_iris(tmp_path: Path) -> None:
    kb = import_kb([write_benchmark(tmp_path / "b")], tmp_path / "kb")
    assert names_of(kb, "ja") == sorted(["フィンランド", "ヘルシンキ"])
    assert concept_of(kb, "Helsinki", "en") == {("en", "Helsinki"), ("ja", "ヘルシンキ")}
    assert triples_of(kb) == {("en", "Finland", "capital", "Helsinki")}


def test_bad_rows_of_a_benchmark_folder_are_counted_with_their_lines(tmp_path: Path) -> None:
    facts = b" 0\t0\t1 \r\n0\t0\r\n0\t0\tx\n0\t0\t2\n\n0\t0\t1.0\n0\t0\xff\n"
    kb = import_kb([write_benchmark(tmp_path / "b", facts=facts)], tmp_path / "kb")
    assert triples_of(kb) == {("en", "Finland", "capital", "Helsinki")}
    found = {(reason, line) for reason, source, line in rejects_of(kb) if "kg" in source}
    bad = {("2 columns, expected 3", 2), ("id is not a number", 3), ("id that no list has", 4)}
    assert bad <= found
    assert {line for _, line in found} - {5} == {2, 3, 4, 7}


def test_an_entity_of_a_benchmark_folder_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    entities = b"\xef\xbb\xbfSuomi\r\n\xff\xfe\r\nhttp://dbpedia.org/resource/_\r\n"
    kb = import_kb([write_benchmark(tmp_path / "b", en=entities)], tmp_path / "kb")
    assert names_of(kb, "en") == ["Suomi"]
    found = {(reason, line) for reason, source, line in rejects_of(kb) if "en.tsv" in source}
    assert {("invalid UTF-8", 2), ("empty name", 3)} <= found


def test_a_list_that_has_changed_is_read_again(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b")
    assert names_of(import_kb([folder], tmp_path / "first"), "en") == ["Finland", "Helsinki"]
    write_benchmark(folder, en=b"Suomi\nHelsinki\n")
    assert names_of(import_kb([folder], tmp_path / "second"), "en") == ["Helsinki", "Suomi"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("entity/klingon.tsv", "klingon is not a language code"),
        ("kg/en-all.tsv", "expected LL-train.tsv, LL-val.tsv or LL-test.tsv with LL one of en, ja"),
        ("kg/fi-test.tsv", "expected LL-train.tsv"),
        ("seed_alignlinks/en-fi.tsv", "expected AA-BB.tsv with languages en, ja"),
    ],
)
def test_a_file_that_does_not_belong_is_refused(wrong: str, message: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b")
    (folder / wrong).write_text("0\t0\t0\n")
    with pytest.raises(PrixError, match=message):
        import_kb([folder], tmp_path / "kb")


def test_a_folder_without_relations_is_refused(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b")
    (folder / "relations.txt").unlink()
    with pytest.raises(PrixError, match=r"has entity/ and kg/ but no relations\.txt"):
        import_kb([folder], tmp_path / "kb")


def test_lists_are_read_within_the_limits_of_lines(tmp_path: Path) -> None:
    """The ids after a line that is too long stay what they are."""
    lines = [b"Finland", b"x" * (9 << 20), b"y" * 3000, b"Helsinki", b""]
    folder = write_benchmark(tmp_path / "b", en=b"\n".join(lines), facts=b"0\t0\t3\n0\t0\t1\n")
    keys, shown = _read(folder / "entity/en.tsv", Limits(line=8 << 20))
    assert keys.to_pylist() == ["en:Finland", None, "en:" + "y" * 2001, "en:Helsinki"]
    assert keys.nbytes + shown.nbytes < 8000
    kb = import_kb([folder], tmp_path / "kb", max_line=8)
    assert triples_of(kb) == {("en", "Finland", "capital", "Helsinki")}
    rejected = kb.manifest.account["rejected"]
    assert rejected["line too long"] == 1
    assert rejected["id that no list has"] == 2, "a fact and a link of that line"


def test_an_empty_list_has_no_entity(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b", en=b"")
    kb = import_kb([folder], tmp_path / "kb")
    assert kb.languages == ["ja"]


def test_links_of_another_folder_are_read_with_the_keys_of_an_import(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "b")
    (folder / "seed_alignlinks").rename(folder / "seed_train_pairs")
    rows = read_links(folder / "seed_train_pairs").to_pylist()
    assert rows == [
        {
            "lang_a": "en",
            "a": "http://dbpedia.org/resource/Finland",
            "lang_b": "ja",
            "b": "http://ja.dbpedia.org/resource/フィンランド",
        },
        {
            "lang_a": "en",
            "a": "http://dbpedia.org/resource/Helsinki",
            "lang_b": "ja",
            "b": "ja:ヘルシンキ",
        },
    ]


@pytest.mark.parametrize(
    ("name", "links", "message"),
    [
        ("en-ja", b"0.0\t0.0\n1.0\t7.0\n", "en-ja.tsv line 2: id that no list has"),
        ("en-fr", b"0.0\t0.0\n", "expected AA-BB.tsv, with the lists of both languages"),
        ("links", b"0.0\t0.0\n", "expected AA-BB.tsv"),
        ("en-ja", b"", "has no links: expected files such as el-en.tsv"),
    ],
)
def test_links_that_do_not_belong_to_their_lists_are_refused(
    name: str, links: bytes, message: str, tmp_path: Path
) -> None:
    folder = write_benchmark(tmp_path / "b") / "pairs"
    folder.mkdir()
    (folder / f"{name}.tsv").write_bytes(links)
    with pytest.raises(PrixError, match=message):
        read_links(folder)
