"""Probing: files of prompts, the paper's protocol, candidate ranking, and the tables."""

import dataclasses
import gc
import json
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaForMaskedLM

from prixlm import PrixError, PrixLM
from prixlm.entities.encoder import load_model
from prixlm.evaluation.probing import (
    Probed,
    Prompt,
    Prompts,
    _Continuing,
    _Probing,
    evaluate_models,
    evaluate_probing,
    probe,
    read_bmlama,
    read_bmlama_files,
    read_bmlama_folder,
    read_mlama,
    read_mlama_folder,
    sample_prompts,
)
from prixlm.lm.token_cache import encode_names
from prixlm.lm.trim import read_differently
from prixlm.reports.kept import Kept
from prixlm.reports.tables import tables_to_json
from tests.conftest import FAMILIES

HEADER = "Prompt\tAns\tCandidate Ans\tSubject\n"


def favour(model: PrixLM, order: list[int]) -> PrixLM:
    """A model that answers these pieces everywhere, best first."""
    with torch.no_grad():
        weight, bias = model.decoder()
        weight.zero_()
        bias.fill_(0.0)
        for place, piece in enumerate(order):
            bias[piece] = 100.0 - 10 * place
    return model


def piece(model: PrixLM, text: str) -> int:
    (found,) = encode_names(model.encoder.tokenizer, [text])
    assert len(found) == 1, (text, found)
    return found[0]


