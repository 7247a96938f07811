"""Answers of the command for `same_answers.py`: exit code, output, errors and files written of some 80 command lines, and all help.

Command lines run one after another in one process and one folder, as a user would type them, with the examples of the checkout, the
files of `FILES` and Slurm's recorded answers. Folders, versions and measured times are replaced in what they print.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from same_values import MEASURED, plain

__all__ = ["commands", "helps"]

FILES = """\
== three.csv
job_id,job_type,num_gpus,weight,total_steps,tenant
bert,bert,1,1,3600,a
lstm,lstm,2,2,900,a
cnn,cnn,1,1,5000,b
== three-speeds.csv
job_id,v100,k80
bert,4,1
lstm,2,1.5
cnn,3,0
== broken.csv
job_id,job_type,num_gpus,total_steps
a,bert,0,10
a,bert,1,-5
b,,x,10
== cluster.yaml
accelerator_types:
  v100: {price_per_hour: 2.5}
  k80: {price_per_hour: 0.5}
nodes:
  - {name: v, count: 2, accelerator: v100, num_gpus: 4, cpus: 16, memory_gb: 128, rack: r1}
  - {name: k, accelerator: k80, num_gpus: 8, cpus: 16, memory_gb: 128, rack: r2}
== constraints.yaml
constraints:
  - {kind: quota, tenant: a, gpus: 2}
== workflow.csv
job_id,job_type,num_gpus,total_steps,workflow,depends_on
data,ResNet-18 (batch size 64),1,40000,w,
train,ResNet-50 (batch size 64),2,90000,w,data
test,ResNet-18 (batch size 64),1,10000,w,train
other,LM (batch size 20),1,200000,,
== elastic.csv
job_id,job_type,min_gpus,max_gpus,total_steps
a,ResNet-50 (batch size 64),1,8,400000
b,LM (batch size 20),2,4,300000
c,ResNet-18 (batch size 64),1,2,900000
== mine.csv
job_type,num_gpus,accelerator,steps_per_second
bert,1,v100,4
bert,2,v100,7.46
bert,4,v100,13.93
bert,1,k80,1.5
bert,2,k80,2.8
lstm,1,v100,2
lstm,2,v100,3.73
lstm,1,k80,1.5
lstm,1,a100,3
lstm,2,a100,5.6
cnn,1,v100,3
cnn,4,v100,10.45
cnn,1,k80,0.8
cnn,1,a100,5
gan,1,v100,1.5
gan,2,v100,2.8
gan,1,a100,4
== windows.csv
node,start_seconds,end_seconds
v100-0,7200,14400
== small.yaml
mode: simulate
policies: [fifo, isolated, {policy: max_min_fairness, options: {agnostic: true}, name: blind}]
traces:
  - generate: {jobs: 8, durations: [[1, 600, 5000]]}
loads: [6]
clusters: ['v100:4,k80:4']
seeds: [0, 1]
fairness: true
== static.yaml
mode: solve
policies: [max_min_fairness, min_makespan]
traces:
  - generate: {jobs: 20}
clusters: ['v100:8,k80:8']
seeds: [3]
== llms.yaml
services:
  - {name: chat, model: LLaMA v3.1 8B, rate: 150, mix: {128/128: 0.4, 1000/1000: 0.4, 2048/128: 0.2}}
  - {name: assistant, model: LLaMA v3.1 70B, rate: 12, weight: 2, mix: {128/128: 1, 1000/1000: 1}}
  - {name: code, model: Mixtral 8x7B, rate: 40, tenant: research, mix: {2048/128: 1}}
== services.yaml
services:
  - {name: chat, model: bert-1.3b, rate: 4, cv: 3, slo_seconds: 0.45}
  - {name: ads, model: bert-1.3b, rate: 2, cv: 3, slo_seconds: 0.45, weight: 2}
  - {name: mail, model: bert-1.3b, rate: 2, slo_seconds: 1.0}
