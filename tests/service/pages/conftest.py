"""Clients of a server on a small KB with attacking names."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from prixlm.kb.store import KB
from prixlm.service.opened import Folders
from tests.service import served
from tests.service.pages.helpers import open_client


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    return served.make_kb(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def made(kb: KB) -> Path:
    return served.make_served_proposals(kb, kb.folder.parent / "proposals")


@pytest.fixture
def proposals(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "proposals"))


@pytest.fixture(scope="module")
def reader(kb: KB, made: Path) -> Iterator[TestClient]:
    with open_client(Folders(kb=kb.folder, proposals=made)) as client:
        yield client


@pytest.fixture
def client(reader: TestClient) -> TestClient:
    """A browser without cookies, on a server that tests share: they mark nothing."""
    reader.cookies.clear()
    return reader


@pytest.fixture
def own(kb: KB, proposals: Path) -> Iterator[TestClient]:
    """A server on proposals of its own."""
    with open_client(Folders(kb=kb.folder, proposals=proposals)) as client:
        yield client
