"""Policies by name, built in, from installed packages or the user's own, and policy objects made from a name and options.

Installed packages offer policies as entry points of the group `gavel_py.policies` (`offers`). The user's own are classes named
package.module:Class (`imported_policy`); errors say why one of them cannot be used.
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
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from gavel_py.errors import Fault, GavelError, GavelWarning, InputError, UnknownNameError, decimal_hint, nearest
from gavel_py.policies.base import Policy
from gavel_py.policies.constraints import given_constraints

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def imported_policy(target: str, where: str) -> type[Policy]:
    """Return the class that `target`, package.module:Class, names; `where` says in messages who asked for it.

    Raises `UnknownNameError` for a module or class that there is not, and `InputError` for a module that fails on import and
    for what is no policy or an abstract one.
    """
    module_name, _, path = target.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise InputError(Fault(where, "", f"must be of the form package.module:Class, found {target!r}"))
    thing = _attribute(_module(module_name, where), path, where)
    if not (inspect.isclass(thing) and issubclass(thing, Policy)):
        raise InputError(Fault(where, "", _not_a_policy(thing, target)))
    if inspect.isabstract(thing):
        methods = ", ".join(f"`{name}`" for name in sorted(thing.__abstractmethods__))
        raise InputError(Fault(where, "", f"is abstract: it does not say what {methods} is"))
    return thing


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name and f"{name}.".startswith(f"{error.name}.")):  # a module that the named one imports
            raise _failure(name, where, error) from error
        hint = ", which is named without its ending .py" if name.endswith(".py") else ""
        raise UnknownNameError(Fault(where, "", f"Python finds no module {error.name!r}{hint}")) from None
    except (Exception, SystemExit) as error:  # other people's code may raise anything
        raise _failure(name, where, error) from error


def _failure(module: str, where: str, error: BaseException) -> InputError:
    return InputError(Fault(where, "", f"importing {module} failed with {told(error)}"))


def told(error: BaseException) -> str:
    """Return an error of other people's code in one line: its type, its message, and where in their modules it arose."""
    message, file, line = str(error), "", None
    if isinstance(error, SyntaxError):
        message, file, line = error.msg, error.filename or "", error.lineno
    elif frames := traceback.extract_tb(error.__traceback__):
        # What a module does as it is imported tells more than the depths of the libraries that it calls.
        last = [frame for frame in frames if frame.name == "<module>"] or frames
        file, line = last[-1].filename, last[-1].lineno
    text = f"{type(error).__name__}: {' '.join(message.split())}".removesuffix(": ")
    return f"{text} ({file}, line {line})" if file else text


def _attribute(module: ModuleType, path: str, where: str) -> object:
    thing: object = module
    for part in path.split("."):
        thing = getattr(thing, part, None)
        if thing is None:
            known = [name for name, value in vars(module).items() if _is_complete(value)]
            place = getattr(module, "__file__", None)
            text = f"module {module.__name__}{f' ({place})' if place else ''} has no class {path!r}"
            raise UnknownNameError(Fault(where, "", text + (nearest(path, known) if known else ", and no other policy either")))
    return thing


def _is_complete(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Policy) and not inspect.isabstract(value)


def _not_a_policy(thing: object, target: str) -> str:
    bases = "a policy is a subclass of gavel_py.SumPolicy, DemandPolicy, OrderedPolicy or Policy"
    if isinstance(thing, Policy):
        module = target.partition(":")[0]
        return f"is a policy object; name its class, as in {module}:{type(thing).__name__}"
    return f"is a class, but no policy; {bases}" if inspect.isclass(thing) else f"is no class (it is {thing!r}); {bases}"


GROUP = "gavel_py.policies"


@dataclass(frozen=True)
class Offer:
    """A policy of an installed package. target: package.module:Class; package: its name and version."""

    name: str
    target: str
    package: str


def offers(built_in: Collection[str]) -> dict[str, list[Offer]]:
    """Return the policies that installed packages offer, by name in alphabetical order; several offers of a name compete.

    Nothing is imported. A built-in name stays what it is: an offer of it is left out with a `GavelWarning`, and so is one whose
    name cannot be typed on a command line.
    """
    found: dict[str, list[Offer]] = {}
    for offer in _declared():
        who = f"package {offer.package} offers a policy {offer.name!r}"
        if offer.name in built_in:
            _warn(f"{who}, which is the name of a built-in one; its own is known as {offer.target} only")
        elif not re.fullmatch(r"[\w-]+", offer.name):
            _warn(f"{who}, a name with other signs than letters, digits, _ and -; it is known as {offer.target} only")
        else:
            found.setdefault(offer.name, []).append(offer)
    return dict(sorted(found.items()))


def _declared() -> Iterator[Offer]:
    """All that is declared, package by package, so that one that is broken is told and does not hide the others."""
    from importlib import metadata  # takes 20 ms

    packages: dict[str, Distribution] = {}
    for package in metadata.distributions():
        if GROUP in _entry_points(package):
            name = _metadata(package, "Name") or "without a name"
            packages.setdefault(name, package)  # the first one on the path is the one that is imported
    for name, package in sorted(packages.items()):
        try:
            points = package.entry_points.select(group=GROUP)
        except (TypeError, ValueError) as error:
            _warn(f"the entry points of package {name} cannot be read, so its policies are not known: {error}")
            continue
        for point in points:
            yield Offer(point.name, re.sub(r"\s|\[.*", "", point.value), f"{name} {_metadata(package, 'Version')}".strip())


