"""Completion as users ask for it: names in, named answers out, one by one and by the file."""

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from prixlm import PrixError, import_kb
from prixlm.decoding import batch as module
from prixlm.decoding.batch import answer_file
from prixlm.decoding.completer import Completer, SearchConfig, read_candidates
from prixlm.decoding.search import score_all
from prixlm.decoding.trie import Trie
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import pretrain
from prixlm.types import Query
from tests.conftest import TOY_FACTS, TOY_LINKS
from tests.training.test_loop import TINY

EXACT = SearchConfig(search="exact")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy KB and a model that was trained until it knows it."""
    folder = tmp_path_factory.mktemp("complete")
    (folder / "facts.tsv").write_text(TOY_FACTS, "utf-8")
    (folder / "links.tsv").write_text(TOY_LINKS, "utf-8")
    kb = import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")
    training = TrainingConfig(lr=5e-3, log_every=100, checkpoints=(1.0,))
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    config = dataclasses.replace(TINY, epochs=120, training=training, compact=compact)
    pretrain(kb, folder / "model", config)
    return folder


@pytest.fixture
def completer(run: Path) -> Completer:
    return Completer(run / "model", run / "kb")


def test_a_trained_model_completes_and_translates(completer: Completer) -> None:
    assert completer.is_of_this_kb
    for config in (SearchConfig(), EXACT):
        assert completer.complete("France", "capital", lang="en", config=config)[0].name == "Paris"
        answers = completer.translate("Finland", lang="en", to="ja", config=config)
        assert answers[0].name == "フィンランド"
        assert [answer.rank for answer in answers] == [1, 2, 3, 4]  # four Japanese names
        scores = [answer.score for answer in answers]
        assert scores == sorted(scores, reverse=True)
    assert completer.complete("Atlantis", "capital", lang="en")  # unseen, and no error


def test_new_only_hides_what_the_kb_has(completer: Completer) -> None:
    config = SearchConfig(new_only=True)
    answers = completer.complete("Finland", "capital", lang="en", config=config)
    assert "Helsinki" not in [answer.name for answer in answers] and len(answers) == 4
    answers = completer.translate("Finland", lang="en", to="fi", config=config)
    assert "Suomi" not in [answer.name for answer in answers] and len(answers) == 3


def test_candidates_restrict_the_answers(completer: Completer, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Euro\nParis\nNobody\n", "utf-8")
    some, unknown = read_candidates(completer.kb, tmp_path / "names.txt")
    assert unknown == 1
    answers = completer.complete("Finland", "capital", lang="en", candidates=some)
    assert sorted(answer.name for answer in answers) == ["Euro", "Paris"]
    small = some.astype(np.int32)  # whatever their type
    assert completer.complete("Finland", "capital", lang="en", candidates=small) == answers
    (tmp_path / "none.txt").write_text("Nobody\n", "utf-8")
    with pytest.raises(PrixError, match="none of the names in"):
        read_candidates(completer.kb, tmp_path / "none.txt")
    with pytest.raises(PrixError, match="there are no candidates in en"):
        completer.complete("Finland", "capital", lang="en", candidates=np.array([10**6]))


def test_the_trie_beside_the_cache_is_used_again(completer: Completer) -> None:
    completer.complete("Finland", "capital", lang="en")
    folder = completer.cache.folder / f"trie-2-{completer.model.max_length // 2}-en"
    assert len(Trie.open(folder).entity) == 5
    prefix = completer.encode(Query("en", "Finland", "capital"))
    [whole] = score_all(completer.model, Trie.open(folder), [prefix])
    answers = completer.complete("Finland", "capital", lang="en", config=EXACT)
    assert [answer.entity for answer in answers] == whole.entity.tolist()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query("en", "Finland", "capitol"), "no relation 'capitol' .* Did you mean capital"),
        (Query("sv", "Finland", "capital"), "has no language 'sv'; it has ar, en"),
        (Query("en", "Finland", None, "en"), "from en to en: name two languages"),
        (Query("en", "  ", "capital"), "has no tokens"),
        (Query("en", "x" * 400, "capital"), r"the query has \d+ tokens, and the model 128"),
    ],
)
def test_what_cannot_be_asked_says_why(completer: Completer, query: Query, message: str) -> None:
    with pytest.raises(PrixError, match=message):
        completer.encode(query)


def test_a_query_leaves_room_for_the_longest_candidate(completer: Completer) -> None:
    length = len(completer.encode(Query("en", "x", "capital")))
    name = "x" + "ᚠ" * ((completer.model.max_length - length - 1) // 3)  # three bytes each
    with pytest.raises(PrixError, match="beside the longest candidate"):
        completer.complete(name, "capital", lang="en")


def test_a_model_of_other_languages_does_not_belong_to_a_kb(
    completer: Completer, tmp_path: Path
) -> None:
    (tmp_path / "sw.tsv").write_text(
        "lang\tsubject\trelation\tobject\nsw\tUfini\tcapital\tHelsinki\n", "utf-8"
    )
    other = import_kb([tmp_path / "sw.tsv"], tmp_path / "sw")
    with pytest.raises(PrixError, match="do not belong together"):
        Completer(completer.model, other)


QUERIES = [
    ("en", "France", "capital"),
    ("xx", "France", "capital"),
    ("fi", "Suomi", "Capital"),
    ("en", "", "capital"),
    ("ja", "フランス", "capital"),
]


def write_queries(path: Path) -> Path:
    separator = "," if path.suffix == ".csv" else "\t"
    rows = [("lang", "subject", "relation"), *QUERIES]
    path.write_text("".join(separator.join(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".tsv", ".csv", ".jsonl"])
def test_a_file_of_queries_becomes_a_file_of_answers(
    completer: Completer, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", 2)
    source = write_queries(tmp_path / ("q.csv" if suffix == ".csv" else "q.tsv"))
    out = tmp_path / f"a{suffix}"
    counts = answer_file(completer, source, out, SearchConfig(k=2))
    assert counts == {"queries": 5, "errors": 2}
    if suffix == ".parquet":
        rows = pq.read_table(out).to_pylist()
        best = {row["query"]: row["object"] for row in rows if row["rank"] == 1}
        assert best == {0: "Paris", 2: "Helsinki", 4: "パリ"}
        errors = {row["query"]: row["error"] for row in rows if row["error"]}
        assert errors.keys() == {1, 3} and "no language 'xx'" in errors[1]
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        assert len(rows) == 8 and rows[0]["object"] == "Paris"
    else:
        lines = out.read_text("utf-8").splitlines()
        assert len(lines) == 9
        if suffix == ".tsv":  # without quotes, as our own reader has it
            cells = dict(zip(lines[0].split("\t"), lines[1].split("\t"), strict=True))
            assert (cells["subject"], cells["object"], cells["rank"]) == ("France", "Paris", "1")
        else:
            assert next(csv.DictReader(lines))["object"] == "Paris"
    assert not out.with_name(out.name + ".partial").exists()
    with pytest.raises(PrixError, match="is already there"):
        answer_file(completer, source, out, SearchConfig(k=2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("en\tFinland\tcapital\n", "has the columns en, Finland, capital; expected lang, subject"),
        ("lang\tsubject\trelation\nen\tFinland\n", "a row has 2 columns, expected 3: 'en"),
        ("", "cannot be read: Empty CSV file"),
    ],
)
def test_a_bad_file_of_queries_is_one_line_and_leaves_nothing(
    completer: Completer, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "q.tsv").write_text(text, "utf-8")
    with pytest.raises(PrixError, match=message):
        answer_file(completer, tmp_path / "q.tsv", tmp_path / "a.tsv", SearchConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["q.tsv"]


def test_a_row_that_cannot_be_asked_keeps_its_cells(completer: Completer, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("lang\tsubject\trelation\nen\t\tcapital\n", "utf-8")
    answer_file(completer, tmp_path / "q.tsv", tmp_path / "a.parquet", SearchConfig())
    [row] = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert (row["lang"], row["relation"], row["error"]) == ("en", "capital", "empty: subject.")


def test_an_exact_search_is_proven_or_an_error(completer: Completer) -> None:
    config = SearchConfig(search="exact", max_nodes=1, k=5)
    with pytest.raises(PrixError, match="the best 5 could not be proven"):
        completer.complete("France", "capital", lang="en", config=config)


def test_a_folder_that_is_not_ours_is_left_alone(completer: Completer, tmp_path: Path) -> None:
    source = write_queries(tmp_path / "q.tsv")
    (tmp_path / "a.tsv.partial").mkdir()
    (tmp_path / "a.tsv.partial" / "thesis.txt").write_text("years of work")
    with pytest.raises(PrixError, match="is not ours"):
        answer_file(completer, source, tmp_path / "a.tsv", SearchConfig())
    assert (tmp_path / "a.tsv.partial" / "thesis.txt").exists()


def test_a_name_too_long_for_the_model_stops_no_other(run: Path, tmp_path: Path) -> None:
    facts = TOY_FACTS + f"en\tFinland\tcapital\t{'Ж' * 90}\n"  # bytes, two each
    (tmp_path / "facts.tsv").write_text(facts, "utf-8")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    completer = Completer(run / "model", kb)
    assert completer.num_too_long("en") == 1
    assert completer.complete("France", "capital", lang="en")[0].name == "Paris"


def test_a_stopped_file_goes_on_without_asking_again(
    completer: Completer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", 2)
    source, out = write_queries(tmp_path / "q.tsv"), tmp_path / "a.tsv"
    asked: list[str] = []
    real = completer.answer

    def watched(queries: list[Query], *rest: object) -> object:
        if len(asked) >= 3:
            raise KeyboardInterrupt
        asked.extend(query.subject for query in queries)
        return real(queries, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(completer, "answer", watched)
    with pytest.raises(KeyboardInterrupt):
        answer_file(completer, source, out, SearchConfig(k=2))
    assert asked == ["France", "France", "Suomi"] and not out.exists()
    asked.clear()
    answer_file(completer, source, out, SearchConfig(k=2))
    assert asked == ["フランス"]
    monkeypatch.setattr(completer, "answer", real)
    answer_file(completer, source, tmp_path / "b.tsv", SearchConfig(k=2))
    assert out.read_bytes() == (tmp_path / "b.tsv").read_bytes()


def test_files_that_cannot_be_read_are_named(completer: Completer, tmp_path: Path) -> None:
    (tmp_path / "odd.tsv").write_text("subject\tobject\nA\tB\n", "utf-8")
    for source, out, message in (
        ("odd.tsv", "a.tsv", "has the columns subject, object; expected lang, subject, relation"),
        ("none.tsv", "a.tsv", "cannot be read"),
        ("odd.tsv", "a.xlsx", "expected a name that ends in .parquet"),
    ):
        with pytest.raises(PrixError, match=message):
            answer_file(completer, tmp_path / source, tmp_path / out, SearchConfig())


def test_the_commands_answer(run: Path, tmp_path: Path) -> None:
    def prixlm(*args: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "prixlm", *map(str, args), "--kb", str(run / "kb")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    model = run / "model"
    query = ("--lang", "en", "--subject", "France", "--relation", "capital")
    answers = json.loads(prixlm("complete", model, *query, "--json").stdout)
    assert answers[0]["name"] == "Paris" and answers[0]["rank"] == 1
    shown = prixlm("translate", model, "--from", "en", "--to", "ja", "--name", "Finlnd", "-k", "1")
    assert "フィンランド" in shown.stdout and "not in the KB" in shown.stderr
    assert prixlm("complete", model, "--lang", "en").returncode == 2
    write_queries(tmp_path / "q.tsv")
    done = prixlm("complete", model, "--queries", tmp_path / "q.tsv", "--out", tmp_path / "a.jsonl")
    assert done.stdout == "5 queries, 2 with an error.\n"
