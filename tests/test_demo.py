"""The demo, with settings small enough for a test: every step, its output, resuming it."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError
from prixlm.demo import INTO, LEVEL, DemoConfig, run_demo
from prixlm.entities.mirror import MirrorConfig
from prixlm.lm.compact import CompactConfig
from prixlm.rankers.complex import GraphConfig
from prixlm.rankers.fusion import FusionConfig
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig
from prixlm.training.sampler import SupplyConfig
from tests.helpers import Ran, run_prixlm

SMALL = DemoConfig(
    langs=("en", *INTO),
    graph=GraphConfig(rank=8, epochs=1),
    pretrain=PretrainConfig(
        base="compact",
        epochs=1,
        batch=512,
        supply=SupplyConfig(links="none"),
        compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
        training=TrainingConfig(lr=2e-2, log_every=1, checkpoints=(1.0,)),
    ),
    letters=CompactConfig(vocab=600, width=16, layers=1, heads=2),
    mirror=MirrorConfig(positives="links", number=64, batch=32, epochs=1),
    fusion=FusionConfig(facts=40, depth=3, iterations=10, smallest=10, parts=2),
    tried=5,
    relations=("continent",),
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """Run `prixlm demo` once; return its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prixlm.demo.DemoConfig", lambda: SMALL)
        return folder, run_prixlm("demo", "--to", folder)


@pytest.fixture(scope="module")
def resumed(demo: tuple[Path, Ran]) -> dict[str, Any]:
    """Resume the demo as if it had stopped before the page; return what `--json` prints."""
    folder, _ = demo
    (folder / "report" / "report.html").unlink()
    proposals = folder / "work" / "proposals" / "proposals.parquet"
    before = proposals.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prixlm.demo.DemoConfig", lambda: SMALL)
        patch.setattr("prixlm.demo.import_kb", None)  # nothing is imported again
        values = json.loads(run_prixlm("demo", "--to", folder, "--json").stdout)
    return {**values, "same proposals": proposals.read_bytes() == before}


def facts_of(values: dict[str, Any], lang: str, *, everywhere: bool) -> dict[str, Any]:
    """Return the facts of a language that were hidden in one of the two ways."""
    [part] = [
        part
        for part in values["facts"]
        if part["lang"] == lang and part["everywhere"] is everywhere
    ]
    return dict(part)


def test_the_demo_says_in_a_line_what_was_hidden_and_what_came_back(
    demo: tuple[Path, Ran],
) -> None:
    _, ran = demo
    assert ran.returncode == 0, ran.stderr
    for name in ("Estonian", "Telugu", "Lao"):
        for where in (f"in {name} only: unasked", "in every language: asked for"):
            line = rf"{name}: (\d+) facts hidden {where}, (\d+) came back right at 0.8 or more"
            [(hidden, right)] = re.findall(line, ran.stdout)
            assert 100 < int(hidden) < 1000 and int(right) < int(hidden)
    assert ran.stdout.count("Evidence that ranks them first: rules ") == 3


def test_the_demo_looks_for_names_across_scripts(demo: tuple[Path, Ran]) -> None:
    _, ran = demo
    line = r"(\w+): (\d+) names without a link, each looked for among 1,614 English names"
    found = dict(re.findall(line, ran.stdout))
    assert found.keys() == {"Estonian", "Telugu", "Lao"}
    assert all(100 < int(number) < 400 for number in found.values())


def test_the_last_lines_say_how_to_open_the_pages(demo: tuple[Path, Ran]) -> None:
    folder, ran = demo
    *_, took, address, _, serve = ran.stdout.splitlines()
    assert re.match(r"Took \d+ s\.", took)
    assert address == (folder / "report" / "report.html").as_uri()
    assert shlex.split(serve)[1:] == ["serve", str(folder / "work")]


