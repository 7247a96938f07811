"""Accounting records of Slurm."""

from __future__ import annotations

import pytest

from gavel_py import InputError, Job, Submission, read_trace
from tests.workloads.support import file, places, read, skipped

HEADER = "JobID|Account|Submit|Start|End|Elapsed|Timelimit|State|NCPUS|ReqTRES|AllocTRES\n"
TIMES = "2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00"
TRES = "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1"


def line(job_id: str, state: str = "COMPLETED", times: str = TIMES, tres: str = TRES, limit: str = "1-02:00:00") -> str:
    return f"{job_id}|lab|{times}|{limit}|{state}|8|{tres}|{tres}\n"


def test_job_steps_are_skipped() -> None:
    trace = read("sacct.txt", HEADER + line("100") + line("100.batch") + line("100.extern") + line("100.0"))
    assert list(trace) == [
        Submission(
            Job("100", num_gpus=4, tenant="lab", cpus_per_gpu=2),
            run_seconds=3600,
            wait_seconds=600,
            status="passed",
            estimate_seconds=26 * 3600,
            accelerator="a100",
        )
    ]
    assert skipped(trace) == {"is a step of a job that has its own line": 3}


def test_columns_known_at_submission_become_labels() -> None:
    header = HEADER.replace("Account", "Account|User|JobName|Partition|QOS")
    named = line("1").replace("lab|", "lab|ann|train 7b|gpu|normal|", 1)
    anonymous = line("2").replace("lab|", "lab||sweep|gpu||", 1)
    trace = read("sacct.txt", header + named + anonymous)
    assert [dict(submission.labels) for submission in trace] == [
        {"user": "ann", "job_name": "train 7b", "partition": "gpu", "qos": "normal"},
        {"job_name": "sweep", "partition": "gpu"},
    ]


@pytest.mark.parametrize(
    ("state", "status", "failed", "cancelled"),
    [
        ("CANCELLED by 1000", "killed", 0, 4200),
        ("CANCELLED+", "killed", 0, 4200),
        ("TIMEOUT", "killed", 0, 4200),
        ("OUT_OF_MEMORY", "failed", 1, None),
        ("NODE_FAIL", "failed", 1, None),
    ],
)
def test_states(state: str, status: str, failed: int, cancelled: float | None) -> None:
    (submission,) = read("sacct.txt", HEADER + line("100_7", state))
    assert (submission.status, submission.failed_attempts, submission.cancelled_seconds) == (status, failed, cancelled)


@pytest.mark.parametrize(
    ("tres", "gpus", "kind"),
    [
        ("cpu=8,gres/gpu=2", 2, ""),
        ("gres/gpu:v100=2,gres/gpu:k80=4", 6, ""),
        ("gres/gpu:v100=2", 2, "v100"),
        ("cpu=8,gres/gpu:v100=1,gres/gpu=1,gres/gpumem=16G", 1, "v100"),
    ],
)
def test_notations_of_gpu_resources(tres: str, gpus: int, kind: str) -> None:
    (submission,) = read("sacct.txt", HEADER + line("1", tres=tres))
    assert (submission.job.num_gpus, submission.accelerator) == (gpus, kind)


@pytest.mark.parametrize(
    ("limit", "seconds"), [("UNLIMITED", None), ("Partition_Limit", None), ("", None), ("02:30", 150), ("10:00:00", 36000)]
)
def test_time_limits(limit: str, seconds: float | None) -> None:
    (submission,) = read("sacct.txt", HEADER + line("1", limit=limit))
    assert submission.estimate_seconds == seconds


def test_a_requeued_job_has_failed_attempts() -> None:
    again = "2024-05-01T09:20:00|2024-05-01T09:30:00|2024-05-01T09:40:00|00:10:00"
    trace = read("sacct.txt", HEADER + line("1", "NODE_FAIL") + line("1", times=again))
    assert [(s.run_seconds, s.failed_attempts, s.status) for s in trace] == [(4200, 1, "passed")]
    assert trace.report.num_records == 2


AGAIN = "2024-05-01T09:20:00|2024-05-01T09:30:00|2024-05-01T09:40:00|00:10:00"


@pytest.mark.parametrize(
    ("state", "failed"),
    [
        ("COMPLETED", 0),
        ("REQUEUED", 0),
        ("RESIZING", 0),
        ("PREEMPTED", 0),
        ("CANCELLED by 7", 0),
        ("NODE_FAIL", 1),
        ("FAILED", 1),
        ("OUT_OF_MEMORY", 1),
    ],
)
def test_a_later_record_continues_the_run_and_only_failures_are_failed_attempts(state: str, failed: int) -> None:
    trace = read("sacct.txt", HEADER + line("1", state) + line("1", times=AGAIN) + line("2", times=AGAIN))
    first, other = trace
    assert (first.run_seconds, first.failed_attempts, first.status) == (4200, failed, "passed")
    # Slurm resets the time of submission of a job that it requeues; the job has been there since the first one.
    assert (first.job.arrival_seconds, first.wait_seconds, other.job.arrival_seconds) == (0, 600, 4800)
    assert trace.report.num_records == 3
    reason = "it counts as a failed attempt" if failed else "their running times add up"
    assert [(reason in why, count) for why, count in skipped(trace).items()] == [(True, 1)]


