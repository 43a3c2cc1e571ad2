"""Benchmarks generate what they state, and count what they measure."""

import http.server
import importlib.util
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from prixlm import KB, import_kb
from prixlm.languages import script_of_language, script_of_text
from tests.helpers import run_python

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_bench", BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)  # a script imports those beside it
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wikidata() -> ModuleType:
    return load("wikidata")


@pytest.fixture(scope="module")
def serve() -> ModuleType:
    return load("serve")


@pytest.fixture(scope="module")
def openrefine() -> ModuleType:
    return load("openrefine")


def test_the_generated_dump_is_imported_whole(wikidata: ModuleType, tmp_path: Path) -> None:
    num_items = wikidata.write_dump(tmp_path / "dump.json", 3000, 20)
    kb = import_kb([tmp_path / "dump.json"], tmp_path / "kb")
    account = kb.manifest.account
    assert account["imported"]["facts"] == 3000
    assert set(account["rejected"]) == {"object is a literal"}
    named = kb.query("SELECT lang, count(*) FROM entities GROUP BY ALL").fetchall()
    assert len(named) == 20
    for lang, number in named:
        assert number / num_items == pytest.approx(0.75, abs=0.06), lang


def test_the_generated_dump_is_the_same_for_the_same_seed(
    wikidata: ModuleType, tmp_path: Path
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        wikidata.write_dump(tmp_path / name, 500, 5, seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_names_of_an_item_are_spelled_in_the_script_of_each_language(wikidata: ModuleType) -> None:
    word = ((2, 1), (8, 0), (9, 4))
    names = {lang: wikidata.spell(word, lang) for lang in wikidata.LANGUAGES}
    assert names["en"] == "Kesalu" and names["ru"] == "Кесалу" and names["ja"] == "ケサル"
    assert names["ko"] == "케사루" and names["te"] == "కెసలు" and names["th"] == "เกสาลุ"
    for lang, name in names.items():
        script = script_of_language(lang)
        assert script_of_text(name) == ("Kana" if script == "Jpan" else script), lang


def test_facts_follow_from_each_other_four_times_in_five(wikidata: ModuleType) -> None:
    facts = list(wikidata.make_world(20_000).facts)
    assert len(facts) == 20_000
    known = set(facts)

    def share(relation: str, inverse: str) -> float:
        pairs = [(s, o) for s, r, o in facts if r == relation]
        return sum((o, inverse, s) in known for s, o in pairs) / len(pairs)

    assert share("P36", "P1376") == pytest.approx(0.8, abs=0.15)
    assert share("P50", "P800") == pytest.approx(0.8, abs=0.03)
    assert share("P22", "P40") == pytest.approx(0.8, abs=0.03)
    assert share("P26", "P26") == pytest.approx(0.8, abs=0.03)
    country = {s: o for s, r, o in facts if r == "P17"}
    birth = {s: country[o] for s, r, o in facts if r == "P19"}
    citizens = {s: o for s, r, o in facts if r == "P27"}
    assert all(birth[person] == citizens[person] for person in citizens)
    assert len(citizens) / len(birth) == pytest.approx(0.8, abs=0.03)


def test_objects_follow_zipfs_law(wikidata: ModuleType) -> None:
    births = Counter(o for _, r, o in wikidata.make_world(20_000).facts if r == "P19")
    (_, first), *_, (_, tenth) = births.most_common(10)
    assert 5 < first / tenth < 20


WORK = """
import json, pathlib, sys, time
work = pathlib.Path(sys.argv[1])
(work / "kb").mkdir(parents=True)
time.sleep(0.4)
(work / "work.json").write_text(json.dumps({"seconds": {"kb": 0.4}}))
time.sleep(0.3)
much = bytearray(200 * 2**20)
time.sleep(0.8)
(work / "work.tmp").write_text(json.dumps({"seconds": {"kb": 0.4, "ask": 0.8}}))
(work / "work.tmp").rename(work / "work.json")
sys.exit(int(sys.argv[2]))
"""


def test_a_step_is_measured_until_the_work_folder_gives_its_time(
    wikidata: ModuleType, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path / "work"), "0"]
    kb, ask, rest = wikidata.measure_steps(command, tmp_path / "work")
    assert (kb[0], ask[0], rest[0]) == ("kb", "ask", "the rest")
    assert kb[1] > 0.3 and ask[1] > 0.8
    assert ask[2] > 200 > kb[2] > 1


def test_a_command_that_fails_fails_the_benchmark(wikidata: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path / "work"), "3"]
    with pytest.raises(subprocess.CalledProcessError):
        list(wikidata.measure_steps(command, tmp_path / "work"))


