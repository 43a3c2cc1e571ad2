"""Jobs: many shards of work, each of which becomes one part, on whatever engine.

    job = ShardJob("answer", shards, load)
    parts = make_parts(job, workspace, EngineConfig(workers=4))

A shard is a small value. `load` builds the state once in each worker and returns a function
`work(value, path)`, which writes the part of one shard, a file or a folder, to a temporary path. A
part depends on its shard only, so it has the same bytes whoever makes it. The engine renames it
into place when it is whole, and skips parts that exist. That alone gives every part exactly once:
any worker, machine or driver may die, or two may make the same part, and the same call finishes the
job.

Two rules keep it so on clusters. Temporary files of a run lie in a folder of its own, which the
next run moves away: a worker that outlives its driver cannot publish any more. And nothing compares
the clocks or the local disks of machines: where times count, they are those of the shared disk.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import platform
import shutil
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from prixlm.engine.parts import FolderParts, Parts, PartsUnusable, StoreParts
from prixlm.engine.workspace import Workspace
from prixlm.errors import PrixError, ShardsFailed, Stopped
from prixlm.threads import describe_threads, usable_cores
from prixlm.types import Progress

Work = Callable[[Any, Path], object]
"""Writes the part of a shard, given its value, to a path."""


@runtime_checkable
class HasInputs(Protocol):
    """Work that can tell what it was loaded from. Workers must have loaded the same."""

    def inputs(self) -> Mapping[str, str]:
        """Return a hash, or what else tells it from another, of each input."""


_COMPARED = ("torch", "transformers", "numpy", "pyarrow", "scikit-learn")
"""Packages beside our own that decide the bytes of parts."""
_FETCHING = 8
"""Parts that are copied from a store at the same time."""
_SHOWN = 3
"""Shards that an error names."""
_SHOWN_HASH = 24
"""Characters of an input's hash that an error shows."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """A piece of a job that becomes one part."""

    part: str  # name of the part in the workspace
    value: Any  # what `work` is called with; picklable and small
    size: int = 1  # in the units of the progress


