"""The model card: what it says, and that text from a KB cannot become Markdown."""

from pathlib import Path

from prixlm.entities.encoder import EntityEncoder
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


def test_a_model_made_from_gemma_says_whose_terms_bind_it() -> None:
    lineage = Lineage(kb_fingerprint="abc")
    card = model_card(["en"], "causal", lineage, is_decoder=True, family="gemma3_text", space=True)
    notice = (
        "Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms"
    )
    words = " ".join(card.split())
    assert notice in words and "files were changed" in words
    assert "with a space before them" in words
    other = model_card(["en"], "causal", lineage, is_decoder=True, family="llama")
    assert "Terms" not in other and "space" not in other


def test_every_folder_of_a_gemma_has_the_notice(families: dict[str, Path], tmp_path: Path) -> None:
    for kind, is_bound in (("gemma", True), ("qwen", False)):
        EntityEncoder.load(families[kind]).save(tmp_path / kind)
        card = (tmp_path / kind / "README.md").read_text("utf-8")
        assert ("Gemma Terms of Use" in card) == is_bound
