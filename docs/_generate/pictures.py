"""Make the pictures of the pages, `docs/images/serve/*.png`. Run by hand, not by `make docs`:

    python docs/_generate/pictures.py [WORK]

Needs chromium, playwright and pillow. Without WORK it makes the world KB in Arabic, English,
Estonian and Telugu with a fifth of the facts left out, which takes about a minute. WORK is copied,
and two reviewers mark a few proposals of the copy, so that there is something to see.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "images" / "serve"
UKRAINE = "territory/UA"
QUESTION = {"subject": "territory/EE", "relation": "neighbouring country", "lang": "en"}
PAGES = {
    "overview": "/",
    "review": "/review?lang=ar&id={id}",
    "entity": "/entity?id=territory/EE",
    "search": "/search?q=talinn",
    "ask": f"/ask?{urlencode({'task': 'complete', **QUESTION})}",
    "export": "/export",
    "marks": "/marks",
}
WIDTHS: dict[str, dict[str, Any]] = {
    "wide": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
}
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main(work: Path | None) -> None:
    """Make every picture anew."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "world"
        if work is None:
            make_world(Path(scratch) / "source", copy)
        else:
            shutil.copytree(work, copy)
        with served(copy) as address, sync_playwright() as playwright:
            id = mark_some(address)
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
            FOLDER.mkdir(parents=True, exist_ok=True)
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    take_pictures(browser, address, width, scheme, id)
            browser.close()


def make_world(kb: Path, work: Path) -> None:
    """Make the world KB with gaps, and proposals for them."""
    prixlm = [sys.executable, "-m", "prixlm"]
    langs = ["--langs", "ar,en,et,te", "--max-triples", "10600"]
    subprocess.run([*prixlm, "import", "--format", "world", *langs, "--to", kb], check=True)
    subprocess.run(
        [*prixlm, "enrich", kb, "--into", "ar,et,te", "--to", work, "--effort", "quick"],
        check=True,
    )


@contextmanager
def served(work: Path) -> Iterator[str]:
    """Serve a work folder; yield the address."""
    command = [sys.executable, "-m", "prixlm", "serve", work, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if found := re.match(r"Open (http://.*)/", line):
                yield found[1]
                return
        raise SystemExit("the server did not start")
    finally:
        server.terminate()
        server.wait()


def mark_some(address: str) -> str:
    """Let Anna mark a dozen proposals and Yusuf five, one of them differently.

    Returns the id of an open proposal that is worth a picture.
    """

    def ask(path: str, reviewer: str = "Anna", body: Any = None) -> Any:
        headers = {"X-Reviewer": quote(reviewer), "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address + path, data, headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    for lang in ("te", "et", "ar"):
        for proposal in ask(f"/api/proposals?lang={lang}&order=informative&limit=4")["proposals"]:
            mark = {"id": proposal["id"], "verdict": "accept"}
            ask("/api/marks", body=mark)
            if lang == "et":
                ask("/api/marks", "يوسف", mark)
    ask("/api/marks", "يوسف", {"id": proposal["id"], "verdict": "reject"})
    for _ in range(60):  # until the evidence is loaded, which the card shows
        try:
            ask(f"/api/complete?{urlencode(QUESTION)}")
            break
        except HTTPError as error:
            time.sleep(int(error.headers.get("Retry-After") or 1))
    found = ask(f"/api/proposals?{urlencode({'lang': 'ar', 'subject': UKRAINE})}")
    return str(found["proposals"][0]["id"])


def take_pictures(browser: Browser, address: str, width: str, scheme: str, id: str) -> None:
    """Take a picture of each page. id: the proposal to show."""
    options = {"base_url": address, "locale": "en-GB", "color_scheme": scheme, **WIDTHS[width]}
    context = browser.new_context(**options)
    context.add_cookies([{"name": "reviewer", "value": "Anna", "url": address}])
    page = context.new_page()
    for name, path in PAGES.items():
        show(page, name, path.format(id=id))
        file = FOLDER / f"{name}-{width}-{scheme}.png"
        page.screenshot(path=file)
        shrink(file)
    context.close()


def show(page: Page, name: str, path: str) -> None:
    """Open a page as its picture shows it; a page with an error is not worth one."""
    page.goto(path, wait_until="networkidle", timeout=120_000)
    page.evaluate("document.activeElement.blur()")
    assert page.locator(".notice.bad").count() == 0, f"{name}: {page.inner_text('main')}"


def shrink(file: Path) -> None:
    """Write a picture with a palette: text and flat areas need few colours."""
    image = Image.open(file).convert("RGB")
    # Not the median cut, which drops the colour of a small mark for one more shade of grey.
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    image.quantize(256, method=method, dither=dither).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
