"""No name, path or value of the input is obeyed by a terminal, whichever command prints it."""

import io
import json
import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from prixlm import KB, EnrichConfig, PrixError, enrich
from prixlm.cli.terminal import console, print_json, print_lines, print_note
from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, make_parts
from prixlm.engine.workspace import open_workspace
from prixlm.reports.tables import ResultTable, write_tables
from prixlm.untrusted import print_traceback, printable
from tests.helpers import Ran, run_python
from tests.hostile.attacks import (
    EVIL,
    FULL,
    NAMES,
    VALUES,
    assert_harmless,
    attack,
    budget,
    commands,
    draw,
    valued_options,
)
from tests.hostile.conftest import GRAPH, MIRROR, House
from tests.hostile.workers import load_work, log_evil

Args = list[object]
QUICK = ("--effort", "quick")


def evaluated(house: House, to: Path) -> dict[str, list[Args]]:
    """Return what to run of `evaluate` and `reproduce`: real folders first, then evil paths."""
    into: Args = ["--to", to / "out"]
    table = ResultTable(EVIL)
    table.add_questions(EVIL, EVIL, np.ones(3))
    write_tables(to, "evil", [table])
    rows: Args = ["--row", EVIL, "--row", EVIL]
    return {
        "evaluate lp": [
            ["--kb", house.split, "--graph", house.graph],
            ["--kb", house.split, "--langs", EVIL],
            ["--kb", house.evil],
        ],
        "evaluate xel": [["--kb", house.kb], ["--names", house.evil, "--queries", house.evil]],
        "evaluate align": [["--data", house.evil], ["--data", house.kb]],
        "evaluate bli": [["--train", house.evil, "--test", house.evil]],
        "evaluate probe": [
            ["--model", house.evil, "--prompts", house.evil],
            ["--model", house.model, "--prompts", house.queries_tsv],
        ],
        "evaluate enrich": [
            ["--kb", house.split, "--langs", "fi"],
            ["--kb", house.kb, "--langs", EVIL],
        ],
        "evaluate labels": [["--kb", house.kb, "--langs", "fi", "--examples", 3]],
        "evaluate proposals": [
            ["--kb", house.kb, "--langs", EVIL, *into],
            ["--kb", house.evil, "--langs", "fi", *into],
        ],
        "evaluate compare": [[to / "evil.parquet", *rows], [house.evil], [house.evil, house.evil]],
        "evaluate merge": [[to / "evil.json", to / "evil.json"], [house.evil, house.evil]],
        "reproduce lp": [["--kb", house.evil, *into], ["--kb", house.kb, *into, "--rows", EVIL]],
        "reproduce xel": [["--kb", house.evil, *into]],
        "reproduce bli": [["--kb", house.kb, *into, "--dictionaries", house.evil]],
        "reproduce probe": [
            ["--kb", house.kb, *into, "--prompts", house.evil],
            ["--kb", house.kb, *into, "--mlama", house.evil, "--langs", EVIL],
        ],
        "reproduce figure": [
            ["--kb", house.kb, *into, "--prompts", house.evil],
            ["--kb", house.kb, *into, "--names", house.evil, "--queries", house.evil],
            ["--kb", house.kb, *into, "--checkpoints", EVIL],
        ],
        "reproduce jmac": [["--kb", house.evil, *into], ["--kb", house.kb, *into, "--rows", EVIL]],
    }


