from __future__ import annotations

import math

import pytest

import made_campaign as made
from rarely.questions.result import Outcome, scientific

NAME, OUTCOME, PROBABILITY = 1, 4, 5  # columns of the table
NASTY = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
TAB, ENTER, ESCAPE, DOWN = "\ue004", "\ue007", "\ue00c", "\ue015"


def choose(browser, box: str, value: str) -> None:
    from selenium.webdriver.support.select import Select

    Select(browser.see(box)).select_by_value(value)


def test_it_loads_in_silence_and_alone(open_page) -> None:
    browser = open_page(list(made.records(300)))
    assert browser.see("h1").text == "Road signs under noise"
    assert len(browser.all("#table tbody tr")) == 25
    assert all(image.size["width"] > 20 for image in browser.all("#worst img"))
    assert browser.run("return [...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    browser.all("#table .open")[0].click()
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []


def test_a_request_would_be_noticed_and_is_forbidden(open_page) -> None:
    leak = '<img src="http://127.0.0.1:9/leak.png"><script>window.hacked = 1</script></body>'
    browser = open_page(list(made.records(10)), edit=lambda text: text.replace("</body>", leak))
    complaints = " ".join(browser.console())
    assert "leak.png" in complaints
    assert complaints.count("Content Security Policy") >= 2
    assert browser.run("return window.hacked") is None


def test_sorting(open_page) -> None:
    records = list(made.records(300))
    browser = open_page(records)
    heads = {head.text.rstrip(" ↑↓"): head for head in browser.all("#table th")}
    assert heads["Probability"].get_attribute("aria-sort") == "descending"
    found = sorted(r.estimate.log_prob for r in records if r.estimate and math.isfinite(r.estimate.log_prob))
    assert browser.column(PROBABILITY) == [scientific(value) for value in found[::-1][:25]]
    heads["Probability"].find_element("tag name", "button").click()
    assert heads["Probability"].get_attribute("aria-sort") == "ascending"
    assert browser.column(PROBABILITY) == [scientific(value) for value in found[:25]]
    heads["Problem"].find_element("tag name", "button").click()
    assert heads["Probability"].get_attribute("aria-sort") is None
    # Numbers inside names are ordered as numbers.
    assert [name.split("[")[1].split("]")[0] for name in browser.column(NAME)[:18:6]] == ["0", "1", "2"]


def test_filtering_and_pages(open_page) -> None:
    records = list(made.records(300))
    browser = open_page(records)
    failed = sum(record.state == "failed" for record in records)
    choose(browser, "#by-standing", "failed")
    assert browser.column(OUTCOME) == ["failed"] * failed
    assert browser.see("#showing").text == f"1 to {failed} of {failed} problems, filtered from 300"
    choose(browser, "#by-radius", "0.3")
    assert len(browser.column(NAME)) == sum(r.state == "failed" and r.radius == 0.3 for r in records)
    browser.see("#clear").click()
    assert browser.see("#showing").text == "1 to 25 of 300 problems"
    browser.see("#next-page").click()
    assert browser.see("#showing").text == "26 to 50 of 300 problems"
    browser.see("#find").send_keys("SIGNS.NPZ[7]")
    assert {name.split()[1] for name in browser.column(NAME)} == {"signs[7]"}
    browser.see("#find").send_keys(" nowhere")
    assert browser.see("#showing").text == "No problem fits these filters."
    browser.see("#clear").click()
    browser.see("[data-standing='proved safe']").click()
    assert set(browser.column(OUTCOME)) == {"proved safe"}


def test_everything_about_one_problem(open_page) -> None:
    records = [made.record(0, made.violated(-16.0)), made.record(1, None), made.record(2, made.violated(-4.0))]
    browser = open_page(records)
    browser.see(f"#table [data-open='{records[0].key}']").click()
    said = browser.see("#details").text
    for part in ("p = 1.13e-07", "95% interval", "An input that violates", "How the sampler climbed", "line sampling"):
        assert part in said
    for part in ("9 lines", "effective sample size 1277", "49,338 (48,102 evaluations, 412 gradients)", "stop"):
        assert part in said
    assert len(browser.all("#details img")) == 3
    drawing = browser.see("#details svg[role=img] desc").get_attribute("textContent")
    assert drawing.startswith("7 levels rise from -4 to 0")
    browser.see("#details details summary").click()
    assert "acceptance" in browser.see("#details details table").text
    browser.see("#next-problem").click()
    assert "the score became NaN" in browser.see("#details .reason").text
    assert not browser.see("#next-problem").is_enabled()
    assert browser.run("return location.hash") == f"#problem-{records[1].key}"
    browser.see("#close").click()
    assert not browser.see("#details").is_displayed()
    assert browser.console() == []


def test_table_and_cards_print_the_same_number(open_page) -> None:
    """0.9985 is in the middle between two texts, and what Python and the page make of it must not differ."""
    for p in (0.9985, 0.0125, 1e-100):
        record = made.record(0, made.violated(math.log(p)))
        browser = open_page([record])
        card, table = browser.see(".card .interval").text, browser.see("#table tbody tr").text
        written = card.partition(",")[0].removeprefix("p = ")
        assert written == scientific(math.log(p))
        assert f" {written} " in f" {' '.join(table.split())} "


def test_a_link_to_a_problem(open_page) -> None:
    browser = open_page(list(made.records(60)))
    address = browser.driver.current_url
    browser.driver.get("about:blank")
    browser.driver.get(f"{address}#problem-{31:016x}")
    assert browser.see("#details-title").text == "signs signs[5] linf 0.1"


def test_a_script_in_a_class_name_does_not_run(open_page) -> None:
    records = [
        made.record(
            i, made.violated(-5.0 - i, notes=(NASTY,)), label=NASTY, name=f"{NASTY}{i}", network=f"{NASTY}{i % 2}"
        )
        for i in range(12)
    ]
    records.append(made.record(12, None, reason=NASTY, label=NASTY))
    browser = open_page(records, made.header(name=NASTY, plan=NASTY, command=NASTY))
    assert browser.see("h1").text == NASTY
    assert browser.column(2)[0] == NASTY
    for opener in browser.all("#table .open"):
        browser.run("document.querySelector('#details').close()")
        opener.click()
        assert NASTY in browser.see("#details").text
    assert browser.run("return window.hacked") is None
    assert browser.console() == []


def test_the_keyboard_reaches_everything(open_page) -> None:
    browser = open_page(list(made.records(300)))
    wanted = ["find", "by-standing", "by-radius", "clear", "next-page"]
    reached, rows = [], 0
    browser.run("document.querySelector('#find').scrollIntoView(); document.querySelector('nav a').focus()")
    for _ in range(120):
        browser.press(TAB)
        active = browser.driver.switch_to.active_element
        reached.append(active.get_attribute("id"))
        rows += active.get_attribute("class") == "open"
        outline = active.value_of_css_property("outline-style")
        assert outline != "none", active.get_attribute("outerHTML")
        if reached[-1] == "next-page":
            break
    assert [name for name in reached if name in wanted] == wanted
    assert rows >= 25
    browser.press(ENTER)
    assert browser.see("#showing").text.startswith("26 to 50")
    browser.run("document.querySelector('[data-sort=name]').focus()")
    browser.press(ENTER)
    assert browser.see("th[data-column=name]").get_attribute("aria-sort") == "ascending"
    browser.run("document.querySelector('#table .open').focus()")
    opener = browser.driver.switch_to.active_element
    browser.press(ENTER)
    assert browser.see("#details").is_displayed()
    browser.press(ESCAPE)
    assert not browser.see("#details").is_displayed()
    assert browser.driver.switch_to.active_element == opener


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_width_scrolls_sideways(open_page, width: int) -> None:
    browser = open_page(list(made.records(60)))
    browser.look(width=width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    browser.all("#table .open")[0].click()
    assert browser.run("return document.querySelector('#details').scrollWidth") <= width


def test_narrow_screens_show_intervals_too(open_page) -> None:
    browser = open_page(
        [made.record(0, made.violated(-16.0)), made.record(1, made.unseen(Outcome.BELOW_FLOOR, -230.0))]
    )
    interval = f"{scientific(-16.16)} to {scientific(-15.84)}"
    assert browser.see("#table tbody tr").text.count(interval) == 1
    browser.look(width=360)
    cells = browser.all("#table tbody td .narrow")
    assert [cell.text for cell in cells] == [interval, "95% bound"]
    assert all(cell.is_displayed() for cell in cells)
    table = "const box = document.querySelector('#problems .scroll'); return box.scrollWidth - box.clientWidth"
    assert browser.run(table) <= 0, "nothing has to be scrolled to"
    assert browser.run("return document.documentElement.scrollWidth") <= 360


def test_names_are_short_and_say_their_paths_when_pointed_at(open_page) -> None:
    path = "models/of/the/year/signs.onnx"
    browser = open_page([made.record(0, made.violated(-4.0), network=path, name=f"{path} signs.npz[0] linf 0.05")])
    opener = browser.see("#table .open")
    assert opener.text == browser.see(".card .open").text == "signs signs[0] linf 0.05"
    assert opener.get_attribute("title") == f"{path} signs.npz[0] linf 0.05"
    opener.click()
    assert path in browser.see("#details").text
    assert "The network answers: " in browser.see("#details").text
    assert "the nearest one found lies at 0.431 of the radius" in browser.see("#details").text
    browser.press(ESCAPE)
    browser.see("#find").send_keys("of/the/year")
    assert len(browser.all("#table tbody tr")) == 1


def test_dark_is_dark(open_page) -> None:
    browser = open_page(list(made.records(60)))
    look = "const s = getComputedStyle(document.querySelector(arguments[0])); return s[arguments[1]]"
    shades = {}
    for dark in (False, True):
        browser.look(dark=dark)
        colours = [("body", "backgroundColor"), ("h1", "color"), (".chart text", "fill"), (".chart g path", "fill")]
        shades[dark] = [browser.driver.execute_script(look, *what) for what in colours]
    for light, dark in zip(shades[False][:3], shades[True][:3], strict=True):
        assert light != dark
    assert shades[True][0] < shades[True][1]


@pytest.mark.parametrize("count", [0, 1])
def test_small_campaigns(open_page, count: int) -> None:
    browser = open_page(list(made.records(count)))
    assert len(browser.all("#table tbody tr")) == count
    assert browser.see("#showing").text == ("1 to 1 of 1 problems" if count else "There are no problems.")
    assert browser.console() == []


def test_what_stands_and_what_does_not(open_page) -> None:
    estimates = [made.unseen(o, -9.4) for o in (Outcome.BELOW_FLOOR, Outcome.OUT_OF_BUDGET, Outcome.STALLED)]
    estimates.append(made.unseen(Outcome.PROVED_SAFE, -math.inf))
    browser = open_page([made.record(i, estimate) for i, estimate in enumerate(estimates)])
    assert browser.column(PROBABILITY) == ["≤ 8.27e-05"] * 3 + ["0"]
    for opener, outcome in zip(browser.all("#table .open"), estimates, strict=True):
        browser.run("document.querySelector('#details').close()")
        opener.click()
        assert outcome.outcome.sentence in browser.see("#details").text
    assert browser.console() == []


def test_ten_thousand_problems(open_page) -> None:
    browser = open_page(list(made.records(10_000)))
    assert browser.see("#showing").text == "1 to 25 of 10,000 problems"
    browser.see("[data-sort=name]").click()
    browser.see("#find").send_keys("npz[1666]")
    assert browser.see("#showing").text == "1 to 4 of 4 problems, filtered from 10,000"
    assert browser.run("return document.querySelectorAll('*').length") < 5000
    assert browser.console() == []
