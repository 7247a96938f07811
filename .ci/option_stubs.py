"""Files that follow from records of options.

Stubs, so that type checkers know their fields as keyword arguments and attributes, and a table for the help of commands, which
needs none of the libraries that the records import.

python .ci/option_stubs.py  writes the files; `make lint` compares them (.ci/lint_house.py)
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import gavel_py as gp
from gavel_py.integrations.slurm.records import MEASURED
from gavel_py.scheduling.options import AllocationOptions

PACKAGE = Path(__file__).resolve().parents[1] / "gavel_py"

PLAIN = {
    "Finite": "float",
    "Flag": "bool",
    "Multiple": "float",
    "Natural": "int",
    "NotNegative": "float",
    "Part": "float",
    "Port": "int",
    "Positive": "float",
    "Seconds": "float",
    "SecondsAboveZero": "float",
    "SecondsFromZero": "float",
    "Text": "str",
}
"""{type of a field with its rule: the type that a caller passes}."""


def annotation(node: ast.expr) -> str:
    """Return the type of a field without its rule."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
        return annotation(node.slice.elts[0])
    if isinstance(node, ast.BinOp):
        return f"{annotation(node.left)} | {annotation(node.right)}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and ast.unparse(node.value) != "Literal":
        return f"{ast.unparse(node.value)}[{', '.join(map(annotation, node.slice.elts))}]"
    return PLAIN.get(text := ast.unparse(node), text)


