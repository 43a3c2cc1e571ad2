"""Staging: parts are parsed once, in threads or processes, and workers do not outlive an import."""

import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prixlm import EngineConfig, PrixError, import_kb
from prixlm.engine.workspace import open_workspace
from prixlm.importers import stage, streams
from prixlm.importers.format import NUM_SAMPLES, Account, Chunk, Parsed, Reject
from prixlm.importers.plan import plan_import
from prixlm.importers.run import _cut_parts
from prixlm.importers.stage import (
    PartMaker,
    StagedTables,
    first_samples,
    parse_chunk,
    parsing,
    stage_source,
)
from tests.importers.helpers import DATA, contents, kill_import, write_dump


def write_wikidata(path: Path, times: int) -> Path:
    """The sample, many times over: duplicates are counted, and the import takes its time."""
    path.write_bytes((DATA / "wikidata-sample.json").read_bytes() * times)
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


def test_a_staged_part_is_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    kill_import(dump, tmp_path / "kb", "join", 0)

    def fail(*_: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(stage, "parse_chunk", fail)
    assert import_kb([dump], tmp_path / "kb").num_entities == 1800


def parse_links(chunk: Chunk) -> Parsed:
    """Parse lines `a b` as links; any other line is malformed."""
    assert isinstance(chunk.data, bytes)
    parsed = Parsed(chunk.source)
    for line, text in enumerate(chunk.data.decode().splitlines(), chunk.line):
        parsed.read += 1
        cells = text.split(" ")
        if len(cells) == 2:
            parsed.stage("links", a=cells[:1], b=cells[1:], line=[line])
        else:
            parsed.reject("malformed line", line, text)
    return parsed.check()


def link_chunks(number: int) -> Iterator[Chunk]:
    for index in range(number):
        yield Chunk(2, 10 * index + 1, b"a b\nbad\nc d\n")


def test_parts_are_resumed_and_their_accounts_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PART_CHUNKS", 2)
    calls = []

    def count(chunk: Chunk) -> Parsed:
        calls.append(chunk.line)
        return parse_links(chunk)

    for attempt in range(2):
        with open_workspace(tmp_path, {}) as work, parsing(0, False) as parse:
            accounts = list(stage_source(2, count, link_chunks(5), work, parse))
        assert [account.read for account in accounts] == [6, 6, 3]
        assert accounts[2].samples == [Reject("malformed line", 2, 42, "bad")]
        assert len(calls) == 5, "parsed once"
        if attempt == 0:  # a part that is missing is made again, and what a kill left is not seen
            (tmp_path / "00002-000001").rename(tmp_path / "00002-000001.9-9.tmp")
            calls = calls[:3]
    names = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.glob("0*[0-9]/*"))]
    assert names == [
        f"00002-00000{i}/{name}" for i in range(3) for name in ("account.json", "links.parquet")
    ]
    with open_workspace(tmp_path, {}) as work:
        tables = StagedTables(work.empty_folder("scratch"), tmp_path, "100MB", Account())
        assert tables.count("links") == 10
        tables.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_kb_parsed_by_an_engine_has_the_same_bytes(
    tmp_path: Path, small_parts: None, workers: int
) -> None:
    """One worker makes all parts out of one stream; two make whole files, in parts of their own."""
    sources = [write_dump(tmp_path / f"{name}.nt", 300, seed) for seed, name in enumerate("ab")]
    whole = contents(import_kb(sources, tmp_path / "whole").folder)
    if workers == 2:  # other processes have the default sizes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "CHUNK_BYTES", 8 << 20)
            kb = import_kb(sources, tmp_path / "kb", engine=EngineConfig(workers=workers))
    else:
        kb = import_kb(sources, tmp_path / "kb", engine=EngineConfig(workers=workers))
    assert contents(kb.folder) == whole


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_maker_of_parts_makes_them_in_any_order(
    tmp_path: Path, small_parts: None, suffix: str
) -> None:
    """A plain file is read from the first byte of a part; it begins with a byte order mark."""
    plain = write_dump(tmp_path / "dump.nt")
    dump = tmp_path / f"copy.nt{suffix}"
    content = b"\xef\xbb\xbf" + plain.read_bytes()
    dump.write_bytes(gzip.compress(content) if suffix else content)
    plan = plan_import([dump])
    read: list[object] = []

    def chunks(index: int, start: stage.Start) -> Iterator[Chunk]:
        for chunk in plan.chunks(index, start):
            read.append(chunk)
            yield chunk

    maker = PartMaker(chunks, plan.parser, [dump])
    parts = list(_cut_parts(plan.chunks(0)))
    order = (0, 2, 1, 1, 3)
    for number in order:
        folder = tmp_path / f"{number}-{len(list(tmp_path.iterdir()))}"
        maker((0, number, *parts[number]), folder)
    assert (len(read) == len(order) * stage.PART_CHUNKS) == (suffix == "")
    found = {path.name[0]: contents(path) for path in tmp_path.iterdir() if path.is_dir()}
    with open_workspace(tmp_path / "work", {}) as work, parsing(0, False) as parse:
        list(stage_source(0, plan.parser(0), plan.chunks(0), work, parse))
    for number in range(4):
        assert found[str(number)] == contents(tmp_path / "work" / f"00000-00000{number}")


