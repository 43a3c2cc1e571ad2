"""The opposite of a split: a KB folder whose known facts are all marked `train`.

    unsplit_kb(KB("split"), "everything")

A confidence needs held-out facts, but what finally answers questions may know them all: models for
the proposals are trained on this folder. Entities keep their ids.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from prixlm.engine.overwriting import check_target
from prixlm.engine.workspace import open_workspace
from prixlm.files import publish
from prixlm.kb.store import FORMAT, KB, SCHEMAS, SPLITS
from prixlm.kb.writer import write_table


def unsplit_kb(
    kb: KB, to: Path | str, splits: Sequence[str] = SPLITS, *, overwrite: bool = False
) -> KB:
    """Write a KB folder `to` in which the facts of some splits are train facts.

    The facts of all other splits stay as they are.
    """
    to = Path(to)
    counts: dict[str, dict[str, int]] = {}
    for lang, by_split in kb.manifest.counts["triples"].items():
        counts[lang] = {}
        for split, count in by_split.items():
            name = "train" if split in splits else split
            counts[lang][name] = counts[lang].get(name, 0) + count
    with open_workspace(check_target(to, [kb.folder], overwrite, FORMAT), {}) as work:
        out = work.empty_folder("kb")
        for table in SCHEMAS:
            if table != "triples" and kb.path(table).is_file():
                shutil.copyfile(kb.path(table), out / f"{table}.parquet")
        with write_table(out, "triples") as triples:
            for batch in kb.batches("triples"):
                columns = {name: batch.column(name) for name in batch.schema.names}
                is_joined = pc.is_in(columns["split"], pa.array(splits, pa.string()))
                columns["split"] = pc.if_else(is_joined, "train", columns["split"])
                triples.write(**columns)
        origin = {"method": "unsplit", "from": kb.fingerprint(), "splits": list(splits)}
        manifest = replace(
            kb.manifest, counts=kb.manifest.counts | {"triples": counts}, split=origin
        )
        manifest.write(out)
        publish(out, to)
        work.remove()
    return KB(to)
