"""Files of prompts: what is read, and what is left out and why."""

import json
from pathlib import Path

import pytest

from prixlm import PrixError
from prixlm.evaluation.probing.prompts import (
    Prompt,
    Prompts,
    read_bmlama,
    read_bmlama_files,
    read_bmlama_folder,
    read_mlama,
    read_mlama_folder,
    sample_prompts,
)

HEADER = "Prompt\tAns\tCandidate Ans\tSubject\n"


def test_prompts_that_cannot_be_asked_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "en.tsv"
    path.write_text(
        HEADER
        + "Rome is in <mask>.\tItaly\tItaly, France\tRome\n"
        + "No blank.\tItaly\tItaly\tRome\n"
        + "<mask> and <mask>.\tItaly\tItaly\tRome\n"
        + "It is <mask>.\t\tItaly\tRome\n",
        "utf-8",
    )
    found = read_bmlama(path)
    assert found.prompts == [Prompt("Rome is in <mask>.", "Italy", ("Italy", "France"))]
    assert found.problems == {"no blank": 1, "more than one blank": 1, "no answer": 1}
    path.write_text(HEADER)
    with pytest.raises(PrixError, match="no prompt with one blank"):
        read_bmlama(path)
    path.write_text("a\tb\n")
    with pytest.raises(PrixError, match="columns a, b; expected Prompt"):
        read_bmlama(path)


def test_mlama_folders_have_relations(tmp_path: Path) -> None:
    own = tmp_path / "fi"
    own.mkdir()
    rows = [{"sub_label": "Ranska", "obj_label": "Pariisi"}, {"sub_label": "x", "obj_label": "y"}]
    (own / "P36.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (own / "P1.jsonl").write_text(json.dumps(rows[0]))
    (own / "place_of_birth.jsonl").write_text('{"sub_label": "x"}\n7\n')
    template = {"relation": "P36", "template": "[X]: pääkaupunki on [Y] ."}
    odd = {"relation": ["P1"], "template": "[X] [Y]"}
    (own / "templates.jsonl").write_text(json.dumps(template) + "\n" + json.dumps(odd))
    found = read_mlama(tmp_path, "fi")
    assert found.prompts[0] == Prompt(
        "Ranska: pääkaupunki on <mask> .", "Pariisi", ("Pariisi", "y"), "P36"
    )
    assert found.problems == {
        "a relation without a template": 1,
        "a row without a subject or an object": 1,
        "a line that is not a JSON object": 1,
        "a template without a relation or a text": 1,
    }
    with pytest.raises(PrixError, match="cannot be read as JSON lines"):
        read_mlama(tmp_path, "sv")


def test_files_of_prompts_are_named_by_their_languages(tmp_path: Path) -> None:
    row = "It is <mask>.\ta\ta, b\tx\n"
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "en.tsv").write_text(HEADER + row)
    assert set(read_bmlama_folder(tmp_path / "one")) == {"en"}
    with pytest.raises(PrixError, match="two files of en: pass one for each language"):
        read_bmlama_files([tmp_path / "one" / "en.tsv", tmp_path / "two" / "en.tsv"])
    with pytest.raises(PrixError, match=r"has no .tsv file"):
        read_bmlama_folder(tmp_path)
    with pytest.raises(PrixError, match="expected mLAMA's layout"):
        read_mlama_folder(tmp_path)


def test_a_sample_of_prompts_has_the_same_rows_in_every_language() -> None:
    prompts = [Prompts([Prompt(f"{lang} {i} <mask>", "a", ()) for i in range(50)]) for lang in "xy"]
    one, other = (sample_prompts(part, 7).prompts for part in prompts)
    rows = [int(prompt.text.split()[1]) for prompt in one]
    assert len(rows) == 7 and rows == sorted(rows)
    assert rows == [int(prompt.text.split()[1]) for prompt in other]
    assert sample_prompts(prompts[0], 50) is prompts[0]
    with pytest.raises(PrixError, match="--most 0: expected 1 or more prompts"):
        sample_prompts(prompts[0], 0)
