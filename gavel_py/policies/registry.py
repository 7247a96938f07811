"""The registry of policies: classes by name, their options, and policy objects from a name and options.

Policies are built in, come from installed packages as entry points of the group `gavel_py.policies` (`offers`), or are classes of
the user, named package.module:Class (`imported_policy`).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import traceback
import types
import typing
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from gavel_py.errors import Fault, GavelError, GavelWarning, InputError, UnknownNameError, decimal_hint, nearest
from gavel_py.policies.base import Policy
from gavel_py.policies.constraints.compiling import given_constraints

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def imported_policy(target: str, where: str) -> type[Policy]:
    """Import the class that `target`, package.module:Class, names; `where` is the source of the name in messages.

    Raises `UnknownNameError` if the module or class does not exist, and `InputError` if the import fails or the class is not a
    concrete policy.
    """
    module_name, _, path = target.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise InputError(Fault(where, "", f"must be of the form package.module:Class, found {target!r}"))
    thing = _attribute(_module(module_name, where), path, where)
    if not (inspect.isclass(thing) and issubclass(thing, Policy)):
        bases = "a policy is a subclass of gavel_py.SumPolicy, DemandPolicy, OrderedPolicy or Policy"
        text = f"is a class, but no policy; {bases}" if inspect.isclass(thing) else f"is no class (it is {thing!r}); {bases}"
        if isinstance(thing, Policy):
            text = f"is a policy object; name its class, as in {module_name}:{type(thing).__name__}"
        raise InputError(Fault(where, "", text))
    if inspect.isabstract(thing):
        methods = ", ".join(f"`{name}`" for name in sorted(thing.__abstractmethods__))
        raise InputError(Fault(where, "", f"is abstract: it does not say what {methods} is"))
    return thing


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name and f"{name}.".startswith(f"{error.name}.")):  # the named module exists, but one of its imports does not
            raise InputError(Fault(where, "", f"importing {name} failed with {_one_line(error)}")) from error
        hint = ", which is named without its ending .py" if name.endswith(".py") else ""
        raise UnknownNameError(Fault(where, "", f"Python finds no module {error.name!r}{hint}")) from None
    except (Exception, SystemExit) as error:  # importing runs code of the user, which may raise anything
        raise InputError(Fault(where, "", f"importing {name} failed with {_one_line(error)}")) from error


def _one_line(error: BaseException) -> str:
    """Return the type and message of an error in a user's module, with file and line, in one line."""
    message, file, line = str(error), "", None
    if isinstance(error, SyntaxError):
        message, file, line = error.msg, error.filename or "", error.lineno
    elif frames := traceback.extract_tb(error.__traceback__):
        # The line at module level is more helpful than the libraries called from there.
        last = [frame for frame in frames if frame.name == "<module>"] or frames
        file, line = last[-1].filename, last[-1].lineno
    text = f"{type(error).__name__}: {' '.join(message.split())}".removesuffix(": ")
    return f"{text} ({file}, line {line})" if file else text


def _attribute(module: ModuleType, path: str, where: str) -> object:
    thing: object = module
    for part in path.split("."):
        thing = getattr(thing, part, None)
        if thing is None:
            classes = {name: value for name, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Policy)}
            known = [name for name, value in classes.items() if not inspect.isabstract(value)]
            place = getattr(module, "__file__", None)
            text = f"module {module.__name__}{f' ({place})' if place else ''} has no class {path!r}"
            raise UnknownNameError(Fault(where, "", text + (nearest(path, known) if known else ", and no other policy either")))
    return thing


GROUP = "gavel_py.policies"


@dataclass(frozen=True)
class Offer:
    """A policy that an installed package offers. target: package.module:Class; package: name and version of the package."""

    name: str
    target: str
    package: str


def offers(built_in: Collection[str]) -> dict[str, list[Offer]]:
    """Return the policies that installed packages offer, {name: offers}, in alphabetical order. Nothing is imported.

    Offers of built-in names, and of names that a command line cannot take, are left out with a `GavelWarning`.
    """
    found: dict[str, list[Offer]] = {}
    for offer in _declared():
        claim = f"package {offer.package} offers a policy {offer.name!r}"
        if offer.name in built_in:
            _warn(f"{claim}, which is the name of a built-in one; its own is known as {offer.target} only")
        elif not re.fullmatch(r"[\w-]+", offer.name):
            _warn(f"{claim}, a name with other signs than letters, digits, _ and -; it is known as {offer.target} only")
        else:
            found.setdefault(offer.name, []).append(offer)
    return dict(sorted(found.items()))


