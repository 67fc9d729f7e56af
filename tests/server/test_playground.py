"""The playground in headless Chromium: chat, race and tree work, nothing leaves the machine, no console error."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from fledge.server import playground
from tests.server.conftest import QUESTIONS, Running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WAIT_S = 90

needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Chromium and chromedriver: apt install chromium chromium-driver"
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = CHROMIUM or ""
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
        "--disable-component-update", "--no-first-run", "--window-size=1360,900", f"--user-data-dir={tmp_path}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def shot(browser: webdriver.Chrome, name: str) -> None:
    """A picture to look at, where $FLEDGE_SCREENSHOTS says."""
    folder = os.environ.get("FLEDGE_SCREENSHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def requested(browser: webdriver.Chrome) -> set[str]:
    """Every address the page asked for."""
    found = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.add(message["params"]["request"]["url"])
    return {url for url in found if url.startswith(("http", "ws", "ftp"))}


@needs_chromium
def test_chat_race_and_tree(browser: webdriver.Chrome, live: Running) -> None:
    wait = WebDriverWait(browser, WAIT_S)
    find = browser.find_element
    browser.get(live.url)
    wait.until(lambda _: find(By.ID, "model").text == "tiny")
    assert browser.switch_to.active_element.get_attribute("id") == "question"  # ready to type
    shot(browser, "empty")

    browser.execute_script("document.getElementById('tokens').value = 40")
    browser.switch_to.active_element.send_keys(QUESTIONS[0], Keys.ENTER)
    wait.until(lambda _: "ms per token" in find(By.CSS_SELECTOR, ".turn.assistant .note").text)
    tokens = browser.find_elements(By.CSS_SELECTOR, ".turn.assistant .answer span")
    origins = {token.get_attribute("data-origin") for token in tokens}
    assert {"0", "1"} <= origins
    assert float(find(By.ID, "tau").text) > 1
    assert float(find(By.ID, "tpot").text) > 0
    assert browser.find_elements(By.CSS_SELECTOR, "#tree svg .node.on")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#tree svg .node")) >= 8
    assert browser.find_elements(By.CSS_SELECTOR, "#legend .chip")
    shot(browser, "chat")

    last = find(By.ID, "round-name").text
    find(By.ID, "round").send_keys(Keys.ARROW_LEFT)
    assert find(By.ID, "round-name").text != last

    find(By.TAG_NAME, "body").send_keys(Keys.ALT, "2")
    browser.execute_script("document.getElementById('race-tokens').value = 24")
    find(By.ID, "race-question").clear()
    find(By.ID, "race-question").send_keys(QUESTIONS[1], Keys.ENTER)
    wait.until(lambda _: "ms per token" in find(By.ID, "verdict").text)
    assert "same text" in find(By.ID, "verdict").text
    lanes = [find(By.CSS_SELECTOR, f"#{lane} .answer").text for lane in ("lane-plain", "lane-spec")]
    assert lanes[0] == lanes[1] != ""
    assert "measured" in find(By.ID, "baseline").text
    shot(browser, "race")

    browser.execute_script("document.getElementById('race-tokens').value = 1")
    find(By.ID, "race-question").send_keys(Keys.ENTER)
    wait.until(lambda _: "single token" in find(By.ID, "verdict").text)
    assert find(By.ID, "race-start").is_enabled()

    for theme in ("light", "dark"):
        find(By.ID, "theme").click()
        assert find(By.TAG_NAME, "html").get_attribute("data-theme") == theme
    shot(browser, "dark")

    find(By.TAG_NAME, "body").send_keys(Keys.ALT, "1")
    browser.execute_script("document.getElementById('tokens').value = 400")
    browser.switch_to.active_element.send_keys("Hi", Keys.ENTER)
    wait.until(lambda _: len(browser.find_elements(By.CSS_SELECTOR, ".turn.assistant")) == 2)
    find(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    wait.until(lambda _: not find(By.ID, "stop").is_enabled())
    wait.until(lambda _: not live.server.engine.busy)

    browser.switch_to.active_element.send_keys("Hi", Keys.ENTER)
    wait.until(lambda _: find(By.CSS_SELECTOR, ".turn.assistant:last-child .answer").text)
    find(By.TAG_NAME, "body").send_keys(Keys.ALT, "n")
    wait.until(lambda _: not find(By.ID, "stop").is_enabled())
    assert not browser.find_elements(By.CSS_SELECTOR, ".turn")
    assert (
        browser.execute_script("return chat.messages") == []
    )  # a new conversation, though one was under way

    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    outside = {url for url in requested(browser) if not url.startswith(live.url + "/")}
    assert outside == set()


def test_the_page_is_self_contained() -> None:
    page = playground.page().decode()
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s)>]+)""", page)
    assert all(link.startswith("data:") for link in links), links
    assert "https:" not in page
    assert "/* STYLE */" not in page
    assert "/* SCRIPT */" not in page
