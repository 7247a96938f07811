"""Jobs and job sets: fields, file formats, and refused input."""

from __future__ import annotations

import csv
import json
import math
import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py import InputError, Job, JobSet
from gavel_py.problem.job_set import jobs_from_dict, jobs_to_dict
from tests.support.examples import CHARACTERS
from tests.support.fakes import refusal
from tests.support.shared_data import SHARED, needs_shared_data

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file(name: str, content: str) -> str:
    Path(name).write_bytes(content.encode())
    return name


class TestJob:
    def test_only_its_id_is_needed(self) -> None:
        job = Job("a")
        assert (job.job_id, job.job_type, job.tenant) == ("a", "", "")
        assert (job.num_gpus, job.weight, job.priority) == (1, 1.0, 0.0)
        assert (job.total_steps, job.steps_done, job.arrival_seconds) == (None, 0.0, 0.0)
        assert (job.deadline_seconds, job.deadline_factor, job.allowed_accelerators) == (None, None, None)
        assert (job.locality, job.duration_seconds, job.duration_accelerator) == ("any", None, None)

    def test_its_id_may_come_first_or_by_name(self) -> None:
        assert Job("a", num_gpus=2) == Job(job_id="a", num_gpus=2) != Job("a", num_gpus=4)

    @pytest.mark.parametrize(
        ("fields", "field", "value"),
        [
            pytest.param({"job_id": 7}, "job_id", "7", id="number as id"),
            pytest.param({"job_id": " a "}, "job_id", "a", id="spaces around the id"),
            pytest.param({"job_type": 50}, "job_type", "50", id="number as type"),
            pytest.param({"num_gpus": "4"}, "num_gpus", 4, id="text of a whole number"),
            pytest.param({"num_gpus": 4.0}, "num_gpus", 4, id="whole float"),
            pytest.param({"total_steps": "1e5"}, "total_steps", 1e5, id="text of a number"),
            pytest.param({"arrival_seconds": -5}, "arrival_seconds", -5.0, id="arrival before the clock starts"),
            pytest.param({"priority": -1}, "priority", -1.0, id="negative priority"),
            pytest.param({"total_steps": 5, "steps_done": 9}, "steps_done", 9.0, id="more done than asked for"),
            pytest.param({"allowed_accelerators": ["v100"]}, "allowed_accelerators", ("v100",), id="list of accelerators"),
            pytest.param({"allowed_accelerators": "v100"}, "allowed_accelerators", ("v100",), id="text with one accelerator"),
            pytest.param(
                {"allowed_accelerators": "v100 | A100 80GB"},
                "allowed_accelerators",
                ("v100", "A100 80GB"),
                id="text with several accelerators",
            ),
        ],
    )
    def test_values_are_taken_as_meant(self, fields: dict[str, Any], field: str, value: object) -> None:
        assert getattr(Job(**{"job_id": "a"} | fields), field) == value

    def test_is_frozen(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            Job("a").weight = 2.0  # type: ignore[misc]

    def test_survives_the_way_to_another_process(self) -> None:
        job = Job("a", allowed_accelerators=["v100"], total_steps=10)
        assert pickle.loads(pickle.dumps(job)) == job  # noqa: S301


BOTH_SIZES = "job 'a': num_gpus and {0} are both given; give num_gpus for a fixed gang, or {0} for an elastic job"
NEAR = "did you mean 'num_gpus' or 'min_gpus' or 'max_gpus'?"

FIELD_LIST = (
    "known: job_id, job_type, num_gpus, weight, priority, total_steps, steps_done, arrival_seconds, deadline_seconds, "
    "deadline_factor, tenant, allowed_accelerators, ... (27 in total)"
)


class TestJobFaults:
    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (0, "must be greater than 0, found 0"),
            (-1, "must be greater than 0, found -1"),
            (NAN, "must be a finite number, found nan"),
            (INF, "must be a finite number, found inf"),
            ("nan", "must be a finite number, found 'nan'"),
            ("heavy", "must be a number, found 'heavy'"),
            ("", "must be a number, found ''"),
            ([1], "must be a number, found [1]"),
        ],
    )
    @pytest.mark.parametrize("field", ["weight", "total_steps", "deadline_factor", "duration_seconds"])
    def test_what_must_be_more_than_0(self, field: str, value: object, problem: str) -> None:
        accelerator = "v100" if field == "duration_seconds" else None
        assert refusal(Job, "a", **{field: value}, duration_accelerator=accelerator) == f"job 'a', field {field}: {problem}"

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (-0.5, "must be at least 0, found -0.5"),
            (NAN, "must be a finite number, found nan"),
            (INF, "must be a finite number, found inf"),
            ("some", "must be a number, found 'some'"),
        ],
    )
    def test_steps_done(self, value: object, problem: str) -> None:
        assert refusal(Job, "a", steps_done=value) == f"job 'a', field steps_done: {problem}"

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (NAN, "must be a finite number, found nan"),
            (-INF, "must be a finite number, found -inf"),
            ("soon", "must be a number, found 'soon'"),
            ({"s": 1}, "must be a number, found {'s': 1}"),
        ],
    )
    @pytest.mark.parametrize("field", ["priority", "arrival_seconds", "deadline_seconds"])
    def test_what_must_be_a_number(self, field: str, value: object, problem: str) -> None:
        assert refusal(Job, "a", **{field: value}) == f"job 'a', field {field}: {problem}"

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            (0, "must be at least 0.001 of a GPU, found 0; CPU jobs are not scheduled"),
            ("0", "must be at least 0.001 of a GPU, found '0'; CPU jobs are not scheduled"),
            (-8, "must be at least 0.001 of a GPU, found -8"),
            (1.5, "must be a whole number of GPUs, or a fraction of one, found 1.5"),
            ("1.5", "must be a whole number of GPUs, or a fraction of one, found '1.5'"),
            (NAN, "must be a whole number of GPUs, or a fraction of one, found nan"),
            (INF, "must be at most 1,000,000, found inf"),
            ("two", "must be a whole number of GPUs, or a fraction of one, found 'two'"),
            ("9" * 5000, f"must be at most 1,000,000, found '{'9' * 56}..."),
            (None, "must be a whole number of GPUs, or a fraction of one, found None"),
        ],
    )
    def test_gang(self, value: object, problem: str) -> None:
        assert refusal(Job, "a", num_gpus=value) == f"job 'a', field num_gpus: {problem}"

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            pytest.param({}, "job, field job_id: is required", id="no id"),
            pytest.param({"job_id": None}, "job, field job_id: must be text, found None", id="None as id"),
            pytest.param({"job_id": ""}, "job, field job_id: must not be empty, found ''", id="empty id"),
            pytest.param({"job_id": "  "}, "job '  ', field job_id: must not be empty, found '  '", id="blank id"),
            pytest.param({"job_id": ["a"]}, "job, field job_id: must be text, found ['a']", id="list as id"),
            pytest.param(
                {"job_id": "a\nb"},
                "job 'a\\nb', field job_id: must not contain line breaks or control characters, found 'a\\nb'",
                id="line break in the id",
            ),
            pytest.param(
                {"job_id": "\x1b[2Jb"},
                "job '\\x1b[2Jb', field job_id: must not contain line breaks or control characters, found '\\x1b[2Jb'",
                id="control character in the id",
            ),
            pytest.param({"job_id": "a", "job_type": None}, "job 'a', field job_type: must be text, found None", id="type"),
            pytest.param({"job_id": "a", "tenant": ["x"]}, "job 'a', field tenant: must be text, found ['x']", id="tenant"),
            pytest.param(
                {"job_id": "a", "locality": "Node"},
                "job 'a', field locality: must be one of 'any', 'rack' or 'node', found 'Node'",
                id="locality",
            ),
            pytest.param(
                {"job_id": "a", "allowed_accelerators": 3},
                "job 'a', field allowed_accelerators: must be a list, found 3",
                id="number as allowed accelerators",
            ),
            pytest.param(
                {"job_id": "a", "allowed_accelerators": "v100||k80"},
                "job 'a', field allowed_accelerators.1: must not be empty, found ''",
                id="a gap among the allowed accelerators",
            ),
            pytest.param(
                {"job_id": "a", "allowed_accelerators": []},
                "job 'a': allowed_accelerators must name at least one accelerator, or be omitted to allow all",
                id="no accelerator is allowed",
            ),
            pytest.param(
                {"job_id": "a", "duration_seconds": 60},
                "job 'a': duration_seconds and duration_accelerator must be given together",
                id="duration without its accelerator",
            ),
            pytest.param(
                {"job_id": "a", "duration_accelerator": "v100"},
                "job 'a': duration_seconds and duration_accelerator must be given together",
                id="accelerator without its duration",
            ),
            pytest.param(
                {"job_id": "a", "duration_seconds": 60, "duration_accelerator": "v100", "total_steps": 100},
                "job 'a': total_steps and duration_seconds are both given; give only one, since each follows from the other",
                id="duration and steps",
            ),
            pytest.param(
                {"job_id": "a", "deadline_seconds": 60, "deadline_factor": 2},
                "job 'a': deadline_seconds and deadline_factor are both given; give only one",
                id="two deadlines",
            ),
            pytest.param({"job_id": "a", "num_gpu": 2}, f"job 'a', field num_gpu: is not known; {NEAR}", id="misspelt"),
            pytest.param(
                {"job_id": "a", "colour": "red"},
                f"job 'a', field colour: is not known; {FIELD_LIST}",
                id="unknown",
            ),
            ({"job_id": "a", "even_split": "maybe"}, "job 'a', field even_split: must be true or false, found 'maybe'"),
            ({"job_id": "a", "even_split": None}, "job 'a', field even_split: must be true or false, found None"),
            ({"job_id": "a", "num_gpus": 6, "gpus_per_node": 4}, "job 'a': gpus_per_node is 4, of which 6 GPUs are no multiple"),
            ({"job_id": "a", "num_gpus": 1, "gpu_counts": (1, 2)}, BOTH_SIZES.format("gpu_counts")),
            ({"job_id": "a", "num_gpus": "4", "gpu_counts": "4|8"}, BOTH_SIZES.format("gpu_counts")),
            ({"job_id": "a", "num_gpus": 1, "max_gpus": 8}, BOTH_SIZES.format("max_gpus")),
            (
                {"job_id": "a", "gpu_counts": (4, 8, 10), "gpus_per_node": 4},
                "job 'a': gpus_per_node is 4, of which 10 GPUs are no multiple",
            ),
        ],
    )
    def test_other_fields(self, fields: dict[str, Any], problem: str) -> None:
        assert refusal(Job, **fields) == problem

    def test_a_long_value_is_cut_short(self) -> None:
        assert refusal(Job, "a", weight="x" * 58) == f"job 'a', field weight: must be a number, found '{'x' * 58}'"
        assert refusal(Job, "a", weight="x" * 59) == f"job 'a', field weight: must be a number, found '{'x' * 56}..."

    def test_all_faults_at_once(self) -> None:
        assert refusal(Job, "a", num_gpus=0, weight=-1, steps=5).splitlines() == [
            "job 'a', field num_gpus: must be at least 0.001 of a GPU, found 0; CPU jobs are not scheduled",
            "job 'a', field weight: must be greater than 0, found -1",
            "job 'a', field steps: is not known; did you mean 'steps_done' or 'total_steps'?",
        ]


