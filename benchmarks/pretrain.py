"""Speed of pretraining: `python benchmarks/pretrain.py PART...`.

peers    The shape of XLM-R-base with its 250,002 pieces (and random weights, which do not affect
         speed) on DBP-5L facts, against Hugging Face's `Trainer` with the same objective: with its
         defaults, and with sampling by length. The losses on one batch are compared first. Each
         peer runs in a separate process, so that peak memory is that of its training alone.
         `--base` takes another base, such as a decoder, with its own weights.
share    Share of this machine's matrix-multiply rate that the compact preset reaches.
data     Rate of the data path alone, on 20 M generated facts, against the compact model's rate.
growth   Facts per second at 1, 10 and 100 times the facts, and at widths 128, 256 and 512.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from common import DATA, Machine, peak_gib, reset_peak, save_base
from prixlm import KB, import_kb
from prixlm.lm.encoding import Batch, BatchEncoder
from prixlm.lm.model import PrixLM, attention_mask
from prixlm.lm.token_cache import build_tokens
from prixlm.lm.trim import pieces_to_keep
from prixlm.training.loop import make_optimizer
from prixlm.training.pretrain import PretrainConfig, PretrainTask, make_model
from prixlm.training.sampler import FactSupply, SupplyConfig, cut_batches

PEERS = ("trainer", "trainer, grouped", "prixlm", "prixlm, trimmed")


# --- XLM-R-base against the Trainer --------------------------------------------------------------


class Collator:
    """Pads rows, and adds the mask and labels.

    An encoder's class compares the logits of a position with its label, so labels are at the
    positions that predict them, and the prefix mask is given. A decoder's class shifts labels
    itself, and masks causally.
    """

    def __init__(self, model: PrixLM) -> None:
        self.padding = model.encoder.id("<pad>")
        self.is_causal = model.settings.mask == "causal"

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        size = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), size), self.padding)
        labels = torch.full((len(rows), size), -100)
        for i, row in enumerate(rows):
            tokens = torch.tensor(row["input_ids"])
            ids[i, : len(tokens)] = tokens
            # [O] predicts the first object token; the last one to be predicted is [EOS].
            first, end = row["prefix"], row["end"]
            shift = 0 if self.is_causal else 1
            labels[i, first - shift : end - shift] = tokens[first:end]
        if self.is_causal:
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            seen = torch.arange(size) < lengths[:, None]
            return {"input_ids": ids, "labels": labels, "attention_mask": seen.long()}
        prefix = torch.tensor([row["prefix"] for row in rows])
        length = torch.tensor([len(row["input_ids"]) for row in rows])
        mask = attention_mask(prefix, length, size)
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}


class Clock(TrainerCallback):
    """Records when each update ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.perf_counter())


def run_trainer(model: PrixLM, rows: list[dict[str, Any]], args: argparse.Namespace) -> float:
    """Return the facts per second of the `Trainer`; the first update is not counted."""
    clock = Clock()
    grouped = "grouped" in args.peer
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.rows,
            gradient_accumulation_steps=args.facts // args.rows,
            max_steps=args.updates + 1,
            train_sampling_strategy="group_by_length" if grouped else "random",
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            learning_rate=1e-6,
            use_cpu=True,
        )
        Trainer(
            model=model.backbone,
            args=arguments,
            train_dataset=rows,
            data_collator=Collator(model),
            callbacks=[clock],
        ).train()
    return float(args.facts * args.updates / (clock.times[-1] - clock.times[0]))


def run_ours(
    model: PrixLM, supply: FactSupply, config: PretrainConfig, args: argparse.Namespace
) -> float:
    """Return the facts per second of updates as the loop makes them, without the first one."""
    optimizer = make_optimizer(model, config.training)
    model.train()
    started = 0.0
    num_facts = 0
    for turn, block in enumerate(supply.blocks(0, args.facts)):
        if turn == 1:
            started, num_facts = time.perf_counter(), 0
        if turn == args.updates + 1:
            break
        lengths = supply.batches.num_inputs(block)
        for rows in cut_batches(lengths, args.budget):
            torch.autograd.backward(model.loss(supply.batches.encode(block.select(rows))) / 1000)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        num_facts += len(block)
    return num_facts / (time.perf_counter() - started)