@pytest.fixture
def wordy(tmp_path: Path) -> Path:
    """A tiny XLM-R with some words among its pieces."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = ["▁", *"abcdefghijklmnopqrstuvwxyz.RIP", "▁Rome", "▁Paris", "▁is", "▁it", "▁the"]
    vocab = [(p, 0.0) for p in special] + [(p, -9.0 if len(p) == 1 else -2.0) for p in pieces]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(special)
    config = XLMRobertaConfig(
        vocab_size=len(vocab), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=60, type_vocab_size=1,
        pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    XLMRobertaForMaskedLM(config).save_pretrained(tmp_path / "wordy")
    words = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words)
    whole.save_pretrained(tmp_path / "wordy")
    return tmp_path / "wordy"


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


def test_prompts_that_cannot_be_asked_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "en.tsv"
    path.write_text(
        HEADER
        + "Rome is in <mask>.\tItaly\tItaly, France\tRome\n"
        + "No blank.\tItaly\tItaly\tRome\n"
        + "<mask> and <mask>.\tItaly\tItaly\tRome\n"
        + "It is <mask>.\t\tItaly\tRome\n",
        "utf-8",
    )
    found = read_bmlama(path)
    assert found.prompts == [Prompt("Rome is in <mask>.", "Italy", ("Italy", "France"))]
    assert found.problems == {"no blank": 1, "more than one blank": 1, "no answer": 1}
    path.write_text(HEADER)
    with pytest.raises(PrixError, match="no prompt with one blank"):
        read_bmlama(path)
    path.write_text("a\tb\n")
    with pytest.raises(PrixError, match="columns a, b; expected Prompt"):
        read_bmlama(path)


def test_a_prompt_that_is_too_long_is_counted(bases: dict[str, Path]) -> None:
    model = PrixLM.from_base(bases["xlmr"], ())
    long = "x " * model.max_length
    prompts = Prompts(
        [Prompt(f"{long} <mask>.", "a", ("a", "b")), Prompt("<mask>.", "a", ("a", "b"))]
    )
    found = probe(model, prompts, "en")
    assert found.problems[f"longer than the model takes ({model.max_length})"] == 1
    assert set(found.ranked) == {1} and 0 not in found.single


def test_mlama_folders_have_relations(bases: dict[str, Path], tmp_path: Path) -> None:
    own = tmp_path / "fi"
    own.mkdir()
    rows = [{"sub_label": "Ranska", "obj_label": "Pariisi"}, {"sub_label": "x", "obj_label": "y"}]
    (own / "P36.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (own / "P1.jsonl").write_text(json.dumps(rows[0]))
    (own / "place_of_birth.jsonl").write_text('{"sub_label": "x"}\n7\n')
    template = {"relation": "P36", "template": "[X]: pääkaupunki on [Y] ."}
    odd = {"relation": ["P1"], "template": "[X] [Y]"}
    (own / "templates.jsonl").write_text(json.dumps(template) + "\n" + json.dumps(odd))
    found = read_mlama(tmp_path, "fi")
    assert found.prompts[0] == Prompt(
        "Ranska: pääkaupunki on <mask> .", "Pariisi", ("Pariisi", "y"), "P36"
    )
    assert found.problems == {
        "a relation without a template": 1,
        "a row without a subject or an object": 1,
        "a line that is not a JSON object": 1,
        "a template without a relation or a text": 1,
    }
    result = probe(PrixLM.from_base(bases["xlmr"], ()), found, "fi")
    assert len(result.relations["P36"]) == 2
    with pytest.raises(PrixError, match="cannot be read as JSON lines"):
        read_mlama(tmp_path, "sv")


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
    monkeypatch.setattr("prixlm.evaluation.probing._LOGITS", 100)
    assert probe(model, prompts, "fi") == whole


def test_files_of_prompts_are_named_by_their_languages(tmp_path: Path) -> None:
    row = "It is <mask>.\ta\ta, b\tx\n"
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "en.tsv").write_text(HEADER + row)
    assert set(read_bmlama_folder(tmp_path / "one")) == {"en"}
    with pytest.raises(PrixError, match="two files of en: pass one for each language"):
        read_bmlama_files([tmp_path / "one" / "en.tsv", tmp_path / "two" / "en.tsv"])
    with pytest.raises(PrixError, match=r"has no .tsv file"):
        read_bmlama_folder(tmp_path)
    with pytest.raises(PrixError, match="expected mLAMA's layout"):
        read_mlama_folder(tmp_path)


def test_tables_compare_models_on_their_own_and_on_common_prompts(
    wordy: Path, bases: dict[str, Path]
) -> None:
    small = PrixLM.from_base(wordy, ())
    favour(small, [piece(small, "Rome"), piece(small, "Paris")])
    other = PrixLM.from_base(bases["mbert"], ())
    texts = ("It is in <mask>.", "<mask> is it")
    prompts = Prompts([Prompt(text, "Rome", ("Rome", "Paris"), "P1") for text in texts])
    tables, results = evaluate_probing({"xlmr": small, "mbert": other}, {"fi": prompts})
    single, common, ranked, by_relation = tables
    assert [table.title for table in tables] == [
        "best word, one-piece answers",
        "best word, answers of one piece for every model",
        "candidate ranking",
        "candidate ranking by relation, fi",
    ]
    assert single.rows["xlmr"]["fi"][:2] == (1.0, 2) and single.rows["mbert"]["fi"].number == 0
    assert not single.questions, "the models were asked other prompts: no row to compare"
    assert set(ranked.questions) == {("xlmr", "fi"), ("mbert", "fi")}
    assert common.numbers() == {"fi": 0}, "mBERT's pieces have no Rome"
    assert ranked.rows["chance"]["fi"].value == 0.5 and ranked.rows["xlmr"]["fi"].value == 1.0
    assert list(by_relation.rows) == ["P1"] and by_relation.columns() == ["xlmr", "mbert"]
    assert "Words that the best one is chosen from: xlmr" in single.notes[0]
    assert set(results) == {"xlmr", "mbert"}


def test_a_compact_model_is_marked_and_named_by_its_folder(model: Path) -> None:
    prompts = {"fi": Prompts([Prompt("<mask> on", "fi 1", ("fi 1", "fi 22"))])}
    tables, _ = evaluate_models([model], prompts)
    assert list(tables[0].rows) == [model.name]
    assert "never seen a sentence (all)" in tables[0].notes[0]


def test_a_sample_of_prompts_has_the_same_rows_in_every_language() -> None:
    prompts = [Prompts([Prompt(f"{lang} {i} <mask>", "a", ()) for i in range(50)]) for lang in "xy"]
    one, other = (sample_prompts(part, 7).prompts for part in prompts)
    rows = [int(prompt.text.split()[1]) for prompt in one]
    assert len(rows) == 7 and rows == sorted(rows)
    assert rows == [int(prompt.text.split()[1]) for prompt in other]
    assert sample_prompts(prompts[0], 50) is prompts[0]
    with pytest.raises(PrixError, match="--most 0: expected 1 or more prompts"):
        sample_prompts(prompts[0], 0)


def test_a_stopped_table_resumes_and_holds_one_model_at_a_time(
    wordy: Path, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("It is in <mask>.", "<mask> is it", "the <mask> is")
    part = Prompts([Prompt(text, "Rome", ("Rome", "Paris")) for text in texts])
    prompts = {"fi": part, "et": part}
    folders = [wordy, bases["mbert"]]
    whole, _ = evaluate_models(folders, prompts)
    asked: list[tuple[str, str]] = []
    loaded: list[weakref.ref[PrixLM]] = []

    def counting_load(folder: Path) -> PrixLM:
        gc.collect()
        assert not any(model() is not None for model in loaded), "the model before it is dropped"
        model = load_model(folder)
        loaded.append(weakref.ref(model))
        return model

    def counting_probe(model: PrixLM, prompts: Prompts, lang: str) -> Probed:
        asked.append((model.backbone.config.model_type, lang))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return probe(model, prompts, lang)

    monkeypatch.setattr("prixlm.evaluation.probing.load_model", counting_load)
    monkeypatch.setattr("prixlm.evaluation.probing.probe", counting_probe)
    path = tmp_path / "parts.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate_models(folders, prompts, kept=Kept(path))
    asked.append(("stopped", ""))
    tables, _ = evaluate_models(folders, prompts, kept=Kept(path))
    assert asked[3:] == [("xlm-roberta", "et"), ("bert", "fi"), ("bert", "et")]
    assert tables_to_json(tables) == tables_to_json(whole)
    # Values of other prompts, another sample or another model are not taken.
    asked.append(("sample", ""))
    evaluate_models(folders[:1], {"fi": part}, most=2, kept=Kept(path))
    config = json.loads((wordy / "config.json").read_text("utf-8"))
    (wordy / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.1}))
    evaluate_models(folders[:1], {"fi": part}, kept=Kept(path))
    assert asked[-3:] == [("sample", ""), ("xlm-roberta", "fi"), ("xlm-roberta", "fi")]
