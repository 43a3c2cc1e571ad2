"""Folders that someone damaged or changed: every command reads them or says so in one line."""

import random
import shutil
from pathlib import Path

import pytest

from tests.hostile.attacks import EVIL, SEED, attack, budget, damage
from tests.hostile.conftest import House


def readers(house: House, folder: Path, to: Path) -> dict[str, list[list[object]]]:
    """Return commands that read each kind of folder; it stands at `folder`."""
    ask = ["--lang", "en", "--subject", "France", "--relation", "capital"]
    return {
        "kb": [
            ["stats", folder],
            ["split", folder, "--to", to / "split"],
            ["link", "--kb", folder, "--mention", "Suomi"],
            ["complete", house.model, "--kb", folder, *ask],
            ["graph", folder, "--to", to / "graph", "--rank", 4, "--epochs", 1],
            ["export", house.proposals, "--format", "tsv", "--kb", folder, "--to", to / "x.tsv"],
            ["report", house.proposals, "--kb", folder, "--to", to / "page"],
            ["evaluate", "labels", "--kb", folder, "--langs", "fi"],
        ],
        "proposals": [
            ["review", folder, "--to", to / "review.tsv"],
            ["review", folder, "--marks", to / "sheet.tsv"],
            ["export", folder, "--format", "nq", "--to", to / "x.nq"],
            ["export", folder, "--format", "tsv", "--to", to / "x.tsv"],
            ["report", folder, "--kb", house.kb, "--to", to / "page"],
        ],
    }


@pytest.mark.parametrize("kind", ["kb", "proposals"])
def test_a_damaged_folder_is_read_or_refused_in_one_line(
    kind: str, house: House, tmp_path: Path
) -> None:
    generator = random.Random(f"{SEED} {kind}")
    attack("review", house.proposals, "--to", tmp_path / "sheet.tsv")
    for number in range(budget(25, 1500)):
        folder, to = tmp_path / kind, tmp_path / "to"
        shutil.copytree(getattr(house, kind), folder)
        to.mkdir()
        shutil.copy(tmp_path / "sheet.tsv", to / "sheet.tsv")
        files = sorted(path for path in folder.iterdir() if path.is_file())
        path = generator.choice(files)
        done = damage(path, generator)
        args = generator.choice(readers(house, folder, to)[kind])
        try:
            attack(*args)
        except BaseException as error:
            error.add_note(f"number {number}: {done} {path.name}, then {args[:2]}")
            raise
        shutil.rmtree(folder)
        shutil.rmtree(to)


def test_a_damaged_sheet_adds_no_mark_or_says_which_line(house: House, tmp_path: Path) -> None:
    generator = random.Random(SEED)
    folder = Path(shutil.copytree(house.proposals, tmp_path / "p"))
    sheet, good = tmp_path / "sheet.tsv", tmp_path / "good.tsv"
    attack("review", folder, "--to", good)
    for _ in range(budget(10, 500)):
        shutil.copy(good, sheet)
        damage(sheet, generator)
        attack("review", folder, "--marks", sheet)


@pytest.mark.parametrize("option", ["--queries", "--candidates"])
def test_a_damaged_file_of_questions_is_one_line(option: str, house: House, tmp_path: Path) -> None:
    generator = random.Random(f"{SEED} {option}")
    for number in range(budget(5, 200)):
        path = tmp_path / f"{number}.tsv"
        shutil.copy(house.queries_tsv if option == "--queries" else house.names_txt, path)
        damage(path, generator)
        args: list[object] = ["complete", house.model, "--kb", house.kb, option, path]
        if option == "--queries":
            args += ["--out", tmp_path / f"{number}.jsonl"]
        else:
            args += ["--lang", "en", "--subject", EVIL, "--relation", "capital"]
        attack(*args)


def test_a_damaged_settings_file_is_one_line(house: House, tmp_path: Path) -> None:
    generator = random.Random(SEED)
    for number in range(budget(5, 200)):
        path = tmp_path / f"{number}.toml"
        shutil.copy(house.run_toml, path)
        damage(path, generator)
        attack("pretrain", house.kb, "--to", tmp_path / f"m{number}", "--config", path)
