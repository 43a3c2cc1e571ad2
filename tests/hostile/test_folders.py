"""Folders of others that lie: tables of other types, deep JSON, databases with code, odd names."""

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError, remote
from prixlm.engine.workspace import is_cached, seal
from prixlm.entities.names import build_names
from prixlm.files import write_atomically
from prixlm.kb.checks import check_table
from prixlm.proposals.marks import Marks, NewMark
from tests.helpers import count_tried
from tests.hostile.attacks import FULL, HOW, attack, budget, draw, lie, put, wrong_kinds
from tests.hostile.conftest import run, write_proposals, write_sources


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a KB and proposals, without models: `house` takes longer to build."""
    folder = tmp_path_factory.mktemp("small")
    described = folder / "descriptions.tsv"
    described.write_text("lang\tname\tdescription\nen\tFinland\ta country\n", "utf-8")
    run("import", *write_sources(folder), described, "--to", folder / "kb")
    assert KB(folder / "kb").has_descriptions
    write_proposals(folder / "proposals", KB(folder / "kb"))
    return folder


KB_COLUMNS = [
    ("entities", ["id", "key", "lang", "name", "concept"]),
    ("aliases", ["entity", "name"]),
    ("relations", ["id", "key", "name"]),
    ("relation_names", ["relation", "lang", "name"]),
    ("triples", ["lang", "subject", "relation", "object", "split"]),
    ("links", ["a", "b"]),
    ("descriptions", ["entity", "text"]),
]
FACT_COLUMNS = [
    *("id", "lang", "subject", "subject_key", "subject_name", "relation", "relation_key"),
    *("relation_name", "relation_is_named", "object", "object_key", "object_name", "confidence"),
    *("why", "origin", "model_score", "runner_up", "runner_up_confidence"),
]
LABEL_COLUMNS = ["lang", "concept", "key", "name", "confidence", "origin", "source", "how"]
LINK_COLUMNS = [
    *("lang", "entity", "key", "name", "other_lang", "other", "other_key", "other_name"),
    *("confidence", "similarity", "evidence"),
]
PROPOSED = [("proposals", FACT_COLUMNS), ("labels", LABEL_COLUMNS), ("links", LINK_COLUMNS)]
KB_LIES = [(t, c, how) for t, columns in KB_COLUMNS for c in columns for how in HOW]
PROPOSED_LIES = [(t, c, how) for t, columns in PROPOSED for c in columns for how in HOW]


@pytest.mark.parametrize(
    ("table", "column", "how"), draw(KB_LIES, budget(40, 10**6), "tables of a KB")
)
def test_a_kb_whose_tables_lie_about_their_columns_is_read_or_refused_in_one_line(
    table: str, column: str, how: str, small: Path, tmp_path: Path
) -> None:
    kb = Path(shutil.copytree(small / "kb", tmp_path / "kb"))
    lie(kb / f"{table}.parquet", column, how)
    for args in (
        ["stats", kb],
        ["split", kb, "--to", tmp_path / "split"],
        ["link", "--kb", kb, "--mention", "Suomi"],
        ["report", small / "proposals", "--kb", kb, "--to", tmp_path / "page"],
    ):
        attack(*args)


@pytest.mark.parametrize(
    ("table", "column", "how"), draw(PROPOSED_LIES, budget(50, 10**6), "proposals")
)
def test_proposals_whose_tables_lie_about_their_columns_are_read_or_refused_in_one_line(
    table: str, column: str, how: str, small: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small / "proposals", tmp_path / "p"))
    lie(folder / f"{table}.parquet", column, how)
    for args in (
        ["review", folder, "--to", tmp_path / "sheet.tsv"],
        ["export", folder, "--format", "nq", "--to", tmp_path / "x.nq"],
        ["export", folder, "--format", "quickstatements", "--to", tmp_path / "x.tsv"],
        ["report", folder, "--kb", small / "kb", "--to", tmp_path / "page"],
    ):
        attack(*args)


def test_a_folder_that_is_named_like_a_value_changes_no_row(tmp_path: Path) -> None:
    """DuckDB took `lang=zz` in a path for the value of the column `lang` of all rows below."""
    sources, evil = write_sources(tmp_path), tmp_path / "lang=zz" / "split=test"
    run("import", *sources, "--to", tmp_path / "kb")
    run("import", *sources, "--to", evil / "kb")
    plain, named = KB(tmp_path / "kb"), KB(evil / "kb")
    assert named.manifest.counts == plain.manifest.counts
    for table in ("entities", "triples"):
        rows = [kb.query(f"FROM {table} ORDER BY ALL").fetchall() for kb in (plain, named)]
        assert rows[0] == rows[1]
        assert pq.read_table(named.path(table)).equals(pq.read_table(plain.path(table)))
    write_proposals(evil / "proposals", named)
    pages = []
    for folder in (evil / "proposals", shutil.copytree(evil / "proposals", tmp_path / "p")):
        run("report", folder, "--kb", plain.folder, "--to", tmp_path / "page")
        page = json.loads((tmp_path / "page" / "report.json").read_text("utf-8"))
        pages.append([page["coverage"], page["examples"]])
    assert pages[0] == pages[1]
    for kb in (plain, named):
        run("split", kb.folder, "--to", kb.folder.parent / "split", "--test", 0.2)
    splits = [KB(kb.folder.parent / "split").manifest.counts for kb in (plain, named)]
    assert splits[0] == splits[1]


def begin_staged(uri: str) -> None:
    """Begin to write a folder of a store, as `enrich --to` does: what is there is fetched."""
    with remote.staged_folder(uri):
        raise AssertionError("the folder was fetched")


def test_descriptions_that_the_manifest_does_not_count_are_refused(
    small: Path, tmp_path: Path
) -> None:
    kb = Path(shutil.copytree(small / "kb", tmp_path / "kb"))
    manifest = json.loads((kb / "manifest.json").read_text("utf-8"))
    counts = {name: count for name, count in manifest["counts"].items() if name != "descriptions"}
    for wrong in (counts, *(counts | {"descriptions": w} for w in ("x", [1], None, 0, 7, 10**400))):
        (kb / "manifest.json").write_text(json.dumps(manifest | {"counts": wrong}), "utf-8")
        attack("stats", kb, codes=(2,))
        attack("split", kb, "--to", tmp_path / "split", codes=(2,))


MANIFESTS = {
    "kb": ["counts", "split", "account", "sources", "options", "licence"],
    "proposals": ["config", "trials", "proposals", "labels", "links", "rankers", "sources"],
}
TRIAL: dict[str, Any] = {
    "method": "fused", "lang": "fi", "subset": "all", "held_out": 3, "right": 0.5,
    "reliability": {"number": 3, "ece": 0.1, "brier": None, "auroc": 0.5, "bins": [[0.5, 0.3, 3]]},
    "levels": [{"level": 0.5, "proposed": 3, "precision": 0.5, "recall": None}],
    "average_precision": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_of_other_kinds_is_read_or_refused_in_one_line(
    kind: str, small: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small / kind, tmp_path / kind))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    if kind == "proposals":
        manifest["trials"] = [TRIAL]
    page = ["--to", tmp_path / "page"]
    commands: list[list[object]] = [
        ["report", folder, "--kb", small / "kb", *page],
        ["export", folder, "--format", "nq", "--to", tmp_path / "x.nq"],
    ]
    if kind == "kb":
        commands = [["stats", folder], ["split", folder, "--to", tmp_path / "split"]]
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    attack(*commands[0], codes=(0,))
    every = {name: manifest[name] for name in MANIFESTS[kind]}
    for place, wrong in wrong_kinds(every, budget(60, 3000), kind):
        text = json.dumps(manifest | put(every, place, wrong)) if place else json.dumps(wrong)
        (folder / "manifest.json").write_text(text, "utf-8")
        for args in commands:
            try:
                attack(*args)
            except BaseException as error:
                error.add_note(f"{place} is {str(wrong)[:80]}, then {args[0]}")
                raise


@pytest.mark.parametrize(
    ("trials", "confidence"), [([1], 0.5), ([{}], 0.5), ([TRIAL | {"levels": [1]}], 0.5),
                               ([TRIAL | {"held_out": 10**400}], 0.5), ([], 10**400), ([], True)]
)  # fmt: skip
def test_trials_and_a_confidence_of_another_kind_are_refused(
    trials: Any, confidence: Any, small: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small / "proposals", tmp_path / "p"))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8")) | {"trials": trials}
    manifest["config"]["min_confidence"] = confidence
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    attack("report", folder, "--kb", small / "kb", "--to", tmp_path / "page", codes=(2,))


def test_trials_that_are_null_are_none(small: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small / "proposals", tmp_path / "p"))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8")) | {"trials": None}
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    attack("report", folder, "--kb", small / "kb", "--to", tmp_path / "page", codes=(0,))


def test_a_footer_with_another_type_of_a_column_does_not_end_the_process(small: Path) -> None:
    """Arrow's reader of statistics calls std::terminate; no `except` sees that."""
    path = small / "flipped.parquet"
    rows = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]})
    pq.write_table(rows, path)
    good, schema = path.read_bytes(), rows.schema
    footer = len(good) - int.from_bytes(good[-8:-4], "little") - 8
    for place in range(footer, len(good) - 8):
        for bit in range(8) if FULL else (0, 4):
            flipped = bytearray(good)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            count_tried()
            with contextlib.suppress(PrixError):
                check_table(path, schema, "Again.", bounds={"a": 3})


