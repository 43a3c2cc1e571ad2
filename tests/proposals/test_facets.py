"""Facets as sums over a cube, against a count of the rows one by one."""

from pathlib import Path

import numpy as np
import pytest

from prixlm.proposals.columns import read_columns
from prixlm.proposals.facets import BANDS, Cube, FacetCount, count_from, equals
from prixlm.proposals.marks import STATES, TABLES
from tests.helpers import fact_row, label_row, make_proposals


@pytest.mark.parametrize("only_even", [False, True])
def test_a_cube_agrees_with_counting_rows_one_by_one(tmp_path: Path, only_even: bool) -> None:
    generator = np.random.default_rng(0)
    confidence = np.round(generator.random(60), 1)
    facts = [
        fact_row(row, lang="fi" if row % 3 else "et", confidence=float(confidence[row]))
        for row in range(50)
    ]
    labels = [label_row(lang="fi", confidence=float(confidence[row])) for row in range(50, 60)]
    columns = read_columns(make_proposals(tmp_path / "made", facts=facts, labels=labels))
    state = generator.integers(0, len(STATES), len(columns.row)).astype(np.int8)
    kept = np.arange(len(state)) % 2 == 0 if only_even else np.ones(len(state), bool)
    cube = Cube.count(
        columns, state, columns.confidence, sorted({*BANDS, 0.3}), kept if only_even else None
    )
    fi = columns.langs.index("fi")
    wanted = {"table": None, "lang": fi, "relation": None, "kind": None}
    found = cube.facets(columns, wanted, 0, 0.3, 1.0)
    passes = kept & (columns.lang == fi) & (columns.confidence >= 0.3)
    chosen = passes & (state == 0)
    assert found.total.count == chosen.sum()
    assert found.total.expected_precision == pytest.approx(columns.confidence[chosen].mean())
    assert {name: one.count for name, one in found.states.items()} == {
        name: int((passes & (state == number)).sum())
        for number, name in enumerate(STATES)
        if (passes & (state == number)).any()
    }
    assert {name: one.count for name, one in found.tables.items()} == {
        name: int((chosen & (columns.table == number)).sum())
        for number, name in enumerate(TABLES)
        if (chosen & (columns.table == number)).any()
    }
    # The facet of languages ignores the filter of languages.
    open_ones = kept & (columns.confidence >= 0.3) & (state == 0)
    assert {name: one.count for name, one in found.langs.items()} == {
        name: int((open_ones & (columns.lang == number)).sum())
        for number, name in enumerate(columns.langs)
        if (open_ones & (columns.lang == number)).any()
    }


def test_no_rows_are_no_values(tmp_path: Path) -> None:
    columns = read_columns(make_proposals(tmp_path / "made", facts=[]))
    cube = Cube.count(columns, np.zeros(0, np.int8), np.zeros(0), BANDS)
    wanted = dict.fromkeys(("table", "lang", "relation", "kind"))
    found = cube.facets(columns, wanted, None, 0.0, 1.0)
    assert found.total == FacetCount(0, 0.0) and found.langs == {} and found.confidence == {}


def test_a_value_is_any_one_or_none() -> None:
    column = np.array([0, 1, 1, -1])
    assert equals(column, None).all()
    assert equals(column, 1).tolist() == [False, True, True, False]
    assert not equals(column, -2).any()


def test_a_band_starts_at_its_edge() -> None:
    falling = np.array([0.9, 0.5, 0.5, 0.2])
    assert [count_from(falling, edge) for edge in (1.0, 0.9, 0.5, 0.3, 0.0)] == [0, 1, 3, 3, 4]
