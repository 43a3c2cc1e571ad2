"""A small KB with proposals for the tests of the pages: several scripts, and names that attack."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from prixlm.importers.run import import_kb
from prixlm.kb.store import KB
from tests.helpers import fact_row, label_row, link_row, make_proposals

SCRIPT = '<script>window.broken = 1</script><img src=x onerror="window.broken=1">\'&amp;'
OVERRIDE = "abc\u202edcba\u2066"
LONG = "Langer名" * 1500
"""About 12 kB, without a space to break at."""
RELATIONS = {"capital of": "en", "located in": "en"}

_FACTS = f"""\
en\tHelsinki\tcapital of\tFinland
en\tCairo\tcapital of\tEgypt
en\tHyderabad\tlocated in\tIndia
en\tFinland\tlocated in\tEurope
fi\tHelsinki\tlocated in\tSuomi
ar\tالقاهرة\tlocated in\tمصر
te\tహైదరాబాదు\tcapital of\tతెలంగాణ
te\tభారత దేశము\tlocated in\tఆసియా
en\t{SCRIPT}\tlocated in\tEurope
en\t{OVERRIDE}\tlocated in\tEurope
en\t{LONG}\tlocated in\tEurope
"""
_LINKS = """\
en\tHelsinki\tfi\tHelsinki
en\tFinland\tfi\tSuomi
en\tCairo\tar\tالقاهرة
en\tEgypt\tar\tمصر
en\tHyderabad\tte\tహైదరాబాదు
en\tIndia\tte\tభారత దేశము
"""


_DESCRIPTIONS = f"""\
lang\tname\tdescription
en\tHelsinki\tcapital of Finland {SCRIPT}
en\tEurope\t{OVERRIDE}
ar\tمصر\tدولة في شمال أفريقيا
"""


def make_kb(folder: Path) -> KB:
    """Import the KB."""
    (folder / "facts.tsv").write_text(_FACTS, "utf-8")
    (folder / "links.tsv").write_text(_LINKS, "utf-8")
    (folder / "descriptions.tsv").write_text(_DESCRIPTIONS, "utf-8")
    files = [folder / f"{name}.tsv" for name in ("facts", "links", "descriptions")]
    return import_kb(files, folder / "kb", max_name=20_000)


class Names:
    """Ids, keys and concepts of the KB by language and name."""

    def __init__(self, kb: KB) -> None:
        table = pq.read_table(kb.path("entities")).to_pylist()
        self.rows = {(row["lang"], row["name"]): row for row in table}
        self.relations = {
            row["name"]: row for row in pq.read_table(kb.path("relations")).to_pylist()
        }

    def fact(self, number: int, lang: str, *names: str, **values: object) -> dict[str, object]:
        """Return a proposed fact: subject, relation, object."""
        subject, relation = self.rows[lang, names[0]], self.relations[names[1]]
        thing = self.rows[lang, names[2]]
        row = fact_row(
            number,
            lang=lang,
            subject=subject["id"],
            subject_key=subject["key"],
            subject_name=subject["name"],
            relation=relation["id"],
            relation_key=relation["key"],
            relation_name=relation["name"],
            relation_is_named=False,
            object=thing["id"],
            object_key=thing["key"],
            object_name=thing["name"],
            origin=["en"],
            model_score=None,
            model_rank=None,
            graph_rank=1,
            runner_up=None,
            runner_up_confidence=None,
        )
        return row | values


def make_served_proposals(kb: KB, folder: Path, num_more: int = 0) -> Path:
    """Write proposals of all three tables for the KB. num_more: further facts, all alike."""
    names = Names(kb)
    facts = [
        names.fact(0, "ar", "القاهرة", "capital of", "مصر", confidence=0.99),
        names.fact(1, "te", "హైదరాబాదు", "located in", "భారత దేశము", confidence=0.97),
        names.fact(2, "fi", "Helsinki", "capital of", "Suomi", confidence=0.96),
        names.fact(3, "en", SCRIPT, "capital of", "Finland", confidence=0.9),
        names.fact(4, "en", "Helsinki", "located in", OVERRIDE, confidence=0.8),
        names.fact(5, "en", LONG, "capital of", LONG, confidence=0.7),
    ]
    facts += [
        names.fact(6 + n, "en", "Cairo", "located in", "Europe", confidence=0.69 - n * 1e-4)
        for n in range(num_more)
    ]
    cairo = names.rows["en", "Cairo"]
    label = label_row(
        lang="fi", concept=cairo["concept"], key=cairo["key"], name="Kairo", confidence=0.6
    )
    europe, egypt = names.rows["en", "Europe"], names.rows["ar", "مصر"]
    link = link_row(
        lang="ar",
        entity=egypt["id"],
        key=egypt["key"],
        name=egypt["name"],
        other_lang="en",
        other=europe["id"],
        other_key=europe["key"],
        other_name=europe["name"],
        confidence=0.55,
    )
    make_proposals(folder, facts, [label], [link])
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    manifest["kb"] = kb.fingerprint()
    bins = [[0.2, 0.25, 20], [0.6, 0.5, 30], [0.95, 0.97, 50]]
    manifest["trials"] = [
        {
            "method": "fused",
            "lang": "fi",
            "subset": "all",
            "held_out": 100,
            "right": 0.7,
            "reliability": {"number": 100, "ece": 0.03, "brier": 0.1, "auroc": 0.8, "bins": bins},
            "levels": [
                {"level": 0.5, "proposed": 80, "precision": 0.8, "recall": 0.7},
                # Nothing is that sure, and JSON has no NaN.
                {"level": 0.95, "proposed": 0, "precision": None, "recall": 0.0},
            ],
            "average_precision": 0.8,
        }
    ]
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return folder