== shapes.csv
model,accelerator,operator_parallel,pipeline_parallel,stage_seconds,memory_gb
bert-1.3b,v100,1,1,0.148,5.2
bert-1.3b,v100,1,2,0.075;0.076,2.6
"""
"""The files in the folder before the first command, each below its name."""

COMMANDS = """
solve jobs.csv -c university.yaml
solve jobs.csv -c university.yaml -p fifo -p max_min_fairness -p max_min_fairness,agnostic=true -p min_makespan --wide
solve jobs.csv -c university.yaml -p max_min_fairness -p min_cost --json
solve jobs.csv -c university.yaml -p max_min_fairness -p fifo --csv
solve jobs.csv -c university.yaml --by tenant --csv
solve jobs.csv -c university.yaml --by type --all
solve jobs.csv -c university.yaml -p hierarchical,tenants=tenants.yaml --by tenant
solve jobs.csv -c university.yaml --sharing --json
solve jobs.csv -c university.yaml --what-if v100+8 --what-if v100=0,p100+16
solve jobs.csv -c university.yaml --rounds 3 --json
solve jobs.csv -c university.yaml --rounds 1 --by node
solve jobs.csv -c university.yaml --no-whole-gangs --merge-tolerance 0.02 --write-program program.mps --out solved.txt
solve jobs.csv -c v100:8,t4:4
solve jobs.csv -c v100:8 -p fif
solve three.csv -c cluster.yaml --throughputs three-speeds.csv -p nash_welfare --constraints constraints.yaml
solve three.csv -c cluster.yaml --throughputs three-speeds.csv -p shortest_job_first --csv --out three-solved.csv
solve broken.csv -c v100:8 --throughputs three-speeds.csv
solve workflow.csv -c v100:1,k80:2 --workflows
solve workflow.csv -c v100:1,k80:2 --workflows --json
solve elastic.csv -c v100:8,k80:8 --json
solve three.csv -c v100:4,a100:2,k80:4 --profile mine.csv --estimate --sensitivity
explain vision-010 jobs.csv -c university.yaml
explain lstm three.csv -c v100:2,k80:1 --throughputs three-speeds.csv -p shortest_job_first --json
explain bert three.csv -c cluster.yaml --throughputs three-speeds.csv --constraints constraints.yaml
policies
policies show hierarchical
rounds three.csv -c v100:2,k80:1 --throughputs three-speeds.csv -p fifo --rounds 2 --json
rounds three.csv -c v100:2,k80:1 --throughputs three-speeds.csv --rounds 3 --csv
rounds jobs.csv -c university.yaml --rounds 4 --down v100-a-0 --mechanism priority --by tenant
rounds jobs.csv -c university.yaml --until-done --round-seconds 7200
rounds lab.csv -c university.yaml --rounds 5 --sharing --all
trace generate --jobs 14 --jobs-per-hour 12 --seed 1 --gangs 1:6,2:2,4:1 --durations 0.7:600-5000,0.3:5000-9000 --out trace.csv
trace generate --jobs 12 --static --workflows --seed 2
trace generate --jobs 12 --jobs-per-hour 6 --burstiness 3 --durations 1:600-9000 --heavy-share 0.3 --out trace.jsonl
trace describe trace.csv --predictability --group job_type,num_gpus --periods 2
trace describe trace.csv --json
trace import trace.csv --predict-durations --group job_type --out predicted.csv --json
trace sample trace.csv --jobs 10 --seed 3 --out sampled.csv
trace scale trace.csv --load 2 --out scaled.csv
trace window trace.csv --first 3 --last 8 --out window.csv
trace formats
trace formats --json
simulate trace.csv -c v100:8/4,k80:8/4
simulate trace.csv -c university.yaml -p fifo -p isolated -p max_min_fairness --restart-seconds 60 --json
simulate trace.csv -c v100:8/4,k80:8/4 -p fifo -p finish_time_fairness -p isolated --csv
simulate trace.csv -c v100:8/4,k80:8/4 -p shortest_job_first --maintenance windows.csv --job-failures 0.2 \
  --node-mtbf 20 --node-repair 1 --jobs-out finished.csv --timeline-out timeline.csv --tenants-out tenants.csv --json
