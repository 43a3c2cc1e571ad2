"""Folders that someone damaged or changed: every command reads them or says so in one line."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from prixlm import KB, PrixError
from prixlm.cli.terminal import console
from prixlm.files import read_json
from prixlm.lm.lineage import Lineage
from prixlm.proposals.work import work_folders
from prixlm.reports.console import print_run
from prixlm.reports.kept import Kept
from prixlm.reports.tables import ResultTable, write_tables
from prixlm.training.checkpoints import (
    checkpoint_folder,
    flatten_moments,
    load_checkpoint,
    save_checkpoint,
)
from tests.hostile.attacks import (
    EVIL,
    HOW,
    SEED,
    attack,
    budget,
    damage,
    draw,
    lie,
    put,
    wrong_kinds,
)
from tests.hostile.conftest import House


def readers(house: House, folder: Path, to: Path) -> dict[str, list[list[object]]]:
    """Return commands that read each kind of folder; it stands at `folder`."""
    ask = ["--lang", "en", "--subject", "France", "--relation", "capital"]
    return {
        "kb": [
            ["stats", folder],
            ["split", folder, "--to", to / "split"],
            ["link", "--kb", folder, "--mention", "Suomi"],
            ["complete", house.model, "--kb", folder, *ask],
            ["graph", folder, "--to", to / "graph", "--rank", 4, "--epochs", 1],
            ["export", house.proposals, "--format", "tsv", "--kb", folder, "--to", to / "x.tsv"],
            ["report", house.proposals, "--kb", folder, "--to", to / "page"],
            ["evaluate", "labels", "--kb", folder, "--langs", "fi"],
        ],
        "proposals": [
            ["review", folder, "--to", to / "review.tsv"],
            ["review", folder, "--marks", to / "sheet.tsv"],
            ["export", folder, "--format", "nq", "--to", to / "x.nq"],
            ["export", folder, "--format", "tsv", "--to", to / "x.tsv"],
            ["report", folder, "--kb", house.kb, "--to", to / "page"],
        ],
    }


@pytest.mark.parametrize("kind", ["kb", "proposals"])
def test_a_damaged_folder_is_read_or_refused_in_one_line(
    kind: str, house: House, tmp_path: Path
) -> None:
    generator = random.Random(f"{SEED} {kind}")
    attack("review", house.proposals, "--to", tmp_path / "sheet.tsv")
    for number in range(budget(25, 1500)):
        folder, to = tmp_path / kind, tmp_path / "to"
        shutil.copytree(getattr(house, kind), folder)
        to.mkdir()
        shutil.copy(tmp_path / "sheet.tsv", to / "sheet.tsv")
        files = sorted(path for path in folder.iterdir() if path.is_file())
        path = generator.choice(files)
        done = damage(path, generator)
        args = generator.choice(readers(house, folder, to)[kind])
        try:
            attack(*args)
        except BaseException as error:
            error.add_note(f"number {number}: {done} {path.name}, then {args[:2]}")
            raise
        shutil.rmtree(folder)
        shutil.rmtree(to)


def test_a_damaged_sheet_adds_no_mark_or_says_which_line(house: House, tmp_path: Path) -> None:
    generator = random.Random(SEED)
    folder = Path(shutil.copytree(house.proposals, tmp_path / "p"))
    sheet, good = tmp_path / "sheet.tsv", tmp_path / "good.tsv"
    attack("review", folder, "--to", good)
    for _ in range(budget(10, 500)):
        shutil.copy(good, sheet)
        damage(sheet, generator)
        attack("review", folder, "--marks", sheet)


@pytest.mark.parametrize("option", ["--queries", "--candidates"])
def test_a_damaged_file_of_questions_is_one_line(option: str, house: House, tmp_path: Path) -> None:
    generator = random.Random(f"{SEED} {option}")
    for number in range(budget(5, 200)):
        path = tmp_path / f"{number}.tsv"
        shutil.copy(house.queries_tsv if option == "--queries" else house.names_txt, path)
        damage(path, generator)
        args: list[object] = ["complete", house.model, "--kb", house.kb, option, path]
        if option == "--queries":
            args += ["--out", tmp_path / f"{number}.jsonl"]
        else:
            args += ["--lang", "en", "--subject", EVIL, "--relation", "capital"]
        attack(*args)


def write_facts(path: Path) -> Path:
    """Write a Parquet source of two facts."""
    facts = {"lang": ["en", "en"], "subject": ["s", "t"], "relation": ["r", "r"]}
    pq.write_table(pa.table(facts | {"object": ["o", "s"]}), path)
    return path


def test_a_damaged_parquet_source_is_imported_or_refused_in_one_line(tmp_path: Path) -> None:
    path = write_facts(tmp_path / "facts.parquet")
    good = path.read_bytes()
    pages = len(good) - int.from_bytes(good[-8:-4], "little") - 8
    flips = [(place, bit) for place in range(len(good)) for bit in range(8)]
    once_failed = [(67, 3), (194, 4), (201, 0), (201, 6)]
    drawn = draw(flips[: 8 * pages], budget(40, 10**6), "pages")
    for place, bit in [*once_failed, *drawn, *draw(flips[8 * pages :], budget(20, 600), "footer")]:
        data = bytearray(good)
        data[place] ^= 1 << bit
        path.write_bytes(bytes(data))
        attack("import", path, "--to", tmp_path / "kb", "--overwrite")


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.map_(pa.string(), pa.string()),
        pa.struct([("a", pa.string())]),
    ],
    ids=str,
)
def test_a_nested_column_of_a_parquet_source_is_refused(kind: pa.DataType, tmp_path: Path) -> None:
    path = write_facts(tmp_path / "facts.parquet")
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "subject", pa.nulls(2, kind)), path)
    ran = attack("import", path, "--to", tmp_path / "kb", codes=(2,))
    assert "subject is" in ran.stderr and "expected one column of texts" in ran.stderr


def test_a_damaged_settings_file_is_one_line(house: House, tmp_path: Path) -> None:
    generator = random.Random(SEED)
    for number in range(budget(5, 200)):
        path = tmp_path / f"{number}.toml"
        shutil.copy(house.run_toml, path)
        damage(path, generator)
        attack("pretrain", house.kb, "--to", tmp_path / f"m{number}", "--config", path)


# Results: what `evaluate compare`, `evaluate merge` and `report --table` read.


def write_result(to: Path) -> Path:
    """Write a table of two methods, with the values of questions; return the JSON file."""
    table = ResultTable("accuracy", notes=["a note"], details={"a": {"training": "none"}})
    table.add_questions("a", "fi", np.array([1.0, 0.0, 1.0]))
    table.add_questions("b", "fi", np.array([1.0, 0.0, 0.0]))
    table.add("b", "ja", 0.5, 4)
    write_tables(to, "table", [table])
    return to / "table.json"


RANKED: dict[str, Any] = {
    "number": 3, "hits_1": 0.5, "hits_3": 0.5, "hits_10": None, "mrr": 0.5, "slack": 0.0,
    "intervals": {"hits_1": [0.1, 0.9]},
}  # fmt: skip
ROW: dict[str, Any] = {
    "title": "ranker", "figures": {"fi": {"all": RANKED}}, "how": "exact",
    "training_seconds": 1.0, "ranking_seconds": None, "max_rank": 1000,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["tables", "link prediction"])
def test_results_of_other_kinds_are_merged_or_refused_in_one_line(
    kind: str, tmp_path: Path
) -> None:
    values = read_json(write_result(tmp_path)) if kind == "tables" else {"rows": [ROW]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(values), "utf-8")
    attack("evaluate", "merge", path, path, codes=(0,))
    for place, wrong in wrong_kinds(values, budget(80, 10**6), kind):
        path.write_text(json.dumps(put(values, place, wrong)), "utf-8")
        try:
            attack("evaluate", "merge", path, path)
        except BaseException as error:
            error.add_note(f"{place} is {str(wrong)[:80]}")
            raise


RANKS: dict[str, Any] = {
    "lang": ["fi", "fi"], "subject": [1, 2], "relation": [0, 0], "object": [1, 1],
    "rank": [1.0, float("inf")], "all": [True, True], "no_transfer": [True, False],
}  # fmt: skip
IDS = [(name, pa.int32()) for name in ("subject", "relation", "object")]
RANK_SCHEMA = pa.schema(
    [("lang", pa.string()), *IDS, ("rank", pa.float64())]
    + [(name, pa.bool_()) for name in ("all", "no_transfer")]
)
COMPARED = [("ranks", column) for column in RANKS]
COMPARED += [("questions", column) for column in ("table", "row", "column", "values")]
COMPARED_LIES = [(kind, column, how) for kind, column in COMPARED for how in HOW]


@pytest.fixture
def compared(tmp_path: Path) -> dict[str, list[object]]:
    """The calls of `evaluate compare` on ranks and on questions, which they read in good order."""
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    for path in (first, second):
        pq.write_table(pa.table(RANKS, RANK_SCHEMA), path)
    questions = write_result(tmp_path).with_suffix(".parquet")
    calls: dict[str, list[object]] = {
        "ranks": [first, second],
        "questions": [questions, "--row", "a", "--row", "b"],
    }
    for call in calls.values():
        attack("evaluate", "compare", *call, codes=(0,))
    return calls


@pytest.mark.parametrize(
    ("kind", "column", "how"), draw(COMPARED_LIES, budget(40, 10**6), "compared")
)
def test_ranks_and_questions_that_lie_are_compared_or_refused_in_one_line(
    kind: str, column: str, how: str, compared: dict[str, list[object]]
) -> None:
    call = compared[kind]
    paths = [path for path in call if isinstance(path, Path)]
    lie(paths[-1], column, how)  # of two tables, the other one is in good order
    attack("evaluate", "compare", *call)
    if kind == "ranks":
        lie(paths[0], column, how)
        attack("evaluate", "compare", *call)


@pytest.mark.parametrize("kind", ["ranks", "questions"])
def test_damaged_ranks_and_questions_are_one_line(
    kind: str, compared: dict[str, list[object]]
) -> None:
    generator = random.Random(f"{SEED} {kind}")
    path = next(path for path in compared[kind] if isinstance(path, Path))
    good = path.read_bytes()
    for _ in range(budget(15, 800)):
        path.write_bytes(good)
        damage(path, generator)
        attack("evaluate", "compare", *compared[kind])


def test_a_damaged_result_is_one_line(house: House, tmp_path: Path) -> None:
    generator, path = random.Random(SEED), write_result(tmp_path)
    good = path.read_bytes()
    for _ in range(budget(15, 800)):
        path.write_bytes(good)
        damage(path, generator)
        attack("evaluate", "merge", path, path)
        page = ["--kb", house.kb, "--to", tmp_path / "page"]
        attack("report", house.proposals, *page, "--table", path)


# Pairs of graphs and dictionaries: what `evaluate align` and `evaluate bli` read.


def write_pair(folder: Path, num: int = 250) -> Path:
    """Write two graphs in the form of DBP15K, each a ring of entities."""
    folder.mkdir()
    for side, first in ((1, 0), (2, num)):
        ids = range(first, first + num)
        names = [f"{i}\thttp://x/resource/Name_{i - first}_{side}" for i in ids]
        ring = [f"{i}\t0\t{first + (i - first + 1) % num}" for i in ids]
        (folder / f"ent_ids_{side}").write_text("\n".join(names), "utf-8")
        (folder / f"triples_{side}").write_text("\n".join(ring), "utf-8")
    links = "\n".join(f"{i}\t{num + i}" for i in range(num))
    (folder / "ref_ent_ids").write_text(links, "utf-8")
    return folder


PAIRS: dict[str, tuple[str, str]] = {
    "an id in both graphs": ("ent_ids_2", "0\thttp://x/resource/Name_0_1"),
    "an id of 31 digits": ("ent_ids_2", f"{10**30}\thttp://x/resource/Name"),
    "a link turned round": ("ref_ent_ids", "250\t0"),
    "a link within a graph": ("ref_ent_ids", "1\t0"),
    "a link of nobody": ("ref_ent_ids", "1\t5000"),
    "a relation of 31 digits": ("triples_1", f"0\t{10**30}\t1"),
    "a relation of 5,000 digits": ("triples_1", f"0\t{'9' * 5000}\t1"),
    "a negative relation": ("triples_1", "0\t-1\t1"),
    "an attack": ("triples_1", f"0\t{EVIL}\t1"),
}


@pytest.mark.parametrize("what", PAIRS)
def test_a_pair_of_graphs_that_cannot_be_is_refused(what: str, tmp_path: Path) -> None:
    folder = write_pair(tmp_path / "ja_en")
    name, line = PAIRS[what]
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}")
    attack("evaluate", "align", "--data", folder, codes=(2,))


def test_a_damaged_pair_of_graphs_is_aligned_or_refused_in_one_line(tmp_path: Path) -> None:
    generator = random.Random(SEED)
    for number in range(budget(8, 150)):
        folder = write_pair(tmp_path / f"pair-{number}")
        path = generator.choice(sorted(folder.iterdir()))
        done = damage(path, generator)
        try:
            attack("evaluate", "align", "--data", folder)
        except BaseException as error:
            error.add_note(f"number {number}: {done} {path.name}")
            raise


def test_a_damaged_dictionary_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    generator = random.Random(SEED)
    words = "\n".join(f"word{number}\tsana{number}" for number in range(30))
    for number in range(budget(10, 300)):
        files = [tmp_path / f"en-fi.{number}.{kind}" for kind in ("train", "test")]
        for path in files:
            path.write_text(words, "utf-8")
        damage(generator.choice(files), generator)
        attack("evaluate", "bli", "--train", files[0], "--test", files[1])


# A run's own folder, which may have been copied from others.


STATES = ["[" * 200_000, "x", "[]", "{}", '{"fingerprint": []}', "\xff" * 10]


@pytest.mark.parametrize("state", STATES)
def test_a_damaged_checkpoint_is_refused_in_one_line(
    state: str, house: House, tmp_path: Path
) -> None:
    to = tmp_path / "run"
    (to / "checkpoints" / "step-0000005").mkdir(parents=True)
    (to / "checkpoints" / "step-0000005" / "state.json").write_text(state, "latin-1")
    attack("pretrain", house.kb, "--to", to, "--config", house.run_toml, codes=(2,))


def test_a_checkpoint_of_other_kinds_is_resumed_or_refused_in_one_line(
    house: House, tmp_path: Path
) -> None:
    to = Path(shutil.copytree(house.model, tmp_path / "run"))
    [path] = to.glob("checkpoints/step-*/state.json")
    state = read_json(path)
    for place, wrong in wrong_kinds(state, budget(15, 400), "state"):
        path.write_text(json.dumps(put(state, place, wrong)), "utf-8")
        attack("pretrain", house.kb, "--to", to, "--config", house.run_toml)


def spoil_first(path: Path, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the first tensor of a safetensors file."""
    tensors = load_file(path)
    name = min(tensors)
    save_file(tensors | {name: spoil(tensors[name].clone())}, path)