class TestJobSet:
    JOBS = (Job("b"), Job("a"), Job("c"))

    def test_is_a_sequence_in_the_order_given(self) -> None:
        jobs = JobSet(self.JOBS)
        assert (len(jobs), tuple(jobs), jobs[0], jobs[-1]) == (3, self.JOBS, self.JOBS[0], self.JOBS[2])
        assert self.JOBS[1] in jobs
        assert repr(jobs) == "JobSet(3 jobs)"

    def test_a_slice_is_a_job_set(self) -> None:
        part = JobSet(self.JOBS)[1:]
        assert isinstance(part, JobSet)
        assert part.jobs == self.JOBS[1:]

    def test_may_be_empty(self) -> None:
        assert len(JobSet([])) == 0

    def test_ids_are_unique(self) -> None:
        assert refusal(JobSet, [Job(job_id) for job_id in "abcabb"]) == (
            "job 'a', field job_id: appears twice; job ids must be unique\n"
            "job 'b', field job_id: appears twice; job ids must be unique"
        )


HEADER = (
    "job_id,job_type,num_gpus,weight,priority,total_steps,steps_done,arrival_seconds,deadline_seconds,tenant,"
    "allowed_accelerators,locality"
)


class TestCsv:
    def test_columns_are_fields(self) -> None:
        row = 'a,"ResNet-50 (batch size 64)",8,2,1,1e6,500,60,7200,team-a,v100|p100,node'
        assert JobSet.from_file(file("jobs.csv", f"{HEADER}\n{row}\n")).jobs == (
            Job(
                "a",
                job_type="ResNet-50 (batch size 64)",
                num_gpus=8,
                weight=2,
                priority=1,
                total_steps=1e6,
                steps_done=500,
                arrival_seconds=60,
                deadline_seconds=7200,
                tenant="team-a",
                allowed_accelerators=("v100", "p100"),
                locality="node",
            ),
        )

    def test_a_duration_and_a_deadline_factor_are_fields_too(self) -> None:
        content = "job_id,duration_seconds,duration_accelerator,deadline_factor\na,3600,v100,1.5\n"
        assert JobSet.from_file(file("jobs.csv", content)).jobs == (
            Job("a", duration_seconds=3600, duration_accelerator="v100", deadline_factor=1.5),
        )

    def test_an_empty_cell_means_the_default(self) -> None:
        assert JobSet.from_file(file("jobs.csv", f"{HEADER}\na{',' * 11}\n")).jobs == (Job("a"),)

    def test_a_header_alone_is_an_empty_set(self) -> None:
        assert len(JobSet.from_file(file("jobs.csv", "job_id\n"))) == 0

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param("", "jobs.csv: is empty; a header line with column names is required", id="empty file"),
            pytest.param(
                "id,num_gpus\na,2\n",
                f"jobs.csv, line 1: column 'job_id' is missing; known: {', '.join([*Job.model_fields][:12])}, "
                f"... ({len(Job.model_fields)} in total)",
                id="no id column",
            ),
            pytest.param("job_id,num_gpus\n,2\n", "jobs.csv, line 2 (job), field job_id: is required", id="no id"),
            pytest.param("job_id,num_gpus\na\n", "jobs.csv, line 2: has 1 field, but the header has 2", id="too few fields"),
            pytest.param(
                "job_id,num_gpu\na,2\n",
                f"jobs.csv, line 2 (job 'a'), field num_gpu: is not known; {NEAR}",
                id="unknown column",
            ),
            pytest.param(
                'job_id,total_steps\na,"1,000"\n',
                "jobs.csv, line 2 (job 'a'), field total_steps: must be a number, found '1,000'",
                id="thousands separator",
            ),
            pytest.param(
                "job_id,num_gpus\na,1\nb,1\n\na,1\nb,1\na,1\n",
                "jobs.csv, line 5 (job 'a'), field job_id: appears twice, first at jobs.csv, line 2\n"
                "jobs.csv, line 6 (job 'b'), field job_id: appears twice, first at jobs.csv, line 3\n"
                "jobs.csv, line 7 (job 'a'), field job_id: appears twice, first at jobs.csv, line 2",
                id="duplicates name both lines",
            ),
            pytest.param(
                'job_id,num_gpus,weight,tenant\na,0,-1,x\nb,1,1,"two\nlines"\nc,x,nan,x\nc,inf,1e999,x\n',
                "jobs.csv, line 6 (job 'c'), field job_id: appears twice, first at jobs.csv, line 5\n"
                "jobs.csv, line 2 (job 'a'), field num_gpus: must be at least 0.001 of a GPU, found '0'"
                "; CPU jobs are not scheduled\n"
                "jobs.csv, line 2 (job 'a'), field weight: must be greater than 0, found '-1'\n"
                "jobs.csv, line 3 (job 'b'), field tenant: must not contain line breaks or control characters, "
                "found 'two\\nlines'\n"
                "jobs.csv, line 5 (job 'c'), field num_gpus: must be a whole number of GPUs, or a fraction of one, found 'x'\n"
                "jobs.csv, line 5 (job 'c'), field weight: must be a finite number, found 'nan'\n"
                "jobs.csv, line 6 (job 'c'), field num_gpus: must be at most 1,000,000, found 'inf'\n"
                "jobs.csv, line 6 (job 'c'), field weight: must be a finite number, found '1e999'",
                id="several lines at once",
            ),
        ],
    )
    def test_faults(self, content: str, problem: str) -> None:
        assert refusal(JobSet.from_file, file("jobs.csv", content)) == problem

    def test_a_thousand_faults_of_a_column_are_counted_in_one_line(self) -> None:
        path = file("jobs.csv", "job_id,num_gpus\n" + "".join(f"j{i},0\n" for i in range(1000)))
        assert refusal(JobSet.from_file, path) == (
            "jobs.csv, line 2 (job 'j0'), field num_gpus: must be at least 0.001 of a GPU, found '0'; CPU jobs are not scheduled; "
            "so in 999 more, the last jobs.csv, line 1001 (job 'j999')"
        )

    def test_a_deadline_is_written_as_people_do(self) -> None:
        now = datetime(2026, 12, 1, 8, tzinfo=UTC)
        cells = {"3600": 3600, "48h": 172800, "2d4h": 187200, "2026-12-01T10:30+01:00": 5400, "2026-12-01 09:00Z": 3600}
        path = file("jobs.csv", "job_id,deadline\n" + "".join(f"j{n},{cell}\n" for n, cell in enumerate([*cells, ""])))
        found = [job.deadline_seconds for job in JobSet.from_file(path, now=now)]
        assert found == [*cells.values(), None]
        (read,) = JobSet.from_columns({"job_id": ["a"], "deadline": ["90 min"]})
        assert read.deadline_seconds == 5400
        clock = datetime.now().astimezone()
        (later,) = JobSet.from_columns({"job_id": ["a"], "deadline": [str(clock + timedelta(hours=30))]})
        assert 30 * 3600 - 600 < (later.deadline_seconds or 0) <= 30 * 3600, "from the clock by default"

    def test_wrong_deadlines_name_their_rows(self) -> None:
        rows = ["a,2026-11-30T08:00Z,", "b,soon,", "c,2026-12-09,", "d,4h2d,", "e,48h,3", "f,-5,"]
        path = file("jobs.csv", "job_id,deadline,deadline_factor\n" + "\n".join(rows) + "\n")
        rule = "must be a time from now, such as 48h or 2d4h, or a date such as 2026-12-01T08:00+01:00, found"
        given = datetime(2026, 12, 1, 8, tzinfo=UTC).astimezone()
        with pytest.raises(InputError) as error:
            JobSet.from_file(path, now=given)
        assert [f"{fault.where[10:]}: {fault.field}: {fault.problem}" for fault in error.value.faults] == [
            "line 2 (job 'a'): deadline: has passed: 2026-11-30T08:00Z is 24.0 h before "
            f"{given:%Y-%m-%d %H:%M %z}; give a later one, or --now",
            f"line 3 (job 'b'): deadline: {rule} 'soon'",
            "line 4 (job 'c'): deadline: has no time of day: write 2026-12-09T18:00",
            f"line 5 (job 'd'): deadline: {rule} '4h2d'",
            "line 6 (job 'e'): : deadline and deadline_factor are both given; give only one",
            f"line 7 (job 'f'): deadline: {rule} '-5'",
        ]

    def test_seconds_are_also_durations(self) -> None:
        job = Job("a", deadline_seconds="2d4h", restart_seconds="1.5 min", duration_seconds="1 h 30 s", duration_accelerator="v100")
        assert (job.deadline_seconds, job.restart_seconds, job.duration_seconds) == (187200, 90, 3630)
        for wrong in ("5x", "48 houres", "4h2d"):
            with pytest.raises(InputError, match="must be a number of seconds, or a duration such as 48h or 2d4h"):
                Job("a", deadline_seconds=wrong)
        with pytest.raises(InputError, match="must be greater than 0, found"):
            Job("a", duration_seconds="0h", duration_accelerator="v100")
        with pytest.raises(InputError, match="must be a number"):
            Job("a", weight="2h")


