"""The built-in profiles: valid, and equal to their sources to four significant digits."""

from __future__ import annotations

import ast
import csv
import json
import subprocess
import sys

import pytest

from gavel_py.errors import UnknownNameError
from gavel_py.throughput_profiles import Entry, ThroughputProfile
from tests.support.shared_data import SHARED, needs_shared_data


def four_digits(speed: float) -> float:
    return float(f"{speed:.4g}")


@pytest.mark.parametrize("name", ThroughputProfile.builtin_names())
class TestEveryBuiltin:
    def test_it_passes_the_checks_that_loading_it_skips(self, name: str) -> None:
        profile = ThroughputProfile.builtin(name)
        about = {field: getattr(profile, field) for field in ("description", "licence", "notice", "url")}
        assert ThroughputProfile(name, profile.measurements, **about) == profile

    def test_it_names_its_origin(self, name: str) -> None:
        profile = ThroughputProfile.builtin(name)
        assert profile.description
        assert profile.licence
        assert profile.notice
        assert profile.url.startswith("https://github.com/")
        assert all(row.source for row in profile.rows)


def test_names() -> None:
    assert ThroughputProfile.builtin_names() == ("gavel-osdi20", "nvidia-2023")
    with pytest.raises(UnknownNameError, match="'gavel-osdi2' is not built in; did you mean 'gavel-osdi20'"):
        ThroughputProfile.builtin("gavel-osdi2")


@pytest.mark.slow
def test_importing_and_loading_needs_no_heavy_library() -> None:
    code = """
import sys
from gavel_py.throughput_profiles import ThroughputProfile
ThroughputProfile.builtin("gavel-osdi20")
print([name for name in ("cvxpy", "matplotlib", "pandas", "scipy", "yaml") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class TestGavel:
    def test_size(self) -> None:
        profile = ThroughputProfile.builtin("gavel-osdi20")
        assert len(profile.job_types) == 26
        assert profile.accelerators == ("k80", "p100", "v100")
        assert profile.gang_sizes == (1, 2, 4, 8)

    def test_known_values(self) -> None:
        profile = ThroughputProfile.builtin("gavel-osdi20")
        assert profile.throughput("A3C", 1, "k80") == 3.439
        assert profile.throughput("ResNet-18 (batch size 16)", 1, "v100") == 32.35
        assert profile.throughput("ResNet-50 (batch size 128)", 2, "k80") == 0.0

    @needs_shared_data
    def test_it_has_exactly_the_entries_of_the_source(self) -> None:
        published = json.loads((SHARED / "gavel" / "simulation_throughputs.json").read_text())
        expected: dict[Entry, float] = {}
        for kind, table in published.items():
            accelerator = kind.removesuffix("_unconsolidated")
            placement = "consolidated" if kind == accelerator else "spread"
            for key, cells in table.items():
                job_type, num_gpus = ast.literal_eval(key)
                for other, figures in cells.items():
                    partner = None if other == "null" else ast.literal_eval(other)[0]
                    own = figures if partner is None else figures[0]
                    expected[Entry(job_type, num_gpus, accelerator, placement, partner)] = own
        profile = ThroughputProfile.builtin("gavel-osdi20")
        pairs = [entry for entry in expected if entry.partner is not None]
        assert len(pairs) == 5 * 1759 + 1543
        assert {entry: profile.throughput(*entry) for entry in expected} == {e: four_digits(s) for e, s in expected.items()}
        assert all((profile.throughput(*entry) > 0) == (speed > 0) for entry, speed in expected.items())
        # Every pair but those of a job type with itself stands in the source from both sides, in the profile once.
        selves = sum(entry.partner == entry.job_type for entry in pairs)
        assert len(profile) == len(expected) - (len(pairs) - selves) // 2


class TestNvidia:
    def test_size(self) -> None:
        profile = ThroughputProfile.builtin("nvidia-2023")
        assert len(profile.job_types) == 121
        assert profile.accelerators == ("v100-16gb", "v100-32gb", "a100-40gb", "a100-80gb")

    def test_a_known_value(self) -> None:
        profile = ThroughputProfile.builtin("nvidia-2023")
        assert profile.throughput("BERT-Large pre-train seq128 (TensorFlow1, mixed, batch 64)", 256, "a100-40gb") == 77480.0

    @needs_shared_data
    def test_it_has_exactly_the_rows_of_the_source(self) -> None:
        with open(SHARED / "nvidia" / "training_throughput.csv", encoding="utf-8", newline="") as file:
            published = list(csv.DictReader(file))
        profile = ThroughputProfile.builtin("nvidia-2023")
        found = {(r.job_type, r.num_gpus, r.accelerator): (r.steps_per_second, r.source) for r in profile.rows}
        expected = {}
        for row in published:
            source = f"{row['source'].split(' # ')[0]}:{row['readme_line']}"
            key = (row["job_type"], int(row["num_gpus"]), row["accelerator"])
            expected[key] = (four_digits(float(row["samples_per_second"])), source)
        assert found == expected
        assert len(profile) == len(published)
