"""Specifications of accelerators: figures, spellings of names, and rows of users."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.shared_data import SHARED, needs_shared_data

TABLE = gp.AcceleratorTable.builtin()

SPELLINGS = {
    "h100": ["H100", "h100-sxm", "h100_sxm5", "H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA H100-SXM5-80GB", "h100-80gb"],
    "h100-pcie": ["NVIDIA H100-PCIe-80GB", "H100 PCIe"],
    "h100-nvl": ["NVIDIA H100-NVL-94GB"],
    "h200": ["NVIDIA H200-SXM5-141GB", "h200-141gb", "Virtualized NVIDIA H200-SXM-141GB"],
    "a100-80gb": ["a100", "A100-SXM4-80GB", "nvidia_a100-sxm4-80gb", "A100 80G"],
    "a100-40gb": ["a100-40gb", "NVIDIA A100-SXM4-40GB"],
    "a100-80gb-pcie": ["NVIDIA A100 80GB PCIe", "a100-pcie"],
    "a100-40gb-pcie": ["NVIDIA A100-PCIE-40GB"],
    "v100": ["V100", "Tesla V100-PCIE-16GB"],
    "v100-16gb": ["Tesla V100-SXM2-16GB", "V100M16", "v100-sxm2"],
    "v100-32gb": ["Tesla V100-SXM2-32GB", "V100M32"],
    "gh200": ["gh200-480gb"],
    "gh200-144gb": ["NVIDIA GH200 Grace Hopper Superchip 144GB"],
    "b200": ["NVIDIA Blackwell GPU (B200-SXM-180GB)", "DGX-B200"],
    "gb300": ["NVIDIA Blackwell Ultra GPU (GB300)", "DGX-GB300"],
    "mi300x": ["AMD Instinct MI300X 192GB HBM3", "mi300x"],
    "mi325x": ["AMD Instinct MI325X 256GB HBM3E DLC"],
    "gaudi2": ["Intel(R) Gaudi(R) 2 AI Accelerator"],
    "rtx-2080ti": ["NVIDIA GeForce RTX 2080 Ti", "2080Ti"],
    "l4": ["NVIDIA L4-PCIe-24GB"],
    "tpu-v6e": ["TPU-trillium"],
}


@pytest.mark.parametrize(("name", "spelling"), [(name, each) for name, spellings in SPELLINGS.items() for each in spellings])
def test_usual_spellings_are_found(name: str, spelling: str) -> None:
    spec = TABLE.find(spelling)
    assert spec is not None
    assert spec.name == name


@pytest.mark.parametrize("name", ["", "nvidia", "h100 96gb", "h100xm", "h200-pcie", "a100-1g.5gb", "nvidia_a100_80gb_pcie_1g.10gb"])
def test_parts_of_gpus_and_sizes_that_do_not_exist_are_not_found(name: str) -> None:
    assert TABLE.find(name) is None


def test_every_row_has_a_source_and_the_figures_that_estimates_need() -> None:
    for spec in TABLE:
        assert spec.source
        assert spec.fp16_tflops
        assert spec.memory_gb
        assert spec.memory_bandwidth_gbs
        assert spec.usd_per_hour is None
        assert all(TABLE.find(name) is spec for name in spec.names)


def test_peak_speeds_double_from_precision_to_precision() -> None:
    for spec in TABLE:
        if spec.fp8_tflops and spec.fp16_tflops:
            assert spec.fp8_tflops == pytest.approx(2 * spec.fp16_tflops, rel=0.02)
        if spec.tf32_tflops and spec.fp16_tflops and spec.tf32_tflops > (spec.fp32_tflops or 0):
            assert spec.tf32_tflops == pytest.approx(spec.fp16_tflops / 2, rel=0.02)


def test_figures_that_estimates_were_tuned_on() -> None:
    expected = {  # per GPU: TF32 or FP32, FP16, GB/s, GB
        "k80": (4.1, 4.1, 240, 12),
        "p100": (9.3, 18.7, 732, 16),
        "v100": (14.0, 112, 900, 16),
        "v100-16gb": (15.7, 125, 900, 16),
        "v100-32gb": (15.7, 125, 900, 32),
        "a100-40gb": (156, 312, 1555, 40),
        "a100-80gb": (156, 312, 2039, 80),
    }
    for name, figures in expected.items():
        spec = TABLE.find(name)
        assert spec is not None
        assert (spec.tf32_tflops or spec.fp32_tflops, spec.fp16_tflops, spec.memory_bandwidth_gbs, spec.memory_gb) == figures


def test_the_accelerators_of_the_built_in_profiles_are_in_the_table() -> None:
    for name in gp.ThroughputProfile.builtin_names():
        for accelerator in gp.ThroughputProfile.builtin(name).accelerators:
            spec = TABLE.find(accelerator)
            assert spec is not None
            assert spec.name == accelerator


@needs_shared_data
@pytest.mark.parametrize("version", ["4.0", "5.0", "5.1"])
def test_the_accelerators_of_published_training_results_are_in_the_table(version: str) -> None:
    with open(SHARED / f"mlperf-training-v{version}" / "time_to_train.csv", encoding="utf-8", newline="") as file:
        assert all(TABLE.find(row["accelerator"]) for row in csv.DictReader(file))


@given(st.sampled_from([name for spec in TABLE for name in spec.names]), st.data())
def test_case_and_separators_do_not_matter(name: str, data: st.DataObject) -> None:
    separator = data.draw(st.sampled_from(["-", "_", " "]))
    cased = data.draw(st.sampled_from([str.upper, str.lower, str.title]))
    spec = TABLE.find(cased(name.replace("-", separator)))
    assert spec is not None
    assert name in spec.names


class TestExtending:
    def test_rows_of_a_file_come_first(self, tmp_path: Path) -> None:
        path = tmp_path / "own.csv"
        path.write_text("name,aliases,fp16_tflops,memory_gb\nlab-x,x1; x-one,50,48\nH100,,900,80\n")
        table = TABLE.extended(path)
        assert len(table) == len(TABLE) + 1
        assert [table.find(name).fp16_tflops for name in ("lab-x", "X1 48GB", "x_one", "h100")] == [50, 50, 50, 900]  # type: ignore[union-attr]
        assert TABLE.find("lab-x") is None

    def test_rows_are_records_or_mappings(self) -> None:
        table = TABLE.extended([gp.AcceleratorSpec(name="a", aliases=["b"]), {"name": "c", "memory_gb": "7"}])
        assert [table.find(name).name for name in "abc"] == ["a", "a", "c"]  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("text", "line", "problem"),
        [
            ("name,memory_gb\na,many\n", 2, "field memory_gb: must be a number, found 'many'"),
            ("name,memory_gb\na,1\nb,0\n", 3, "field memory_gb: must be greater than 0, found '0'"),
            ("name,memory\na,1\n", 1, "column 'memory' is not known; did you mean 'memory_gb'"),
            ("memory_gb\n1\n", 1, "column 'name' is missing"),
            ("name,aliases\na,x\nb,X\n", 3, "'x' appears twice, first at"),
            ("name,usd_per_hour\na,2\n", 2, "usd_per_hour needs price_provider and price_date"),
            ("name,usd_per_hour,price_provider,price_date\na,2,p,May\n", 2, "must be a date YYYY-MM-DD, found 'May'"),
        ],
    )
    def test_each_fault_names_its_line(self, tmp_path: Path, text: str, line: int, problem: str) -> None:
        path = tmp_path / "own.csv"
        path.write_text(text)
        with pytest.raises(gp.InputError) as caught:
            TABLE.extended(path)
        (fault,) = caught.value.faults
        assert str(fault).startswith(f"{path}, line {line}")
        assert problem in str(fault)


def test_a_file_of_the_environment_extends_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = tmp_path / "more.csv"
    more.write_text("name,aliases,fp16_tflops,memory_bandwidth_gbs\nx100,x-100-oam,700,3000\n")
    assert gp.AcceleratorTable.builtin().find("x100") is None
    monkeypatch.setenv("GAVEL_PY_ACCELERATORS", str(more))
    found = gp.AcceleratorTable.builtin().find("X-100-OAM")
    assert found is not None
    assert found.fp16_tflops == 700
    profile = gp.ThroughputProfile("p", [gp.Measurement(job_type="a", num_gpus=1, accelerator="v100", steps_per_second=1)])
    cluster = gp.Cluster.from_counts({"x100": 1, "abacus": 1})
    with pytest.raises(gp.UnknownNameError, match=r"'abacus'.*an estimate needs its specifications") as raised:
        cluster.known_to(profile.with_estimates())
    assert "x100" not in str(raised.value)
    assert profile.with_estimates().throughput("a", 1, "x100") > 0
    monkeypatch.setenv("GAVEL_PY_ACCELERATORS", str(tmp_path / "none.csv"))
    with pytest.raises(gp.InputError, match=r"none\.csv"):
        gp.AcceleratorTable.builtin()
