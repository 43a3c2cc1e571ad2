"""A KB of films with types, namesakes and hostile names, its workbench, and the specifications."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from prixlm import KB, import_kb
from prixlm.service.reconcile import make_router
from prixlm.service.workbench import Folders, Workbench

HOSTILE = "<script>alert(1)</script>"
FACTS = f"""\
lang\tsubject\trelation\tobject
en\tSolaris\tinstance of\tfilm
en\tSolaris\tdirector\tAndrei Tarkovsky
en\tStalker\tinstance of\tfilm
en\tStalker\tdirector\tAndrei Tarkovsky
en\tHeat\tinstance of\tfilm
en\tHeat\tdirector\tMichael Mann
en\tThe Invincible\tinstance of\tbook
en\tThe Invincible\tauthor\tStanisław Lem
en\t{HOSTILE}\tinstance of\tfilm
en\tAndrei Tarkovsky\tinstance of\tperson
en\tMichael Mann\tinstance of\tperson
fi\tSolaris\tinstance of\tkirja
fi\tSolaris\tauthor\tStanisław Lem
ru\tСолярис\tinstance of\tфильм
ru\tСолярис\tdirector\tАндрей Тарковский
ar\tسولاريس\tinstance of\tفيلم
"""
LINKS = """\
lang_a\tname_a\tlang_b\tname_b
en\tSolaris\tru\tСолярис
en\tSolaris\tar\tسولاريس
en\tAndrei Tarkovsky\tru\tАндрей Тарковский
en\tfilm\tru\tфильм
en\tbook\tfi\tkirja
en\tfilm\tar\tفيلم
"""


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Two works called Solaris: a film in three languages, and a book that is not linked to it."""
    folder = tmp_path_factory.mktemp("films")
    (folder / "facts.tsv").write_text(FACTS, "utf-8")
    (folder / "links.tsv").write_text(LINKS, "utf-8")
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


@pytest.fixture(scope="session")
def bench(films: KB) -> Workbench:
    """The workbench of the films."""
    return Workbench(Folders(kb=films.folder))


@pytest.fixture(scope="session")
def client(bench: Workbench) -> TestClient:
    """A client of the bare service, without the guard around it."""
    app = FastAPI()
    app.include_router(make_router(bench))
    return TestClient(app)


@pytest.fixture(scope="session")
def specs(data: Path) -> Path:
    """Schemas and examples of the specifications."""
    folder = data / "reconciliation"
    if not folder.is_dir():
        pytest.skip(f"no specifications of the reconciliation API at {folder}")
    return folder


@pytest.fixture(scope="session")
def validate(specs: Path) -> Callable[[str, str, Any], None]:
    """Check a value against a schema of a version: validate("0.2", "manifest", {...})."""
    validators = {}
    for version in ("0.2", "1.0-draft"):
        schemas = {
            path.stem: json.loads(path.read_text("utf-8"))
            for path in (specs / version / "schemas").glob("*.json")
        }
        resources = [
            (schema["$id"].rstrip("#"), Resource(schema, DRAFT7)) for schema in schemas.values()
        ]
        registry: Registry[Any] = Registry().with_resources(resources)
        for name, schema in schemas.items():
            validators[version, name] = Draft7Validator(schema, registry=registry)

    def check(version: str, name: str, value: Any) -> None:
        errors = [error.message for error in validators[version, name].iter_errors(value)]
        assert not errors, errors[:3]

    return check
