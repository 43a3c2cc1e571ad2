"""The Ray engine: the parts of one process, from workers and nodes that may die.

`PRIXLM_TEST_CLUSTER=1` (as `make test-cluster` sets it) adds rounds of random kills.
"""

import dataclasses
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from prixlm import KB, PrixError
from prixlm.engine import cluster, jobs
from prixlm.engine.jobs import EngineConfig, make_parts
from prixlm.engine.workspace import open_workspace
from prixlm.errors import ShardsFailed
from prixlm.training.pretrain import pretrain
from tests.engine.helpers import NUM_SHARDS, OfOtherCode, expected, squares, tried
from tests.engine.test_jobs import run
from tests.training.helpers import TINY

ray = pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray itself

ROOT = Path(__file__).parents[2]
DRIVER = """
import sys
from pathlib import Path
from prixlm.engine.jobs import EngineConfig
from tests.engine.helpers import squares
from tests.engine.test_jobs import run
folder, address, number, seconds = sys.argv[1:]
config = EngineConfig(kind="ray", address=address, workers=3)
run(squares(Path(folder), int(number), float(seconds)), Path(folder), config)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine: a head without workers, and two others."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Workers import the tests; nodes inherit the environment of the one that starts them.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20},
        )
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=100 << 20)
        yield made
        made.shutdown()


def on(nodes: Any, workers: int = 3) -> EngineConfig:
    return EngineConfig(kind="ray", address=nodes.address, workers=workers)


def test_ray_makes_the_parts_of_one_process_whatever_fails_and_dies(
    nodes: Any, tmp_path: Path
) -> None:
    """One worker dies once, one shard always fails, and one always ends its worker."""
    for name in ("die-once-5", "fail-2", "die-7"):
        (tmp_path / name).touch()
    with pytest.raises(ShardsFailed) as caught:
        run(squares(tmp_path, seconds=0.05), tmp_path, on(nodes))
    text = str(caught.value)
    assert "2 of 12 parts failed in 3 tries each: part-002.txt, part-007.txt." in text
    assert "out of memory" in text
    assert len(list((tmp_path / "work").glob("part-*"))) == NUM_SHARDS - 2
    numbers = tried(tmp_path)
    assert set(numbers) == set(range(NUM_SHARDS))
    assert [numbers.count(number) for number in (2, 5, 7)] == [3, 2, 3]
    pids = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(pids) >= 2 and str(os.getpid()) not in pids
    (tmp_path / "fail-2").unlink()
    (tmp_path / "die-7").unlink()
    assert run(squares(tmp_path), tmp_path) == expected(), "finished by another engine"


def test_what_the_user_can_fix_stops_the_job_on_ray(nodes: Any, tmp_path: Path) -> None:
    (tmp_path / "refuse-2").touch()
    with pytest.raises(PrixError, match="2 is not to be squared"):
        run(squares(tmp_path), tmp_path, on(nodes, workers=1))


def test_a_worker_that_dies_while_it_loads_is_replaced_on_ray(nodes: Any, tmp_path: Path) -> None:
    (tmp_path / "die-once-load").touch()
    assert run(squares(tmp_path), tmp_path, on(nodes, workers=2)) == expected()


def test_versions_are_compared_before_the_task_is_read_on_ray(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "versions", lambda: {"prixlm": "0.0.1"})
    job = dataclasses.replace(squares(), load=OfOtherCode())
    with pytest.raises(PrixError, match=r"has prixlm .*and the driver 0\.0\.1: install the same"):
        run(job, tmp_path, on(nodes, workers=1))


def test_ray_leaves_the_handlers_of_signals_as_they_were(nodes: Any, tmp_path: Path) -> None:
    handlers = []

    def note(*_: object) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))

    def stop(*_: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with open_workspace(tmp_path / "work", {}) as work:
            make_parts(squares(), work, on(nodes, workers=1), note)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(handlers) == {stop}


def test_the_connection_outlives_the_last_thread_of_ray_data(nodes: Any) -> None:
    """A thread that is left would connect again, and the next job would find Ray in use."""
    connected = []

    def last_step() -> None:
        time.sleep(0.5)
        connected.append(ray.is_initialized())

    with cluster._connected(on(nodes)):
        threading.Thread(target=last_step, name="StreamingExecutor-late").start()
    assert connected == [True] and not ray.is_initialized()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "\x1b[36mray::_MapWorker.__init__()\x1b[39m (pid=1)\n  File x\nOSError: gone\n",
            "OSError",
        ),
        ("The actor died.\n\tclass_name: _MapWorker\n\tnode gone", "The actor died."),
    ],
)
def test_an_error_of_ray_is_its_cause(text: str, reason: str) -> None:
    assert cluster._reason(ValueError(text)).startswith(f"ValueError: {reason}")


def start_driver(
    nodes: Any, folder: Path, number: int, seconds: float
) -> "subprocess.Popen[bytes]":
    """Run the job in a process of its own, which can be killed."""
    (folder / "driver.py").write_text(DRIVER)
    command = [sys.executable, folder / "driver.py", folder, nodes.address]
    with (folder / "stderr").open("a") as errors:
        return subprocess.Popen([*command, str(number), str(seconds)], stderr=errors)


def kill_node(nodes: Any, number: int) -> None:
    """End a node and its workers at once, without a good-bye."""
    node = sorted(nodes.worker_nodes, key=lambda node: str(node.unique_id))[number]
    nodes.remove_node(node, allow_graceful=False)


def is_worker(pid: int) -> bool:
    """Whether a process is one of Ray's: the number may be that of another process by now."""
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def wait_for_parts(folder: Path, number: int, driver: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while len(list((folder / "work").glob("part-*"))) < number and time.monotonic() < deadline:
        assert driver.poll() is None, (folder / "stderr").read_text()
        time.sleep(0.01)


def test_a_killed_node_and_a_killed_driver_change_nothing(nodes: Any, tmp_path: Path) -> None:
    number = 60
    driver = start_driver(nodes, tmp_path, number, 0.1)
    wait_for_parts(tmp_path, 3, driver)
    kill_node(nodes, 0)
    wait_for_parts(tmp_path, 9, driver)
    driver.kill()
    driver.wait()
    nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
    assert 9 <= len(list((tmp_path / "work").glob("part-*"))) < number
    assert run(squares(tmp_path, number), tmp_path, EngineConfig(workers=2)) == expected(number)


@pytest.mark.skipif(not os.environ.get("PRIXLM_TEST_CLUSTER"), reason="make test-cluster runs it")
@pytest.mark.parametrize("seed", range(10))
def test_random_kills_lose_no_part_and_make_none_twice(
    nodes: Any, tmp_path: Path, seed: int
) -> None:
    """Kill a worker, a node or the driver at random moments until the job is done."""
    generator, number = random.Random(seed), 120
    driver = start_driver(nodes, tmp_path, number, 0.1)
    killed = []
    for kind in generator.sample(["worker", "node", "driver"] * 2, 6):
        wait_for_parts(tmp_path, 1, driver)
        time.sleep(generator.uniform(0.2, 2.0))
        if driver.poll() == 0:
            break
        if kind == "worker":
            pids = {int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()}
            alive = [pid for pid in sorted(pids) if is_worker(pid)]
            if not alive:
                continue
            os.kill(generator.choice(alive), signal.SIGKILL)
        elif kind == "node":
            kill_node(nodes, generator.randrange(2))
            nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
        else:
            driver.kill()
            driver.wait()
            driver = start_driver(nodes, tmp_path, number, 0.1)
        killed.append(kind)
    assert driver.wait(300) == 0, (killed, (tmp_path / "stderr").read_text())
    assert killed, "the job was done before anything was killed"
    begun = tried(tmp_path)
    assert run(squares(tmp_path, number), tmp_path, on(nodes)) == expected(number), killed
    assert tried(tmp_path) == begun, "finished parts are not made again"
    # Begun again is only what a kill has interrupted; the workers of a dead driver may each begin
    # the shard that they have received beside the one that they make.
    interrupted = sum({"worker": 1, "node": 1, "driver": 2 * 3}[kind] for kind in killed)
    assert set(begun) == set(range(number)) and len(begun) <= number + interrupted, killed
    assert {path.name for path in (tmp_path / "work").glob("part-*")} == {
        shard.part for shard in squares(number=number).shards
    }


@pytest.fixture(scope="module")
def asked(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model, 40 parts of questions, and what one process answers."""
    folder = tmp_path_factory.mktemp("asked")
    pretrain(shared_toy, folder / "model", TINY)
    names = shared_toy.query("SELECT lang, name FROM entities").fetchall()
    relations = shared_toy.relation_keys()
    rows = [(lang, name, relation) for lang, name in names for relation in relations]
    lines = ["\t".join(rows[number % len(rows)]) for number in range(40 * 256)]
    (folder / "questions.tsv").write_text("\n".join(["lang\tsubject\trelation", *lines]) + "\n")
    complete(folder, shared_toy, folder / "one.parquet", "--workers", "1").check_returncode()
    return folder


def completing(folder: Path, kb: KB, out: Path, *engine: str) -> list[str]:
    """The command that answers all questions."""
    command = [sys.executable, "-m", "prixlm", "complete", str(folder / "model")]
    command += ["--kb", str(kb.folder), "--queries", str(folder / "questions.tsv")]
    return [*command, "--beam", "5", "--out", str(out), *engine]


def complete(folder: Path, kb: KB, out: Path, *engine: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(completing(folder, kb, out, *engine), check=False, capture_output=True)


@pytest.mark.skipif(not os.environ.get("PRIXLM_TEST_CLUSTER"), reason="make test-cluster runs it")
@pytest.mark.parametrize("seed", range(3))
def test_random_kills_change_no_answer(
    nodes: Any, asked: Path, shared_toy: KB, tmp_path: Path, seed: int
) -> None:
    """`complete` with a model, while a worker, a node and the driver are killed at some moment."""
    generator = random.Random(seed)
    out, parts = tmp_path / "answers.parquet", tmp_path / "answers.parquet.partial"
    engine = ("--engine", "ray", "--address", nodes.address, "--workers", "3")

    def start() -> "subprocess.Popen[bytes]":
        with (tmp_path / "stderr").open("a") as errors:
            return subprocess.Popen(completing(asked, shared_toy, out, *engine), stderr=errors)

    driver, killed = start(), []
    for kind in generator.sample(["worker", "node", "driver"], 3):
        found = len(list(parts.glob("part-*")))
        deadline = time.monotonic() + 120
        while len(list(parts.glob("part-*"))) <= found and time.monotonic() < deadline:
            if driver.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(generator.uniform(0.0, 1.0))
        if driver.poll() is not None:
            break
        if kind == "worker":
            workers = [process.pid for process in psutil.process_iter() if is_worker(process.pid)]
            os.kill(generator.choice(workers), signal.SIGKILL)
        elif kind == "node":
            kill_node(nodes, generator.randrange(2))
            nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
        else:
            driver.kill()
            driver.wait()
            driver = start()
        killed.append(kind)
    assert driver.wait(300) == 0, (killed, (tmp_path / "stderr").read_text())
    assert killed, "the questions were answered before anything was killed"
    assert out.read_bytes() == (asked / "one.parquet").read_bytes(), killed


def test_no_cluster_at_the_address_is_one_line_at_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = EngineConfig(kind="ray", address=f"127.0.0.1:{port}")
    started = time.monotonic()
    with pytest.raises(PrixError, match=rf"no Ray cluster at 127.0.0.1:{port} .*ray start --head"):
        run(squares(), tmp_path, config)
    assert time.monotonic() - started < 30


def test_a_worker_needs_room_on_one_machine() -> None:
    class Small:
        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            return [
                {"Alive": True, "Resources": {"CPU": 6.0, "GPU": 1.0}},
                {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
                {"Alive": True, "Resources": {"CPU": 1.0}},
                {"Alive": False, "Resources": {"CPU": 4.0, "GPU": 8.0}},
            ]

    for gpus, room in ((0.0, 9), (1.0, 2), (0.5, 4), (0.4, 4), (0.1, 8)):
        config = EngineConfig(kind="ray", gpus_per_worker=gpus)
        assert cluster._check_room(Small, config) == room, gpus
    for workers in (None, 1):
        config = EngineConfig(kind="ray", workers=workers, gpus_per_worker=2.0)
        with pytest.raises(PrixError, match="9 CPUs and 2 GPUs on 3 machines: not enough on any"):
            cluster._check_room(Small, config)


def test_a_worker_that_asks_for_more_than_there_is_does_not_wait(
    nodes: Any, tmp_path: Path
) -> None:
    config = dataclasses.replace(on(nodes), gpus_per_worker=1.0)
    with pytest.raises(
        PrixError, match=r"0 GPUs on \d machines: not enough on any for a worker with 1"
    ):
        run(squares(), tmp_path, config)


def test_a_machine_that_is_too_busy_to_start_ray_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray raises a plain `Exception` when its own processes do not answer in time."""

    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because…")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(PrixError, match=r"Ray did not start on this machine \(The current node"):
        run(squares(), tmp_path, EngineConfig(kind="ray", workers=1))
