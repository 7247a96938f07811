"""The built-in profiles: valid, and equal to their sources to four significant digits."""

from __future__ import annotations

import ast
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

import gavel_py as gp
from tests.support.shared_data import SHARED, needs_shared_data

ROOT = Path(__file__).parents[2]

MADE = ("mlperf-training", "megatron-2026", "mpt-2023", "elasticflow", "trtllm")
"""Profiles under the Apache License that benchmarks/builtin_profiles.py makes."""


def four_digits(speed: float) -> float:
    return float(f"{speed:.4g}")


@pytest.mark.parametrize("name", gp.ThroughputProfile.builtin_names())
class TestEveryBuiltin:
    def test_it_passes_the_checks_that_loading_it_skips(self, name: str) -> None:
        profile = gp.ThroughputProfile.builtin(name)
        about = {field: getattr(profile, field) for field in ("description", "licence", "notice", "url")}
        assert gp.ThroughputProfile(name, profile.measurements, **about) == profile

    def test_it_names_its_origin(self, name: str) -> None:
        profile = gp.ThroughputProfile.builtin(name)
        assert profile.description
        assert profile.licence
        assert profile.notice
        assert profile.url.startswith("https://github.com/")
        assert all(row.source for row in profile.rows)


def test_names() -> None:
    assert gp.ThroughputProfile.builtin_names() == ("gavel-osdi20", "nvidia-2023", *MADE)
    with pytest.raises(gp.UnknownNameError, match="'gavel-osdi2' is not built in; did you mean 'gavel-osdi20'"):
        gp.ThroughputProfile.builtin("gavel-osdi2")


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
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        assert len(profile.job_types) == 26
        assert profile.accelerators == ("k80", "p100", "v100")
        assert profile.gang_sizes == (1, 2, 4, 8)

    def test_known_values(self) -> None:
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        assert profile.throughput("A3C", 1, "k80") == 3.439
        assert profile.throughput("ResNet-18 (batch size 16)", 1, "v100") == 32.35
        assert profile.throughput("ResNet-50 (batch size 128)", 2, "k80") == 0.0

    @needs_shared_data
    def test_it_has_exactly_the_entries_of_the_source(self) -> None:
        published = json.loads((SHARED / "gavel" / "simulation_throughputs.json").read_text())
        expected: dict[gp.throughput_profiles.Entry, float] = {}
        for kind, table in published.items():
            accelerator = kind.removesuffix("_unconsolidated")
            placement = "consolidated" if kind == accelerator else "spread"
            for key, cells in table.items():
                job_type, num_gpus = ast.literal_eval(key)
                for other, figures in cells.items():
                    partner = None if other == "null" else ast.literal_eval(other)[0]
                    own = figures if partner is None else figures[0]
                    expected[gp.throughput_profiles.Entry(job_type, num_gpus, accelerator, placement, partner)] = own
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        pairs = [entry for entry in expected if entry.partner is not None]
        assert len(pairs) == 5 * 1759 + 1543
        assert {entry: profile.throughput(*entry) for entry in expected} == {e: four_digits(s) for e, s in expected.items()}
        assert all((profile.throughput(*entry) > 0) == (speed > 0) for entry, speed in expected.items())
        # Every pair but those of a job type with itself stands in the source from both sides, in the profile once.
        selves = sum(entry.partner == entry.job_type for entry in pairs)
        assert len(profile) == len(expected) - (len(pairs) - selves) // 2


class TestNvidia:
    def test_size(self) -> None:
        profile = gp.ThroughputProfile.builtin("nvidia-2023")
        assert len(profile.job_types) == 121
        assert profile.accelerators == ("v100-16gb", "v100-32gb", "a100-40gb", "a100-80gb")

    def test_a_known_value(self) -> None:
        profile = gp.ThroughputProfile.builtin("nvidia-2023")
        assert profile.throughput("BERT-Large pre-train seq128 (TensorFlow1, mixed, batch 64)", 256, "a100-40gb") == 77480.0

    def test_images_and_tokens_are_not_in_one_unit(self) -> None:
        profile = gp.ThroughputProfile.builtin("nvidia-2023")
        assert profile.units == ("samples/s", "tokens/s")
        assert profile.unit_of("Transformer (PyTorch, mixed, batch 10240)").unit == "tokens/s"
        assert profile.unit_of("nnU-Net 2D (PyTorch, full, batch 64)").unit == "samples/s"

    @needs_shared_data
    def test_it_has_exactly_the_rows_of_the_source(self) -> None:
        with open(SHARED / "nvidia" / "training_throughput.csv", encoding="utf-8", newline="") as file:
            published = list(csv.DictReader(file))
        profile = gp.ThroughputProfile.builtin("nvidia-2023")
        found = {(r.job_type, r.num_gpus, r.accelerator): (r.steps_per_second, r.source, r.unit) for r in profile.rows}
        expected = {}
        for row in published:
            source = f"{row['source'].split(' # ')[0]}:{row['readme_line']}, {row['unit']}"
            unit = "tokens/s" if row["unit"] == "tokens/s" else "samples/s"
            key = (row["job_type"], int(row["num_gpus"]), row["accelerator"])
            expected[key] = (four_digits(float(row["samples_per_second"])), source, unit)
        assert found == expected
        assert len(profile) == len(published)


