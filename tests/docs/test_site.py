"""The documentation site: it builds without a warning, covers what it should, and asks nothing of the network."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args
from urllib.parse import unquote, urlsplit

import jsonschema
import pytest
import torch
import typer

import rarely
from rarely.cli.app import app
from rarely.core.evidence import Evidence
from rarely.stats.statistic import Binomial, Exceeded, LogNormal, Replicates, Sum

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCHEMA = json.loads((DOCS / "reference" / "estimate.schema.json").read_text(encoding="utf-8"))
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class _Page(HTMLParser):
    """What a page loads, where it links to, and the places it can be entered at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag in _LOADED and values.get(_LOADED[tag]) and values.get("rel") not in ("next", "prev", "canonical"):
            self.loads.append(values[_LOADED[tag]])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}


def _pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for file in sorted(site.rglob("*.html")):
        yield file, _Page(file.read_text(encoding="utf-8"))


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for file, page in _pages(site):
        foreign = [url for url in page.loads if urlsplit(url).netloc]
        assert not foreign, (file.name, foreign)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), sheet.name


def test_formulas_are_drawn_and_code_is_not_taken_for_them(site: Path) -> None:
    pages = {file.relative_to(site).as_posix(): file.read_text(encoding="utf-8") for file in site.rglob("*.html")}
    assert not [name for name, text in pages.items() if "arithmatex" in text]
    assert pages["explanation/proved-probability.html"].count('<math xmlns="http://www.w3.org/1998/Math/MathML"') > 40
    assert "<msqrt>" in pages["index.html"]
    assert "<math" not in pages["reference/cli.html"] + pages["tutorials/release-gate.html"]  # $ begins commands there


def test_every_example_is_listed_and_users_find_theirs(site: Path) -> None:
    html = (site / "examples.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr>\s*<td>(.*?)</td>\s*<td><code>(.*?)</code><br ?/?>(.*?)</td>", html)
    assert sorted(script for _, script, _ in rows) == sorted(
        f"examples/{p.name}" for p in (ROOT / "examples").glob("*.py")
    )
    assert {who for who, _, _ in rows} >= {
        "machine learning engineers", "data scientists", "control engineers", "safety assessors", "researchers"
    }  # fmt: skip
    assert all(what for _, _, what in rows)