class TestJson:
    @pytest.mark.parametrize(
        "content",
        [
            '[{"job_id": "a", "num_gpus": 2, "allowed_accelerators": ["v100"]}, {"job_id": 7}]',
            '{"jobs": [{"job_id": "a", "num_gpus": 2, "allowed_accelerators": "v100"}, {"job_id": "7"}]}',
            '[{"job_id": "a", "num_gpus": 2, "weight": null, "allowed_accelerators": ["v100"]}, {"job_id": "7", "tenant": null}]',
        ],
    )
    def test_a_list_or_an_object_with_the_list(self, content: str) -> None:
        assert JobSet.from_file(file("jobs.json", content)).jobs == (Job("a", num_gpus=2, allowed_accelerators=["v100"]), Job("7"))

    @pytest.mark.parametrize("content", ["[]", '{"jobs": []}'])
    def test_no_jobs(self, content: str) -> None:
        assert len(JobSet.from_file(file("jobs.json", content))) == 0

    @pytest.mark.parametrize("content", ["3", "null", '"jobs"', "{}", '{"jobs": {"a": 1}}', '{"job": [{"job_id": "a"}]}'])
    def test_anything_else_is_refused(self, content: str) -> None:
        problem = 'jobs.json, line 1: must be a list of jobs, or an object with the list under "jobs"'
        assert refusal(JobSet.from_file, file("jobs.json", content)) == problem

    def test_another_key_beside_jobs_is_refused(self) -> None:
        content = '{"jobs": [], "jbos": [{"job_id": "a"}]}'
        assert (
            refusal(JobSet.from_file, file("jobs.json", content))
            == "jobs.json, line 1: key 'jbos' is not known; the only key is \"jobs\""
        )

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param(
                '[{"job_id": "a", "weight": NaN, "total_steps": Infinity}]',
                "jobs.json, line 1, entry 1 (job 'a'), field weight: must be a finite number, found nan\n"
                "jobs.json, line 1, entry 1 (job 'a'), field total_steps: must be a finite number, found inf",
                id="NaN and Infinity",
            ),
            pytest.param('[{"num_gpus": 2}]', "jobs.json, line 1, entry 1 (job), field job_id: is required", id="no id"),
            pytest.param('[{"job_id": null}]', "jobs.json, line 1, entry 1 (job), field job_id: is required", id="null as id"),
            pytest.param(
                '[{"job_id": 1}, {"job_id": "1"}]',
                "jobs.json, line 1, entry 2 (job '1'), field job_id: appears twice, first at jobs.json, line 1, entry 1",
                id="a number and its text are one id",
            ),
            pytest.param(
                '[1, {"job_id": "a", "num_gpus": 0}, "b", []]',
                "jobs.json, line 1, entry 1: must be a mapping of field to value, found 1\n"
                "jobs.json, line 1, entry 2 (job 'a'), field num_gpus: must be at least 0.001 of a GPU, found 0"
                "; CPU jobs are not scheduled\n"
                "jobs.json, line 1, entry 3: must be a mapping of field to value, found 'b'\n"
                "jobs.json, line 1, entry 4: must be a mapping of field to value, found []",
                id="entries that are no objects",
            ),
            pytest.param(
                "[{]", "jobs.json, line 1: is not valid JSON: Expecting property name enclosed in double quotes (column 3)"
            ),
        ],
    )
    def test_faults(self, content: str, problem: str) -> None:
        assert refusal(JobSet.from_file, file("jobs.json", content)) == problem


