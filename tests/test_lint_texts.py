"""What lint says about the changelog and about subjects of commits."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

LINT = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "lint_texts.py"))
CHANGELOG = """# Changelog

## Unreleased

### Files

- `-o` is `--out`: write `--out`.

## 0.1.0

- What it does.
"""


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("", "", ""),
        ("`--out`.", "x" * 160, "line 7 has 185 characters; an entry is one line of at most 160"),
        (
            "### Files",
            "### Fixed",
            "line 5 is '### Fixed'; entries are grouped by those concerned: Operators, Python, Files, Slurm",
        ),
        ("### Files", "", "line 7 is an entry of no group; these are Operators, Python, Files, Slurm"),
        ("- What it does.", "- What.\n- What.", "line 12 repeats an entry"),
        ("write", "\n  write", "line 8 continues an entry; an entry is one line"),
        ("## Unreleased", "## Next", "has the sections Next, 0.1.0; Unreleased comes first, then the releases"),
    ],
)
def test_entries_are_short_and_grouped_by_those_concerned(before: str, after: str, fault: str) -> None:
    assert list(LINT["of_changelog"](CHANGELOG.replace(before, after, 1))) == ([fault] if fault else [])


def test_subjects_are_short_and_name_an_area() -> None:
    found = list(LINT["of_subjects"](["docs, rounds: say why", "Fix it", "io: " + "x" * 69]))
    assert [fault.partition("; ")[0] for fault in found] == ["'Fix it' does not say where", f"'io: {'x' * 69}' has 73 characters"]


def test_only_commits_that_the_main_branch_lacks_are_read(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True, capture_output=True
        )

    new_subjects = LINT["new_subjects"]
    assert new_subjects(tmp_path) == []
    git("init", "--initial-branch=work")
    git("commit", "--allow-empty", "--message=one: first")
    assert new_subjects(tmp_path) == []
    git("branch", "main")
    assert new_subjects(tmp_path) == []
    git("commit", "--allow-empty", "--message=two: second")
    assert new_subjects(tmp_path) == ["two: second"]
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert new_subjects(tmp_path) == []
