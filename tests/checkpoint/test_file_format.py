"""A reader that knows nothing but docs/file-format.md reads what was saved."""

from __future__ import annotations

import copy
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import Cell, build
from saved_cases import add, digest, digest_of_copy, make, update

from cpprb_like import ReplayBuffer
from cpprb_like._fields.layout import Layout
from cpprb_like._files.json_codec import dtype_from_json, dtype_to_json
from cpprb_like.checkpoint import _manifest, _segments
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._segments import record_dtype

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
    """Rows, next values and edited rows, over several saves."""
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


SMALL = {
    "obs": {"shape": 4},
    "act": {"shape": (), "dtype": "i8"},
    "next_obs": {"shape": 4},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


@pytest.mark.parametrize(
    "fields",
    [SMALL, {"obs": {"shape": 15, "dtype": "u1"}}, {"empty": {"shape": 0}}, {"one": {"shape": 16}}],
    ids=["45 of 64 bytes", "all but flags", "no bytes", "next to nothing"],
)
def test_small_rows_take_their_bytes_and_flags(fields: dict[str, Any], tmp_path: Path) -> None:
    """Nothing pads them in a file; where they are spread again, what pads them stays zero."""
    rb = ReplayBuffer(1000, fields)
    declared = sum(field.nbytes for field in rb.schema.fields)
    values = np.random.default_rng(0).integers(0, 2, (1200, declared), np.uint8)
    columns, at = {}, 0
    for field in rb.schema.fields:
        own = np.ascontiguousarray(values[:, at : at + field.nbytes])
        shape = (len(own), *field.shape)
        columns[field.name] = own.view(field.dtype).reshape(shape) if own.size else np.zeros(shape)
        at += field.nbytes
    rb.add(**columns)
    rb.save(tmp_path)
    (segment,) = _manifest.read(Disk(tmp_path), 1).rings[0].segments
    part = segment.parts["records"]
    array = np.load(tmp_path / part.file.name)
    assert (part.first, part.stop, array.dtype.itemsize) == (200, 1200, declared + 1)

    loaded = ReplayBuffer.load(tmp_path)

    records = loaded._layout.records(loaded._arena)
    np.testing.assert_array_equal(records, rb._layout.records(rb._arena))
    assert not records[:, declared + 1 :].any()


def padded_dtype(layout: Layout) -> np.dtype[Any]:
    """The records in a file as they are in memory."""
    fields: Any = record_dtype(layout).fields
    return np.dtype(
        {
            "names": list(fields),
            "formats": [dtype for dtype, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": layout.record[1],
        }
    )


@pytest.mark.parametrize("kind", ["plain", "prioritized", "next_of+stacks+n_envs", "Nstep"])
def test_a_folder_with_padding_is_read_and_gone_on_with(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all were once: into the same size and another, and saved to again."""
    rb = make(kind, 60)
    with monkeypatch.context() as patch:
        patch.setattr(_segments, "SEGMENT_NBYTES", 1 << 11)
        patch.setattr(_segments, "record_dtype", padded_dtype)
        add(rb, 70)
        rb.save(tmp_path)
        update(rb, 3)
        rb.save(tmp_path)
    record = rb._layout.record[1]
    (ring,) = _manifest.read(Disk(tmp_path), 2).rings
    found = [
        part
        for segment in ring.segments
        for name, part in segment.parts.items()
        if name == "records"
    ]
    assert {part.file.dtype.itemsize for part in found} == {record}

    copy.deepcopy(rb).save(tmp_path / "new")

    loaded = ReplayBuffer.load(tmp_path)
    small = ReplayBuffer.load(tmp_path, size=30)

    assert digest(loaded) == digest_of_copy(rb)
    assert digest(small) == digest(ReplayBuffer.load(tmp_path / "new", size=30))
    add(loaded, 5)
    loaded.save(tmp_path)
    assert digest(ReplayBuffer.load(tmp_path)) == digest(loaded)


def test_fields_of_another_byte_order_are_refused(tmp_path: Path) -> None:
    """The message names them."""
    make("plain", 60).save(tmp_path)
    (path,) = tmp_path.glob("state-*.json")
    state = json.loads(path.read_text("utf-8").splitlines()[0])
    field = state["rings"][0]["layout"]["options"]["schema"]["fields"][0]
    field["dtype"] = dtype_to_json(dtype_from_json(field["dtype"]).newbyteorder())
    text = json.dumps(state).encode()
    path.write_bytes(text + b"\n%08x\n" % zlib.crc32(text))
    with pytest.raises(ValueError, match=rf"{field['name']}.*machine of another byte order"):
        ReplayBuffer.load(tmp_path)
