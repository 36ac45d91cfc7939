"""Measure replays of a Ray cluster beside others: ``python benchmarks/cluster.py``.

Each measurement is a process in the environment of its package: steps added and batches drawn a
second, in turns, and the memory of the process over time. The second node is a second set of Ray's
processes on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import between_processes
from between_processes import BATCHES, FIELDS, step_of
from environments import Environment, answer, this_machine
from reports.wording import digits, grid
from result_files import write

# Before Ray is imported: it listens on the loopback alone.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "cluster.json"
SIZES = {"small": 50_000, "images": 4_000}  # steps that are held
CARRIED = 16  # batches of an answer of a host, by default
BLOCK = 64  # steps that RLlib's and TorchRL's buffers are given in a call
SECONDS, TURNS = 1.0, 6  # of each call, in turns with the others
PAUSE = 0.1  # seconds in which what the call before left behind ends
WATCHED = 6  # seconds in which the memory of the process is looked at
LIMIT = 300.0  # seconds of a measurement
IPS = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
Call = Callable[[], object]
Calls = dict[str, tuple[Call, int, Call]]  # steps or items of each, and what waits for their end


@contextlib.contextmanager
def nodes(count: int) -> Iterator[Any]:
    """Ray's processes of so many nodes; their names, this process's first."""
    ray = importlib.import_module("ray")
    cluster_utils = importlib.import_module("ray.cluster_utils")
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)  # Ray notes there which is the newest
    room = {"object_store_memory": 1 << 30, "num_cpus": 2}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**IPS, **room})
    for _ in range(count - 1):
        cluster.add_node(node_ip_address="127.0.0.1", **room)
    ray.init(address=cluster.address, log_to_driver=False, _node_ip_address="127.0.0.1")
    own = ray.get_runtime_context().get_node_id()
    found: list[str] = []
    while len(found) < count - 1:
        found = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]
    for name in found:  # the own node knows them when a task has run there
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(name, soft=False)
        giver = ray.remote(num_cpus=0)(Giver).options(scheduling_strategy=there).remote("small")
        ray.get(giver.give.remote())
    try:
        yield [own, *found]
    finally:
        ray.shutdown()
        cluster.shutdown()


def batch_of(case: str) -> dict[str, Any]:
    """Arrays as a batch has them."""
    np = importlib.import_module("numpy")
    n = BATCHES[case]
    return {
        name: np.ones((n, *np.atleast_1d(spec["shape"])), spec["dtype"])
        for name, spec in FIELDS[case].items()
    }


@contextlib.contextmanager
def ours(case: str, *, at_other: bool) -> Iterator[Calls]:
    """``ClusterReplay``, in turns with ``SharedReplay`` and with Ray's put and get."""
    ray = importlib.import_module("ray")
    from cpprb_like.processes import SharedReplay  # noqa: PLC0415
    from cpprb_like.ray import ClusterActor, ClusterReplay  # noqa: PLC0415
    from cpprb_like.samplers import Prioritized  # noqa: PLC0415

    with nodes(1 + at_other) as names:
        replay = ClusterReplay(SIZES[case], FIELDS[case], writers=1, hosts=[names[-1]])
        actor, step, n = replay.actor(), step_of(case), BATCHES[case]
        if isinstance(actor, ClusterActor) != at_other:
            raise RuntimeError("Ray placed the host on another node than was asked for")
        learner = replay.learner(Prioritized(), seed=0)
        shared = SharedReplay(SIZES[case], FIELDS[case], writers=1)
        other = shared.actor()
        for _ in range(SIZES[case]):
            other.add(**step)
        alone = shared.learner(Prioritized(), seed=0)
        batch = batch_of(case)
        if at_other:
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(names[1], False)
            giver = ray.remote(num_cpus=0)(Giver).options(scheduling_strategy=there).remote(case)
            carry = partial(ahead, giver, deque())
        else:
            carry = partial(put_and_get, ray, batch)
        yield {
            "adds": (lambda: actor.add(**step), 1, actor.flush if at_other else nothing),
            "draws": (lambda: learner.sample(n), n, nothing),
            "adds of SharedReplay": (lambda: other.add(**step), 1, nothing),
            "draws of SharedReplay": (lambda: alone.sample(n), n, nothing),
            "Ray's": (carry, CARRIED * n if at_other else n, nothing),
        }
        replay.close()