def _declared() -> Iterator[Offer]:
    """Yield the declared policies by package; a package with unreadable entry points gets a warning and is skipped."""
    from importlib import metadata  # takes 20 ms

    packages: dict[str, Distribution] = {}
    for package in metadata.distributions():
        if GROUP in _entry_points(package):
            name = _metadata(package, "Name") or "without a name"
            packages.setdefault(name, package)  # imports use the first one on the path
    for name, package in sorted(packages.items()):
        try:
            points = package.entry_points.select(group=GROUP)
        except (TypeError, ValueError) as error:
            _warn(f"the entry points of package {name} cannot be read, so its policies are not known: {error}")
            continue
        for point in points:
            yield Offer(point.name, re.sub(r"\s|\[.*", "", point.value), f"{name} {_metadata(package, 'Version')}".strip())


def _entry_points(package: Distribution) -> str:
    with suppress(OSError, UnicodeError):
        return package.read_text("entry_points.txt") or ""
    return ""


def _metadata(package: Distribution, key: str) -> str:
    """Return the name or version of a package, empty if its metadata are damaged, as after an aborted installation."""
    with suppress(OSError, UnicodeError, TypeError, KeyError, AttributeError):
        if key in (known := package.metadata):
            return known[key]
    return ""


def _warn(text: str) -> None:
    warnings.warn(GavelWarning(text), stacklevel=2)


# One module per policy, of the policy's name; the class has the same name in CamelCase.
NAMES = (
    *("max_min_fairness", "min_makespan", "finish_time_fairness", "min_lateness"),
    *("water_filling", "hierarchical"),
    *("max_total_throughput", "max_progress_rate", "throughput_per_dollar", "min_cost", "nash_welfare"),
    *("shortest_job_first", "least_attained_service", "priority", "fifo"),
    *("isolated", "proportional", "allox", "gandiva"),
)

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
    return (*NAMES, *offers(NAMES))


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
    if ":" in name:
        return imported_policy(name, f"policy {name}")
    offer = _offered(name)
    return imported_policy(offer.target, f"policy {name} of package {offer.package}")


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
    return name.partition(":")[0] if ":" in name else _offered(name).package


def _offered(name: str) -> Offer:
    """Return the only offer of a name by installed packages."""
    known = offers(NAMES)
    if name not in known:
        hint = "; a class of your own is named package.module:Class" if "." in name else nearest(name, (*NAMES, *known))
        raise UnknownNameError(f"there is no policy {name!r}{hint}")
    first, *others = known[name]
    if others:
        ways = " or ".join(f"{offer.target} (of {offer.package})" for offer in known[name])
        raise InputError(Fault(f"policy {name}", "", f"is offered by several packages; name one by its class: {ways}"))
    return first


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
        hint = " (this is a class; call it to make one)" if inspect.isclass(policy) else ""
        raise InputError(f"a policy must be a name or a Policy object, found {policy!r}{hint}")
    return dataclasses.replace(policy, **_checked(type(policy), policy.name, options)) if options else policy


def _build(cls: type[Policy], name: str, options: dict[str, Any]) -> Policy:
    values, faults = _checked(cls, name, options), []
    for argument in inspect.signature(cls).parameters.values():
        if argument.default is argument.empty and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            if argument.name not in policy_options(cls):
                text = f"`{argument.name}` is an argument of its class, but no option; options are fields of a dataclass"
                faults.append(Fault(f"policy {name}", "", text))
            elif argument.name not in values:
                faults.append(Fault(f"policy {name}", f"option {argument.name}", "has no default, so it must be given"))
    InputError.raise_any(faults)
    try:
        return cls(**values)
    except GavelError:
        raise
    except Exception as error:  # the constructor may be the user's, and may raise anything
        raise InputError(Fault(f"policy {name}", "", f"making it failed with {_one_line(error)}")) from error


def _checked(cls: type[Policy], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the validated values of options and constraints."""
    known, where = policy_options(cls), f"policy {name}"
    unknown = [o for o in options if o not in known and o != CONSTRAINTS]
    if unknown:
        raise UnknownNameError(*(Fault(where, "", f"there is no option {o!r}{nearest(o, known)}") for o in unknown))
    values, faults = {}, []
    for option, value in options.items():
        if option == CONSTRAINTS:
            continue
        annotation = known[option].type
        given, text = _split(annotation, value), f"must be {type_text(annotation)}, found {value!r}"
        try:
            values[option] = TypeAdapter(annotation).validate_python(given)
            hint = _not_decimal(given, values[option])
            faults += [Fault(where, f"option {option}", text + hint)] if hint else []
        except ValidationError:
            hint = decimal_hint(given) if "number" in type_text(annotation) else ""
            faults.append(Fault(where, f"option {option}", text + hint))
    InputError.raise_any(faults)
    if CONSTRAINTS in options:
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
