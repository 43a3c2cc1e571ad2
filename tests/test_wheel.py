"""The wheel, built from the tree and installed outside it: `make wheel-check`."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENV = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=ENV, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", *options, ROOT, cwd=folder)
    (path,) = folder.glob("prixlm-*.whl")
    return path


def test_the_wheel_holds_every_module_and_all_other_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    assert {"prixlm/py.typed", "prixlm/enrichment/templates/report.html"} <= names
    assert not any(name.startswith("tests") for name in names)


def test_an_installed_wheel_runs_the_first_steps_of_the_demo(wheel: Path, tmp_path: Path) -> None:
    env, work = tmp_path / "env", tmp_path / "work"
    work.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", env, cwd=tmp_path)
    python = env / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=tmp_path)
    # The dependencies come from the environment of the tests: a path in a .pth file is searched
    # last, and .pth files below it, such as that of the editable install, are not read.
    (site,) = env.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import prixlm; print(prixlm.__file__)", cwd=work)
    assert Path(where.strip()).is_relative_to(env)
    prixlm = env / "bin" / "prixlm"
    assert run(prixlm, "--version", cwd=work).split()[1] == wheel.name.split("-")[1]
    made = run(prixlm, "import", "--format", "world", "--langs", "en,et", "--to", "kb", cwd=work)
    assert "2 languages" in made
    run(prixlm, "split", "kb", "--to", "split", "--test", "0.3", "--langs", "et", cwd=work)
    assert "test" in run(prixlm, "stats", "split", cwd=work)
