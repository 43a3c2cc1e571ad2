"""The public API: the names of `prixlm`, and the examples of their docstrings, run end to end."""

import doctest
from functools import partial
from pathlib import Path

import pytest

import prixlm
from prixlm.rankers.fusion import FusionConfig
from tests.conftest import TOY_FACTS, TOY_LINKS

VERBS = ["import_kb", "split_kb", "pretrain", "mirror", "train_graph", "enrich", "export"]
VERBS += ["run_job"]
NOUNS = ["KB", "Entity", "Triple", "Link", "Query", "Answer", "PrixLM", "Completer"]
NOUNS += ["EntityEncoder", "EntityLinker", "MentionLinker", "PrixError"]
CONFIGS = [f"{name}Config" for name in ("Split", "Pretrain", "Mirror", "Graph", "Enrich", "Export")]
CONFIGS += ["SearchConfig", "JobConfig", "EngineConfig"]
FAST_FUSION = partial(FusionConfig, facts=150, depth=5, iterations=20, smallest=20)
"""The default takes ten seconds to fit."""


def test_the_public_names_are_these() -> None:
    assert sorted(prixlm.__all__) == sorted(VERBS + NOUNS + CONFIGS)
    assert not hasattr(prixlm, "known_objects") and not hasattr(prixlm, "unseen_triples")


def test_verbs_are_functions_and_nouns_are_classes() -> None:
    for name in VERBS:
        assert callable(getattr(prixlm, name)) and not isinstance(getattr(prixlm, name), type)
    for name in NOUNS + CONFIGS:
        assert isinstance(getattr(prixlm, name), type)


def test_every_public_name_has_a_docstring_with_an_example() -> None:
    without = [n for n in prixlm.__all__ if "Example:\n" not in (getattr(prixlm, n).__doc__ or "")]
    assert not without


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, verbs first: an example may load what the example of a verb has made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prixlm.enrichment.run.FusionConfig", FAST_FUSION)
    Path("facts.tsv").write_text(TOY_FACTS, "utf-8")
    Path("links.tsv").write_text(TOY_LINKS, "utf-8")
    texts = {name: getattr(prixlm, name).__doc__ for name in (*VERBS, *NOUNS, *CONFIGS)}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failures: list[str] = []
    for name, text in texts.items():
        test = doctest.DocTestParser().get_doctest(text, {"prixlm": prixlm}, name, None, None)
        assert test.examples, name
        runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_the_example_of_the_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(prixlm).failed == 0
