"""What `kubectl get -o json` prints of a cluster with Kueue: queues, flavors, and workloads with types, speeds and lengths."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, faults_from, nearest, shown
from gavel_py.integrations.kueue.objects import (
    GPUS,
    Object,
    conditions,
    excluded_flavors,
    gang_of,
    gpus_by_flavor,
    is_true,
    labels_of,
    name_of,
    queued_workload,
    requests_of,
    seconds,
    selects,
)
from gavel_py.integrations.kueue.preemption import QueuedWorkload
from gavel_py.integrations.kueue.quota import amount
from gavel_py.integrations.kueue.shapes import SHAPES, faults_of
from gavel_py.io.reading import Document, document, parse_json
from gavel_py.throughput_profiles import ThroughputProfile

TYPE = "gavel-py/job-type"
STAMPS = ("creationTimestamp", "lastTransitionTime", "startTime", "completionTime", "lastUpdate")
LEAST_HOURS = 0.1
"""What is left of a workload that has already run for its whole time, or its whole length if that is less."""

UNKNOWN_TYPE = "-"
NO_FLAVOR = "no flavor that it may use runs it"
NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class KueueSettings:
    """How objects are read.

    Attributes:
        profile: Speeds by job type; without it, all types are equally fast on all flavors.
        accelerators: {flavor: accelerator of the profile}, where labels and name of the flavor do not tell.
        types: (pattern, job type) for workloads without the annotation gavel-py/job-type, on namespace/name of the owner.
        hours: Length of workloads that state none and of whose type none has finished.
        now: Unix time of the dump; None for the newest stamp in it.
        released: Whether to read queues that are held as if they were released.
    """

    profile: ThroughputProfile | None = None
    accelerators: Mapping[str, str] = field(default_factory=dict)
    types: Sequence[tuple[str, str]] = ()
    hours: float = 4.0
    now: float | None = None
    released: bool = False


@dataclass(frozen=True, eq=False)
class KueueJob:
    """A Workload that wants GPUs.

    Attributes:
        source: The Workload as kubectl prints it.
        workload: The same as Kueue's scheduler sees it.
        gpus: GPUs of its pods, without those that have succeeded.
        job_type: Its type, "-" if unknown.
        speeds: {flavor of its queue: speed of the gang}, 1 on the reference flavor and 0 where it does not run.
        liftable: The flavors that run it if its node selector names none: those that its affinity and tolerations allow.
        hours: Its length at speed 1.
        done: Hours of it that are done.
        flavor: The flavor of its GPUs if it holds quota, otherwise "".
        held: Why it is not considered for admission, or would not be after an eviction, or "".
        evictions: How often it has been evicted.
        owner: Kind and name of what owns it, such as ("Job", "j001").
    """

    source: Object
    workload: QueuedWorkload
    gpus: int
    job_type: str
    speeds: Mapping[str, float]
    liftable: frozenset[str]
    hours: float
    done: float = 0.0
    flavor: str = ""
    held: str = ""
    evictions: int = 0
    owner: tuple[str, str] = ("", "")

    @property
    def key(self) -> str:
        """Namespace/name of the Workload."""
        return self.workload.key

    @property
    def queue(self) -> str:
        """Its ClusterQueue."""
        return self.workload.queue

    @cached_property
    def flavors(self) -> frozenset[str]:
        """The flavors of its queue that run it and that its own node selector, affinity and tolerations allow."""
        excluded = {name for found in self.workload.excluded.values() for name in found}
        return frozenset(name for name, speed in self.speeds.items() if speed > 0 and name not in excluded)

    @property
    def held_gpus(self) -> dict[str, int]:
        """{flavor: GPUs that it holds}."""
        return gpus_by_flavor(self.workload.usage)


@dataclass(frozen=True, eq=False)
class KueueState:
    """A cluster with Kueue at one moment.

    Attributes:
        objects: {kind: {name: object}} of what is read.
        jobs: Workloads with GPUs that wait or hold quota, in the order of their creation.
        finished: Workloads with GPUs that have finished.
        notes: What the reader assumed.
        unmodelled: What the replay does not model, so that there is no forecast.
        now: Unix time.
        reference: The flavor on which stated lengths hold.
        is_fair: Whether fair sharing is on, as the status of the queues shows.
        jobs_of: {namespace/name: Job} of Kubernetes.
    """

    objects: Mapping[str, Mapping[str, Object]]
    jobs: tuple[KueueJob, ...]
    finished: tuple[Object, ...]
    notes: tuple[str, ...]
    unmodelled: tuple[str, ...]
    now: float
    reference: str
    is_fair: bool
    jobs_of: Mapping[str, Object]

    @property
    def waiting(self) -> list[KueueJob]:
        """The jobs that hold no quota."""
        return [job for job in self.jobs if not job.flavor]

    @property
    def pending(self) -> list[KueueJob]:
        """The jobs that wait and are not held."""
        return [job for job in self.waiting if not job.held]

    @property
    def running(self) -> list[KueueJob]:
        """The jobs that hold quota."""
        return [job for job in self.jobs if job.flavor]

    def quotas(self, queue: str) -> dict[str, int]:
        """Return {flavor: GPUs of nominal quota} of a ClusterQueue, or of a Cohort of that name."""
        found: dict[str, int] = {}
        for kind in ("ClusterQueue", "Cohort"):
            each = self.objects[kind].get(queue)
            for name, resource, quota in _gpu_quotas(each) if each is not None else ():
                found[name] = found.get(name, 0) + amount(resource, quota)
            if found:
                break
        return found

    def cohort_of(self, queue: str) -> str:
        """Return the cohort at the top of the tree of a ClusterQueue, or the queue itself without one."""
        spec = self.objects["ClusterQueue"][queue]["spec"]
        name = spec.get("cohortName") or spec.get("cohort")
        return self.top_of(name) if name else queue

    def top_of(self, cohort: str) -> str:
        """Return the cohort at the top of the tree of a cohort."""
        while cohort in self.objects["Cohort"] and (above := _parent(self.objects["Cohort"][cohort])):
            cohort = above
        return cohort

    def require_forecast(self) -> None:
        """Raise `InputError` with all that makes a forecast impossible."""
        text = "is not modelled, so there is no forecast; `gavel kueue show` still works"
        InputError.raise_any([Fault(where, "", text) for where in self.unmodelled])


def _parent(cohort: Object) -> str:
    spec = cohort.get("spec") or {}
    return str(spec.get("parentName") or spec.get("parent") or "")


def _gpu_quotas(each: Object) -> Iterator[tuple[str, str, object]]:
    """Yield (flavor, resource, nominal quota) of the GPUs of a ClusterQueue or a Cohort."""
    for group in (each.get("spec") or {}).get("resourceGroups") or []:
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                if resource["name"] in GPUS:
                    yield flavor["name"], resource["name"], resource.get("nominalQuota") or 0


def read_kueue(path: str | Path, settings: KueueSettings | None = None) -> KueueState:
    """Read the output of `kubectl get clusterqueues,cohorts,resourceflavors,localqueues,workloads,jobs -A -o json`.

    Args:
        path: The file.
        settings: Speeds, types and lengths.

    Raises:
        InputError: The file is not such a list, or objects contradict each other; all faults at once.
    """
    return _Reader(document(path), settings or KueueSettings()).state()


KINDS = ("clusterqueues", "cohorts", "resourceflavors", "localqueues", "workloads", "jobs")
FORBIDDEN = re.compile(r'cannot list resource "([^"]+)"')
NO_SUCH_KIND = re.compile(r'doesn\'t have a resource type "([^"]+)"')


def read_kueue_of(context: str, settings: KueueSettings | None = None) -> KueueState:
    """Read the cluster of a context of kubectl, which it runs to read only.

    Args:
        context: The name of the context.
        settings: Speeds, types and lengths.

    Raises:
        InputError: As `read_kueue`; or kubectl is not installed, does not know the context, or does not reach the cluster.
    """
    kinds, lacking = list(KINDS), list[str]()
    while True:
        command = ["kubectl", "--context", context, "get", ",".join(kinds), "-A", "-o", "json"]
        with faults_from("kubectl", "cannot be run", OSError):
            done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)  # noqa: S603
        unknown = NO_SUCH_KIND.search(done.stderr)
        if unknown is None or unknown[1] not in kinds:
            break
        kinds.remove(unknown[1])
        lacking.append(f"the cluster has no {unknown[1]}")
    lacking += [
        f"may not list {name}, so they are missing: its role needs get and list of them" for name in FORBIDDEN.findall(done.stderr)
    ]
    lines = done.stderr.splitlines() if done.returncode else []
    lacking += [f"kubectl: {line.strip()}" for line in lines if line.strip() and not FORBIDDEN.search(line)]
    where = " ".join(command)
    if not done.stdout.strip():
        raise InputError(Fault(where, "", done.stderr.strip() or "printed nothing"))
    document_ = Document(where, parse_json(where, done.stdout, 1), lambda depth: {}, is_json=True)  # noqa: ARG005
    state = _Reader(document_, settings or KueueSettings()).state()
    return replace(state, notes=(*lacking, *state.notes))


class _Reader:
    def __init__(self, file: Document, settings: KueueSettings) -> None:
        self.file, self.settings = file, settings
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in SHAPES}
        self.places: dict[tuple[str, str], int] = {}
        self.unmodelled: dict[str, None] = {}
        self.equal_types: set[str] = set()

    def state(self) -> KueueState:
        self.collect()
        InputError.raise_any(self.faults)
        self.check()
        InputError.raise_any(self.faults)
        for kind in ("ResourceFlavor", "ClusterQueue", "Workload"):
            for name, each in self.objects[kind].items():
                self.unmodelled |= {f"{kind} {name}: {what}": None for what in _unmodelled(each)}
        self.now = self.settings.now or max(map(seconds, _stamps(self.file.value)), default=0.0)
        self.speeds_of_types: dict[tuple[str, int], dict[str, float]] = {}
        self.names = {name: self.accelerator(name, each) for name, each in self.objects["ResourceFlavor"].items()}
        for name in sorted(set(self.settings.accelerators) - set(self.names)):
            problem = f"there is no ResourceFlavor {name!r}{nearest(name, self.names)}"
            self.faults.append(Fault(f"--map {name}={self.settings.accelerators[name]}", "", problem))
        InputError.raise_any(self.faults)
        order = sorted(
            self.objects["Workload"].values(),
            key=lambda each: tuple(str(each["metadata"].get(name) or "") for name in ("creationTimestamp", "uid")),
        )
        finished = tuple(each for each in order if is_true(each, "Finished") and gang_of(each))
        live = tuple(each for each in order if not is_true(each, "Finished") and _gpus(each))
        self.check_types(live)
        InputError.raise_any(self.faults)
        self.reference = self.reference_of(live or finished)
        self.lengths = self.lengths_of(finished)
        jobs = tuple(filter(None, map(self.job, live)))
        shares = (each.get("status") or {} for each in self.objects["ClusterQueue"].values())
        if self.equal_types:
            listed = ", ".join(sorted(self.equal_types))
            self.notes.append(f"taken as equally fast on every flavor, since no profile has their speeds: jobs of type {listed}")
        return KueueState(
            objects=self.objects,
            jobs=jobs,
            finished=finished,
            notes=tuple(self.notes),
            unmodelled=tuple(self.unmodelled),
            now=self.now,
            reference=self.reference,
            is_fair=any(each.get("fairSharing") for each in shares),
            jobs_of={name_of(each): each for each in self.file.value["items"] if _is_job(each)},
        )

    def fault(self, each: Object, way: str, problem: str) -> None:
        self.faults.append(Fault(self.where(each), way, problem))

    def where(self, each: Object) -> str:
        index = self.places[each["kind"], name_of(each)]
        return f"{self.file.line('items', index)}, {each['kind']} {name_of(each)}"

    def collect(self) -> None:
        """Take the objects of the list, and note what is wrong with them."""
        items = self.file.value.get("items") if isinstance(self.file.value, Mapping) else None
        if not isinstance(items, list):
            rule = 'must be the output of kubectl get -o json, an object with a list "items"'
            raise InputError(Fault(self.file.path, "", f"{rule}, found {shown(self.file.value)}"))
        for index, each in enumerate(items):
            if not isinstance(each, Mapping) or not isinstance(each.get("kind"), str):
                rule = f"must be an object with a kind, found {shown(each)}"
                self.faults.append(Fault(self.file.line("items", index), "", rule))
            elif each["kind"] in SHAPES:
                found = faults_of("", each)
                name = "" if any(fault.field.startswith("metadata") for fault in found) else name_of(each)
                if found:
                    place = f"{self.file.line('items', index)}, {each['kind']} {name}".rstrip()
                    self.faults += [replace(fault, where=place) for fault in found]
                elif name in self.objects[each["kind"]]:
                    place = f"{self.file.line('items', index)}, {each['kind']} {name}"
                    self.faults.append(Fault(place, "", "appears twice; merge the lists without repeating objects"))
                else:
                    self.objects[each["kind"]][name] = each
                    self.places[each["kind"], name] = index

    def check(self) -> None:
        """Note what objects say that contradicts others."""
        queues = self.objects["ClusterQueue"]
        for kind in ("ClusterQueue", "ResourceFlavor", "LocalQueue"):
            if not self.objects[kind]:
                rule = "half a dump cannot be read: get clusterqueues,cohorts,resourceflavors,localqueues,workloads,jobs at once"
                lacking = f"has no {kind}, or this account may not list them (its role needs get and list of {kind.lower()}s)"
                self.faults.append(Fault(self.file.path, "", f"{lacking}; {rule}"))
        counts = [(each.get("status") or {}).get("pendingWorkloads") for each in queues.values()]
        pending = sum(count for count in counts if isinstance(count, int))
        if pending and not self.objects["Workload"]:
            text = f"has no Workload, although {pending} are pending by the status of the ClusterQueues"
            self.faults.append(Fault(self.file.path, "", f"{text}; the account needs get and list of workloads in all namespaces"))
        if queues and not any(True for each in queues.values() for _ in _gpu_quotas(each)):
            found = {
                name
                for each in queues.values()
                for group in each["spec"].get("resourceGroups") or []
                for name in group["coveredResources"]
            }
            text = f"no ClusterQueue covers a GPU resource, {' or '.join(GPUS)}; they cover {', '.join(sorted(found)) or 'nothing'}"
            self.faults.append(Fault(self.file.path, "", text))
        self.check_links()
        self.check_cohorts()
        self.check_assignments()

    def check_links(self) -> None:
        queues, flavors = self.objects["ClusterQueue"], self.objects["ResourceFlavor"]
        for queue in queues.values():
            for group in queue["spec"].get("resourceGroups") or []:
                for name in (flavor["name"] for flavor in group["flavors"]):
                    if flavors and name not in flavors:
                        self.fault(queue, "spec.resourceGroups", f"there is no ResourceFlavor {name!r}{nearest(name, flavors)}")
        for each in self.objects["LocalQueue"].values():
            if queues and each["spec"]["clusterQueue"] not in queues:
                name = each["spec"]["clusterQueue"]
                self.fault(each, "spec.clusterQueue", f"leads to no ClusterQueue: there is no {name!r}{nearest(name, queues)}")

    def check_cohorts(self) -> None:
        cohorts = self.objects["Cohort"]
        for name, each in cohorts.items():
            above, seen = _parent(each), {name}
            while above in cohorts and above not in seen:
                seen.add(above)
                above = _parent(cohorts[above])
            if above == name:
                self.fault(each, "spec.parentName", "leads back to the cohort itself; a tree has no circles")

    def check_assignments(self) -> None:
        for each in self.objects["Workload"].values():
            # What has finished may have had a queue that is gone.
            admission = {} if is_true(each, "Finished") else (each.get("status") or {}).get("admission") or {}
            if admission and self.objects["ClusterQueue"] and admission["clusterQueue"] not in self.objects["ClusterQueue"]:
                self.fault(each, "status.admission.clusterQueue", f"there is no ClusterQueue {admission['clusterQueue']!r}")
            for pods in admission.get("podSetAssignments") or []:
                lacking = set(pods.get("resourceUsage") or {}) - set(pods.get("flavors") or {})
                if lacking:
                    self.fault(each, "status.admission.podSetAssignments", f"has no flavor of {', '.join(sorted(lacking))}")

    def accelerator(self, flavor: str, each: Object) -> str:
        """Return the profile's name of the GPUs of a flavor: by --map, by a label of its nodes, by its name."""
        profile = self.settings.profile
        own = self.settings.accelerators.get(flavor)
        if profile is None or not any(
            flavor == name for queue in self.objects["ClusterQueue"].values() for name, *_ in _gpu_quotas(queue)
        ):
            return flavor
        labels = [] if own else list(labels_of(each).values())
        for name in [own] if own else [*labels, flavor]:
            found = profile.accelerator_named(name.removeprefix("nvidia-"))
            if found in profile.accelerators:
                return found
        given = ", ".join(map(repr, labels)) or "none"
        what = f"profile {profile.name!r} has no GPUs of its name, nor of its node labels ({given})"
        problem = f"--map gives it {own!r}, which profile {profile.name!r} lacks" if own else what
        self.fault(each, "", f"{problem}; say --map {flavor}=ACCELERATOR, one of {', '.join(profile.accelerators)}")
        return flavor

    def speeds(self, each: Object, queue: str) -> dict[str, float]:
        """Return {flavor of the queue: speed}, relative to the reference flavor if the type runs there."""
        names = dict.fromkeys(name for name, *_ in _gpu_quotas(self.objects["ClusterQueue"][queue]))
        found = self.rates(self.type_of(each), gang_of(each))
        rates = {name: found.get(name, 0.0) for name in names}
        base = found.get(self.reference) or max(rates.values(), default=0.0)
        return {name: rate / base if base else 0.0 for name, rate in rates.items()}

    def rates(self, job_type: str, gpus: int) -> dict[str, float]:
        """Return {flavor: steps/s} of a type and number of GPUs; equal ones if no profile is given or the type is unknown."""
        profile, key = self.settings.profile, (job_type, gpus)
        if key not in self.speeds_of_types:
            if profile is None or job_type == UNKNOWN_TYPE:
                self.speeds_of_types[key] = dict.fromkeys(self.objects["ResourceFlavor"], 1.0)
            else:
                known = {name: accelerator for name, accelerator in self.names.items() if profile.has(job_type, gpus, accelerator)}
                self.speeds_of_types[key] = {name: profile.throughput(job_type, gpus, one) for name, one in known.items()}
        return self.speeds_of_types[key]

    def check_types(self, live: Iterable[Object]) -> None:
        """Note the types of Workloads that have not finished and that the profile lacks, once each."""
        profile = self.settings.profile
        for (job_type, gpus), each in {(self.type_of(each), gang_of(each)): each for each in live}.items():
            if profile is None or job_type == UNKNOWN_TYPE:
                self.equal_types.add("unknown" if job_type == UNKNOWN_TYPE else job_type)
            elif job_type not in profile.job_types:
                hint = nearest(job_type, profile.job_types)
                self.fault(each, TYPE, f"profile {profile.name!r} has no job type {job_type!r}{hint}")
            elif not any(self.rates(job_type, gpus).values()):
                listed = ", ".join(sorted(set(self.names.values())))
                self.fault(each, TYPE, f"profile {profile.name!r} has no speed of {job_type!r} with {gpus} GPUs on {listed}")

    def type_of(self, each: Object) -> str:
        template = each["spec"]["podSets"][0]["template"] if each["spec"]["podSets"] else {}
        given = ((template.get("metadata") or {}).get("annotations") or {}).get(TYPE)
        if given:
            return str(given)
        name = _owner(each)[1]
        full = f"{each['metadata'].get('namespace', '')}/{name or each['metadata']['name']}"
        return next(
            (found for pattern, found in self.settings.types if fnmatchcase(full, pattern) or fnmatchcase(name, pattern)),
            UNKNOWN_TYPE,
        )

    def reference_of(self, wanted: Sequence[Object]) -> str:
        """Return the flavor that runs most types; of several the one with most GPUs, then the first by name."""
        gpus: dict[str, int] = defaultdict(int)
        for each in [*self.objects["ClusterQueue"].values(), *self.objects["Cohort"].values()]:
            for name, resource, quota in _gpu_quotas(each):
                gpus[name] += amount(resource, quota)
        kinds = {(self.type_of(each), gang_of(each)) for each in wanted}
        runs = {name: sum(self.rates(*kind).get(name, 0.0) > 0 for kind in kinds) for name in gpus}
        return min(gpus, key=lambda name: (-runs[name], -gpus[name], name))

    def lengths_of(self, finished: Sequence[Object]) -> dict[str, float]:
        """Return {type: mean hours at speed 1} of what has run to its end."""
        hours: dict[str, list[float]] = defaultdict(list)
        for each in finished:
            found, queue = conditions(each), ((each.get("status") or {}).get("admission") or {}).get("clusterQueue")
            if is_true(each, "Admitted") and queue in self.objects["ClusterQueue"]:
                stay = seconds(found["Finished"]["lastTransitionTime"]) - seconds(found["Admitted"]["lastTransitionTime"])
                speed = self.speeds(each, queue).get(_gpu_flavor(each), 0.0)
                length = _earlier_hours(each) + max(0.0, stay) / 3600 * speed
                hours[self.type_of(each)] += [length] if speed > 0 and length > 0 else []
        return {name: statistics.fmean(values) for name, values in hours.items() if values}

    def job(self, each: Object) -> KueueJob | None:
        """Return the job of a Workload that has not finished; None if no queue of the dump takes it."""
        queue, held = self.queue_of(each)
        if not queue:
            self.notes.append(f"left out, since its queue leads to no ClusterQueue: Workload {name_of(each)}")
            return None
        groups = self.objects["ClusterQueue"][queue]["spec"].get("resourceGroups") or []
        flavors = [{one["name"]: self.objects["ResourceFlavor"][one["name"]] for one in group["flavors"]} for group in groups]
        workload = queued_workload(each, queue, flavors)
        # Hours from now, as in a replay: its reservations are later than those of the dump.
        workload.reserved = (workload.reserved - self.now) / 3600
        free = [excluded_flavors({**pods["template"]["spec"], "nodeSelector": {}}, flavors) for pods in each["spec"]["podSets"]]
        flavor = _gpu_flavor(each) if is_true(each, "QuotaReserved") else ""
        speeds, job_type, status = self.speeds(each, queue), self.type_of(each), each.get("status") or {}
        limit = each["spec"].get("maximumExecutionTimeSeconds")
        done = _earlier_hours(each)
        if flavor:
            began = conditions(each)["Admitted" if is_true(each, "Admitted") else "QuotaReserved"]["lastTransitionTime"]
            done += max(0.0, self.now - seconds(began)) / 3600 * speeds.get(flavor, 1.0)
        job = KueueJob(
            source=each,
            workload=workload,
            gpus=_gpus(each),
            job_type=job_type,
            speeds=speeds,
            liftable=frozenset(name for name, speed in speeds.items() if speed > 0 and not any(name in found for found in free)),
            hours=limit / 3600 if limit else self.lengths.get(job_type, self.settings.hours),
            done=done,
            flavor=flavor,
            held=held,
            evictions=sum(one.get("count") or 0 for one in (status.get("schedulingStats") or {}).get("evictions") or []),
            owner=_owner(each),
        )
        if not job.flavors and not flavor and not held:
            return replace(job, held=NO_FLAVOR)
        return job

    def queue_of(self, each: Object) -> tuple[str, str]:
        """Return the ClusterQueue of a Workload, "" if there is none, and why it is held."""
        namespace = each["metadata"].get("namespace", "")
        local = self.objects["LocalQueue"].get(f"{namespace}/{each['spec'].get('queueName')}")
        admitted: str = ((each.get("status") or {}).get("admission") or {}).get("clusterQueue", "")
        name: str = admitted or ("" if local is None else local["spec"]["clusterQueue"])
        if each["spec"].get("active") is False:
            return name, "it is deactivated (spec.active: false)"
        if "kueue.x-k8s.io/admission-gated-by" in (each["metadata"].get("annotations") or {}):
            return name, "it has an admission gate (kueue.x-k8s.io/admission-gated-by)"
        stopped = [
            (kind, one) for kind, one in (("LocalQueue", local), ("ClusterQueue", self.objects["ClusterQueue"].get(name))) if one
        ]
        for kind, one in stopped if not self.settings.released else ():
            if one["spec"].get("stopPolicy") not in (None, "None"):
                return name, f"{kind} {name_of(one)} is held (stopPolicy: {one['spec']['stopPolicy']})"
            if kind == "ClusterQueue" and conditions(one).get("Active", {}).get("status") == "False":
                return name, f"ClusterQueue {name} is not active ({conditions(one)['Active'].get('reason', 'no reason given')})"
        if name in self.objects["ClusterQueue"] and not self.is_selected(namespace, self.objects["ClusterQueue"][name]):
            return name, f"ClusterQueue {name} does not select its namespace {namespace} (namespaceSelector)"
        return name, ""

    def is_selected(self, namespace: str, queue: Object) -> bool:
        """Return whether a ClusterQueue takes workloads of a namespace, of which a dump has no labels but its name."""
        selector = queue["spec"].get("namespaceSelector")
        rules = (selector or {}).get("matchExpressions") or []
        unknown = {*((selector or {}).get("matchLabels") or {}), *(rule["key"] for rule in rules)} - {NAMESPACE}
        if unknown:
            note = f"taken as selected, since labels of namespaces are unknown: all of the namespaceSelector of {name_of(queue)}"
            self.notes += [note] if note not in self.notes else []
            return True
        return selects(selector, {NAMESPACE: namespace})


