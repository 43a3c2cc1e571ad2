"""Estimate what a pretraining would take: steps, memory, disk and time (`--dry-run`).

Nothing is written. The model is made as the run would make it, a sample of facts is tokenised, and
a few updates on them are timed, in the run's precision: their rate and their memory are the run's.
"""

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prixlm.arrays import ragged_ranges
from prixlm.kb.carried import count_carried
from prixlm.kb.store import KB
from prixlm.lm.encoding import Batch
from prixlm.lm.model import PrixLM
from prixlm.training.checkpoints import steps_to_keep
from prixlm.training.costs import RunCosts, host_memory, peak_memory, synchronise
from prixlm.training.loop import autocast, choose_precision, make_optimizer
from prixlm.training.pretrain import PretrainConfig, check_kb, make_model
from prixlm.training.sampler import count_links, cut_batches
from prixlm.types import Progress

_SAMPLE = 2048
"""Facts that are tokenised and timed."""
_MAX_SECONDS = 10.0
"""Time limit for the timed passes."""


@dataclass(frozen=True, kw_only=True)
class PretrainEstimate(RunCosts):
    """What a pretraining would take on this machine."""

    pieces: int  # of the tokenizer
    trained: int  # parameters that are not frozen
    links: int  # of one epoch
    dropped: float  # share of the sample that the length rule leaves out
    host: int  # bytes of host memory, for each process of a run
    processes: int = 1  # that the model is divided among (`--shard`)
    divided: int = 0  # bytes of `memory` that are divided among them, not counted in it any more

    def as_text(self) -> str:
        """Return the figures as sentences."""
        return (
            f"Would train {self._share()} ({self.pieces:,} pieces) on "
            f"{self.triples:,} triples and {self.links:,} links an epoch "
            f"({self.dropped:.1%} of a sample are too long).\n"
            + self.costs_text("facts", _memory_caveat(self.host))
            + self._sharding()
        )

    def _sharding(self) -> str:
        """Return what `--shard` makes of the memory; nothing without it."""
        if not self.divided:
            return ""
        size = f"{self.divided / 2**30:.1f} GiB of weights, gradients and moments"
        if self.processes == 1:
            return (
                f"\nThe memory is that of one process. --shard divides {size} among the processes "
                "of torchrun: start the dry run under it, too, for the memory of each."
            )
        return (
            f"\nThe memory is calculated for each of {self.processes} processes, which share "
            f"{size}: less than was measured in one."
        )

    def _share(self) -> str:
        every = f"{self.parameters / 1e6:,.1f} M parameters"
        return every if self.trained >= self.parameters else f"{self.trained / 1e6:,.1f} of {every}"