def fields(module: ast.Module, record: str) -> dict[str, str]:
    """Return {name: type} of the fields of a record, after those of its bases in the same module."""
    classes = {each.name: each for each in module.body if isinstance(each, ast.ClassDef)}
    found: dict[str, str] = {}
    for base in classes[record].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= fields(module, base.id)
    declared = [each for each in classes[record].body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    return found | {
        ast.unparse(each.target): annotation(each.annotation)
        for each in declared
        if not ast.unparse(each.annotation).startswith("ClassVar")
    }


def imports(module: ast.Module, name: str, types: Iterable[str]) -> list[str]:
    """Return the imports of the names in these types, as in the module of this name, or from it."""
    used = {node.id for text in types for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} - set(dir(builtins))
    lines = [
        f"from {each.module} import {', '.join(found)}"
        for each in module.body
        if isinstance(each, ast.ImportFrom) and (found := [alias.name for alias in each.names if alias.name in used])
    ]
    own = used - {word for line in lines for word in re.findall(r"\w+", line.partition(" import ")[2])}
    return [*lines, *([f"from {name} import {', '.join(sorted(own))}"] if own else [])]


def typed_dict(name: str, base: str, types: Mapping[str, str]) -> list[str]:
    """Return the lines of a class of optional keyword arguments."""
    return ["", f"class {name}({base}, total=False):", *(f"    {field}: {type_}" for field, type_ in types.items())]


def stub(source: str, imported: Iterable[str], *lines: str) -> str:
    """Return a stub that follows from a module."""
    head = f"# Written by .ci/option_stubs.py from {source}; do not edit."
    found = {*imported}
    own = {line for line in found if line.startswith("from gavel_py")}
    return "\n".join([head, *sorted(found - own), "", *sorted(own), *lines, ""])


def of_scheduling() -> str:
    """Return the stub with the attributes of a `RoundScheduler`, and its keyword arguments but `round_seconds`."""
    module = ast.parse((PACKAGE / "scheduling" / "options.py").read_text())
    found = fields(module, "SchedulerOptions")
    others = {name: type_ for name, type_ in found.items() if name != "round_seconds"}
    return stub(
        "scheduling/options.py",
        ["from typing import TypedDict", *imports(module, "gavel_py.scheduling.options", found.values())],
        *("", "class OptionAttributes:", *(f"    {name}: {type_}" for name, type_ in found.items())),
        *typed_dict("SchedulerKeywords", "TypedDict", others),
        *typed_dict("OptionChanges", "SchedulerKeywords", {"round_seconds": found["round_seconds"]}),
    )


def of_simulator() -> str:
    """Return the stub with the keyword arguments of a `Simulation`, and of `Simulation.load`."""
    module = ast.parse((PACKAGE / "simulator" / "options.py").read_text())
    found, unsaved = fields(module, "SimulationOptions"), fields(module, "UnsavedOptions")
    imported = imports(module, "gavel_py.simulator.options", found.values())
    imported += ["from gavel_py.scheduling.keywords import SchedulerKeywords", "from typing import TypedDict"]
    others = {name: type_ for name, type_ in found.items() if name not in unsaved}
    return stub(
        "simulator/options.py",
        imported,
        *typed_dict("UnsavedKeywords", "TypedDict", unsaved),
        *typed_dict("SimulationKeywords", "SchedulerKeywords, UnsavedKeywords", {"round_seconds": "float | None", **others}),
    )


def of_functions(package: str, **records: str) -> str:
    """Return the stub with the keyword arguments of functions and classes of a package; records: {their name: module.record}."""
    modules = {name: text.partition(".")[0] for name, text in records.items()}
    trees = {module: ast.parse((PACKAGE / package / f"{module}.py").read_text()) for module in modules.values()}
    found = {name: fields(trees[modules[name]], text.partition(".")[2]) for name, text in records.items()}
    imported = ["from typing import TypedDict"]
    for name, each in found.items():
        imported += imports(trees[modules[name]], f"gavel_py.{package.replace('/', '.')}.{modules[name]}", each.values())
    source = ", ".join(f"{package}/{module}.py" for module in trees)
    return stub(source, imported, *(line for name, each in found.items() for line in typed_dict(name, "TypedDict", each)))


def flag(
    name: str, field: FieldInfo, *, most: float | None = None, metavar: str | None = None, negative: str = ""
) -> dict[str, Any]:
    """Return an option of the command line that follows from a field: its names, and arguments of `click.option`.

    most: the largest number, if its rule has no limit; metavar: of other values than times; negative: as for `option`.
    """
    text, default = str(field.description).partition(". ")[0].removesuffix("."), field.default
    made: dict[str, Any] = {"help": f"{text}."}
    found: dict[str, Any] = {"names": [], "option": made}
    if default is True:
        dashed = name.replace("_", "-")
        found["names"] = [f"--{dashed}/--{negative or f'no-{dashed}'}"]
        made |= {"default": True, "help": made["help"] if "[yes]" in text else f"{text} [yes]."}
    elif default is False:
        made |= {"is_flag": True}
    elif isinstance(default, Mapping):
        value = get_args(field.annotation)[1]
        made |= {"multiple": True, "metavar": metavar}
        found["numbers"] = value is not str
    else:
        kinds: list[Any] = [field.annotation, *get_args(field.annotation)]
        marks = [
            *field.metadata,
            *(rule for kind in kinds for mark in getattr(kind, "__metadata__", ()) for rule in getattr(mark, "metadata", ())),
        ]
        limits = {name: getattr(mark, name) for mark in marks for name in ("gt", "ge", "lt", "le") if hasattr(mark, name)}
        choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        made |= {} if default in (None, "") else {"default": default, "show_default": True}
        if choices:
            made["type"] = ["Choice", {"choices": choices}]
        else:
            made["metavar"] = metavar or ("NAME" if not limits else "S" if name.endswith("_seconds") else "X")
        if limits:
            highest = limits.get("le", limits.get("lt", 10**9 if "gt" in limits else most))
            least = limits.get("gt", limits.get("ge"))
            numbers = "IntRange" if any(int in (kind, get_origin(kind), *get_args(kind)) for kind in kinds) else "FloatRange"
            is_open = {"max_open": True} if "lt" in limits else {}
            made["type"] = [numbers, {"min": least, "max": highest, "min_open": "gt" in limits, **is_open}]
        elif Path in kinds:
            made["type"] = ["Directory" if metavar == "DIR" else "File", {}]
    return found


def of_commands() -> str:
    """Return {command: {name of a field: its option}} as JSON; "slurm settings", "simulation" and "generate" are of others."""
    found: dict[str, dict[str, Any]] = {}
    for name, field in gp.SchedulerOptions.model_fields.items():
        declared = extra_of(field)
        group = "Policy" if name in AllocationOptions.model_fields else "Rounds"
        for command in declared["commands"]:
            own = field
            if command == "slurm" and name in MEASURED:
                own = FieldInfo.merge_field_infos(field, default=None, description=MEASURED[name])
            most = 10**9 if command == "slurm" else None
            found.setdefault(command, {})[name] = {"group": group, **flag(name, own, most=most, negative=declared["negative"])}
    records: dict[str, tuple[type[BaseModel], float | None]] = {
        "slurm settings": (gp.SlurmSettings, 10**9),
        "simulation": (gp.SimulationOptions, None),
        "generate": (gp.TraceOptions, None),
    }
    for key, (record, largest) in records.items():
        found[key] = {}
        for name, field in record.model_fields.items():
            if shown := extra_of(field).get("flag"):
                made = flag(name, field, most=largest, metavar=shown["metavar"])
                found[key][name] = {"group": shown["group"], **made, "names": shown["names"] or made["names"]}
    return json.dumps(found, indent=2) + "\n"


def extra_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return what the declaration of a field says of its option of commands."""
    return dict(field.json_schema_extra) if isinstance(field.json_schema_extra, dict) else {}


def stubs() -> dict[Path, str]:
    """Return {file: its content}."""
    return {
        PACKAGE / "scheduling" / "keywords.pyi": of_scheduling(),
        PACKAGE / "serving" / "keywords.pyi": of_functions(
            "serving", PlanKeywords="plan.ServingPlanOptions", ScheduleKeywords="over_time.ServingScheduleOptions"
        ),
        PACKAGE / "simulator" / "keywords.pyi": of_simulator(),
        PACKAGE / "workloads" / "keywords.pyi": of_functions("workloads", TraceKeywords="generator.TraceOptions"),
        PACKAGE / "integrations" / "slurm" / "keywords.pyi": of_functions(
            "integrations/slurm", SettingKeywords="settings.SlurmSettings"
        ),
        PACKAGE / "cli" / "options.json": of_commands(),
    }


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text)