def _is_job(each: Object) -> bool:
    """Return whether this is a Job of which all that is written can be read."""
    try:
        is_named = all(isinstance(each["metadata"][name], str) for name in ("name", "namespace"))
        pod = each["spec"]["template"]["spec"]
        selector = pod.get("nodeSelector") or {}
        return each["kind"] == "Job" and each["apiVersion"] == "batch/v1" and is_named and isinstance(selector, Mapping)
    except (AttributeError, KeyError, TypeError):
        return False


def _gpus(each: Object) -> int:
    return sum(asked.get(name, 0) for asked in requests_of(each).values() for name in GPUS)


def _earlier_hours(each: Object) -> float:
    """Return how long a Workload ran before it was evicted."""
    return ((each.get("status") or {}).get("accumulatedPastExecutionTimeSeconds") or 0) / 3600


def _gpu_flavor(each: Object) -> str:
    assigned = ((each.get("status") or {}).get("admission") or {}).get("podSetAssignments") or []
    return next((str(pods["flavors"][name]) for pods in assigned for name in GPUS if name in (pods.get("flavors") or {})), "")


def _owner(each: Object) -> tuple[str, str]:
    owners = each["metadata"].get("ownerReferences") or [{"kind": "", "name": ""}]
    return owners[0]["kind"], owners[0]["name"]


