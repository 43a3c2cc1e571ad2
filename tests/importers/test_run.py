"""The import as a whole: what goes in comes out, killed or not, and errors that help."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prixlm import PrixError, files, import_kb, split_kb
from prixlm.importers import join, run, stage, streams
from tests.importers.helpers import (
    KILLED,
    LABEL,
    contents,
    import_text,
    kill_import,
    rejects_of,
    write_dump,
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of 600 entities in three languages, with malformed lines."""
    return write_dump(tmp_path_factory.mktemp("dump") / "dump.nt")


@pytest.fixture(scope="module")
def whole(dump: Path) -> dict[str, bytes]:
    """The files of its KB, from an import that was not disturbed."""
    return contents(import_kb([dump], dump.parent / "whole").folder)


def test_the_same_import_gives_the_same_bytes(
    dump: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 5000)
    monkeypatch.setattr(stage, "PART_CHUNKS", 3)
    monkeypatch.setattr(join, "BATCH_ROWS", 2048)
    monkeypatch.setattr(stage, "_INLINE_BYTES", 0)  # in parallel
    import_kb([dump], tmp_path / "kb", memory="100MB")
    assert contents(tmp_path / "kb") == whole


@pytest.mark.parametrize(
    ("name", "number", "processes"),
    [
        ("hash", 0, 0),
        ("read", 0, 0),
        ("read", 4, 0),
        ("read", 9, 1),  # RDF is parsed in threads; Wikidata, in processes, has its own test
        *[("join", step, 0) for step in (0, 2, 4, 6, 8, 9)],
    ],
)
def test_a_killed_import_leaves_no_half_kb_and_resumes_to_the_same_bytes(
    name: str,
    number: int,
    processes: int,
    dump: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    small_parts: None,
) -> None:
    kill_import(dump, tmp_path / "kb", name, number, processes=processes)
    assert not (tmp_path / "kb").exists()
    import_kb([dump], tmp_path / "kb")
    assert contents(tmp_path / "kb") == whole
    assert not (tmp_path / "kb.partial").exists()


def test_an_import_killed_at_any_time_resumes_to_the_same_bytes(
    tmp_path: Path, small_parts: None
) -> None:
    dump = write_dump(tmp_path / "dump.nt", 3000)
    start = time.perf_counter()
    whole = contents(import_kb([dump], tmp_path / "whole").folder)
    spent = time.perf_counter() - start
    for share in (0.2, 0.5, 0.8):
        to = tmp_path / f"kb-{share}"
        code = KILLED.format(
            dump=str(dump), to=str(to), name="", number=0, seconds=share * spent, processes=0
        )
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        if not to.exists():
            import_kb([dump], to)
        assert contents(to) == whole


