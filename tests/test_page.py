"""The page at /: what it may load and where it comes from; and, in a browser, a chat and personal data found."""

import base64
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labelled import labelled_checkpoint
from tiny import CHATML, tiny_checkpoint, write_tokenizer

from fastcore import LLM, TokenClassifier

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from serving import call, serving

from fastcore.server import ServedModel

CHROMIUM = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--window-size=900,900",
)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("page")
    slow = {"num_hidden_layers": 16, "hidden_size": 256, "intermediate_size": 1024}  # enough to be stopped
    tiny_checkpoint(folder / "m", "qwen2", max_position_embeddings=1 << 16, **slow)
    write_tokenizer(folder / "m", chat_template=CHATML)
    (folder / "pii").mkdir()
    with (
        LLM(folder / "m", num_threads=1) as llm,
        TokenClassifier(labelled_checkpoint(folder / "pii"), num_threads=1) as pii,
        serving([ServedModel.loaded(llm, ["tiny"]), ServedModel.loaded(pii, ["pii"])], api_key="open sesame") as port,
    ):
        yield port


def test_the_page_loads_nothing_from_elsewhere_and_runs_what_it_brings_alone(port: int) -> None:
    status, page, headers = call(port, "GET", "/")  # without the key, which the page asks for
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for element in ("script", "style"):
        (text,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{element}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"https?:|\bsrc=|@import|\bon\w+=|\bstyle=|innerHTML|insertAdjacent|document\.write", page)
    for control in re.findall(r"<(?:input|select|textarea)\b[^>]*>", page):
        (name,) = re.findall(r'\bid="(\w+)"', control)
        assert f'<label for="{name}"' in page or re.search(rf'<label [^>]*><input id="{name}"', page), name
    assert call(port, "GET", "/v1/models")[0] == 401
    assert call(port, "HEAD", "/")[0] == 200
    assert call(port, "POST", "/", {})[0] == 405


@pytest.fixture
def browser(port: int, tmp_path: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("there is no Chromium here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (*CHROMIUM, f"--user-data-dir={tmp_path}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        browser.get(f"http://127.0.0.1:{port}/")
        yield Page(browser)
        log = [entry for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]
        refused = [entry["message"] for entry in log if "401" not in entry["message"]]
        assert not refused, refused  # by the policy, or a script's error
    finally:
        browser.quit()


class Page:
    """The page in a browser, its elements by id."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def __getitem__(self, name: str) -> Any:
        return self.browser.find_element("id", name)

    def until(self, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 30
        while not (found := holds()):
            assert time.monotonic() < deadline, self.browser.page_source
            time.sleep(0.05)
        return found

    def enter(self, name: str, text: str) -> None:
        self[name].clear()
        self[name].send_keys(text)

    def unlock(self) -> None:
        self.until(lambda: "key" in self["status"].text)
        self.enter("key", "open sesame\t")
        self.until(lambda: self["chat"].is_displayed())

    def turns(self, role: str) -> list[str]:
        return [turn.text for turn in self.browser.find_elements("css selector", f".turn.{role}")]


def test_a_chat_streams_stops_and_goes_on(browser: Page, port: int) -> None:
    browser.unlock()
    browser.browser.execute_script("document.getElementById('options').open = true")
    for name, text in {"system": "be brief", "temperature": "0", "max_tokens": "12"}.items():
        browser.enter(name, text)
    browser.enter("message", "<b>hello</b>\n")
    browser.until(lambda: browser["send"].is_enabled() and "tokens" in browser["rate"].text)
    assert browser.turns("user") == ["<b>hello</b>"]
    body = {
        "model": "tiny",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "<b>hello</b>"}],
        "temperature": 0,
        "max_tokens": 12,
    }
    status, answer, _ = call(port, "POST", "/v1/chat/completions", body, {"Authorization": "Bearer open sesame"})
    said = browser.browser.find_element("css selector", ".turn.assistant > div:last-child")
    assert (status, said.get_property("textContent")) == (200, answer["choices"][0]["message"]["content"])
    assert re.match(rf"{answer['usage']['completion_tokens']} tokens", browser["rate"].text)
    browser.enter("max_tokens", "20000")
    browser.enter("message", "again\n")
    browser.until(lambda: browser["stop"].is_enabled() and "tokens" in browser["rate"].text)
    browser["stop"].click()
    browser.until(lambda: browser["send"].is_enabled())
    assert browser["rate"].text.endswith("Stopped.")
    assert len(browser.turns("assistant")) == 2
    browser["again"].click()
    assert browser.turns("user") == []
    browser.enter("message", "once more\n")
    browser.until(lambda: browser["stop"].is_enabled() and "tokens" in browser["rate"].text)
    # while an answer comes, which is no part of the new conversation; it moves the button, too
    browser.browser.execute_script("document.getElementById('again').click()")
    browser.until(lambda: browser["send"].is_enabled())
    browser.enter("max_tokens", "12")
    browser.enter("message", "<b>hello</b>\n")
    browser.until(lambda: browser["send"].is_enabled() and "first after" in browser["rate"].text)
    (said,) = browser.browser.find_elements("css selector", ".turn.assistant > div:last-child")
    assert said.get_property("textContent") == answer["choices"][0]["message"]["content"]


def test_what_is_found_is_marked_and_a_threshold_moves_it(browser: Page) -> None:
    browser.unlock()
    _, option = browser["model"].find_elements("css selector", "option")
    option.click()
    browser.until(lambda: browser["pii"].is_displayed() and not browser["chat"].is_displayed())
    browser.enter("text", "é ring BOB & <i>")
    browser["find"].click()
    browser.until(lambda: browser["entities"].is_displayed())
    assert browser["found"].text == "é ring BOB & <i>"
    (mark,) = browser["found"].find_elements("css selector", "mark")
    assert (mark.text, mark.get_attribute("class")) == ("BOB", "")
    cells = [cell.text for cell in browser["entities"].find_elements("css selector", "tbody td")]
    assert cells[:2] == ["private_person", "BOB"]
    assert cells[3] == "yes"
    browser.browser.execute_script(
        "const slider = document.getElementById('threshold'); slider.max = 2; slider.value = 1.5;"
        "slider.dispatchEvent(new Event('input'))"
    )
    (mark,) = browser["found"].find_elements("css selector", "mark")
    assert mark.get_attribute("class") == "low"


@pytest.mark.parametrize("width", [360, 1200])
def test_no_width_scrolls_sideways(browser: Page, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.unlock()
    browser.browser.execute_script("document.getElementById('options').open = true")
    scrolled, inner = browser.browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert inner == width
    assert scrolled <= width
