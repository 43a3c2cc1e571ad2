"""Linking: mentions to the nearest entities, one by one and by the file."""

import tracemalloc
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prixlm import KB, EngineConfig, PrixError, import_kb
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.linker import EntityLinker, _write_lines, link_file, open_mentions
from tests.trimmed import save_trimmed

LABEL, ALIAS = (
    f"<http://www.w3.org/{name}>"
    for name in ("2000/01/rdf-schema#label", "2004/02/skos/core#altLabel")
)
FACTS = f"""\
<http://x/paris> {LABEL} "Paris"@en .
<http://x/paris> {ALIAS} "City of Light"@en .
<http://x/paris> {ALIAS} "Lutetia"@en .
<http://x/france> {LABEL} "France"@en .
<http://x/paris> <http://x/country> <http://x/france> .
"""


@pytest.fixture(scope="module")
def linker(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> EntityLinker:
    """A linker to two entities, one with aliases."""
    folder = tmp_path_factory.mktemp("linker")
    (folder / "facts.nt").write_text(FACTS, "utf-8")
    kb = import_kb([folder / "facts.nt"], folder / "kb")
    return EntityLinker(bases["xlmr"], kb)


@pytest.mark.parametrize("mention", ["Paris", "Lutetia", " City of Light "])
def test_an_entity_counts_with_its_nearest_alias(linker: EntityLinker, mention: str) -> None:
    (answers,) = linker.link([mention], 5)
    assert [answer.name for answer in answers] == ["Paris", "France"], "each entity once"
    assert [answer.rank for answer in answers] == [1, 2]
    assert answers[0].score == pytest.approx(1.0, abs=1e-5)


def test_one_language_can_be_asked_for(encoder: EntityEncoder, shared_toy: KB) -> None:
    linker = EntityLinker(encoder, shared_toy)
    [everywhere] = linker.link(["Suomi"], 3)
    assert everywhere[0].name == "Suomi"
    [telugu] = linker.link(["Suomi"], 5, lang="te")
    assert {answer.name for answer in telugu} == {"ఫిన్లాండ్", "హెల్సింకి"}


def test_mentions_that_a_trimmed_model_reads_unlike_its_base_are_told_once(
    linker: EntityLinker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["Paris", "France", "City", "of", "Light", "Lutetia"]
    trimmed = EntityLinker(save_trimmed(tmp_path, names, ["Oslo"]), linker.kb)
    trimmed.link(["Paris"])
    assert not caplog.text
    (tmp_path / "mentions.txt").write_text("Paris\nOslo\nFrance\nParis Oslo\n")
    link_file(trimmed, tmp_path / "mentions.txt", tmp_path / "linked.tsv")
    trimmed.link(["Oslo"])
    [message] = caplog.messages
    assert "2 of 4 mentions (50 %), such as 'Oslo'" in message and "--keep FILE" in message
    other = EntityLinker(save_trimmed(tmp_path / "other", names[1:], ["Paris"]), linker.kb)
    assert "1 of 2 names of" in caplog.messages[1] and len(caplog.messages) == 2
    other.link(["France"])
    assert len(caplog.messages) == 2


def test_what_cannot_be_linked_says_why(
    linker: EntityLinker, encoder: EntityEncoder, shared_toy: KB
) -> None:
    with pytest.raises(PrixError, match="mention 2 is empty"):
        linker.link(["Paris", " "])
    with pytest.raises(PrixError, match="has no language xx"):
        linker.link(["Paris"], lang="xx")
    with pytest.raises(PrixError, match="kind tree: expected auto, exact"):
        EntityLinker(encoder, shared_toy, kind="tree")


def test_every_line_of_a_file_is_linked(
    linker: EntityLinker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.linker._PART", 2)
    mentions, out = tmp_path / "mentions.txt", tmp_path / "out.parquet"
    mentions.write_text("\ufeff  Lutetia\n\nFrance \n", "utf-8")
    counts = link_file(linker, mentions, out, k=1)
    assert counts == {"mentions": 3, "empty": 1}
    first, second, third = pq.read_table(out).to_pylist()
    assert (first["mention"], first["rank"], first["name"]) == ("Lutetia", 1, "Paris")
    assert (first["lang"], first["key"]) == ("en", "http://x/paris")
    assert second == dict.fromkeys(first) | {"mention": ""}
    assert (third["name"], third["entity"]) == ("France", linker.kb.find("France")[0].id)
    with pytest.raises(PrixError, match="is already there"):
        link_file(linker, mentions, out)


def test_workers_link_the_lines_as_one_process_does(
    linker: EntityLinker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.linker._PART", 2)
    mentions = tmp_path / "mentions.txt"
    mentions.write_text("Lutetia\n\nFrance\nParis\nOslo\n", "utf-8")
    for workers in (1, 2):
        out = tmp_path / f"{workers}.parquet"
        link_file(linker, mentions, out, engine=EngineConfig(workers=workers))
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_an_encoder_in_memory_cannot_be_sent_to_workers(
    encoder: EntityEncoder, linker: EntityLinker, tmp_path: Path
) -> None:
    (tmp_path / "m.txt").write_text("Paris\n", "utf-8")
    alone = EntityLinker(EntityEncoder(encoder.model), linker.kb)
    with pytest.raises(PrixError, match="the model is in memory only: save it"):
        link_file(alone, tmp_path / "m.txt", tmp_path / "a.tsv", engine=EngineConfig(workers=2))


def test_a_stopped_file_of_mentions_is_resumed(
    linker: EntityLinker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.linker._PART", 1)
    (tmp_path / "m.txt").write_text("Paris\nFrance\nLutetia\n", "utf-8")
    link, asked = linker.link, []

    def dying(mentions: list[str], *rest: object) -> object:
        asked.extend(mentions)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return link(mentions, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(linker, "link", dying)
    with pytest.raises(KeyboardInterrupt):
        link_file(linker, tmp_path / "m.txt", tmp_path / "a.tsv")
    link_file(linker, tmp_path / "m.txt", tmp_path / "a.tsv")
    assert asked == ["Paris", "France", "France", "Lutetia"]


def test_a_file_without_mentions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("\n \n", "utf-8")
    with pytest.raises(PrixError, match="expected one mention per line"):
        open_mentions(tmp_path / "m.txt")
    (tmp_path / "m.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PrixError, match="cannot be read as text"):
        open_mentions(tmp_path / "m.txt")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a\nb", ["a", "b"]),
        ("\ufeffa \r\n\r\n b\r\n\r\n", ["a", "", "b"]),
        ("\n\na\n\n\nb\n\n\n", ["", "", "a", "", "", "b"]),
        ("a\rb\n \n\n", ["a", "b", ""]),
        ("a\x85b\u2028c\n", ["a\x85b\u2028c"]),
    ],
)
def test_a_mention_is_a_line_without_white_space_around_it(
    content: str, expected: list[str], tmp_path: Path
) -> None:
    """Empty lines at the end are not mentions."""
    (tmp_path / "m.txt").write_text(content, "utf-8", newline="")
    file = open_mentions(tmp_path / "m.txt")
    assert list(file.lines()) == expected == file.sample
    assert (file.total, file.empty) == (len(expected), expected.count(""))


def test_a_file_of_mentions_is_never_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.entities.linker._SAMPLE", 100)
    with (tmp_path / "m.txt").open("w") as lines:
        lines.writelines(f"mention number {number}\n" for number in range(200_000))
    tracemalloc.start()
    file = open_mentions(tmp_path / "m.txt")
    _write_lines(file, 1000, tmp_path / "m.parquet")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20 < (tmp_path / "m.txt").stat().st_size
    assert 50 <= len(file.sample) <= 100 and file.sample[1] == "mention number 2048"
    assert pq.ParquetFile(tmp_path / "m.parquet").metadata.num_row_groups == 200
