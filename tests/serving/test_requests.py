"""Request traces: draws, files and what they reject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.serving.attainment import window
from gavel_py.serving.market import nearest_sizes

AZURE = Path(__file__).resolve().parents[3] / "shared" / "data" / "azure-llm-2023"


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    gaps = np.diff(gp.RequestTrace.generate({"a": 4.0}, 50_000, cv=cv, seed=7).seconds)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_the_burstiest_arrivals_are_ordered_and_within_the_trace() -> None:
    trace = gp.RequestTrace.generate({"a": 5.0, "b": 5.0}, 2_000, cv=20, seed=1)
    assert (np.diff(trace.seconds) >= 0).all()
    assert len(trace) == 0 or 0 <= trace.seconds[0] <= trace.seconds[-1] < 2_000


def test_seed_0_draws_what_alpaserve_draws() -> None:
    trace = gp.RequestTrace.generate({"a": 2.0, "b": 1.0}, 100, cv=3)
    for number, rate in enumerate((2.0, 1.0)):
        state = np.random.RandomState(number)
        drawn = np.cumsum(state.gamma(1 / 9, 9 / rate, int(rate * 100 * 1.2)))
        own = trace.seconds[trace.service_index == number]
        common = drawn[drawn < 100][: len(own)]
        assert own[: len(common)].tolist() == common.tolist()


def test_traces_of_different_seeds_and_services_have_nothing_in_common() -> None:
    traces = [gp.RequestTrace.generate({"a": 2.0, "b": 2.0}, 100, seed=seed) for seed in (0, 1, 2)]
    times = [trace.of(name).seconds for trace in traces for name in ("a", "b")]
    assert len(np.unique(np.concatenate(times))) == sum(map(len, times))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = gp.RequestTrace.generate({"a": 2.0, "b": 1.0}, 50, cv=2, seed=3)
    trace.to_csv(tmp_path / "trace.csv")
    read = gp.RequestTrace.from_file(tmp_path / "trace.csv")
    names = np.array(read.services)[read.service_index]
    assert names.tolist() == np.array(trace.services)[trace.service_index].tolist()
    assert read.seconds == pytest.approx(trace.seconds - trace.seconds[0])


def test_times_of_day_and_tokens_are_read(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:05.4799600,3180,8"]
    path.write_text("\n".join(rows))
    trace = gp.RequestTrace.from_file(path, service="code")
    assert trace.services == ("code",)
    assert trace.seconds == pytest.approx([0.0, 1.5])
    assert trace.input_tokens is not None
    assert trace.input_tokens.tolist() == [4808, 3180]


def test_times_in_different_time_zones_are_on_one_clock(tmp_path: Path) -> None:
    path = tmp_path / "zones.csv"
    times = ["2023-11-16T18:15:46Z", "2023-11-16T19:15:50+01:00", "2023-11-16T18:15:51", "2023-11-16T13:45:56-04:30"]
    path.write_text("\n".join(["timestamp", *times]))
    assert gp.RequestTrace.from_file(path).seconds.tolist() == [0.0, 4.0, 5.0, 10.0]


@pytest.mark.skipif(not AZURE.is_dir(), reason="the Azure traces are not here")
def test_the_hour_of_azure_is_read() -> None:
    trace = gp.RequestTrace.from_file(AZURE / "AzureLLMInferenceTrace_conv.csv", service="conversation")
    assert len(trace) == 19_366
    assert 3_400 < trace.duration_seconds < 3_700


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["seconds", "0", "2", "1"], "line 4: arrives before the request above it"),
        (["seconds", "0", "x"], "line 3, field seconds: must be a finite number"),
        (["timestamp", "yesterday"], "must be a time such as"),
        (["time", "1"], "a column seconds or timestamp is required"),
        (["seconds", "1"], "no two requests at different times"),
        (["seconds,input_tokens", "0,5", "1,-2"], "line 3, field input_tokens: must be a number of at least 0"),
    ],
)
def test_faults_of_files_are_named_with_their_line(tmp_path: Path, lines: list[str], problem: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(gp.InputError, match=problem):
        gp.RequestTrace.from_file(path)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rates": {"a": 0.0}}, "rate: must be a finite number greater than 0, found 0.0"),
        ({"rates": {}}, "at least one service"),
        ({"cv": 20.5}, "must be a finite number from 0 to 20"),
        ({"cv": {"b": 1.0}}, "cv: must be a finite number from 0 to 20, found None"),
        ({"duration_seconds": 0.0}, "duration_seconds"),
        ({"duration_seconds": 1e9}, "shorten its duration"),
        ({"seed": -1}, "whole number of at least 0"),
        ({"seed": 3.0}, "whole number of at least 0"),
    ],
)
def test_bad_processes_are_named(changed: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"rates": {"a": 1.0}, "duration_seconds": 10.0}
    with pytest.raises(gp.InputError, match=problem):
        gp.RequestTrace.generate(**{**given, **changed})


def test_times_out_of_order_and_services_out_of_range_are_named() -> None:
    with pytest.raises(gp.InputError, match="request 3 arrives at 1 s, after one at 2 s"):
        gp.RequestTrace(np.array([0.0, 2.0, 1.0]), np.zeros(3, dtype=np.intp), ("a",), 5.0)
    with pytest.raises(gp.InputError, match="at least 0 and below 1"):
        gp.RequestTrace(np.array([0.0]), np.array([1]), ("a",), 5.0)


def test_merging_cutting_and_speeding_up_keep_the_requests() -> None:
    first, second = (gp.RequestTrace.generate({name: 3.0}, 100, seed=n) for n, name in enumerate("ab"))
    both = gp.RequestTrace.merged([first, second])
    assert both.of("b").seconds.tolist() == second.seconds.tolist()
    halves = [both.between(0, 50), both.between(50, 100)]
    assert sum(map(len, halves)) == len(both)
    fast = both.times_faster(2)
    assert fast.rates["a"] == pytest.approx(2 * both.rates["a"])
    with pytest.raises(gp.InputError, match="appears twice"):
        gp.RequestTrace.merged([first, first])
    with pytest.raises(gp.UnknownNameError, match="'c' is missing"):
        both.of("c")
    with pytest.raises(gp.InputError, match="no part from 50 to 150"):
        both.between(50, 150)


@pytest.mark.parametrize("factor", [0.25, 1.0, 2.6])
def test_a_trace_is_copied_with_the_bursts_that_it_has(factor: float) -> None:
    trace = gp.RequestTrace.generate({"a": 5.0, "b": 1.0}, 500, cv=3, seed=1)
    more = trace.times_as_many(factor)
    assert len(more) == pytest.approx(factor * len(trace), abs=3)
    assert more.rates == pytest.approx({name: factor * rate for name, rate in trace.rates.items()}, rel=0.1)
    assert more.duration_seconds == trace.duration_seconds
    if factor == 1.0:
        assert more.seconds.tolist() == trace.seconds.tolist()
    else:
        counts = [np.histogram(each.seconds, bins=10, range=(0, 500))[0] for each in (trace, more)]
        assert np.corrcoef(*counts)[0, 1] > 0.8
    with pytest.raises(gp.InputError, match="greater than 0 and at most 1,000, found 0"):
        trace.times_as_many(0)


BURSTGPT = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,,1.5,ChatGPT,472,18,490,Conversation log
45,,2.5,GPT-4,1087,230,1317,Conversation log
46.5,,0,ChatGPT,0,0,0,Conversation log
50,,0,GPT-4,300,0,300,API log
118,,1,GPT-4,417,276,693,Conversation log
"""