class TestJsonLines:
    @pytest.mark.parametrize("name", ["jobs.jsonl", "jobs.ndjson"])
    def test_one_object_a_line(self, name: str) -> None:
        content = '{"job_id": "a", "num_gpus": 2}\n\n{"job_id": "b"}\n'
        assert JobSet.from_file(file(name, content)).jobs == (Job("a", num_gpus=2), Job("b"))

    def test_an_empty_file_is_an_empty_set(self) -> None:
        assert len(JobSet.from_file(file("jobs.jsonl", ""))) == 0

    def test_faults_of_all_lines_at_once(self) -> None:
        content = '{"job_id": "a", "num_gpus": -2}\n[]\n\n{"job_id": "a", "size": 1}\n'
        assert refusal(JobSet.from_file, file("jobs.jsonl", content)).splitlines() == [
            "jobs.jsonl, line 4 (job 'a'), field job_id: appears twice, first at jobs.jsonl, line 1",
            "jobs.jsonl, line 1 (job 'a'), field num_gpus: must be at least 0.001 of a GPU, found -2",
            "jobs.jsonl, line 2: must be a mapping of field to value, found []",
            f"jobs.jsonl, line 4 (job 'a'), field size: is not known; {FIELD_LIST}",
        ]


def trace_line(steps: object = 100, gang: object = 2, weight: object = 1, slo: object = "-1.000000", arrival: object = 0) -> str:
    return (
        f"ResNet-18 (batch size 32)\tpython3 main.py --lr 0.1\tcifar10\t--num_steps\t1\t{steps}\t{gang}\t{weight}\t{slo}\t{arrival}"
    )


