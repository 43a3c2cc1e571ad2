"""The import as a whole: what goes in comes out, killed or not, and errors that help."""

import bz2
import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prixlm import KB, PrixError, files, import_kb, split_kb
from prixlm.importers import join, run, stage, streams
from prixlm.importers.format import Source
from prixlm.importers.run import estimate_import, plan_import


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def sums(kb: KB) -> tuple[int, int]:
    account = kb.manifest.account
    parts = [sum(account[part].values()) for part in ("imported", "rejected", "filtered")]
    return account["read"], sum(parts)


def write_dump(path: Path, num_entities: int = 600, seed: int = 0) -> Path:
    """N-Triples in three languages with labels, facts, links and a few bad lines."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(num_entities):
            for lang, word in (("en", "thing"), ("fi", "olio"), ("ja", "もの")):
                iri = f"<http://ex.org/{lang}/{number}>"
                label = "<http://www.w3.org/2000/01/rdf-schema#label>"
                file.write(f'{iri} {label} "{word} {number}"@{lang} .\n')
                other = f"<http://ex.org/{lang}/{rng.randrange(num_entities)}>"
                file.write(f"{iri} <http://ex.org/p/knowsWell{number % 7}> {other} .\n")
                if lang != "en":
                    same = "<http://www.w3.org/2002/07/owl#sameAs>"
                    file.write(f"{iri} {same} <http://ex.org/en/{number}> .\n")
            if number % 97 == 0:
                file.write("this is not RDF\n")
    return path


def test_dbp5l_has_exactly_the_counts_of_its_files(data: Path, tmp_path: Path) -> None:
    kb = import_kb([data / "dbp5l"], tmp_path / "kb")
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


def test_the_world_has_17_languages_and_links_them(world: KB) -> None:
    assert len(world.languages) == 17
    assert world.num_triples() >= 35_000
    (finland,) = world.find("Suomi", "fi")
    names = {e.lang: e.name for e in world.find_key(finland.key)}
    assert names["te"] == "ఫిన్లాండ్" and names["th"] == "ฟินแลนด์" and names["lo"] == "ຟິນແລນ"
    pairs = sum(batch.num_rows for batch in world.link_pairs(["fi", "te"]))
    assert pairs == len({e.key for e in _all(world, "fi")} & {e.key for e in _all(world, "te")})


def _all(kb: KB, lang: str) -> list[object]:
    return list(kb.entities(kb.entity_range(lang)))


def test_the_same_import_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    import_kb([dump], tmp_path / "a")
    monkeypatch.setattr(streams, "CHUNK_BYTES", 5000)
    monkeypatch.setattr(stage, "PART_CHUNKS", 3)
    monkeypatch.setattr(join, "BATCH_ROWS", 2048)
    monkeypatch.setattr(stage, "_INLINE_BYTES", 0)  # in parallel
    import_kb([dump], tmp_path / "b", memory="100MB")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


KILLED = """
import os, signal, sys, threading
from prixlm import import_kb
from prixlm.importers import stage, streams
streams.CHUNK_BYTES, stage.PART_CHUNKS = 20000, 2
if {processes}:
    stage._INLINE_BYTES = 0
calls = 0
def progress(name, done, total):
    global calls
    calls += name == {name!r}
    if calls > {number}:
        os.kill(os.getpid(), signal.SIGKILL)
if {seconds}:
    threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGKILL)).start()
import_kb([{dump!r}], {to!r}, progress=progress)
"""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the import that is killed, so that what it staged is taken up."""
    monkeypatch.setattr(streams, "CHUNK_BYTES", 20000)
    monkeypatch.setattr(stage, "PART_CHUNKS", 2)


def kill_import(dump: Path, to: Path, name: str, number: int, **more: object) -> None:
    """Start an import and kill it at the given call of its progress function."""
    code = KILLED.format(
        dump=str(dump),
        to=str(to),
        name=name,
        number=number,
        **{"seconds": 0, "processes": 0} | more,
    )
    command = [sys.executable, "-c", code]
    env = os.environ | {"PRIXLM_MARK": str(to)}
    with (to.parent / "stderr").open("w") as errors:  # no pipe: a worker that lives would hold it
        run = subprocess.run(command, stdout=errors, stderr=errors, env=env, check=False)
    assert run.returncode == -signal.SIGKILL, (to.parent / "stderr").read_text()


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
def test_a_killed_import_leaves_no_half_kb_and_goes_on_to_the_same_bytes(
    name: str, number: int, processes: int, tmp_path: Path, small_parts: None
) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    whole = contents(import_kb([dump], tmp_path / "whole").folder)
    kill_import(dump, tmp_path / "kb", name, number, processes=processes)
    assert not (tmp_path / "kb").exists()
    import_kb([dump], tmp_path / "kb")
    assert contents(tmp_path / "kb") == whole
    assert not (tmp_path / "kb.partial").exists()