def test_pages_cite_no_private_names() -> None:
    """A reader cannot import what begins with an underscore, unless the page itself defines it."""
    for source in DOCS.rglob("*.md"):
        text = re.sub(r"```.*?```", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.findall(r"`(?:[\w.]+\.)?_[a-zA-Z]\w*(?:\(\))?`", text), source


def test_links_and_anchors_of_the_built_pages_exist(site: Path) -> None:
    pages = dict(_pages(site))
    for file, page in pages.items():
        if file.name == "404.html":  # its links are absolute, from the root of wherever the site is put
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{file.name} links to {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{file.name} links to {link}"


def test_every_page_is_in_the_navigation(site: Path) -> None:
    links = dict(_pages(site))[site / "index.html"].links
    reached = {(site / unquote(urlsplit(link).path)).resolve() for link in links}
    for source in DOCS.rglob("*.md"):
        built = (site / source.relative_to(DOCS)).with_suffix(".html")
        assert built.is_file(), source
        assert built in reached, f"{source.relative_to(ROOT)} is not in nav of mkdocs.yml"


def _leaves(command: object, name: str) -> Iterator[tuple[str, object]]:
    children = getattr(command, "commands", {})
    for child in children.values():
        yield from _leaves(child, f"{name} {child.name}")
    if not children:
        yield name, command


def test_the_command_line_reference_is_complete(site: Path) -> None:
    html = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    parts = re.findall(r"<h2 id=[^>]*><code>(.*?)</code>.*?</h2>(.*?)(?=<h2 |</article>)", html, re.DOTALL)
    sections = {name: re.sub(r"<[^>]+>", "", body) for name, body in parts}
    leaves = dict(_leaves(typer.main.get_command(app), "rarely"))
    assert len(leaves) >= 7
    for name, command in leaves.items():
        assert name in sections, f"{name} is missing"
        for param in command.params:  # type: ignore[attr-defined]
            if param.param_type_name == "option" and not param.hidden:
                assert param.opts[-1] in sections[name], f"{name} {param.opts[-1]} is missing"


def test_the_python_reference_is_complete(site: Path) -> None:
    page = dict(_pages(site))[site / "reference" / "api.html"]
    missing = [name for name in rarely.__all__ if f"rarely.{name}" not in page.anchors]
    assert not missing, "add them to docs/reference/api.md"
    undocumented = [name for name in rarely.__all__ if not (getattr(rarely, name).__doc__ or "").strip()]
    assert not undocumented


def _problem(threshold: float) -> rarely.Problem:
    return rarely.Problem(
        torch.nn.Identity().eval(), lambda x, y: x[:, 0] - threshold, rarely.Box([0.0, 0.0], [1.0, 1.0]), "example"
    )


@pytest.mark.parametrize(
    ("threshold", "estimator"),
    [
        (0.9, rarely.MonteCarlo(samples=2000)),
        (1 - 1e-5, rarely.Splitting(particles=100)),
        (1 - 1e-5, rarely.Auto()),
        (2.0, rarely.MonteCarlo(samples=100)),  # no violation: infinities
        (2.0, rarely.Splitting(particles=100, log_p_min=-20.0)),  # levels
        (1 - 1e-5, rarely.ImportanceSampling()),
    ],
)
def test_estimates_meet_the_schema(threshold: float, estimator: object) -> None:
    data = json.loads(rarely.estimate(_problem(threshold), estimator).to_json())  # type: ignore[call-overload]
    jsonschema.Draft202012Validator(SCHEMA).validate(data)


def test_estimates_of_mixtures_and_networks_meet_the_schema() -> None:
    network = torch.nn.Linear(2, 1).eval()
    parts = [rarely.Box([0.0, 0.0], [1.0, 1.0]), rarely.Box([0.5, 0.5], [1.5, 1.5])]
    mixture = rarely.Problem(network, lambda x, y: x[:, 0] - 1.499, rarely.Mixture(parts, [0.9, 0.1]))
    proved = rarely.Problem(network, rarely.LinearConstraint([[-1.0]], [-100.0]), parts[0])
    for estimate in rarely.estimate([mixture, proved]):
        data = json.loads(estimate.to_json())
        jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert data["outcome"] == "proved safe"


def test_the_schema_knows_every_field_of_every_record() -> None:
    shapes = {
        s["properties"]["kind"]["const"]: s for s in SCHEMA["$defs"].values() if "kind" in s.get("properties", {})
    }
    records = {kind.__name__.lower(): kind for kind in get_args(Evidence)}
    statistics = {kind.__name__: kind for kind in (Binomial, Replicates, LogNormal, Sum, Exceeded)}
    assert shapes.keys() == records.keys() | statistics.keys()
    for name, kind in {**records, **statistics}.items():
        said = {"sentence", "calls"} if name in records else set()
        said |= {"best"} if name == "found" else {"input", "score"} if name == "nearest" else set()
        own = {field.name for field in dataclasses.fields(kind)} - ({"witnesses"} if name == "nearest" else set())
        assert set(shapes[name]["properties"]) == {"kind", *said, *own}


def test_the_schema_refuses_what_is_not_an_estimate() -> None:
    check = jsonschema.Draft202012Validator(SCHEMA)
    good = json.loads(rarely.estimate(_problem(0.9), rarely.MonteCarlo(samples=100)).to_json())
    for broken in (
        {**good, "surprise": 1},
        {**good, "schema": 1},
        {**good, "evidence": [{**good["evidence"][0], "kind": "rumour"}]},
        {**good, "log_prob": "minus infinity"},
        {**good, "interval": {**good["interval"], "confidence": 95}},
        {key: value for key, value in good.items() if key != "notes"},
    ):
        assert not check.is_valid(broken)
    assert SCHEMA["properties"]["outcome"]["enum"] == [outcome.value for outcome in rarely.Outcome]
