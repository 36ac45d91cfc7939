"""What a save costs beside its bytes: it reads no manifest that it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import _manifest, load

pytestmark = pytest.mark.once

FIELDS: dict[str, Any] = {"x": {"shape": ()}, "done": {"shape": ()}}


def test_a_save_reads_one_manifest_for_any_number_of_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each save read all of them twice: 131 ms with 100 states."""
    rb = ReplayBuffer(100, FIELDS, seed=0)
    read, numbers = _manifest.read, []

    def counted(disk: Any, number: int) -> Any:
        numbers.append(number)
        return read(disk, number)

    monkeypatch.setattr(_manifest, "read", counted)
    for number in range(1, 13):
        rb.add(x=number, done=0)
        numbers.clear()
        rb.save(tmp_path, keep=8, sync=False)
        assert numbers == [number - 1] * (number > 1)
    states = [int(path.name[6:12]) for path in sorted(tmp_path.glob("state-*"))]
    assert states[-8:] == list(range(5, 13))
    for number in states:
        assert load(tmp_path, state=number).get_all_transitions()["x"].tolist() == list(
            range(1, number + 1)
        )


def test_a_manifest_of_another_folder_of_the_same_name_is_read(tmp_path: Path) -> None:
    """What is known of a state holds for its file, and not for a later file of that name."""
    for turn in range(3):
        folder = tmp_path / "folder"
        for n in range(1, 5):
            rb = ReplayBuffer(100, FIELDS, seed=0)  # takes over no file of the state before
            rb.add(x=np.full(3, turn), done=np.zeros(3))
            rb.save(folder, keep=2 + turn, sync=False)
            assert load(folder).get_all_transitions()["x"].tolist() == [turn] * 3
            oldest = load(folder, state=max(1, n - 1))
            assert oldest.get_all_transitions()["x"].tolist() == [turn] * 3
        folder.rename(tmp_path / f"old{turn}")
