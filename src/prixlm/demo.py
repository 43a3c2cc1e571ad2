"""The demo: the main job on the embedded world KB, in a few minutes on two cores.

DEMO/kb      the world KB        DEMO/split   its train, valid and test triples
DEMO/model   a small Prix-LM pretrained on the split
"""

import shutil
from pathlib import Path

from prixlm.kb.importer import import_kb
from prixlm.kb.splits import SplitConfig, split_kb
from prixlm.kb.store import KB
from prixlm.model import PrixLM
from prixlm.pretrain import PretrainConfig, pretrain
from prixlm.training import Progress


def run_demo(
    to: Path, progress: Progress | None = None, config: PretrainConfig | None = None
) -> tuple[KB, PrixLM]:
    """Import, split, pretrain; a demo that was there is made anew."""
    config = config or PretrainConfig.preset("demo")
    to.mkdir(parents=True, exist_ok=True)
    kb = import_kb([], to / "kb", format="world", overwrite=True, progress=progress)
    split = split_kb(kb, to / "split", SplitConfig(), overwrite=True)
    if (to / "model" / "checkpoints").is_dir():
        shutil.rmtree(to / "model")
    return kb, pretrain(split, to / "model", config, progress)
