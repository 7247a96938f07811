"""Services and serving profiles: what the records accept, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.serving.known_answers import mlperf
from tests.support.shared_data import needs_shared_data

YAML = """\
services:
  - name: chat
    model: llama-8b
    rate: 40
    cv: 2
    ttft_seconds: 0.5
    tpot_seconds: 0.05
    rate_factor: 0.55
    mix: {128/128: 3, 1000/1000: 1}
  - name: batch
    model: llama-70b
    rate: 2
    tenant: research
"""

CSV = """\
name,model,rate,cv,ttft_seconds,tpot_seconds,rate_factor,mix,tenant
chat,llama-8b,40,2,0.5,0.05,0.55,128/128: 3; 1000/1000: 1,
batch,llama-70b,2,,,,,,research
"""


def message(action: Any) -> str:
    with pytest.raises(gp.InputError) as caught:
        action()
    return str(caught.value)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_yaml_and_csv_have_the_same_services(tmp_path: Path) -> None:
    from_yaml = gp.read_services(written(tmp_path, "services.yaml", YAML))
    assert from_yaml == gp.read_services(written(tmp_path, "services.csv", CSV))
    chat, batch = from_yaml
    assert chat.mix == {(128, 128): 0.75, (1000, 1000): 0.25}
    assert chat.buckets == ((128, 128), (1000, 1000))
    assert chat.has_slo
    assert batch.buckets == (None,)
    assert (batch.tenant, batch.cv, batch.has_slo) == ("research", 1.0, False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rate": 0}, "service 'chat', field rate: must be greater than 0, found 0"),
        ({"rate": 1, "trace": "a.csv"}, "rate and trace both give the demand"),
        ({"cv": -1}, "field cv: must be at least 0, found -1"),
        ({"cv": 21}, "field cv: must be at most 20, found 21"),
        ({"slo_seconds": 1, "ttft_seconds": 1}, "give slo_seconds for whole requests"),
        ({"attainment": 1.5}, "field attainment: must be at most 1, found 1.5"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas must be at least min_replicas, 3, found 2"),
        ({"rate_factor": 0.5}, "rate_factor adapts rates without SLO"),
        ({"mix": {"128x128": 1}}, "field mix: must be prompt tokens/output tokens, such as 128/2048, found '128x128'"),
        ({"mix": {(128, 128): -1}}, "the share of 128/128 must be a finite number of at least 0, found -1"),
        ({"mix": {(128, 128): 0}}, "at least one share must be greater than 0"),
        ({"mix": {(128, 128): 1e308, (9, 9): 1e308}}, "field mix: their sum must be finite"),
        ({"mix": {(128, 128): 1, "128/128": 1}}, "128/128 appears twice"),
        ({"replicas": 1}, "field replicas: is not known; did you mean 'min_replicas'"),
    ],
)
def test_a_faulty_service_is_explained(fields: dict[str, Any], expected: str) -> None:
    assert expected in message(lambda: gp.Service("chat", model="m", **fields))


def test_extreme_variation_is_accepted() -> None:
    assert [gp.Service("a", model="m", cv=cv).cv for cv in (0, 20)] == [0, 20]


def test_a_service_named_twice_has_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "services.csv", "name,model\nchat,a\nchat,b\n")
    assert message(lambda: gp.read_services(path)) == (
        f"{path}, line 3 (service 'chat'), field name: appears twice, first at {path}, line 2"
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "name,model,rates\nchat,a,1\n", "line 1: column 'rates' is not known; did you mean 'rate' or 'trace'?"),
        ("a.csv", "name,model,rate\nchat,a,many\n", "line 2 (service 'chat'), field rate: must be a number, found 'many'"),
        ("a.yaml", "services:\n  - name: chat\n    rate: 3\n", "line 2 (service 'chat'), field model: is required"),
        ("a.yaml", "services: {}\n", 'line 1: must be a list of services, or an object with the list under "services"'),
        ("a.yaml", "service: []\n", 'line 1: must be a list of services, or an object with the list under "services"'),
        ("a.yaml", "services: []\nrates: []\n", "line 2: key 'rates' is not known; the only key is \"services\""),
        ("a.yaml", "services: []\n", "has no services"),
        ("a.txt", "", "it must end in .csv, .yaml, .yml, .json"),
    ],
)
def test_a_fault_of_a_file_has_its_line(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = written(tmp_path, name, text)
    assert expected in message(lambda: gp.read_services(path))


def test_a_profile_is_read_from_csv_and_yaml(tmp_path: Path) -> None:
    text = "model,accelerator,operator_parallel,pipeline_parallel,requests_per_second,condition,stage_seconds,memory_gb\n"
    path = written(tmp_path, "rates.csv", text + "bert,v100,1,2,,,0.075; 0.076,2.6\nbert,v100,4,,11,slo,,1.3\n")
    pipeline, operator = gp.ServingProfile.from_file(path).rows
    assert (pipeline.num_gpus, pipeline.stage_seconds, pipeline.memory_gb) == (2, (0.075, 0.076), 2.6)
    assert (operator.num_gpus, operator.operator_parallel, operator.requests_per_second) == (4, 4, 11)
    text = "rates:\n- {model: bert, accelerator: v100, num_gpus: 4, requests_per_second: 11, condition: slo, memory_gb: 1.3}\n"
    assert gp.ServingProfile.from_file(written(tmp_path, "rates.yaml", text)).rows == (operator,)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "requests_per_second with its condition, or stage_seconds, is required"),
        ({"requests_per_second": 1}, "requests_per_second and condition belong together"),
        ({"requests_per_second": 1, "condition": "best"}, "must be one of"),
        ({"stage_seconds": (1, 1)}, "stage_seconds must have 1 times, one per stage, found 2"),
        ({"stage_seconds": (1,), "num_gpus": 3, "operator_parallel": 2}, "num_gpus must be operator_parallel 2 x"),
        ({"stage_seconds": (1,), "prompt_tokens": 3}, "prompt_tokens and output_tokens must be given together"),
        ({"stage_seconds": (0,)}, "must be greater than 0"),
    ],
)
def test_a_faulty_rate_is_explained(fields: dict[str, Any], expected: str) -> None:
    assert expected in message(lambda: gp.ServingRate(model="m", accelerator="a", **fields))


COUNTS = ("num_gpus", "operator_parallel", "pipeline_parallel", "prompt_tokens", "output_tokens", "batch")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400", "-1", "1.5"])
@pytest.mark.parametrize("field", COUNTS)
def test_a_count_that_is_no_whole_number_is_an_error_with_line_and_field(field: str, value: str, tmp_path: Path) -> None:
    tokens = {"prompt_tokens": "8", "output_tokens": "8"}
    given = {"model": "m", "accelerator": "v100", "stage_seconds": "0.1"} | tokens | {field: value}
    path = written(tmp_path, "s.csv", f"{','.join(given)}\n{','.join(given.values())}\n")
    assert f"{path}, line 2 (serving rate 'm'), field {field}: must be a" in message(lambda: gp.ServingProfile.from_file(path))


def test_a_profile_has_each_rate_once_and_names_unknown_models() -> None:
    row = gp.ServingRate(model="m", accelerator="a", requests_per_second=1, condition="slo")
    assert "appears twice" in message(lambda: gp.ServingProfile("p", [row, row.model_copy(update={"memory_gb": 3.0})]))
    assert "'n' is missing" in message(lambda: gp.ServingProfile("p", [row]).rows_of("n"))


def test_throughputs_of_serving_become_rates() -> None:
    profile = gp.ServingProfile.builtin("trtllm")
    rates = {(row.accelerator, row.num_gpus, str(row.bucket)): row for row in profile.rows_of("LLaMA v3.1 8B")}
    row = rates["a100-80gb", 1, "128/2048"]
    assert row.requests_per_second == pytest.approx(5255.99 / 2048, rel=1e-3)  # four significant digits are built in
    assert row.condition == "closed_loop"
    assert "no throughputs of serving" in message(lambda: gp.ServingProfile.builtin("gavel-osdi20"))


@needs_shared_data
def test_the_page_states_the_price_of_an_slo_and_the_error_of_adding_rates() -> None:
    """Figures of docs/serving.md from the results of MLPerf Inference v5.1."""
    found = mlperf()
    assert found["Server"] == (pytest.approx(0.90, abs=0.005), 156)
    assert found["Interactive"] == (pytest.approx(0.55, abs=0.005), 58)
    assert found["5.1-0065"][0] == pytest.approx(0.938, abs=5e-4)
    assert found["5.1-0091"][0] == pytest.approx(0.989, abs=5e-4)
