"""Build and complete multilingual knowledge bases with a language model: Prix-LM.

    import prixlm

    kb = prixlm.import_kb([], "world", format="world")
    kb.find("Suomi", "fi")

The public names are the ones in `__all__`; they are imported when they are first used, so that
`import prixlm` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prixlm.decoding.completer import Completer, SearchConfig
    from prixlm.errors import PrixError
    from prixlm.importers.run import import_kb
    from prixlm.kb.split import SplitConfig, known_objects, split_kb, unseen_triples
    from prixlm.kb.store import KB
    from prixlm.lm.model import PrixLM
    from prixlm.training.pretrain import PretrainConfig
    from prixlm.types import Answer, Entity, Link, Query, Triple

__all__ = [
    "KB",
    "Answer",
    "Completer",
    "Entity",
    "Link",
    "PretrainConfig",
    "PrixError",
    "PrixLM",
    "Query",
    "SearchConfig",
    "SplitConfig",
    "Triple",
    "import_kb",
    "known_objects",
    "split_kb",
    "unseen_triples",
]

_HOMES = {
    "prixlm.decoding.completer": ["Completer", "SearchConfig"],
    "prixlm.errors": ["PrixError"],
    "prixlm.types": ["Answer", "Entity", "Link", "Query", "Triple"],
    "prixlm.importers.run": ["import_kb"],
    "prixlm.kb.split": ["SplitConfig", "known_objects", "split_kb", "unseen_triples"],
    "prixlm.kb.store": ["KB"],
    "prixlm.lm.model": ["PrixLM"],
    "prixlm.training.pretrain": ["PretrainConfig"],
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'prixlm' has no attribute {name!r}")
