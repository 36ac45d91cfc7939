"""Rows a second of a Ray cluster, and what limits them.

``python benchmarks/cluster_calculator.py --hosts 64 --row 28224 --batch 32`` says both.

The costs are those of this machine with ``--measure``, which compares the predictions for 1, 2 and
4 hosts with measurements. ``--simulate`` runs the same costs event by event, with hosts that are
slow and hosts that die. Not here: other packages (``cluster``).
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Costs", "adds", "draws", "needed", "simulate"]

BLOCK = 64  # steps that an actor sends in a call
DOWN, BACK = 1.0, 10.0  # seconds until a learner knows that a host has died, and it is back


@dataclass(frozen=True)
class Costs:
    """Seconds of one core, as measured on two cores of which others used a part; and a link.

    Attributes
    ----------
    call, item, byte : float
        Of a learner: for each call of a host, item of a batch and byte of it.
    host_call, host_item, host_byte : float
        Of a host, for the same.
    ray_call, ray_item, ray_byte : float
        Of Ray's processes of both machines together, for the same.
    step, block, host_step : float
        Of an actor for each step, and of a host for each block and each step.
    link : float
        Bytes a second of the link of a machine.
    """

    call: float = 600e-6
    item: float = 0.6e-6
    byte: float = 0.5e-9
    host_call: float = 600e-6
    host_item: float = 0.6e-6
    host_byte: float = 0.5e-9
    ray_call: float = 100e-6
    ray_item: float = 0.0
    ray_byte: float = 0.5e-9
    step: float = 20e-6
    block: float = 800e-6
    host_step: float = 2e-6
    link: float = 25e9 / 8


def draws(
    costs: Costs, hosts: int, row: float, batch: int, batches: int = 8, cores: int = 0
) -> dict[str, float]:
    """Items a second that a learner draws from hosts of other machines, by what limits them.

    ``row`` are its bytes. With ``cores`` learner and hosts share the cores of one machine.
    """
    items = batch * batches
    calls = hosts * (1 - (1 - 1 / hosts) ** items)  # hosts that have an item of the batches
    learner = calls * costs.call + items * (costs.item + row * costs.byte)
    all_hosts = calls * costs.host_call + items * (costs.host_item + row * costs.host_byte)
    rays = calls * costs.ray_call + items * (costs.ray_item + row * costs.ray_byte)
    if cores:
        return {
            "learner": items / learner,
            "hosts": items * min(hosts, cores) / all_hosts,
            "cores": items * cores / (learner + all_hosts + rays),
        }
    return {
        "learner": items / learner,
        "hosts": items * hosts / all_hosts,
        "ray": items / (rays / 2),  # the half of the learner's machine
        "link": costs.link / row,
    }


def adds(costs: Costs, hosts: int, actors: int, row: float) -> dict[str, float]:
    """Steps a second that actors of other machines add, by what limits them."""
    host = costs.block + BLOCK * (costs.host_step + row * costs.host_byte)
    return {
        "actors": actors / (costs.step + row * costs.byte),
        "hosts": hosts * BLOCK / host,
        "links": hosts * costs.link / row,
    }


def needed(costs: Costs, row: float, batch: int, drawn: float, added: float) -> dict[str, int]:
    """Learners, hosts, actors and links for items drawn and steps added a second."""
    hosts = learners = 1
    for _ in range(40):  # each count follows from the other
        one = min(draws(costs, hosts, row, batch, max(8, BLOCK * hosts // batch)).values())
        limit = draws(costs, 1, row, batch)["hosts"]
        host_steps = adds(costs, 1, 1, row)
        learners = int(np.ceil(drawn / one))
        own = min(host_steps["hosts"], host_steps["links"])
        hosts = int(np.ceil(drawn / min(limit, costs.link / row) + added / own))
    actors = int(np.ceil(added / adds(costs, 1, 1, row)["actors"]))
    links = int(np.ceil((drawn + added) * row / costs.link))
    return {"learners": learners, "hosts": hosts, "actors": actors, "links": links}


def simulate(
    costs: Costs,
    hosts: int,
    row: float,
    batch: int,
    batches: int = 8,
    *,
    ahead: int = 2,
    groups: int = 200,
    slow: int = 0,
    slower: float = 10.0,
    deaths: int = 0,
    seed: int = 0,
) -> float:
    """Items a second of a learner, from each call by itself.

    The learner asks ``ahead`` groups of batches before it needs them, and waits for all answers of
    the oldest. Answers queue at the hosts and on its link. ``slow`` hosts take ``slower`` times as
    long; ``deaths`` calls are never answered, and the others draw their items after ``DOWN``.
    """
    rng = np.random.default_rng(seed)
    free, back, speed = np.zeros(hosts), np.zeros(hosts), np.ones(hosts)
    speed[:slow] = slower
    dying = set(rng.choice(groups, deaths, replace=deaths > groups).tolist())
    now = link = 0.0
    ready: list[float] = []

    def ask(items: int, now: float, link: float) -> tuple[Any, float, float]:
        """The items of each host, when all hosts are asked, and when all answers are there."""
        alive = back <= now
        counts = rng.multinomial(items, alive / alive.sum())
        asked = np.flatnonzero(counts)
        sent = now + costs.call / 2 * np.arange(1, len(asked) + 1)
        work = costs.host_call + counts[asked] * (costs.host_item + row * costs.host_byte)
        done = np.maximum(sent, free[asked]) + work * speed[asked]
        free[asked] = done
        order = np.argsort(done)
        for end, nbytes in zip(done[order], counts[asked][order] * row, strict=True):
            link = max(link, end) + nbytes / costs.link
        return counts, float(sent[-1]), link

    items = batch * batches
    for group in range(groups + ahead):
        if group < groups:
            counts, asked_at, link = ask(items, now, link)
            if group in dying and (back <= now).sum() > 1:  # the last one lives
                gone = int(rng.choice(np.flatnonzero(counts)))
                back[gone] = asked_at + BACK
                _, _, link = ask(int(counts[gone]), asked_at + DOWN, link)
            now = asked_at
            ready.append(link)
        if group >= ahead:
            calls = hosts * (1 - (1 - 1 / hosts) ** items)
            take = calls * costs.call / 2 + items * (costs.item + row * costs.byte)
            now = max(now, ready[group - ahead]) + take
    return groups * items / now


# ---------------------------------------------------------------------- this machine


def measured(hosts: int, case: str, batch: int, seconds: float = 4.0) -> dict[str, float]:
    """Items a second that a learner draws from hosts of another node, and seconds of cores."""
    from between_processes import FIELDS, step_of  # noqa: PLC0415
    from cluster import SIZES, nodes  # noqa: PLC0415

    ray = import_module("ray")  # behind ``cluster``, which has it listen on the loopback
    from cpprb_like.ray import ClusterReplay  # noqa: PLC0415

    with nodes(2) as names:
        replay = ClusterReplay(SIZES[case] // 2, FIELDS[case], writers=1, hosts=[names[1]] * hosts)
        for host in range(hosts):
            with replay.actor(host=host) as actor:
                for _ in range(SIZES[case] // 2 // hosts):
                    actor.add(**step_of(case))
        learner = replay.learner(seed=0, nbytes=1e9)
        pids = ray.get([host.actor.pid.remote() for host in replay.hosts])
        own = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if is_ray(path)]
        for _ in range(40):
            learner.sample(batch)
        begun, count = (time.perf_counter(), time.process_time(), cores_of(pids), cores_of(own)), 0
        while time.perf_counter() - begun[0] < seconds:
            learner.sample(batch)
            count += batch
        ended = time.perf_counter(), time.process_time(), cores_of(pids), cores_of(own)
        passed, *used = (b - a for a, b in zip(begun, ended, strict=True))
        replay.close()
    sides = dict(zip(("", "host_", "ray_"), used, strict=True))
    return {"rate": count / passed} | {side: one / count for side, one in sides.items()}


def is_ray(path: Path) -> bool:
    """Whether a process is one of Ray's that serve a node."""
    try:
        return path.read_text(encoding="utf-8").strip() in ("raylet", "gcs_server")
    except OSError:  # it has ended
        return False