def nothing() -> None:
    """What waits for a call that has its effect at once."""


class Giver:
    """A Ray actor that answers with as many batches as a host does."""

    def __init__(self, case: str) -> None:
        np = importlib.import_module("numpy")
        self.batch = {name: np.concatenate([one] * CARRIED) for name, one in batch_of(case).items()}

    def give(self) -> dict[str, Any]:
        """The batches."""
        return self.batch


def ahead(giver: Any, asked: deque[Any]) -> object:
    """An answer of a call that was made two calls before."""
    ray = importlib.import_module("ray")
    while len(asked) < 3:
        asked.append(giver.give.remote())
    return ray.get(asked.popleft())


def put_and_get(ray: Any, batch: Mapping[str, Any]) -> object:
    """What carries a batch to another process of the node."""
    return ray.get(ray.put(batch))


@contextlib.contextmanager
def rllib(case: str) -> Iterator[Calls]:
    """RLlib's prioritized replay of episodes, in the process itself."""
    buffers = importlib.import_module("ray.rllib.utils.replay_buffers")
    episodes = importlib.import_module("ray.rllib.env.single_agent_episode")
    buffer = buffers.PrioritizedEpisodeReplayBuffer(SIZES[case], alpha=0.6)
    obs, n = step_of(case)["obs"], BATCHES[case]

    def add() -> None:
        episode = episodes.SingleAgentEpisode(
            id_=uuid.uuid4().hex,
            observations=[obs.copy() for _ in range(BLOCK + 1)],
            actions=[1] * BLOCK,
            rewards=[0.5] * BLOCK,
            terminated=True,
            len_lookback_buffer=0,
        )
        buffer.add(episode)

    yield {
        "adds": (add, BLOCK, nothing),
        "draws": (
            lambda: buffer.sample(n, n_step=1, beta=0.4, sample_episodes=True),
            n,
            nothing,
        ),
    }


@contextlib.contextmanager
def torchrl(case: str) -> Iterator[Calls]:
    """TorchRL's buffer in a Ray actor."""
    torch, data = importlib.import_module("torch"), importlib.import_module("torchrl.data")
    tensordict = importlib.import_module("tensordict")
    n = BATCHES[case]
    with nodes(1):
        buffer = data.RayReplayBuffer(
            storage=partial(data.LazyTensorStorage, SIZES[case]),
            batch_size=n,
            ray_init_config={"ignore_reinit_error": True},
            remote_config={"num_cpus": 0},
        )
        np = importlib.import_module("numpy")
        step = {name: torch.as_tensor(np.asarray(v)) for name, v in step_of(case).items()}
        block = {name: torch.stack([one] * BLOCK) for name, one in step.items()}
        steps = tensordict.TensorDict(block, batch_size=[BLOCK])
        yield {
            "adds": (lambda: buffer.extend(steps), BLOCK, nothing),
            "draws": (buffer.sample, n, nothing),
        }


@contextlib.contextmanager
def reverb(case: str) -> Iterator[Calls]:
    """Reverb's server, writer and dataset, as ``processes.py`` measures them."""
    package = between_processes.Reverb(case, 1)
    add, step = package.adder(), step_of(case)
    drawn: list[Callable[[], object]] = []

    def draw() -> None:
        if not drawn:  # when there are steps
            package.finish()
            drawn.append(package.sampler())
        drawn[0]()

    yield {
        "adds": (partial(add, step), 1, package.finish),
        "draws": (draw, BATCHES[case], nothing),
    }
    package.close()


PACKAGES: dict[str, tuple[str | None, Callable[[str], Any]]] = {
    "cpprb_like, own node": ("cluster/ray", partial(ours, at_other=False)),
    "cpprb_like, other node": ("cluster/ray", partial(ours, at_other=True)),
    "RLlib": ("cluster/ray", rllib),
    "TorchRL": ("cluster/ray", torchrl),
    "Reverb": ("processes/reverb", reverb),
}


