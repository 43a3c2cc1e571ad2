"""A model is asked prompts: the paper's protocol and candidate ranking, by hand and by pass."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from prixlm import PrixError, PrixLM
from prixlm.evaluation.probing.asking import _Continuing, _Probing, probe
from prixlm.evaluation.probing.prompts import Prompt, Prompts, read_bmlama
from prixlm.lm.token_cache import encode_names
from prixlm.lm.trim import read_differently
from tests.conftest import FAMILIES
from tests.evaluation.probing.helpers import favour, piece


def test_the_best_word_is_the_known_one(wordy: Path) -> None:
    model = PrixLM.from_base(wordy, ())
    right, other = "Rome", "Paris"
    inside, dot = (model.encoder.tokenizer.token_to_id(p) for p in ("a", "."))
    # Pieces inside words and punctuation are better than the best word, and are no answers.
    favour(model, [inside, dot, piece(model, right), piece(model, other)])
    prompts = Prompts(
        [
            Prompt("It is in <mask>.", right, (right, other)),
            Prompt("<mask> is it", other, (right, other)),
            Prompt("It <mask> is", right + " " + other, (other,)),
        ]
    )
    found = probe(model, prompts, "fi")
    assert found.single == {0: True, 1: False} and found.best == {0: right, 1: right}
    # Of the last, "Rome Paris" is the mean of its two pieces, and better than "Paris" alone.
    assert found.ranked == {0: True, 1: False, 2: True}


def test_stop_words_and_punctuation_are_no_answers(bases: dict[str, Path]) -> None:
    model = PrixLM.from_base(bases["mbert"], ())
    vocab = model.encoder.tokenizer.get_vocab()
    word = next(p for p in sorted(vocab) if p.isalpha() and p.isascii() and len(p) > 4)
    stop = vocab["a"]  # a stop word of English
    favour(model, [stop, vocab[word]])
    prompts = Prompts([Prompt("x <mask> y", word, ()), Prompt("x <mask> y", "a", ("a",))])
    english = probe(model, prompts, "en")
    assert english.best == {0: word, 1: word}
    assert english.problems == {
        "an answer that is a stop word or not a word (never the best word)": 1,
        "no second candidate (not ranked)": 2,
    }
    assert probe(model, prompts, "fi").best == {0: "a", 1: "a"}, "in Finnish it is none"


def test_scores_at_the_mask_equal_the_padded_pass(bases: dict[str, Path]) -> None:
    model = PrixLM.from_base(bases["xlmr"], ())
    probing = _Probing(model, "en")
    texts = ["Finland is in <mask>.", "<mask>", "Paris <mask> is the capital of France"]
    inputs = [probing.fill(text, 2) for text in texts]
    for rows, scores in probing.mask_scores(inputs):
        start = 0
        for row in rows:
            ids = torch.tensor([inputs[row]])
            length = torch.tensor([ids.shape[1]])
            with torch.no_grad():
                whole = model.logits(model.hidden(ids, length, length))[0]
            at = [i for i, token in enumerate(inputs[row]) if token == probing.mask]
            torch.testing.assert_close(scores[start : start + 2], whole[at], atol=1e-4, rtol=1e-4)
            start += 2


@pytest.mark.parametrize("kind", ["gemma", "llama"])
def test_a_decoder_is_asked_by_continuing_the_prompt(kind: str, families: dict[str, Path]) -> None:
    """Its scores are those of transformers' own pass over each whole sentence."""
    model = PrixLM.from_base(families[kind], ()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    tokenizer = model.encoder.tokenizer
    names = ("Helsinki", "Paris", "Euro")
    prompts = [
        Prompt("Finland capital <mask>.", "Helsinki", names),
        Prompt("France <mask> is", "Euro", names),
        Prompt("The currency of Finland is <mask>", "Paris", names),
    ]

    @torch.no_grad()
    def score(prompt: Prompt, name: str) -> float:
        before, after = prompt.text.split("<mask>")
        texts = (before.rstrip(), f" {name}", after)
        parts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        ids = [*model.encoder.start, *(token for part in parts for token in part)]
        logs = model.backbone(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        first = len(model.encoder.start) + len(parts[0])
        return sum(logs[i - 1, ids[i]].item() for i in range(first, len(ids)))

    found = probe(model, Prompts(prompts), "en")
    assert found.ranked == {
        row: max(names, key=lambda name, prompt=prompt: score(prompt, name)) == prompt.answer
        for row, prompt in enumerate(prompts)
    }
    probing = _Continuing(model, "en")
    allowed = probing.words()
    best = probing.best_words([prompt.text for prompt in prompts], allowed)
    for prompt, piece_ in zip(prompts, best.tolist(), strict=True):
        with torch.no_grad():
            ids = torch.tensor([probing.split(prompt.text)[0]])
            logits = model.backbone(input_ids=ids).logits[0, -1]
        assert piece_ == int(logits.masked_fill(~torch.from_numpy(allowed), -torch.inf).argmax())
    assert allowed.any() and probing.word(int(best[0])).strip() == probing.word(int(best[0]))


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_can_name_the_right_word(kind: str, families: dict[str, Path]) -> None:
    """An answer is asked for with the pieces that a word begins with."""
    model = PrixLM.from_base(families[kind], ()).eval()
    probing = (_Continuing if model.kind.is_decoder else _Probing)(model, "fi")
    allowed = probing.words()
    words = {probing.word(n): [n] for n in np.flatnonzero(allowed).tolist()}
    pieces = zip(words, probing.encode(list(words)), strict=True)
    word = max((word for word, ids in pieces if ids == words[word]), key=len)
    [number] = words[word]
    head = model.backbone.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.zeros(len(head.weight)))
    with torch.no_grad():
        head.weight.zero_()
        head.bias[number] = 100.0
    found = probe(model, Prompts([Prompt("Suomi is <mask>.", word, (word, "xyz"))]), "fi")
    assert found.best == {0: word} and found.single == {0: True} and found.ranked == {0: True}


@pytest.mark.parametrize("kind", ["modernbert", "eurobert"])
def test_a_vocabulary_trimmed_without_the_answer_after_a_space_is_refused(
    kind: str, families: dict[str, Path]
) -> None:
    """The word alone is read as before, but it is not what is asked for."""
    probing = _Probing(PrixLM.from_base(families[kind], ()), "fi")
    words = {probing.word(n): n for n in np.flatnonzero(probing.words()).tolist()}
    pieces = zip(words, probing.encode(list(words)), strict=True)
    word = max((word for word, ids in pieces if ids == [words[word]]), key=len)

    def keep(tokenizer: Tokenizer) -> np.ndarray:
        return np.delete(np.arange(tokenizer.get_vocab_size()), words[word])

    model = PrixLM.from_base(families[kind], (), keep=keep)
    assert not read_differently(model, [word])
    probe(model, Prompts([Prompt("x <mask>", "x", ("x", "y"))]), "fi")
    with pytest.raises(PrixError, match="trimmed without the pieces of 1 of"):
        probe(model, Prompts([Prompt("x <mask>", word, ("x", "y"))]), "fi")


def test_a_prompt_that_is_too_long_is_counted(bases: dict[str, Path]) -> None:
    model = PrixLM.from_base(bases["xlmr"], ())
    long = "x " * model.max_length
    prompts = Prompts(
        [Prompt(f"{long} <mask>.", "a", ("a", "b")), Prompt("<mask>.", "a", ("a", "b"))]
    )
    found = probe(model, prompts, "en")
    assert found.problems[f"longer than the model takes ({model.max_length})"] == 1
    assert set(found.ranked) == {1} and 0 not in found.single


def test_a_trimmed_vocabulary_is_refused(wordy: Path, tmp_path: Path) -> None:
    def without(word: str) -> object:
        def keep(tokenizer: Tokenizer) -> np.ndarray:
            gone = tokenizer.token_to_id(f"▁{word}")
            return np.delete(np.arange(tokenizer.get_vocab_size()), gone)

        return keep

    words = ["Rome", "Paris"]
    model = PrixLM.from_base(wordy, (), keep=without(words[0]))  # type: ignore[arg-type]
    model.save(tmp_path / "model")
    model = PrixLM.load(tmp_path / "model")
    assert len(probe(model, Prompts([Prompt("x <mask>", words[1], ())]), "fi").single) == 1
    for prompt in (
        Prompt(f"{words[0]} <mask>", "x", ()),
        Prompt("x <mask>", words[0], ()),
        Prompt("x <mask>", "x", ("x", words[0])),
    ):
        with pytest.raises(PrixError, match="trimmed without the pieces of"):
            probe(model, Prompts([prompt]), "fi")


def test_a_prompt_is_read_as_the_tokenizer_itself_would(data: Path, tmp_path: Path) -> None:
    """XLM-R's tokenizer gives the same input; its mask, as transformers has it, takes the space."""
    tokenizer = Tokenizer.from_file(str(data / "xlmr" / "tokenizer.json"))
    for prompt in read_bmlama(data / "bmlama53" / "fi.tsv").prompts[:200]:
        before, after = prompt.text.split("<mask>")
        parts = encode_names(tokenizer, [before.rstrip(), after])
        ours = [0, *parts[0], tokenizer.token_to_id("<mask>"), *parts[1], 2]
        text = prompt.text.replace(" <mask>", "<mask>")
        assert tokenizer.encode(text).ids == ours, prompt.text


def test_the_number_of_single_piece_answers_is_the_papers(data: Path) -> None:
    tokenizer = Tokenizer.from_file(str(data / "xlmr" / "tokenizer.json"))
    found = {}
    for lang in ("en", "fr"):
        answers = [p.answer for p in read_bmlama(data / "bmlama53" / f"{lang}.tsv").prompts]
        found[lang] = sum(len(row) == 1 for row in encode_names(tokenizer, answers))
    assert found == {"en": 2520, "fr": 1228}


def test_a_causal_model_is_probed_in_both_directions(wordy: Path) -> None:
    prompts = Prompts(
        [Prompt(f"{x} <mask> {y}", "Rome", ("Rome", "Paris")) for x in "abc" for y in "def"]
    )
    model = PrixLM.from_base(wordy, ())
    both = probe(model, prompts, "fi")
    model.settings = dataclasses.replace(model.settings, mask="causal")
    assert probe(model, prompts, "fi") == both


def test_small_passes_change_nothing(wordy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["<mask>", "is <mask> it", "the <mask> is the Rome", "Paris <mask> abc"]
    candidates = ("Rome", "Paris", "abc", "a b c d", "it", "x y")
    prompts = Prompts([Prompt(t, a, candidates) for t in texts for a in candidates])
    model = PrixLM.from_base(wordy, ())
    whole = probe(model, prompts, "fi")
    monkeypatch.setattr("prixlm.evaluation.probing.asking._LOGITS", 100)
    assert probe(model, prompts, "fi") == whole
