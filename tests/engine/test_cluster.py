"""The Ray engine: the parts of one process, from workers and nodes that may die.

`PRIXLM_TEST_CLUSTER=1` (as `make test-cluster` sets it) adds rounds of random kills.
"""

import dataclasses
import logging
import os
import platform
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from prixlm import KB, PrixError
from prixlm.engine import cluster, jobs
from prixlm.engine.jobs import EngineConfig, make_parts
from prixlm.engine.workspace import open_workspace
from prixlm.errors import ShardsFailed
from prixlm.training.pretrain import pretrain
from tests.engine.clusters import add_node, kill_node, on, workers_of
from tests.engine.helpers import NUM_SHARDS, OfOtherCode, expected, squares, tried
from tests.engine.test_jobs import run
from tests.training.helpers import TINY

ray = pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray itself

DRIVER = """
import sys
from pathlib import Path
from prixlm.engine.jobs import EngineConfig
from tests.engine.clusters import add_node, kill_node, on, workers_of
from tests.engine.helpers import squares
from tests.engine.test_jobs import run
folder, address, number, seconds, workers = sys.argv[1:]
config = EngineConfig(kind="ray", address=address, workers=int(workers) or None)
run(squares(Path(folder), int(number), float(seconds)), Path(folder), config)
"""


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


def test_an_error_of_a_shard_ends_nothing_but_one_of_loading_does_on_ray(
    nodes: Any, tmp_path: Path
) -> None:
    (tmp_path / "refuse-2").touch()
    (tmp_path / "full-5").touch()
    with pytest.raises(ShardsFailed, match=r"2 of 12 parts failed in 3 tries each: part-002"):
        run(squares(tmp_path), tmp_path, on(nodes, workers=1))
    assert len(list((tmp_path / "work").glob("part-*"))) == NUM_SHARDS - 2
    (tmp_path / "broken").touch()
    with pytest.raises(PrixError, match="cannot load its state: OSError: the model is not there"):
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


def test_nothing_connects_by_itself_after_a_job(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own threads would, where Ray was imported before its variable was set."""
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", True)
    assert run(squares(tmp_path), tmp_path, on(nodes, workers=1)) == expected()
    with pytest.raises(ray.exceptions.RaySystemError):
        ray.put(1)
    assert not ray.is_initialized()


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
    nodes: Any, folder: Path, number: int, seconds: float, workers: int = 3
) -> "subprocess.Popen[bytes]":
    """Run the job in a process of its own, which can be killed. workers: 0 for all CPUs."""
    (folder / "driver.py").write_text(DRIVER)
    command = [sys.executable, folder / "driver.py", folder, nodes.address]
    with (folder / "stderr").open("a") as errors:
        values = map(str, (number, seconds, workers))
        return subprocess.Popen([*command, *values], stderr=errors)


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
    add_node(nodes)
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
            workers = workers_of(nodes)
            if not workers:
                continue
            os.kill(generator.choice(workers), signal.SIGKILL)
        elif kind == "node":
            kill_node(nodes, generator.randrange(2))
            add_node(nodes)
        else:
            driver.kill()
            driver.wait()
            driver = start_driver(nodes, tmp_path, number, 0.1)
        killed.append(kind)
    assert driver.wait(300) == 0, (killed, (tmp_path / "stderr").read_text())
    print(f"seed {seed} killed: {' '.join(killed)}")  # pytest -rP shows it
    assert killed, "the job was done before anything was killed"
    begun = tried(tmp_path)
    assert run(squares(tmp_path, number), tmp_path, on(nodes)) == expected(number), killed
    assert tried(tmp_path) == begun, "finished parts are not made again"
    # Begun again is only what a kill has interrupted: a worker has one shard at a time.
    interrupted = sum({"worker": 1, "node": 1, "driver": 3}[kind] for kind in killed)
    assert set(begun) == set(range(number)) and len(begun) <= number + interrupted, killed
    assert {path.name for path in (tmp_path / "work").glob("part-*")} == {
        shard.part for shard in squares(number=number).shards
    }


def pids_of(folder: Path) -> set[str]:
    """The processes that have begun shards."""
    return {line.split()[1] for line in (folder / "log").read_text().splitlines()}


@pytest.mark.skipif(not os.environ.get("PRIXLM_TEST_CLUSTER"), reason="make test-cluster runs it")
def test_a_job_is_finished_on_the_nodes_that_are_left(nodes: Any, tmp_path: Path) -> None:
    """Two of three nodes are killed, one after the other, and nobody replaces them."""
    number = 90
    driver = start_driver(nodes, tmp_path, number, 0.2)
    try:
        for parts in (6, 18):
            wait_for_parts(tmp_path, parts, driver)
            kill_node(nodes, 0)
        assert driver.wait(300) == 0, (tmp_path / "stderr").read_text()
        assert sum(node["Alive"] for node in ray_nodes(nodes)) == 1
    finally:
        driver.kill()
        driver.wait()
        while len(nodes.worker_nodes) < 2:
            add_node(nodes)
    begun = tried(tmp_path)
    assert run(squares(tmp_path, number), tmp_path) == expected(number)
    assert tried(tmp_path) == begun and len(begun) <= number + 2


@pytest.mark.skipif(not os.environ.get("PRIXLM_TEST_CLUSTER"), reason="make test-cluster runs it")
def test_nodes_that_join_late_get_work(nodes: Any, tmp_path: Path) -> None:
    """Without --workers: the job has as many as there are CPUs, also those that come."""
    number = 300
    for _ in range(2):
        nodes.remove_node(nodes.worker_nodes.copy().pop(), allow_graceful=True)
    driver = start_driver(nodes, tmp_path, number, 0.5, workers=0)
    try:
        wait_for_parts(tmp_path, 3, driver)
        assert len(pids_of(tmp_path)) == 1
        for _ in range(2):
            add_node(nodes)
        deadline = time.monotonic() + 120
        while len(pids_of(tmp_path)) < 3 and time.monotonic() < deadline:
            assert driver.poll() is None, (tmp_path / "stderr").read_text()
            time.sleep(0.1)
        assert len(pids_of(tmp_path)) == len(workers_of(nodes)) == 3
        assert driver.wait(300) == 0, (tmp_path / "stderr").read_text()
    finally:
        driver.kill()
        driver.wait()
        while len(nodes.worker_nodes) < 2:
            add_node(nodes)
    assert run(squares(tmp_path, number), tmp_path) == expected(number)


def ray_nodes(nodes: Any) -> list[dict[str, Any]]:
    """What the cluster says of its nodes."""
    with cluster._connected(on(nodes)) as connected:
        found: list[dict[str, Any]] = connected.nodes()
    return found


HOLDER = """
import sys, time, ray
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=1)
class Held:
    def begin(self):
        return True