@dataclass(frozen=True)
class ShardJob:
    """What to do: shards, and how a worker makes their parts."""

    name: str  # the stage that the progress shows
    shards: Sequence[Shard]
    load: Callable[[], Work] | None  # picklable, called once in each worker; None: in memory only
    loaded: Work | None = None  # what `load` returns, if the caller has it in memory already
    inputs: Mapping[str, str] = field(default_factory=dict)  # of `loaded`; see `HasInputs`


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where a job runs.

    Workers compute with one thread each, so that the number of workers does not change a sum.

    Example:
        >>> config = prixlm.EngineConfig(workers=2)
    """

    kind: Literal["local", "ray"] = "local"  # processes of this machine, or a Ray cluster
    workers: int | None = None  # None: this process with all threads; on Ray, all of its CPUs
    address: str | None = None  # of a Ray cluster; None starts one on this machine
    gpus_per_worker: float = 0.0  # a part of a GPU on Ray, whole GPUs of this machine

    def __post_init__(self) -> None:
        if self.kind not in ("local", "ray"):
            raise PrixError(f"--engine {self.kind}: expected local or ray.")
        if self.workers is not None and self.workers < 1:
            raise PrixError(f"--workers {self.workers}: expected 1 or more.")
        if self.address is not None and self.kind != "ray":
            raise PrixError("--address requires --engine ray.")
        if self.gpus_per_worker < 0:
            raise PrixError(f"--gpus-per-worker {self.gpus_per_worker}: expected 0 or more.")
        if self.kind == "local" and self.gpus_per_worker % 1:
            raise PrixError("--gpus-per-worker takes whole GPUs, unless with --engine ray.")
        if self.gpus_per_worker and self.kind == "local" and self.workers is None:
            raise PrixError("--gpus-per-worker requires --workers.")

    @property
    def is_here(self) -> bool:
        """Whether shards run in the calling process."""
        alone = self.workers is None or (self.workers == 1 and not self.gpus_per_worker)
        return self.kind == "local" and alone

    @property
    def threads(self) -> Literal["all", "one"]:
        """How many threads a worker computes with."""
        return "all" if self.kind == "local" and self.workers is None else "one"

    def describe(self) -> str:
        """Return one line that says what was chosen."""
        if self.kind == "ray":
            where = f"Ray at {self.address}" if self.address else "Ray on this machine"
            return f"{where}, {self.workers or 'one per CPU'} workers with one thread each."
        if self.workers is None:
            return describe_threads()
        return f"{self.workers} workers with one thread each, {usable_cores()} usable cores."


@dataclass(frozen=True)
class Task:
    """What each worker of a run is told: how to load, and where parts go. Picklable."""

    load: Callable[[], Work] | None  # None: only the driver has the state
    parts: Parts
    versions: dict[str, str]  # of the driver
    tries: int
    inputs: Mapping[str, str] = field(default_factory=dict)

    def check_worker(self) -> None:
        """Refuse a worker with other packages than the driver, or without its folder."""
        check_versions(self.versions)
        if not self.parts.is_seen():
            raise PrixError(
                f"the worker on {platform.node()} does not see {self.parts}: write to a folder "
                "that all machines share, or to an object store."
            )


class Worker:
    """The state of a worker: it makes the parts of shards, one after another."""

    def __init__(self, task: Task, work: Work | None = None) -> None:
        """Check the worker, and load its state unless it is given."""
        task.check_worker()
        task.parts.note_begun()
        if work is None:
            assert task.load is not None
            work = task.load()
            if task.inputs:
                assert isinstance(work, HasInputs)
                check_inputs(task.inputs, work.inputs())
        self._task, self._work = task, work

    def make(self, shard: Shard) -> str | None:
        """Make the part of a shard unless it exists; return why the last try failed, if all did.

        Any error counts as a failed try, also one that the user can fix: it may be that of one
        shard, of one machine's disk, or of a store that did not answer for a while. Only what keeps
        all parts from being written (`PartsUnusable`) is raised.
        """
        parts, tries = self._task.parts, self._task.tries
        problem = "Every try ended the process; it may be out of memory"
        for _ in range(tries):
            try:
                if parts.has(shard.part):
                    return None
                if parts.note_try(shard.part) >= tries:
                    break
                self._try(shard)
                return None
            except (PartsUnusable, Stopped):
                raise
            except Exception as error:
                _log.info("%s failed", shard.part, exc_info=True)
                problem = f"The last error was on {platform.node()}: {describe_error(error)}"
                parts.check()
        return problem

    def _try(self, shard: Shard) -> None:
        temporary = self._task.parts.temporary(shard.part)
        try:
            self._work(shard.value, temporary)
            self._task.parts.publish(temporary, shard.part)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


def open_worker(task: Task) -> Worker:
    """Load the state of a worker in a process of its own."""
    try:
        return Worker(task)
    except (PrixError, Stopped):
        raise
    except Exception as error:
        raise PrixError(f"a worker cannot load its state: {describe_error(error)}.") from error


def check_versions(expected: Mapping[str, str]) -> None:
    """Refuse to work with other packages than the driver.

    Before its task is received: with other code, it may not be readable at all.
    """
    own = versions()
    for name, version in expected.items():
        if own.get(name) != version:
            raise PrixError(
                f"the worker on {platform.node()} has {name} {own.get(name, 'not installed')}, and "
                f"the driver {version}: install the same version on all machines."
            )


def check_inputs(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse other inputs than the driver's, as on a machine with a disk of its own."""
    for name, value in expected.items():
        own = found.get(name, "none")
        if own != value:
            raise PrixError(
                f"the worker on {platform.node()} has another {name} than the driver: found "
                f"{own[:_SHOWN_HASH]}, expected {value[:_SHOWN_HASH]}. Copy the driver's files to "
                "all machines, or use a folder that they share."
            )


Made = tuple[Shard, str | None]
"""A shard, and a sentence why it could not be made; None if it was."""
Running = Generator[Made, None, None]
"""Shards in the order in which they are finished. Closing it ends the workers."""


