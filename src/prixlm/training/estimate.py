"""What a pretraining would take, before it is begun: steps, memory, disk, time (`--dry-run`).

Nothing is written. The model is made as the run would make it, the names of a sample of facts are
tokenised, and some updates are done on them: their rate and their memory are those of the run.
"""

import resource
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from prixlm.kb.carried import count_carried
from prixlm.kb.store import KB
from prixlm.lm.encoding import Batch
from prixlm.lm.model import PrixLM
from prixlm.training.loop import make_optimizer
from prixlm.training.pretrain import PretrainConfig, check_kb, make_model
from prixlm.training.sampler import count_links, cut_batches
from prixlm.types import Progress

_SAMPLE = 2048
_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class PretrainEstimate:
    """What a run would take on this machine."""

    parameters: int
    pieces: int
    triples: int
    links: int
    dropped: float  # share of the sample that the length rule leaves out
    steps: int
    facts_per_second: float
    seconds: float
    memory: int  # bytes, on the GPU if there is one
    checkpoint: int  # bytes
    disk: int  # bytes

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        hours, rest = divmod(round(self.seconds), 3600)
        return (
            f"Would train {self.parameters / 1e6:,.1f} M parameters ({self.pieces:,} pieces) on "
            f"{self.triples:,} triples and {self.links:,} links an epoch "
            f"({self.dropped:.1%} of a sample are too long).\n"
            f"Steps: {self.steps:,}. Time: {hours} h {rest // 60:02d} min at "
            f"{self.facts_per_second:,.0f} facts/s, measured now, in one process.\n"
            f"Memory: {self.memory / 2**30:.1f} GiB{_slack()}. Disk: {self.disk / 2**30:.1f} GiB "
            f"({self.checkpoint / 2**20:,.0f} MiB a checkpoint). Nothing was written."
        )


def estimate_pretrain(
    kb: KB, config: PretrainConfig, progress: Progress | None = None
) -> PretrainEstimate:
    """Measure a sample of a run; nothing is written."""
    check_kb(kb, config)
    model = make_model(kb, config, progress)
    if torch.cuda.is_available():
        model = model.cuda()
    langs = config.supply.langs
    triples = sum(kb.num_triples(lang, "train") for lang in langs or kb.languages)
    if config.supply.propagate:
        triples += count_carried(kb, langs)
    has_links = langs is None and config.supply.links == "all"
    links = count_links(kb, config.supply.max_links) if has_links else 0
    rows = _sample(kb, model, config, links / (triples + links))
    short = [row for row in rows if row.num_tokens < config.supply.max_tokens]
    rate, update = _measure(model, short, config)
    facts = round(triples * len(short) / len(rows)) + links
    steps = config.epochs * -(-facts // config.batch)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = len({round(share * steps) for share in (*config.training.checkpoints, 1.0)})
    checkpoint = 12 * parameters  # weights and Adam's two moments
    tokens = float(np.mean([len(row.ids) for row in rows])) / 2
    cache = round(kb.num_entities * (8 + 4 * tokens))
    return PretrainEstimate(
        parameters=parameters,
        pieces=len(model.tokenizer),
        triples=triples,
        links=links,
        dropped=1 - len(short) / len(rows),
        steps=steps,
        facts_per_second=1 / (1 / rate + update / config.batch),
        seconds=config.epochs * facts / rate + steps * update,
        memory=_peak_memory() + 16 * facts + 32 * kb.num_entities,
        checkpoint=checkpoint,
        disk=(kept + 2) * checkpoint + 4 * parameters + cache,
    )


@dataclass(frozen=True)
class _Row:
    ids: list[int]
    prefix: int
    targets: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens of names: without the eight special ones of an input."""
        return len(self.ids) - 8


def _sample(kb: KB, model: PrixLM, config: PretrainConfig, links: float) -> list[_Row]:
    """Some facts of the run, encoded one by one."""
    langs = list(config.supply.langs or kb.languages)
    number = round(_SAMPLE * (1 - links))
    drawn = kb.query(
        "SELECT t.lang, s.name, t.relation, o.name FROM (SELECT * FROM (SELECT * FROM triples "
        "WHERE split = 'train' AND list_contains($langs, lang)) "
        f"USING SAMPLE reservoir({number} ROWS) REPEATABLE (0)) t "
        "JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object",
        {"langs": langs},
    ).fetchall()
    relations = {lang: kb.relation_names(lang) for lang in {row[0] for row in drawn}}
    facts: list[Any] = [(s, relations[lang][r], o) for lang, s, r, o in drawn]
    generator = np.random.default_rng(0)
    for _ in range(_SAMPLE - number):  # names of one language stand in for another's
        a, b = kb.entities(generator.integers(0, kb.num_entities, 2).tolist())
        facts.append((a.name, (a.lang, b.lang), b.name))
    rows = []
    for subject, relation, object_ in facts:
        prefix = model.encoder.encode(subject, relation, None)
        ids = model.encoder.encode(subject, relation, object_)
        rows.append(_Row(ids[:-2], len(prefix), ids[len(prefix) : -1]))
    return rows


def _collate(rows: list[_Row], padding: int) -> Batch:
    length = np.array([len(row.ids) for row in rows])
    ids = np.full((len(rows), int(length.max())), padding, np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = row.ids
    prefix = np.array([row.prefix for row in rows])
    counts = np.array([len(row.targets) for row in rows])
    turn = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    owner = np.repeat(np.arange(len(rows)), counts)
    target = np.concatenate([row.targets for row in rows])
    return Batch(ids, prefix, length, owner, prefix[owner] - 1 + turn, target)


def _measure(model: PrixLM, rows: list[_Row], config: PretrainConfig) -> tuple[float, float]:
    """Facts a second through the model and back, and the seconds of one update."""
    model.train()
    optimizer = make_optimizer(model, config.training)
    lengths = np.array([len(row.ids) for row in rows[: config.batch]])
    passes = list(cut_batches(lengths, config.token_budget))
    padding = model.encoder.id(model.encoder.base.padding)
    batches = [_collate([rows[i] for i in order], padding) for order in passes]
    torch.autograd.backward(model.loss(batches[-1]))  # the longest, and a warm-up
    facts, started = 0, time.monotonic()
    while time.monotonic() - started < _SECONDS and facts < 4 * len(lengths):
        for batch in batches:
            torch.autograd.backward(model.loss(batch))
            facts += len(batch.ids)
            _synchronise()
            if time.monotonic() - started > _SECONDS:
                break
    rate = facts / (time.monotonic() - started)
    optimizer.step()  # makes Adam's moments
    started = time.monotonic()
    optimizer.step()
    _synchronise()
    return rate, time.monotonic() - started


def _slack() -> str:
    """On a CPU the allocator keeps gaps between tensors of ever other sizes; measured: twice."""
    return "" if torch.cuda.is_available() else ", up to twice that as memory is broken up"


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak_memory() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
