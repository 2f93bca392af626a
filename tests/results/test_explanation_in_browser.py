"""The page of an explanation in Chromium: what it asks for, shows, and answers to."""

import dataclasses
import re
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from longspan.report.explanation import Explanation

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; .ci/browser installs it.")

EVIL = "</script><img src=x onerror=alert(1)>"
WORDS = 6000
# The strongest words, and how much they speak for the answer.
STRONG = {5000: 4.0, 100: -2.0, 2500: 1.0}
ALPHA = "layer 1, head 2, alpha"


def explanation(**more: Any) -> Explanation:
    """A text of words with numbers, of which a few have scores."""
    words = [f"w{number}" for number in range(WORDS)]
    words[40:44] = [EVIL]
    text = " ".join(words)
    spans = [list(found.span()) for found in re.finditer(r"\S+", text)]
    place = {text[start:end]: number for number, (start, end) in enumerate(spans)}
    scores, alpha = [0.0] * len(spans), [0.0] * len(spans)
    for word, score in STRONG.items():
        scores[place[f"w{word}"]] = score
    alpha[place["w3000"]] = 0.5
    given: dict[str, Any] = {
        "where": f"films.csv, row 2, {EVIL}", "of": f"good {EVIL}", "unit": "log-odds", "value": 2.0,
        "method": "removal",
        "prediction": {"label": "good", "probabilities": {f"good {EVIL}": 0.9, "bad": 0.1}},
        "spans": spans, "scores": scores, "text": text,
        "parts": {"network": scores, ALPHA: alpha, EVIL: alpha},
        "ngrams": [{"text": f"very {EVIL}", "score": 1.0, "times": 2}],
        "checks": {"removal": {"comprehensiveness": 0.4, "sufficiency": 0.1}},
    }  # fmt: skip
    return Explanation(**(given | more))


def recording() -> Explanation:
    return explanation(
        places="seconds", text="", ngrams=[], parts={},
        spans=[[number / 4, number / 4 + 0.25] for number in range(40)], scores=[0.0] * 30 + [1.0] + [-0.5] * 9,
    )  # fmt: skip


def image() -> Explanation:
    spans = [[4 * row, 4 * column, 4, 4] for row in range(3) for column in range(3)]
    return explanation(
        places="pixels", text="", ngrams=[], spans=spans, scores=[1.0] + [0.0] * 7 + [-1.0],
        parts={ALPHA: [0.0] * 4 + [1.0] + [0.0] * 4},
    )  # fmt: skip


def graph() -> Explanation:
    return explanation(
        places="nodes", text="", ngrams=[], parts={}, spans=[[0, 1], [1, 2]], scores=[1.0, -1.0], names=["C", EVIL]
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


class Opened:
    """A page in a tab of its own, with what it asked for and complained about."""

    def __init__(self, browser: Browser, path: Path, found: Explanation, **context: Any) -> None:
        found.save(path)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page: Page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(5000)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._stopped)
        self.page.goto(path.as_uri())

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _stopped(self, dialog: Dialog) -> None:
        self.errors.append(dialog.message)
        dialog.dismiss()

    def close(self) -> None:
        self.page.context.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    """The page of a text."""
    tab = Opened(browser, tmp_path / "page.html", explanation())
    yield tab
    tab.close()


@pytest.fixture
def page(opened: Opened) -> Page:
    return opened.page


def shows(page: Page, said: str) -> None:
    """The selected word is announced, and, if it is in a text, marked in the excerpt and seen there."""
    expect(page.get_by_role("status")).to_contain_text(said)
    if page.locator("#excerpt").count():
        word = page.locator("#excerpt .selected")
        expect(word).to_have_text(said.split("”")[0].removeprefix("“"))
        box, around = word.bounding_box(), page.locator("#excerpt").bounding_box()
        assert box is not None
        assert around is not None
        assert around["y"] <= box["y"] <= around["y"] + around["height"]


def picture(page: Page) -> str:
    found: str = page.evaluate("document.getElementById('strip').toDataURL()")
    return found


@pytest.mark.parametrize("found", [explanation(), recording(), image(), graph()], ids=lambda found: found.places)
def test_asks_for_nothing_and_complains_about_nothing(found: Explanation, browser: Browser, tmp_path: Path) -> None:
    tab = Opened(browser, tmp_path / "page.html", found)
    expect(tab.page.get_by_role("status")).not_to_be_empty()
    for name in ("Next strongest", "Previous strongest"):
        tab.page.get_by_role("button", name=name).click()
    tab.page.wait_for_timeout(50)
    assert tab.asked == [(tmp_path / "page.html").as_uri()]
    assert tab.errors == []
    tab.close()


