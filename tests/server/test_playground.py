"""The playground in headless Chromium: chat, race and tree work, nothing leaves the machine, no console error."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from fledge.engine import Engine
from fledge.server import playground
from fledge.target.target import Target
from tests.server.conftest import QUESTIONS, Running, running
from tests.server.test_learn import STATE, Noted

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WAIT_S = 90
SENT = "Network.requestWillBeSent"

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


def requests(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """What the page requested since this was last called."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"]["request"] for message in messages if message["method"] == SENT]
    return [request for request in sent if request["url"].startswith(("http", "ws", "ftp"))]


def assert_nothing_left_the_machine(requested: list[dict[str, Any]], live: Running) -> None:
    assert requested
    assert [each["url"] for each in requested if not each["url"].startswith(f"{live.url}/")] == []


@needs_chromium
def test_chat_race_and_tree(browser: webdriver.Chrome, live: Running) -> None:
    wait = WebDriverWait(browser, WAIT_S)
    find = browser.find_element
    browser.get(live.url)
    wait.until(lambda _: find(By.ID, "model").text.startswith("tiny"))
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
    browser.execute_script("document.getElementById('race-pairs').value = 2")
    find(By.ID, "race-question").clear()
    find(By.ID, "race-question").send_keys(QUESTIONS[1], Keys.ENTER)
    wait.until(lambda _: "ms per token" in find(By.ID, "verdict").text)
    assert "same text" in find(By.ID, "verdict").text
    lanes = [find(By.CSS_SELECTOR, f"#{lane} .answer").text for lane in ("lane-plain", "lane-spec")]
    assert lanes[0] == lanes[1] != ""
    said = re.match(r"(\S+)× \(95 %: (\S+) to (\S+), 2 pairs\)", find(By.ID, "verdict").text)
    assert said is not None
    card = find(By.ID, "speedup").text, find(By.ID, "baseline").text
    assert card == (said[1], f"× in the last race, {said[2]} to {said[3]}")
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
    assert_nothing_left_the_machine(requests(browser), live)


@needs_chromium
def test_a_server_that_learns_shows_how_tau_has_risen(browser: webdriver.Chrome, target: Target) -> None:
    noted, find = Noted(), browser.find_element
    with running(Engine(target, max_batch=2, max_context=128, recorder=noted)) as server:
        browser.get(server.url)
        WebDriverWait(browser, WAIT_S).until(lambda _: find(By.ID, "learnt").text)
        assert find(By.ID, "learnt").text == "head's tau 1.50 now, 1.00 at first"
        assert find(By.ID, "learn-state").text == "version 3: training, 5 steps, 15 to the next measurement"
        assert "training gets 10 %" in find(By.ID, "learn-why").text
        assert len(find(By.ID, "learn-curve").get_attribute("points").split()) == 3
        browser.execute_script("learning.show({ ...arguments[0], seconds: 3665 })", STATE)
        assert find(By.ID, "learnt").text == "head's tau 1.50 now, 1.50 an hour ago"
        shot(browser, "learning")
        assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


MARKDOWN = """# Title
Some **bold** text, `code` and a [link](https://example.org), [a trap](javascript:alert(1)).

```python
def f(x):
    return "<b>"
```

| a | b |
|---|--:|
| 1 | 2 |

3. three
4. four

<img src=x onerror="document.title = 'run'"> <script>document.title = 'run'</script>
"""


