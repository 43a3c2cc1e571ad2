"""Build and complete multilingual knowledge bases with a language model: Prix-LM.

The public names are those of `__all__`. Eight verbs do the work:

- `import_kb` reads dumps into a KB folder, `split_kb` holds facts out;
- `pretrain` trains a Prix-LM, `mirror` an entity encoder, `train_graph` a graph embedding;
- `enrich` proposes facts that a KB lacks, `export` writes proposals for other tools;
- `run_job` does all of this from a dump to proposals, in one work folder.

Each takes a config with the defaults of the paper, and each resumes after a stop. The nouns are the
KB and its parts, the models, and the classes that ask them.

Example:
    >>> import prixlm
    >>> kb = prixlm.import_kb([], "world", format="world", langs=["en", "fi"])
    >>> [entity.name for entity in kb.find("Suomi", "fi")]
    ['Suomi']

Names are imported when they are first used: `import prixlm` does not import numpy or torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prixlm.decoding.completer import Completer, SearchConfig
    from prixlm.engine.jobs import EngineConfig
    from prixlm.enrichment.job import JobConfig, run_job
    from prixlm.enrichment.run import EnrichConfig, enrich
    from prixlm.entities.encoder import EntityEncoder
    from prixlm.entities.linker import EntityLinker
    from prixlm.entities.mirror import MirrorConfig, mirror
    from prixlm.errors import PrixError
    from prixlm.importers.run import import_kb
    from prixlm.kb.split import SplitConfig, split_kb
    from prixlm.kb.store import KB
    from prixlm.linking.mentions import MentionLinker
    from prixlm.lm.model import PrixLM
    from prixlm.proposals.export import ExportConfig, export
    from prixlm.rankers.complex import GraphConfig, train_graph
    from prixlm.training.pretrain import PretrainConfig, pretrain
    from prixlm.types import Answer, Entity, Link, Query, Triple

__all__ = [
    "KB",
    "Answer",
    "Completer",
    "EngineConfig",
    "EnrichConfig",
    "Entity",
    "EntityEncoder",
    "EntityLinker",
    "ExportConfig",
    "GraphConfig",
    "JobConfig",
    "Link",
    "MentionLinker",
    "MirrorConfig",
    "PretrainConfig",
    "PrixError",
    "PrixLM",
    "Query",
    "SearchConfig",
    "SplitConfig",
    "Triple",
    "enrich",
    "export",
    "import_kb",
    "mirror",
    "pretrain",
    "run_job",
    "split_kb",
    "train_graph",
]

_HOMES = {
    "prixlm.decoding.completer": ("Completer", "SearchConfig"),
    "prixlm.proposals.export": ("ExportConfig", "export"),
    "prixlm.engine.jobs": ("EngineConfig",),
    "prixlm.enrichment.job": ("JobConfig", "run_job"),
    "prixlm.enrichment.run": ("EnrichConfig", "enrich"),
    "prixlm.entities.encoder": ("EntityEncoder",),
    "prixlm.entities.linker": ("EntityLinker",),
    "prixlm.linking.mentions": ("MentionLinker",),
    "prixlm.entities.mirror": ("MirrorConfig", "mirror"),
    "prixlm.errors": ("PrixError",),
    "prixlm.importers.run": ("import_kb",),
    "prixlm.kb.split": ("SplitConfig", "split_kb"),
    "prixlm.kb.store": ("KB",),
    "prixlm.lm.model": ("PrixLM",),
    "prixlm.rankers.complex": ("GraphConfig", "train_graph"),
    "prixlm.training.pretrain": ("PretrainConfig", "pretrain"),
    "prixlm.types": ("Answer", "Entity", "Link", "Query", "Triple"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    for module, names in _HOMES.items():
        if name in names:
            try:
                return getattr(importlib.import_module(module), name)
            except ModuleNotFoundError as error:
                from prixlm.errors import missing_extra

                hint = missing_extra(error)
                if hint is None:
                    raise
                raise ModuleNotFoundError(f"prixlm.{name}: {hint}", name=error.name) from None
    raise AttributeError(f"module 'prixlm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
