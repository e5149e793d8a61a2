"""The page in a real browser, where there is one: no console error, no way to the side on a phone, a PDF."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.report.cases import Parsed
from tests.report.test_report import assert_harmless, hostile_run

from strop.report.build import write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    "--allow-file-access-from-files", "--virtual-time-budget=3000",
)  # fmt: skip
PHONE = """<!doctype html><iframe src="{page}" style="width:360px;height:900px;border:0"></iframe><script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument.documentElement;
  document.title = "width " + page.scrollWidth + " of " + page.clientWidth;
}}</script>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium")


def browse(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def page(written: dict[str, Any]) -> Path:
    return Path(written["report"])


def test_the_page_renders_without_a_console_error(page: Path, tmp_path: Path) -> None:
    done = browse(page, tmp_path, "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert len([tag for tag, _ in Parsed(done.stdout).tags if tag == "figure"]) > 20


def test_nothing_hostile_runs(tmp_path: Path) -> None:
    page = write_report([hostile_run(tmp_path)], tmp_path / "out").page
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert_harmless(Parsed(done.stdout))


def test_a_phone_needs_no_scrolling_to_the_side(page: Path, tmp_path: Path) -> None:
    frame = tmp_path / "phone.html"
    frame.write_text(PHONE.format(page=page.as_uri()))
    done = browse(frame, tmp_path / "profile", "--dump-dom", "--window-size=700,1000")
    title = done.stdout.partition("<title>width ")[2].partition("</title>")[0]
    width, _, room = title.partition(" of ")
    assert 300 <= int(width) <= int(room) <= 360


def test_it_prints(page: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.pdf"
    browse(page, tmp_path / "profile", f"--print-to-pdf={target}", "--no-pdf-header-footer")
    assert target.read_bytes().startswith(b"%PDF") and target.stat().st_size > 50_000