def test_begins_at_the_strongest_word_and_steps_through_the_next(page: Page) -> None:
    shows(page, "“w5000”: +4 (word")
    expect(page.locator("#excerpt mark")).to_have_count(1)
    page.get_by_role("button", name="Next strongest").click()
    shows(page, "“w100”: -2")
    page.keyboard.press("n")
    shows(page, "“w2500”: +1")
    page.get_by_role("button", name="Previous strongest").click()
    page.keyboard.press("p")
    shows(page, "“w5000”")
    page.keyboard.press("p")
    shows(page, "“w5000”")


def test_strong_words_can_be_told_apart_without_colour(page: Page) -> None:
    assert page.locator("#excerpt mark").evaluate("e => getComputedStyle(e).textDecoration") == "underline"
    page.get_by_role("button", name="Next strongest").click()
    shows(page, "“w100”")
    assert "wavy" in page.locator("#excerpt mark").evaluate("e => getComputedStyle(e).textDecoration")


def test_the_slider_and_its_keys(page: Page) -> None:
    slider = page.get_by_role("slider")
    last = int(slider.get_attribute("max") or 0)
    slider.fill(str(last - 5999 + 3000))
    shows(page, "“w3000”: 0 ")
    # Not all of the text is in the page.
    assert 1900 < page.locator("#excerpt > *").count() < 2100
    for key, word in (("ArrowRight", 3001), ("ArrowLeft", 3000), ("End", 5999), ("Home", 0)):
        slider.press(key)
        shows(page, f"“w{word}”")
    slider.press("PageDown")
    shows(page, "“w0”")
    slider.press("PageUp")
    expect(slider).to_have_value(str(round((last + 1) / 10)))
    slider.press("PageDown")
    shows(page, "“w0”")


def test_zoom(page: Page) -> None:
    shows(page, "“w5000”")
    closer, back = (page.get_by_role("button", name=f"Zoom {name}") for name in ("in", "out"))
    expect(back).to_be_disabled()
    expect(page.locator("#whole")).to_be_hidden()
    pictures = {picture(page)}
    closer.click()
    expect(page.locator("#whole")).to_be_visible()
    pictures.add(picture(page))
    page.keyboard.press("+")
    page.wait_for_timeout(50)
    pictures.add(picture(page))
    assert len(pictures) == 3
    for _ in range(7):
        page.keyboard.press("+")
    expect(closer).to_be_disabled()
    # A word is now many pixels wide: its neighbour is next to it.
    strip = page.locator("#strip").bounding_box()
    assert strip is not None
    page.mouse.click(strip["x"] + strip["width"] / 2, strip["y"] + 9)
    shows(page, "“w5000”")
    page.mouse.click(strip["x"] + strip["width"] / 2 + strip["width"] / 40, strip["y"] + 9)
    shows(page, "“w5001”")
    for _ in range(9):
        page.keyboard.press("-")
    expect(page.locator("#whole")).to_be_hidden()


def test_a_click_on_a_bar_leads_to_its_word(page: Page) -> None:
    strip = page.locator("#strip").bounding_box()
    number, count = page.evaluate(
        "[+document.getElementById('place').value, +document.getElementById('place').max + 1]"
    )
    page.get_by_role("slider").press("Home")
    assert strip is not None
    page.mouse.click(strip["x"] + strip["width"] * (number + 0.5) / count, strip["y"] + 40)
    shows(page, "“w5000”")
    page.locator("#excerpt").get_by_text("w5003", exact=True).click()
    shows(page, "“w5003”")


def test_other_rows_of_scores(page: Page) -> None:
    before = picture(page)
    page.get_by_label("Scores of").select_option(ALPHA)
    page.get_by_role("button", name="Previous strongest").click()
    expect(page.locator("#excerpt mark")).to_have_count(0)
    page.get_by_label("Scores of").select_option("all together")
    page.wait_for_timeout(50)
    assert picture(page) != before
    page.get_by_label("Scores of").select_option(ALPHA)
    page.get_by_role("slider").press("Home")
    shows(page, "“w0”: 0")
    page.get_by_role("button", name="Previous strongest").click()
    shows(page, "“w3000”: +0.5")