def measure(package: str, case: str) -> dict[str, float]:
    """Steps or items a second of each call, and megabytes that the process grew by."""
    with PACKAGES[package][1](case) as calls:
        add, steps, wait = calls["adds"]
        for _ in range(SIZES[case] // steps):
            add()
        wait()
        rates: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(TURNS + 1):
            for name, (call, items, wait) in list(calls.items())[:: (-1) ** turn]:
                time.sleep(PAUSE)
                found = items * rate(call, wait)
                if turn:  # the first one warms up
                    rates[name].append(found)
        found = {name: statistics.median(values) for name, values in rates.items()}
        for name, (one, other) in RATIOS.items():
            if other in rates:  # machines are faster at one time than at another
                pairs = zip(rates[one], rates[other], strict=True)
                found[name] = statistics.median(a / b for a, b in pairs)
        begun = time.monotonic()
        memory: list[float] = []
        while (passed := time.monotonic() - begun) < WATCHED:
            add()
            calls["draws"][0]()
            if len(memory) <= passed:
                gc.collect()
                memory.append(resident())
        return found | {"growth": memory[-1] - memory[len(memory) // 5]}


def rate(call: Call, wait: Call) -> float:
    """Calls a second, of calls whose effects are complete."""
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < SECONDS or not count:
        call()
        count += 1
    wait()
    return count / (time.perf_counter() - begun)


def resident() -> float:
    """Megabytes of memory of this process that no other process shares."""
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Measure in turns, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, help="a package and a case, in this process")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--only", default="", help="in names of packages; others' results stay")
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".bench")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    wanted = [(name, case) for case in SIZES for name in PACKAGES if options.only in name]
    reasons: dict[str, str | None] = {}
    rounds: list[list[dict[str, Any]]] = [[] for _ in wanted]
    for _ in range(options.rounds):
        for (name, case), found in zip(wanted, rounds, strict=True):
            environment = Environment(options.folder, str(PACKAGES[name][0]))
            if name not in reasons:
                reasons[name] = environment.make()
            reason = reasons[name]
            one = {"error": reason} if reason else None
            one = one or answer(
                environment.python, "cluster.py", "--one", name, case, timeout=LIMIT
            )
            print(name, case, one, file=sys.stderr)
            found.append(one)
    cases = [
        {"package": name, "case": case} | median(found)
        for (name, case), found in zip(wanted, rounds, strict=True)
    ]
    if options.only and options.out.exists():
        before = json.loads(options.out.read_text(encoding="utf-8"))["cases"]
        cases = [one for one in before if options.only not in one["package"]] + cases
    results = {"machine": this_machine(), "rounds": options.rounds, "cases": cases}
    write(options.out, results)
    print(cluster_tables(results))


def median(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of the rounds; or the reason why there are none."""
    good = [one for one in found if "error" not in one]
    if not good:
        return found[0]
    return {key: statistics.median(one[key] for one in good) for key in good[0]}


def cluster_tables(results: dict[str, Any]) -> str:
    """The results as tables of docs/cluster.md."""
    found = {(one["package"], one["case"]): one for one in results["cases"]}
    rows = [["", *(f"{case}, {what}" for case in SIZES for what in KEYS.values())]]
    for name in PACKAGES:
        ones = [found.get((name, case), {}) for case in SIZES]
        cells = [digits(one[key]) if key in one else "-" for one in ones for key in KEYS]
        rows.append([name, *cells])
    lines = [
        f"- {name}, {case}: batches come with {one[OF_RAYS]:.2f} of the bytes a second of Ray's "
        f"own; `add` takes {1 / one[OF_SHARED]:.2f} of a `SharedReplay`'s time."
        for (name, case), one in found.items()
        if OF_RAYS in one
    ]
    errors = [f"{name}: {one['error']}." for (name, _), one in found.items() if "error" in one]
    machine = results["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['date']}."
    return "\n\n".join([grid(rows), "\n".join(lines), " ".join([where, *errors])])


KEYS = {"adds": "steps added/s", "draws": "items drawn/s", "growth": "MB more"}
OF_RAYS, OF_SHARED = "draws of Ray's", "adds of SharedReplay's"
RATIOS = {OF_RAYS: ("draws", "Ray's"), OF_SHARED: ("adds", "adds of SharedReplay")}


if __name__ == "__main__":
    main()
