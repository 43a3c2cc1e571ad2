"""Measure constrained decoding against its peers in one run: `python benchmarks/decode.py PART...`.

peers      `beam_search` (K = 50, the best 10) against
             released    the authors' released algorithm: one forward pass per beam and step, no
                         cache, a dict of token tuples
             generate    Hugging Face's `generate` with a trie behind `prefix_allowed_tokens_fn`
             plain       a batched beam whose cache is copied for every beam
           one query at a time and in a batch, DBP-5L's English candidates; at XLM-R-base's shape
           with 250,002 pieces and random weights (near-uniform scores prune nothing), the same
           trimmed, and with a trained compact model (`--model`, made by `prixlm pretrain`).
           Answers are compared first. `--base` adds a decoder, trimmed, with its own weights;
           it reads its prefix causally, so `generate` needs no cache from us.
millions   two million generated names: building, size, loading, and time a query as names grow.
exact      `exact_search` on the trained model: nodes, time against the beam, differing answers.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, XLMRobertaForCausalLM

from common import DATA, Machine, peak_gib, reset_peak, save_base
from prixlm import KB, import_kb
from prixlm.arrays import ragged_ranges
from prixlm.decoding.completer import Completer
from prixlm.decoding.incremental import Stepper
from prixlm.decoding.search import Found, beam_search, exact_search
from prixlm.decoding.trie import Trie, open_trie
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import Ragged
from prixlm.lm.trim import pieces_to_keep
from prixlm.types import Array, Query

BEAM, BEST = 50, 10
PEERS = ("released", "generate", "plain", "ours")


# --- the peers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A model and its candidates; `names` is the dict that the released code and `generate` use."""

    model: PrixLM
    trie: Trie
    names: dict[tuple[int, ...], list[int]]  # what may follow each beginning of a name
    ends: dict[tuple[int, ...], int]  # the lowest entity of a whole name
    decoder: Any  # the same weights as transformers' causal class, which has a cache

    @property
    def is_causal(self) -> bool:
        """Whether the prefix is read causally, as transformers' class does."""
        return self.model.settings.mask == "causal"


def make_setting(model: PrixLM, trie: Trie) -> Setting:
    """Give the peers what they need: a dict of names, and transformers' causal class."""
    eos = model.encoder.id("[EOS]")
    following: dict[tuple[int, ...], list[int]] = {(): []}
    ends: dict[tuple[int, ...], int] = {}
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, trie.num_nodes):
        before = paths[trie.parent[node]]
        paths.append((*before, int(trie.token[node])))
        following[before].append(int(trie.token[node]))
        following[paths[-1]] = []
    for node in np.flatnonzero(np.diff(trie.offset)).tolist():
        following[paths[node]].append(eos)
        ends[paths[node]] = int(trie.entity[trie.offset[node]])  # listed by id
    if model.settings.mask == "causal":
        return Setting(model, trie, following, ends, model.backbone)
    config = type(model.backbone.config).from_dict(model.backbone.config.to_dict())
    config.is_decoder = True
    decoder = XLMRobertaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    missing = decoder.load_state_dict(model.backbone.state_dict(), strict=False)
    assert not missing.missing_keys, missing
    return Setting(model, trie, following, ends, decoder)


@torch.no_grad()
def released(setting: Setting, prefix: Sequence[int]) -> dict[int, float]:
    """Run the released algorithm: batches of one, no cache, a dict keyed by token tuples."""
    model, eos = setting.model, setting.model.encoder.id("[EOS]")
    found: dict[int, float] = {}
    current: dict[tuple[int, ...], float] = {(): 0.0}
    while current:
        longer: dict[tuple[int, ...], float] = {}
        for beginning, score in current.items():
            ids = torch.tensor([[*prefix, *beginning]])
            states = model.hidden(ids, torch.tensor([len(prefix)]), torch.tensor([ids.shape[1]]))
            scores = model.log_probabilities(states)[0, -1]  # the class has logits everywhere
            for token in setting.names[beginning]:
                total = score + scores[token].item()
                if token == eos:
                    found[setting.ends[beginning]] = total
                else:
                    longer[(*beginning, token)] = total
        best = sorted(longer, key=lambda path: -longer[path])[:BEAM]
        current = {path: longer[path] for path in best}
    order = sorted(found, key=lambda entity: (-found[entity], entity))[:BEST]
    return {entity: found[entity] for entity in order}


