"""The pages in a real browser: review by keyboard, two reviewers, a crash, attacks, a phone.

Needs Debian's chromium and the package playwright; without them the tests skip.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prixlm.kb.store import KB
from prixlm.proposals.marks import Marks
from tests.service import served

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
NUM_MORE = 210
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
PAGES = (
    "/",
    "/?show=missing",
    "/review",
    "/review?id=fact-3",
    "/review?id=fact-4",
    "/review?id=fact-5",
    "/review?id=label-0",
    "/review?id=link-0",
    "/entity?id=en:Cairo",
    "/entity?id=en:Europe",
    "/search?q=broken",
    "/search?q=Langer",
    "/ask",
    "/ask?task=translate",
    "/ask?task=link",
    "/export",
    "/marks",
    "/marks?show=disagreements",
    "/entity?id=nothing",
)
AXE_PAGES = [page for page in PAGES if page not in ("/review?id=fact-4", "/review?id=fact-5")]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    return served.make_kb(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def made(kb: KB) -> Path:
    return served.make_served_proposals(kb, kb.folder.parent / "proposals", NUM_MORE)


class Server:
    """`prixlm serve` in a process of its own, on one port also after a restart."""

    def __init__(self, kb: KB, proposals: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.proposals = proposals
        self.command = [sys.executable, "-m", "prixlm", "serve", "--kb", str(kb.folder)]
        self.command += ["--proposals", str(proposals), "--port", str(self.port)]
        self.start()

    def start(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, env=environment)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.address}/api/status").close()
                return
            except OSError:
                assert self.process.poll() is None, "the server ended"
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def verdicts(self, reviewer: str | None = None) -> list[tuple[int, str]]:
        """Return the marks on facts that count, oldest first."""
        entries = Marks.open(self.proposals, read_only=True).log(10_000)
        return [
            (entry.row, entry.verdict)
            for entry in reversed(entries)
            if not entry.undone and reviewer in (None, entry.reviewer)
        ]


@pytest.fixture
def server(kb: KB, made: Path, tmp_path: Path) -> Iterator[Server]:
    proposals = Path(shutil.copytree(made, tmp_path / "proposals"))
    server = Server(kb, proposals)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def shared_server(kb: KB, made: Path) -> Iterator[Server]:
    """A server that tests only read."""
    server = Server(kb, made)
    yield server
    server.kill()


def open_context(browser: Browser, server: Server, **options: Any) -> BrowserContext:
    options = {"viewport": DESK, "locale": "en-GB", "base_url": server.address} | options
    context = browser.new_context(**options)
    context.set_default_timeout(15_000)
    return context


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    context = open_context(browser, server)
    yield context.new_page()
    context.close()


def shown_id(page: Page) -> str:
    return page.get_attribute("#card article", "data-id") or ""


def press(page: Page, key: str) -> str:
    """Press a key that leads to another card, and wait for it; return the id of the old one."""
    id = shown_id(page)
    page.keyboard.press(key)
    page.wait_for_function("id => document.querySelector('article')?.dataset.id !== id", arg=id)
    return id


def wait_for_toast(page: Page, text: str) -> None:
    page.wait_for_function(
        "text => document.querySelector('#toast').textContent.includes(text)", arg=text
    )


def test_two_hundred_proposals_are_reviewed_by_keyboard(page: Page, server: Server) -> None:
    page.goto("/review?table=facts")
    pressed = []
    for number in range(200):
        key = "aaarasaa"[number % 8]
        pressed.append((int(press(page, key).removeprefix("fact-")), key))
    page.keyboard.press("k")  # is only shown when the mark before it was saved
    page.wait_for_function("() => document.querySelector('#toast').textContent.includes('before')")
    letters = {"accept": "a", "reject": "r", "skip": "s"}
    assert [(row, letters[verdict]) for row, verdict in server.verdicts()] == pressed
    assert len({row for row, _ in pressed}) == 200
    page.reload()
    left = f"{NUM_MORE + 6 - 200} open"
    assert left in " ".join(page.inner_text("#queue").split())


def test_undo_takes_back_a_bulk_mark_and_then_the_mark_before_it(
    page: Page, server: Server
) -> None:
    page.goto("/review?lang=en")
    press(page, "r")
    wait_for_toast(page, "Rejected")
    page.goto("/review?lang=en&max_confidence=0.7")
    page.click("#open-bulk")
    page.wait_for_selector("#bulk[open]")
    assert page.locator("#bulk .sample li").count() == 10
    button = page.locator("#bulk [data-bulk=accept]")
    expected = int(button.get_attribute("data-expected") or "")
    assert expected >= NUM_MORE
    button.click()
    wait_for_toast(page, f"Accepted {expected} proposals")
    assert Counter(verdict for _, verdict in server.verdicts())["accept"] == expected
    page.keyboard.press("u")
    wait_for_toast(page, f"Undone: {expected} marks")
    assert [verdict for _, verdict in server.verdicts()] == ["reject"]
    page.wait_for_function(
        "() => !document.querySelector('#queue').textContent.includes('0 open ')"
    )
    page.keyboard.press("u")
    wait_for_toast(page, "Undone: your mark on")
    page.wait_for_function("() => document.querySelector('article').dataset.id === 'fact-3'")
    assert server.verdicts() == []
    page.keyboard.press("u")
    wait_for_toast(page, "You have no mark to undo.")


def test_another_entity_is_searched_and_accepted_instead(page: Page, server: Server) -> None:
    page.goto("/review?lang=fi&table=facts")
    page.keyboard.press("e")
    page.keyboard.type("finl")
    page.wait_for_selector(".combo [role=option]")
    page.keyboard.press("ArrowDown")
    assert page.locator("[aria-selected=true]").inner_text().startswith("Finland")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    wait_for_toast(page, "Accepted: Helsinki capital of Finland, instead of Suomi.")
    entry = Marks.open(server.proposals, read_only=True).log(1)[0]
    assert entry.verdict == "accept" and entry.replacement is not None
    assert entry.replacement.name == "Suomi"  # the entity in the language of the fact


def test_the_text_of_a_label_is_edited_and_accepted(page: Page, server: Server) -> None:
    page.goto("/review?table=labels")
    page.keyboard.press("e")
    page.keyboard.type("Kairon <b>kaupunki</b>")
    page.keyboard.press("Enter")
    wait_for_toast(page, "Kairon <b>kaupunki</b>, instead of Kairo.")
    entry = Marks.open(server.proposals, read_only=True).log(1)[0]
    assert entry.replacement is not None and entry.replacement.name == "Kairon <b>kaupunki</b>"
    page.goto("/marks")
    assert "Kairon <b>kaupunki</b>" in page.inner_text("main")


def test_after_an_edit_no_frame_is_left_around_the_next_statement(
    page: Page, server: Server
) -> None:
    page.goto("/review?table=labels&state=all")
    page.keyboard.press("e")
    page.keyboard.type("Kahira")
    page.keyboard.press("Enter")
    wait_for_toast(page, "Kahira, instead of Kairo.")
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert page.evaluate("document.activeElement.id") in ("statement", "main")
    assert style == "none"


def test_the_relations_of_the_kb_are_offered_before_anything_is_typed(
    browser: Browser, shared_server: Server
) -> None:
    context = open_context(browser, shared_server)
    page = context.new_page()
    page.goto("/ask")
    page.click("#relation")
    page.wait_for_selector("[role=option] >> text=capital of")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.input_value("#relation") == "capital of"
    page.click("#subject")
    page.wait_for_timeout(400)
    assert page.locator("[role=option]:visible").count() == 0
    context.close()


def test_two_browsers_mark_at_once_and_their_disagreements_are_listed(
    browser: Browser, server: Server
) -> None:
    pages = []
    for name in ("Άννα", "يوسف"):
        own = open_context(browser, server).new_page()
        own.goto("/review?table=facts&lang=en")
        own.click("#me summary")
        own.fill("#reviewer", name)
        with own.expect_navigation():
            own.click("#settings button")
        pages.append(own)
    anna, yusuf = pages
    assert shown_id(anna) == shown_id(yusuf) == "fact-3"
    for _ in range(12):
        id = shown_id(anna)
        for own, key in ((anna, "a"), (yusuf, "r")):
            own.keyboard.press(key)
        for own in pages:
            own.wait_for_function(
                "id => document.querySelector('article')?.dataset.id !== id", arg=id
            )
    for own in pages:
        own.wait_for_timeout(300)
    assert {verdict for _, verdict in server.verdicts("Άννα")} == {"accept"}
    assert {verdict for _, verdict in server.verdicts("يوسف")} == {"reject"}
    assert len(server.verdicts("Άννα")) == len(server.verdicts("يوسف")) == 12
    anna.goto("/marks?show=disagreements")
    assert anna.locator(".results li").count() >= 1
    assert "fact-3" in (anna.locator(".results a").first.get_attribute("href") or "")
    for own in pages:
        own.context.close()


def test_a_killed_server_loses_no_mark_that_was_confirmed(page: Page, server: Server) -> None:
    page.goto("/review?table=facts&lang=en")
    confirmed = []
    for _ in range(10):
        confirmed.append(int(press(page, "a").removeprefix("fact-")))
        wait_for_toast(page, "Accepted")
    page.wait_for_timeout(800)  # the next card is there and would be shown
    last = shown_id(page)
    server.kill()
    page.keyboard.press("a")
    wait_for_toast(page, "Not saved: The server does not answer.")
    assert shown_id(page) == last
    server.start()
    assert [row for row, _ in server.verdicts()] == confirmed
    page.reload()
    assert shown_id(page) == last
    press(page, "a")
    wait_for_toast(page, "Accepted")
    assert len(server.verdicts()) == 11


def test_confidences_follow_the_marks_without_a_reload(page: Page, server: Server) -> None:
    page.goto("/review?table=facts&lang=en&max_confidence=0.695")
    before = page.inner_text("#confidence")
    for _ in range(6):
        press(page, "r")
        wait_for_toast(page, "Rejected")
    page.wait_for_function(
        "text => document.querySelector('#confidence').textContent !== text", arg=before
    )
    assert float(page.inner_text("#confidence").rstrip(" %")) < float(before.rstrip(" %"))
    assert "The run said" in page.inner_text("#confidence-note")


def test_the_download_holds_what_was_accepted(page: Page, server: Server, tmp_path: Path) -> None:
    page.goto("/review?lang=te")
    page.keyboard.press("a")
    wait_for_toast(page, "Accepted")
    page.goto("/export")
    page.check("input[value=tsv]")
    assert page.inner_text("#command") == (
        "prixlm export WORK --format tsv --accepted --to facts.tsv"
    )
    with page.expect_download() as download:
        page.click("#export button")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    lines = file.read_text("utf-8").splitlines()
    assert [line for line in lines if "హైదరాబాదు" in line] == lines[1:]
    assert len(lines) == 2


def test_keys_work_on_a_keyboard_of_another_script(page: Page, server: Server) -> None:
    page.goto("/review?table=facts&lang=en")
    for key, code in (("α", "KeyA"), ("к", "KeyR")):
        id = shown_id(page)
        page.evaluate(
            "([key, code]) => document.body.dispatchEvent("
            "new KeyboardEvent('keydown', {key, code, bubbles: true}))",
            [key, code],
        )
        page.wait_for_function("id => document.querySelector('article').dataset.id !== id", arg=id)
    page.wait_for_timeout(300)
    assert server.verdicts() == [(3, "accept"), (4, "reject")]


def test_no_key_marks_while_someone_types(page: Page, server: Server) -> None:
    page.goto("/review?table=facts")
    page.keyboard.press("/")
    page.keyboard.type("aras1u")
    assert page.input_value("#find") == "aras1u"
    page.keyboard.press("Escape")
    page.goto("/review?table=facts")
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.type("aras1")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help:not([open])", state="attached")
    page.keyboard.press("Control+a")
    page.click("#open-help")
    page.uncheck("#use-keys")
    page.keyboard.press("Escape")
    page.reload()
    page.keyboard.type("ars1")
    page.wait_for_timeout(300)
    assert server.verdicts() == []


def test_an_arabic_statement_runs_from_the_right(browser: Browser, shared_server: Server) -> None:
    context = open_context(browser, shared_server)
    page = context.new_page()
    for id, is_right in (("fact-0", True), ("fact-1", False)):
        page.goto(f"/review?id={id}")
        frame = page.locator("#statement").bounding_box()
        name = page.locator("#statement .object bdi").bounding_box()
        assert frame and name
        gap_left = name["x"] - frame["x"]
        gap_right = frame["x"] + frame["width"] - name["x"] - name["width"]
        assert (gap_right < 5 < gap_left) if is_right else (gap_left < 5 < gap_right)
    context.close()


def test_no_name_runs_a_script_and_no_page_is_wider_than_a_phone(
    browser: Browser, shared_server: Server
) -> None:
    context = open_context(browser, shared_server, viewport=PHONE)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for address in PAGES:
        page.goto(address)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("window.broken") is None, address
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address
    # The last page is one that is not found.
    assert [text for text in problems if "404" not in text] == []
    assert all(url.startswith(shared_server.address) for url in requests)
    context.close()


@pytest.mark.parametrize(("scheme", "size"), [("light", PHONE), ("dark", DESK)])
def test_axe_finds_nothing_serious(
    browser: Browser, shared_server: Server, scheme: str, size: dict[str, int]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    context = open_context(browser, shared_server, viewport=size, color_scheme=scheme)
    page = context.new_page()
    found = []
    for address, action in [*((one, "") for one in AXE_PAGES), ("/review", "?"), ("/review", "e")]:
        page.goto(address)
        if action:
            page.keyboard.press(action)
        for violation in axe.Axe().run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                targets = [node["target"] for node in violation["nodes"][:3]]
                found.append((address + action, violation["id"], targets))
    context.close()
    assert not found


def test_the_queue_can_be_read_without_javascript(browser: Browser, shared_server: Server) -> None:
    context = open_context(browser, shared_server, java_script_enabled=False, viewport=PHONE)
    page = context.new_page()
    page.goto("/review")
    assert "marking needs it" in page.inner_text("noscript")
    assert not page.is_visible("#facets")
    page.click(".drawer-open")
    page.click("#facets a:has-text('Telugu')")
    assert page.is_visible("text=హైదరాబాదు")
    page.goto("/search")
    page.fill("#q", "cair")
    page.press("#q", "Enter")
    page.click("text=Cairo")
    assert "القاهرة" in page.inner_text("main")
    context.close()


def test_the_theme_is_switched_and_kept(browser: Browser, shared_server: Server) -> None:
    context = open_context(browser, shared_server, color_scheme="light")
    page = context.new_page()
    paper = "getComputedStyle(document.body).backgroundColor"
    page.goto("/")
    light = page.evaluate(paper)
    page.click("#theme")
    dark = page.evaluate(paper)
    assert dark != light
    page.goto("/review")
    assert page.evaluate(paper) == dark
    page.click("#theme")
    assert page.evaluate(paper) == light
    context.close()


def test_results_follow_what_is_typed(browser: Browser, shared_server: Server) -> None:
    context = open_context(browser, shared_server)
    page = context.new_page()
    page.goto("/search")
    page.type("#q", "القاه")
    page.wait_for_selector(".results >> text=Cairo")
    assert "q=" in page.url
    context.close()
