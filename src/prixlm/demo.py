"""The demo: the main job on the embedded world KB, in a few minutes on two cores.

DEMO/kb      the world KB        DEMO/split   its train, valid and test triples
DEMO/model   a small Prix-LM pretrained on the split; then it is asked what it was not told
"""

import shutil
from dataclasses import replace
from pathlib import Path

from prixlm.complete import Completer, SearchConfig
from prixlm.errors import PrixError
from prixlm.facts import Asked, Query
from prixlm.kb.importer import import_kb
from prixlm.kb.splits import SplitConfig, split_kb
from prixlm.kb.store import KB
from prixlm.model import PrixLM
from prixlm.pretrain import PretrainConfig, pretrain
from prixlm.training import Progress

_Question = tuple[Query, list[str], list[str]]
"""What is asked, what is true, and what else is true but was trained on."""
LANGUAGES = ("et", "te", "lo", "th", "ja", "ru")
_FACTS = """
    SELECT s.name, t.relation, list(DISTINCT o.name) FILTER (t.split = 'test'),
        list(DISTINCT o.name) FILTER (t.split <> 'test')
    FROM (
        SELECT DISTINCT subject, relation FROM triples WHERE lang = $lang AND split = 'test'
    ) asked JOIN triples t USING (subject, relation)
    JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object
    GROUP BY s.name, t.relation, t.subject
    ORDER BY md5(CAST(t.subject * 1000 + t.relation AS VARCHAR)) LIMIT $number
"""
_NAMES = """
    SELECT a.name, list(DISTINCT b.name), NULL
    FROM entities a JOIN entities b ON b.concept = a.concept
    WHERE a.lang = 'en' AND b.lang = $lang GROUP BY a.name, a.concept
    ORDER BY md5(CAST(a.concept AS VARCHAR)) LIMIT $number
"""


def run_demo(
    to: Path, progress: Progress | None = None, config: PretrainConfig | None = None
) -> tuple[KB, PrixLM]:
    """Import, split, pretrain; one that was stopped goes on, a finished one is made anew."""
    config = config or PretrainConfig.preset("demo")
    to.mkdir(parents=True, exist_ok=True)
    if (to / "model" / "model.safetensors").exists() or not (to / "split").is_dir():
        kb = import_kb([], to / "kb", format="world", overwrite=True, progress=progress)
        split_kb(kb, to / "split", SplitConfig(), overwrite=True)
        if (to / "model" / "checkpoints").is_dir():
            shutil.rmtree(to / "model")
    return KB(to / "kb"), pretrain(KB(to / "split"), to / "model", config, progress)


def ask_demo(
    to: Path, model: PrixLM, progress: Progress | None = None, number: int = 25
) -> tuple[list[Asked], list[Asked]]:
    """Test facts, which the model has not seen, completed; English names in other scripts.

    Other objects that the KB has for a fact's subject and relation are taken out of its answers.
    """
    completer = Completer(model, KB(to / "split"), progress)
    facts: list[_Question] = []
    names: list[_Question] = []
    for lang in LANGUAGES:
        asked = {"lang": lang, "number": number}
        relations = completer.relation_names(lang)
        for subject, relation, truth, others in completer.kb.query(_FACTS, asked).fetchall():
            facts.append((Query(lang, subject, relations[relation]), truth, others or []))
        for name, truth, _ in completer.kb.query(_NAMES, asked).fetchall():
            names.append((Query("en", name, None, lang), truth, []))
    return _ask(completer, facts, progress), _ask(completer, names, progress)


def _ask(completer: Completer, asked: list[_Question], progress: Progress | None) -> list[Asked]:
    found: list[Asked] = []
    for start in range(0, len(asked), 16):
        part = asked[start : start + 16]
        most = 10 + max(len(others) for _, _, others in part)
        answers = completer.answer([query for query, _, _ in part], SearchConfig(k=most))
        for (query, truth, others), one in zip(part, answers, strict=True):
            new = [] if isinstance(one, PrixError) else [a for a in one if a.name not in others]
            ranked = [replace(answer, rank=rank) for rank, answer in enumerate(new[:10], start=1)]
            found.append(Asked(query, truth, ranked))
        if progress is not None:
            progress("ask", len(found), len(asked))
    return found