def rename_first(path: Path) -> None:
    """Call the first tensor of a safetensors file something else."""
    tensors = load_file(path)
    save_file({("x" if n == min(tensors) else n): t for n, t in tensors.items()}, path)


TENSORS: dict[str, Callable[[Path], None]] = {
    "another shape": lambda path: spoil_first(path, lambda tensor: torch.zeros(7, 3)),
    "one value": lambda path: spoil_first(path, lambda tensor: torch.zeros(1)),
    "no numbers": lambda path: spoil_first(path, lambda tensor: tensor * float("nan")),
    "infinity": lambda path: spoil_first(path, lambda tensor: tensor + float("inf")),
    "another name": rename_first,
    "nothing": lambda path: save_file({"x": torch.zeros(1)}, path),
}


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("file", ["model", "optimizer"])
@pytest.mark.parametrize("what", TENSORS)
def test_a_checkpoint_of_other_tensors_is_refused_in_one_line(
    what: str, file: str, kind: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = kind(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    moments = flatten_moments(optimizer, model)
    state = {"step": 1, "best": None, "num_worse": 0, "fingerprint": {}}
    save_checkpoint(
        tmp_path, state, moments, lambda to: save_file(model.state_dict(), to / "model.safetensors")
    )
    load_checkpoint(tmp_path, 1, model, optimizer)
    TENSORS[what](checkpoint_folder(tmp_path, 1) / f"{file}.safetensors")
    with pytest.raises(PrixError, match="step-0000001 is damaged") as refused:
        load_checkpoint(tmp_path, 1, model, optimizer)
    assert "\n" not in str(refused.value)


WORK = {"format": "prixlm-work", "version": 1, "source": {"kb": "x"}, "kb": "kb"}
STATES_OF_WORK: list[dict[str, Any]] = [
    *({"proposed": [1]}, {"proposed": "x"}, {"proposed": {"given": [1]}}, {"made": 5}),
    *({"made": {"model": 1}}, {"seconds": {"import": "x"}}, {"seconds": []}, {"version": []}),
    *({"source": {"kb": 5}}, {"source": {"format": 1, "files": 5, "langs": 5}}, {"source": []}),
]


@pytest.mark.parametrize("wrong", STATES_OF_WORK, ids=str)
def test_a_work_folder_of_other_kinds_is_refused_in_one_line(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "work.json").write_text(json.dumps(WORK | wrong), "utf-8")
    with pytest.raises(PrixError, match=r"work\.json is damaged") as refused:
        work_folders(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"from": []}, {"from": 5}, {"valid": "x"}, {"test": [1]}])
