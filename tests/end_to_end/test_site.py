"""The built documentation site in a real browser: what a newcomer looks for is a few clicks or one search away."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import browser_command, browser_environment, needs_browser

pytestmark = [pytest.mark.deep, needs_browser]

ROOT = Path(__file__).resolve().parents[2]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"

# The site stands in a frame, in which this script clicks and types; what it finds is sent to the server of the site.
DRIVER = """<!doctype html><title>driver</title><iframe width="1300" height="900" src="{start}"></iframe><script>
const frame = document.querySelector("iframe");
const next = () => new Promise((done) => frame.addEventListener("load", done, {{once: true}}));
const pause = () => new Promise((done) => setTimeout(done, 50));
const all = (selector) => [...frame.contentDocument.querySelectorAll(selector)].filter((each) => each.checkVisibility());
const click = async (label) => {{
  const link = all("a").find((each) => each.innerText.trim() === label);
  if (!link) throw new Error(`${{frame.contentWindow.location.pathname}} shows no link "${{label}}"`);
  const loaded = next();
  link.click();
  await loaded;
}};
const search = async (word) => {{
  const field = all("input.md-search__input")[0];
  field.focus();
  field.value = word;
  let results = [];
  while (results.length === 0) {{
    field.dispatchEvent(new KeyboardEvent("keyup", {{bubbles: true}}));
    await pause();
    results = all(".md-search-result__item > a").map((each) => new URL(each.href).pathname);
  }}
  return results;
}};
const answer = (found) => fetch("/answer", {{method: "POST", body: JSON.stringify(found)}});
next().then(async () => {{ {actions} }}).then((found) => answer({{found}}), (error) => answer({{error: String(error)}}));
</script>"""

Play = Callable[[str, str], Any]


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder, and keeps what is sent to it."""

    answers: queue.Queue[str] = queue.Queue()

    def do_POST(self) -> None:
        self.answers.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("MkDocs is not installed: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "docs/site_tables.py"], cwd=ROOT, check=True, timeout=600)
    subprocess.run([MKDOCS, "build", "--strict", "--quiet", "--site-dir", folder], cwd=ROOT, check=True, timeout=600)
    return folder


@pytest.fixture
def play(site: Path, tmp_path: Path) -> Iterator[Play]:
    """Return a function that opens a page of the site, runs actions there, and returns what they return."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def played(start: str, actions: str) -> Any:
        (site / "driver.html").write_text(DRIVER.format(start=start, actions=actions))
        address = f"http://127.0.0.1:{server.server_port}/driver.html"
        command = [*browser_command(tmp_path), address]
        with subprocess.Popen(command, env=browser_environment(tmp_path), stderr=subprocess.DEVNULL) as browser:
            try:
                answer = json.loads(Handler.answers.get(timeout=240))
            finally:
                browser.kill()
        assert "error" not in answer, answer["error"]
        return answer["found"]

    yield played
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("start", "clicks", "shown"),
    [
        ("index.html", [], "make demo"),
        ("index.html", [], "worst-off job, vs. fair share"),
        ("index.html", ["Install"], "pip install ."),
        ("index.html", ["For operators"], "Proven optimal:"),
        ("index.html", ["For scheduler authors"], "gp.solve(problem"),
        ("index.html", ["For researchers"], "completion time, mean"),
        ("index.html", ["Cite"], "@inproceedings{"),
        ("exact-reduction.html", ["Use", "Install"], "docker run"),
        ("exact-reduction.html", ["Use", "For operators"], "Proven optimal:"),
        ("reference/rounds.html", ["More", "Cite"], "@software{gavel_py"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_what_a_newcomer_looks_for_is_at_most_three_clicks_away(play: Play, start: str, clicks: list[str], shown: str) -> None:
    assert len(clicks) <= 3
    ways = "".join(f"await click({json.dumps(label)});" for label in clicks)
    assert shown in play(start, f'{ways} return all("article")[0].innerText;')


@pytest.mark.parametrize(
    ("word", "page"),
    [("cite", "/cite.html"), ("bibtex", "/cite.html"), ("docker", "/install.html"), ("kubernetes", "/kueue.html")],
)
def test_the_search_leads_to_the_right_page(play: Play, word: str, page: str) -> None:
    assert play("index.html", f"return search({json.dumps(word)});")[0] == page