def estimate_pretrain(
    kb: KB, config: PretrainConfig, progress: Progress | None = None
) -> PretrainEstimate:
    """Time a sample of a run; write nothing."""
    check_kb(kb, config)
    model = make_model(kb, config, progress)
    model.recompute = config.recompute
    if torch.cuda.is_available():
        model = model.cuda()
    triples, links = _count_facts(kb, config)
    sample = _sample(kb, model, config, links / (triples + links))
    short = [fact for fact in sample if fact.num_tokens < config.supply.max_tokens]
    rate, update = _measure(model, short, config)
    # The length rule drops triples before training; links are dropped within their global batch,
    # so they count as steps even if they are too long.
    facts = round(triples * len(short) / len(sample)) + links
    steps = config.num_steps(-(-facts // config.batch))
    parameters = sum(parameter.numel() for parameter in model.backbone.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    num_kept = len(steps_to_keep(config.training.checkpoints, steps))
    # The weights and, of those that are trained, Adam's two moments; LoRA's weights come twice:
    # merged, and apart.
    checkpoint = 4 * parameters + 8 * trained + (0 if model.adapter is None else 4 * trained)
    tokens = float(np.mean([len(fact.ids) for fact in sample])) / 2  # of one entity's name
    cache = round(kb.num_entities * (8 + 4 * tokens))  # an offset and int32 ids for each name
    arrays = 16 * facts + 32 * kb.num_entities  # of the sampler, on the host
    processes = int(os.environ.get("WORLD_SIZE", "1")) if config.shard else 1
    divided, saved = _divide(model, processes) if config.shard else (0, 0)
    return PretrainEstimate(
        parameters=parameters,
        trained=trained,
        pieces=len(model.tokenizer),
        triples=triples,
        links=links,
        dropped=1 - len(short) / len(sample),
        steps=steps,
        facts_per_second=1 / (1 / rate + update / config.batch),
        seconds=min(config.epochs * facts, steps * config.batch) / rate + steps * update,
        memory=peak_memory() - saved + (0 if torch.cuda.is_available() else arrays),
        host=host_memory() + arrays,
        checkpoint=checkpoint,
        # One checkpoint to resume from and one being written, and the model at the end.
        disk=(num_kept + 2) * checkpoint + 4 * parameters + cache,
        processes=processes,
        divided=divided,
    )


def _divide(model: PrixLM, processes: int) -> tuple[int, int]:
    """Return the bytes that `--shard` divides among processes, and those that each saves by it."""
    layers = [sum(p.numel() for p in layer.parameters()) for layer in model.kind.layers]
    every = sum(parameter.numel() for parameter in model.parameters())
    # A weight, its gradient and two moments, of 4 bytes each. During a pass, the embeddings and
    # the head are whole, and one layer at a time: their weights, and then their gradients.
    divided, whole = 16 * every, 8 * (every - sum(layers) + max(layers))
    return divided, round((divided - whole) * (1 - 1 / processes))


@dataclass(frozen=True)
class _EncodedFact:
    ids: list[int]  # of the input
    prefix: int  # length up to and including [O]
    targets: list[int]  # object and [EOS]
    num_tokens: int  # of the names, which the length rule counts


def _count_facts(kb: KB, config: PretrainConfig) -> tuple[int, int]:
    """Return the triples and links of an epoch, before the length rule."""
    langs = config.supply.langs
    triples = sum(kb.num_triples(lang, "train") for lang in langs or kb.languages)
    if config.supply.propagate:
        triples += count_carried(kb, langs)
    has_links = langs is None and config.supply.links == "all"
    return triples, count_links(kb, config.supply.max_links) if has_links else 0


def _sample(kb: KB, model: PrixLM, config: PretrainConfig, link_share: float) -> list[_EncodedFact]:
    """Encode a sample of the run's triples and of pairs of names, one by one."""
    langs = list(config.supply.langs or kb.languages)
    num_triples = round(_SAMPLE * (1 - link_share))
    rows = kb.query(
        "SELECT t.lang, s.name, t.relation, o.name, s.id "
        "FROM (SELECT * FROM (SELECT * FROM triples "
        "WHERE split = 'train' AND list_contains($langs, lang)) "
        f"USING SAMPLE reservoir({num_triples} ROWS) REPEATABLE (0)) t "
        "JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object",
        {"langs": langs},
    ).fetchall()
    # A relation has a name in each language that the KB names it in.
    relations = {lang: kb.relation_names(lang) for lang in {row[0] for row in rows}}
    texts = iter(kb.descriptions(row[-1] for row in rows))
    facts: list[Any] = [(s, relations[lang][r], o, next(texts), lang) for lang, s, r, o, _ in rows]
    # Two random names are about as long as the two of a link.
    num_ends = 2 * (_SAMPLE - num_triples)
    ends = kb.entities(np.random.default_rng(0).integers(0, kb.num_entities, num_ends).tolist())
    texts = iter(kb.descriptions(a.id for a in ends[::2]))
    for a, b in zip(ends[::2], ends[1::2], strict=True):
        facts.append((a.name, (a.lang, b.lang), b.name, next(texts), None))
    encoded = []
    for subject, relation, object_, text, lang in facts:
        prefix = model.encoder.encode(subject, relation, None, text, lang=lang)
        ids = model.encoder.encode(subject, relation, object_, text, lang=lang)
        # An input ends with [EOS] and, if the base has one, a separator.
        ids = ids[: len(ids) - len(model.encoder.separators[:1])]
        # The names of a fact: all but the description, the special tokens before them, and [EOS].
        plain = len(model.encoder.encode(subject, relation, object_, lang=lang))
        num_tokens = plain - model.encoder.num_special - 1 - len(model.encoder.separators[:1])
        # Inputs end before [EOS]; targets are the object and [EOS].
        encoded.append(_EncodedFact(ids[:-1], len(prefix), ids[len(prefix) :], num_tokens))
    return encoded


def _collate(facts: list[_EncodedFact], padding: int) -> Batch:
    """Pad encoded facts to a batch, as `BatchEncoder.encode` would."""
    length = np.array([len(fact.ids) for fact in facts])
    ids = np.full((len(facts), int(length.max())), padding, np.int64)
    for row, fact in enumerate(facts):
        ids[row, : len(fact.ids)] = fact.ids
    prefix = np.array([fact.prefix for fact in facts])
    num_targets = np.array([len(fact.targets) for fact in facts])
    # (T,) the position before each target, from `[O]` on, and its row.
    column, row_of_target = ragged_ranges(prefix - 1, prefix - 1 + num_targets)
    target = np.concatenate([fact.targets for fact in facts])
    return Batch(ids, prefix, length, row_of_target, column, target)


def _measure(
    model: PrixLM, facts: list[_EncodedFact], config: PretrainConfig
) -> tuple[float, float]:
    """Return the facts per second of forward and backward passes, and the seconds of an update."""
    model.train()
    optimizer = make_optimizer(model, config.training)
    lengths = np.array([len(fact.ids) for fact in facts[: config.batch]])
    batches = [
        _collate([facts[i] for i in rows], model.encoder.padding)
        for rows in cut_batches(lengths, config.token_budget)
    ]
    precision = choose_precision(config.training.precision)

    def run_pass(batch: Batch) -> None:
        with autocast(model.backbone.device, precision):
            loss = model.loss(batch)
        torch.autograd.backward(loss)

    run_pass(batches[-1])  # a warm-up; the longest takes most memory
    num_facts, started = 0, time.monotonic()
    while time.monotonic() - started < _MAX_SECONDS and num_facts < 4 * len(lengths):
        for batch in batches:
            run_pass(batch)
            num_facts += len(batch.ids)
            synchronise()
            if time.monotonic() - started > _MAX_SECONDS:
                break
    rate = num_facts / (time.monotonic() - started)
    optimizer.step()  # the first one allocates Adam's moments
    started = time.monotonic()
    optimizer.step()
    synchronise()
    return rate, time.monotonic() - started


def _memory_caveat(host: int) -> str:
    """Return where the memory is, for each process of a run.

    On a CPU, varying batch sizes fragment the heap, up to twice what was measured.
    """
    if torch.cuda.is_available():
        return f" on the GPU and {host / 2**30:.1f} GiB on the host, for each process"
    return " for each process, up to twice that as the heap fragments"
