"""What can be asked about a KB, and what must not be: rankers, and where they come from.

evidence = gather_evidence(kb, model="model", graph="graph")
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prixlm.decoding.completer import Completer
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphRanker, load_graph
from prixlm.rankers.links import Transfer
from prixlm.rankers.lm import ModelRanker
from prixlm.rankers.rules import Rules
from prixlm.types import Progress


@dataclass(frozen=True)
class Evidence:
    """What can be asked of a KB."""

    rankers: list[Ranker]
    completer: Completer | None
    identity: str  # of what was trained: the parts of a run belong to it

    def reading(self, kb: KB, splits: Sequence[str]) -> "Evidence":
        """The same, with links and rules that carry over the facts of other splits."""
        fresh = {ranker.name: ranker for ranker in _counted(kb, splits)}
        return replace(self, rankers=[fresh.get(one.name, one) for one in self.rankers])

    def place(self, kind: type) -> int | None:
        """Where the first ranker of a kind stands."""
        return next((i for i, one in enumerate(self.rankers) if isinstance(one, kind)), None)


def gather_evidence(
    kb: KB,
    model: Path | str | None = None,
    graph: Path | str | None = None,
    progress: Progress | None = None,
    splits: Sequence[str] = ("train",),
) -> Evidence:
    """Links, rules, and what was trained on this KB; what was trained on another is refused.

    splits: whose facts links and rules may carry over.
    """
    rankers: list[Ranker] = []
    completer, identity = None, []
    if model is not None:
        completer = Completer(model, kb, progress)
        check_model(completer)
        rankers.append(ModelRanker(completer, search="beam", name="Prix-LM"))
        identity.append(completer.identity())
    rankers += _counted(kb, splits)
    if graph is not None:
        found = load_graph(graph, kb)
        rankers.append(GraphRanker(kb, found, name="graph"))
        weights = b"".join(part.detach().numpy().tobytes() for part in (found.node, found.bias))
        identity.append(hashlib.sha256(weights).hexdigest())
    return Evidence(rankers, completer, " ".join(identity))


def _counted(kb: KB, splits: Sequence[str]) -> list[Ranker]:
    """What nothing has to be trained for."""
    links = [Transfer(kb, splits=splits), Transfer(kb, "lookup", splits=splits)]
    return [*links, Rules(kb, "paths", splits=splits), Rules(kb, splits=splits)]


def check_model(completer: Completer) -> None:
    """A model that may have learnt the valid facts would be far too sure of itself."""
    check_trained(completer.kb, completer.model.settings.trained, "model")


def check_trained(kb: KB, trained: dict[str, Any], what: str) -> None:
    """Refuse what was trained on anything but this KB's own train facts and links."""
    names = ("kb_fingerprint", "links_of_kb")
    seen = {trained[name] for name in names if name in trained} | {*trained.get("earlier_kbs", ())}
    if seen == {kb.fingerprint()}:
        return
    if (kb.manifest.split or {}).get("from") in seen:
        raise PrixError(
            f"the {what} was trained on the KB that {kb.folder} is a split of, and so on the facts "
            "that its confidence would be fitted on: train one on the split itself."
        )
    raise PrixError(
        f"the {what} was trained on another KB than {kb.folder}, perhaps on the facts that its "
        f"confidence would be fitted on: train one on {kb.folder} alone."
    )