@needs_chromium
def test_conversations_are_kept_edited_and_cleared(browser: webdriver.Chrome, live: Running) -> None:
    wait = WebDriverWait(browser, WAIT_S)
    find, run = browser.find_element, browser.execute_script
    browser.get(live.url)
    wait.until(lambda _: find(By.ID, "model").text.startswith("tiny"))

    def ask(question: str) -> None:
        find(By.ID, "question").send_keys(question, Keys.ENTER)
        wait.until(lambda _: run("return !chat.running && chat.messages.length && !byId('send').disabled"))

    run("byId('tokens').value = 8; byId('system').value = 'Be brief.'; byId('temperature').value = 1.5")
    for question in QUESTIONS[:2]:
        ask(question)
    told = run("return chat.messages")
    assert [message["role"] for message in told] == ["user", "assistant"] * 2
    browser.refresh()
    wait.until(lambda _: find(By.ID, "model").text.startswith("tiny"))
    assert run("return chat.messages") == told
    assert len(browser.find_elements(By.CSS_SELECTOR, ".turn")) == 4
    assert run("return [byId('tokens').value, byId('system').value, byId('temperature').value]") == [
        "8", "Be brief.", "1.5",
    ]  # fmt: skip

    browser.find_elements(By.XPATH, "//button[text()='Try again']")[-1].click()
    wait.until(lambda _: run("return !chat.running && chat.messages.length === 4"))
    assert run("return chat.messages")[:3] == told[:3]
    browser.find_elements(By.XPATH, "//button[text()='Edit']")[0].click()
    assert find(By.ID, "question").get_attribute("value") == QUESTIONS[0]
    find(By.ID, "question").clear()
    ask("Hello")
    assert run("return chat.messages[0].content") == "Hello"
    assert len(run("return chat.messages")) == 2
    assert len(run("return store.conversations")) == 1

    run("byId('tokens').value = 400; chat.ask('Tell me more')")
    run("chat.clear()")  # in the middle of an answer: gone, and not kept when it has stopped
    assert run("return chat.messages") == []
    wait.until(lambda _: run("return !chat.running"))
    assert run("return [chat.messages.length, document.querySelectorAll('.turn').length]") == [0, 0]
    assert run("return store.conversations[0].messages.length") == 2
    run("chat.open(store.conversations[0])")

    run(
        "byId('top-p').value = 7"
    )  # out of bounds: said at the field, in the browser's words, and nothing is sent
    find(By.ID, "question").send_keys("Hi", Keys.ENTER)
    assert run("return byId('settings').open && !chat.running && chat.messages.length === 2")
    run("byId('top-p').value = ''; byId('tokens').value = 100000")
    find(By.ID, "question").send_keys(Keys.ENTER)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".alert[role=alert]"))
    assert "tokens" in find(By.CSS_SELECTOR, ".alert").text
    assert find(By.ID, "question").get_attribute("value") == "Hi"  # to be tried again
    assert len(browser.find_elements(By.XPATH, "//button[text()='Edit']")) == 1  # no answer, nothing to edit
    assert browser.find_elements(By.CSS_SELECTOR, "#tree .hint")
    shot(browser, "alert")

    find(By.ID, "past").click()
    assert find(By.XPATH, "//div[@id='conversations']//button[text()='Hello']").is_displayed()
    shot(browser, "history")
    find(By.ID, "forget-all").click()
    assert run("return [store.conversations.length, chat.messages.length]") == [0, 0]
    assert find(By.CSS_SELECTOR, ".empty").is_displayed()

    made = run(
        "const box = formatted(arguments[0]); byId('log').replaceChildren(box); return box.innerHTML",
        MARKDOWN,
    )
    shot(browser, "markdown")
    assert find(By.CSS_SELECTOR, ".formatted h3").text == "Title"
    assert find(By.CSS_SELECTOR, ".code .hljs-keyword").text == "def"
    assert run("return document.querySelector('.code pre').textContent").startswith("def f(x):")
    assert run("return document.querySelector('.formatted ol').start") == 3
    assert [a.get_attribute("href") for a in browser.find_elements(By.CSS_SELECTOR, ".formatted a")] == [
        "https://example.org/"
    ]
    assert "<img" not in made
    assert "<script" not in made
    assert browser.title == "fledge playground"
    assert run("return formatted('Just words,\\nover two lines.\\n\\nAnd more.')") is None
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert all("status of 400" in message for message in errors)  # what was asked beyond the bounds
    assert_nothing_left_the_machine(requests(browser), live)


