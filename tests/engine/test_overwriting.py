"""What is overwritten: only what prixlm made, of the same kind, and only when asked."""

from pathlib import Path

import pytest

from prixlm import PrixError
from prixlm.engine.overwriting import check_kind, check_new_file, check_pages, check_target


def test_a_target_is_replaced_only_when_asked_and_only_if_it_is_ours(tmp_path: Path) -> None:
    kb = tmp_path / "kb"
    assert check_target(kb, [], False, "prixlm-kb") == tmp_path.resolve() / "kb.partial"
    kb.mkdir()
    with pytest.raises(PrixError, match=r"is already there\. Pass --overwrite"):
        check_target(kb, [], False, "prixlm-kb")
    with pytest.raises(PrixError, match=r"kb: found a folder that prixlm did not make, expected a"):
        check_target(kb, [], True, "prixlm-kb")
    (kb / "manifest.json").write_text('{"format": "prixlm-kb"}')
    check_target(kb, [tmp_path / "dump.nt"], True, "prixlm-kb")
    with pytest.raises(PrixError, match="holds the source"):
        check_target(kb, [kb / "dump.nt"], True, "prixlm-kb")
    (tmp_path / "link").symlink_to(kb)
    with pytest.raises(PrixError, match="not replaced"):
        check_target(tmp_path / "link", [], True, "prixlm-kb")
    (tmp_path / "other.partial").mkdir()
    check_target(tmp_path / "other", [], False, "prixlm-kb")  # empty: perhaps made just now
    (tmp_path / "other.partial" / "thesis.txt").touch()
    with pytest.raises(PrixError, match="is in the way"):
        check_target(tmp_path / "other", [], False, "prixlm-kb")


MADE = {
    "prixlm-kb": ("manifest.json", '{"format": "prixlm-kb"}', "a KB folder"),
    "prixlm-proposals": ("manifest.json", '{"format": "prixlm-proposals"}', "a proposals folder"),
    "prixlm.json": ("prixlm.json", "{}", "a model folder"),
    "encoder.json": ("encoder.json", "{}", "an encoder folder"),
    "graph.json": ("graph.json", "{}", "a graph embedding"),
    "report.json": ("report.json", "{}", "a report folder"),
}


@pytest.mark.parametrize("found", MADE)
@pytest.mark.parametrize("expected", MADE)
def test_a_folder_is_replaced_only_by_one_of_its_kind(
    found: str, expected: str, tmp_path: Path
) -> None:
    name, text, title = MADE[found]
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / name).write_text(text)
    if found == expected:
        check_target(tmp_path / "made", [], True, expected)
        return
    message = f"made: found {title}, expected {MADE[expected][2]}"
    with pytest.raises(PrixError, match=message):
        check_target(tmp_path / "made", [], True, expected)
    with pytest.raises(PrixError, match=message):
        check_kind(tmp_path / "made", expected)


def test_an_encoder_is_not_taken_for_the_model_it_contains(tmp_path: Path) -> None:
    for name in ("prixlm.json", "encoder.json"):
        (tmp_path / name).write_text("{}")
    check_kind(tmp_path, "encoder.json")
    with pytest.raises(PrixError, match="found an encoder folder, expected a model folder"):
        check_kind(tmp_path, "prixlm.json")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": "parquet"}'])
def test_a_manifest_that_is_not_ours_protects_its_folder(text: str, tmp_path: Path) -> None:
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "manifest.json").write_text(text)
    with pytest.raises(PrixError, match="found a folder that prixlm did not make"):
        check_target(tmp_path / "kb", [], True, "prixlm-kb")


def test_a_folder_that_holds_other_results_is_not_replaced(tmp_path: Path) -> None:
    proposals = tmp_path / "kb" / "mine" / "proposals"
    proposals.mkdir(parents=True)
    (tmp_path / "kb" / "manifest.json").write_text('{"format": "prixlm-kb"}')
    check_target(tmp_path / "kb", [], True, "prixlm-kb")
    (proposals / "manifest.json").write_text('{"format": "prixlm-proposals"}')
    with pytest.raises(PrixError, match=r"kb holds .*mine/proposals, a proposals folder"):
        check_target(tmp_path / "kb", [], True, "prixlm-kb")


def test_pages_are_overwritten_only_if_the_data_beside_them_is_ours(tmp_path: Path) -> None:
    data, page = tmp_path / "table.json", tmp_path / "table.md"

    def is_ours(values: object) -> bool:
        return isinstance(values, list)

    check_pages(data, [page], is_ours)
    page.write_text("# My notes")
    for text in (None, "no JSON", "{}"):
        if text is not None:
            data.write_text(text)
        with pytest.raises(PrixError, match=r"table\.(md|json) was not written by prixlm"):
            check_pages(data, [page], is_ours)
    data.write_text("[]")
    check_pages(data, [page], is_ours)


def test_a_file_of_results_is_not_overwritten(tmp_path: Path) -> None:
    check_new_file(tmp_path / "out.tsv")
    (tmp_path / "out.tsv").touch()
    with pytest.raises(PrixError, match=r"out\.tsv is already there\. Move it"):
        check_new_file(tmp_path / "out.tsv")
    (tmp_path / "other.tsv.partial").mkdir()
    (tmp_path / "other.tsv.partial" / "thesis.txt").touch()
    with pytest.raises(PrixError, match=r"other\.tsv\.partial is in the way"):
        check_new_file(tmp_path / "other.tsv")
