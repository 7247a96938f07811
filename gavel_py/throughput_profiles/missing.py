"""What to say when a throughput is missing: what exactly is not known, and what comes nearest to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gavel_py.errors import Fault, nearest
from gavel_py.throughput_profiles.measurement import PLACEMENTS, Entry

__all__ = ["Catalogue", "Subject", "counted", "may_use", "nearest_entries"]


class Subject(NamedTuple):
    """One thing that a profile does not know: a name (`field` says of what), or a combination of known names."""

    field: str
    value: str | Entry


class Catalogue(NamedTuple):
    """What a profile knows."""

    profile: str
    job_types: tuple[str, ...]
    accelerators: tuple[str, ...]
    entries: Iterable[Entry]

    def unknown(self, entry: Entry) -> list[Subject]:
        """Return the names in `entry` that the profile does not know at all, or else the entry itself."""
        wanted = [("job_type", entry.job_type), ("accelerator", entry.accelerator), ("placement", entry.placement)]
        if entry.partner is not None:
            wanted.append(("partner", entry.partner))
        names = [Subject(field, name) for field, name in wanted if name not in self._known(field)]
        return names or [Subject("", entry)]

    def fault(self, subject: Subject, concerning: str = "", hint: bool = True) -> Fault:
        """Return the fault of one unknown; `hint` adds what comes nearest."""
        where = f"throughput profile {self.profile!r}"
        if isinstance(subject.value, Entry):
            close = self._close(subject.value) if hint else ""
            return Fault(where, "", f"has no throughput of {subject.value}{concerning}{close}")
        if not subject.value:
            return Fault(where, subject.field, f"is empty{concerning}; it says which throughputs are meant")
        close = nearest(subject.value, self._known(subject.field)) if hint else ""
        return Fault(where, subject.field, f"{subject.value!r} is not in it{concerning}{close}")

    def _known(self, field: str) -> tuple[str, ...]:
        return {"accelerator": self.accelerators, "placement": PLACEMENTS}.get(field, self.job_types)

    def _close(self, entry: Entry) -> str:
        known = ", ".join(near.setting for near in nearest_entries(self.entries, entry))
        return f"; nearest known: {known or 'none'}"


def nearest_entries(entries: Iterable[Entry], wanted: Entry, count: int = 5) -> tuple[Entry, ...]:
    """Return the entries of the same job type that come nearest: same pair, placement, accelerator, then gang size."""

    def distance(entry: Entry) -> tuple[bool, bool, bool, float, float]:
        return (
            entry.partner != wanted.partner,
            entry.placement != wanted.placement,
            entry.accelerator != wanted.accelerator,
            abs(entry.num_gpus - wanted.num_gpus),
            entry.num_gpus,
        )

    same = (e for e in entries if e.job_type == wanted.job_type and e.partner in (None, wanted.partner))
    return tuple(sorted(same, key=distance)[:count])


def counted(job_id: str, count: int) -> str:
    """Return the words for `count` jobs of which `job_id` is the first."""
    return f"job {job_id!r}" + (f" and {count - 1:,} more" if count > 1 else "")


def may_use(allowed_accelerators: Collection[str] | None, accelerator: str) -> bool:
    """Say whether a job may run on this accelerator; None allows all."""
    return allowed_accelerators is None or accelerator in allowed_accelerators