@needs_chromium
def test_suggestions_settings_copies_and_a_phone(browser: webdriver.Chrome, live: Running) -> None:
    wait = WebDriverWait(browser, WAIT_S)
    find, run = browser.find_element, browser.execute_script
    allowed = {"origin": live.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", allowed)
    browser.get(live.url)
    wait.until(lambda _: find(By.ID, "model").text.startswith("tiny"))

    run("byId('tokens').value = 8; byId('system').value = 'Be brief.'; byId('seed').value = 7")
    suggestion = find(By.CSS_SELECTOR, ".empty button")
    question = suggestion.text
    suggestion.click()
    wait.until(lambda _: run("return !chat.running && chat.messages.length === 2"))
    assert find(By.CSS_SELECTOR, ".turn.user .said").text == question
    requested = requests(browser)
    (body,) = [json.loads(each["postData"]) for each in requested if each["method"] == "POST"]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": question},
    ]
    assert (body["max_completion_tokens"], body["seed"]) == (8, 7)
    assert "top_p" not in body  # left empty

    run("chat.answered(chat.turn('assistant'), arguments[0], 1)", MARKDOWN)
    answer, code = run("return chat.messages[1].content"), 'def f(x):\n    return "<b>"'
    for place, text in ((".turn.user", question), (".turn.assistant", answer), (".code", code)):
        buttons = browser.find_elements(By.CSS_SELECTOR, f"{place} button")
        button = next(button for button in buttons if button.text == "Copy")
        button.click()
        wait.until(lambda _, button=button: button.text == "Copied")
        assert browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == text

    sources = [""] + ["head"] * 15 + ["lookup"] * 7 + ["Glossary"]
    pieces = [["a", depth] for depth in [0, *range(1, 16), *range(2, 9), 1]]
    legend = run(
        "const answer = new Answer(byId('log')); answer.add({ trace: arguments[0] }, 1); showCounters(answer);"
        "return [...document.querySelectorAll('#legend div')].map((row) => row.innerText.split(/\\s*\\n\\s*/))",
        {"pieces": pieces, "sources": sources, "trees": []},
    )
    assert [name for name, *_ in legend] == [
        "bonus, the target's", *(f"draft, depth {depth}" for depth in range(1, 7)), "draft, depth 7 and more",
        "Glossary", "prompt lookup",
    ]  # fmt: skip
    assert legend[7][-1] == "38 %"

    deep = {
        "tokens": ["word"] * 16,
        "parents": list(range(-1, 15)),
        "probs": [1] * 16,
        "sources": ["", *["head"] * 8, *["lookup"] * 7],
        "path": [0],
        "bonus": "a",
    }
    for width, mobile in ((1280, False), (390, True)):
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": mobile}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        run("byId('settings').open = true; rounds.trees = [arguments[0]]; rounds.show(0)", deep)
        assert run("const box = byId('tree'); return box.scrollWidth - box.clientWidth") > 100
        assert (
            mobile or run("return byId('tree').offsetHeight - byId('tree').clientHeight") == 10
        )  # a scroll bar
        painted = "return [...document.querySelectorAll('#tree rect')].map((one) => one.style.fill)"
        assert run(painted).count("var(--lookup)") == 7  # on the accepted path or not
        if not mobile:  # the tree is drawn anew where a counter takes its room
            run("byId('baseline').textContent = 'a longer text '.repeat(9)")
            wait.until(lambda _: run("return byId('tree').scrollHeight <= byId('tree').clientHeight"))
        for mode in ("race", "chat"):
            find(By.ID, f"tab-{mode}").click()
            assert run("return document.documentElement.scrollWidth") <= width, (mode, width)
            assert find(By.ID, "model").size["width"] > 20  # the model's name has room
            for theme in ("light", "dark"):
                run("setTheme(arguments[0])", theme)
                shot(browser, f"{mode}-{width}-{theme}")

    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    assert_nothing_left_the_machine([*requested, *requests(browser)], live)


def test_libraries_are_the_ones_that_are_listed() -> None:
    folder = Path(playground.__file__).parent / "vendor"
    listed = (folder / "README.md").read_text("utf-8")
    for library in folder.glob("*.js"):
        assert hashlib.sha256(library.read_bytes()).hexdigest() in listed
        assert library.with_suffix(".LICENSE").exists()


def test_the_page_is_self_contained() -> None:
    page = playground.page().decode()
    for name in playground._LIBRARIES:  # which name their homes
        page = page.replace(playground._text(name), "")
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s)>]+)""", page)
    assert all(link.startswith("data:") for link in links), links
    assert "https:" not in page
    assert "/* STYLE */" not in page
    assert "/* SCRIPT */" not in page
    assert "/* LIBRARIES */" not in page
