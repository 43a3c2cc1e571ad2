"""The model card of a Prix-LM folder: what it was trained on, and which attention mask it needs.

Names of sources and licences come from a KB and are untrusted: they are written as code spans or
JSON strings, so that they cannot become Markdown.
"""

import json
from typing import Any

from prixlm.lm.lineage import Lineage
from prixlm.romanise import Reading

_MASK = {
    "prefix": (
        "Training used a prefix mask: everything up to and including `[O]` is read in both "
        "directions, and each object token sees the prefix and the object tokens before it. "
        "`PrixLM` applies that mask. A plain `AutoModel` reads its whole input in both "
        "directions, as XLM-R and BERT do: right for a prefix, and for names that are to be "
        "encoded; not right for scoring an object, which would see its own answer."
    ),
    "causal": (
        "This model is a causal decoder: each token sees only what is before it, in the prefix "
        "too, as its own configuration says. `PrixLM` applies that mask; a plain `AutoModel` "
        "reads its input in both directions."
    ),
    "released": (
        "This model is read as the authors' released code reads theirs: the prefix and the object "
        "so far in both directions, at every step. `PrixLM` does so."
    ),
}
_DECODER_MASK = {
    "prefix": (
        "Training used a prefix mask: everything up to and including `[O]` is read in both "
        "directions, and each object token sees the prefix and the object tokens before it. "
        "`PrixLM` applies that mask. A plain `AutoModelForCausalLM` reads the prefix causally, "
        "unlike in training."
    ),
    "causal": (
        "This model is a causal decoder: each token sees only what is before it. `PrixLM` and a "
        "plain `AutoModelForCausalLM` read it alike."
    ),
    "released": _MASK["released"],
}
_FORMAT = [
    "    <s> [S] subject </s></s> [P] relation </s></s> [O] object [EOS] </s>",
    "    <s> [S] name </s></s> [P] [EN] [ES] </s></s> [O] its name in the other language [EOS]",
]
_DECODER_FORMAT = [
    "    <bos> [S] subject [P] relation [O] object [EOS]",
    "    <bos> [S] name [P] [EN] [ES] [O] its name in the other language [EOS]",
]


_READING = {
    "script": [],
    "romanised": ["It reads and writes names in Latin letters: see `prixlm.romanise`."],
    "both": [
        "It reads names in their script and in Latin letters, and writes them in Latin letters:",
        "see `prixlm.romanise`.",
    ],
}


_TERMS = {
    # Section 3.1 of the terms: whoever gets a derivative gets this notice, and is told of changes.
    "gemma3_text": [
        "## Terms",
        "",
        "Gemma is provided under and subject to the Gemma Terms of Use found at",
        "ai.google.dev/gemma/terms",
        "",
        "This model was made from Gemma, and files were changed: the weights, the vocabulary and",
        "the configuration.",
        "",
    ],
}
"""What the terms of a base ask of everything that is made from it, by `model_type`."""


def model_card(
    languages: list[str],
    mask: str,
    lineage: Lineage,
    reading: Reading = "script",
    *,
    is_decoder: bool = False,
    family: str = "",
    space: bool = False,
) -> str:
    """Return the README.md of a model folder, with the front matter that the hub reads.

    mask: prefix, causal or released. is_decoder: of the family, such as Gemma. family:
    transformers' `model_type`, whose terms may bind what is made from it. space: names are read
    with a space before them.
    """
    base = "if the base has a start token" if is_decoder else "where the base is a BERT"
    tokens = "`<bos>`" if is_decoder else "`[CLS]` and `[SEP]`"
    how = (_DECODER_MASK if is_decoder else _MASK)[mask]
    front = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {'text-generation' if is_decoder else 'fill-mask'}",
        "tags: [prix-lm, knowledge-base, multilingual]",
        f"language: {json.dumps(languages)}",
        "---",
    ]
    lines = [
        *front,
        "# A Prix-LM",
        "",
        "A language model of the facts and cross-lingual links of a knowledge base, made with",
        "`prixlm` after Prix-LM (Zhou et al., ACL 2022).",
        "",
        "## What it was trained on",
        "",
        *_training_lines(lineage),
        "",
        "## How to read it",
        "",
        *(_DECODER_FORMAT if is_decoder else _FORMAT),
        "",
        f"(with {tokens} {base}.) {how}",
        *_READING[reading],
        *(["Names are read as words of a sentence, with a space before them."] if space else []),
        "",
        "```python",
        "from prixlm import PrixLM",
        "",
        'model = PrixLM.load("this folder")',
        "```",
        "",
        "## Limits",
        "",
        "It repeats what its knowledge base says, true or not, and guesses where the base is",
        "silent: treat what it proposes as candidates for review.",
        "",
        *_TERMS.get(family, []),
    ]
    return "\n".join(lines)


def _training_lines(lineage: Lineage) -> list[str]:
    entries = lineage.as_dict()
    if not entries:
        return ["Nothing yet: the special tokens were added to its base and are random."]
    return [f"- {name.replace('_', ' ')}: {_span(value)}" for name, value in entries.items()]


def _span(value: Any) -> str:
    """Return a value as a code span whose fence does not occur in it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    # A span may contain shorter runs of backticks than its fence.
    fence = "`"
    while fence in text:
        fence += "`"
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"