def test_rows_of_long_texts_are_coarser_and_the_page_stays_small(browser: Browser, tmp_path: Path) -> None:
    count = 40_000
    scores = [0.0] * count
    scores[count // 2] = 1.0
    found = explanation(
        text="w " * count, spans=[[2 * number, 2 * number + 1] for number in range(count)], scores=scores,
        parts={f"layer {number}": scores for number in range(64)},
    )  # fmt: skip
    tab = Opened(browser, tmp_path / "long.html", found)
    expect(tab.page.get_by_text("Scores of single parts are kept for 3 words at a time")).to_be_visible()
    tab.page.get_by_label("Scores of").select_option("layer 63")
    expect(tab.page.locator("#excerpt mark")).to_have_count(3)
    assert (tmp_path / "long.html").stat().st_size < 3_000_000
    tab.close()


def test_texts_are_never_markup(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Scores of").select_option(EVIL)
    page.get_by_role("slider").press("Home")
    shows(page, "“w0”")
    assert EVIL in page.locator("#excerpt").inner_text()
    for place in ("h1", "thead + tbody", "#part"):
        assert EVIL in (page.locator(place).first.text_content() or "")
    assert f"very {EVIL}" in page.locator("main").inner_text()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert opened.errors == []


def test_nothing_but_its_own_script_may_run(page: Page) -> None:
    page.evaluate(
        "const other = document.createElement('script'); other.textContent = 'broken = 1'; document.body.append(other)"
    )
    assert page.evaluate("window.broken") is None
    assert page.evaluate("fetch('https://example.org').then(() => 'asked', () => 'refused')") == "refused"


def test_characters_beyond_the_basic_plane(browser: Browser, tmp_path: Path) -> None:
    spans = [[0, 1], [1, 2], [3, 7]]
    tab = Opened(
        browser,
        tmp_path / "page.html",
        explanation(text="😀😀 good\u2028 x", spans=spans, scores=[0.0, 0.0, 1.0], parts={}),
    )
    shows(tab.page, "“good”: +1 (word 3 of 3)")
    assert tab.page.locator("#excerpt").text_content() == "😀😀 good\u2028 x"
    tab.close()


def test_recordings_images_and_graphs(browser: Browser, tmp_path: Path) -> None:
    for found, first, second in (
        (recording(), "7.50 to 7.75 s: +1", "7.75 to 8.00 s: -0.5"),
        (graph(), "node 0 (C): +1", f"node 1 ({EVIL}): -1"),
        (image(), "row 0, column 0: +1", "row 8, column 8: -1"),
    ):
        tab = Opened(browser, tmp_path / "page.html", found)
        shows(tab.page, first)
        tab.page.get_by_role("button", name="Next strongest").click()
        shows(tab.page, second)
        if found.places == "pixels":
            assert tab.page.locator("#grid path").count() == 1
            tab.page.get_by_label("Scores of").select_option(ALPHA)
            expect(tab.page.locator("#grid rect").nth(4)).to_have_attribute("fill-opacity", "1")
            assert tab.page.locator("#grid path").count() == 0
            tab.page.locator("#grid rect").nth(4).click()
            shows(tab.page, "row 4, column 4: +1")
        tab.close()


def test_without_scripts_everything_is_there_that_does_not_move(browser: Browser, tmp_path: Path) -> None:
    tab = Opened(browser, tmp_path / "page.html", explanation(), java_script_enabled=False)
    for seen in ("#figure svg", "#figure p.excerpt mark", "text=How far to trust this", "text=What speaks against it"):
        expect(tab.page.locator(seen).first).to_be_visible()
    expect(tab.page.locator("#explorer")).to_be_hidden()
    tab.close()


@pytest.mark.parametrize("script", [True, False])
def test_a_phone_shows_it_without_overflow(script: bool, browser: Browser, tmp_path: Path) -> None:
    long = "W" * 300
    for found in (dataclasses.replace(explanation(), of=long, where=long), recording(), image()):
        tab = Opened(
            browser, tmp_path / "page.html", found, java_script_enabled=script, viewport={"width": 360, "height": 640}
        )
        # Evaluating works without a page's own scripts, too.
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
        tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme: Any, browser: Browser, tmp_path: Path) -> None:
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    spans = [[5 * number, 5 * number + 4] for number in range(9)]
    scores = [number / 4 - 1 for number in range(9)]
    for found in (explanation(text="good " * 9, spans=spans, scores=scores, parts={}), image()):
        tab = Opened(browser, tmp_path / "page.html", found, color_scheme=scheme, bypass_csp=True)
        expect(tab.page.get_by_role("status")).not_to_be_empty()
        tab.page.evaluate(axe)
        violations = tab.page.evaluate("axe.run(document).then((found) => found.violations)")
        serious = [
            (one["id"], one["nodes"][0]["html"]) for one in violations if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
        tab.close()
