"""The live page in a real browser: light and dark, on a desk and on a phone, with names that are code."""

import shutil

import pytest
from tests.network.watched import LIARS, watched

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

EVIL = "<img src=x onerror=\"document.title='owned'\">"
NAMES = (EVIL, "bob", "carol", "dan", "emma")
SIZES = {"desk": (1240, 900), "phone": (390, 844)}
WIDTHS = "[document.documentElement.scrollWidth, window.innerWidth]"
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
STRIPS = """() => Object.fromEntries([...document.querySelectorAll('#clients tr')].map((row) => {
  const canvas = row.querySelector('canvas'), draw = canvas.getContext('2d'), seen = {};
  const data = draw.getImageData(0, Math.floor(canvas.height / 2), canvas.width, 1).data;
  for (let i = 0; i < data.length; i += 4) {
    const colour = data.slice(i, i + 3).join();
    seen[colour] = (seen[colour] || 0) + 1;
  }
  return [row.querySelector('.name').textContent, Object.keys(seen).sort((a, b) => seen[b] - seen[a])[0]];
}))"""  # the most frequent colour of each client's strip


@pytest.fixture(scope="module")
def federation():
    with watched(NAMES) as found:
        found.until(lambda told: told["rounds"] > 100 and sum(bool(one["doubts"]) for one in told["clients"]) == 2)
        yield found


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visit(browser, federation):
    """Return a function that opens the page; nothing may go wrong in it, and nobody else be asked."""
    contexts, problems = [], []

    def open_page(scheme="light", size="desk"):
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        here, asked = f"http://127.0.0.1:{federation.port}/", []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(here)
        playwright.expect(page.locator("#clients tr")).to_have_count(7)
        problems.extend(url for url in asked if not url.startswith((here, "data:")))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_who_stands_out_at_any_size_and_by_day_and_night(visit, scheme, size):
    page = visit(scheme, size)
    names = page.locator("#clients .name").all_text_contents()
    assert set(names[:2]) == set(LIARS)
    assert set(names[2:]) == set(NAMES)
    assert page.locator("tr.doubtful").count() == 2
    assert page.locator("tr.doubtful .tag").all_text_contents().count("refused") == 1
    content, window = page.evaluate(WIDTHS)
    assert content <= window
    background, text = page.evaluate(COLOURS)
    bright = [sum(map(int, colour[4:-1].split(","))) for colour in (background, text)]
    assert (bright[0] > bright[1]) == (scheme == "light")
    colours = page.evaluate(STRIPS)
    assert len({colours["minus"], colours["nan"], colours["bob"]}) == 3
    assert page.locator("#condition").text_content() == "running"


def test_the_page_goes_on_and_shows_the_whole_run_too(visit):
    page = visit()
    before = page.locator("#rounds").text_content()
    playwright.expect(page.locator("#rounds")).not_to_have_text(before)
    page.get_by_role("button", name="since the start").click()
    assert page.get_by_role("button", name="since the start").get_attribute("aria-pressed") == "true"
    assert "since the start" in page.locator("#strip-head").text_content()


def test_names_of_clients_are_texts_and_nothing_else(visit):
    page = visit()
    assert EVIL in page.locator("#clients .name").all_text_contents()
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()


def test_everything_can_be_read_without_seeing_colours(visit):
    page = visit()
    labels = page.locator("#clients canvas").evaluate_all("each => each.map((one) => one.getAttribute('aria-label'))")
    assert len(labels) == 7
    assert all("distance" in label and "refused" in label for label in labels)
    assert page.get_by_role("columnheader").count() == 7
    assert page.get_by_role("status").text_content() == "running"


def test_a_federator_that_is_gone_is_told(browser):
    page = browser.new_page()
    with watched() as federation:
        federation.until(lambda status: status["rounds"] > 3)
        page.goto(f"http://127.0.0.1:{federation.port}/")
        playwright.expect(page.locator("#clients tr")).to_have_count(7)
    playwright.expect(page.locator("#condition")).to_have_text("the federator does not answer", timeout=30_000)
    page.close()
