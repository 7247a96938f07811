"""Makes the built-in profiles of published throughputs: python benchmarks/builtin_profiles.py SOURCES

SOURCES is a folder with the files of each source, one folder for each repository and version, as in `PROFILES`. The profiles are
written to gavel_py/throughput_profiles/data, with four significant digits. `gavel-osdi20` is not made again.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from published_pages import elasticflow, llm_foundry, megatron_bridge, mlperf, trtllm
from published_pages.tables import Placed, ProfileFormat

import gavel_py
from gavel_py.throughput_profiles.files import MeasuredRow, checked_rows, write_csv

DATA = Path(gavel_py.__file__).parent / "throughput_profiles" / "data"

MLPERF_DATES = {"4.0": "2024-06-11", "5.0": "2025-05-30", "5.1": "2026-01-12"}
"""Dates of the commits of the results repositories whose logs were used, which are not the dates of retrieval."""


@dataclass(frozen=True)
class Profile:
    """A profile to make; files: format and pattern below the folder of sources, with the name of a file in the source of rows."""

    name: str
    files: tuple[tuple[ProfileFormat, str, str], ...]
    description: str
    notice: str
    url: str
    licence: str = "Apache-2.0"

    def placed(self, sources: Path) -> Iterator[Placed]:
        for format_, pattern, shown in self.files:
            found = sorted(sources.glob(pattern))
            if not found:
                raise SystemExit(f"{sources / pattern}: not found")
            for path in found:
                for where, fields in format_.read(path):
                    yield where, fields | {"source": fields["source"].replace(path.name, shown.format(path.name), 1)}

    def rows(self, sources: Path) -> list[MeasuredRow]:
        merged = self.files[0][0].merged(self.placed(sources))
        rows = [measurement.row() for measurement in checked_rows(merged, [])]
        return [row._replace(steps_per_second=float(f"{row.steps_per_second:.4g}")) for row in rows]


@dataclass(frozen=True)
class MlperfTraining(Profile):
    """The results of several versions, whose rows name all versions that they are computed from."""

    def rows(self, sources: Path) -> list[MeasuredRow]:
        versions: dict[tuple[Any, ...], list[str]] = {}
        for _, fields in self.placed(sources):
            version = fields["source"].split(",")[0]
            versions.setdefault((fields["job_type"], fields["num_gpus"], fields["accelerator"]), []).append(version)

        def source(found: list[str]) -> str:
            names = ", ".join(f"v{v} (results repository as of {MLPERF_DATES[v]})" for v in dict.fromkeys(found))
            what = f"computed from public logs of MLPerf Training {names}, not verified by MLCommons Association"
            return what if len(found) == 1 else f"{what}; median of {len(found)} results"

        return [row._replace(source=source(versions[row.job_type, row.num_gpus, row.accelerator])) for row in super().rows(sources)]


NVIDIA_ACCELERATORS = ("v100-16gb", "v100-32gb", "a100-40gb", "a100-80gb")


@dataclass(frozen=True)
class NvidiaExamples(Profile):
    """The figures of NVIDIA's READMEs, whose rows name the README, the line and what is counted: all but tokens are samples."""

    def rows(self, sources: Path) -> list[MeasuredRow]:
        with open(sources / "nvidia" / "training_throughput.csv", encoding="utf-8", newline="") as file:
            found = [self._row(fields) for fields in csv.DictReader(file)]
        return sorted(found, key=lambda row: NVIDIA_ACCELERATORS.index(row.accelerator))

    def _row(self, fields: dict[str, str]) -> MeasuredRow:
        source = f"{fields['source'].split(' # ')[0]}:{fields['readme_line']}, {fields['unit']}"
        speed = float(f"{float(fields['samples_per_second']):.4g}")
        gang = fields["job_type"], int(fields["num_gpus"]), fields["accelerator"]
        unit = "tokens/s" if fields["unit"] == "tokens/s" else "samples/s"
        return MeasuredRow(*gang, "consolidated", speed, None, None, source, unit=unit)


