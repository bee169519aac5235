"""What `import rarely` promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rarely


@pytest.mark.parametrize("name", rarely.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(rarely, name) is not None
    assert name in dir(rarely)


def test_about_twenty_names() -> None:
    assert len(rarely.__all__) <= 30
    assert rarely.__all__ == sorted(set(rarely.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'splat'"):
        rarely.splat  # noqa: B018


def test_importing_does_not_wait_for_torch() -> None:
    code = "import rarely, sys; rarely.__version__, rarely.__all__, dir(rarely); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_type_checkers_see_every_public_name(tmp_path: Path) -> None:
    """Under --strict a name imported for type checkers only counts as private unless it is exported explicitly."""
    user = tmp_path / "user.py"
    user.write_text("import rarely\n" + "".join(f"print(rarely.{name})\n" for name in rarely.__all__))
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "c")]
    done = subprocess.run([*command, str(user)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
