"""The example that writes texts to keep, and the settings of a run that needs them."""

import importlib.util
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from prixlm import KB, PrixError
from prixlm.config import read_config
from prixlm.evaluation.probing.asking import probe
from prixlm.evaluation.probing.prompts import read_bmlama
from prixlm.evaluation.reproduce_names import NamesConfig
from prixlm.lm.model import PrixLM
from prixlm.lm.trim import pieces_to_keep
from prixlm.training.pretrain import PretrainConfig
from prixlm.types import Array

EXAMPLES = Path(__file__).parents[1] / "examples"


def write_texts(*args: Path | str) -> None:
    spec = importlib.util.spec_from_file_location("keep_example", EXAMPLES / "keep.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["keep.py", *map(str, args)])
        module.main()


def test_a_model_that_is_trimmed_with_them_reads_prompts_as_its_base(
    families: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    head = "Prompt\tAns\tCandidate Ans\tSubject"
    rows = ["Kenya borders <mask> in Africa.\tFrance\tFrance, Finland\tKenya"]
    (prompts / "en.tsv").write_text("\n".join([head, *rows]), "utf-8")
    write_texts("--prompts", prompts, "--to", tmp_path / "keep.txt")
    texts = (tmp_path / "keep.txt").read_text("utf-8").splitlines()
    assert texts == ["Kenya borders", " in Africa.", "France", "Finland"]
    asked = read_bmlama(prompts / "en.tsv")

    def trimmed(texts: list[str]) -> PrixLM:
        def keep(tokenizer: Tokenizer) -> Array:
            return pieces_to_keep(shared_toy, tokenizer, texts, num_words=0)

        return PrixLM.from_base(families["xlmr"], ["en"], keep=keep)

    assert probe(trimmed(texts), asked, "en").ranked
    with pytest.raises(PrixError, match="texts of the en prompts"):
        probe(trimmed([]), asked, "en")


def test_words_of_dictionaries_and_files_are_written_once(tmp_path: Path) -> None:
    pair = tmp_path / "bli" / "en-it"
    pair.mkdir(parents=True)
    (pair / "train.tsv").write_text("house\tcasa\n")
    (pair / "test.tsv").write_text("house\tdimora\nmusic\tmusica\n")
    (tmp_path / "words.txt").write_text("music\nheart\n")
    options = ("--dictionaries", tmp_path / "bli", "--words", tmp_path / "words.txt")
    write_texts(*options, "--frequent", "0", "--to", tmp_path / "keep.txt")
    words = (tmp_path / "keep.txt").read_text("utf-8").split()
    assert words == ["house", "casa", "dimora", "music", "musica", "heart"]
    write_texts(*options, "--frequent", "50", "--to", tmp_path / "keep.txt")
    frequent = (tmp_path / "keep.txt").read_text("utf-8").split()
    assert 40 < len(set(frequent) - set(words)) <= 50


def test_the_settings_of_the_figure_are_those_of_the_run() -> None:
    """Or the figure would refuse the model that was trained with the other file."""
    run = read_config(EXAMPLES / "gemma.toml", PretrainConfig.preset("paper"))
    tables = read_config(EXAMPLES / "gemma-figure.toml", NamesConfig.of_base("gemma"))
    assert tables.pretrain == run
    assert len(run.training.checkpoints) == 5 and run.keep == "keep.txt"
