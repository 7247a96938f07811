"""Units of throughputs: one per job type, kept in files and stores, converted by a figure, never added together."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.throughput_profiles.units import UNITS, conversion

HEADER = "job_type,num_gpus,accelerator,steps_per_second,unit,condition,family,batch_size,sequence_length\n"


def measurement(job_type: str, speed: float = 1.0, accelerator: str = "h100", **fields: object) -> gp.Measurement:
    return gp.Measurement(**{"job_type": job_type, "num_gpus": 1, "accelerator": accelerator, "steps_per_second": speed} | fields)


MIXED = gp.ThroughputProfile(
    "mixed",
    [
        measurement("bert", 4.0, family="BERT", batch_size=32),
        measurement("bert", 2.0, "a100"),
        measurement("gpt", 9000.0, unit="tokens/s", sequence_length=2048),
        measurement("gpt", 4000.0, "a100", unit="tokens/s"),
        measurement("chat", 30.0, unit="requests/s", condition="server"),
        measurement("lora", 0.5, unit="1/min"),
    ],
)


class TestOneUnit:
    def test_a_job_type_has_one(self) -> None:
        assert MIXED.units == ("steps/s", "tokens/s", "requests/s", "1/min")
        assert [str(MIXED.unit_of(name)) for name in ("bert", "gpt", "chat")] == ["steps/s", "tokens/s", "requests/s (server)"]

    @pytest.mark.parametrize(
        ("rows", "line", "problem"),
        [
            ("a,1,h100,1,tokens/s,,,,\na,1,a100,1,,,,,\n", 3, "'a' has steps/s here, but tokens/s at"),
            (
                "a,1,h100,1,tokens/s,server,,,\na,1,a100,1,tokens/s,offline,,,\n",
                3,
                "field condition: 'a' has tokens/s (offline) here, but tokens/s (server) at",
            ),
            ("a,1,h100,1,requests/s,,,,\n", 2, "condition is required with unit requests/s; it is one of closed_loop, offline"),
            ("a,1,h100,1,samples/s,server,,,\n", 2, "condition is of serving, in requests/s or tokens/s; leave it empty"),
            ("a,1,h100,1,km/h,,,,\n", 2, "field unit: must be one of 'steps/s', 'samples/s'"),
            ("a,1,h100,1,requests/s,fast,,,\n", 2, "field condition: must be one of 'closed_loop'"),
            ("a,1,h100,1,,,,0,\n", 2, "field batch_size: must be at least 1, found '0'"),
            ("a,1,h100,1,,,,,2.5\n", 2, "field sequence_length: must be a whole number, found '2.5'"),
        ],
    )
    def test_each_fault_names_its_lines(self, tmp_path: Path, rows: str, line: int, problem: str) -> None:
        path = tmp_path / "mine.csv"
        path.write_text(HEADER + rows)
        with pytest.raises(gp.InputError) as caught:
            gp.ThroughputProfile.from_csv(path)
        (fault,) = caught.value.faults
        assert str(fault).startswith(f"{path}, line {line}")
        assert problem in str(fault)

    def test_the_partner_of_a_pair_counts_too(self) -> None:
        pair = measurement("b", partner_job_type="a", partner_steps_per_second=1.0)
        with pytest.raises(gp.InputError, match="'a' has steps/s here, but tokens/s at measurement 1"):
            gp.ThroughputProfile("p", [measurement("a", unit="tokens/s"), pair])

    def test_a_pair_has_no_structure(self) -> None:
        with pytest.raises(gp.InputError, match="family describes one job type; give it where the gang runs alone"):
            measurement("b", partner_job_type="a", partner_steps_per_second=1.0, family="x")


class TestKeeping:
    def test_only_the_columns_in_use_are_written(self) -> None:
        target = io.StringIO()
        gp.ThroughputProfile("p", [measurement("a", unit="samples/s", batch_size=8)]).to_csv(target)
        header, row = target.getvalue().splitlines()
        assert header.endswith(",source,unit,batch_size")
        assert row.endswith(",,samples/s,8")

    def test_files_restore_units_and_structure(self, tmp_path: Path) -> None:
        MIXED.to_csv(tmp_path / "mixed.csv")
        assert gp.ThroughputProfile.from_csv(tmp_path / "mixed.csv") == MIXED

    def test_the_store_restores_units_and_structure(self, tmp_path: Path) -> None:
        store = gp.ThroughputStore(tmp_path / "store.sqlite")
        store.save(MIXED)
        assert store.load("mixed") == MIXED

    def test_the_store_keeps_the_unit_of_a_job_type(self, tmp_path: Path) -> None:
        store = gp.ThroughputStore(tmp_path / "store.sqlite")
        store.save(MIXED)
        with pytest.raises(gp.InputError, match=r"'gpt' has steps/s here, but tokens/s at profile store .*, profile 'mixed'"):
            store.add("mixed", [measurement("gpt", 5.0, "l40s")])
        assert store.load("mixed") == MIXED
        store.add("mixed", [measurement("bert", 4.5), measurement("gpt", 5.0, "l40s", unit="tokens/s")])
        assert store.load("mixed").rows[0] == MIXED.rows[0]._replace(steps_per_second=4.5)

    def test_estimates_of_gangs_have_the_unit_of_the_job_type(self) -> None:
        profile = gp.ThroughputProfile("p", [measurement("a", n, num_gpus=n, unit="tokens/s") for n in (1, 2)])
        assert gp.extend_profile(profile, [4]).units == ("tokens/s",)


class TestConverting:
    def test_by_the_figure_of_each_job_type(self) -> None:
        profile = gp.ThroughputProfile("p", [m for m in MIXED.measurements if m.job_type in ("bert", "gpt")])
        samples = profile.converted("samples/s", {"bert": 32, "gpt": 2000})
        assert samples.units == ("samples/s",)
        assert samples.throughput("bert", 1, "h100") == 4.0 * 32
        assert samples.throughput("gpt", 1, "h100") == 9000 / 2000
        assert samples.rows[0].batch_size == 32

    def test_runs_per_minute_become_steps_per_second(self) -> None:
        profile = gp.ThroughputProfile("p", [measurement("lora", 0.5, unit="1/min")])
        assert profile.converted("steps/s", {"lora": 1200}).throughput("lora", 1, "h100") == pytest.approx(0.5 * 1200 / 60)

    def test_both_sides_of_a_pair(self) -> None:
        pair = measurement("a", 2.0, partner_job_type="b", partner_steps_per_second=3.0)
        assert gp.ThroughputProfile("p", [pair]).converted("samples/s", {"a": 10, "b": 100}).pair("b", "a", 1, "h100") == (300, 20)

    def test_the_error_names_what_is_missing(self) -> None:
        with pytest.raises(gp.InputError) as caught:
            MIXED.converted("samples/s", {"gpt": 0})
        assert [str(fault) for fault in caught.value.faults] == [
            "throughput profile 'mixed', job type 'bert': its throughputs are in steps/s; to convert them to samples/s, "
            "give the samples per step",
            "throughput profile 'mixed', job type 'gpt': the tokens per sample must be a finite number above 0, found 0",
            "throughput profile 'mixed', job type 'chat': its throughputs are in requests/s (server), which cannot be converted to "
            "samples/s",
            "throughput profile 'mixed', job type 'lora': its throughputs are in 1/min; to convert them to samples/s, "
            "give the samples per run",
        ]

    def test_unknown_names(self) -> None:
        with pytest.raises(gp.UnknownNameError, match="'bart' is missing; did you mean 'bert'"):
            MIXED.converted("tokens/s", {"bart": 1})
        with pytest.raises(gp.UnknownNameError, match="'token/s' is not known; did you mean 'tokens/s'"):
            MIXED.converted("token/s", {})

    @given(st.sampled_from(UNITS), st.sampled_from(UNITS), st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
    def test_there_and_back_with_the_same_figure(self, unit: str, other: str, throughput: float, figure: float) -> None:
        there, back = conversion(unit, other), conversion(other, unit)
        assert (there is None) == (back is None)
        if there is not None and back is not None:
            assert there.needed == back.needed
            assert back.apply(there.apply(throughput, figure), figure) == pytest.approx(throughput)


class TestAdding:
    CLUSTER = gp.Cluster.from_counts({"h100": 1, "a100": 1})

    def problem(self, *job_types: str) -> gp.AllocationProblem:
        jobs = [gp.Job(f"{name}-{n}", job_type=name) for n, name in enumerate(job_types)]
        return gp.AllocationProblem.from_jobs(jobs, self.CLUSTER, MIXED)

    @pytest.mark.parametrize("policy", ["max_total_throughput,normalized=false", "then"])
    def test_a_sum_over_units_warns(self, policy: str) -> None:
        raw = gp.resolve_policy("max_total_throughput", normalized=False)
        chosen = raw if policy != "then" else gp.Then(gp.resolve_policy("max_min_fairness"), 2 * raw)
        with pytest.warns(gp.GavelWarning, match=r"adds throughputs in different units \(steps/s, tokens/s\)"):
            gp.solve(self.problem("bert", "gpt"), chosen)

    def test_nothing_else_warns(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gp.solve(self.problem("bert", "gpt"), "max_total_throughput")
            gp.solve(self.problem("bert", "gpt"), "max_min_fairness")
            gp.solve(self.problem("bert", "bert"), "max_total_throughput", normalized=False)
            gp.solve(self.problem("bert", "gpt").select([1]), "max_total_throughput", normalized=False)

    def test_rounds_warn_as_well(self) -> None:
        scheduler = gp.RoundScheduler(self.CLUSTER, MIXED, policy=gp.resolve_policy("max_total_throughput", normalized=False))
        scheduler.submit(gp.Job("a", job_type="bert"))
        scheduler.submit(gp.Job("b", job_type="gpt"))
        with pytest.warns(gp.GavelWarning, match="adds throughputs in different units"):
            scheduler.next_round(0)
