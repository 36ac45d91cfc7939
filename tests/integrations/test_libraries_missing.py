"""What a module of a learning library says where that library is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Module: the package that is not there, its name in the sentence, and the extra that has it.
LIBRARIES = {
    "rllib": ("ray", "Ray's RLlib", "rllib"),
    "stable_baselines3": ("stable_baselines3", "Stable-Baselines3", "stable-baselines3"),
    "tianshou": ("tianshou", "Tianshou", "tianshou"),
    "torch": ("torch", "PyTorch", "torch"),
    "torchrl": ("tensordict", "TorchRL's tensordict", "torchrl"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(name: str) -> None:
    """One sentence that says what to install."""
    absent, package, extra = LIBRARIES[name]
    program = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        f"try:\n    import cpprb_like.integrations.{name}\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    start = f"cpprb_like.integrations.{name} needs {package} (pip install 'cpprb_like[{extra}]')"
    assert done.stdout.startswith(start), done.stdout + done.stderr