simulate trace.csv -c v100:8/4,k80:8/4 -p fifo --events --run-out fifo.json --jobs-out events.csv
simulate trace.csv -c v100:8/4,k80:8/4 -p max_min_fairness -p shortest_job_first --run-out runs.json --starts-between-rounds
simulate workflow.csv -c v100:2,k80:2 --elastic --csv
simulate trace.csv -c v100:8/4 -p fifo --until 2h --jobs-out first.csv --save-state fifo.state --state-every 5rounds
simulate trace.csv -c v100:8/4 -p fifo --jobs-out first.csv --continue fifo.state --json
simulate trace.csv -c v100:4/4,k80:4/4 -p min_makespan --learn --known 0.5 --csv
simulate trace.csv -c v100:4/4,k80:4/4 -p fifo --job-failures 2
report runs.json fifo.json --out report.html --charts charts
sweep small.yaml --dry-run
sweep small.yaml --no-progress --results cells.sqlite --export cells.csv --workers 1
sweep small.yaml --no-progress --results cells.sqlite --export cell.csv --tenants-out cell-tenants.csv --workers 1
sweep static.yaml --dry-run
report cells.sqlite --out cells.html --only load
profiles list --json
profiles show gavel-osdi20 --job-type "A3C"
profiles import mine.csv --name mine
profiles show mine
profiles export mine --out exported.csv
profiles missing three.csv -c v100:4,a100:4,k80:4 --profile mine
profiles plan mine --jobs three.csv -c v100:4,a100:4,k80:4 --budget 3 --json
profiles check mine.csv --json
profiles list
profiles delete mine
profiles export mine
serve plan llms.yaml -c h100:4,l40s:8,a100-80gb:4 --quota research=4 --seeds 2
serve plan llms.yaml -c h100:4,l40s:8,a100-80gb:4 --json --seeds 1
serve plan llms.yaml -c h100:4,l40s:8 --csv --budget 30 --price h100=4 --price l40s=1 --objective weighted_rate
serve simulate services.yaml --profile shapes.csv -c v100:4 --gpu-memory v100=13 --seeds 2
serve simulate services.yaml --profile shapes.csv -c v100:4 --gpu-memory v100=13 --seeds 1 --json --out placement.json
serve simulate services.yaml --groups placement.json --seeds 1
slurm status --partition opt
slurm status --partition opt --json
slurm plan --partition opt -p fifo --json
slurm plan --partition opt --price v100=cheap
slurm run --partition opt --dry-run -p max_min_fairness
slurm run --shadow --partition opt --once -p fifo --state shadow --log-level warning
slurm queue --state shadow --json
slurm why 101 --state shadow
slurm install --partition gpu --user root --out job_submit.lua
completion bash
"""

TIMES = re.compile(
    r"^( *(?:time to solve|total run time|estimate:|elapsed)).*$|\b\d[\d.,]* (?:ms|s|min)\b(?= each|\)|\.$|$)", re.MULTILINE
)
"""Measured times in texts for people."""

CLOCK = re.compile(r"\b\d\d:\d\d:\d\d, [\d.e-]+ s ago|(?<![\d.])1[789]\d{8}(\.\d+)?\b|\b20[2-9]\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?\b")
"""The time of the day, in seconds since 1970 or as a date."""

RUNS = {"runs.json", "fifo.json"}
MEASURED_IN_RUNS = re.compile(rf'("(?:{"|".join(MEASURED)})": ?)[\d.e-]+')

STATES = ("fifo.state", "shadow/")
"""Beginnings of names of files that are for gavel-py itself."""


def commands(tree: Path) -> Iterator[dict[str, Any]]:
    """Yield what each command line prints and writes; tree: the checkout, whose examples and recordings are used."""
    for name in ("lab.csv", "tenants.yaml"):
        shutil.copyfile(tree / "examples" / name, name)
    shutil.copyfile(tree / "examples" / "cluster.yaml", "university.yaml")
    Path("jobs.csv").write_text("".join((tree / "examples" / "jobs.csv").read_text().splitlines(keepends=True)[:41]))
    for part in FILES.split("== ")[1:]:
        name, _, text = part.partition("\n")
        Path(name).write_text(text)
    _recorded_slurm(tree / "tests" / "slurm" / "recorded", Path("bin"))
    for line in COMMANDS.replace("\\\n", "").strip().splitlines():
        yield _played(tree, line)


def helps() -> Iterator[dict[str, Any]]:
    """Yield the help of each command, with all its options where it has `--help-all`."""
    from gavel_py.cli import _gavel

    for name, command in _below("", _gavel, click.Context(_gavel)):
        flags = [
            "--help",
            *(flag for each in command.get_params(click.Context(command)) for flag in each.opts if flag == "--help-all"),
        ]
        for flag in flags:
            yield {"name": f"gavel {name}{flag}", "text": _outcome([*name.split(), flag])[1]}


def _below(name: str, command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if not isinstance(command, click.Group):
        return
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from _below(f"{name}{each} ", found, click.Context(found, parent=context, info_name=each))


def _recorded_slurm(recorded: Path, folder: Path) -> None:
    """Write commands of Slurm that print recordings, and put them on the path."""
    folder.mkdir()
    for name in ("sinfo", "squeue", "scontrol"):
        (folder / name).write_text("#!/bin/sh\n" + (f"cat '{recorded}/{name}-22.05.json'\n" if name != "scontrol" else ""))
        (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder.resolve()}{os.pathsep}{os.environ['PATH']}"


def _played(tree: Path, line: str) -> dict[str, Any]:
    before = _written()
    code, out, err = _outcome(shlex.split(line))
    changed = sorted(str(path) for path, stamp in _written().items() if before.get(path) != stamp)
    texts = {"out": out, "err": err} | {name: "" if name.startswith(STATES) else _text(Path(name)) for name in changed}
    folders = {str(Path.cwd()): "DIR", str(Path.cwd().parent): "HOME", str(tree): "TREE", sys.prefix: "PREFIX"}
    for name in RUNS.intersection(changed):  # reports show all figures of a run
        Path(name).write_text(MEASURED_IN_RUNS.sub(r"\g<1>0.0", Path(name).read_text()))
    return {"name": f"gavel {line}", "code": code, **{name: _normalised(text, folders) for name, text in texts.items()}}


def _normalised(text: str, folders: dict[str, str]) -> Any:
    """Return JSON as values, tables of CSV as rows, and other texts as they are, without folders and measured times."""
    for folder, name in folders.items():
        text = text.replace(folder, name)
    text = CLOCK.sub("CLOCK", text)
    if text.startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            return plain(json.loads(text))
    rows = list(csv.reader(io.StringIO(text)))
    if rows and not set(MEASURED).isdisjoint(rows[0]):
        kept = [number for number, name in enumerate(rows[0]) if name not in MEASURED]
        return [[row[number] for number in kept] for row in rows]
    return TIMES.sub(r"\1 TIME", text)


def _outcome(arguments: list[str]) -> tuple[Any, str, str]:
    from gavel_py.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: Any = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code or 0
        except Exception as error:  # noqa: BLE001
            code = repr(error)  # which differs from any exit code
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))


def _written() -> dict[Path, tuple[int, int]]:
    paths = (path for path in Path().rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def _text(path: Path) -> str:
    """Return the text of a file, or that it is binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return "binary"