def make_parts(
    job: ShardJob,
    workspace: Workspace,
    config: EngineConfig | None = None,
    progress: Progress | None = None,
    *,
    tries: int = 3,
) -> list[Path]:
    """Make all parts of a job that are missing; return all parts, in the order of the shards.

    A shard is tried at most `tries` times. If some fail every time, the others are finished, and
    `ShardsFailed` names them.
    """
    config = config or EngineConfig()
    if job.load is None and not config.is_here:
        raise PrixError(
            "the model is in memory only: save it and load it from its folder, so that workers can "
            "do the same."
        )
    found = workspace.finished()
    missing = [shard for shard in job.shards if shard.part not in found]
    total = sum(shard.size for shard in job.shards)
    done = total - sum(shard.size for shard in missing)
    if progress is not None and done:
        progress(job.name, done, total)
    failed: list[Made] = []
    if missing:
        task = Task(job.load, _start_run(workspace), versions(), tries, job.inputs)
        _log.info("%s: %s", job.name, config.describe())
        # Closed also if `progress` raises: the workers end then.
        with contextlib.closing(_run(job, task, missing, config)) as tried:
            for shard, problem in tried:
                if problem is not None:
                    failed.append((shard, problem))
                    continue
                done += shard.size
                if progress is not None:
                    progress(job.name, done, total)
        workspace.end_run()
    if failed:
        failed.sort(key=lambda made: made[0].part)
        names = ", ".join(shard.part for shard, _ in failed[:_SHOWN])
        more = f" and {len(failed) - _SHOWN:,} others" if len(failed) > _SHOWN else ""
        raise ShardsFailed(
            f"{len(failed):,} of {len(job.shards):,} parts failed in {tries} tries each: "
            f"{names}{more}. The other parts are kept in {workspace}; run the same command "
            f"again to try these. {failed[-1][1]}."
        )
    return _fetch_parts(job, workspace)


def _fetch_parts(job: ShardJob, workspace: Workspace) -> list[Path]:
    """Return the paths of all parts, after copying those that are in a store only."""
    names = [shard.part for shard in job.shards]
    if workspace.store is None:
        return [workspace.fetch(name) for name in names]
    # Most of the time of a small object is waiting for the store.
    with ThreadPoolExecutor(_FETCHING) as threads:
        try:
            return list(threads.map(workspace.fetch, names))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _start_run(workspace: Workspace) -> Parts:
    """Make the place of this run's temporary files."""
    if workspace.store is not None:
        return StoreParts.start(workspace.store)
    return FolderParts.start(workspace.folder, workspace.start_run())


def _run(job: ShardJob, task: Task, shards: list[Shard], config: EngineConfig) -> Running:
    # Imported here: both import this module, and Ray is an extra.
    if config.kind == "ray":
        from prixlm.engine.cluster import run_on_ray

        return run_on_ray(task, shards, config)
    from prixlm.engine.local import run_here, run_in_processes

    if config.is_here:
        return run_here(task, job.loaded, shards, config.workers)
    return run_in_processes(task, shards, config)


def made_by(config: EngineConfig | None) -> dict[str, Any]:
    """Return what parts depend on beside their inputs: a value of the workspace's stamp.

    So no result has parts of two versions, nor of one thread and of several, whose sums differ.
    """
    return {"versions": versions(), "threads": (config or EngineConfig()).threads}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of all that decides the bytes of parts, our own code by its hash."""
    digest = hashlib.sha256()
    source = Path(__file__).parents[1]
    for path in sorted(source.rglob("*.py")):
        digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    found = {"prixlm": f"{importlib.metadata.version('prixlm')} ({digest.hexdigest()[:12]})"}
    for name in _COMPARED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # an extra
            continue
    return found


def ended_message(error: Exception) -> str:
    """Return what to tell the user about a worker that cannot make any more parts."""
    return (
        f"the worker on {platform.node()} ended ({describe_error(error)}). Finished parts are "
        "kept; run the same command again."
    )


def describe_error(error: Exception) -> str:
    """Return an error in one line: what the user can fix as it is, any other with its place."""
    if isinstance(error, PrixError):
        return str(error).rstrip(".")
    text = (str(error).splitlines() or [""])[0][:200]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"