def test_objects_of_a_store_are_not_written_outside_of_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of a bucket are any text: `kb/../../.profile` and `kb//etc/passwd` are valid ones."""
    monkeypatch.setenv("PRIXLM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "object").write_bytes(b"owned")
    precious = tmp_path / "precious"

    class Info:
        def __init__(self, name: str) -> None:
            self.path, self.size, self.mtime_ns, self.is_file = f"bucket/kb/{name}", 5, 1, True
            self.base_name = name.rsplit("/", 1)[-1]

    class Store:
        def __init__(self, name: str) -> None:
            self.name = name

        def get_file_info(self, _selector: Any) -> list[Info]:
            return [Info("manifest.json"), Info(self.name)]

        def open_input_file(self, _name: str) -> Any:
            return pyarrow.fs.LocalFileSystem().open_input_file(str(tmp_path / "object"))

    for name in (f"/{precious}", str(precious), "../../../../../precious", "a/../../precious",
                 "./x", "a//x", "a\0x", "\x1b[31m/../x"):  # fmt: skip
        monkeypatch.setattr(remote, "_open", lambda _uri, n=name: (Store(n), "bucket/kb"))
        for fetch in (remote.local_folder, begin_staged):
            with pytest.raises(PrixError, match="is not a name of a file in a folder") as refused:
                fetch("s3://bucket/kb")
            assert "\x1b" not in str(refused.value)
            assert not precious.exists()
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"object", "lock"}, left


DEEP = "[" * 200_000


def test_deep_json_in_old_marks_caches_and_prompts_is_one_line(small: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small / "proposals", tmp_path / "p"))
    (folder / "marks.json").write_text(DEEP)
    attack("review", folder, "--to", tmp_path / "sheet.tsv", codes=(0, 2))
    attack("export", folder, "--format", "tsv", "--to", tmp_path / "x.tsv", codes=(2,))
    prompts = tmp_path / "mlama" / "en"
    prompts.mkdir(parents=True)
    (prompts / "templates.jsonl").write_text(DEEP)
    from prixlm.evaluation.probing.prompts import read_mlama_folder

    with pytest.raises(PrixError, match="nested too deep"):
        read_mlama_folder(prompts.parent)


def test_a_cache_with_a_deep_list_of_sizes_is_made_again(tmp_path: Path) -> None:
    write_atomically(tmp_path / "stamp.json", json.dumps({"a": 1}))
    (tmp_path / "data").write_bytes(b"x")
    seal(tmp_path)
    assert is_cached(tmp_path, {"a": 1})
    (tmp_path / "sizes.json").write_text(DEEP)
    assert not is_cached(tmp_path, {"a": 1})
    (tmp_path / "sizes.json").write_text('{"data": 1, "gone": 2}')
    assert not is_cached(tmp_path, {"a": 1})


def test_settings_that_are_nested_too_deep_are_one_line(small: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("a = " + "[" * 100_000)
    args = ["--to", tmp_path / "m", "--config", tmp_path / "run.toml"]
    attack("pretrain", small / "kb", *args, codes=(2,))


SETTINGS = {
    "a rate of 400 digits": "[training]\nlr = 1" + "0" * 400,
    "a number of 5,000 digits": "epochs = " + "9" * 5000,
    "no heads": "[compact]\nheads = 0",
    "no layers": "[compact]\nlayers = 0",
    "a million layers": "[compact]\nlayers = 1000000\nwidth = 4",
    "no width": "[compact]\nwidth = 0",
    "a negative width": "[compact]\nwidth = -4",
    "no positions": "[compact]\npositions = 0",
    "a dropout of NaN": "[compact]\ndropout = nan",
    "a dropout of everything": "[compact]\ndropout = 1.0",
    "a width of 10**12": "[compact]\nwidth = 1000000000000",
    "a vocabulary of 10**12": "[compact]\nvocab = 1000000000000",
    "positions of 10**12": "[compact]\npositions = 1000000000000",
}


@pytest.mark.parametrize("what", SETTINGS)
def test_settings_that_no_model_can_have_are_one_line(
    what: str, small: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(f'base = "compact"\n{SETTINGS[what]}\n')
    args = ["--to", tmp_path / "m", "--config", tmp_path / "run.toml"]
    attack("pretrain", small / "kb", *args, codes=(2,))


@contextlib.contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        yield db
        db.commit()


CODE = {
    "a trigger that drops marks": (
        "CREATE TRIGGER evil AFTER INSERT ON marks BEGIN "
        "INSERT INTO batches SELECT 99, '', 'Eve', 1, 1, 0, NULL, NULL; END"
    ),
    "a view that never ends": (
        "DROP TABLE proposals; CREATE VIEW proposals (stamp) AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    ),
    "a table of other columns": "DROP TABLE marks; CREATE TABLE marks (a)",
    "a table too many": "CREATE TABLE more (a)",
    "a default that computes": (
        "DROP TABLE marks; CREATE TABLE marks (seq INTEGER PRIMARY KEY, batch INTEGER NOT NULL, "
        "tab INTEGER NOT NULL, row INTEGER NOT NULL, verdict INTEGER NOT NULL DEFAULT "
        "(randomblob(100)), entity INTEGER, key TEXT, name TEXT)"
    ),
}


@pytest.mark.parametrize("how", CODE)
def test_a_database_of_marks_with_code_of_others_is_refused(
    how: str, small: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small / "proposals", tmp_path / "p"))
    with contextlib.closing(Marks.open(folder)) as marks:
        marks.add("Anna", [NewMark("facts", 0, "accept")])
    with database(folder / "marks.db") as db:
        db.executescript(CODE[how])
    ran = attack("export", folder, "--format", "tsv", "--accepted", "--to", "x.tsv", codes=(2,))
    assert "marks.db" in ran.stderr
    ran = attack("review", folder, "--to", "sheet.tsv", codes=(2,))
    with (
        pytest.raises(PrixError, match=r"marks\.db"),
        contextlib.closing(Marks.open(folder)) as marks,
    ):
        marks.add("Anna", [NewMark("facts", 1, "accept")])


MARK, BATCH = "INSERT INTO marks VALUES", "INSERT INTO batches VALUES"
VALUES = {
    "an unknown verdict": f"{MARK} (2, 1, 0, 1, 7, NULL, NULL, NULL)",
    "a verdict in words": f"{MARK} (2, 1, 0, 1, 'x', NULL, NULL, NULL)",
    "a row in words": f"{MARK} (2, 1, 0, 'x', 0, NULL, NULL, NULL)",
    "a row of bytes": f"{MARK} (2, 1, 0, x'00', 0, NULL, NULL, NULL)",
    "half a row": f"{MARK} (2, 1, 0, 0.5, 0, NULL, NULL, NULL)",
    "a row beyond the table": f"{MARK} (2, 1, 0, 1000000000000, 0, NULL, NULL, NULL)",
    "a row before the first": f"{MARK} (2, 1, 0, -1, 0, NULL, NULL, NULL)",
    "an unknown table": f"{MARK} (2, 1, 9, 1, 0, NULL, NULL, NULL)",
    "a table in words": f"{MARK} (2, 1, 'x', 1, 0, NULL, NULL, NULL)",
    "an unknown batch": f"{MARK} (2, 77, 0, 1, 0, NULL, NULL, NULL)",
    "a name of bytes": f"{MARK} (2, 1, 0, 1, 0, 1, 'k', x'ff')",
    "a name in no encoding": f"{MARK} (2, 1, 0, 1, 0, 1, 'k', CAST(x'ff' AS TEXT))",
    "a name without a key": f"{MARK} (2, 1, 0, 1, 0, 1, NULL, 'n')",
    "an entity in words": f"{MARK} (2, 1, 0, 1, 0, 'x', 'k', 'n')",
    "an entity that no KB has": f"{MARK} (2, 1, 0, 1, 0, 99999999999999, 'k', 'n')",
    "a batch that is the last": f"{BATCH} (9223372036854775807, {{now}}, 'B', 1, 2, 0, NULL, NULL)",
    "a time in words": f"{BATCH} (2, 'yesterday', 'Bob', 1, 2, 0, NULL, NULL)",
    "a time of nowhere": f"{BATCH} (2, '2026-01-01', 'Bob', 1, 2, 0, NULL, NULL)",
    "a reviewer of bytes": f"{BATCH} (2, {{now}}, x'ff', 1, 2, 0, NULL, NULL)",
    "a reviewer that is obeyed": f"{BATCH} (2, {{now}}, 'a' || char(27), 1, 2, 0, NULL, NULL)",
    "a bulk in words": f"{BATCH} (2, {{now}}, 'Bob', 1, 2, 'x', NULL, NULL)",
    "a range in words": f"{BATCH} (2, {{now}}, 'Bob', 'a', 'b', 0, NULL, NULL)",
    "a range beyond the marks": f"{BATCH} (2, {{now}}, 'Bob', 1, 1000000000, 0, NULL, NULL)",
}


@pytest.mark.parametrize("what", VALUES)
def test_marks_with_values_that_no_mark_has_are_refused(
    what: str, small: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small / "proposals", tmp_path / "p"))
    with contextlib.closing(Marks.open(folder)) as marks:
        marks.add("Anna", [NewMark("facts", 0, "accept")])
    with database(folder / "marks.db") as db:
        db.executescript(VALUES[what].format(now="'2026-01-01T10:00:00.000Z'"))
    sheet, table = tmp_path / "sheet.tsv", tmp_path / "x.tsv"
    for args in (["review", folder, "--to", sheet], ["export", folder, "--to", table]):
        ran = attack(*args, *(["--format", "tsv"] if args[0] == "export" else []), codes=(2,))
        assert "marks.db cannot be read" in ran.stderr and ran.stderr.count("\n") == 1
    with pytest.raises(PrixError, match=r"marks\.db cannot be read"):
        Marks.open(folder)  # as a server does


def test_marks_are_not_written_through_a_link(small: Path, tmp_path: Path) -> None:
    """A folder of others can bring links: SQLite would write what `marks.db` leads to."""
    other = Path(shutil.copytree(small / "proposals", tmp_path / "other"))
    with contextlib.closing(Marks.open(other)) as marks:
        marks.add("Anna", [NewMark("facts", 0, "accept")])
    before = (other / "marks.db").read_bytes()
    folder = Path(shutil.copytree(small / "proposals", tmp_path / "p"))
    (folder / "marks.db").symlink_to(other / "marks.db")
    with (
        pytest.raises(PrixError, match=r"marks\.db is a link"),
        contextlib.closing(Marks.open(folder)) as marks,
    ):
        marks.add("Eve", [NewMark("facts", 1, "reject")])
    assert (other / "marks.db").read_bytes() == before
    with contextlib.closing(Marks.open(other, read_only=True)) as marks:
        assert len(marks.rows_of("Eve", "facts", "reject")) == 0


@pytest.mark.parametrize("name", ["meta.json", ".managed.json", "*.store"])
def test_a_damaged_index_of_names_is_one_line(name: str, small: Path, tmp_path: Path) -> None:
    kb = KB(shutil.copytree(small / "kb", tmp_path / "kb"))
    [path] = build_names(kb).folder.joinpath("grams").glob(name)
    path.chmod(0o600)
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(PrixError, match=r"is damaged .*: delete it, and it is built again"):
        build_names(kb)