def test_the_page_has_the_same_lines_as_the_terminal(demo: tuple[Path, Ran]) -> None:
    folder, ran = demo
    page, markdown = (
        (folder / "report" / f"report.{suffix}").read_text("utf-8") for suffix in ("html", "md")
    )
    assert "<script" not in page and 'src="http' not in page
    lines = re.findall(r"^  (\w+: .*)$", ran.stdout, re.MULTILINE)
    assert len(lines) == 9
    for line in lines:
        assert f"<li>{line}" in page and line in markdown
    for name in ("facts.nq", "facts.tsv", "report/report.md", "report/report.json"):
        assert (folder / name).stat().st_size > 100


def test_counts_agree_with_a_plain_reading_of_proposals_and_facts(
    demo: tuple[Path, Ran], resumed: dict[str, Any]
) -> None:
    folder, _ = demo
    split = KB(folder / "split")
    proposals = pq.read_table(folder / "work" / "proposals" / "proposals.parquet").to_pylist()
    facts = "SELECT subject, relation, object FROM triples"
    hidden = set(split.query(f"{facts} WHERE split = 'test' AND lang = 'te'").fetchall())
    stated = set(split.query(facts).fetchall())
    alone, inferred = (facts_of(resumed, "te", everywhere=value) for value in (False, True))
    assert alone["hidden"] + inferred["hidden"] == len(hidden)
    counts = ((False, (alone["right"], alone["wrong"])), (True, inferred["unasked"]))
    for everywhere, (right, wrong) in counts:
        sure = {
            (row["subject"], row["relation"], row["object"])
            for row in proposals
            if row["lang"] == "te"
            and row["confidence"] >= LEVEL
            and bool(row["origin"]) != everywhere
        }
        assert right == len(sure & hidden) and wrong == len(sure - stated)
    assert alone["right"] > 20


def test_facts_hidden_everywhere_are_stated_in_no_language_and_some_come_back(
    demo: tuple[Path, Ran], resumed: dict[str, Any]
) -> None:
    folder, _ = demo
    split, whole = KB(folder / "split"), KB(folder / "work" / "everything")
    facts = (
        "SELECT s.concept, t.relation, o.concept FROM triples t "
        "JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object WHERE t.split = "
    )
    known = set(whole.query(f"{facts} 'train'").fetchall())
    hidden = split.query(f"{facts} 'test' AND t.lang = 'lo'").fetchall()
    part = facts_of(resumed, "lo", everywhere=True)
    assert part["hidden"] == sum(fact not in known for fact in hidden) > 100
    assert 10 < part["right"] < part["hidden"] and part["wrong"] < part["right"]
    assert 0 < max(part["first"].values()) <= part["right"]
    assert part["usual"] <= part["right"] + part["wrong"]


def test_an_interrupted_demo_resumes_and_prints_every_result_as_json(
    demo: tuple[Path, Ran], resumed: dict[str, Any]
) -> None:
    folder, ran = demo
    assert resumed["same proposals"]
    assert len(resumed["facts"]) == 6 and len(resumed["names"]) == 3
    assert all(part["text"] in ran.stdout for part in resumed["facts"] + resumed["names"])
    assert resumed["page"] == (folder / "report" / "report.html").as_uri()
    assert resumed["timings"]["encoder"] > 0
    assert resumed["tables"] and resumed["proposals"]["trials"]


def test_a_finished_demo_is_made_again(
    demo: tuple[Path, Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = demo

    def stop(*_: object, **__: object) -> None:
        raise PrixError("imported again")

    copy = folder.parent / "finished"
    (copy / "report").mkdir(parents=True)
    for name in ("timings.json", "report/report.html"):
        (copy / name).write_bytes((folder / name).read_bytes())
    monkeypatch.setattr("prixlm.demo.import_kb", stop)
    with pytest.raises(PrixError, match="imported again"):
        run_demo(copy, config=replace(SMALL))
    assert not (copy / "report").exists()


def test_the_demo_leaves_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(PrixError, match="has a folder work that was not made by a demo"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