def test_an_import_killed_at_any_time_goes_on_to_the_same_bytes(
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


def write_wikidata(path: Path, times: int) -> Path:
    """The sample, many times over: duplicates are counted, and the import takes its time."""
    sample = Path(__file__).parents[1] / "data" / "wikidata-sample.json"
    path.write_bytes(sample.read_bytes() * times)
    return path


def test_a_kb_parsed_in_processes_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    dump = write_wikidata(tmp_path / "wikidata.json", 20)
    whole = contents(import_kb([dump], tmp_path / "whole").folder)
    monkeypatch.setattr(stage, "_INLINE_BYTES", 0)
    assert contents(import_kb([dump], tmp_path / "kb").folder) == whole
    kill_import(dump, tmp_path / "killed", "read", 8, processes=1)
    assert contents(import_kb([dump], tmp_path / "killed").folder) == whole


def test_chunks_do_not_depend_on_how_a_damaged_archive_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = bz2.compress(write_dump(tmp_path / "dump.nt", 3000).read_bytes(), 1)
    (tmp_path / "dump.nt.bz2").write_bytes(packed[: len(packed) * 4 // 5])
    monkeypatch.setattr(streams, "CHUNK_BYTES", 30_000)
    found = []
    for cores in (1, 2, 4):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        source = Source(tmp_path / "dump.nt.bz2", "dump")
        found.append([(c.line, c.data) for c in streams.line_chunks(source, 0) if not c.broken])
    assert found[0] == found[1] == found[2] and len(found[0]) > 5


def test_workers_end_when_the_import_is_killed(tmp_path: Path) -> None:
    dump = write_wikidata(tmp_path / "wikidata.json", 20)
    kill_import(dump, tmp_path / "kb", "read", 8, processes=1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not _processes_with(str(tmp_path / "kb")):
            return
        time.sleep(0.1)
    raise AssertionError("worker processes are left over")


def _processes_with(mark: str) -> list[str]:
    """Processes that have the mark of this import in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"PRIXLM_MARK={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_what_is_staged_is_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    kill_import(dump, tmp_path / "kb", "join", 0)

    def fail(*_: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(stage, "parse_chunk", fail)
    assert import_kb([dump], tmp_path / "kb").num_entities == 1800


def test_another_import_to_the_same_folder_starts_anew(tmp_path: Path) -> None:
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
    with pytest.raises(PrixError, match="is not a KB folder: it is not replaced"):
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


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "rubbish\n<a> <b>\n"])
def test_nothing_to_import_is_an_error_that_says_what_was_looked_for(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.nt").write_text(text)
    with pytest.raises(PrixError, match=r"nothing to import in a\.nt.*Looked for RDF"):
        import_kb([tmp_path / "a.nt"], tmp_path / "kb")
    assert not (tmp_path / "kb").exists()


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


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        (["nowhere.nt"], {}, "no such file"),
        ([], {}, "no source given"),
        (["dump.nt"], {"format": "sparql"}, "unknown format sparql: expected one of"),
        (["dump.nt"], {"langs": ["fi", "klingonese"]}, "unknown language klingonese"),
        (["dump.nt"], {"max_triples": 0}, "expected 1 or more"),
        (["dump.nt"], {"seed": -1}, "--seed -1: expected 0 or more"),
        (["dump.nt"], {"format": "world"}, "would not be read"),
        (["dump.nt"], {"format": "benchmark"}, "not what benchmark reads"),
        (["notes.doc"], {}, "not recognised. Looked for"),
        (["dump.nt", "facts.tsv"], {}, "different formats"),
        (["dump.nt"], {"memory": "lots"}, "--memory lots: expected a size such as"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_was_expected(
    sources: list[str], options: dict[str, object], message: str, tmp_path: Path, toy_files: object
) -> None:
    write_dump(tmp_path / "dump.nt", 3)
    (tmp_path / "notes.doc").write_text("x")
    with pytest.raises(PrixError, match=message):
        import_kb([tmp_path / s for s in sources], tmp_path / "kb", **options)  # type: ignore[arg-type]


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


def test_a_dry_run_estimates_without_writing(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    estimate = estimate_import(plan_import([dump]))
    assert estimate.num_rows == dump.read_bytes().count(b"\n")
    assert "dump.nt" in estimate.as_text() and "rdf" in estimate.as_text()
    assert json.dumps(estimate.as_dict())
    assert list(tmp_path.iterdir()) == [dump]


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
