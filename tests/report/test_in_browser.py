"""Reports in a real browser: no page is wider than its window, and the browser logs no errors."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import gavel_py as gp
from tests.report.some_runs import some_run, some_runs, some_stays
from tests.support.browser import browser_command, browser_environment, needs_browser

pytestmark = pytest.mark.deep

WIDTHS = (320, 390, 700, 768, 1400)

# A window has a least width; frames in it do not. Frames are read from here, which needs the same origin.
MEASURING = """<!doctype html><title>measured</title>{frames}<p id="found"></p><script>
onload = () => {{
  const rows = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, root = page.documentElement;
    page.querySelectorAll("details").forEach((each) => (each.open = true));
    const out = [...page.querySelectorAll("h1, h2, h3, p, figure, figcaption, nav, dl, .scroll, .card svg")]
      .filter((each) => each.getBoundingClientRect().right > root.clientWidth + 1);
    const small = [...page.querySelectorAll(".card svg text")].filter((each) => each.getBoundingClientRect().height < 9);
    const dark = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
    return [frame.width, root.clientWidth, root.scrollWidth, out.length, small.length, dark].join(";");
  }});
  document.getElementById("found").textContent = rows.join("|");
}};
</script>"""


def browse(tmp_path: Path, report: Path, *, dark: bool) -> tuple[list[list[str]], list[str]]:
    """Return (rows, console messages); a row has the requested width, the widths of page and content, overflowing elements, text
    that is too small, and the colour of the page.
    """
    frames = "".join(f'<iframe width="{width}" height="900" src="{report.name}"></iframe>' for width in WIDTHS)
    (tmp_path / "measured.html").write_text(MEASURING.format(frames=frames))
    options = [
        "--allow-file-access-from-files",
        "--enable-logging=stderr",
        "--virtual-time-budget=20000",
        "--window-size=1500,1000",
    ]
    options += ["--force-dark-mode"] if dark else []
    command = [*browser_command(tmp_path, *options), "--dump-dom", (tmp_path / "measured.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=browser_environment(tmp_path), check=False)
    found = re.search(r'<p id="found">([^<]+)</p>', done.stdout)
    if found is None:
        pytest.skip(f"the browser cannot be used here: {done.stderr[-300:]}")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return [row.split(";") for row in found[1].split("|")], console


@needs_browser
@pytest.mark.parametrize(("dark", "page"), [(False, "rgb(255, 255, 255)"), (True, "rgb(22, 25, 29)")], ids=["light", "dark"])
def test_pages_fit_every_window_in_the_light_and_in_the_dark(tmp_path: Path, dark: bool, page: str) -> None:
    one, *others = some_runs(["max_min_fairness,agnostic=true", "x" * 90, "fifo"], [2.0, 4.0], seeds=2, jobs=30)
    odd = some_run("fifo", 4.0, 0, cluster="v100:36,p100:36,k80:36/" * 8)
    failures = [({"policy": "las" * 40}, "SolverError: " + "no optimum " * 60)]
    gp.write_report([replace(one, stays=some_stays()), *others, odd], tmp_path / "report.html", failures=failures)
    found, console = browse(tmp_path, tmp_path / "report.html", dark=dark)
    assert [int(asked) for asked, *_ in found] == list(WIDTHS)
    for _, inside, content, out, small, colour in found:
        assert int(content) <= int(inside)
        assert (out, small, colour) == ("0", "0", page)
    assert not console