def test_the_main_command_gets_the_options_of_the_benchmark(
    wikidata: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command is recorded, not run: the whole takes minutes."""
    seen = []

    def measure_steps(command: list[str], work: Path) -> list[tuple[str, float, float]]:
        seen.append(command[3:])
        return [("kb", 1.0, 100.0), ("proposals", 2.0, 300.0)]

    monkeypatch.setattr(wikidata, "measure_steps", measure_steps)
    args = ["--run", "dump.json", "--work", str(tmp_path / "new"), "--into", "et", "--minutes", "9"]
    monkeypatch.setattr(sys, "argv", ["wikidata.py", *args])
    wikidata.main()
    [command] = seen
    assert command[:4] == ["enrich", "dump.json", "--into", "et"]
    assert command[4:] == ["--to", str(tmp_path / "new"), "--effort", "quick", "--minutes", "9"]
    assert "| **quick, all** | 3.0 | 300 |" in capsys.readouterr().out


class Moody(http.server.BaseHTTPRequestHandler):
    """Answers by the number in the address: a status, with `Retry-After` below 1000."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        number = int(self.path.strip("/"))
        self.send_response(number % 1000)
        if number < 1000:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def moody() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moody) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("paths", "wrong"),
    [
        ([200], set()),
        ([200, 503, 429], set()),
        ([200, 500], {"500"}),
        ([200, 404], {"404"}),
        ([200, 1503], {"503 without Retry-After"}),
    ],
)
def test_only_a_request_to_come_back_later_is_not_an_error(
    serve: ModuleType, moody: str, paths: list[int], wrong: set[str]
) -> None:
    requests = [serve.Asked("GET", f"/{path}").encode("here") for path in paths]
    results: queue.Queue[object] = queue.Queue()
    serve.measure(moody, requests, 2, 0.3, results)
    tally, took = results.get()  # type: ignore[misc]
    assert set(tally.wrong) == wrong
    assert len(tally.seconds) == tally.statuses["200"] >= 2 and took >= 0.3


def test_a_server_that_is_gone_is_an_error(serve: ModuleType) -> None:
    results: queue.Queue[object] = queue.Queue()
    serve.measure("http://127.0.0.1:9", [b"GET / HTTP/1.1\r\n\r\n"], 1, 0.2, results)
    tally, _ = results.get()  # type: ignore[misc]
    assert set(tally.wrong) == {"ConnectionRefusedError"} and tally.seconds == []


def test_a_served_kb_answers_the_requests_of_the_load(serve: ModuleType, shared_toy: KB) -> None:
    requests = {part: serve.make_requests(part, shared_toy) for part in serve.PARTS}
    with serve.running_server("--kb", str(shared_toy.folder)) as (address, process):
        with serve.Memory(process) as memory:
            assert serve.warm_up(address, requests["search"]) > 10
            assert serve.warm_up(address, requests["reconcile"]) > 10
            with pytest.raises(SystemExit, match="nothing to complete facts with"):  # no model
                serve.warm_up(address, requests["complete"])
            threading.Event().wait(2)  # a few samples more
        assert memory.whole[0] > memory.private[0] > 30
        assert "MiB at first" in memory.describe()


def test_a_server_that_does_not_start_ends_the_load(serve: ModuleType, tmp_path: Path) -> None:
    with (
        pytest.raises(SystemExit, match="is not a KB folder"),
        serve.running_server("--kb", str(tmp_path)),
    ):
        pass


def test_without_openrefine_the_benchmark_says_why(
    openrefine: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["openrefine.py"])
    with pytest.raises(SystemExit, match="openrefine is not installed"):
        openrefine.main()