held = [Held.remote() for _ in range(3)]
ray.get([one.begin.remote() for one in held])
print("held", flush=True)
time.sleep(600)
"""


def test_a_job_that_waits_for_cpus_says_so_and_goes_on(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_SILENCE", 2.0)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, nodes.address], stdout=subprocess.PIPE, text=True
    )
    said = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            holder.kill()

    listener = Listener()
    logging.getLogger("prixlm.engine.cluster").addHandler(listener)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert run(squares(tmp_path), tmp_path, on(nodes, workers=1)) == expected()
    finally:
        logging.getLogger("prixlm.engine.cluster").removeHandler(listener)
        holder.kill()
        holder.communicate()  # closes the pipe, too
    # How many machines there are depends on what tests before this one have killed.
    [line] = said
    assert re.search(r"no worker has started after 2 s: 0 of [34] CPUs", line), line


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
            workers = workers_of(nodes)
            if not workers:
                continue
            os.kill(generator.choice(workers), signal.SIGKILL)
        elif kind == "node":
            kill_node(nodes, generator.randrange(2))
            add_node(nodes)
        else:
            driver.kill()
            driver.wait()
            driver = start()
        killed.append(kind)
    assert driver.wait(300) == 0, (killed, (tmp_path / "stderr").read_text())
    print(f"seed {seed} killed: {' '.join(killed)}")
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


def test_another_version_of_ray_is_named(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = (ray.__version__, platform.python_version())
    monkeypatch.setattr(ray._private.utils, "compute_version_info", lambda: ("1.2.3", "3.4.5"))
    with pytest.raises(PrixError) as caught:
        run(squares(), tmp_path, on(nodes))
    assert str(caught.value) == (
        f"the Ray cluster at {nodes.address} has Ray {own[0]} and Python {own[1]}, and this "
        "machine Ray 1.2.3 and Python 3.4.5: install the same versions on all machines."
    )


INTRUDER = """
import sys
from prixlm.engine import cluster
from prixlm.engine.jobs import EngineConfig
from prixlm.errors import PrixError
try:
    with cluster._connected(EngineConfig(kind="ray", address=sys.argv[1])) as ray:
        print(len(ray.nodes()))
except PrixError as error:
    print(error)
"""


def test_a_ray_of_this_machine_lets_nobody_in_without_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with cluster._connected(EngineConfig(kind="ray", workers=1)) as started:
        address = started.get_runtime_context().gcs_address
        token = os.environ["RAY_AUTH_TOKEN"]
        shown = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert not any(token.encode() in line for line in shown)
        environment = dict(os.environ)
        answers = []
        for given in (token, "0" * 64, None):
            del environment["RAY_AUTH_TOKEN"], environment["RAY_AUTH_MODE"]
            if given is not None:
                environment |= {"RAY_AUTH_TOKEN": given, "RAY_AUTH_MODE": "token"}
            command = [sys.executable, "-c", INTRUDER, address]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            answers.append(done.stdout.strip())
            environment |= {"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token"}
    assert answers[0] == "1"
    assert all(f"the Ray cluster at {address} refused" in answer for answer in answers[1:]), answers
    assert "RAY_AUTH_MODE" not in os.environ and "RAY_AUTH_TOKEN" not in os.environ


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
