"""The registry of policies: classes by name, their options, and policy objects from a name and options.

Policies are built in, come from installed packages as entry points of the group `gavel_py.policies`, or are classes of the user,
named package.module:Class (`io.plugins`).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from gavel_py.errors import Fault, GavelError, InputError, UnknownNameError, decimal_hint, faults_among, refuse, unknown_names
from gavel_py.io.plugins import Plugins, one_line
from gavel_py.policies.base import Policy

# One module per policy, of the policy's name; the class has the same name in CamelCase.
NAMES = (
    *("max_min_fairness", "min_makespan", "finish_time_fairness", "min_lateness"),
    *("water_filling", "hierarchical"),
    *("max_total_throughput", "max_progress_rate", "throughput_per_dollar", "min_cost", "nash_welfare"),
    *("shortest_job_first", "least_attained_service", "priority", "fifo"),
    *("isolated", "proportional", "allox", "gandiva"),
)


def _is_policy(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Policy) and not inspect.isabstract(value)


PLUGINS = Plugins("gavel_py.policies", "policy", "policies", "class", NAMES, _is_policy)


def _checked_class(thing: object, where: str) -> type[Policy]:
    """Return a class that a user has named; raises `InputError` unless it is a concrete policy."""
    bases = "a policy is a subclass of gavel_py.SumPolicy, DemandPolicy, OrderedPolicy or Policy"
    text = f"is a class, but not a policy; {bases}" if inspect.isclass(thing) else f"is not a class (it is {thing!r}); {bases}"
    if isinstance(thing, Policy):
        text = f"is a policy object; give its class, as in {type(thing).__module__}:{type(thing).__name__}"
    methods = ", ".join(f"`{name}`" for name in sorted(getattr(thing, "__abstractmethods__", ())))
    refuse(
        where,
        (not (inspect.isclass(thing) and issubclass(thing, Policy)), "", text),
        (inspect.isabstract(thing), "", f"is abstract: it does not define {methods}"),
    )
    return thing  # type: ignore[return-value]


CONSTRAINTS = "constraints"
"""A field of every policy that is not an option: it has no text form, and lists of options leave it out."""


@dataclasses.dataclass(frozen=True)
class PolicyOption:
    """One option of a policy.

    Attributes:
        name: The field of the policy class.
        type: Its type annotation.
        default: Its default, `dataclasses.MISSING` if it has none.
        help: One line of explanation.
    """

    name: str
    type: Any
    default: Any
    help: str

    @property
    def required(self) -> bool:
        """Whether a value must be given, since there is no default."""
        return self.default is dataclasses.MISSING


def policy_names() -> tuple[str, ...]:
    """Return the names of the built-in policies, then those offered by installed packages (entry points `gavel_py.policies`).

    The latter are in alphabetical order; nothing is imported. A package that offers a built-in name causes a `GavelWarning`.
    """
    return (*NAMES, *PLUGINS.offers())


def policy_class(name: str) -> type[Policy]:
    """Return the class of a policy.

    Args:
        name: Of a built-in policy, of one offered by an installed package, or package.module:Class.

    Raises:
        UnknownNameError: There is no such policy, module or class; the message has the nearest names.
        InputError: Importing the module fails, or the class is not a concrete policy.
    """
    if name in NAMES:
        module = importlib.import_module(f"gavel_py.policies.{name}")
        found: type[Policy] = getattr(module, "".join(part.capitalize() for part in name.split("_")))
        return found
    return _checked_class(*PLUGINS.loaded(name))


def policy_source(name: str) -> str:
    """Return where a policy comes from: "gavel_py", the name and version of a package, or the module of a user's class.

    Nothing is imported.

    Args:
        name: As for `policy_class`.

    Raises:
        UnknownNameError: There is no policy of this name.
    """
    if name in NAMES:
        return "gavel_py"
    return name.partition(":")[0] if ":" in name else PLUGINS.offered(name).package


def policy_options(cls: type[Policy]) -> dict[str, PolicyOption]:
    """Return the options of a policy class by name, in order of declaration.

    Args:
        cls: A policy class.

    Raises:
        InputError: The type of an option is a name that its module does not define.
    """
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        text = f"the type of an option cannot be read: {error}; import it outside of `if TYPE_CHECKING`"
        raise InputError(Fault(f"policy {cls.__name__}", "", text)) from None
    return {
        f.name: PolicyOption(f.name, hints[f.name], _default(f), f.metadata.get("help", ""))
        for f in dataclasses.fields(cls)
        if f.init and f.name != CONSTRAINTS
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def resolve_policy(policy: str | Policy, **options: Any) -> Policy:
    """Return a policy object from a name and options.

    Args:
        policy: A name, as for `policy_class`, or a policy object.
        options: Option values, which may be text as on a command line ("true", "0.5"), and `constraints`. They replace the values
            of a policy object.

    Raises:
        UnknownNameError: There is no such policy or option.
        InputError: A value has the wrong type, or a required option is missing.
    """
    if isinstance(policy, str):
        return _build(policy_class(policy), policy, options)
    if not isinstance(policy, Policy):
        hint = " (this is a class; call it to create one)" if inspect.isclass(policy) else ""
        raise InputError(f"a policy must be a name or a Policy object, found {policy!r}{hint}")
    return dataclasses.replace(policy, **_checked(type(policy), policy.name, options)) if options else policy


def _build(cls: type[Policy], name: str, options: dict[str, Any]) -> Policy:
    values, faults = _checked(cls, name, options), []
    for argument in inspect.signature(cls).parameters.values():
        if argument.default is argument.empty and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            is_option = argument.name in policy_options(cls)
            text = f"`{argument.name}` is an argument of its class, but not an option; options are fields of a dataclass"
            is_lacking = is_option and argument.name not in values
            faults += faults_among(
                f"policy {name}",
                (not is_option, "", text),
                (is_lacking, f"option {argument.name}", "is required, since it has no default"),
            )
    if faults:
        raise InputError(*faults)
    try:
        return cls(**values)
    except GavelError:
        raise
    except Exception as error:  # the constructor may be the user's, and may raise anything
        raise InputError(Fault(f"policy {name}", "", f"creating it failed with {one_line(error)}")) from error


def _checked(cls: type[Policy], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the validated values of options and constraints."""
    known, where = policy_options(cls), f"policy {name}"
    if not options:
        return {}
    from pydantic import TypeAdapter, ValidationError

    given = [option for option in options if option != CONSTRAINTS]
    UnknownNameError.raise_any(unknown_names(where, "", given, known, "", noun="there is no option"))
    values, faults = {}, []
    for option, value in options.items():
        if option == CONSTRAINTS:
            continue
        annotation = known[option].type
        given, text = _split(annotation, value), f"must be {type_text(annotation)}, found {value!r}"
        is_valid = True
        try:
            values[option] = TypeAdapter(annotation).validate_python(given)
            hint = _not_decimal(given, values[option])
        except ValidationError:
            is_valid, hint = False, decimal_hint(given) if "number" in type_text(annotation) else ""
        faults += faults_among(where, (not is_valid or hint, f"option {option}", text + hint))
    InputError.raise_any(faults)
    if CONSTRAINTS in options:
        from gavel_py.policies.constraints.compiling import given_constraints

        values[CONSTRAINTS] = given_constraints(options[CONSTRAINTS], where)
    return values


def _split(annotation: Any, value: Any) -> Any:
    """Return the parts of text for an option that holds several values, which colons separate; other values unchanged."""
    if typing.get_origin(annotation) is not tuple or not isinstance(value, str):
        return value
    return () if value in ("", "none") else value.split(":")


def _not_decimal(given: Any, value: Any) -> str:
    """Return a hint for text that was parsed as a number but is not in decimal form, such as 1_000; empty otherwise."""
    if isinstance(given, list | tuple) and isinstance(value, list | tuple):
        return next(filter(None, map(_not_decimal, given, value)), "")
    return decimal_hint(given) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def type_text(annotation: Any) -> str:
    """Return a description of an option's type for messages, such as "true or false" or "'remaining' or 'total'"."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(annotation))
    if origin is tuple:
        return f"{type_text(typing.get_args(annotation)[0])}, or several with ':' between them"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
    names |= {Mapping: "a mapping", Sequence: "a list"}
    parts = typing.get_args(annotation) if origin in (typing.Union, types.UnionType) else (annotation,)
    bare = [typing.get_origin(part) or part for part in parts]
    return " or ".join(names.get(part, getattr(part, "__name__", str(part))) for part in bare)