def test_a_failed_job_that_was_continued_has_failed_once() -> None:
    (submission,) = read("sacct.txt", HEADER + line("1") + line("1", "FAILED", times=AGAIN))
    assert (submission.run_seconds, submission.failed_attempts, submission.status) == (4200, 1, "failed")


def test_a_job_cancelled_while_requeued_keeps_its_run_time() -> None:
    waiting = "2024-05-01T09:20:00|Unknown|2024-05-01T09:40:00|00:00:00"
    (submission,) = read("sacct.txt", HEADER + line("1", "NODE_FAIL") + line("1", "CANCELLED by 7", times=waiting))
    assert (submission.run_seconds, submission.failed_attempts, submission.status) == (3600, 1, "killed")
    assert (submission.wait_seconds, submission.cancelled_seconds) == (600, 6000)


def test_a_record_that_is_listed_twice_counts_once() -> None:
    running = TIMES.replace("2024-05-01T09:10:00|01:00:00", "Unknown|00:20:00")
    trace = read("sacct.txt", HEADER + line("1", "RUNNING", times=running) + line("1") + line("1"))
    assert [(s.run_seconds, s.failed_attempts, s.status) for s in trace] == [(3600, 0, "passed")]
    assert skipped(trace) == {"is listed again later, with the same submission and start": 2}


def test_a_broken_earlier_record_does_not_affect_the_others() -> None:
    trace = read("sacct.txt", HEADER + line("1", times=TIMES.replace("01:00:00", "an hour")) + line("1", times=AGAIN) + line("2"))
    assert [(s.job.job_id, s.run_seconds) for s in trace] == [("2", 3600), ("1", 600)]
    assert places(trace) == [("sacct.txt, line 2", "Elapsed")]


def test_a_job_that_was_cancelled_in_the_queue_never_started() -> None:
    cancelled = "2024-05-01T08:00:00|2024-05-01T08:10:00|2024-05-01T08:10:00|00:00:00"
    queued = line("1", "CANCELLED by 7", times=cancelled).replace(f"{TRES}|{TRES}", f"{TRES}|")
    trace = read("sacct.txt", HEADER + queued + line("2", "CANCELLED by 7", times=cancelled))
    assert [(s.job.job_id, s.run_seconds) for s in trace] == [("2", 0)]
    assert skipped(trace) == {"never started": 1}


def test_inconsistent_records_are_reported() -> None:
    early = TIMES.replace("2024-05-01T08:00:00", "2024-05-01T08:20:00")
    suspended = TIMES.replace("01:00:00", "00:40:00")
    back = TIMES.replace("T09:10:00", "T08:05:00")
    trace = read(
        "sacct.txt",
        HEADER + line("1", times=early) + line("2", times=suspended) + line("3", times=back) + line("4"),
    )
    assert [(s.job.job_id, s.run_seconds, s.wait_seconds) for s in trace] == [("2", 2400, 600), ("4", 3600, 600), ("1", 3600, 0)]
    assert trace.report.assumptions[:2] == (
        "Jobs with a start recorded before their submission are read as waiting 0 s: 1 (first: sacct.txt, line 2).",
        "Where Elapsed differs from End - Start, as for suspended jobs, Elapsed is used: 1 (first: sacct.txt, line 3).",
    )
    assert places(trace) == [("sacct.txt, line 4", "End")]


def test_unfinished_jobs_and_jobs_without_gpus_are_skipped_and_faults_reported() -> None:
    never = "2024-05-01T08:00:00|Unknown|Unknown|00:00:00"
    trace = read(
        "sacct.txt",
        HEADER
        + line("1", "RUNNING")
        + line("2", "CANCELLED by 7", times=never)
        + line("3", tres="cpu=8")
        + line("4", "DREAMING")
        + line("5", times=TIMES.replace("01:00:00", "an hour"))
        + "6|lab\n"
        + line("7"),
    )
    assert [s.job.job_id for s in trace] == ["7"]
    assert skipped(trace) == {"had not ended (state RUNNING)": 1, "never started": 1, "asks for no GPU": 1}
    assert places(trace) == [("sacct.txt, line 7", ""), ("sacct.txt, line 5", "State"), ("sacct.txt, line 6", "Elapsed")]


