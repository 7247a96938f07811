"""Users' own policies: classes that are named package.module:Class, and what is told of one that cannot be used."""

from __future__ import annotations

import importlib
import inspect
import traceback
from types import ModuleType

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.policies.base import Policy

__all__ = ["imported_policy", "told"]


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