def cases(house: House, to: Path) -> dict[str, list[Args]]:
    """Return what to run of each command. The first is also what options are tried on."""
    asked: Args = [house.model, "--kb", house.kb]
    sheet = to / "sheet.tsv"
    sheet.write_text(f"mark\tid\n{printable(EVIL)}\t0\n{EVIL}\t{EVIL}\n", "utf-8")
    bad = to / (EVIL.replace("/", "|")[:60] + ".tsv")
    bad.write_text(f"lang\tsubject\trelation\tobject\n{EVIL}\nen\t{EVIL}\tr\tb\n", "utf-8")
    into: Args = ["--to", to / "out"]
    return evaluated(house, to) | {
        "import": [
            [house.facts_tsv, house.links_tsv, *into],
            [bad, "--to", to / "bad"],
            [bad, "--to", to / "strict", "--strict"],
            [bad, "--dry-run"],
            [house.evil, *into],
        ],
        "stats": [[house.kb], [house.kb, "--json"], [house.evil]],
        "split": [[house.kb, *into], [house.kb, "--to", to / EVIL.replace("/", "|")[:60]]],
        "pretrain": [
            [house.kb, *into, "--config", house.run_toml],
            [house.kb, "--to", to / "other", "--base", house.evil],
        ],
        "mirror": [
            [house.model, *into, "--kb", house.kb, *MIRROR],
            [house.evil, "--to", to / "other"],
        ],
        "graph": [[house.kb, *into, *GRAPH], [house.evil, "--to", to / "other"]],
        "complete": [
            [*asked, "--lang", "en", "--subject", "France", "--relation", "capital"],
            [*asked, "--lang", "en", "--subject", EVIL, "--relation", "capital", "--json"],
            [*asked, "--lang", "en", "--subject", EVIL, "--relation", "nope"],
            [*asked, "--lang", EVIL, "--subject", "France", "--relation", "capital"],
            [*asked, "--queries", house.queries_tsv, "--out", to / "answers.tsv"],
        ],
        "translate": [
            [*asked, "--from", "en", "--to", "fi", "--name", "en " + NAMES[0]],
            [*asked, "--from", "en", "--to", "fi", "--name", EVIL, "--free"],
            [*asked, "--from", "en", "--to", EVIL, "--name", "Finland"],
        ],
        "link": [
            ["--kb", house.kb, "--mention", "en " + NAMES[1], "--mention", EVIL],
            ["--kb", house.kb, "--mention", "en " + NAMES[0], "--json"],
            [house.encoder, "--kb", house.kb, "--mentions", house.names_txt, "--out", to / "l.tsv"],
            ["--kb", house.kb, "--mention", "x", "--lang", EVIL],
        ],
        "enrich": [
            [house.evil, "--into", "fi", "--to", to / "work"],
            [house.kb, "--into", EVIL, "--to", to / "evil"],
            *([] if not FULL else [[house.kb, "--into", "fi", "--to", to / "work", "--dry-run"]]),
            *([] if not FULL else [[house.kb, "--into", "fi", "--to", to / "w", *QUICK]]),
        ],
        "review": [
            [house.proposals, "--to", to / "review.tsv"],
            [house.proposals, "--marks", sheet],
            [house.evil, "--to", to / "other.tsv"],
        ],
        "sample": [
            [house.proposals, "--to", to / "sample", "--number", 3],
            [house.evil, "--to", to / "other"],
        ],
        "export": [
            *([house.proposals, "--format", f, "--to", to / f"x.{f}"] for f in ("tsv", "nt", "nq")),
            [house.proposals, "--format", "quickstatements", "--to", to / "q", "--reference", EVIL],
            [
                house.proposals,
                "--format",
                "quickstatements",
                "--to",
                to / "q",
                "--reference",
                "S248:Q5",
            ],
            [house.proposals, "--format", EVIL, "--to", to / "x"],
        ],
        "report": [
            [house.proposals, "--kb", house.kb, *into, "--title", EVIL],
            [house.proposals, "--kb", house.evil, *into],
        ],
        "serve": [["--kb", house.evil], ["--kb", house.kb, "--host", EVIL, "--token", "x" * 20]],
        "mcp": [["--kb", house.evil]],
        "demo": [["--to", bad / "inside"]],
    }


def test_every_command_has_cases(house: House, tmp_path: Path) -> None:
    assert set(cases(house, tmp_path)) == set(commands()), "add the new command to `cases`"


@pytest.mark.parametrize("command", commands())
def test_what_a_command_prints_is_not_obeyed(command: str, house: House, tmp_path: Path) -> None:
    for args in cases(house, tmp_path)[command]:
        attack(*command.split(), *args)


OPTIONS = [(name, option, value) for name, command in commands().items()
           for option in valued_options(command) for value in VALUES]  # fmt: skip


HUGE = "9" * 20
ONCE_FAILED = [
    *(("pretrain", "--epochs", HUGE), ("mirror", "--number", HUGE), ("graph", "--rank", HUGE)),
    *(("complete", "--beam", HUGE), ("review", "--most", HUGE), ("sample", "--seed", "-1")),
    ("evaluate bli", "--test", ""),
]
# Not `demo`: in a folder of any usable name it runs for minutes.
DRAWN = [case for case in draw(OPTIONS, budget(50, 10**6), "options") if case[0] != "demo"]


@pytest.mark.parametrize(("command", "option", "value"), dict.fromkeys([*ONCE_FAILED, *DRAWN]))
def test_any_value_of_an_option_is_used_or_refused_in_one_line(
    command: str, option: str, value: str, house: House, tmp_path: Path
) -> None:
    args = list(cases(house, tmp_path)[command][0])
    if option in args:
        place = args.index(option)
        del args[place : place + 2]
    given = [f"{option}={value}"] if option.startswith("--") else [option, value]
    attack(*command.split(), *args, *given)


def test_an_unknown_option_or_command_is_one_line() -> None:
    for args in (["stats", "--" + EVIL], [EVIL], ["evaluate", EVIL], ["stats", "a", EVIL]):
        ran = attack(*args, codes=(2,))
        assert ran.stderr.count("\n") == 1


def test_an_unknown_relation_lists_relations_that_are_not_obeyed(house: House) -> None:
    """The hole of the issue: names of relations reached the terminal raw through an error."""
    config = EnrichConfig(into=("en",), relations=("nope",))
    with pytest.raises(PrixError, match=r"it has \d+, such as") as refused:
        enrich(KB(house.split), house.folder / "none", config)
    assert r"\x1b" in str(refused.value), "the name is shown"
    assert_harmless(Ran(0, str(refused.value), ""))


