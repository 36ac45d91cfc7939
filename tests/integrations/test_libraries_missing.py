"""What a module of a learning library says where that library is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = {
    "stable_baselines3": ("Stable-Baselines3", "stable-baselines3"),
    "torch": ("PyTorch", "torch"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(name: str) -> None:
    """One sentence that says what to install."""
    package, extra = LIBRARIES[name]
    program = (
        f"import sys; sys.modules[{name!r}] = None\n"
        f"try:\n    import cpprb_like.integrations.{name}\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    start = f"cpprb_like.integrations.{name} needs {package} (pip install 'cpprb_like[{extra}]')"
    assert done.stdout.startswith(start), done.stdout + done.stderr
