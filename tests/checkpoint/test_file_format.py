"""A reader that knows nothing but docs/file-format.md reads what was saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import Cell, build

from cpprb_like.checkpoint import _segments

PAGE = Path(__file__).resolve().parents[2] / "docs" / "file-format.md"


def the_reader() -> Any:
    """The function of the page."""
    (block,) = re.findall(r"```python\n(import json.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = [line for line in block.partition("def read_rows")[2].splitlines() if line.strip()]
    assert len(lines) <= 40, "the page says that it is short"
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    return names["read_rows"]


@pytest.mark.parametrize("option", ["sample", "n_envs", "next_of"])
@pytest.mark.parametrize("seed", range(3))
def test_the_page_is_enough_to_read_rows(
    option: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, next values and patches, over several saves."""
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 1 << 11)
    read_rows = the_reader()
    rb = build(Cell("Uniform", "rows", option))
    rng = np.random.default_rng(seed)
    shape = (rb.n_envs,) if rb.n_envs > 1 else ()
    for t in range(1, 120):
        rb.add(
            **{
                field.name: rng.random((*shape, *field.shape)) < 0.1
                if field.dtype.kind == "b"
                else rng.integers(0, 99, (*shape, *field.shape))
                for field in rb.schema.fields
            }
        )
        if t % 7 == 0 and len(rb):
            rb.update(rb.sample(2, indexes=True)["indexes"], goal=[t, t])
        if t % 30 == 0:
            rb.save(tmp_path / "rb")
            columns = read_rows(tmp_path / "rb")
            slots = np.arange(rb.ring.written - rb.ring.stored, rb.ring.written) % rb.ring.capacity
            np.testing.assert_array_equal(columns["flags"], rb.ring.flags()[slots])
            for name in rb.schema.names:
                values = rb.stack(name, slots[:, np.newaxis])[..., 0]
                np.testing.assert_array_equal(columns[name], values, err_msg=name)