def _stamps(value: Any) -> Iterator[str]:
    """Yield all stamps of what has happened in a list of objects; they are valid where their fields are read."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, Mapping):
            pending += each.values()
            for name in STAMPS:
                if isinstance(each.get(name), str) and len(each[name]) == 20 and each[name].endswith("Z"):
                    try:
                        seconds(each[name])
                    except InputError:
                        continue
                    yield each[name]
        elif isinstance(each, list):
            pending += each


TAS, PARTIAL, CHECKS = "topology-aware scheduling", "partial admission", "admission checks"
ANNOTATIONS = {
    "kueue.x-k8s.io/workload-allowed-resource-flavors": "concurrent admission",
    "kueue.x-k8s.io/elastic-job": "elastic slices",
    "kueue.x-k8s.io/workload-slice-replacement-for": "elastic slices",
}


def _unmodelled(each: Object) -> Iterator[str]:
    """Yield what an object uses that the replay does not model."""
    spec, status = each.get("spec") or {}, each.get("status") or {}
    if spec.get("topologyName"):
        yield TAS
    checks = spec.get("admissionChecksStrategy")
    if (
        spec.get("admissionChecks")
        or (isinstance(checks, Mapping) and checks.get("admissionChecks"))
        or status.get("admissionChecks")
    ):
        yield CHECKS
    if spec.get("concurrentAdmissionPolicy") or spec.get("concurrentAdmission"):
        yield "concurrent admission"
    if each["kind"] != "Workload" or is_true(each, "Finished"):
        return
    if status.get("clusterName") or status.get("nominatedClusterNames"):
        yield "MultiKueue"
    yield from {text for name, text in ANNOTATIONS.items() if name in (each["metadata"].get("annotations") or {})}
    for pods in spec.get("podSets") or []:
        if pods.get("minCount") not in (None, pods.get("count", 1)):
            yield PARTIAL
        # Each Workload of a Job has a topologyRequest; only what asks for a topology counts.
        if any((pods.get("topologyRequest") or {}).get(name) for name in ("required", "preferred", "unconstrained")):
            yield TAS