def prefix_cache(setting: Setting, prefixes: list[list[int]], size: int) -> tuple[Any, Stepper]:
    """Return transformers' cache of prefixes that were read in both directions, as in training."""
    stepper = Stepper(setting.model, prefixes, 1)
    cache = DynamicCache(config=setting.decoder.config)
    pairs = zip(stepper.prefix_keys, stepper.prefix_values, strict=True)
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys[:, :, :size].clone(), values[:, :, :size].clone(), layer)
    cache.batch_repeat_interleave(BEAM)
    return cache, stepper


@torch.no_grad()
def generated(setting: Setting, prefixes: list[list[int]]) -> list[dict[int, float]]:
    """Run `generate` with a callback; an encoder's prefix was read beforehand, both ways."""
    size, eos = len(prefixes[0]), setting.model.encoder.id("[EOS]")
    cache = None if setting.is_causal else prefix_cache(setting, prefixes, size - 1)[0]

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        path = tuple(ids[size:].tolist())
        return setting.names.get(path, [eos])

    ids = torch.tensor(prefixes)
    output = setting.decoder.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        num_beams=BEAM,
        num_return_sequences=BEST,
        prefix_allowed_tokens_fn=allowed,
        max_new_tokens=int(setting.trie.depth[-1]) + 1,
        length_penalty=0.0,
        eos_token_id=eos,
        pad_token_id=setting.model.encoder.id("<pad>"),
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    answers: list[dict[int, float]] = [{} for _ in prefixes]
    rows = zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True)
    for row, (sequence, score) in enumerate(rows):
        name = tuple(sequence[size:])
        name = name[: name.index(eos)] if eos in name else name
        if name in setting.ends:
            answers[row // BEST][setting.ends[name]] = score
    return answers


@torch.no_grad()
def plain(setting: Setting, prefixes: list[list[int]]) -> list[dict[int, float]]:
    """Run Algorithm 1, batched over beams and queries, with a cache copied for every beam."""
    trie, eos, size = setting.trie, setting.model.encoder.id("[EOS]"), len(prefixes[0])
    num_queries = len(prefixes)
    cache, stepper = prefix_cache(setting, prefixes, size)
    first = setting.model.log_probabilities(stepper.first_states)
    scores = torch.repeat_interleave(first, BEAM, 0)
    node = np.zeros(num_queries * BEAM, np.int64)  # a row for each beam of each query
    total = np.where(np.arange(num_queries * BEAM) % BEAM == 0, 0.0, -np.inf)
    found: list[dict[int, float]] = [{} for _ in prefixes]
    for depth in range(int(trie.depth[-1]) + 1):
        alive = np.flatnonzero(total > -np.inf)
        for row in alive[np.diff(trie.offset)[node[alive]] > 0] if depth else []:
            score = total[row] + scores[row, eos].item()
            found[row // BEAM][int(trie.entity[trie.offset[node[row]]])] = score
        child, owner = ragged_ranges(trie.first[node[alive]], trie.first[node[alive] + 1])
        row = alive[owner]
        if not len(row):
            break
        token = trie.token[child].astype(np.int64)
        score = total[row] + scores[torch.from_numpy(row), torch.from_numpy(token)].double().numpy()
        order = np.lexsort((child, -score, row // BEAM))
        query = row[order] // BEAM
        rank = np.arange(len(order)) - np.searchsorted(query, query)
        # The best BEAM children of each query fill its slots; unused slots copy its first beam.
        order, slot = order[rank < BEAM], (query * BEAM + rank)[rank < BEAM]
        source = (np.arange(len(node)) // BEAM) * BEAM
        source[slot] = row[order]
        node, total = np.zeros_like(node), np.full(len(node), -np.inf)
        node[slot], total[slot] = child[order], score[order]
        cache.reorder_cache(torch.from_numpy(source))
        ids = torch.from_numpy(np.where(node > 0, trie.token[node], 1).astype(np.int64))
        positions = torch.full((len(ids), 1), size + depth + 2)  # XLM-R's positions begin at 2
        output = setting.decoder(
            ids[:, None], past_key_values=cache, position_ids=positions, use_cache=True
        )
        scores = torch.log_softmax(output.logits[:, -1], dim=-1)
    return [dict(sorted(one.items(), key=lambda pair: (-pair[1], pair[0]))[:BEST]) for one in found]


def ours(setting: Setting, prefixes: list[list[int]]) -> list[Found]:
    """Search with this package's beam."""
    return beam_search(setting.model, setting.trie, prefixes, BEST, beam=BEAM)


# --- the comparison -------------------------------------------------------------------------------


def english_queries(kb: KB, completer: Completer, count: int) -> list[list[int]]:
    """Return prefixes of test facts, of the most frequent length: peers need no padding."""
    names = completer.relation_names("en")
    rows = kb.query(
        "SELECT s.name, t.relation FROM triples t JOIN entities s ON s.id = t.subject "
        "WHERE t.lang = 'en' AND t.split = 'test' ORDER BY hash(t.subject, t.relation), 1, 2"
    ).fetchall()[: 40 * count]
    prefixes = [completer.encode(Query("en", name, names[relation])) for name, relation in rows]
    lengths = np.array([len(prefix) for prefix in prefixes])
    chosen = np.flatnonzero(lengths == np.bincount(lengths).argmax())[:count]
    return [prefixes[row] for row in chosen]


def same_answers(ours: Found, theirs: dict[int, float]) -> bool:
    """Tell whether the scores are the same in order; names of equal score may be swapped."""
    return len(ours.score) == len(theirs) and bool(
        np.allclose(ours.score, np.array(list(theirs.values())), atol=2e-3)
    )


def overlap(ours: Found, theirs: dict[int, float]) -> float:
    """Return the share of our answers that they have, too."""
    return len(set(ours.entity.tolist()) & set(theirs)) / max(1, len(ours.entity))


def search_operations(setting: Setting, prefixes: list[list[int]], found: list[Found]) -> float:
    """Count multiplications and additions: prefixes and visited nodes, once each."""
    config = setting.model.backbone.config
    width, inner = config.hidden_size, config.intermediate_size
    layer = 2.0 * config.num_hidden_layers * (4 * width**2 + 2 * width * inner)
    head = 2.0 * (width**2 + width * config.vocab_size)
    nodes = sum(one.num_nodes for one in found)
    tokens = sum(len(prefix) for prefix in prefixes)
    return float((tokens + nodes) * layer + (len(prefixes) + nodes) * head)


class Times:
    """Seconds of each peer, summed over turns that alternate between the peers; peak memory.

    The peak is that of the process, the model and the candidates included, which all peers share.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.queries: dict[str, int] = {}
        self.peaks: dict[str, float] = {}  # GiB

    def run(self, name: str, num_queries: int, work: Callable[..., Any], *args: Any) -> Any:
        """Call `work` and add its time to that of the peer `name`."""
        reset_peak()
        started = time.perf_counter()
        result = work(*args)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        self.peaks[name] = max(self.peaks.get(name, 0.0), peak_gib())
        self.queries[name] = self.queries.get(name, 0) + num_queries
        return result

    def each(self, name: str) -> float:
        """Return the seconds per query."""
        return self.seconds[name] / self.queries[name]


def compare(title: str, kb: KB, model: PrixLM, args: argparse.Namespace) -> None:
    """Measure one model against its peers; compare the answers first."""
    completer = Completer(model, kb)
    trie = open_trie(completer.cache, "en", kb.entity_range("en"), 64)
    setting = make_setting(model.eval(), trie)
    prefixes = english_queries(kb, completer, args.batch)
    times, machine = Times(), Machine()
    done, equal, agreed, nodes = 0.0, [], [], []
    peers = ("released", "generate", "ours") if setting.is_causal else PEERS
    ours(setting, prefixes[:1])  # not counted
    if "plain" in peers:
        plain(setting, prefixes[:1])
    for turn, prefix in enumerate(prefixes[: args.queries]):
        [found] = times.run("ours", 1, ours, setting, [prefix])
        done += search_operations(setting, [prefix], [found])
        nodes.append(found.num_nodes)
        machine.measure()
        if "plain" in peers:
            [theirs] = times.run("plain", 1, plain, setting, [prefix])
            equal.append(same_answers(found, theirs))
        if turn < args.slow:
            theirs = times.run("released", 1, released, setting, prefix)
            equal.append(same_answers(found, theirs))
            [theirs] = times.run("generate", 1, generated, setting, [prefix])
            agreed.append(overlap(found, theirs))
        machine.measure()
    single_share = done / times.seconds["ours"] / machine.rate
    done = 0.0
    for _ in range(args.turns):
        found = times.run("ours, batch", len(prefixes), ours, setting, prefixes)
        done += search_operations(setting, prefixes, found)
        machine.measure()
        if "plain" in peers:
            theirs = times.run("plain, batch", len(prefixes), plain, setting, prefixes)
            machine.measure()
            equal += [same_answers(one, other) for one, other in zip(found, theirs, strict=True)]
    theirs = times.run("generate, batch", len(prefixes), generated, setting, prefixes)
    agreed += [overlap(one, other) for one, other in zip(found, theirs, strict=True)]
    batch_share = done / times.seconds["ours, batch"] / machine.rate
    print(f"\n### {title}\n")
    print(
        f"{len(trie.entity):,} candidates, {trie.num_nodes:,} nodes, {len(model.tokenizer):,} "
        f"pieces. Answers equal to those of the released algorithm and the plain beam: "
        f"{sum(equal)} of {len(equal)} lists; `generate` shares {np.mean(agreed):.0%} of them.\n"
    )
    print(
        "| | s/query, one at a time | ours is faster | s/query, batch | ours is faster "
        "| peak GiB, one at a time | peak GiB, batch |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in peers:
        line = f"| {name} | {times.each(name):.3f} | {times.each(name) / times.each('ours'):.1f} |"
        together = f"{name}, batch"
        peaks = [times.peaks.get(kind) for kind in (name, together)]
        if together in times.seconds:
            ratio = times.each(together) / times.each("ours, batch")
            line += f" {times.each(together):.3f} | {ratio:.1f} |"
        else:
            ratio = times.each(name) / times.each("ours, batch")
            line += f" | {ratio:.1f} |"
        print(line, " | ".join("" if peak is None else f"{peak:.2f}" for peak in peaks), "|")
    if setting.is_causal:
        return  # `search_operations` knows the layers of XLM-R only
    count = search_operations(setting, prefixes, found) / len(prefixes)
    print(
        f"\nThe search cannot avoid {count / 1e9:.1f} Gflop a query ({np.mean(nodes):.0f} nodes "
        f"and the prefix, once each); {single_share:.0%} of the machine's {machine.rate / 1e9:.0f} "
        f"Gflop/s with one query, {batch_share:.0%} with {len(prefixes)}."
    )


def compare_peers(kb: KB, work: Path, args: argparse.Namespace) -> None:
    """Print a table for each kind of model."""
    kinds = args.kinds.split(",")
    if "base" in kinds or "trimmed" in kinds:
        save_base(work / "base")
    if "base" in kinds:
        compare("XLM-R-base", kb, PrixLM.from_base(work / "base", kb.languages), args)
    if "trimmed" in kinds:
        keep = lambda tokenizer: pieces_to_keep(kb, tokenizer, num_words=0)  # noqa: E731
        model = PrixLM.from_base(work / "base", kb.languages, keep=keep)
        compare("XLM-R-base, trimmed", kb, model, args)
    if args.base is not None:
        keep = lambda tokenizer: pieces_to_keep(kb, tokenizer, num_words=0)  # noqa: E731
        model = PrixLM.from_base(args.base, kb.languages, keep=keep)
        compare(f"{args.base.name}, trimmed", kb, model, args)
    if "compact" in kinds:
        if args.model is None:
            print("\nNo trained model: pass --model (made by `prixlm pretrain`).")
        else:
            compare("Compact, trained", kb, PrixLM.load(args.model), args)


# --- two million candidates -----------------------------------------------------------------------


def generate_names(real: Ragged, rows: Array, count: int, seed: int = 0) -> Ragged:
    """Generate distinct names with a Markov chain over real ones, the end of a name included."""
    generator = np.random.default_rng(seed)
    lengths = real.lengths(rows)
    starts = np.asarray(real.offsets[rows])
    index, owner = ragged_ranges(starts, starts + lengths)
    tokens = np.asarray(real.ids[index]).astype(np.int64)  # of all names, end to end
    last = np.append(owner[1:] != owner[:-1], True)
    following = np.where(last, -1, np.append(tokens[1:], -1))  # -1: the name ends
    # Sorted by token, what follows a token somewhere is one slice, from which to draw.
    order = np.argsort(tokens, kind="stable")
    begins = np.searchsorted(tokens[order], np.arange(tokens.max() + 2))
    following, firsts = following[order], tokens[np.append(True, last[:-1])]
    made: Array = np.zeros((0, 24), np.int32)
    while len(made) < count:
        state = generator.choice(firsts, count)
        names = np.full((count, 24), -1, np.int32)
        for column in range(24):
            alive = np.flatnonzero(state >= 0)
            names[alive, column] = state[alive]
            low, high = begins[state[alive]], begins[state[alive] + 1]
            state[alive] = following[generator.integers(low, high)]
        names = names[state < 0]
        made = np.unique(np.concatenate([made, names]), axis=0)
    made = made[np.sort(generator.permutation(len(made))[:count])]
    counts = (made >= 0).sum(1)
    return Ragged(np.append(0, np.cumsum(counts)), made[made >= 0])


def measure_millions(kb: KB, model: PrixLM, work: Path, args: argparse.Namespace) -> None:
    """Print how build, size and time per query grow with the number of candidates."""
    completer = Completer(model, kb)
    prefixes = english_queries(kb, completer, args.batch)
    english = np.array(kb.entity_range("en"))
    names = generate_names(completer.cache.entities, english, 2_000_000)
    real = Trie.build(completer.cache.entities, english)
    print("\n### Two million candidates\n")
    print(
        "| names | tokens | nodes a name | build s | bytes a name | load s | s/query | batch "
        "| nodes visited | ms a node |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for number in (len(english), 20_000, 200_000, 2_000_000):
        generated = number != len(english)
        source, chosen = completer.cache.entities, english
        if generated:
            rows = np.random.default_rng(1).permutation(len(names))[:number]
            source, chosen = names, np.sort(rows)
        tokens = float(source.lengths(chosen).mean())
        started = time.perf_counter()
        trie = Trie.build(source, chosen)
        built = time.perf_counter() - started
        folder = work / f"trie-{number}-{generated}"
        trie.save(folder)
        size = sum(path.stat().st_size for path in folder.iterdir()) / number
        started = time.perf_counter()
        trie = Trie.open(folder)
        opened = time.perf_counter() - started
        times = Times()
        beam_search(model, trie, prefixes[:1], BEST, beam=BEAM)
        for prefix in prefixes:
            times.run("one", 1, beam_search, model, trie, [prefix], BEST)
        for _ in range(3):
            found = times.run("batch", len(prefixes), beam_search, model, trie, prefixes, BEST)
        visited = float(np.mean([one.num_nodes for one in found]))
        kind = "generated" if generated else "DBP-5L, English"
        print(
            f"| {number:,} {kind} | {tokens:.1f} | {trie.num_nodes / number:.2f} | {built:.2f} | "
            f"{size:.0f} | {opened:.4f} | {times.each('one'):.4f} | {times.each('batch'):.4f} | "
            f"{visited:.0f} | {1000 * times.each('batch') / visited:.2f} |"
        )
    print(
        f"\nPeak memory {peak_gib():.1f} GiB, with the generator's own. Real nodes: "
        f"{real.num_nodes:,}."
    )


# --- exact search ---------------------------------------------------------------------------------


def measure_exact(kb: KB, model: PrixLM, args: argparse.Namespace) -> None:
    """Print nodes and time of the exact search beside those of the beam."""
    completer = Completer(model, kb)
    trie = open_trie(completer.cache, "en", kb.entity_range("en"), 64)
    prefixes = english_queries(kb, completer, args.exact)
    times = Times()
    beam_search(model, trie, prefixes[:1], BEST), exact_search(model, trie, prefixes[:1], BEST)
    for prefix in prefixes[:50]:
        times.run("beam", 1, beam_search, model, trie, [prefix], BEST)
        times.run("exact", 1, exact_search, model, trie, [prefix], BEST)
    beams: list[Found] = []
    exacts: list[Found] = []
    for start in range(0, len(prefixes), args.batch):
        part = prefixes[start : start + args.batch]
        beams += times.run("beams", len(part), beam_search, model, trie, part, BEST)
        exacts += times.run("exacts", len(part), exact_search, model, trie, part, BEST)
    assert all(found.complete for found in exacts)
    other = [
        set(a.entity.tolist()) != set(b.entity.tolist()) for a, b in zip(beams, exacts, strict=True)
    ]
    first = [a.entity[0] != b.entity[0] for a, b in zip(beams, exacts, strict=True)]
    proven = np.mean([found.complete for found in beams])
    print("\n### Exact search, the trained compact model\n")
    print(f"{len(prefixes)} queries, {len(trie.entity):,} candidates, {trie.num_nodes:,} nodes.\n")
    print("| | nodes visited (median, mean, most) | s/query, one at a time | s/query, batch |")
    print("|---|---|---|---|")
    for name, found in (("beam", beams), ("exact", exacts)):
        nodes = np.array([one.num_nodes for one in found])
        print(
            f"| {name} | {np.median(nodes):.0f}, {nodes.mean():.0f}, {nodes.max():,} "
            f"| {times.each(name):.4f} | {times.each(name + 's'):.4f} |"
        )
    print(
        f"\nExact takes {times.each('exact') / times.each('beam'):.2f} times the beam, in batches "
        f"{times.each('exacts') / times.each('beams'):.2f}. The beam's best ten differ from the "
        f"exact ones in {np.mean(other):.1%} of the queries, its first answer in "
        f"{np.mean(first):.1%}; it proves its own list in {proven:.1%}."
    )


def main() -> None:
    """Parse the arguments and run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="peers, millions, exact; all if none")
    parser.add_argument("--model", type=Path, help="a compact model trained on DBP-5L")
    parser.add_argument("--base", type=Path, help="a decoder in the hub's format, as one more kind")
    parser.add_argument("--kinds", default="base,trimmed,compact", help="of the peers")
    parser.add_argument("--queries", type=int, default=4, help="asked one at a time")
    parser.add_argument("--slow", type=int, default=1, help="of them, also by the slowest peers")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=2, help="of the batch")
    parser.add_argument("--exact", type=int, default=400, help="queries of the exact search")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    parts = args.parts or ["peers", "millions", "exact"]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        kb = import_kb([DATA / "dbp5l"], work / "dbp5l")
        if "peers" in parts:
            compare_peers(kb, work, args)
        if {"millions", "exact"} & set(parts) and args.model is None:
            parser.error("--model is missing: a compact model that was trained on DBP-5L")
        if "millions" in parts:
            measure_millions(kb, PrixLM.load(args.model), work, args)
        if "exact" in parts:
            measure_exact(kb, PrixLM.load(args.model), args)


if __name__ == "__main__":
    main()
