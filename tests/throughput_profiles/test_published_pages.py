"""The pages of the built-in profiles: what their readers read, merge and refuse, with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gavel_py as gp
from benchmarks.published_pages import elasticflow, llm_foundry, megatron_bridge, mlperf, trtllm
from benchmarks.published_pages.tables import ProfileFormat
from gavel_py.throughput_profiles.files import checked_rows
from tests.support.shared_data import SHARED, needs_shared_data

TRAINING = "submitter,benchmark,accelerator,num_accelerators,division,median_minutes\n"

INFERENCE = "id,model,scenario,result,units,accelerator,accelerators_per_node,nodes,weight_data_types\n"

MEGATRON = """# Performance

## 26.08 NeMo Container

### Pre-Training Performance

#### Model: Qwen3

| System | #-GPUs | Precision | GBS | Sequence Length | Tokens / sec / GPU |
|--------|--------|-----------|-----|-----------------|--------------------|
| DGX-GB300 | 8 | MXFP8 | 512 | 4096 | 100[^note] |
| DGX-H100 | 16 | FP8-CS (FP8-MX) | 512 | 4096 | 30 (20) |

## 26.06 NeMo Container

### LoRA Performance

#### System: DGX-GB300

| Model | #-GPUs | GBS | Sequence Length | Tokens / sec / GPU |
|-------|--------|-----|-----------------|--------------------|
| Qwen3 (dropless) | 8 | 64 | 4096 | 50 |
"""

FOUNDRY = """# MPT

## H100

