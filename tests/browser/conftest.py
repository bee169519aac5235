"""A real Chromium without a window. Where none is installed these tests are skipped, and say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import made_campaign as made
from rarely.campaign.store import Header, Record
from rarely.report.page import write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@dataclass(frozen=True)
class Browser:
    """The page in a browser, and what it did that a reader does not see."""

    driver: Any

    def see(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def column(self, number: int) -> list[str]:
        return [cell.text for cell in self.all(f"#table tbody td:nth-child({number})")]

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def console(self) -> list[str]:
        """What was written to the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window and what the reader prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # a click aims at where things are now
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no browser: the report page was not tried in one; install chromium and chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # Without a sandbox, because CI runs as root; the only pages opened are our own.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield Browser(driver)
    driver.quit()


Open = Callable[..., Browser]


@pytest.fixture
def open_page(chromium: Browser, tmp_path: Path) -> Open:
    """Write a page and open it from its file, as a reader would."""

    def visit(records: list[Record], header: Header | None = None, edit: Callable[[str], str] = str) -> Browser:
        file = tmp_path / "report.html"
        write_page(file, header or made.header(), records, made.witnesses)
        file.write_text(edit(file.read_text(encoding="utf-8")), encoding="utf-8")
        chromium.look()
        chromium.driver.get("about:blank")
        chromium.console(), chromium.requests()
        chromium.driver.get(file.as_uri())
        return chromium

    return visit