def test_another_import_to_the_same_folder_starts_again(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    kill_import(dump, tmp_path / "kb", "join", 0)
    kb = import_kb([dump], tmp_path / "kb", langs=["fi"])
    assert kb.languages == ["fi"]


def test_two_imports_to_one_folder_do_not_run_at_once(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    with files.locked(tmp_path / "kb.partial"), pytest.raises(PrixError, match="is running"):
        import_kb([dump], tmp_path / "kb")


def test_a_kb_that_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    import_kb([dump], tmp_path / "kb")
    with pytest.raises(PrixError, match="already there"):
        import_kb([dump], tmp_path / "kb")
    kb = import_kb([dump], tmp_path / "kb", langs=["fi"], overwrite=True)
    assert kb.languages == ["fi"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dump.nt", "kb"]


def test_nothing_but_a_kb_is_ever_replaced(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    dump = write_dump(photos / "dump.nt", 3)
    with pytest.raises(
        PrixError, match="found a folder that prixlm did not make, expected a KB folder"
    ):
        import_kb([dump], photos, overwrite=True)
    import_kb([dump], tmp_path / "kb")
    inside = write_dump(tmp_path / "kb" / "more.nt", 3)
    with pytest.raises(PrixError, match="holds the source"):
        import_kb([inside], tmp_path / "kb", overwrite=True)
    for name in ("other.old", "other.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("x")
    with pytest.raises(PrixError, match="is in the way"):
        import_kb([dump], tmp_path / "other")
    (tmp_path / "other.partial").rename(tmp_path / "saved")
    import_kb([dump], tmp_path / "other")
    assert (tmp_path / "other.old" / "thesis.txt").exists() and dump.exists()


@pytest.mark.parametrize("name", ["a*b", "a?b", "[a]", "it's", "ä 日本"])
def test_any_folder_name_will_do(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "axb").mkdir()
    dump = write_dump(tmp_path / name / "d*mp.nt", 30)
    kb = split_kb(import_kb([dump], tmp_path / name / "kb"), tmp_path / name / "split")
    assert kb.num_triples() == import_kb([dump], tmp_path / "axb" / "kb").num_triples()
    assert len(kb.find("olio 3", "fi")) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("facts.tsv", "lang\tsubject\trelation\tobject\n"),
        ("facts.tsv", "zz\ta\tr\tb\n"),
        ("empty.tsv", ""),
        ("empty.nt", ""),
        ("empty.rdf", ""),
        ("blank.nt", "\n\n"),
        ("nothing.nt", "# started 2022-12-09T18:27:11Z\n"),
        ("rubbish.nt", "rubbish\n<a> <b>\n"),
        ("names.nt", "<http://a.org/a> <http://a.org/p> <http://a.org/b> .\n"),
    ],
)
def test_nothing_to_import_is_an_error_that_says_what_was_looked_for(
    name: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match=rf"nothing to import in {name}.*Looked for"):
        import_text(tmp_path, name, text)
    assert [path.name for path in tmp_path.iterdir()] == [name], "no half KB, no workspace"


def test_a_strict_import_stops_at_the_first_bad_row(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    with pytest.raises(PrixError, match=r"dump\.nt line \d+: malformed line: this is not RDF"):
        import_kb([dump], tmp_path / "kb", strict=True)


def test_a_strict_import_stops_at_what_only_the_joins_find(tmp_path: Path) -> None:
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    lines = [f'<http://a/a> {label} "a"@en .', "<http://a/a> <http://a/p> <http://a/b> ."]
    (tmp_path / "a.nt").write_text("\n".join(lines))
    with pytest.raises(PrixError, match=r"a\.nt line 2: entity without a name: http://a/a"):
        import_kb([tmp_path / "a.nt"], tmp_path / "kb", strict=True)


def test_too_little_memory_for_the_joins_is_said_clearly(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt", 3000)
    with pytest.raises(PrixError, match="pass a larger --memory"):
        import_kb([dump], tmp_path / "kb", memory="1MB")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_ends_with_a_clear_line_and_no_half_kb(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write_dump(tmp_path / "dump.nt")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(run, "_finish", fail)
    with pytest.raises(PrixError, match=r"is full.* Free some space"):
        import_kb([dump], tmp_path / "kb")
    assert not (tmp_path / "kb").exists()


def test_a_disk_that_really_fills_up_ends_with_a_clear_line(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt", 3000)
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        with pytest.raises(PrixError, match="is full"):
            import_kb([dump], small / "kb")
        assert not (small / "kb").exists()
        subprocess.run(["mount", "-o", "remount,size=60m", str(small)], check=True)
        kb = import_kb([dump], small / "kb")
        assert contents(kb.folder) == contents(import_kb([dump], tmp_path / "whole").folder)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_rejects_have_their_reason_file_and_line(tmp_path: Path) -> None:
    kb = import_kb([write_dump(tmp_path / "dump.nt", 98)], tmp_path / "kb")
    rows = [line.split("\t") for line in (kb.folder / "rejects.tsv").read_text().splitlines()]
    assert rows[0] == ["reason", "source", "line", "text"]
    assert [row[:2] for row in rows[1:]] == [["malformed line", "dump.nt"]] * 2
    lines = (tmp_path / "dump.nt").read_text("utf-8").splitlines()
    assert all(lines[int(row[2]) - 1] == "this is not RDF" for row in rows[1:])


def test_the_manifest_says_where_the_data_came_from(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt", 3)
    manifest = import_kb([dump], tmp_path / "kb", licence="CC0-1.0").manifest
    assert manifest.licence == "CC0-1.0"
    (source,) = manifest.sources
    assert source["name"] == "dump.nt" and source["size"] == dump.stat().st_size
    assert len(source["sha256"]) == 64
    assert str(tmp_path) not in (tmp_path / "kb" / "manifest.json").read_text()


LONG = "ä" * 60
LONG_ROWS = {
    "x.nt": f'<http://e/b> {LABEL} "Good"@en .\n<http://e/a> {LABEL} "{LONG}"@en .\n',
    "key.nt": f'<http://e/b> {LABEL} "Good"@en .\n<http://e/{LONG}> {LABEL} "a"@en .\n',
    "x.tsv": f"lang\tsubject\trelation\tobject\nen\tGood\tr\tFine\nen\t{LONG}\tr\tFine\n",
    "x.json": '{"id":"Q1","type":"item","labels":{"en":{"value":"Good"}}}\n'
    f'{{"id":"Q2","type":"item","labels":{{"en":{{"value":"{LONG}"}}}}}}\n',
}


@pytest.mark.parametrize("name", LONG_ROWS)
def test_a_name_or_key_beyond_the_limit_is_rejected_and_sampled(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(LONG_ROWS[name], "utf-8")
    kb = import_kb([tmp_path / name], tmp_path / "short", max_name=59)
    assert kb.manifest.account["rejected"] == {"name or key too long": 1}
    assert kb.manifest.options["max_name"] == 59
    (reject,) = rejects_of(kb)
    assert reject == ("name or key too long", name, 3 if name == "x.tsv" else 2)
    assert kb.find("Good") and not kb.find(LONG)
    whole = import_kb([tmp_path / name], tmp_path / "whole", max_name=80)
    assert whole.num_entities == kb.num_entities + 1 and not whole.manifest.account["rejected"]


def test_a_name_of_a_megabyte_is_not_imported_by_default(tmp_path: Path) -> None:
    text = LONG_ROWS["x.nt"].replace(LONG, "a" * (1 << 20))
    (tmp_path / "x.nt").write_text(text)
    kb = import_kb([tmp_path / "x.nt"], tmp_path / "kb")
    assert [entity.name for entity in kb.entities(range(kb.num_entities))] == ["Good"]
    assert kb.manifest.account["rejected"] == {"name or key too long": 1}