def run_peer(args: argparse.Namespace) -> dict[str, Any]:
    """Run one peer in this process; return its rate, its memory and its loss on one batch."""
    torch.set_num_threads(args.threads)
    kb, trim = KB(args.kb), "trimmed" in args.peer
    keep = (lambda tokenizer: pieces_to_keep(kb, tokenizer, num_words=0)) if trim else None
    model = PrixLM.from_base(args.base, kb.languages, keep=keep)
    config = PretrainConfig()
    batches = BatchEncoder(model.encoder, kb, build_tokens(kb, model.encoder.tokenizer))
    supply = FactSupply(kb, batches, config.supply)
    facts = next(supply.blocks(0, (args.updates + 1) * args.facts))
    rows = as_rows(model, batches.encode(facts))
    model.eval()
    with torch.no_grad():
        if args.peer.startswith("trainer"):
            inputs = Collator(model)(rows[:16])
            loss = model.backbone(**inputs).loss.item()
        else:
            batch = batches.encode(facts.select(slice(0, 16)))
            loss = model.loss(batch).item() / len(batch.target)
    reset_peak()  # reading and trimming a base may take more than training it
    if args.peer.startswith("trainer"):
        rate = run_trainer(model, rows, args)
    else:
        rate = run_ours(model, supply, config, args)
    return {
        "peer": args.peer,
        "loss": loss,
        "pieces": len(model.tokenizer),
        "facts_per_second": rate,
        "peak_gib": peak_gib(),
    }


def as_rows(model: PrixLM, batch: Batch) -> list[dict[str, Any]]:
    """Return a batch as rows that end with `[EOS]` and, for an encoder, a separator."""
    lengths, prefixes = batch.length.tolist(), batch.prefix.tolist()
    end = [model.end_of_name, *model.encoder.separators[:1]]
    return [
        {"input_ids": [*ids[:length].tolist(), *end], "prefix": prefix, "end": length + 1}
        for ids, length, prefix in zip(batch.ids, lengths, prefixes, strict=True)
    ]


def compare_peers(kb: Path, work: Path, args: argparse.Namespace) -> None:
    """Run all peers and print a table."""
    base = args.base or str(work / "base")
    if args.base is None:
        save_base(work / "base")
    results = []
    for peer in PEERS:
        command = [sys.executable, __file__, "--peer", peer, "--kb", str(kb)]
        command += ["--base", base, "--facts", str(args.facts)]
        command += ["--rows", str(args.rows), "--budget", str(args.budget)]
        command += ["--updates", str(args.updates), "--threads", str(args.threads)]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(finished.stdout.splitlines()[-1]))
        print(f"  {results[-1]}", file=sys.stderr)
    losses = [row["loss"] for row in results[:3]]  # a trimmed vocabulary has another softmax
    assert max(losses) - min(losses) < 1e-3, f"the losses differ: {losses}"
    print(f"\nLoss of one batch: {', '.join(f'{loss:.4f}' for loss in losses)}.\n")
    title = Path(args.base).name if args.base else "XLM-R-base shape"
    print(f"| {title} | pieces | facts/s | peak GiB | against plain | against grouped |")
    print("|---|---|---|---|---|---|")
    plain, grouped = (row["facts_per_second"] for row in results[:2])
    for row in results:
        rate = row["facts_per_second"]
        print(
            f"| {row['peer']} | {row['pieces']:,} | {rate:.2f} | {row['peak_gib']:.1f} "
            f"| {rate / plain:.2f} | {rate / grouped:.2f} |"
        )


# --- the compact preset ---------------------------------------------------------------------------


def operations(model: PrixLM, batch: Batch) -> float:
    """Return the floating-point operations of the matrix products of `loss` and its gradient.

    Counts real tokens only, and the last layer's queries and feed-forward part at the predicted
    positions only. Masked attention counts as computed; padding does not.
    """
    config = model.backbone.config
    width, layers = config.hidden_size, config.num_hidden_layers
    inner = config.intermediate_size
    tokens, targets = float(batch.length.sum()), float(len(batch.target))
    seen = batch.length.astype(float)
    per_token = 4 * width**2 + 2 * width * inner
    products = (layers - 1) * (tokens * per_token + 2 * width * float((seen**2).sum()))
    products += tokens * 2 * width**2 + targets * (per_token - 2 * width**2)
    products += 2 * width * float(seen[batch.row].sum())
    products += targets * (width**2 + width * config.vocab_size)
    return 6.0 * float(products)


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rates per second of some updates, and of the machine's matrix products meanwhile."""

    facts: float
    operations: float
    machine: float

    @property
    def share(self) -> float:
        """Share of the machine's rate that training reaches."""
        return self.operations / self.machine