def _entry_points(package: Distribution) -> str:
    try:
        return package.read_text("entry_points.txt") or ""
    except (OSError, UnicodeError):
        return ""


def _metadata(package: Distribution, key: str) -> str:
    """The name or version of a package, empty where its metadata are damaged, as after an installation that broke off."""
    try:
        known = package.metadata
        if key in known:
            return known[key]
    except (OSError, UnicodeError, TypeError, KeyError, AttributeError):
        pass
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
"""What every policy takes and is no option: no line of text says it, and lists of options leave it out."""


@dataclasses.dataclass(frozen=True)
class PolicyOption:
    """One option of a policy: its name, type, default (`dataclasses.MISSING` if there is none) and one line of explanation."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def required(self) -> bool:
        """Whether it has no default, so that a value must be given."""
        return self.default is dataclasses.MISSING


def policy_names() -> tuple[str, ...]:
    """Return the names of the built-in policies, then those that installed packages offer (entry points `gavel_py.policies`).

    Those come in alphabetical order, and none of them is imported. A built-in name that a package offers too stays what it
    is, with a `GavelWarning`.
    """
    return (*NAMES, *offers(NAMES))


def policy_class(name: str) -> type[Policy]:
    """Return the class of a policy: built in, offered by an installed package, or one's own as package.module:Class.

    Raises `UnknownNameError` for a policy, module or class that there is not, with the nearest names, and `InputError` for a
    module that fails on import and for what is no policy or an abstract one.
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
    """Return where a policy comes from: "gavel_py", the name and version of a package, or the module of one's own class.

    Raises `UnknownNameError` for a name that nothing bears. Nothing is imported.
    """
    if name in NAMES:
        return "gavel_py"
    return name.partition(":")[0] if ":" in name else _offered(name).package


def _offered(name: str) -> Offer:
    """Return what an installed package offers under this name."""
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
    """Return the options of a policy class by name, in the order in which they are declared.

    Raises `InputError` where the type of an option is a name that its module does not have.
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
    """Return the policy object of a name (see `policy_class`) with options, or a policy object as it is (changed by options).

    Option values may be text, as from a command line ("true", "0.5"). Every policy takes `constraints` beside its options; those
    of a policy object are replaced by them, as the values of its options are.
    Raises `UnknownNameError` for an unknown policy or option and `InputError` for a value of the wrong type.
    """
    if isinstance(policy, str):
        return _made(policy_class(policy), policy, options)
    if not isinstance(policy, Policy):
        hint = " (this is a class; call it to make one)" if inspect.isclass(policy) else ""
        raise InputError(f"a policy must be a name or a Policy object, found {policy!r}{hint}")
    return dataclasses.replace(policy, **_checked(type(policy), policy.name, options)) if options else policy


def _made(cls: type[Policy], name: str, options: dict[str, Any]) -> Policy:
    values = _checked(cls, name, options)
    faults = []
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
    except Exception as error:  # a constructor of the user's own
        raise InputError(Fault(f"policy {name}", "", f"making it failed with {told(error)}")) from error


def _checked(cls: type[Policy], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the values of options, and the constraints, which every policy takes beside the options of its own."""
    values = _checked_options(cls, name, {option: value for option, value in options.items() if option != CONSTRAINTS})
    if CONSTRAINTS in options:
        values[CONSTRAINTS] = given_constraints(options[CONSTRAINTS], f"policy {name}")
    return values


def _checked_options(cls: type[Policy], name: str, options: dict[str, Any]) -> dict[str, Any]:
    known = policy_options(cls)
    unknown = [Fault(f"policy {name}", "", f"there is no option {o!r}{nearest(o, known)}") for o in options if o not in known]
    if unknown:
        raise UnknownNameError(*unknown)
    values, faults = {}, []
    for option, value in options.items():
        given, text = _parts(known[option].type, value), f"must be {type_words(known[option].type)}, found {value!r}"
        try:
            values[option] = TypeAdapter(known[option].type).validate_python(given)
            hint = _not_decimal(given, values[option])
            faults += [Fault(f"policy {name}", f"option {option}", text + hint)] if hint else []
        except ValidationError:
            hint = decimal_hint(given) if isinstance(given, str) and "number" in type_words(known[option].type) else ""
            faults.append(Fault(f"policy {name}", f"option {option}", text + hint))
    InputError.raise_any(faults)
    return values


def _parts(kind: Any, value: Any) -> Any:
    """The value of an option that holds several, if it is text: what stands between the colons, or "none"."""
    if typing.get_origin(kind) is not tuple or not isinstance(value, str):
        return value
    return () if value in ("", "none") else value.split(":")


def _not_decimal(given: Any, value: Any) -> str:
    """What to write instead, where text was read as a number though it is in another than decimal form."""
    if isinstance(given, list | tuple) and isinstance(value, list | tuple):
        return next(filter(None, map(_not_decimal, given, value)), "")
    return decimal_hint(given) if isinstance(given, str) and isinstance(value, int | float) and not isinstance(value, bool) else ""


def type_words(kind: Any) -> str:
    """Return an option's type in words, as in "true or false" or "'remaining' or 'total'"."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"{type_words(typing.get_args(kind)[0])}, or several with ':' between them"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
    words |= {Mapping: "a mapping", Sequence: "a list"}
    parts = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    bare = [typing.get_origin(part) or part for part in parts]
    return " or ".join(words.get(part, getattr(part, "__name__", str(part))) for part in bare)
