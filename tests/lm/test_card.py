"""The model card: what it says, and that text from a KB cannot become Markdown."""

from prixlm.lm.card import model_card
from prixlm.lm.lineage import Lineage


def test_the_card_says_what_it_was_trained_on_and_how_auto_models_read() -> None:
    lineage = Lineage(kb_fingerprint="abc", sources=["facts.tsv"], triples_too_long={"en": 2})
    card = model_card(["ar", "en"], "prefix", lineage)
    assert card.startswith("---\n") and 'language: ["ar", "en"]' in card
    assert '- sources: `["facts.tsv"]`' in card and "- kb fingerprint: `abc`" in card
    assert '- triples too long: `{"en": 2}`' in card
    assert "`PrixLM` applies that mask" in card
    assert "plain `AutoModel` reads its whole input in both directions" in card
    assert "This model is a causal decoder" in model_card(["en"], "causal", lineage)
    gemma = model_card(["en"], "causal", lineage, is_decoder=True)
    assert "pipeline_tag: text-generation" in gemma and "<bos> [S] subject [P]" in gemma
    assert "`AutoModelForCausalLM` read it alike" in gemma and "</s>" not in gemma


def test_an_untrained_model_says_so() -> None:
    assert "Nothing yet: the special tokens" in model_card(["en"], "prefix", Lineage())


def test_text_from_a_kb_stays_in_its_code_span() -> None:
    lineage = Lineage(licence_of_the_data="``` <script>\n# x", sources=["a`b"])
    card = model_card(["en"], "prefix", lineage)
    assert "\n# x" not in card and "```` ``` <script> # x ````" in card
