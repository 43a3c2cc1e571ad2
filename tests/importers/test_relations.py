"""Names of relations, made from their keys."""

import pytest

from prixlm.importers.format import name_from_key


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("http://dbpedia.org/ontology/birthPlace", "birth place"),
        ("http://dbpedia.org/property/nfcchampion", "nfcchampion"),
        ("http://example.org/vocab#isPartOf", "is part of"),
        ("http://dbpedia.org/ontology/isoCodeURL", "iso code URL"),
        ("http://dbpedia.org/ontology/FIFAWorldCup", "FIFA world cup"),
        ("http://ja.dbpedia.org/property/%E5%90%8D%E5%89%8D", "名前"),
        ("http://example.org/has_part/", "has part"),
        ("http://example.org/p/population2010", "population2010"),
        ("P31", "P31"),
        ("Birth Place", "Birth Place"),
    ],
)
def test_the_last_part_of_a_key_is_its_name(key: str, name: str) -> None:
    assert name_from_key(key) == name
