"""What a training run costs: the figures that every estimate has, and how they are measured."""

import resource
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class RunCosts:
    """What a training run would take on this machine (`--dry-run`)."""

    parameters: int
    triples: int  # of one epoch
    steps: int
    facts_per_second: float
    seconds: float
    memory: int  # bytes, on the GPU if there is one
    checkpoint: int  # bytes
    disk: int  # bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for `--json`."""
        return asdict(self)

    def costs_text(self, unit: str, memory_caveat: str = "") -> str:
        """Return steps, time, memory and disk as two lines. unit: what the rate counts."""
        hours, rest = divmod(round(self.seconds), 3600)
        return (
            f"Steps: {self.steps:,}. Time: {hours} h {rest // 60:02d} min at "
            f"{self.facts_per_second:,.0f} {unit}/s, measured now, in one process.\n"
            f"Memory: {self.memory / 2**30:.1f} GiB{memory_caveat}. "
            f"Disk: {self.disk / 2**30:.1f} GiB "
            f"({self.checkpoint / 2**20:,.0f} MiB a checkpoint). Nothing was written."
        )


def synchronise() -> None:
    """Wait for the GPU, if there is one, so that a clock measures its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory() -> int:
    """Return the peak memory of this process so far, in bytes; on the GPU if there is one."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return host_memory()


def host_memory() -> int:
    """Return the peak memory of this process on the host so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