def cores_of(pids: list[int]) -> float:
    """Seconds of cores that processes have used."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in stats) / os.sysconf("SC_CLK_TCK")


def costs_of_this_machine() -> Costs:
    """The costs of draws from one host: those of two batch sizes, and of rows of two sizes."""
    few, many = (measured(1, "small", batch) for batch in (8, 256))
    images, row = measured(1, "images", 32), 28224
    found: dict[str, float] = {}
    for side in "", "host_", "ray_":
        call = max(0.0, few[side] - many[side]) / (1 / 64 - 1 / 2048)
        item = max(0.0, many[side] - call / 2048)
        byte = max(0.0, images[side] - call / 256 - item) / row
        found |= {f"{side}call": call, f"{side}item": item, f"{side}byte": byte}
    return replace(Costs(), **found)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--actors", type=int, default=64)
    parser.add_argument("--row", type=float, default=45.0, help="bytes of a row")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=8, help="of a call")
    parser.add_argument("--need", type=float, nargs=2, help="items drawn, steps added a second")
    parser.add_argument("--measure", action="store_true", help="take the costs of this machine")
    parser.add_argument("--simulate", action="store_true", help="draws, event by event")
    for one in fields(Costs):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=float)
    given = vars(parser.parse_args())
    costs = costs_of_this_machine() if given["measure"] else Costs()
    costs = replace(costs, **{k: given[k] for k in asdict(costs) if given[k] is not None})
    sizes = given["row"], given["batch"], given["batches"]
    print(costs)
    if given["measure"]:
        for hosts in (1, 2, 4):
            for case, row, batch in (("small", 45, 256), ("images", 28224, 32)):
                limits = draws(costs, hosts, row, batch, cores=os.cpu_count() or 1)
                found = measured(hosts, case, batch)["rate"]
                print(f"{hosts} hosts, {case}: {min(limits.values()):,.0f} predicted, {found:,.0f}")
        return
    print("draws", {k: f"{v:,.0f}" for k, v in draws(costs, given["hosts"], *sizes).items()})
    steps = adds(costs, given["hosts"], given["actors"], given["row"])
    print("adds", {k: f"{v:,.0f}" for k, v in steps.items()})
    if given["need"]:
        print("needed", needed(costs, *sizes[:2], *given["need"]))
    if given["simulate"]:
        tenth = max(1, given["hosts"] // 10)
        for name, options in {
            "all well": {},
            "a tenth of the hosts ten times slower": {"slow": tenth},
            "ten deaths": {"deaths": 10},
        }.items():
            print(f"{name}: {simulate(costs, given['hosts'], *sizes, **options):,.0f} items/s")


if __name__ == "__main__":
    main()
