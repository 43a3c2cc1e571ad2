"""`prixlm import`, `stats` and `split`."""

import json
from pathlib import Path

import pytest

from tests.helpers import run_prixlm


@pytest.fixture
def kb(toy_files: list[Path], tmp_path: Path) -> Path:
    """The toy KB, as the command makes it."""
    made = run_prixlm("import", *toy_files, "--to", tmp_path / "kb")
    assert made.returncode == 0 and made.stderr == ""
    assert "5 languages" in made.stdout and "Read 21 rows. Imported 21" in made.stdout
    return tmp_path / "kb"


def test_import_stats_and_split_from_a_shell(kb: Path, tmp_path: Path) -> None:
    stats = json.loads(run_prixlm("stats", kb, "--json").stdout)
    assert stats["entities"] == {"ar": 2, "en": 5, "fi": 4, "ja": 4, "te": 2}
    assert stats["triples"]["en"] == {"train": 6}
    assert stats["links"] == 8
    split = run_prixlm("split", kb, "--to", tmp_path / "s", "--test", 0.3, "--json")
    assert split.returncode == 0
    assert json.loads(split.stdout)["split"]["test"] == 0.3


def test_stats_prints_the_hash_of_every_table(kb: Path) -> None:
    hashes = json.loads(run_prixlm("stats", kb, "--hashes", "--json").stdout)["hashes"]
    assert {"entities", "triples", "links"} <= set(hashes)
    text = run_prixlm("stats", kb, "--hashes").stdout
    assert f"{hashes['triples']}  triples" in text
    assert "hashes" not in json.loads(run_prixlm("stats", kb, "--json").stdout)


def test_a_split_is_printed_with_a_column_for_each_part(kb: Path, tmp_path: Path) -> None:
    text = run_prixlm("split", kb, "--to", tmp_path / "s", "--test", 0.3, "--valid", 0.2).stdout
    assert all(word in text for word in ("train", "valid", "test"))


def test_a_folder_that_exists_is_replaced_only_when_asked(kb: Path, toy_files: list[Path]) -> None:
    again = run_prixlm("import", *toy_files, "--to", kb)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert run_prixlm("import", *toy_files, "--to", kb, "--overwrite").returncode == 0


def test_a_dry_run_prints_what_would_be_read(toy_files: list[Path]) -> None:
    text = run_prixlm("import", *toy_files, "--dry-run").stdout
    assert "Would read as table" in text and "facts.tsv" in text and "minutes" in text
    ran = run_prixlm("import", *toy_files, "--dry-run", "--json")
    assert json.loads(ran.stdout)["rows"] == 21


def test_the_licence_option_replaces_the_default_of_a_format_as_its_help_says(
    tmp_path: Path,
) -> None:
    options = ("--format", "world", "--langs", "en", "--max-triples", 20, "--licence", "CC0-1.0")
    made = run_prixlm("import", *options, "--to", tmp_path / "kb", "--json")
    assert json.loads(made.stdout)["licence"] == "CC0-1.0"
    text = " ".join(run_prixlm("import", "--help").stdout.replace("│", " ").split())
    assert "Licence of the data, instead of the format's default." in text


def test_languages_are_chosen_by_code(toy_files: list[Path], tmp_path: Path) -> None:
    options = ("--langs", "en, fi", "--to", tmp_path / "two", "--json")
    stats = json.loads(run_prixlm("import", *toy_files, *options).stdout)
    assert stats["languages"] == ["en", "fi"]


def test_the_longest_name_is_an_option(toy_files: list[Path], tmp_path: Path) -> None:
    for limit, is_short in ((9, True), (100, False)):
        to = tmp_path / str(limit)
        ran = run_prixlm("import", *toy_files, "--to", to, "--max-name", limit)
        assert ran.returncode == 0
        rejects = (to / "rejects.tsv").read_text("utf-8")
        assert ("name or key too long" in rejects) == is_short