@pytest.mark.parametrize("name", NAMES)
def test_every_error_note_table_and_log_line_shows_a_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_note(f"similar names: {name}.")
    print_json({"name": name, "list": [name]})
    print_lines([name])
    screen = console()
    table = Table(title=name)
    table.add_column(name)
    try:
        table.add_row(name)
        screen.print(table)
    except Exception as error:
        # Markup that is not escaped can be malformed: `shown` escapes it in all tables of ours.
        assert "[/nothing]" in name, error
    screen.print(name, markup=False)
    try:
        raise PrixError(f"no entity {name!r} {name}")
    except PrixError as error:
        print_traceback(type(error), error, error.__traceback__)
        assert "\n" not in str(error)
    captured = capsys.readouterr()
    assert_harmless(Ran(0, captured.out, captured.err.replace("Traceback (most", "")))
    values = captured.out[captured.out.index("{") : captured.out.index("\n}") + 2]
    assert json.loads(values) == {"name": name, "list": [name]}, "JSON keeps the name"


def test_warnings_of_a_command_are_not_obeyed() -> None:
    code = (
        "import logging, sys; from prixlm.untrusted import log_to_stderr; log_to_stderr()\n"
        f"logging.getLogger('prixlm.x').warning('%s is odd', {EVIL!r})\n"
    )
    ran = run_python(code)
    assert_harmless(Ran(ran.returncode, ran.stdout, ran.stderr))
    assert ran.stderr.startswith("prixlm: \\x1b]0;owned")


def test_what_a_library_warns_of_is_not_obeyed() -> None:
    code = (
        "import warnings; from prixlm.untrusted import log_to_stderr; log_to_stderr()\n"
        f"warnings.warn({EVIL!r} + chr(10) + 'forged')\n"
    )
    ran = run_python(code)
    assert_harmless(Ran(ran.returncode, ran.stdout, ran.stderr))
    assert ran.stderr.startswith("prixlm: UserWarning: \\x1b]0;owned")
    assert ran.stderr.count("\n") == 1


def test_a_long_error_is_shortened_where_it_is_printed() -> None:
    ran = attack("stats", "--" + 60_000 * "x", codes=(2,))
    assert len(ran.stderr) < 2_100 and " … " in ran.stderr
    assert ran.stderr.endswith("stats --help`.\n"), "what to do is not cut off"


def assert_workers_are_harmless(stderr: str, number: int) -> None:
    """Assert that the workers' records are there, and that nothing in them is obeyed."""
    assert_harmless(Ran(0, "", stderr))
    assert stderr.count(r"\x1b]0;owned") == 2 * number, stderr


def test_workers_of_an_import_log_without_obeying(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker is a process of its own, in which nobody had set a handler."""
    from prixlm.importers.stage import _start_worker

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_start_worker) as executor:
        executor.submit(log_evil).result()
    assert_workers_are_harmless(capfd.readouterr().err, 1)


def test_workers_of_the_engine_log_without_obeying(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = ShardJob("log", [Shard("part-0.txt", 0, 1)], load_work)
    with open_workspace(tmp_path / "w", {}) as workspace:
        make_parts(job, workspace, EngineConfig(workers=2))
    assert_workers_are_harmless(capfd.readouterr().err, 2)


def test_workers_of_a_cluster_log_without_obeying() -> None:
    code = (
        "import sys, types\n"
        "sys.modules['ray'] = types.SimpleNamespace(get=None)\n"
        "from prixlm.engine.cluster import _Actor\n"
        "from tests.hostile.workers import log_evil\n"
        "_Actor({}, [None])\n"
        "log_evil()\n"
    )
    ran = run_python(code, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    assert_workers_are_harmless(ran.stderr, 1)


def test_a_thread_that_fails_is_not_obeyed() -> None:
    code = (
        "import threading; from prixlm.untrusted import log_to_stderr; log_to_stderr()\n"
        f"def fail(): raise AssertionError({EVIL!r})\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
    )
    ran = run_python(code)
    assert r"\x1b]0;owned" in ran.stderr
    assert_harmless(Ran(0, ran.stdout, ran.stderr.replace("Traceback (most", "")))


def test_a_failure_of_our_own_is_not_obeyed_either() -> None:
    code = (
        "import prixlm.cli.app as cli\n"
        f"def fail(): raise AssertionError({EVIL!r})\n"
        "cli.app = fail\n"
        "cli.main()\n"
    )
    ran = run_python(code)
    assert ran.returncode == 1 and "Traceback" in ran.stderr and r"\x1b]0;owned" in ran.stderr
    assert_harmless(Ran(0, ran.stdout, ran.stderr.replace("Traceback (most", "")))


def test_the_server_logs_a_path_without_obeying_it() -> None:
    from prixlm.untrusted import SafeFormatter

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SafeFormatter(limit=200))
    logger = logging.Logger("hostile")
    logger.addHandler(handler)
    for name in NAMES:
        logger.warning("GET %s failed", name)
    assert len(stream.getvalue().splitlines()) == len(NAMES)
    assert_harmless(Ran(0, stream.getvalue(), ""))
