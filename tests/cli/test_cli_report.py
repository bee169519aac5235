"""`rarely report` and `rarely plot`, on a campaign that was run and on the JSON of other commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import made_campaign as made
from rarely.cli.app import app
from rarely.demo import assets

PLAN = """
[campaign]
name = "signs & noise"
[[networks]]
path = "signs.onnx"
[[problems]]
dataset = "signs.npz"
radii = [0.3, 0.4]
classes = ["a", "<b>", "c", "d", "e", "f"]
[estimator]
method = "monte-carlo"
samples = 2000
"""


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def campaign(rarely, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    for name in ("signs.onnx", "signs.npz"):
        shutil.copy(assets() / name, folder)
    (folder / "signs.toml").write_text(PLAN)
    rarely("campaign", "run", "signs.toml", "--out", "done", "--workers", 1, cwd=folder)
    return folder / "done"


def test_a_page_about_a_campaign(rarely, campaign: Path, tmp_path: Path) -> None:
    said = rarely("report", campaign, "-o", "page.html", cwd=tmp_path).stdout
    assert said.startswith("Of 12 problems, ")
    assert "Written: page.html" in said
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>signs &amp; noise</h1>" in page
    assert "data:image/png;base64," in page
    assert "<b>" not in page.split('id="data">')[1].split("</script>")[0]
    assert "MonteCarlo(samples=2000" in page


@pytest.mark.parametrize("kind", [None, "curve", "distribution"])
@pytest.mark.parametrize("ending", ["svg", "html"])
def test_a_figure_of_a_campaign(campaign: Path, tmp_path: Path, kind: str | None, ending: str) -> None:
    file = tmp_path / f"figure.{ending}"
    done = _run("plot", campaign, "-o", file, *(["--kind", kind] if kind else []))
    assert done.exit_code == 0, done.output
    assert f"Written: {file} ({kind or 'curve'})" in done.output
    text = file.read_text(encoding="utf-8")
    assert ("radius ε" in text or r"radius \u03b5" in text) == (kind != "distribution")


def test_levels_of_results(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text(f"[{','.join(made.violated(-20.0, name=f'number {i}').to_json() for i in range(13))}]")
    file = tmp_path / "levels.svg"
    assert "13 problems have levels, too many" in _run("plot", results, "-o", file, "--kind", "levels").output
    assert _run("plot", results, "-o", file, "--kind", "levels", "--only", "number 1").exit_code == 0
    assert "number 12" in file.read_text()
    assert "number 2<" not in file.read_text()
    assert _run("plot", results, "-o", file, "--kind", "levels", "--only", "number 7", "-q").output == ""
    assert "acceptance" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--kind", "curve"], "two radii"),
        (["--only", "nobody"], "'nobody' in its name"),
        (["--size", "0.1", "3"], "inches"),
        (["-o", "figure.bmp"], "a figure is written as"),
        (["-o", "nowhere/figure.svg"], "no such folder"),
    ],
)
def test_what_cannot_be_drawn(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    result = tmp_path / "result.json"
    result.write_text(made.violated(-20.0, name="brake").to_json())
    done = _run("plot", result, *([] if "-o" in arguments else ["-o", tmp_path / "figure.svg"]), *arguments)
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.replace("│", " ").split())


def test_a_place_that_cannot_be_written(campaign: Path) -> None:
    for command, name in (("report", "page.html"), ("plot", "figure.svg")):
        done = _run(command, campaign, "-o", f"/proc/{name}")
        assert done.exit_code == 2
        assert f"/proc/{name} cannot be written" in done.output


def test_no_campaign_there(tmp_path: Path) -> None:
    for command in ("report", "plot"):
        done = _run(command, tmp_path, "-o", tmp_path / ("page.html" if command == "report" else "figure.svg"))
        assert done.exit_code == 2
        assert "there is no campaign in" in done.output
