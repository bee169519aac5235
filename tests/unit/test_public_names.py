"""What `import rarely` promises."""

from __future__ import annotations

import subprocess
import sys

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
