"""A toy KB in several scripts, and where the benchmark data is."""

import os
from pathlib import Path

import pytest

from prixlm import KB, import_kb

DATA = Path(os.environ.get("PRIXLM_DATA", Path(__file__).parents[2] / "shared" / "data"))

TOY_FACTS = """\
lang\tsubject\trelation\tobject
en\tFinland\tcapital\tHelsinki
en\tHelsinki\tcountry\tFinland
en\tFinland\tcurrency\tEuro
en\tFrance\tcapital\tParis
en\tFrance\tcurrency\tEuro
en\tParis\tcountry\tFrance
fi\tSuomi\tcapital\tHelsinki
fi\tHelsinki\tcountry\tSuomi
fi\tRanska\tcurrency\tEuro
ja\tフィンランド\tcapital\tヘルシンキ
ja\tフランス\tcapital\tパリ
te\tఫిన్లాండ్\tcapital\tహెల్సింకి
ar\tفنلندا\tcapital\tهلسنكي
"""
TOY_LINKS = """\
lang_a\tname_a\tlang_b\tname_b
en\tFinland\tfi\tSuomi
en\tFrance\tfi\tRanska
en\tFrance\tja\tフランス
en\tFinland\tja\tフィンランド
en\tHelsinki\tfi\tHelsinki
fi\tHelsinki\tja\tヘルシンキ
te\tఫిన్లాండ్\tja\tフィンランド
ar\tفنلندا\ten\tFinland
"""


@pytest.fixture(scope="session")
def data() -> Path:
    """The benchmark data beside the project."""
    if not DATA.is_dir():
        pytest.skip(f"no benchmark data at {DATA} (PRIXLM_DATA may point to it)")
    return DATA


@pytest.fixture
def toy_files(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "facts.tsv", tmp_path / "links.tsv"]
    files[0].write_text(TOY_FACTS, "utf-8")
    files[1].write_text(TOY_LINKS, "utf-8")
    return files


@pytest.fixture
def toy(toy_files: list[Path], tmp_path: Path) -> KB:
    return import_kb(toy_files, tmp_path / "toy")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> KB:
    return import_kb([], tmp_path_factory.mktemp("world") / "kb", format="world")
