"""The folders of a server, opened: the KB and its indexes, the proposals, and models when asked.

    opened = Opened(Folders(work=Path("work")))
    opened.names.search("Helsinki")
    opened.stamp == stamp(opened.folders)       # False once a folder was replaced

Nothing is opened again here: when a folder changes, the workbench makes a new `Opened`.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from prixlm.entities.names import NameIndex, build_names
from prixlm.errors import PrixError
from prixlm.kb.lookup import Lookup, build_lookup
from prixlm.kb.store import KB
from prixlm.proposals.tables import FUSION_FOLDER, check_ids, find_proposals, read_manifest
from prixlm.proposals.work import STATE_FILE, work_folders, work_kb
from prixlm.service.answering.concepts import Concepts
from prixlm.service.answering.reviewing import Review
from prixlm.service.batching import Batcher
from prixlm.types import Answer, Progress, Query

if TYPE_CHECKING:  # these bring torch, which a server without a model does not need
    from prixlm.enrichment import asking
    from prixlm.entities.matching import Matcher

logger = logging.getLogger(__name__)
T = TypeVar("T")

_MODEL_BATCH = 16
"""Questions that the model answers together: more would be cut into as many for one search."""
_EVIDENCE_BATCH = 64
"""Questions that all evidence answers together; those of each language are one call."""
_Question = tuple[tuple[str, int, int], int]
"""Language, subject and relation, and the number of answers."""
_ModelQuestion = tuple[Query, int]
"""A question to the model, and the number of answers."""


@dataclass(frozen=True, kw_only=True)
class Folders:
    """What a server was given."""

    work: Path | None = None  # of `enrich`: the KB and the proposals are in it
    kb: Path | None = None
    proposals: Path | None = None
    model: Path | None = None
    encoder: Path | None = None
    graph: Path | None = None

    def __post_init__(self) -> None:
        if (self.work is None) == (self.kb is None):
            raise PrixError("name a work folder of `prixlm enrich`, or pass --kb KB.")

    def find_kb(self) -> KB:
        """Open the KB."""
        if self.work is not None:
            return work_kb(self.work)
        assert self.kb is not None
        return KB(self.kb)

    def find_proposals(self) -> Path | None:
        """Return the proposals folder; None if there is none (yet)."""
        if self.proposals is not None:
            return find_proposals(self.proposals)
        nested = None if self.work is None else self.work / "proposals"
        return nested if nested is not None and (nested / "manifest.json").is_file() else None


class Opened:
    """The folders as they were at one moment. What takes time to load is loaded when asked for."""

    def __init__(self, folders: Folders, progress: Progress | None = None) -> None:
        """Open the folders; the indexes of a new KB are built now, which may take minutes."""
        before = stamp(folders)
        self.folders = folders
        self.kb = folders.find_kb()
        self.lookup: Lookup = build_lookup(self.kb, progress)
        self.names: NameIndex = build_names(self.kb, progress)
        self.concepts = Concepts(self.lookup)
        self.proposals = folders.find_proposals()
        self.manifest: dict[str, Any] = {}
        self.review: Review | None = None
        if self.proposals is not None:
            self.manifest = read_manifest(self.proposals)
            made_for = (self.manifest["kb"], self.manifest.get("fitted_on_kb"))
            if self.kb.fingerprint() not in made_for:
                raise PrixError(f"{self.proposals} has proposals for another KB.")
            sizes = (self.kb.num_entities, self.kb.num_relations, self.lookup.num_concepts)
            check_ids(self.proposals, *sizes)
            try:
                self.review = Review(self.proposals, self.concepts, self.names)
            except (UnicodeDecodeError, pa.ArrowInvalid) as error:
                raise PrixError(
                    f"the tables of {self.proposals} cannot be read ({error}): run `prixlm enrich` "
                    "again."
                ) from None
        found = {} if folders.work is None else work_folders(folders.work)
        self.model = folders.model or found.get("model")
        self.encoder = folders.encoder or found.get("encoder")
        self.stamp = stamp(folders)
        if self.stamp != before:
            raise PrixError("the folders changed while they were opened. Try again.")
        self._made: dict[str, Any] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._loading: threading.Thread | None = None

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return a value that is made at the first call; who asks meanwhile waits for it."""
        if name not in self._made:
            with self._locks[name]:
                if name not in self._made:
                    self._made[name] = make()
        return cast(T, self._made[name])

    def is_made(self, name: str) -> bool:
        """Tell whether a value is there already."""
        return name in self._made

    def has_evidence(self) -> bool:
        """Tell whether the proposals have a fitted confidence that could be loaded so far."""
        if self.proposals is None or self._made.get("asker", True) is None:
            return False
        return (self.proposals / FUSION_FOLDER).is_dir()

    def asker(self) -> "Batcher[_Question, asking.Asked] | None":
        """Return the queue of all evidence, which takes seconds to load; None without it."""
        return self.once("asker", self._open_asker) if self.has_evidence() else None

    def is_loading(self) -> bool:
        """Tell whether all evidence will be there in a moment; begin to load it if nobody did."""
        if self.is_made("asker") or not self.has_evidence():
            return False
        with self._locks["loading"]:
            if self._loading is None and not self.is_made("asker"):
                self._loading = threading.Thread(target=self._load_asker, daemon=True)
                self._loading.start()
        return True

    def _load_asker(self) -> None:
        try:
            self.asker()
        except Exception:  # a damaged file can be wrong in any way; nobody waits for the answer
            logger.exception("the evidence cannot be loaded")
            self.once("asker", lambda: None)

    def _open_asker(self) -> "Batcher[_Question, asking.Asked] | None":
        assert self.proposals is not None
        try:
            from prixlm.enrichment.asking import Asker

            asker = Asker.open(
                self.proposals,
                kb=self.kb.folder,
                model=self.folders.model,
                graph=self.folders.graph,
            )
        except (PrixError, ModuleNotFoundError) as error:
            logger.warning("facts cannot be completed with all evidence: %s", error)
            return None

        def ask(questions: list[_Question]) -> list["asking.Asked"]:
            most = max(limit for _, limit in questions)
            asked = asker.ask([question for question, _ in questions], most)
            return [
                replace(one, answers=one.answers[:limit])
                for one, (_, limit) in zip(asked, questions, strict=True)
            ]

        return Batcher(ask, most=_EVIDENCE_BATCH)

    def completer(self) -> "Batcher[_ModelQuestion, list[Answer]] | None":
        """Return the queue of the model, which is loaded now; None without a model."""
        return None if self.model is None else self.once("completer", self._open_completer)

    def _open_completer(self) -> "Batcher[_ModelQuestion, list[Answer]]":
        from prixlm.decoding.completer import Completer, SearchConfig

        assert self.model is not None
        completer = Completer(self.model, self.kb)

        def answer(asked: list[_ModelQuestion]) -> list[list[Answer]]:
            config = SearchConfig(k=max(limit for _, limit in asked))
            found = completer.answer([query for query, _ in asked], config)
            failed = [answers for answers in found if isinstance(answers, PrixError)]
            if failed:  # the batcher asks one by one, so it reaches its own asker
                raise failed[0]
            answers = cast(list[list[Answer]], found)
            return [one[:limit] for one, (_, limit) in zip(answers, asked, strict=True)]

        return Batcher(answer, most=_MODEL_BATCH)

    def matcher(self) -> "Matcher":
        """Return the matcher of names; a new KB's is fitted now, which may take a minute."""
        return self.once("matcher", self._open_matcher)

    def _open_matcher(self) -> "Matcher":
        from prixlm.entities.matching_fit import open_matcher

        linker = None
        if self.encoder is not None:
            from prixlm.entities.linker import EntityLinker

            linker = EntityLinker(self.encoder, self.kb)
        return open_matcher(self.lookup, self.names, linker)

    def close(self) -> None:
        """End the threads of the models, and close the marks."""
        if self.review is not None:
            self.review.close()
        for name in ("asker", "completer"):
            batcher = self._made.get(name)
            if batcher is not None:
                batcher.close()


def stamp(folders: Folders) -> tuple[object, ...]:
    """Return what changes when a folder is replaced: its manifests' place, time and size."""
    paths = [folder / "manifest.json" for folder in (folders.kb, folders.proposals) if folder]
    if folders.proposals is not None:
        paths.append(folders.proposals / "proposals" / "manifest.json")
    if folders.work is not None:
        work = folders.work
        paths += [work / STATE_FILE, work / "proposals" / "manifest.json"]
        paths += [work / name / "manifest.json" for name in ("kb", "everything")]
    found: list[object] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