def train_some(task: PretrainTask, model: PrixLM, config: PretrainConfig, num_steps: int) -> Rates:
    """Measure `num_steps` updates, after two that are not counted."""
    optimizer = make_optimizer(model, config.training)
    model.train()
    machine, seconds, num_facts, num_operations = Machine(), 0.0, 0, 0.0
    for turn, step in zip(range(num_steps + 2), task.steps(0, 0, 1), strict=False):
        started = time.perf_counter()
        for facts_of_pass in step.batches:
            batch = task.batches.encode(facts_of_pass)
            torch.autograd.backward(model.loss(batch) / step.normaliser)
            num_operations += operations(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds += time.perf_counter() - started
        machine.measure()
        num_facts += step.num_facts
        if turn == 1:
            machine, seconds, num_facts, num_operations = Machine(), 0.0, 0, 0.0
    return Rates(num_facts / seconds, num_operations / seconds, machine.rate)


def measure_share(kb: KB, num_steps: int) -> float:
    """Print the share of the machine's rate in three rounds; return the median facts per second."""
    config = PretrainConfig.preset("compact")
    model = make_model(kb, config)
    task = PretrainTask(kb, model, config)
    print("\n| compact preset | facts/s | Gflop/s in products | machine's Gflop/s | share |")
    print("|---|---|---|---|---|")
    rounds = [train_some(task, model, config, num_steps) for _ in range(3)]
    for rates in rounds:
        print(
            f"| | {rates.facts:,.0f} | {rates.operations / 1e9:.0f} "
            f"| {rates.machine / 1e9:.0f} | {rates.share:.0%} |"
        )
    return float(np.median([rates.facts for rates in rounds]))


# --- the data path --------------------------------------------------------------------------------


def generate_kb(folder: Path, num_facts: int, seed: int = 0) -> KB:
    """Generate a KB in four languages: three quarters triples, one quarter directed links."""
    generator = np.random.default_rng(seed)
    codes = ("en", "fi", "el", "ja")
    num_triples = num_facts * 3 // 4 // len(codes)
    num_entities = max(50, num_facts // 4 // 12)  # each has three links, in four languages
    letters = np.array([a + b for a in "kmnprstvlj" for b in ("a", "e", "io", "u", "ala", "än")])
    names = {}
    for lang in codes:  # names of four syllables have about as many tokens as real ones
        number = np.arange(num_entities)  # its digits, in base len(letters), are the syllables
        name = np.full(num_entities, {"el": "Κ", "ja": "東"}.get(lang, "S"))
        for _ in range(4):
            number, digit = np.divmod(number, len(letters))
            name = np.char.add(name, letters[digit])
        names[lang] = name
    with pq.ParquetWriter(folder / "facts.parquet", schema=_FACTS) as writer:
        for lang in codes:
            for start in range(0, num_triples, 1 << 19):
                size = min(1 << 19, num_triples - start)
                s, o = generator.integers(0, num_entities, (2, size))
                r = generator.integers(0, 300, size)
                columns = [names[lang][s], np.char.add("relation ", r.astype(str)), names[lang][o]]
                arrays = [pa.array([lang] * size), *(pa.array(column) for column in columns)]
                writer.write_table(pa.table(arrays, schema=_FACTS))
    links = {
        "lang_a": ["en"] * (3 * num_entities),
        "name_a": np.tile(names["en"], 3),
        "lang_b": np.repeat(codes[1:], num_entities),
        "name_b": np.concatenate([names[lang] for lang in codes[1:]]),
    }
    pq.write_table(pa.table(links), folder / "links.parquet")
    return import_kb([folder / "facts.parquet", folder / "links.parquet"], folder / "kb")


_FACTS = pa.schema([(name, pa.string()) for name in ("lang", "subject", "relation", "object")])


def stream(kb_folder: Path, model_folder: Path, max_facts: int) -> dict[str, Any]:
    """Encode the batches of one epoch and drop them; return rates and memory."""
    started = time.perf_counter()
    kb, model = KB(kb_folder), PrixLM.load(model_folder)
    before = peak_gib()
    config = PretrainConfig.preset("compact")
    supply = dataclasses.replace(SupplyConfig(), max_tokens=30)
    task = PretrainTask(kb, model, dataclasses.replace(config, supply=supply, batch=1024))
    ready = time.perf_counter()
    num_facts = 0
    for step in task.steps(0, 0, 1):
        for facts_of_pass in step.batches:
            num_facts += len(task.batches.encode(facts_of_pass).ids)
        if num_facts >= max_facts:
            break
    seconds = time.perf_counter() - ready
    return {
        "facts": len(task.supply),
        "prepare_s": ready - started,
        "facts_per_second": num_facts / seconds,
        "peak_gib": peak_gib(),
        "before_gib": before,
    }


def measure_data(work: Path, millions: float, consumed: float) -> None:
    """Print the rate of the data path, measured in a separate process for its peak memory."""
    (work / "stream").mkdir()
    kb = generate_kb(work / "stream", round(millions * 1e6))
    make_model(kb, PretrainConfig.preset("compact")).save(work / "stream" / "model")
    command = [sys.executable, __file__, "--stream", str(work / "stream")]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(finished.stdout.splitlines()[-1])
    print(
        f"\nData path alone: {row['facts']:,} facts an epoch, ready after {row['prepare_s']:.0f} s "
        f"(tokenised by then), {row['facts_per_second']:,.0f} facts/s encoded, peak "
        f"{row['peak_gib']:.2f} GiB ({row['before_gib']:.2f} of them torch and model)."
    )
    if consumed:
        times = row["facts_per_second"] / consumed
        print(f"The compact model takes {consumed:,.0f} facts/s: {times:.0f} times.")


# --- growth ---------------------------------------------------------------------------------------


def measure_growth(work: Path, num_steps: int) -> None:
    """Print how the rate changes with the number of facts and with the model's width."""
    config = PretrainConfig.preset("compact")
    print("\n| facts | prepare s | facts/s | steps of an epoch | peak GiB so far |")
    print("|---|---|---|---|---|")
    for times in (1, 10, 100):
        folder = work / f"grow-{times}"
        folder.mkdir()
        kb = generate_kb(folder, 20_000 * times)
        started = time.perf_counter()
        model = make_model(kb, config)
        task = PretrainTask(kb, model, config)
        ready = time.perf_counter() - started
        rate = train_some(task, model, config, num_steps).facts
        peak = peak_gib()
        facts, steps = len(task.supply), task.steps_an_epoch
        print(f"| {facts:,} | {ready:.1f} | {rate:,.0f} | {steps:,} | {peak:.2f} |")
    print("\n| width | parameters | facts/s | Gflop/s in products | share of the machine's rate |")
    print("|---|---|---|---|---|")
    for width in (128, 256, 512):
        compact = dataclasses.replace(config.compact, width=width)
        wide = dataclasses.replace(config, compact=compact)
        model = make_model(kb, wide)
        task = PretrainTask(kb, model, wide)
        rates = train_some(task, model, wide, num_steps)
        size = sum(p.numel() for p in model.parameters()) / 1e6
        print(
            f"| {width} | {size:.1f} M | {rates.facts:,.0f} | {rates.operations / 1e9:.0f} "
            f"| {rates.share:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="peers, share, data, growth; all if none")
    parser.add_argument("--facts", type=int, default=256, help="facts of one update")
    parser.add_argument("--rows", type=int, default=32, help="rows of the Trainer's batches")
    parser.add_argument("--budget", type=int, default=4096, help="padded tokens of our passes")
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40, help="of the compact model")
    parser.add_argument("--millions", type=float, default=20, help="facts that are streamed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--kb", help=argparse.SUPPRESS)
    parser.add_argument("--base", help="of the peers: a folder; the shape of XLM-R-base if none")
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peer:
        print(json.dumps(run_peer(args)))
        return
    if args.stream:
        print(json.dumps(stream(args.stream / "kb", args.stream / "model", 10**9)))
        return
    parts = args.parts or ["peers", "share", "data", "growth"]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        consumed = 0.0
        if {"peers", "share"} & set(parts):
            kb = import_kb([DATA / "dbp5l"], work / "dbp5l")
        if "peers" in parts:
            compare_peers(kb.folder, work, args)
        if "share" in parts:
            consumed = measure_share(kb, args.steps)
        if "data" in parts:
            measure_data(work, args.millions, consumed)
        if "growth" in parts:
            measure_growth(work, args.steps)


if __name__ == "__main__":
    main()
