"""The documentation opened from a folder: search answers, formulas are drawn, no line of code is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

CUT = """return [...document.querySelectorAll('.md-typeset pre > code')]
    .filter((code) => code.scrollWidth > code.clientWidth + 1).map((code) => code.textContent)"""


@pytest.fixture
def visit(chromium, site: Path):
    def to(page: str, **look: object) -> None:
        chromium.look(**look)
        chromium.driver.get("about:blank")
        chromium.console(), chromium.requests()
        chromium.driver.get((site / page).as_uri())

    return to


def test_search_answers_from_a_folder_and_asks_nobody(chromium, visit) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    visit("index.html")
    chromium.run("document.querySelector('[data-md-toggle=search]').click()")
    WebDriverWait(chromium.driver, 30).until(lambda _: chromium.see("input.md-search__input").is_displayed())
    chromium.see("input.md-search__input").send_keys("tabular")
    found = WebDriverWait(chromium.driver, 30).until(lambda _: chromium.all(".md-search-result__link"))
    assert "how-to/tabular-data.html" in found[0].get_attribute("href")
    assert chromium.console() == []
    assert [url for url in chromium.requests() if not url.startswith(("file:", "data:", "about:", "blob:"))] == []


@pytest.mark.parametrize("width", [390, 1000, 1440])
def test_no_line_of_code_is_cut(chromium, visit, width: int) -> None:
    for page in (
        "index.html",
        "tutorials/onnx-vnnlib.html",
        "how-to/write-a-kernel.html",
        "reference/estimate-json.html",
    ):
        visit(page, width=width)
        assert chromium.run(CUT) == [], page
    chromium.run("document.querySelectorAll('pre > code').forEach((code) => { code.style.whiteSpace = 'pre' })")
    assert chromium.run(CUT) != []  # what the style sheet prevents


def test_formulas_have_a_size(chromium, visit) -> None:
    visit("explanation/proved-probability.html")
    sizes = [formula.size for formula in chromium.all(".md-typeset math")]
    assert len(sizes) > 40
    assert all(size["height"] > 5 and 3 < size["width"] < 900 for size in sizes)


def test_the_home_page_has_a_figure_that_is_drawn(chromium, visit) -> None:
    for dark in (False, True):
        visit("index.html", dark=dark)
        assert chromium.run("return document.querySelector('.md-typeset img').naturalWidth") > 300