PROFILES = (
    NvidiaExamples(
        "nvidia-2023",
        (),
        "Training throughput of 121 job types (model, framework, precision, batch size) on v100-16gb, v100-32gb, a100-40gb and"
        " a100-80gb, as published by NVIDIA, 2019 to 2023; a sample is an image, volume, sequence, molecule, user, mel frame"
        " (FastPitch, HiFi-GAN) or audio sample (WaveGlow), as the source of each row says; precision 'full' is FP32 on V100 and"
        " TF32 on A100; four significant digits",
        "Figures published by NVIDIA in the READMEs of NVIDIA Deep Learning Examples; the source of each row names README and line",
        "https://github.com/NVIDIA/DeepLearningExamples",
        "figures only (facts)",
    ),
    MlperfTraining(
        "mlperf-training",
        tuple((mlperf.TRAINING, f"mlperf-training-v{version}/time_to_train.csv", version) for version in MLPERF_DATES),
        "Times to train of MLPerf Training v4.0, v5.0 and v5.1, closed division, as one over the minutes to the target: the median"
        " of all results of a benchmark, number of accelerators and accelerator. Computed from public logs, not verified by"
        " MLCommons Association; four significant digits",
        "MLPerf is a trademark of MLCommons Association. The figures are computed from its public logs and are not verified by it",
        "https://github.com/mlcommons/training_results_v5.1",
    ),
    Profile(
        "megatron-2026",
        (
            (megatron_bridge.FORMAT, "megatron-bridge/performance-summary.md", "docs/{}"),
            (megatron_bridge.FORMAT, "megatron-bridge/performance-summary-archive.md", "docs/{}"),
        ),
        "Tokens/s of pre-training, LoRA and fine-tuning of large language models on gb300, gb200, b300, b200 and h100 at 8 to 1,024"
        " GPUs, as published by NVIDIA for Megatron Bridge, 2025 to 2026; of several releases the latest; four significant digits",
        "Figures published by NVIDIA in the documentation of Megatron Bridge; the source of each row names page and release",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge",
    ),
    Profile(
        "mpt-2023",
        ((llm_foundry.FORMAT, "llm-foundry/README.md", "scripts/train/benchmarking/{}"),),
        "Tokens/s of training MPT models of 125M to 70B parameters by sequence length, on a100-40gb, a100-80gb and h100 at 8 to 512"
        " GPUs, as published by MosaicML for llm-foundry, 2023; of several batch sizes the first; four significant digits",
        "Figures published by MosaicML in the README of the training benchmarks of llm-foundry",
        "https://github.com/mosaicml/llm-foundry",
    ),
    Profile(
        "elasticflow",
        ((elasticflow.FORMAT, "elasticflow/throughputs_*.csv", "ElasticFlow/scheduler/{}"),),
        "Training throughput of 11 models by global batch size on a100-40gb and t4 at 1 to 64 GPUs, as measured for the paper"
        " 'ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning' (ASPLOS 2023), those on t4 from"
        " AdaptDL; steps are training iterations; four significant digits",
        "Figures published by the authors of ElasticFlow in its artifact",
        "https://github.com/pkusys/ElasticFlow",
    ),
    Profile(
        "trtllm",
        (
            (trtllm.FORMAT, "trtllm/v0.17_*.csv", "perf-overview.md of v0.17"),
            (trtllm.BY_PRECISION, "trtllm/v1.0_*.csv", "perf-overview.md of v1.0"),
        ),
        "Tokens/s of serving large language models by lengths of input and output at the largest load, on h200, h100, gh200, l40s"
        " and a100-80gb (TensorRT-LLM v0.17; FP16 on a100-80gb, FP8 on the others) and on b200, gb200, h200 and h100 (v1.0; FP4 on"
        " b200 and gb200, FP8 on the others); four significant digits",
        "Figures published by NVIDIA in the performance overview of TensorRT-LLM",
        "https://github.com/NVIDIA/TensorRT-LLM",
    ),
)


def main(sources: Path, data: Path = DATA) -> None:
    """Write the profiles and their descriptions."""
    catalogue = json.loads((data / "profiles.json").read_text(encoding="utf-8"))
    for profile in PROFILES:
        rows = profile.rows(sources)
        write_csv(rows, data / f"{profile.name}.csv")
        about = {"description": profile.description, "licence": profile.licence, "notice": profile.notice, "url": profile.url}
        catalogue[profile.name] = about
        print(f"{profile.name}: {len(rows)} rows, {(data / profile.name).with_suffix('.csv').stat().st_size:,} bytes")
    (data / "profiles.json").write_text(json.dumps(catalogue, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
