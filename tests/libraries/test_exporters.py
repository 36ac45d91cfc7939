"""The exporters of docs/stats.md, read back with the libraries that they export to."""

from __future__ import annotations

import ast
import json
import math
import re
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import Prioritized, ReplayBuffer, SharedReplay
from cpprb_like.buffers import Mixture
from cpprb_like.limiters import SampleToInsertRatio
from cpprb_like.views import NStep

PAGE = Path(__file__).parents[2] / "docs" / "stats.md"
FIELDS: dict[str, Any] = {
    "obs": {"shape": 2},
    "rew": {"shape": ()},
    "next_obs": {"shape": 2},
    "done": {"shape": (), "dtype": bool},
}
SOURCES = ["buffer", "empty", "view", "mixture", "shared", "learner"]


def exporter(name: str) -> Any:
    """A function of the page."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [
        ast.get_source_segment(block, node)
        for block in blocks
        for node in ast.parse(block).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert len(found) == 1, name
    names: dict[str, Any] = {}
    exec(str(found[0]), names)
    return names[name]


def steps(n: int) -> dict[str, Any]:
    """Steps in episodes of ten."""
    obs = np.arange(2.0 * n).reshape(n, 2)
    return {"obs": obs, "rew": np.ones(n), "next_obs": obs + 2, "done": np.arange(n) % 10 == 9}


def buffer() -> ReplayBuffer:
    """A buffer with priorities of which rows were drawn."""
    rb = ReplayBuffer(100, FIELDS, terminated="done", sampler=Prioritized(), seed=0)
    rb.add(**steps(50))
    batch = rb.sample(8)
    rb.update_priorities(batch["indexes"], np.ones(8))
    return rb


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Something that has ``stats``."""
    with ExitStack() as stack:
        if request.param == "buffer":
            yield buffer()
        elif request.param == "empty":
            yield ReplayBuffer(100, FIELDS)
        elif request.param == "view":
            yield buffer().view(NStep(3, rew="rew", next="next_obs"))
        elif request.param == "mixture":
            mixture = Mixture({"demo": buffer(), "online": buffer()}, {"demo": 1, "online": 3})
            mixture.sample(8)
            yield mixture
        else:
            limiter = SampleToInsertRatio(4.0, 10, 1000.0)
            shared = stack.enter_context(SharedReplay(100, FIELDS, writers=1, limiter=limiter))
            stack.enter_context(shared.actor()).add(**steps(50))
            learner = stack.enter_context(shared.learner(Prioritized(), seed=0))
            learner.sample(8)
            yield shared if request.param == "shared" else learner


def known(source: Any) -> dict[str, float]:
    """The numbers that are numbers: an age before the first draw is none."""
    found = {name: float(value) for name, value in source.stats().items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def close(one: dict[str, float], other: dict[str, float], rtol: float = 1e-12) -> bool:
    """Whether both have the same names and numbers, but for what changes between two looks."""
    return one.keys() == other.keys() and all(
        math.isclose(one[name], other[name], rel_tol=rtol, abs_tol=1e-9) for name in one
    )


def test_prometheus(source: Any) -> None:
    """The parser of Prometheus's own client reads the text, with labels too."""
    parser = need("prometheus_client.parser", "make test-integrations")
    for labels, expected in (("", {}), ('{run="a b",host="0"}', {"run": "a b", "host": "0"})):
        text = exporter("to_prometheus")(source, labels)
        families = list(parser.text_string_to_metric_families(text))
        samples = [sample for family in families for sample in family.samples]
        assert all(sample.labels == expected for sample in samples)
        assert {family.type for family in families} == {"gauge"}
        found = {sample.name: sample.value for sample in samples}
        names = {"replay_" + name.replace(".", "_"): one for name, one in known(source).items()}
        assert close(found, names)


def test_tensorboard(source: Any, tmp_path: Path) -> None:
    """TensorBoard's own reader finds the numbers, as 32-bit floats."""
    writers = need("torch.utils.tensorboard", "make test-integrations")
    readers = need("tensorboard.backend.event_processing.event_accumulator", "as well")
    with writers.SummaryWriter(tmp_path) as writer:
        exporter("to_tensorboard")(writer, source, 7)
    reader = readers.EventAccumulator(str(tmp_path)).Reload()
    found = {}
    for tag in reader.Tags()["scalars"]:
        (event,) = reader.Scalars(tag)
        assert event.step == 7
        found[tag.removeprefix("replay/")] = event.value
    assert close(found, known(source), 1e-6)


def logged_offline(path: Path) -> Iterator[bytes]:
    """The records of a file that a run without a network leaves: a log of LevelDB after 7 bytes."""
    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        if place + 7 + length > len(data):
            return  # it is being written
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_wandb(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a run without a network has the numbers, at the step."""
    wandb = need("wandb", "make test-integrations")
    messages = need("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(dir=tmp_path, project="replay") as run:
        exporter("to_wandb")(run, source, 7)
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    histories: list[Any] = []
    end = time.monotonic() + 20.0
    while not histories and time.monotonic() < end:  # a process of theirs writes the file
        records = [messages.Record.FromString(record) for record in logged_offline(path)]
        histories = [one.history for one in records if one.WhichOneof("record_type") == "history"]
        time.sleep(0.05)
    (history,) = histories
    items = {"/".join(one.nested_key) or one.key: one.value_json for one in history.item}
    found = {
        name.removeprefix("replay/"): float(json.loads(value))
        for name, value in items.items()
        if name.startswith("replay/")
    }
    assert history.step.num == 7
    assert close(found, known(source))


def test_mlflow(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's client finds the numbers in the store."""
    mlflow = need("mlflow", "make test-integrations")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("replay")
    with mlflow.start_run() as run:
        exporter("to_mlflow")(mlflow, source, 7)
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    found = {name.removeprefix("replay/"): value for name, value in metrics.items()}
    assert close(found, known(source))
