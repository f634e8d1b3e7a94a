# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: Chromium without a window."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from vllm_eagle_pangu.tracing.report.command import write_report
from vllm_eagle_pangu.tracing.report.recording import read_recording

from .test_report_page import SMUGGLED
from .test_report_runs import SMALL, WIDE, write_manifest, write_run

pytest.importorskip("matplotlib", reason="the report's charts need matplotlib")

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=5000",
)
SECONDS = 600
# Appended by a test; the page itself refuses scripts that are not its own.
WIDER_THAN_WINDOW = (
    "document.documentElement.dataset.overflow ="
    " document.documentElement.scrollWidth - window.innerWidth;"
)


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., str]:
    """`browse(page, *flags, step="#...")`: what Chromium prints."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
    profiles = iter(range(100))

    def run(page: Path, *flags: str, step: str = "") -> str:
        profile = tmp_path / f"profile-{next(profiles)}"
        profile.mkdir()
        command = [program, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri() + step]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


def with_script(page: Path, script: str) -> Path:
    """A copy of the page that also runs `script` at its end."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"script-src 'sha256-[^']+'", "script-src 'unsafe-inline'", text)
    changed = page.with_name("changed.html")
    changed.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    return changed


def attribute(dom: str, name: str) -> str | None:
    """Of the html element."""
    head = dom[dom.index("<html") : dom.index("<head>")]
    found = re.search(f'data-{name}="([^"]*)"', head)
    return unescape(found[1]) if found else None


def boxes(dom: str, kind: str = "") -> int:
    return len(re.findall(f'<g class="box {kind}', dom))


def told(dom: str) -> str:
    return re.search(r'<p id="told"[^>]*>([^<]*)', dom)[1]


def test_the_tree_of_the_first_step_is_drawn(tmp_path: Path, browse):
    run = write_run(tmp_path / "run", WIDE)
    step = read_recording(run).steps[0]
    dom = browse(write_report(run), "--dump-dom")

    assert attribute(dom, "errors") is None and attribute(dom, "ready") == "yes"
    # The root, the nodes and the bonus token.
    assert boxes(dom) == WIDE.nodes + 2
    assert (boxes(dom, "root"), boxes(dom, "bonus")) == (1, 1)
    assert boxes(dom, "accepted") == len(step.accepted) - 1
    on_path = [row for row, parent in enumerate(step.parents) if row and parent in step.accepted]
    assert boxes(dom, "refused") == len(on_path) - boxes(dom, "accepted")
    assert told(dom).startswith("Step 1, after 20 tokens: 64 nodes drafted")


def test_address_keys_bars_and_lists_choose_a_step(tmp_path: Path, browse):
    page = write_report(write_run(tmp_path / "run", SMALL))
    assert told(browse(page, "--dump-dom", step="#request=b&step=4")).startswith("Step 4")

    press = (
        "const key = (key, shiftKey = false) => document.dispatchEvent("
        'new KeyboardEvent("keydown", {key, shiftKey, bubbles: true}));'
        "const seen = []; const see = () => seen.push(document.getElementById('request').value,"
        "document.getElementById('told').textContent.split(',')[0]);"
        "key('ArrowRight'); see(); key('ArrowRight', true); see(); key('ArrowLeft', true); see();"
        "key('ArrowLeft'); see(); document.getElementById('later').click(); see();"
        "document.querySelectorAll('#strip rect')[3]"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true})); see();"
        "const list = document.getElementById('step'); list.selectedIndex = 5;"
        "list.dispatchEvent(new Event('change')); see();"
        "document.documentElement.dataset.seen = seen.join(' ');"
    )
    dom = browse(with_script(page, press), "--dump-dom")
    assert attribute(dom, "errors") is None
    assert attribute(dom, "seen") == (
        "0 Step 2 1 Step 1 0 Step 1 0 Step 1 0 Step 2 0 Step 4 0 Step 6"
    )


@pytest.mark.parametrize("width", [1280, 800])
def test_the_page_fits_its_window_and_can_be_seen(tmp_path: Path, browse, width):
    image = pytest.importorskip("PIL.Image")
    run = write_run(tmp_path / "run", WIDE, ["a", f"request-{'long' * 30}"], steps=3)
    write_manifest(run, {"key" * 40: "value" * 80})
    page = write_report(run)

    changed = with_script(page, WIDER_THAN_WINDOW)
    dom = browse(changed, "--dump-dom", f"--window-size={width},900", step="#step=2")
    assert attribute(dom, "errors") is None
    assert int(attribute(dom, "overflow") or "1") <= 0

    seen = tmp_path / "seen.png"
    browse(page, f"--screenshot={seen}", f"--window-size={width},900")
    with image.open(seen) as picture:
        assert picture.size == (width, 900)
        colours = picture.convert("RGB").getcolors(maxcolors=2**24)
    assert len(colours) > 100
    # Ink and charts, but mostly paper.
    assert 0.3 < max(count for count, _ in colours) / (width * 900) < 0.97


def test_a_smuggled_text_is_shown_and_not_run(tmp_path: Path, browse):
    run = write_run(tmp_path / "run", SMALL, [SMUGGLED])
    write_manifest(run, {SMUGGLED: SMUGGLED})
    dom = browse(write_report(run), "--dump-dom")
    assert attribute(dom, "errors") is None and boxes(dom) == SMALL.nodes + 2
    assert dom.count("<script") == 2 and "<img" not in dom
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in dom


def test_a_script_that_is_not_the_pages_own_does_not_run(tmp_path: Path, browse):
    page = write_report(write_run(tmp_path / "run", SMALL, steps=1))
    intruder = '<script>document.documentElement.dataset.intruder = "yes"</script>'
    page.write_text(page.read_text().replace("</body>", f"{intruder}</body>"))
    dom = browse(page, "--dump-dom")
    assert attribute(dom, "intruder") is None and attribute(dom, "ready") == "yes"


def test_a_failing_script_is_told_on_the_page(tmp_path: Path, browse):
    page = write_report(write_run(tmp_path / "run", SMALL, steps=1))
    page.write_text(page.read_text().replace('"parents":[0,0', '"parents":[0,99'))
    dom = browse(page, "--dump-dom")
    assert len(json.loads(attribute(dom, "errors") or "[]")) == 1
    assert "The tree view failed" in dom and attribute(dom, "ready") is None


def test_the_page_of_an_empty_run_has_no_errors(tmp_path: Path, browse):
    run = tmp_path / "run"
    run.mkdir()
    write_manifest(run, {})
    dom = browse(write_report(run), "--dump-dom")
    assert attribute(dom, "errors") is None and attribute(dom, "ready") == "yes"