|  Model | SeqLen (T) | # GPUs | GPU | GlobalBatchSize | Throughput (T/s) | Precision |
|  --- | --- | --- | --- | --- | --- | --- |
|  7b | 2048 | 8 | h100_80gb | 512 | 90000 | bf16 |
|  7b | 2048 | 8 | h100_80gb | 1024 | 91000 | bf16 |
|  7b | 512 | 8 | a100_40gb | 512 | 30000 | bf16 |
"""


def read(folder: Path, name: str, text: str, format_: ProfileFormat) -> gp.ThroughputProfile:
    (folder / name).write_text(text)
    return profile_of(folder / name, format_)


def profile_of(path: Path, format_: ProfileFormat) -> gp.ThroughputProfile:
    return gp.ThroughputProfile(path.stem, checked_rows(format_.merged(format_.read(path)), []))


def speeds(profile: gp.ThroughputProfile) -> dict[tuple[str, float, str], float]:
    return {(row.job_type, row.num_gpus, row.accelerator): row.steps_per_second for row in profile.rows}


class TestMlperf:
    def test_times_to_train_become_runs_per_minute_by_their_median(self, tmp_path: Path) -> None:
        rows = "".join(f"x,bert,NVIDIA H100-SXM5-80GB,8,closed,{minutes}\n" for minutes in (4, 10, 6))
        rows += "x,bert,NVIDIA L40S,8,closed,20\nx,bert,NVIDIA L40S,8,open,2\nx,bert,NVIDIA A30X,8,closed,40\n"
        rows += "x,bert,TPU-v5p,8,closed,\n"
        profile = read(tmp_path, "results.csv", TRAINING + rows, mlperf.TRAINING)
        expected = {("bert", 8, "h100"): 1 / 6, ("bert", 8, "l40s"): 1 / 20, ("bert", 8, "nvidia-a30x"): 1 / 40}
        assert speeds(profile) == pytest.approx(expected)
        assert profile.units == ("1/min",)
        assert profile.rows[0].source == "median of 3 results: results.csv, not verified by MLCommons Association"

    def test_throughputs_of_inference_have_the_scenario_as_condition(self, tmp_path: Path) -> None:
        rows = (
            "5.1-1,llama,Server,800,Tokens/s,NVIDIA H200-SXM-141GB,8,2,fp8\n"
            "5.1-2,llama,Server,900,Tokens/s,NVIDIA H200-SXM-141GB,16,1,fp4\n"
            "5.1-3,retinanet,Offline,500,Samples/s,,,1,int8\n"
            "5.1-4,retinanet,Offline,7000,Samples/s,NVIDIA L40S,1,1,int8\n"
            '5.1-5,retinanet,Offline,7000,Samples/s,"NVIDIA L40S (x1), NVIDIA L4 (x1)",2,1,int8\n'
            "5.1-6,retinanet,SingleStream,7,ms,NVIDIA L40S,1,1,int8\n"
        )
        profile = read(tmp_path, "closed.csv", INFERENCE + rows, mlperf.INFERENCE)
        assert speeds(profile) == {("llama (server)", 16, "h200"): 850, ("retinanet (offline)", 1, "l40s"): 7000}
        assert [str(profile.unit_of(name)) for name in profile.job_types] == ["tokens/s (server)", "requests/s (offline)"]
        assert "5.1-1 fp8" in profile.rows[0].source

    def test_the_summary_of_a_version(self, tmp_path: Path) -> None:
        entry = {"ID": "5.1-1", "Category": "closed", "Suite": "datacenter", "Model": "llama", "Scenario": "Offline", "Nodes": 1}
        entry |= {"a#": 8, "Accelerator": "AMD Instinct MI300X 192GB HBM3", "Performance_Result": 20.5}
        entry |= {"Performance_Units": "Tokens/s"}
        entries = [entry, entry | {"Category": "open"}, entry | {"Suite": "edge"}]
        profile = read(tmp_path, "summary_results.json", json.dumps(entries), mlperf.INFERENCE_SUMMARY)
        assert speeds(profile) == {("llama (offline)", 8, "mi300x"): 20.5}
        with pytest.raises(gp.InputError, match=r"\[0\], field result: is required"):
            read(tmp_path, "summary_results.json", json.dumps([entry | {"Performance_Result": None}]), mlperf.INFERENCE_SUMMARY)
        with pytest.raises(gp.InputError, match=r"\[0\], field Model: must be text or a number"):
            read(tmp_path, "summary_results.json", json.dumps([entry | {"Model": ["llama"]}]), mlperf.INFERENCE_SUMMARY)


class TestMarkdown:
    def test_megatron_bridge(self, tmp_path: Path) -> None:
        profile = read(tmp_path, "page.md", MEGATRON, megatron_bridge.FORMAT)
        assert speeds(profile) == {
            ("Qwen3 (pre-training, MXFP8, sequence length 4096)", 8, "gb300"): 800,
            ("Qwen3 (pre-training, FP8-CS, sequence length 4096)", 16, "h100"): 480,
            ("Qwen3 (lora, dropless, sequence length 4096)", 8, "gb300"): 400,
        }
        assert {(row.family, row.sequence_length) for row in profile.rows} == {("Qwen3", 4096)}
        assert [row.source for row in profile.rows] == ["page.md, 26.08"] * 2 + ["page.md, 26.06"]

    def test_of_equal_entries_the_first_is_kept(self, tmp_path: Path) -> None:
        profile = read(tmp_path, "README.md", FOUNDRY, llm_foundry.FORMAT)
        assert speeds(profile) == {
            ("MPT-7B (sequence length 2048)", 8, "h100"): 90000,
            ("MPT-7B (sequence length 512)", 8, "a100-40gb"): 30000,
        }
        assert profile.rows[0].batch_size == 512


class TestTables:
    def test_elasticflow_has_model_and_accelerator_in_its_file_name(self, tmp_path: Path) -> None:
        text = "global_batch_size,1,2,4\n64,6.5,8.5,0\n128,,4.5,nan\n"
        profile = read(tmp_path, "throughputs_A100_resnet50_cifar10.csv", text, elasticflow.FORMAT)
        name = "resnet50_cifar10 (batch size {})"
        assert speeds(profile) == {
            (name.format(64), 1, "a100-40gb"): 6.5,
            (name.format(64), 2, "a100-40gb"): 8.5,
            (name.format(128), 2, "a100-40gb"): 4.5,
        }
        with pytest.raises(gp.InputError, match=r"must be named throughputs_ACCELERATOR_MODEL\.csv"):
            read(tmp_path, "bert.csv", text, elasticflow.FORMAT)

    def test_both_shapes_of_trtllm(self, tmp_path: Path) -> None:
        by_tp = read(tmp_path, "tp.csv", "model,tp,isl,osl,h200-141gb,l40s\nLlama,2,128,256,100,\n", trtllm.FORMAT)
        assert speeds(by_tp) == {("Llama (input 128, output 256)", 2, "h200"): 100}
        by_precision = read(
            tmp_path, "p.csv", "model,isl,osl,b200_fp4,b200_gpus,h100_fp8,h100_gpus\nLlama,128,256,,,50,4\n", trtllm.BY_PRECISION
        )
        assert speeds(by_precision) == {("Llama (input 128, output 256)", 4, "h100"): 50}
        assert str(by_precision.unit_of("Llama (input 128, output 256)")) == "tokens/s (closed_loop)"
        assert by_precision.rows[0].source == "p.csv, FP8"


FAULTS = {
    "minutes": (
        "t.csv",
        TRAINING + "x,bert,NVIDIA L40S,8,closed,soon\n",
        2,
        "field median_minutes: must be a finite number",
    ),
    "GPUs": ("t.csv", TRAINING + "x,bert,NVIDIA L40S,8.5,closed,9\n", 2, "field num_accelerators: must be a whole number"),
    "no accelerator": ("t.csv", TRAINING + "x,bert,,8,closed,9\n", 2, "field accelerator: is required"),
    "units": (
        "i.csv",
        INFERENCE + "1,m,Offline,5,Joules,NVIDIA L40S,8,1,\n",
        2,
        "field units: must be Tokens/s, Samples/s",
    ),
    "cell": (
        "m.md",
        MEGATRON.replace("| 512 | 4096 | 100", "| 512 | long | 100"),
        11,
        "field Sequence Length: must be",
    ),
    "row": ("m.md", MEGATRON.replace("| 8 | MXFP8 |", "| 8 |"), 11, "has 5 cells, but the header of the table has 6"),
    "speed": ("f.md", FOUNDRY.replace("91000", "-1"), 8, "field Throughput (T/s): must be a finite number above 0, found '-1'"),
    "column": (
        "throughputs_T4_x.csv",
        "global_batch_size,1,two\n1,1,1\n",
        1,
        "column 'two' must be a number of GPUs",
    ),
    "tp": ("tp.csv", "model,tp,isl,osl,l40s\nLlama,two,128,256,100\n", 2, "field tp: must be a finite number above 0, found 'two'"),
}


OF_FILE = {
    "t.csv": mlperf.TRAINING,
    "i.csv": mlperf.INFERENCE,
    "m.md": megatron_bridge.FORMAT,
    "f.md": llm_foundry.FORMAT,
    "throughputs_T4_x.csv": elasticflow.FORMAT,
    "tp.csv": trtllm.FORMAT,
}


@pytest.mark.parametrize(("name", "text", "line", "problem"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_names_file_line_and_field(tmp_path: Path, name: str, text: str, line: int, problem: str) -> None:
    with pytest.raises(gp.InputError) as caught:
        read(tmp_path, name, text, OF_FILE[name])
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"{tmp_path / name}, line {line}")
    assert problem in str(fault)


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError) as caught:
        read(
            tmp_path,
            "t.csv",
            TRAINING + "x,bert,L40S,x,closed,9\nx,bert,L40S,8,closed,9\nx,bert,L40S,8,closed,y\n",
            mlperf.TRAINING,
        )
    assert [fault.where.rpartition(" ")[2] for fault in caught.value.faults] == ["2", "4"]


PUBLISHED = {
    "mlperf-training-v4.0/time_to_train.csv": (mlperf.TRAINING, 82, 9),
    "mlperf-inference-v5.1/closed_datacenter.csv": (mlperf.INFERENCE, 188, 26),
    "megatron-bridge/performance-summary.md": (megatron_bridge.FORMAT, 18, 10),
    "megatron-bridge/performance-summary-archive.md": (megatron_bridge.FORMAT, 103, 41),
    "llm-foundry/README.md": (llm_foundry.FORMAT, 209, 61),
    "elasticflow/throughputs_T4_bert.csv": (elasticflow.FORMAT, 7, 1),
    "trtllm/v0.17_h200_h100_gh200_l40s_a100.csv": (trtllm.FORMAT, 373, 54),
    "trtllm/v1.0_b200_gb200_h200_h100.csv": (trtllm.BY_PRECISION, 136, 42),
}


@needs_shared_data
@pytest.mark.parametrize(("file", "expected"), PUBLISHED.items())
def test_published_files_are_read(file: str, expected: tuple[ProfileFormat, int, int]) -> None:
    profile = profile_of(SHARED / file, expected[0])
    assert (len(profile), len(profile.job_types)) == expected[1:]
