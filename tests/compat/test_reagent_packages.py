"""What the front for ReAgent does where PyTorch or pandas is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cpprb_like

pytestmark = pytest.mark.slow


def test_without_packages_a_sentence_says_so() -> None:
    """All modules can be imported, the sum tree works, and the others say what they need."""
    program = """
import sys
sys.modules["torch"] = sys.modules["pandas"] = None
from cpprb_like.compat.reagent import (
    PrioritizedReplayBuffer, ReplayBuffer, SumTree, replay_buffer_to_pre_timeline_df
)
tree = SumTree(5)
tree.set(3, 1.0)
assert tree.sample() == 3
calls = {
    "PyTorch": [ReplayBuffer, lambda: PrioritizedReplayBuffer(1, 10, 1)],
    "pandas": [lambda: replay_buffer_to_pre_timeline_df(True, None)],
}
for name, makers in calls.items():
    for make in makers:
        try:
            make()
        except ImportError as error:
            assert name in str(error), error
        else:
            raise AssertionError(name)
"""
    place = Path(cpprb_like.__file__).parents[1]
    subprocess.run([sys.executable, "-c", program], cwd=place, check=True)
