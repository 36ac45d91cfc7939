"""Write docs/report.svg, the picture of a report in README.md: ``python tools/report_picture.py``.

It shows charts and findings of the steps of an agent that learns to balance Gymnasium's CartPole,
and whose program has two faults. It needs gymnasium.
"""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from cpprb_like import PrioritizedReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.report import _charts, _page

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "report.svg"
STEPS, WIDTH = 30_000, 1010


def buffer_with_faults() -> Any:
    """Time limits are stored as terminations, and one observation is NaN."""
    env = GymnasiumRecorder(gymnasium.make("CartPole-v1", max_episode_steps=300))
    good = env.attach(PrioritizedReplayBuffer(STEPS, env.env_dict, seed=0))
    obs, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        balance = int(obs[2] + 0.3 * obs[3] + 0.05 * obs[1] + 0.02 * obs[0] > 0)
        obs, *_ = env.step(balance if rng.random() < step / STEPS else int(rng.integers(2)))
    rows: Any = good.get_all_transitions()
    rows["terminated"] |= rows["truncated"]
    rows["truncated"][:] = False
    rows["obs"][12_345, 2] = np.nan
    rb = PrioritizedReplayBuffer(STEPS, env.env_dict, seed=0)
    rb.add(**rows)
    rb.update_priorities(np.arange(STEPS), rng.lognormal(0, 1.5, STEPS))
    return rb


def picture(document: dict[str, Any]) -> str:
    """Findings, and four charts below them."""
    (buffer,) = document["buffers"]
    parts = ['<text class="head" x="20" y="34">rb.report("report.html")</text>']
    y = 50
    for one in buffer["findings"]:
        message = html.escape(f"{one['name'].replace('-', ' ')}  {one['field']}: {one['message']}")
        parts += [
            f'<rect class="warning" x="20" y="{y}" width="{WIDTH - 40}" height="34" rx="6"/>',
            f'<rect class="edge" x="20" y="{y}" width="5" height="34"/>',
            f'<text class="said" x="36" y="{y + 22}">&#9888; {message}</text>',
        ]
        y += 42
    series = buffer["series"]
    charts = {
        "Returns of episodes": _charts.curve("returns", series["returns"]),
        "Weights of rows by priority (log10)": _charts.bars("weights", series["weights"]),
        "obs": _charts.bars("obs", series["histograms"]["obs"]),
    }
    wide = (WIDTH - 40 - 2 * 12) / 3
    for k, (heading, chart) in enumerate(charts.items()):
        x = 20 + k * (wide + 12)
        place = f'<svg x="{x + 8:.0f}" y="{y + 32}" width="{wide - 16:.0f}" height="138" '
        parts += [
            f'<rect class="card" x="{x:.0f}" y="{y}" width="{wide:.0f}" height="178" rx="6"/>',
            f'<text class="title" x="{x + 14:.0f}" y="{y + 24}">{heading}</text>',
            re.sub(r"^<svg ", place, chart),
        ]
    height = math.ceil(y + 178 + 16)
    style = _page.STYLE + (
        ".cpprb-report{padding:0}"
        ".cpprb-report .back{fill:var(--page)}"
        ".cpprb-report .card{fill:var(--card);stroke:var(--edge)}"
        ".cpprb-report .warning{fill:var(--warnback)}.cpprb-report .edge{fill:var(--warn)}"
        ".cpprb-report .said{font-size:14px;fill:var(--ink)}"
        ".cpprb-report .title{font-size:14px;font-weight:600;fill:var(--ink)}"
        ".cpprb-report .head{font:15px ui-monospace,monospace;fill:var(--ink)}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cpprb-report" width="{WIDTH}" '
        f'height="{height}" viewBox="0 0 {WIDTH} {height}"><style>{style}</style>'
        f'<rect class="back" width="{WIDTH}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(buffer_with_faults().describe().to_dict()), encoding="utf-8")
