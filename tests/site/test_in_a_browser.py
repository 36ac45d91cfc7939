"""The site in a real browser: what the search finds, how many clicks an answer takes, phones."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

FIRST = 5  # results that people look at
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
# What people type, and pages that answer it.
SEARCHES = {
    "PER": ("samplers",),
    "priority weights": ("samplers",),
    "frame stack memory": ("readings",),
    "truncated": ("readings",),
    "save": ("checkpoints",),
    "GPU": ("learners",),
    "several environments": ("training", "guide"),
    "Ray": ("cluster",),
    "W&B": ("stats",),
    "HER": ("hindsight",),
    "n-step": ("readings",),
    "clear": ("guide",),
    "episodes": ("sequences", "guide"),
    "seed": ("guide",),
    "ReplayBuffer": ("reference/cpprb_like.ReplayBuffer",),
    "update_priorities": ("samplers", "reference/cpprb_like.samplers.PrioritySampler"),
    "memory": ("guide", "readings"),
    "RLlib": ("rllib", "cluster"),
    "beta": ("samplers",),
    "cpprb": ("migrating-from-cpprb",),
    "prioritized replay": ("samplers",),
    "prioritized experience replay": ("samplers",),
    "MPI": ("faq",),
    "on-policy": ("advantages",),
    "PPO": ("advantages",),
}
# What the place says that the first result leads to.
FIRST_ANSWERS = {
    "clear": r"\.clear\(\)",
    "on-policy": r"PPO[\s\S]*epoch\(",
    "MPI": r"mpi4py",
    "prioritized replay": r"Prioritized\(alpha",
    "indexes": r"handle",
}
# Where is ...? The links to click on, from the start page, and what the place then says.
QUESTIONS = {
    "what the indexes of a batch are": (
        ("Prioritized replay and other samplers", "What indexes are"), "handle|name"),
    "PER's beta": (("prioritized experience replay",), "beta"),
    "the file format of checkpoints": (("File format of checkpoints",), "manifest"),
    "the memory of frame stacks": (
        ("Next observations, stacks, n-step", "Memory"), "bytes|kB"),
    "autoreset modes": (("Guide", "Vector environments"), "(?i)autoreset|same.step"),
    "the errors of add": (("ReplayBuffer", "add"), "(?i)raises"),
    "limits of rates": (("several processes", "How often: limits"), "(?i)ratio"),
    "batches on a GPU": (("batches for a learner", "Tensors"), "(?i)cuda"),
    "how to save and go on": (("checkpoints",), r"\bload\b"),
    "RLlib": (("RLlib",), "(?i)replay_buffer_config"),
    "the way from cpprb": (("From cpprb", "Differences"), "cpprb"),
    "what a version changed": (("Changelog",), "Unreleased"),
    "the reward function of HER": (("hindsight experience replay", "The reward"), "reward"),
    "how to contribute": (("Contributing", "Tests"), "(?i)pytest|test"),
    "what threads may do": (("Guide", "Threads"), "thread"),
    "what a term means": (("Glossary",), "truncation"),
    "a data set from Minari": (("data sets", "Minari"), "Minari"),
    "what to do against a loss that explodes": (("is my data right?",), "(?i)symptom"),
    "n-step returns with Ray's cluster": (("several machines",), "ClusterReplay"),
    "the class Recency": (("Reference", "cpprb_like.samplers"), "Recency"),
    "an example with frames": (("examples",), "rainbow_frames"),
    "how to cite it": (("Questions and answers", "How do I cite it?"), "CITATION"),
}  # fmt: skip


@pytest.fixture
def pages(site: Path) -> list[str]:
    """All pages, but of those that show a source file, which are alike, one."""
    found = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))
    sources = [page for page in found if page.startswith("sources/")]
    return [page for page in found if page not in sources[1:]]


def results(browser: Any, url: str, words: str) -> list[str]:
    """The pages that the search shows for these words, best first, each once."""
    browser.get(f"{url}search.html?q={quote(words)}")
    script = """
        const status = document.querySelector("#search-results .search-summary");
        if (!status || !/found|did not match/i.test(status.textContent)) return null;
        return [...document.querySelectorAll("#search-results ul.search li > a")].map(a => a.href);
    """
    deadline = time.monotonic() + 30
    links, before = None, None
    while time.monotonic() < deadline:
        links = browser.execute_script(script)
        if links is not None and links == before:  # all of them are shown
            break
        before = links
        time.sleep(0.1)
    assert links is not None, "the search did not end"
    found = [urlsplit(link).path.removeprefix("/").removesuffix(".html") for link in links]
    return list(dict.fromkeys(found))


@pytest.mark.slow
@pytest.mark.parametrize("words", SEARCHES)
def test_search_finds_what_people_type(browser: Any, url: str, words: str) -> None:
    """A page that answers is among the first results."""
    first = results(browser, url, words)[:FIRST]
    assert {*first} & {*SEARCHES[words]}, first


@pytest.mark.slow
@pytest.mark.parametrize("words", FIRST_ANSWERS)
def test_the_first_result_answers(browser: Any, url: str, words: str) -> None:
    """It leads to the section that says how."""
    results(browser, url, words)
    browser.find_element("css selector", "#search-results ul.search li > a").click()
    assert re.search(FIRST_ANSWERS[words], text_here(browser)), browser.current_url


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index", "performance"])
def test_tables_are_seen_whole(browser: Any, url: str, page: str) -> None:
    """In a window of 1,400 pixels no column is cut."""
    browser.get(f"{url}{page}.html")
    script = """
        return [...document.querySelectorAll("article table")]
            .map(table => [table.scrollWidth, table.clientWidth]);
    """
    tables = browser.execute_script(script)
    assert tables
    assert [table for table in tables if table[0] > table[1]] == []


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_two_clicks_away(browser: Any, url: str, question: str) -> None:
    """The start page leads there by links whose words say so."""
    links, expected = QUESTIONS[question]
    assert len(links) <= 2
    browser.get(url)
    for link in links:
        click(browser, link)
    assert re.search(expected, text_here(browser)), browser.current_url


def click(browser: Any, words: str) -> None:
    """Click on the first link that is seen and has these words."""
    script = """
        const found = [...document.querySelectorAll("a[href]")].find(
            (link) => link.innerText.trim() === arguments[0] && link.checkVisibility()
        );
        found?.scrollIntoView({block: "center", behavior: "instant"});
        return found;
    """
    link = browser.execute_script(script, words)
    assert link is not None, f"no link '{words}' on {browser.current_url}"
    link.click()


def text_here(browser: Any) -> str:
    """The text of the section that the address names, or of the page."""
    anchor = urlsplit(browser.current_url).fragment
    found = browser.find_elements("id", anchor) if anchor else []
    if found and found[0].tag_name in ("dt", "span"):
        found = [found[0].find_element("xpath", "./..")]
    place = found[0] if found else browser.find_element("css selector", "article")
    return str(place.text)


@pytest.mark.slow
def test_pages_fit_a_phone_and_log_no_error(browser: Any, url: str, pages: list[str]) -> None:
    """No page is wider than the screen, and none logs an error or lacks a file."""
    browser.get_log("browser")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    wide, errors = {}, {}
    try:
        for page in pages:
            browser.get(url + page)
            width = browser.execute_script("return document.documentElement.scrollWidth")
            if width > PHONE["width"]:
                wide[page] = width
            logged = [line["message"] for line in browser.get_log("browser")]
            if logged:
                errors[page] = logged
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide == {}
    assert errors == {}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["index", "samplers", "reference/cpprb_like.ReplayBuffer"])
def test_text_is_easy_to_read(browser: Any, url: str, page: str, scheme: str) -> None:
    """Text and code stand out from what is behind them, in the light and in the dark."""
    wish = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)
    browser.get(f"{url}{page}.html")
    script = """
        const look = (node) => {
            const colour = getComputedStyle(node).color;
            for (let place = node; place; place = place.parentElement) {
                const behind = getComputedStyle(place).backgroundColor;
                if (!/rgba\\(.*, 0\\)|transparent/.test(behind)) return [colour, behind];
            }
            return [colour, "rgb(255, 255, 255)"];
        };
        return [...document.querySelectorAll("article p, article td, article pre span")]
            .filter(node => node.textContent.trim()).slice(0, 300).map(look);
    """
    pairs = {tuple(pair) for pair in browser.execute_script(script)}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert pairs
    is_dark = {luminance(behind) < 0.2 for _, behind in pairs}
    assert is_dark == {scheme == "dark"}
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 3.5} == {}


def luminance(colour: str) -> float:
    """Of a colour as browsers write it, by the rule of WCAG."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: str, behind: str) -> float:
    """How far a colour stands out, 1 to 21, by the rule of WCAG."""
    dark, light = sorted((luminance(colour), luminance(behind)))
    return (light + 0.05) / (dark + 0.05)