MOONCAKE = """\
{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}

{"timestamp": 500, "input_length": 7322, "output_length": 490, "hash_ids": []}
{"timestamp": 3052, "input_length": 7234, "output_length": 794}
"""


def test_a_trace_of_burstgpt_is_read_and_its_failures_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(BURSTGPT)
    with pytest.warns(gp.GavelWarning, match=r"requests with 0 tokens are ignored: 2 \(first: .*burst\.csv, line 4\)"):
        trace = gp.RequestTrace.from_file(path)
    assert trace.seconds.tolist() == [0.0, 40.0, 113.0]
    assert [trace.services[n] for n in trace.service_index] == ["ChatGPT", "GPT-4", "GPT-4"]
    assert trace.input_tokens is not None
    assert trace.output_tokens is not None
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([472, 1087, 417], [18, 230, 276])


@pytest.mark.parametrize("name", ["mooncake.jsonl", "mooncake.txt"])
def test_a_trace_of_mooncake_is_in_milliseconds(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(MOONCAKE)
    trace = gp.RequestTrace.from_file(tmp_path / name, service="chat")
    assert (trace.services, trace.seconds.tolist()) == (("chat",), [0.0, 0.5, 3.052])
    assert trace.output_tokens is not None
    assert trace.output_tokens.tolist() == [500, 490, 794]


def test_json_lines_have_the_fields_of_csv_and_times_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"timestamp": 1714550400, "model": "a", "input_tokens": 5}\n{"timestamp": 1714550402.5, "model": null}\n')
    trace = gp.RequestTrace.from_file(path)
    assert (trace.services, trace.seconds.tolist(), trace.input_tokens) == (("a", "all"), [0.0, 2.5], None)


def test_answers_of_0_tokens_are_kept_if_all_are(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.csv"
    path.write_text("seconds,input_tokens,output_tokens\n0,5,0\n1,7,0\n")
    assert len(gp.RequestTrace.from_file(path)) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[1]", "line 2: must be an object of field to value"),
        ('{"timestamp": [1]}', "line 2, field timestamp: must be a time such as"),
        ('{"timestamp": true}', "line 2, field timestamp: must be a time such as"),
        ('{"timestamp": 2, "model": ["a"]}', "line 2, field service: must be text"),
        ('{"timestamp": 2, "input_tokens": "many"}', "line 2, field input_tokens: must be a number of at least 0"),
        ('{"timestamp": ', "line 2: is not valid JSON"),
    ],
)
def test_faults_of_json_lines_are_named_with_their_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"timestamp": 1}}\n{line}\n')
    with pytest.raises(gp.InputError, match=problem):
        gp.RequestTrace.from_file(path)


def test_a_request_counts_for_the_size_that_is_nearest_in_both_numbers_of_tokens() -> None:
    """In logarithms to base 4, the first is 3 and 0 from one size and 2.5 and 2.5 from the other: 3 and 3.54 by Pythagoras."""
    sizes = [(1024, 16), (512, 512)]
    inputs, outputs = np.array([16.0, 512.0]), np.array([16.0, 400.0])
    trace = gp.RequestTrace(np.arange(2.0), np.zeros(2, dtype=np.intp), ("chat",), 2.0, inputs, outputs)
    assert nearest_sizes(trace, sizes) == {sizes[0]: 0.5, sizes[1]: 0.5}


def test_requests_at_both_ends_of_a_trace_do_not_count() -> None:
    """A request each second for 100 s, without those of the first and the last ten."""
    seconds = np.arange(101.0)
    assert seconds[window(seconds, 10.0)].tolist() == list(range(10, 91))
    assert seconds[:1][window(seconds[:1], 10.0)].tolist() == [0.0]
