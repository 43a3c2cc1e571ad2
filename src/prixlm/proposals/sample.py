"""A random sample of proposals, to be marked by a person: how good is a run really?

    draw_sample("work/proposals", "work/sample", number=200, seed=0)

The sample is a proposals folder of its own. So the page, the sheet and the export read it, and its
marks do not mix with those of the whole. Each language has the same number of facts, or all that it
has. Within a language every fact has the same chance, whatever its confidence, so the share that a
reviewer accepts estimates the precision of the language's proposals.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import disk_errors, whole_folder
from prixlm.proposals.tables import (
    ANSWERABLE_FILE,
    FUSION_FOLDER,
    read_manifest,
    table_path,
    write_manifest,
    write_table,
)
from prixlm.remote import check_local

_FITTED = [f"{FUSION_FOLDER}/{name}" for name in ("fusion.skops", "fusion.json", "seconds.json")]
"""What `rankers.fusion` writes."""


def draw_sample(
    folder: Path | str, to: Path | str, number: int = 200, seed: int = 0
) -> dict[str, int]:
    """Write a sample of the facts of a proposals folder to another; return counts by language.

    Proposed names and links are not drawn.
    """
    folder, to = Path(folder), Path(to)
    check_local(to)
    if number < 1:
        raise PrixError(f"--number {number}: expected 1 or more.")
    manifest = read_manifest(folder)
    if to.exists() or to.is_symlink():
        raise PrixError(f"{to} is already there: name another folder for the sample.")
    path = table_path(folder, "facts")
    lang = np.array(pq.read_table(path, columns=["lang"])["lang"].to_pylist(), str)
    langs, counts = np.unique(lang, return_counts=True)
    if not len(langs):
        raise PrixError(f"{folder} has no proposed facts to draw from.")
    generator = np.random.default_rng(seed)
    chosen = share_evenly(dict(zip(langs.tolist(), counts.tolist(), strict=True)), number)
    rows = [
        generator.permutation(np.flatnonzero(lang == code))[:size] for code, size in chosen.items()
    ]
    # In the order of the whole: by language, the most confident first.
    table = pq.read_table(path).take(np.sort(np.concatenate(rows)))
    ids = pa.array(np.arange(table.num_rows))
    table = table.set_column(0, table.schema.field("id"), ids)
    with disk_errors(to), whole_folder(to) as temporary:
        write_table(temporary, "facts", table)
        _copy_fitted(folder, temporary)
        write_manifest(temporary, _describe(manifest, table, counts.sum(), seed))
    return chosen


def share_evenly(available: Mapping[str, int], number: int) -> dict[str, int]:
    """Return how many of each group to draw: as equal as the groups allow, `number` in all."""
    chosen = dict.fromkeys(available, 0)
    left = min(number, sum(available.values()))
    # What a small group cannot give is shared among the others, in their order.
    while left:
        open_groups = [name for name in available if chosen[name] < available[name]]
        each, extra = divmod(left, len(open_groups))
        for place, name in enumerate(open_groups):
            taken = min(each + (place < extra), available[name] - chosen[name])
            chosen[name] += taken
            left -= taken
    return chosen


def _copy_fitted(folder: Path, to: Path) -> None:
    """Copy the fitted confidence, with which the page explains a proposal."""
    (to / FUSION_FOLDER).mkdir()
    for name in (*_FITTED, ANSWERABLE_FILE):
        path = folder / name
        if path.is_symlink() or path.parent.is_symlink():
            # In a folder of others: a file of this machine would be in a sample that is shared.
            raise PrixError(f"{path} is a link, so it is not copied: put the file itself there.")
        if path.is_file():
            shutil.copyfile(path, to / name)
    if not any((to / FUSION_FOLDER).iterdir()):
        (to / FUSION_FOLDER).rmdir()


def _describe(manifest: dict[str, Any], table: pa.Table, total: int, seed: int) -> dict[str, Any]:
    """Return the manifest of the sample: that of the run, with the sample's own counts."""
    counts: dict[str, dict[str, int]] = {}
    for lang, why in zip(table["lang"].to_pylist(), table["why"].to_pylist(), strict=True):
        kinds = counts.setdefault(lang, {})
        kinds[why] = kinds.get(why, 0) + 1
    kept = {key: value for key, value in manifest.items() if key not in ("labels", "links")}
    return kept | {"proposals": counts, "sample": {"drawn_from": int(total), "seed": seed}}