def test_a_split_of_other_kinds_is_refused_in_one_line(wrong: dict[str, Any], toy: KB) -> None:
    path = toy.folder / "manifest.json"
    values = read_json(path)
    path.write_text(json.dumps(values | {"split": wrong}), "utf-8")
    with pytest.raises(PrixError, match=r"manifest\.json: split is not what prixlm writes"):
        KB(toy.folder)


@pytest.mark.parametrize(
    "line", [b"[1,2]", b"5", b'[[["a"]],1]', b"[" * 100_000, b'{"a":1,"b":2}', b"\xff", b"[[1],2]"]
)
def test_kept_results_of_other_kinds_are_left_out(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "xel-parts.jsonl"
    path.write_bytes(b'[["a"], 1]\n' + line)
    assert Kept(path).values == {("a",): 1}
    assert path.read_text("utf-8") == '[["a"], 1]\n'


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "loss": 2.0}',
        '{"step": 1, "loss": NaN, "facts_per_second": 1.0}',
        '{"step": 1, "loss": Infinity, "facts_per_second": NaN}',
        '{"step": 2, "valid_loss": 1.0}',
    ],
)
def test_losses_that_lack_figures_are_not_printed(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = '{"step": 3, "loss": 1.5, "facts_per_second": 7.0}'
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n{good}\n", "utf-8")
    print_run(console(), tmp_path, Lineage().facts_by_language)
    assert "Training loss 1.50 → 1.50" in capsys.readouterr().out


LINES = {
    "deep": "[" * 200_000 + "}",
    "no JSON": "x}",
    "no figures": "[1]\n{}",
    "texts": '{"step": "x", "loss": "y"}',
    "400 digits": '{"step": 1' + "0" * 400 + "}",
}


@pytest.mark.parametrize("what", LINES)
def test_lines_of_metrics_that_are_none_are_left_out(
    what: str, house: House, tmp_path: Path
) -> None:
    to = Path(shutil.copytree(house.model, tmp_path / "run"))
    (to / "metrics.jsonl").write_text(LINES[what], "utf-8")
    attack("pretrain", house.kb, "--to", to, "--config", house.run_toml, codes=(0,))


STAMPS = ["[]", "x", "[" * 200_000, '{"kb": 5}', '{"config": []}', "null"]
KEPT = ["[]", "x", "[" * 200_000, "{}"]
KEPT += [json.dumps(ROW | wrong) for wrong in ({"how": []}, {"figures": 1}, {"title": None})]


def test_a_damaged_folder_of_a_table_is_refused_in_one_line(house: House, tmp_path: Path) -> None:
    to = tmp_path / "table"
    call = ["reproduce", "jmac", "--kb", house.split, "--to", to, "--rows", "pairs"]
    attack(*call, codes=(0,))
    [row, *_] = sorted((to / "rows" / "pairs").glob("*.json"))  # one for each language
    for path, texts in ((row, KEPT), (to / "jmac.json", STAMPS)):
        good = path.read_bytes()
        for text in texts:
            path.write_text(text, "utf-8")
            attack(*call, codes=(2,))
        path.write_bytes(good)
    attack(*call, codes=(0,))