class TestGavelTrace:
    def test_fields(self) -> None:
        path = file("jobs.trace", trace_line(steps=5000, gang=4, weight=2, slo=1.2, arrival=37.5) + "\n")
        assert JobSet.from_file(path).jobs == (
            Job(
                "0",
                job_type="ResNet-18 (batch size 32)",
                total_steps=5000,
                num_gpus=4,
                weight=2,
                deadline_factor=1.2,
                arrival_seconds=37.5,
            ),
        )

    @pytest.mark.parametrize("slo", ["-1.000000", "-1", " -0.5"])
    def test_a_negative_slo_means_none(self, slo: str) -> None:
        assert JobSet.from_file(file("jobs.trace", trace_line(slo=slo)))[0].deadline_factor is None

    def test_ids_count_the_jobs_from_0_past_blank_lines(self) -> None:
        jobs = JobSet.from_file(file("jobs.trace", f"{trace_line()}\n\n{trace_line()}\r\n{trace_line(gang=8)}"))
        assert [(job.job_id, job.num_gpus) for job in jobs] == [("0", 2), ("1", 2), ("2", 8)]

    def test_an_empty_file_is_an_empty_set(self) -> None:
        assert len(JobSet.from_file(file("jobs.trace", ""))) == 0

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("a\tb", "line 3: has 2 tab-separated fields, but Gavel's traces have 10"),
            (trace_line() + "\t", "line 3: has 11 tab-separated fields, but Gavel's traces have 10"),
            (trace_line().replace("\t", ","), "line 3: has 1 tab-separated fields, but Gavel's traces have 10"),
            (trace_line(steps=0), "line 3 (job '1'), field total_steps: must be greater than 0, found '0'"),
            (trace_line(steps=""), "line 3 (job '1'), field total_steps: must be a number, found ''"),
            (
                trace_line(gang=0),
                "line 3 (job '1'), field num_gpus: must be at least 0.001 of a GPU, found '0'; CPU jobs are not scheduled",
            ),
            (trace_line(weight=-1), "line 3 (job '1'), field weight: must be greater than 0, found '-1'"),
            (trace_line(arrival="noon"), "line 3 (job '1'), field arrival_seconds: must be a number, found 'noon'"),
            (trace_line(slo=0), "line 3 (job '1'), field deadline_factor: must be greater than 0, found '0'"),
            (trace_line(slo="nan"), "line 3 (job '1'), field deadline_factor: must be a finite number, found 'nan'"),
            (trace_line(slo=""), "line 3 (job '1'), field deadline_factor: must be a number, found ''"),
        ],
    )
    def test_faults(self, line: str, problem: str) -> None:
        assert refusal(JobSet.from_file, file("jobs.trace", f"{trace_line()}\n\n{line}\n")) == f"jobs.trace, {problem}"

    def test_faults_of_all_lines_at_once(self) -> None:
        path = file("jobs.trace", f"{trace_line(gang=0, weight=0)}\n{trace_line(steps=-1)}\n")
        assert [line.split(":")[0] for line in refusal(JobSet.from_file, path).splitlines()] == [
            "jobs.trace, line 1 (job '0'), field num_gpus",
            "jobs.trace, line 1 (job '0'), field weight",
            "jobs.trace, line 2 (job '1'), field total_steps",
        ]

    @needs_shared_data
    @pytest.mark.parametrize(
        ("name", "count", "gpus", "steps"),
        [("small_test", 20, 23, 346), ("medium_test", 20, 20, 20776), ("artifact_evaluation", 15, 18, 2931)],
    )
    def test_the_published_traces(self, name: str, count: int, gpus: int, steps: float) -> None:
        jobs = JobSet.from_file(SHARED / "gavel" / f"{name}.trace")
        assert [job.job_id for job in jobs] == [str(i) for i in range(count)]
        assert sum(job.num_gpus for job in jobs) == gpus
        assert jobs[0].total_steps == steps
        assert {job.deadline_factor for job in jobs} == {None}


