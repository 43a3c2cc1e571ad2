"""Descriptions as token ids: an option of the model, which reads that of the subject.

    KB/tokens/HASH/descriptions-256/   tokens.ids, tokens.offsets

They are tokenised once for each KB and tokenizer, beside its names, and only for a model that reads
them. `lm/encoding.py` says where they stand in an input.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from prixlm.arrays import ragged_offsets, ragged_ranges
from prixlm.files import disk_errors, whole_folder
from prixlm.kb.store import KB
from prixlm.lm.token_cache import Ragged, TokenCache, encode_names, flatten, open_ragged
from prixlm.types import Array

MAX_TOKENS = 256
"""Tokens of a description that are kept, so at most those that a model can read."""
_ROWS = 1 << 14


def build_description_tokens(kb: KB, tokenizer: Tokenizer, cache: TokenCache) -> Ragged:
    """Return the tokens of each entity's description, by entity id; none without a description.

    They are built beside the token cache of the names if they are missing.
    """
    folder = cache.folder / f"descriptions-{MAX_TOKENS}"
    if not folder.is_dir():
        with disk_errors(folder), whole_folder(folder) as temporary:
            _write(kb, tokenizer, temporary)
    return open_ragged(folder / "tokens")


def description_batches(kb: KB) -> Iterator[list[str]]:
    """Yield the texts of all descriptions of a KB."""
    if kb.has_descriptions:
        for batch in kb.batches("descriptions", ["text"], batch_rows=_ROWS):
            yield batch.column(0).to_pylist()


def _write(kb: KB, tokenizer: Tokenizer, folder: Path) -> None:
    lengths = np.zeros(kb.num_entities, np.int64)
    with (folder / "tokens.ids").open("wb") as file:
        for batch in kb.batches("descriptions", ["entity", "text"], batch_rows=_ROWS):
            rows = encode_names(tokenizer, batch.column("text").to_pylist())
            flat, counts = flatten([ids[:MAX_TOKENS] for ids in rows], np.int32)
            file.write(flat.tobytes())
            lengths[batch.column("entity").to_numpy()] = counts
    # The table is ordered by entity, so the ids are in the order of the offsets.
    ragged_offsets(lengths).tofile(folder / "tokens.offsets")


@dataclass(frozen=True)
class DescribedSubjects:
    """Adds the descriptions of subjects to their names, for many facts at once.

    `taken` is always the length of each fact's prefix without a description, (N,): a description
    gets what is left, and is never the reason to cut a name.
    """

    tokens: Ragged  # by entity id
    limit: int  # most tokens of a description
    longest: int  # most tokens of a prefix that has one
    before: list[int]  # special tokens between a name and its description

    def num_added(self, subjects: Array, taken: Array) -> Array:
        """Return the tokens that the descriptions add to each prefix, (N,)."""
        read = self._num_read(subjects, taken)
        return np.asarray(read + len(self.before) * (read > 0))

    def add(
        self, names: Array, counts: Array, subjects: Array, taken: Array
    ) -> tuple[Array, Array]:
        """Return names, each followed by its description, and the length of each, (N,).

        names: the ids of all names, concatenated. counts: (N,) the length of each.
        """
        read = self._num_read(subjects, taken)
        lengths = counts + read + len(self.before) * (read > 0)
        starts = ragged_offsets(lengths)[:-1]
        joined = np.empty(int(lengths.sum()), np.int64)
        places, _ = ragged_ranges(starts, starts + counts)
        joined[places] = names
        ends = (starts + counts)[read > 0]  # (D,) where the names of described subjects end
        for shift, token in enumerate(self.before):
            joined[ends + shift] = token
        first = ends + len(self.before)
        places, _ = ragged_ranges(first, first + read[read > 0])
        begins = self.tokens.offsets[subjects]
        rows, _ = ragged_ranges(begins, begins + read)
        joined[places] = self.tokens.ids[rows]
        return joined, lengths

    def _num_read(self, subjects: Array, taken: Array) -> Array:
        """Return how many tokens of each description fit, (N,)."""
        room = np.clip(self.longest - taken - len(self.before), 0, self.limit)
        return np.asarray(np.minimum(self.tokens.lengths(subjects), room))
