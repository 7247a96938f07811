"""What a battery of checks found, in words."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CheckResult", "ContractReport"]


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    name, says: the check and its rule; problems: on how many it was made; expected, found: what was to be and what was there
    instead, empty if all is well; code: Python that shows it, on the smallest problem found that does.
    """

    name: str
    says: str
    problems: int
    expected: str = ""
    found: str = ""
    code: str = ""

    @property
    def failed(self) -> bool:
        """Whether the rule is broken."""
        return bool(self.code)

    def __str__(self) -> str:
        if not self.failed:
            return f"{self.name:<10}  {self.problems:>3} problems  {self.says}"
        code = "\n".join(f"    {line}".rstrip() for line in self.code.splitlines())
        return f"{self.name}: {self.says}\n  expected: {self.expected}\n  found: {self.found}\n\n{code}"


@dataclass(frozen=True)
class ContractReport:
    """What `check_policy` found: policy, its label; checks, one result each; refusals, the message for each refused problem."""

    policy: str
    checks: tuple[CheckResult, ...]
    refusals: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.failed)

    def __str__(self) -> str:
        """One line a check; or, if some failed, those in full."""
        failures = self.failures
        if failures:
            heading = f"policy {self.policy} breaks {len(failures)} of {len(self.checks)} rules of the contract"
            return "\n\n".join([heading, *map(str, failures)])
        lines = [f"policy {self.policy} keeps the contract", *(f"  {check}" for check in self.checks)]
        if self.refusals:
            lines.append(f"  refused {len(self.refusals)} problems, the first of them: {self.refusals[0]}")
        return "\n".join(lines)