def test_a_source_that_is_shorter_than_the_drivers_is_refused(
    tmp_path: Path, small_parts: None
) -> None:
    """Its part would be empty, and its rows lost without a word."""
    dump = write_dump(tmp_path / "dump.nt")
    plan = plan_import([dump])
    maker = PartMaker(plan.chunks, plan.parser, [dump])
    with pytest.raises(PrixError, match=r"dump\.nt on .* ends 2 chunks before the driver's"):
        maker((0, 90, 2, None), tmp_path / "part")


def test_a_worker_with_another_dump_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    monkeypatch.setattr(stage, "sketch", lambda _: "of the driver's disk")
    with pytest.raises(PrixError, match=r"has another source 1 \(dump\.nt\) than the driver"):
        import_kb([dump], tmp_path / "kb", engine=EngineConfig(workers=2))


@pytest.mark.parametrize("num_bytes", [0, 1 << 40])
def test_results_come_in_the_order_of_the_chunks(num_bytes: int) -> None:
    with parsing(num_bytes, in_processes=False) as parse:
        found = [parsed.samples[0].line for parsed in parse(parse_links, link_chunks(40))]
    assert found == [10 * index + 2 for index in range(40)]


def test_a_process_that_dies_is_one_clear_line() -> None:
    with (
        pytest.raises(PrixError, match="the parsing processes ended early"),
        parsing(1 << 40, in_processes=True) as parse,
    ):
        list(parse(die, link_chunks(1)))


def die(_chunk: Chunk) -> Parsed:
    os._exit(1)


def test_a_broken_chunk_is_one_rejected_row() -> None:
    parsed = parse_chunk(parse_links, Chunk(4, 9, b"CRC check failed", broken="damaged archive"))
    assert parsed.check().read == 1
    assert parsed.samples == [Reject("damaged archive", 4, 9, "CRC check failed")]


def test_the_first_samples_of_each_reason_are_kept() -> None:
    many = [Reject("a", 0, line, "") for line in range(NUM_SAMPLES + 9, 0, -1)]
    kept = first_samples([*many, Reject("b", 1, 1, "")])
    assert [sample.line for sample in kept if sample.reason == "a"] == list(
        range(1, NUM_SAMPLES + 1)
    )
    assert len(kept) == NUM_SAMPLES + 1


def test_rows_that_a_join_rejects_are_shown_with_source_and_line(tmp_path: Path) -> None:
    with open_workspace(tmp_path, {}) as work, parsing(0, False) as parse:
        list(stage_source(2, parse_links, link_chunks(2), work, parse))
        account = Account()
        tables = StagedTables(work.empty_folder("scratch"), work.folder, "100MB", account)
        assert tables.count("links") == 4 and tables.count("facts") == 0
        [batch] = tables.stream("SELECT a, b FROM links ORDER BY pos")
        assert batch.column("a").to_pylist() == ["a", "c", "a", "c"]
        assert tables.reject("no such entity", "links WHERE a = 'c'", "links") == 2
        assert tables.reject("no such entity", "links WHERE a = 'x'", "links") == 0
        tables.close()
    assert account.rejected == {"no such entity": 2}
    assert account.samples == [Reject("no such entity", 2, line, "c d") for line in (3, 13)]
