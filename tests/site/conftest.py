"""The built site, served on this machine, and a browser that looks at it."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from optional import need, required

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVERS = ("chromedriver", "chromium.chromedriver")


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *words: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the site; ``make docs`` builds it."""
    folder = ROOT / "build" / "site"
    if not (folder / "objects.inv").exists():
        pytest.skip(f"there is no site in {folder}: run make docs")
    return folder


@pytest.fixture(scope="session")
def url(site: Path) -> Iterator[str]:
    """The address of the site while the tests run."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window, of the size of a desk."""
    webdriver = need("selenium.webdriver")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    if program is None or driver is None:
        why = "Chromium and its driver are not installed"
        if "selenium" in required():
            pytest.fail(f"{why}, and CPPRB_LIKE_REQUIRE asks for a browser")
        pytest.skip(why)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    words = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
    for word in (*words, "--window-size=1400,1000"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sockets that the driver closes by itself
        found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        yield found
        found.quit()
