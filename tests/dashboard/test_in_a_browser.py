"""The dashboard in headless Chromium: what it shows, on a desk and on a phone, by keyboard, and text that is markup."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.test_dashboard import HTML, make_played_run, make_run

from strop.dashboard import Dashboard, FollowedRuns
from strop.serving.http import HttpServer, listen

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SHOTS = os.environ.get("STROP_SCREENSHOTS")  # a folder that gets pictures, for whoever wants to look

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def background(runs: Sequence[Path]) -> Iterator[str]:
    """A dashboard on a thread while the block runs; its URL."""
    with HttpServer(Dashboard(FollowedRuns(runs)), listen("127.0.0.1", 0, None, False)).in_thread() as found:
        yield f"{found}/"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    make_run(tmp_path / "first", steps=3)
    make_run(tmp_path / "second", steps=4, completion=HTML, prompt=HTML)
    with background([tmp_path / "first", tmp_path / "second"]) as found:
        yield found


def opened(chromium: Any, url: str, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page that has read its runs, and the errors and foreign requests that it makes."""
    page = chromium.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else wrong.append(request.url))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.goto(url)
    page.wait_for_selector(".chart canvas")
    return page, wrong


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_says_what_it_must(chromium: Any, url: str, width: int, scheme: str) -> None:
    page, wrong = opened(chromium, url, width, scheme)
    assert page.locator(".run").count() == 2 and "step 3 of 3" in page.locator(".run").first.inner_text()
    shot(page, f"curves-{width}-{scheme}")
    for tab, wanted in (("Completions", ".rows button"), ("Settings", "#settings td"), ("Curves", ".chart canvas")):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_selector(wanted)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow == 0, f"{tab} is wider than the window"
        shot(page, f"{tab.lower()}-{width}-{scheme}")
    page.get_by_role("tab", name="Completions").click()
    page.locator(".rows button").first.click()
    page.wait_for_selector("#detail .token")
    shot(page, f"completion-{width}-{scheme}")
    assert wrong == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_values_of_many_runs_stay_in_their_charts(chromium: Any, tmp_path: Path, width: int) -> None:
    for number in range(14):
        make_run(tmp_path / f"run-{number}", steps=2)
    with background(sorted(tmp_path.iterdir())) as url:
        page, wrong = opened(chromium, url, width)
        page.wait_for_function("document.querySelectorAll('.chart output span').length > 13")
        shot(page, f"many-runs-{width}")
        outside = page.evaluate(
            """[...document.querySelectorAll('.chart')].flatMap(chart => {
                const room = chart.getBoundingClientRect();
                const words = [...chart.querySelectorAll('output span')].map(word => word.getBoundingClientRect());
                return words.filter(word => word.left < room.left || word.right > room.right + 1);
            }).length"""
        )
        assert outside == 0 and wrong == []