def test_required_columns() -> None:
    name = file("sacct.txt", "JobID|Submit|State\n1|2024-05-01T08:00:00|COMPLETED\n")
    with pytest.raises(InputError, match="column AllocTRES or ReqTRES is required"):
        read_trace(name)
    with pytest.raises(InputError, match="column 'Submit' is missing"):
        read_trace(file("other.txt", "JobID|State\n"), "sacct")


def test_times_without_a_time_zone_count_as_utc() -> None:
    plain = line("1", times="2024-05-01T00:00:00|2024-05-01T00:00:00|2024-05-01T01:00:00|01:00:00")
    ahead = line("2", times="2024-05-01T02:30:00+02:00|2024-05-01T02:30:00+02:00|2024-05-01T03:30:00+02:00|01:00:00")
    trace = read("sacct.txt", HEADER + plain + ahead)
    assert [each.job.arrival_seconds for each in trace] == [0, 1800]
    said = "The clock starts with the first arrival, 2024-05-01 00:00:00; times without a time zone count as UTC."
    assert said in trace.report.assumptions


def test_a_job_over_the_end_of_summer_time_keeps_its_elapsed_time() -> None:
    back = "2026-10-25T02:00:00|2026-10-25T02:50:00|2026-10-25T02:10:00|00:20:00"
    trace = read("sacct.txt", HEADER + line("1", "TIMEOUT", times=back) + line("2", times=back))
    assert [(s.run_seconds, s.wait_seconds, s.cancelled_seconds) for s in trace] == [(1200, 3000, 4200), (1200, 3000, None)]
    said = "Where End is before Start + Elapsed, since the clock was set back, Elapsed is used: 2 (first: sacct.txt, line 2)."
    assert said in trace.report.assumptions


def test_jobs_that_wait_or_share_a_gpu_are_not_reported_as_asking_for_none() -> None:
    waiting = "2024-05-01T08:00:00|Unknown|Unknown|00:00:00"
    never = "2024-05-01T08:00:00|Unknown|2024-05-01T08:10:00|00:00:00"
    trace = read(
        "sacct.txt",
        HEADER
        + line("1_[3-9%2]", "PENDING", waiting, "")
        + line("2_[1-4]", "CANCELLED by 7", never, "")
        + line("3", tres="cpu=4,gres/shard:gb10=40,gres/shard=40")
        + line("4", tres="cpu=4,gres/mps=50")
        + line("5", tres="cpu=4,gres/shard=0")
        + line("6", tres="gres/gpu=1,gres/mps=100"),
    )
    assert [submission.job.job_id for submission in trace] == ["6"]
    assert {reason.split(",")[0]: count for reason, count in skipped(trace).items()} == {
        "had not ended (state PENDING)": 1,
        "has no recorded resources": 1,
        "shares GPUs by gres/shard": 1,
        "shares GPUs by gres/mps": 1,
        "asks for no GPU": 1,
    }


def test_the_parts_of_a_heterogeneous_job_are_one_gang() -> None:
    trace = read(
        "sacct.txt",
        HEADER
        + line("7+0", tres="cpu=8")
        + line("7+1", tres="gres/gpu:a100=2,gres/gpu=2")
        + line("7+1.0", tres="cpu=8")
        + line("7+2", tres="gres/gpu:a100=4,gres/gpu=4")
        + line("8+0", tres="gres/gpu:a100=1")
        + line("8+1", tres="gres/gpu:v100=1"),
    )
    assert [(s.job.job_id, s.job.num_gpus, s.accelerator, s.run_seconds) for s in trace] == [
        ("7", 6, "a100", 3600),
        ("8", 2, "", 3600),
    ]
    assert [s.job.cpus_per_gpu for s in trace] == [16 / 6, 8]
    assert skipped(trace) == {
        "is a part of a heterogeneous job, which is read as one gang": 3,
        "is a step of a job that has its own line": 1,
    }


def test_times_in_seconds_since_1970_are_read() -> None:
    (submission,) = read("sacct.txt", HEADER + line("1", "TIMEOUT", "1714550400|1714551000|1714554600|01:00:00"))
    assert (submission.wait_seconds, submission.run_seconds, submission.cancelled_seconds) == (600, 3600, 4200)


def test_unlikely_times_are_counted_with_the_first_line() -> None:
    unknown = "1970-01-01T00:00:00|2024-05-01T08:10:00|2024-05-01T09:10:00|01:00:00"
    long = TIMES.replace("01:00:00", "4000-00:00:00")
    trace = read("sacct.txt", HEADER + line("1") + line("2", times=unknown) + line("3", times=long) + line("4", times=unknown))
    assert len(trace) == 4
    said = [each for each in trace.report.assumptions if each.startswith("Jobs that")]
    assert [each.split(", possibly")[0] + each.partition(": ")[2] for each in said] == [
        "Jobs that ran or waited for more than 10 years3 (first: sacct.txt, line 3).",
        "Jobs that arrived before the year 20002 (first: sacct.txt, line 3).",
    ]