def test_another_suffix_is_refused() -> None:
    assert refusal(JobSet.from_file, "jobs.xlsx") == (
        "jobs.xlsx: cannot determine the format from the name; it must end in .csv, .json, .jsonl, .ndjson, .trace"
    )


texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=8).map(str.strip)
names = texts.filter(bool)
accelerators = names.filter(lambda name: "|" not in name)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def jobs_with_any_fields(draw: st.DrawFn) -> Job:
    """A job with a value in each field that can stand beside the others."""
    work = draw(
        st.one_of(
            st.fixed_dictionaries({}, optional={"total_steps": positive}),
            st.fixed_dictionaries({"duration_seconds": positive, "duration_accelerator": names}),
        )
    )
    deadline = draw(st.sampled_from([{}, {"deadline_seconds": draw(finite)}, {"deadline_factor": draw(positive)}]))
    size = draw(
        st.one_of(
            st.fixed_dictionaries({"num_gpus": st.integers(1, 10**6)}),
            st.fixed_dictionaries({"gpu_counts": st.sets(st.integers(1, 10**6), min_size=1, max_size=4).map(sorted)}),
            st.fixed_dictionaries({"max_gpus": st.integers(9, 10**6)}, optional={"min_gpus": st.integers(1, 9)}),
        )
    )
    return Job(
        draw(names),
        job_type=draw(texts),
        **size,
        weight=draw(positive),
        priority=draw(finite),
        steps_done=draw(st.floats(min_value=0, allow_infinity=False)),
        arrival_seconds=draw(finite),
        tenant=draw(texts),
        allowed_accelerators=draw(st.none() | st.lists(accelerators, min_size=1, max_size=3)),
        locality=draw(st.sampled_from(["any", "rack", "node"])),
        **work,
        **deadline,
    )


