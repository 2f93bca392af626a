"""The page of a server in Chromium: predictions, explanations, corrections, and lists to label by keyboard."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from decisive_words import write_run
from playwright.sync_api import Browser, Page, expect, sync_playwright

from longspan.serving.app import app_of
from longspan.verbs.runs import load_run

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; .ci/browser installs it.")

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[str]:
    """Address of a server for a run in a folder."""
    run = load_run(write_run(folder / "mine", [EVIL, "yes"], "good", "yes", "good bad film"))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        # Connections wait until the server is there.
        bound.listen()
        server = uvicorn.Server(uvicorn.Config(app_of(run, **options), log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page in a tab of its own, which asks nobody else, and complains of nothing."""
    page = browser.new_page(**options)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text) if told.type in ("error", "warning") else None)
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    expect(page.get_by_role("heading", name="mine", exact=True)).to_be_visible()
    yield page
    assert all(url.startswith((address, "data:", "about:", "blob:")) for url in asked), asked
    # A refused request is said by Chromium, too.
    assert [one for one in complaints if "status of 4" not in one] == []
    page.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_text_and_a_file_are_predicted_explained_and_corrected(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as address, opened(browser, address, viewport={"width": 360, "height": 640}) as page:
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("alert")).to_have_text("Write or paste something, or choose a file.")
        page.get_by_label("text", exact=True).fill("good film")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("heading", name="yes")).to_be_focused()
        expect(page.get_by_role("row").first).to_contain_text("1.000")
        expect(page.get_by_role("row").last).to_contain_text(EVIL)
        page.get_by_role("button", name="Explain").click()
        frame = page.frame_locator("#why")
        expect(frame.get_by_role("heading", name="Why “yes”?")).to_be_visible()
        frame.get_by_role("button", name="Next strongest").click()
        expect(frame.locator("#selected")).to_contain_text("film")
        page.get_by_role("button", name=EVIL).click()
        expect(page.locator("#saved")).to_contain_text("Kept")
        page.get_by_role("button", name="Clear").click()
        (tmp_path / "letter.html").write_text(f"<p>bad film</p><p>{EVIL}</p>", encoding="utf-8")
        page.get_by_label("A file").set_input_files(tmp_path / "letter.html")
        expect(page.get_by_role("heading", name=EVIL)).to_be_visible()
        page.get_by_role("button", name="yes").click()
        expect(page.locator("#saved")).to_contain_text("yes")
        (tmp_path / "rows.csv").write_text("text\ngood\n", encoding="utf-8")
        page.get_by_label("A file").set_input_files(tmp_path / "rows.csv")
        expect(page.get_by_role("alert")).to_contain_text("expected a document, got 'rows.csv'")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    first, second = lines(tmp_path / "mine-corrections.jsonl")
    assert (first["text"], first["label"]) == ("good film", EVIL)
    assert (second["text"], second["label"]) == ("bad film", "yes")


def test_a_list_is_labelled_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    table = tmp_path / "next.csv"
    table.write_text('rank,where,text\n1,a,"good, film"\n2,b,bad film\n3,c,film\n', encoding="utf-8")
    with serving(tmp_path, to_label=table) as address:
        with opened(browser, address) as page:
            expect(page.locator("#position")).to_have_text("1 of 3")
            expect(page.get_by_label("text", exact=True)).to_have_value("good, film")
            page.keyboard.press("2")
            expect(page.locator("#position")).to_have_text("2 of 3")
            page.keyboard.press("ArrowRight")
            expect(page.locator("#position")).to_have_text("3 of 3")
            page.keyboard.press("1")
            expect(page.locator("#saved")).to_contain_text("Kept")
            page.keyboard.press("ArrowLeft")
            expect(page.get_by_label("text", exact=True)).to_have_value("bad film")
        with opened(browser, address) as page:
            # It goes on with the first that has no label.
            expect(page.locator("#position")).to_have_text("2 of 3")
            page.keyboard.press("ArrowLeft")
            expect(page.locator("#position")).to_have_text("1 of 3, labelled")
            expect(page.get_by_role("button", name="2 yes")).to_have_attribute("aria-pressed", "true")
    found = {line["text"]: line["label"] for line in lines(tmp_path / "mine-corrections.jsonl")}
    assert found == {"good, film": "yes", "film": EVIL}


def test_a_token_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, token="secret") as address:
        page = browser.new_page()
        page.goto(address)
        page.get_by_label("Token of this server").fill("secret")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_role("heading", name="mine", exact=True)).to_be_visible()
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme: Any, browser: Browser, tmp_path: Path) -> None:
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    with serving(tmp_path) as address, opened(browser, address, color_scheme=scheme, bypass_csp=True) as page:
        page.get_by_label("text", exact=True).fill("good film")
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("heading", name="yes")).to_be_visible()
        page.evaluate(axe)
        found = page.evaluate("axe.run(document).then((found) => found.violations)")
        assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