class TestMade:
    @needs_shared_data
    def test_the_script_makes_them_again(self, tmp_path: Path) -> None:
        sys.path.insert(0, str(ROOT / "benchmarks"))
        try:
            from builtin_profiles import DATA, main
        finally:
            sys.path.pop(0)
        shutil.copy(DATA / "profiles.json", tmp_path)
        main(SHARED, tmp_path)
        for name in ("nvidia-2023", *MADE):
            assert (tmp_path / f"{name}.csv").read_text() == (DATA / f"{name}.csv").read_text()
        assert (tmp_path / "profiles.json").read_text() == (DATA / "profiles.json").read_text()

    @pytest.mark.parametrize("name", MADE)
    def test_files_are_small_and_state_their_licence(self, name: str) -> None:
        assert (ROOT / "gavel_py" / "throughput_profiles" / "data" / f"{name}.csv").stat().st_size < 150_000
        assert gp.ThroughputProfile.builtin(name).licence == "Apache-2.0"
        assert f"\n{name}.csv: " in (ROOT / "NOTICE").read_text()

    @pytest.mark.parametrize(
        ("name", "gang", "expected"),
        [
            ("megatron-2026", ("DeepSeekV3 (pre-training, MXFP8, sequence length 4096)", 256, "gb300"), 6288 * 256),
            ("megatron-2026", ("LLAMA3_70B (lora, FP8, sequence length 4096)", 8, "gb200"), 6206 * 8),
            ("mpt-2023", ("MPT-70B (sequence length 2048)", 512, "h100"), 515636),
            ("mpt-2023", ("MPT-30B (sequence length 8192)", 8, "a100-80gb"), 4594),
            ("elasticflow", ("bert (batch size 64)", 2, "a100-40gb"), 8.643477263279834),
            ("elasticflow", ("yolov3 (batch size 64)", 16, "t4"), 0.8514782062868322),
            ("trtllm", ("LLaMA v3.1 8B (input 128, output 2048)", 1, "l40s"), 5365.81),
            ("trtllm", ("Llama 3.1 405B (input 128, output 128)", 4, "gb200"), 6740),
        ],
    )
    def test_known_values(self, name: str, gang: tuple[str, int, str], expected: float) -> None:
        assert gp.ThroughputProfile.builtin(name).throughput(*gang) == four_digits(expected)

    def test_units(self) -> None:
        units = {name: gp.ThroughputProfile.builtin(name).units for name in MADE}
        assert units == dict.fromkeys(MADE, ("tokens/s",)) | {"mlperf-training": ("1/min",), "elasticflow": ("steps/s",)}
        assert {row.condition for row in gp.ThroughputProfile.builtin("trtllm").rows} == {"closed_loop"}

    @needs_shared_data
    def test_times_to_train_are_medians_of_all_closed_results(self) -> None:
        minutes: dict[tuple[str, int, str], list[float]] = {}
        for version in ("4.0", "5.0", "5.1"):
            with open(SHARED / f"mlperf-training-v{version}" / "time_to_train.csv", encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    if row["division"] == "closed":
                        spec = gp.AcceleratorTable.builtin().find(row["accelerator"])
                        assert spec is not None
                        key = row["benchmark"], int(row["num_accelerators"]), spec.name
                        minutes.setdefault(key, []).append(float(row["median_minutes"]))
        profile = gp.ThroughputProfile.builtin("mlperf-training")
        found = {(row.job_type, row.num_gpus, row.accelerator): row.steps_per_second for row in profile.rows}
        assert found == {key: four_digits(1 / median(each)) for key, each in minutes.items()}
        assert all("results repository as of 20" in row.source for row in profile.rows)
        assert all("not verified by MLCommons Association" in row.source for row in profile.rows)


def test_the_figures_of_mpt_in_the_readme_are_those_of_the_profile() -> None:
    speeds: dict[tuple[str, float], dict[str, float]] = {}
    for row in gp.ThroughputProfile.builtin("mpt-2023").rows:
        speeds.setdefault((row.job_type, row.num_gpus), {})[row.accelerator] = row.steps_per_second
    gains = {key: each["h100"] / each["a100-80gb"] for key, each in speeds.items() if {"h100", "a100-80gb"} <= each.keys()}
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"in {len(gains)} pairs of measurements of {len({name for name, _ in gains})} job types of MPT." in text
    assert f"an H100 is {min(gains.values()):.1f} to {max(gains.values()):.2g} times as fast as an A100-80GB" in text