@given(jobs=st.lists(jobs_with_any_fields(), max_size=5, unique_by=lambda job: job.job_id))
def test_jobs_written_as_csv_read_as_the_same_jobs(jobs: list[Job], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with open(path, "w", encoding="utf-8", newline="") as written:
        writer = csv.DictWriter(written, list(Job.model_fields))
        writer.writeheader()
        for job in jobs:
            values = job.model_dump().items()
            writer.writerow({name: "|".join(map(str, value)) if isinstance(value, tuple) else value for name, value in values})
    assert JobSet.from_file(path).jobs == tuple(jobs)


@given(job=jobs_with_any_fields())
def test_a_job_is_made_of_its_own_fields(job: Job) -> None:
    assert Job(**job.model_dump()) == job


@given(jobs=st.lists(jobs_with_any_fields(), max_size=4), data=st.data())
def test_saved_jobs_are_restored(jobs: list[Job], data: st.DataObject) -> None:
    """Also of each job some that differ only in what most jobs have of their own."""
    own = {"arrival_seconds": finite, "steps_done": st.floats(min_value=0, allow_infinity=False)}
    copies = [job.model_copy(update={name: data.draw(values) for name, values in own.items()}) for job in jobs for _ in range(3)]
    saved = [job.model_copy(update={"job_id": f"{n} {job.job_id}"}) for n, job in enumerate([*jobs, *copies])]
    restored = jobs_from_dict(json.loads(json.dumps(jobs_to_dict(saved))))
    assert restored == saved
    assert [job.model_dump() for job in restored] == [job.model_dump() for job in saved]
    assert all(type(value) is type(getattr(job, name)) for job, kept in zip(restored, saved, strict=True) for name, value in kept)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("steps_done", [0.0, -1.0]),
        ("arrival_seconds", [0.0, None]),
        ("job_id", ["a", ""]),
        ("total_steps", [None, 0.0]),
        ("num_gpus", [1, 0]),
        ("depends_on", [[], ["b"]]),
        ("duration_seconds", [None, 1.0]),
        ("weight", [1.0]),
    ],
)
def test_saved_jobs_that_cannot_be_are_refused(column: str, values: list[object]) -> None:
    good = {"job_id": ["a", "b"], "steps_done": [0.0, 1.0], "num_gpus": [1, 1]}
    assert len(jobs_from_dict(good)) == 2
    with pytest.raises((InputError, ValueError)):
        jobs_from_dict(good | {column: values})


@given(
    value=st.one_of(st.none(), st.booleans(), st.text(CHARACTERS), st.floats(), st.integers(), st.lists(st.integers())),
    data=st.data(),
)
def test_a_field_is_taken_or_refused_as_input_error(value: object, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(list(Job.model_fields)))
    with suppress(InputError):
        Job(**{"job_id": "a"} | {field: value})
