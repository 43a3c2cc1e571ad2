"""Completion as users ask for it: names in, named answers out."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, XLMRobertaForCausalLM

from prixlm import KB, PrixError, PrixLM, import_kb
from prixlm.decoding.completer import Completer, SearchConfig, read_candidates
from prixlm.decoding.search import score_all
from prixlm.decoding.trie import Trie
from prixlm.entities.encoder import EntityEncoder
from prixlm.lm.encoding import ROLES
from prixlm.romanise import Reading
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import pretrain
from prixlm.types import Query
from tests.conftest import TOY_FACTS
from tests.decoding.helpers import released_search, save_released
from tests.training.helpers import TINY
from tests.trimmed import save_trimmed

EXACT = SearchConfig(search="exact")


def test_a_trained_model_completes_and_translates(completer: Completer) -> None:
    assert completer.is_of_this_kb
    for config in (SearchConfig(), EXACT):
        assert completer.complete("France", "capital", lang="en", config=config)[0].name == "Paris"
        answers = completer.translate("Finland", lang="en", to="ja", config=config)
        assert answers[0].name == "フィンランド"
        assert [answer.rank for answer in answers] == [1, 2, 3, 4]  # four Japanese names
        scores = [answer.score for answer in answers]
        assert scores == sorted(scores, reverse=True)
    assert completer.complete("Atlantis", "capital", lang="en")  # unseen, and no error


@pytest.mark.parametrize("reading", ["romanised", "both"])
def test_a_model_that_reads_names_romanised_answers_in_the_script(
    shared_toy: KB, tmp_path: Path, reading: Reading
) -> None:
    training = TrainingConfig(lr=1e-2, log_every=100, checkpoints=(1.0,))
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    config = dataclasses.replace(
        TINY, epochs=60, training=training, compact=compact, reading=reading
    )
    pretrain(shared_toy, tmp_path / "model", config)
    model = PrixLM.load(tmp_path / "model")  # the folder says how the model reads
    assert model.settings.reading == model.encoder.reading == reading
    completer = Completer(model, shared_toy)
    for search in (SearchConfig(), EXACT):
        answers = completer.translate("Finland", lang="en", to="ja", config=search)
        assert answers[0].name == "フィンランド" and len(answers) == 4
    assert completer.complete("Finland", "capital", lang="en")[0].name == "Helsinki"


def test_entities_with_the_same_romanised_name_are_all_found(
    trained: PrixLM, tmp_path: Path
) -> None:
    facts = "".join(f"en\t{name}\tin\tEurope\n" for name in ("Αθήνα", "athina", "ATHÍNA", "x"))
    (tmp_path / "f.tsv").write_text("lang\tsubject\trelation\tobject\n" + facts, "utf-8")
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    settings = dataclasses.replace(trained.settings, reading="romanised", reading_version="1")
    model = PrixLM(trained.backbone, trained.tokenizer, settings)
    completer = Completer(model, kb)
    alike = np.array(sorted(e.id for e in kb.entities(range(kb.num_entities)) if len(e.name) == 6))
    names = {entity.name for entity in kb.entities(alike.tolist())} - {"Europe"}
    assert names == {"athina", "ATHÍNA"}
    trie = completer.trie("en")
    assert len(trie.entity) == kb.num_entities, "no name is lost"
    nodes = {e.name: int(trie.nodes_of(np.array([e.id]))[0]) for e in kb.entities(range(5))}
    assert nodes["Αθήνα"] == nodes["athina"] == nodes["ATHÍNA"] != nodes["x"]
    for search in (SearchConfig(k=5), SearchConfig(k=5, search="exact")):
        answers = completer.complete("x", "in", lang="en", config=search)
        scores = {answer.name: answer.score for answer in answers}
        assert len(scores) == 5 and scores["Αθήνα"] == scores["athina"] == scores["ATHÍNA"]


def test_subjects_that_a_trimmed_model_reads_unlike_its_base_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "f.tsv").write_text("lang\tsubject\trelation\tobject\nen\tFrance\tin\tEurope\n")
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    names = ["France", "Europe", "in"]
    completer = Completer(save_trimmed(tmp_path, names, ["Atlantis"], ["en"]), kb)
    completer.complete("France", "in", lang="en")
    assert not caplog.text
    for _ in range(2):
        assert completer.complete("Atlantis", "in", lang="en")  # asked anyway
    [message] = caplog.messages
    assert "1 of 1 names asked (100 %), such as 'Atlantis'" in message
    Completer(save_trimmed(tmp_path / "other", names[1:], ["France"], ["en"]), kb)
    assert "1 of 2 names of" in caplog.messages[1]


@pytest.mark.parametrize("is_decoder", [True, False])
def test_a_checkpoint_of_the_authors_is_read_as_their_code_reads_it(
    is_decoder: bool, bases: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    folder = save_released(bases["xlmr"], tmp_path / "theirs", is_decoder=is_decoder)
    completer = Completer(folder, shared_toy)
    assert completer.model.settings.mask == ("causal" if is_decoder else "released")
    plain = XLMRobertaForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def read(text: str) -> list[int]:
        return list(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)))

    s, p, o, eos = (tokenizer.convert_tokens_to_ids(role) for role in ROLES)
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    entities = shared_toy.names(list(shared_toy.entity_range("en")))
    names = {(*read(name), eos): name for name in entities}
    num_found = []
    for subject, relation in (("France", "capital"), ("Paris", "country"), ("Suomi", "currency")):
        prefix = [start, s, *read(subject), end, end, p, *read(relation), end, end, o]
        for beam in (1, 2, 50):
            found = released_search(plain, prefix, list(names), beam)
            expected = {names[tokens]: score for tokens, score in found.items()}
            config = SearchConfig(beam=beam)
            answers = completer.complete(subject, relation, lang="en", config=config)
            assert {answer.name for answer in answers} == set(expected)
            for answer in answers:
                assert answer.score == pytest.approx(expected[answer.name], abs=1e-3)
            num_found.append(len(answers))
        exact = completer.complete(
            subject, relation, lang="en", config=SearchConfig(search="exact", k=3)
        )
        assert [a.name for a in exact] == [a.name for a in answers[:3]]
    assert min(num_found) < max(num_found) == len(entities), "narrow beams miss some"
    with pytest.raises(PrixError, match=r"no token \[EN\], so it cannot translate"):
        completer.translate("France", lang="en", to="ja")
    other = Completer(folder, shared_toy, mask="prefix")
    capital = {"lang": "en", "config": SearchConfig(k=1)}
    ours, theirs = (c.complete("France", "capital", **capital) for c in (other, completer))
    assert ours[0].score != theirs[0].score


def test_a_checkpoint_of_the_authors_goes_into_the_other_tasks(
    bases: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """With tokens of languages, it translates between these; names become vectors."""
    tokens = ["[EN]", "[JA]"]
    folder = save_released(bases["xlmr"], tmp_path / "theirs", is_decoder=True, extra=tokens)
    completer = Completer(folder, shared_toy)
    assert completer.model.encoder.languages == ("en", "ja")
    answers = completer.translate("France", lang="en", to="ja", config=SearchConfig(k=2))
    assert len(answers) == 2
    with pytest.raises(PrixError, match=r"no token \[FI\]"):
        completer.translate("France", lang="en", to="fi")
    vectors = EntityEncoder.load(folder).encode(["Finland", "Suomi"])
    assert vectors.shape == (2, 32)
    with pytest.raises(PrixError, match="mask half: expected prefix, causal, released"):
        Completer(folder, shared_toy, mask="half")
    with pytest.raises(PrixError, match="is not a Prix-LM folder"):
        Completer(bases["xlmr"], shared_toy)


def test_new_only_leaves_out_what_the_kb_has(completer: Completer) -> None:
    config = SearchConfig(new_only=True)
    answers = completer.complete("Finland", "capital", lang="en", config=config)
    assert "Helsinki" not in [answer.name for answer in answers] and len(answers) == 4
    answers = completer.translate("Finland", lang="en", to="fi", config=config)
    assert "Suomi" not in [answer.name for answer in answers] and len(answers) == 3


def test_each_of_many_queries_gets_its_answers_or_its_error(completer: Completer) -> None:
    """Languages, links, facts and mistakes mixed: as if each query had been asked alone."""
    queries = [
        Query("en", "France", "capital"),
        Query("xx", "France", "capital"),
        Query("en", "Finland", None, "ja"),
        Query("en", "Finland", "capital"),
        Query("fi", "Suomi", "capital"),
        Query("en", "Finland", "nothing like it"),
    ]
    for config in (SearchConfig(k=2), SearchConfig(k=2, new_only=True)):
        together = completer.answer(queries, config)
        for query, answers in zip(queries, together, strict=True):
            [alone] = completer.answer([query], config)
            if isinstance(alone, PrixError):
                assert str(answers) == str(alone)
                continue
            assert isinstance(answers, list) and len(answers) == 2
            assert [answer.name for answer in answers] == [answer.name for answer in alone]
    [error] = completer.answer([queries[1]], SearchConfig())
    assert isinstance(error, PrixError) and "has no language 'xx'" in str(error)


def test_candidates_restrict_the_answers(completer: Completer, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Euro\nParis\nNobody\n", "utf-8")
    candidates, num_unknown = read_candidates(completer.kb, tmp_path / "names.txt")
    assert num_unknown == 1
    answers = completer.complete("Finland", "capital", lang="en", candidates=candidates)
    assert sorted(answer.name for answer in answers) == ["Euro", "Paris"]
    small = candidates.astype(np.int32)  # whatever their type
    assert completer.complete("Finland", "capital", lang="en", candidates=small) == answers
    with pytest.raises(PrixError, match="there are no candidates in en"):
        completer.complete("Finland", "capital", lang="en", candidates=np.array([10**6]))


def test_a_file_of_candidates_names_entities(completer: Completer, tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    for text, message in (
        ("Nobody\n", "no line is a name or a key of an entity"),
        ("\n", "is empty: expected one name or key per line"),
    ):
        path.write_text(text, "utf-8")
        with pytest.raises(PrixError, match=message):
            read_candidates(completer.kb, path)
    with pytest.raises(PrixError, match=r"missing\.txt cannot be read"):
        read_candidates(completer.kb, tmp_path / "missing.txt")


def test_the_trie_beside_the_cache_is_used_again(completer: Completer) -> None:
    completer.complete("Finland", "capital", lang="en")
    folder = completer.cache.folder / f"trie-2-{completer.model.max_length // 2}-en"
    assert len(Trie.open(folder).entity) == 5
    prefix = completer.encode(Query("en", "Finland", "capital"))
    [whole] = score_all(completer.model, Trie.open(folder), [prefix])
    answers = completer.complete("Finland", "capital", lang="en", config=EXACT)
    assert [answer.entity for answer in answers] == whole.entity.tolist()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query("en", "Finland", "capitol"), "no relation 'capitol' .* Did you mean capital"),
        (Query("sv", "Finland", "capital"), "has no language 'sv'; it has ar, en"),
        (Query("en", "Finland", None, "en"), "from en to en: expected two different languages"),
        (Query("en", "  ", "capital"), "has no tokens"),
        (Query("en", "x" * 400, "capital"), r"the query has \d+ tokens, and the model 128"),
    ],
)
def test_what_cannot_be_asked_says_why(completer: Completer, query: Query, message: str) -> None:
    with pytest.raises(PrixError, match=message):
        completer.encode(query)


def test_a_relation_has_a_name_in_each_language_and_a_key(tmp_path: Path, trained: PrixLM) -> None:
    """A name in the language asked wins; shared names mean the most frequent relation."""
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    lines = [
        f'<http://x/p> {label} "seat"@en .',
        f'<http://x/p> {label} "paikka"@fi .',
        f'<http://x/q> {label} "Seat"@en .',
        f'<http://x/a> {label} "a"@en .',
        f'<http://x/b> {label} "b"@en .',
        f'<http://x/a> {label} "aa"@fi .',
        f'<http://x/b> {label} "bb"@fi .',
        "<http://x/a> <http://x/p> <http://x/b> .",
        "<http://x/b> <http://x/p> <http://x/a> .",
        "<http://x/a> <http://x/q> <http://x/b> .",
    ]
    (tmp_path / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    completer = Completer(trained, import_kb([tmp_path / "facts.nt"], tmp_path / "kb"))
    keys = completer.kb.relation_keys()
    first = keys.index("http://x/p")
    assert completer.relation_id("seat", "en") == first
    assert completer.relation_id("SEAT", "en") == first, "the more frequent of two"
    assert completer.relation_id("Seat", "en") == keys.index("http://x/q"), "as it is written"
    assert completer.relation_id("paikka", "fi") == completer.relation_id("seat", "fi") == first
    assert completer.relation_id("http://x/p", "fi") == first


def test_names_like_an_unknown_one_are_suggested(completer: Completer) -> None:
    assert completer.suggest("Finlnd", "en", 1) == ["Finland"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k 0: expected 1 or more"),
        ({"beam": 0}, "beam 0: expected 1 or more"),
        ({"search": "wide"}, "search wide: expected beam or exact"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(PrixError, match=message):
        SearchConfig(**options)  # type: ignore[arg-type]


def test_a_query_leaves_room_for_the_longest_candidate(completer: Completer) -> None:
    length = len(completer.encode(Query("en", "x", "capital")))
    name = "x" + "ᚠ" * ((completer.model.max_length - length - 1) // 3)  # three bytes each
    with pytest.raises(PrixError, match="beside the longest candidate"):
        completer.complete(name, "capital", lang="en")


def test_a_model_of_other_languages_does_not_fit_a_kb(trained: PrixLM, tmp_path: Path) -> None:
    (tmp_path / "sw.tsv").write_text(
        "lang\tsubject\trelation\tobject\nsw\tUfini\tcapital\tHelsinki\n", "utf-8"
    )
    other = import_kb([tmp_path / "sw.tsv"], tmp_path / "sw")
    with pytest.raises(PrixError, match="have no language in common"):
        Completer(trained, other)


def test_an_exact_search_is_proven_or_an_error(completer: Completer) -> None:
    config = SearchConfig(search="exact", max_nodes=1, k=5)
    with pytest.raises(PrixError, match="the best 5 could not be proven"):
        completer.complete("France", "capital", lang="en", config=config)


def test_a_name_too_long_for_the_model_stops_no_other(trained: PrixLM, tmp_path: Path) -> None:
    facts = TOY_FACTS + f"en\tFinland\tcapital\t{'Ж' * 90}\n"  # bytes, two each
    (tmp_path / "facts.tsv").write_text(facts, "utf-8")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    completer = Completer(trained, kb)
    assert not completer.is_of_this_kb
    assert completer.num_too_long("en") == 1
    assert completer.complete("France", "capital", lang="en")[0].name == "Paris"


def test_the_identity_tells_models_apart(
    completer: Completer, model: PrixLM, shared_toy: KB
) -> None:
    other = Completer(model, shared_toy)
    assert completer.identity() == Completer(completer.model, shared_toy).identity()
    assert other.identity() != completer.identity()