def test_right_and_matched_rows_are_counted(
    openrefine: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["Αθήνα", "Πάτρα", "Xbox", "Νίκος"]
    questions = [openrefine.Question(name, frozenset({name})) for name in names]
    rows = [("Αθήνα", "Αθήνα"), ("Xbox", "Xbox"), ("Xbox", ""), ("", "")]
    judged = [openrefine.Judged(best, 50.0, match) for best, match in rows]
    openrefine.describe("service", questions, judged, 1.5)
    assert capsys.readouterr().out == "| service | 50.0% | 33.3% | 2 | 50.0% | 1.5 |\n"
    assert openrefine.plain("http://dbpedia.org/resource/C#12") == "http://dbpedia.org/resource/C"


def test_kills_compares_what_holds_no_times(tmp_path: Path) -> None:
    kills, cases = load("kills"), load("kill_cases")
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.parquet").write_bytes(b"same")
        (tmp_path / folder / "metrics.jsonl").write_text(folder)
    one, other = (cases.digests(tmp_path / folder) for folder in ("one", "other"))
    assert list(one) == ["one/a.parquet"] and list(one.values()) == list(other.values())
    assert cases.digests(tmp_path / "one" / "a.parquet").keys() == {"a.parquet"}
    assert kills.Tally(kills=3).is_good() and not kills.Tally(lost=1).is_good()


def test_kills_has_every_command_that_the_issue_names(tmp_path: Path) -> None:
    known = {name.split(" ")[0] for name in load("kills").cases(tmp_path)}
    assert known >= {
        *("import", "split", "graph", "pretrain", "mirror", "complete", "link", "enrich"),
        *("review", "export"),
    }


def test_a_killed_command_leaves_nothing_and_an_ended_one_is_not_killed(tmp_path: Path) -> None:
    """In a process of its own: forks of one with other threads may hang."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import kills\n"
        "args = ('import', '--format', 'world', '--to', sys.argv[2])\n"
        "assert kills.kill_after(0.2, *args)\n"
        "assert not kills.kill_after(60, '--version')\n"
        "process = kills.Forked('--version')\n"
        "assert process.wait(60) == 0 and process.output().startswith('prixlm ')\n"
        "assert not process.kill()\n"
        "kills.finish_forked('stats', '--help')\n"
    )
    ran = run_python(code, BENCHMARKS, tmp_path / "kb")
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "kb").exists()


def test_the_generated_parts_of_the_merge_are_what_an_import_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark compares bytes itself; items have more triples than facts."""
    merge = load("merge")
    merge.compare_answers(tmp_path / "small", 400)
    assert "399 generated rows" in capsys.readouterr().out
    parts = merge.Parts(tmp_path / "items" / "parts")
    merge.write_items(parts, 4_000)
    found = merge.join(tmp_path / "items", "1GiB", parts.num_rows)
    # 1.545 on average; of so few items, the one that ends an eighth of the facts moves it.
    assert found["triples"] / (4_000 * 5 / 8) == pytest.approx(1.545, abs=0.3)


def test_questions_of_the_engines_benchmark_are_different_and_stated_ones_come_first(
    shared_toy: KB, tmp_path: Path
) -> None:
    engine = load("engine")
    asked = shared_toy.num_entities * shared_toy.num_relations
    for number in (5, asked // 2, asked):
        engine.write_queries(shared_toy, number, tmp_path / f"{number}.parquet")
        rows = pq.read_table(tmp_path / f"{number}.parquet").to_pylist()
        assert len({tuple(row.values()) for row in rows}) == number
    names = shared_toy.query(
        "SELECT DISTINCT e.lang, e.name, r.key FROM triples t JOIN entities e ON e.id = t.subject "
        "JOIN relations r ON r.id = t.relation"
    ).fetchall()
    first = [(row["lang"], row["subject"], row["relation"]) for row in rows[: len(names)]]
    assert set(first) == set(names)
    with pytest.raises(SystemExit, match="different ones"):
        engine.write_queries(shared_toy, asked + 1, tmp_path / "more.parquet")
