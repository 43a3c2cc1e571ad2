"""The main job: its steps, made once and resumed, and what it refuses."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from prixlm import (
    KB,
    EngineConfig,
    EnrichConfig,
    GraphConfig,
    JobConfig,
    PretrainConfig,
    PrixError,
    SplitConfig,
    run_job,
    split_kb,
)
from prixlm.enrichment import job as job_module
from prixlm.enrichment.budget import Costs, Plan
from prixlm.enrichment.job import Given, open_job
from prixlm.lm import compact
from prixlm.lm.compact import CompactConfig
from prixlm.proposals.marks import Marks, NewMark, read_verdicts
from prixlm.training.loop import TrainingConfig
from prixlm.training.sampler import SupplyConfig
from tests.enrichment.helpers import FUSION, INTO, PROPOSALS, QUICK

STANDARD = replace(QUICK, effort="standard")
TINY = PretrainConfig(
    base="compact",
    epochs=1,
    batch=64,
    supply=SupplyConfig(max_links=1),
    training=TrainingConfig(lr=1e-3),
    compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
)
PLAN = Plan(
    effort="standard",
    graph=GraphConfig(rank=4, epochs=2, batch=100),
    model=TINY,
    costs={"graph": Costs(seconds=100)},
    notes=("A note.",),
)
TRAINED = replace(STANDARD, plan=PLAN)
RESULTS = ("proposals/proposals.parquet", "proposals/labels.parquet", "proposals/manifest.json")


@pytest.fixture(scope="module")
def done(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a quick job; tests copy it before they change it."""
    work = tmp_path_factory.mktemp("done") / "work"
    run_job(files, work, QUICK)
    return work


