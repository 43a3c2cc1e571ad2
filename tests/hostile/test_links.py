"""Links in folders of others: nothing is written, and nothing removed, where they lead."""

import gc
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tokenizers import Tokenizer

from prixlm import KB, PrixError
from prixlm.engine.workspace import STAMP, open_workspace
from prixlm.entities import index
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.names import build_names
from prixlm.files import LOCK, publish
from prixlm.kb.lookup import build_lookup
from prixlm.lm import token_cache
from prixlm.reports.kept import Kept
from prixlm.reports.plots import plot_metrics
from prixlm.training.loop import _Loop

KEY = "0123456789abcdef"
"""Hash of the tokenizer and the encoder, which names their folders."""


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user."""
    folder = tmp_path / "precious"
    (folder / "letters").mkdir(parents=True)
    (folder / "letters" / "mother.txt").write_text("keep")
    (folder / "notes.txt").write_text("keep")
    return folder


def contents(folder: Path) -> dict[Path, str]:
    """Return all that is in a folder."""
    return {path: path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


@pytest.fixture
def caches(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Callable[[KB], object]]:
    """Return what builds each cache of a KB."""
    monkeypatch.setattr(token_cache, "tokenizer_hash", lambda _: KEY)
    encoder = SimpleNamespace(
        fingerprint=lambda: KEY,
        width=4,
        encode=lambda names, langs: np.ones((len(names), 4), np.float32),
    )
    return {
        "lookup": build_lookup,
        "names": build_names,
        "tokens": lambda kb: token_cache.build_tokens(kb, tokenizers["xlmr"]),
        "vectors": lambda kb: index.build_vectors(kb, cast(EntityEncoder, encoder)),
    }


def cache_folder(kind: str, kb: KB) -> Path:
    """Return the folder of a cache, below that of its KB."""
    keys = {"lookup": "", "names": kb.fingerprint()[:16]}
    return Path(kind, keys.get(kind, KEY))


KINDS = ("lookup", "names", "tokens", "vectors")


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_is_not_built_where_a_link_leads(
    kind: str, caches: dict[str, Callable[[KB], object]], toy: KB, precious: Path
) -> None:
    """`lookup.partial` of a KB of others was a link to Documents, and all in there was removed."""
    before = contents(precious)
    folder = cache_folder(kind, toy)
    for path in {Path(kind), folder, folder.with_name(f"{folder.name}.partial")}:
        link = toy.folder / path
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(precious)
        with pytest.raises(PrixError, match=f"{path.name} is a link, so nothing is written there"):
            caches[kind](toy)
        assert contents(precious) == before and link.is_symlink()
        link.unlink()
        if link.parent != toy.folder:
            link.parent.rmdir()


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_cache_is_not_written_through_links(
    kind: str, caches: dict[str, Callable[[KB], object]], toy: KB, tmp_path: Path
) -> None:
    """Names of a KB of others, such as `\\nrm -r ~`, were written to `.bashrc`."""
    settings = tmp_path / "settings"
    settings.write_text("keep")
    caches[kind](toy)
    folder = toy.folder / cache_folder(kind, toy)
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    half = folder.rename(folder.with_name(f"{folder.name}.partial"))
    for path in files - {Path(STAMP), Path(LOCK)}:
        (half / path).unlink()
        (half / path).symlink_to(settings)
    caches[kind](toy)
    assert settings.read_text() == "keep"
    assert (folder / STAMP).is_file() and not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize("name", ["scratch", "deep/down/part", STAMP, "running"])
def test_work_with_a_link_is_not_resumed(name: str, tmp_path: Path, precious: Path) -> None:
    before, link = contents(precious), tmp_path / "work" / name
    with open_workspace(tmp_path / "work", {"seed": 1}) as work:
        work.make("part", lambda path: path.write_text("x"))
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(precious)
    with open_workspace(tmp_path / "work", {"seed": 1}) as work:
        assert work.finished() == {"lock", STAMP}
        (work.empty_folder("scratch") / "file").touch()
    assert contents(precious) == before


def test_metrics_results_and_plots_are_not_written_through_links(tmp_path: Path) -> None:
    settings, metrics = tmp_path / "settings", tmp_path / "metrics.jsonl"
    metrics.symlink_to(settings)
    loop = SimpleNamespace(accelerator=SimpleNamespace(is_main_process=True), run=tmp_path, step=1)
    with pytest.raises(PrixError, match="is a link, so it is not written"):
        _Loop._log(cast(_Loop, loop), {"loss": 1.0})
    with pytest.raises(PrixError, match="is a link, so it is not written"):
        Kept(metrics).get(("row",), lambda: 1)
    assert not settings.exists()
    settings.write_text('{"step": 1, "loss": 2.0}\n')
    (tmp_path / "loss.png").symlink_to(settings)
    plot_metrics(tmp_path)
    assert settings.read_text() == '{"step": 1, "loss": 2.0}\n'
    assert not (tmp_path / "loss.png").is_symlink()


def test_a_link_among_abandoned_caches_is_left_alone(
    caches: dict[str, Callable[[KB], object]],
    toy: KB,
    precious: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_cache, "_ABANDONED", -1.0)
    before = contents(precious)
    (toy.folder / "tokens").mkdir()
    (toy.folder / "tokens" / "old.partial").symlink_to(precious)
    caches["tokens"](toy)
    assert contents(precious) == before


def test_an_index_of_vectors_is_not_saved_where_a_link_leads(
    tmp_path: Path, precious: Path
) -> None:
    before = contents(precious)
    (tmp_path / "hnsw").symlink_to(precious)
    vectors = np.eye(4, dtype=np.float32)
    store = index.VectorStore(vectors, np.arange(4, dtype=np.int32), tmp_path)
    assert len(store.index("hnsw").owner) == 4
    assert contents(precious) == before


def test_a_folder_that_was_moved_away_is_replaced_and_not_what_it_leads_to(
    tmp_path: Path, precious: Path
) -> None:
    before = contents(precious)
    for name in ("new", "to"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    (tmp_path / "to.replaced").symlink_to(precious)
    publish(tmp_path / "new", tmp_path / "to")
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["new"]
    assert not (tmp_path / "to.replaced").is_symlink() and contents(precious) == before


def test_a_kb_spills_to_a_folder_of_its_own(
    toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone on the machine could make `prixlm-PID`, or a link of that name, before us."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = []
    kbs = [KB(toy.folder), KB(toy.folder)]
    for kb in kbs:
        [(spill,)] = kb.query("SELECT current_setting('temp_directory')").fetchall()
        folders.append(Path(spill))
        assert stat.S_IMODE(Path(spill).stat().st_mode) == 0o700
    assert folders[0] != folders[1]
    del kb
    kbs.clear()
    gc.collect()
    assert not any(folder.exists() for folder in folders)
