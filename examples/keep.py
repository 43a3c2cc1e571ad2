"""Write the texts of later measurements, so that `pretrain --trim --keep FILE` keeps their pieces.

    python examples/keep.py --prompts bmlama53 --dictionaries bli --words words.txt --to keep.txt

A trimmed model reads other texts in other pieces than its base, and is then refused by `evaluate
probe`, `bli` and `xel`. Written are, each once and on a line: what is before and after the blank of
a prompt, its answer and its candidates; the words of both sides of dictionaries, and the frequent
words of their target languages, which are candidates; the words of Mirror. Names of the KB need not
be listed.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from prixlm.errors import PrixError
from prixlm.evaluation.lexicons import read_folder
from prixlm.evaluation.probing.prompts import BLANK, read_bmlama_folder, read_mlama_folder
from prixlm.languages import frequent_words


def of_prompts(folder: Path) -> Iterator[str]:
    """Yield the texts of prompts in BMLAMA's layout, or in mLAMA's if there is no TSV."""
    read = read_bmlama_folder if list(folder.glob("*.tsv")) else read_mlama_folder
    for part in read(folder).values():
        for prompt in part.prompts:
            # Both parts are read on their own, and the blank has the space before it.
            before, after = prompt.text.split(BLANK)
            yield from (before.rstrip(), after, prompt.answer, *prompt.candidates)


def of_dictionaries(folder: Path, num_frequent: int) -> Iterator[str]:
    """Yield the words of all dictionaries, and frequent words of their target languages."""
    for dictionary, lang in read_folder(folder).values():
        for pair in (*dictionary.train, *dictionary.test):
            yield from pair
        if lang is not None and num_frequent:
            try:
                yield from frequent_words(lang, num_frequent)
            except PrixError as error:
                print(f"no frequent words of {lang}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=Path, action="append", default=[])
    parser.add_argument("--dictionaries", type=Path, action="append", default=[])
    parser.add_argument("--frequent", type=int, default=50_000)
    parser.add_argument("--words", type=Path, action="append", default=[])
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    texts: dict[str, None] = {}
    for folder in options.prompts:
        texts |= dict.fromkeys(of_prompts(folder))
    for folder in options.dictionaries:
        texts |= dict.fromkeys(of_dictionaries(folder, options.frequent))
    for path in options.words:
        texts |= dict.fromkeys(path.read_text("utf-8").splitlines())
    # A text that has a line end cannot be a line: its parts are.
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    options.to.write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)), "utf-8")
    print(f"{len(lines):,} texts: {options.to}")


if __name__ == "__main__":
    main()