@pytest.fixture
def work(done: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(done, tmp_path / "work")


@pytest.fixture
def fixed_plan(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Plan the same tiny models whatever the time; return the options of each call."""
    calls: list[dict[str, Any]] = []

    def make_plan(split: KB, whole: KB, effort: str, **options: Any) -> Plan:
        calls.append(options)
        return replace(PLAN, effort=effort)

    monkeypatch.setattr(job_module, "make_plan", make_plan)
    return calls


def results(work: Path) -> dict[str, bytes]:
    return {name: (work / name).read_bytes() for name in RESULTS}


def rows_of(work: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(work / "proposals/proposals.parquet").to_pylist()
    return rows


def state_of(work: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((work / "work.json").read_text("utf-8"))
    return values


def steps_of(work: Path) -> set[str]:
    return {path.name for path in work.iterdir()}


def test_a_dump_becomes_proposals_with_a_report(done: Path) -> None:
    assert steps_of(done) == {"kb", "lock", "proposals", "report", "split", "work.json"}
    manifest = json.loads((done / "proposals/manifest.json").read_text("utf-8"))
    # The questions are asked where everything is known; the confidence is fitted on the split.
    assert manifest["kb"] == KB(done / "kb").fingerprint()
    assert manifest["fitted_on_kb"] == KB(done / "split").fingerprint()
    assert {trial["lang"] for trial in manifest["trials"]} == {"fi"}, "sv has no facts"
    assert set(manifest["labels"]) == set(INTO)
    rows = rows_of(done)
    assert {row["lang"] for row in rows} >= {"sv"}
    swedish = [row for row in rows if row["lang"] == "sv"]
    assert len(swedish) > 60, "those that were held out are known, too"
    for row in swedish:
        assert row["object_name"] == row["subject_name"].replace("land", "town")
    page = (done / "report/report.html").read_text("utf-8")
    assert "confidence, fi, all facts" in page and "propose" in page
    assert set(state_of(done)["seconds"]) == {"import", "split", "propose"}


def test_no_fact_that_the_source_states_is_proposed(done: Path) -> None:
    stated = KB(done / "kb").query("SELECT subject, relation, object FROM triples").fetchall()
    rows = rows_of(done)
    assert rows
    assert not {(row["subject"], row["relation"], row["object"]) for row in rows} & set(stated)


def test_a_second_run_makes_nothing_again(
    files: list[Path], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, lines = results(work), list[str]()
    for name in ("import_kb", "split_kb", "enrich"):
        monkeypatch.setattr(job_module, name, None)
    manifest = run_job(files, work, QUICK, announce=lines.append)
    assert results(work) == before and lines == []
    assert manifest["proposals"] == json.loads(before["proposals/manifest.json"])["proposals"]


def kill_around(patch: pytest.MonkeyPatch, name: str, *, after: bool) -> None:
    """Let the job die before or right after a step."""
    step = getattr(job_module, name)

    def dying(*args: Any, **options: Any) -> None:
        if after:
            step(*args, **options)
        raise KeyboardInterrupt

    patch.setattr(job_module, name, dying)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_job_that_is_killed_at_every_step_ends_with_the_same_bytes(
    files: list[Path],
    done: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replaces: bool,
) -> None:
    """The second job replaces proposals of other settings, which --overwrite allows once."""
    work, steps = tmp_path / "work", ["import_kb", "split_kb", "enrich", "write_report"]
    if replaces:
        shutil.copytree(done, work)
        state = state_of(work)
        state["proposed"]["into"] = ["fi"]
        (work / "work.json").write_text(json.dumps(state))
        steps = ["enrich", "write_report"]
    for name in steps:
        for after in (False, True):
            with monkeypatch.context() as patch:
                kill_around(patch, name, after=after)
                with pytest.raises(KeyboardInterrupt):
                    run_job(files, work, QUICK, overwrite=replaces)
            if name == "enrich":
                replaces = False
    run_job(files, work, QUICK)
    assert results(work) == results(done)
    assert steps_of(work) == steps_of(done)


def test_the_import_of_a_job_runs_on_its_engine_without_gpus(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def note(*_: object, engine: EngineConfig, **__: object) -> None:
        given.append(engine)
        raise KeyboardInterrupt

    monkeypatch.setattr(job_module, "import_kb", note)
    with pytest.raises(KeyboardInterrupt):
        run_job(files, tmp_path, QUICK, engine=EngineConfig(workers=2, gpus_per_worker=1))
    assert given == [EngineConfig(workers=2)]


def test_a_kill_before_the_first_state_leaves_a_folder_to_work_in(
    files: list[Path], done: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "lock").touch()
    (work / "work.json.tmp").write_text('{"for')
    with open_job(files, work, QUICK):
        assert state_of(work)["source"] == state_of(done)["source"]


@pytest.fixture(scope="module")
def _one_tokenizer() -> Iterator[None]:
    """Train the tokenizer once: the pieces of a second training are in another order."""
    train, made = compact.train_tokenizer, dict[tuple[str, int, str], str]()

    def train_once(kb: KB, vocab: int, **settings: Any) -> Tokenizer:
        key = (kb.fingerprint(), vocab, str(settings))
        if key not in made:
            made[key] = train(kb, vocab, **settings).to_str()
        return Tokenizer.from_str(made[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact, "train_tokenizer", train_once)
        yield


@pytest.fixture(scope="module")
def trained(_one_tokenizer: None, kb: KB, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a job that trained a graph embedding and a model."""
    work = tmp_path_factory.mktemp("trained") / "work"
    run_job([kb.folder], work, TRAINED)
    return work


def test_a_standard_job_trains_what_is_planned(kb: KB, trained: Path) -> None:
    made = {"graph", "graph-all", "model"}
    assert steps_of(trained) == {"lock", "proposals", "report", "split", "work.json"} | made
    manifest = json.loads((trained / "proposals/manifest.json").read_text("utf-8"))
    assert {"Prix-LM", "graph"} <= set(manifest["rankers"])
    assert manifest["kb"] == kb.fingerprint()
    graphs = [trained / name / "graph.json" for name in ("graph", "graph-all")]
    assert [json.loads(path.read_text("utf-8"))["kb"] for path in graphs] == [
        KB(trained / "split").fingerprint(),
        kb.fingerprint(),
    ]
    state = state_of(trained)
    assert state["made"] == ["graph", "graph-all", "model"]
    assert made | {"split", "propose"} == set(state["seconds"])


def test_other_languages_need_no_other_models(
    kb: KB, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, lines = shutil.copytree(trained, tmp_path / "work"), list[str]()
    for name in ("make_plan", "split_kb", "train_graph", "pretrain"):
        monkeypatch.setattr(job_module, name, None)
    other = replace(TRAINED, into=("sv",), enrich=replace(PROPOSALS, into=("sv",)))
    with pytest.raises(PrixError, match=r"has proposals of other settings\. Pass --overwrite"):
        run_job([kb.folder], work, other)
    manifest = run_job([kb.folder], work, other, overwrite=True, announce=lines.append)
    assert manifest["config"]["into"] == ["sv"] and "Prix-LM" in manifest["rankers"]
    assert lines[0].startswith("What is trained, about 2 min:") and "A note." in lines[0]


def test_a_training_that_is_killed_ends_with_the_same_bytes(
    kb: KB, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within a training, and right after it, before the state says that it is done."""
    work = tmp_path / "work"
    for folder, step in (("graph", "train_graph"), ("model", "pretrain")):

        def dying(stage: str, done: int, total: int, folder: str = folder) -> None:
            if stage.startswith("train") and 2 * done >= total and (work / folder).is_dir():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_job([kb.folder], work, TRAINED, progress=dying)
        assert folder not in state_of(work)["made"]
        with monkeypatch.context() as patch:
            kill_around(patch, step, after=True)
            with pytest.raises(KeyboardInterrupt):
                run_job([kb.folder], work, TRAINED)
        assert folder not in state_of(work)["made"]
    run_job([kb.folder], work, TRAINED)
    assert results(work) == results(trained)
    for name in ("graph", "graph-all", "model"):
        weights = f"{name}/model.safetensors"
        assert (work / weights).read_bytes() == (trained / weights).read_bytes()


def test_another_effort_is_planned_and_trained_again(
    kb: KB, tmp_path: Path, fixed_plan: list[dict[str, Any]]
) -> None:
    work = tmp_path / "work"
    with open_job([kb.folder], work, STANDARD) as job:
        split = job.split()
    for name in ("graph", "model"):
        (work / name).mkdir()
    state = state_of(work) | {"planned": {"effort": "standard"}, "made": ["graph", "model"]}
    (work / "work.json").write_text(json.dumps(state))
    run_job([kb.folder], work, QUICK)
    assert steps_of(work) == {"lock", "proposals", "report", "split", "work.json"}
    assert state_of(work)["made"] == [] and fixed_plan == []
    assert split.fingerprint() == KB(work / "split").fingerprint(), "it is kept"


def test_a_plan_is_made_once(
    kb: KB, tmp_path: Path, fixed_plan: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with open_job([kb.folder], tmp_path / "work", STANDARD) as job:
            assert job.plan(kb, kb) == PLAN
    assert len(fixed_plan) == 1
    monkeypatch.setattr(job_module, "make_plan", None)
    with open_job([kb.folder], tmp_path / "other", TRAINED) as job:
        assert job.plan(kb, kb) == PLAN, "without measuring"


def test_the_time_so_far_counts(kb: KB, tmp_path: Path, fixed_plan: list[dict[str, Any]]) -> None:
    config = replace(STANDARD, minutes=30)
    with open_job([kb.folder], tmp_path / "work", config, Given(encoder=tmp_path)) as job:
        job.state["seconds"] = {"import": 100.0, "split": 20.0, "plan": 1000.0}
        job.plan(kb, kb)
    (options,) = fixed_plan
    # A plan that was refused has taken time, too, but not of the next run.
    assert options["minutes"] == 30 and options["spent"] == 120.0
    assert options["has"] == ["encoder"]
    asked = options["num_questions"] - 2 * (FUSION.facts + PROPOSALS.tried)
    assert asked == 80 + 2 * 20, "Swedish capitals, and the languages of a quarter of the countries"


def test_a_model_that_no_longer_fits_the_minutes_is_left_out_for_good(
    kb: KB, tmp_path: Path, fixed_plan: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {"model": Costs(seconds=60.0), "ask the model": Costs(seconds=30.0)}
    monkeypatch.setattr(
        job_module, "make_plan", lambda *_, **__: replace(PLAN, effort="standard", costs=costs)
    )
    config, lines = replace(STANDARD, minutes=1.0), list[str]()
    with open_job([kb.folder], tmp_path / "work", config, announce=lines.append) as job:
        plan = job.plan(kb, kb)
        assert plan.model is not None
        job.state["seconds"] = {"graph": 10.0}
        assert job._in_time(plan).model is None
        assert "left out to keep the time" in lines[-1]
    with open_job([kb.folder], tmp_path / "work", config) as job:
        assert job.plan(kb, kb).model is None, "the next run keeps to it"


def test_minutes_that_are_too_short_leave_the_split(
    kb: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Plan:
        raise PrixError("--minutes 1 is too short to train anything.")

    with monkeypatch.context() as patch:
        patch.setattr(job_module, "make_plan", refuse)
        with pytest.raises(PrixError, match="too short"):
            run_job([kb.folder], tmp_path / "work", replace(STANDARD, minutes=1))
    monkeypatch.setattr(job_module, "split_kb", None)
    run_job([kb.folder], tmp_path / "work", QUICK)
    assert "proposals" in steps_of(tmp_path / "work")


@pytest.mark.parametrize("overwrite", [False, True])
def test_marks_are_never_lost(files: list[Path], work: Path, overwrite: bool) -> None:
    marks = Marks.open(work / "proposals")
    marks.add("Anna", [NewMark("facts", 0, "accept")])
    run_job(files, work, QUICK, overwrite=overwrite)
    other = replace(QUICK, enrich=replace(PROPOSALS, min_confidence=0.9))
    with pytest.raises(PrixError, match="of other settings that a person has reviewed"):
        run_job(files, work, other, overwrite=overwrite)
    assert read_verdicts(work / "proposals", "facts").rows.tolist() == [0]
    marks.close()


def test_marks_survive_a_kill_before_the_state_was_written(
    files: list[Path], done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = shutil.copytree(done, tmp_path / "work")
    shutil.rmtree(work / "proposals")
    with monkeypatch.context() as patch:
        kill_around(patch, "enrich", after=True)
        with pytest.raises(KeyboardInterrupt):
            run_job(files, work, QUICK)
    marks = work / "proposals" / "marks.db"
    marks.write_text("damaged marks are marks")
    with pytest.raises(PrixError, match=r"a person has reviewed|has the marks of a review"):
        run_job(files, work, QUICK, overwrite=True)
    assert marks.exists()


def test_a_work_folder_of_another_source_is_refused(
    files: list[Path], work: Path, kb: KB, tmp_path: Path
) -> None:
    longer = tmp_path / "facts.tsv"
    longer.write_text(files[0].read_text() + "en\ten land 0\tcapital\ten town 1\n")
    message = r"work was made from another source \(table facts\.tsv, links\.tsv; now table facts"
    with pytest.raises(PrixError, match=message):
        run_job([longer, files[1]], work, QUICK)
    with pytest.raises(PrixError, match=r"; now the KB [0-9a-f]{8}\)\. Name another folder"):
        run_job([kb.folder], work, QUICK)
    with pytest.raises(PrixError, match=r"now table .*, languages en, fi"):
        run_job(files, work, replace(QUICK, langs=("fi", "en")))
    # The same files in another place are the same source.
    moved = [Path(shutil.copy(path, tmp_path)) for path in files]
    assert run_job(moved, work, QUICK)["config"]["into"] == list(INTO)


def test_models_of_the_work_folder_cannot_be_given_to_it(kb: KB, tmp_path: Path) -> None:
    """Another set of given folders is another plan, and the old models are deleted."""
    work = tmp_path / "work"
    with open_job([kb.folder], work, QUICK):
        (work / "graph").mkdir()
    with pytest.raises(PrixError, match=r"--graph .*graph is in the work folder"):
        run_job([kb.folder], work, QUICK, given=Given(graph=work / "graph"))
    assert (work / "graph").is_dir()


def test_a_split_is_taken_as_it_is_and_everything_it_knows_is_evidence(
    kb: KB, tmp_path: Path
) -> None:
    split = split_kb(kb, tmp_path / "split", SplitConfig(test=0.1, valid=0.15))
    manifest = run_job([split.folder], tmp_path / "work", QUICK)
    work = tmp_path / "work"
    assert steps_of(work) == {"everything", "lock", "proposals", "report", "work.json"}
    assert manifest["fitted_on_kb"] == split.fingerprint()
    everything = KB(work / "everything")
    assert manifest["kb"] == everything.fingerprint()
    assert everything.num_triples(split="train") == kb.num_triples()
    stated = kb.query("SELECT subject, relation, object FROM triples").fetchall()
    rows = rows_of(work)
    assert not {(row["subject"], row["relation"], row["object"]) for row in rows} & set(stated)
    assert len([row for row in rows if row["lang"] == "sv"]) > 60


def test_a_split_without_valid_facts_is_refused_with_the_remedy(kb: KB, tmp_path: Path) -> None:
    split = split_kb(kb, tmp_path / "split", SplitConfig(test=0.1, valid=0.0))
    with pytest.raises(PrixError, match=r"no valid facts .*`prixlm split .*--resplit"):
        run_job([split.folder], tmp_path / "work", QUICK)


def test_a_source_of_one_language_says_what_can_still_be_done(
    files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    english = [line for line in files[0].read_text().splitlines() if line[:2] in ("la", "en")]
    (tmp_path / "facts.tsv").write_text("\n".join(english) + "\n")
    config = replace(QUICK, into=("en",), enrich=replace(PROPOSALS, into=("en",), min_confidence=0))
    manifest = run_job([tmp_path / "facts.tsv"], tmp_path / "work", config)
    assert "has one language: no fact can be carried over" in caplog.text
    assert set(manifest["proposals"]["en"]) == {"usual"}


def test_a_source_without_links_gets_guesses(
    files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(QUICK, into=("fi",), enrich=replace(PROPOSALS, into=("fi",), min_confidence=0))
    manifest = run_job(files[:1], tmp_path / "work", config)
    assert "no links between its languages" in caplog.text
    assert set(manifest["proposals"]["fi"]) == {"usual"}


def test_links_are_withheld_for_an_encoder_only(kb: KB, tmp_path: Path) -> None:
    for number, (config, given, expected) in enumerate(
        (
            (QUICK, Given(), False),
            (replace(QUICK, effort="thorough"), Given(), True),
            (replace(QUICK, effort="thorough"), Given(encoder=tmp_path), False),
        )
    ):
        with open_job([kb.folder], tmp_path / str(number), config, given) as job:
            split = job.split()
        assert split.withholds_links is expected
        assert split.num_triples(split="valid") > 20 and split.num_triples(split="test") > 10


def test_an_effort_that_needs_withheld_links_makes_another_split(kb: KB, tmp_path: Path) -> None:
    for effort, expected in (("quick", False), ("thorough", True), ("standard", False)):
        with open_job([kb.folder], tmp_path / "work", replace(QUICK, effort=effort)) as job:
            assert job.split().withholds_links is expected


def test_only_one_job_at_a_time_works_in_a_folder(kb: KB, tmp_path: Path) -> None:
    with (
        open_job([kb.folder], tmp_path / "work", QUICK),
        pytest.raises(PrixError, match="another command is running in"),
    ):
        run_job([kb.folder], tmp_path / "work", QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "slow"}, "--effort slow: expected quick, standard, thorough"),
        ({"base": "xlm-roberta-base"}, "--base requires --effort thorough"),
        ({"effort": "quick", "minutes": 3}, "--effort quick trains nothing"),
        ({"into": ()}, "no language given"),
        ({"into": ("klingonish",)}, "unknown language klingonish"),
        ({"enrich": EnrichConfig(into=("et",))}, "into is fi, but that of enrich is et"),
    ],
)
def test_bad_settings_of_a_job_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PrixError, match=message):
        JobConfig(**({"into": ("fi",)} | options))


def test_names_are_proposed_unless_the_settings_say_otherwise() -> None:
    assert JobConfig(into=("fi",)).proposals == EnrichConfig(into=("fi",), labels=True)
    assert JobConfig(into=("no",)).into == EnrichConfig(into=("no",)).into


@pytest.mark.parametrize(
    "changes",
    [
        {"source": None},
        {"source": {"x": 1}},
        {"version": 2},
        {"plan": {}},
        {"plan": "x"},
    ],
)
def test_a_damaged_state_is_one_line(
    files: list[Path], work: Path, changes: dict[str, Any]
) -> None:
    state = state_of(work) | changes
    (work / "work.json").write_text(json.dumps(state))
    with pytest.raises(PrixError, match=r"work\.json is damaged.*Name another folder"):
        run_job(files, work, QUICK)


@pytest.mark.parametrize("name", ["proposals.parquet", "manifest.json"])
def test_damaged_proposals_are_made_again_but_never_with_marks(
    files: list[Path], done: Path, work: Path, name: str
) -> None:
    (work / "proposals" / name).unlink()
    run_job(files, work, QUICK)
    assert results(work) == results(done)
    marks = Marks.open(work / "proposals")
    marks.add("Anna", [NewMark("facts", 0, "accept")])
    marks.close()
    (work / "proposals" / name).unlink()
    with pytest.raises(PrixError, match=r"damaged and holds the marks .* Move all its files marks"):
        run_job(files, work, QUICK)
    # As the message says: the same proposals are made again, so that their marks hold.
    kept = work.with_name("marks.db")
    (work / "proposals" / "marks.db").rename(kept)
    shutil.rmtree(work / "proposals")
    run_job(files, work, QUICK)
    kept.rename(work / "proposals" / "marks.db")
    assert read_verdicts(work / "proposals", "facts").rows.tolist() == [0]


def test_a_small_source_is_refused_or_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(number: int) -> Path:
        path = tmp_path / f"{number}.tsv"
        rows = (f"fi\tmaa {n}\tpääkaupunki\tkaupunki {n % 7}\n" for n in range(number))
        path.write_text("lang\tsubject\trelation\tobject\n" + "".join(rows), "utf-8")
        return path

    config = JobConfig(into=("fi",), effort="quick")
    with pytest.raises(PrixError, match=r"the source has 1 facts: too few to hold some out"):
        run_job([write(1)], tmp_path / "few", config)
    with open_job([write(200)], tmp_path / "some", config) as job:
        job.split()
    assert "because the source has only 200: do not rely on it" in caplog.text


def test_sources_of_the_wrong_kind_and_missing_models_are_refused(
    kb: KB, files: list[Path], done: Path, tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match=r"is a work folder\. Name a KB in it"):
        run_job([done], tmp_path / "work", QUICK)
    with pytest.raises(PrixError, match="--format and --langs are for dumps"):
        run_job([kb.folder], tmp_path / "work", replace(QUICK, format="table"))
    with pytest.raises(PrixError, match=r"--graph .*nosuch: no such folder"):
        run_job([kb.folder], tmp_path / "work", QUICK, given=Given(graph=tmp_path / "nosuch"))