def test_a_run_that_goes_on_is_followed(chromium: Any, url: str, tmp_path: Path) -> None:
    page, wrong = opened(chromium, url)
    with (tmp_path / "first" / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": 4, "pass_rate": 0.875}) + "\n")
    page.wait_for_function("() => document.querySelector('.chart output').innerText.includes('0.875')", timeout=15_000)
    assert wrong == []


def test_a_held_out_pass_rate_of_an_earlier_step_says_so(chromium: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    with run.metrics_path.open("a") as lines:  # of an evaluator beside training
        lines.write(json.dumps({"step": 2, "evaluation/pass_rate": 0.5}) + "\n")
    with background([run.path]) as url:
        page, wrong = opened(chromium, url)
        assert "pass rate: training 30.0 %, held out 50.0 % (step 2)" in page.locator(".run").inner_text()
    assert wrong == []


def test_markup_in_a_completion_is_text(chromium: Any, url: str) -> None:
    page, wrong = opened(chromium, url)
    page.get_by_role("tab", name="Completions").click()
    page.get_by_label("Run", exact=True).select_option("second")
    page.wait_for_function("() => document.querySelector('.rows .said')?.innerText.includes('<script>')")
    assert page.locator(".rows .said").first.inner_text() == HTML
    assert page.locator(".rows script, .rows .said b").count() == 0
    page.locator(".rows button").first.click()
    page.wait_for_selector("#detail table")
    assert HTML in page.locator("#detail").inner_text() and page.locator("#detail script").count() == 0
    assert wrong == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_turns_and_calls_fold_and_tokens_show_what_training_made_of_them(
    chromium: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    make_played_run(tmp_path / "run")
    with background([tmp_path / "run"]) as url:
        page, wrong = opened(chromium, url, width, scheme)
        page.get_by_role("tab", name="Completions").click()
        page.locator(".rows button").first.click()
        page.wait_for_selector("#detail .token")
        titles = page.locator("#detail summary").all_inner_texts()
        assert titles == ["system", "user", "turn 1", "a call of a tool", "the answer to turn 1", "turn 2"]
        opens = page.locator("#detail details").evaluate_all("all => all.map(each => each.open)")
        assert opens == [False, True, True, True, False, True]
        assert page.get_by_label("Colour by").locator("option").all_inner_texts() == [
            "log-prob", "advantage", "ratio of trainer to generator", "weight version", "nothing",
        ]  # fmt: skip
        shot(page, f"turns-{width}-{scheme}")

        def coloured(measure: str) -> list[str]:
            page.get_by_label("Colour by").select_option(measure)
            return page.locator("#detail .token").evaluate_all("all => all.map(each => each.style.background)")

        advantages, ratios = coloured("advantage"), coloured("ratio")
        assert advantages[0] != "" and len(set(advantages)) == 2, "the tool's answer has none"
        assert ratios[0] == "" and ratios[-1] != ""
        assert "ratio 0.6065" in page.locator(".token").last.get_attribute("title")
        shot(page, f"ratios-{width}-{scheme}")
        page.locator("#detail summary", has_text="the answer").click()
        assert "42" in page.locator("#detail").inner_text() and wrong == []


def test_what_the_verifier_failed_on_is_not_judged(chromium: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=1, rows=1, status="error", reward=None, score=None, detail="no such file")
    with background([tmp_path / "run"]) as url:
        page, wrong = opened(chromium, url)
        page.get_by_role("tab", name="Completions").click()
        page.wait_for_selector(".rows button")
        shown = page.locator(".rows .facts").inner_text()
        assert "not judged" in shown and "reward" not in shown
        page.locator(".rows button").first.click()
        page.wait_for_selector("#detail table")
        rows = page.locator("#detail tr").all_inner_texts()
        assert "reward\tnot judged" in rows and not [row for row in rows if row.startswith("score")]
    assert wrong == []


def test_filters_more_and_two_lists(chromium: Any, url: str) -> None:
    page, wrong = opened(chromium, url)
    page.get_by_role("tab", name="Completions").click()
    page.wait_for_selector(".rows button")
    assert page.locator(".rows button").count() == 20
    page.get_by_role("button", name="More").click()
    page.wait_for_function("() => document.querySelectorAll('.rows button').length === 30")
    page.get_by_label("Verdict").select_option("correct")
    page.wait_for_function("() => document.querySelectorAll('.rows button').length === 12")
    page.get_by_label("search in texts").fill("answer 9 of 2")
    page.wait_for_function("() => document.querySelectorAll('.rows button').length === 1")
    page.get_by_label("a second list beside it").check()
    page.wait_for_function("() => document.querySelectorAll('.rows').length === 2")
    page.get_by_label("problem id").first.fill("none of these")
    page.wait_for_function("() => document.querySelector('.rows').innerText.includes('No completion')")
    assert wrong == []


def test_the_keyboard_alone(chromium: Any, url: str) -> None:
    page, wrong = opened(chromium, url)
    page.get_by_role("tab", name="Curves").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".rows button")
    assert page.evaluate("document.activeElement.innerText") == "Completions"
    page.locator(".rows button").nth(1).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail[open] table")
    assert page.evaluate("document.activeElement.innerText") == "Close"
    page.keyboard.press("Escape")
    assert page.locator("#detail[open]").count() == 0
    assert page.evaluate("document.activeElement.closest('.rows') !== null"), "the focus is back where it was"
    assert wrong == []


def test_the_first_paint_comes_within_a_second(chromium: Any, url: str) -> None:
    page, _ = opened(chromium, url)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    begin = time.perf_counter()
    page.reload()
    page.wait_for_selector(".chart canvas")
    assert painted < 1000 and time.perf_counter() - begin < 5
