"""Play seeded faults: does a test notice each? Run with `make faults`, or `python benchmarks/faults/play.py NAME ...`.

Each fault of faults.toml is written into a temporary copy of the checkout, where its tests run. Without faults, they have to pass.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
NOTHING_RAN = 5
"""Exit code of pytest where all tests are left out."""

TIMES = itertools.count(1_000_000_000, 10)


@dataclass(frozen=True)
class Fault:
    """A text of a file and what it becomes; wrong: what goes wrong then; tests: those that have to notice it."""

    name: str
    wrong: str
    file: str
    before: str
    after: str
    tests: list[str]

    def problem(self, root: Path) -> str | None:
        """Return why the fault cannot be played any more, None if it can."""
        path = root / self.file
        found = path.read_text().count(self.before) if path.is_file() else 0
        if found == 1:
            return None
        where = f"its text is {found} times in {self.file}" if path.is_file() else f"there is no {self.file}"
        return f"{where}; make the same fault in the code of today"


def read_faults(path: Path = FAULTS) -> list[Fault]:
    """Return the faults of a file."""
    return [Fault(**entry) for entry in tomllib.loads(path.read_text())["fault"]]


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy of the checkout as it is, with changes that are not committed, and remove it in any case."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="gavel-faults-") as folder:
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


def run_tests(root: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """Return the exit code and the output of pytest."""
    environment = os.environ | {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *options, *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def played(root: Path, fault: Fault) -> str:
    """Return what becomes of a fault: "noticed", by `make test` or by deep tests only, "not played", or what is wrong."""
    if problem := fault.problem(root):
        return f"NO LONGER APPLIES: {problem}"
    path = root / fault.file
    text = path.read_text()
    _write(path, text.replace(fault.before, fault.after))
    code, output = run_tests(root, fault.tests, "-x", "-m", "not deep")
    noticed = "noticed"
    if code == NOTHING_RAN:
        noticed = "noticed by make deep"
        code, output = run_tests(root, fault.tests, "-x")
    _write(path, text)
    if code == 0:
        return "NOT NOTICED" if re.search(r"\d passed", output) else f"not played: {_skipped(output)}"
    return noticed if code == 1 else f"NO TEST RAN: {output.strip().splitlines()[-1]}"


def _write(path: Path, text: str) -> None:
    """Write a module at a time that differs from all others by seconds, which is how Python knows bytecode that is out of date."""
    path.write_text(text)
    os.utime(path, (seconds := next(TIMES), seconds))


def _skipped(output: str) -> str:
    return next(iter(re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", output, re.MULTILINE)), "its tests are skipped")


def spent() -> float:
    """Return the CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Play the faults, print a line for each, and return 1 if one does not apply or is not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="names of faults, or parts of the paths of their files; all if none is given")
    names = parser.parse_args().names
    faults = [each for each in read_faults() if not names or each.name in names or any(name in each.file for name in names)]
    if not faults:
        parser.error(f"no fault is called {', '.join(names)}")
    wrong = skipped = 0
    with copied() as root:
        code, output = run_tests(root, sorted({test for fault in faults for test in fault.tests}))
        if code:
            print(f"Without faults, these tests have to pass:\n{output}")
            return 1
        print(f"{len(faults)} faults; without any, their tests pass ({spent():.0f} CPU s)", flush=True)
        for fault in faults:
            before = spent()
            result = played(root, fault)
            wrong += result[0].isupper()
            skipped += result.startswith("not played")
            print(f"{fault.name:24} {spent() - before:5.1f} s  {result}  ({fault.wrong})", flush=True)
    print(f"{len(faults) - wrong - skipped} noticed, {skipped} not played, {wrong} failed, {spent():.0f} CPU s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
