"""gavel_py decides which job gets which GPU type, for how much of the time, and on which GPUs.

All public names are attributes of this package. `__init__.pyi` lists them; each is imported on first use, which keeps
`import gavel_py` fast.

>>> import gavel_py as gp
>>> problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [4.0, 3.0]], [1, 1], accelerator_types=["v100", "k80"])
>>> gp.solve(problem, "max_total_throughput", normalized=False).time_fractions
array([[1., 0.],
       [0., 1.]])
"""

from __future__ import annotations

import ast
import importlib
import logging
import pkgutil

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # log records appear only if the calling program configures logging


def _read_stub() -> dict[str, str]:
    """Return {public name: module that defines it}, from the imports in `__init__.pyi`."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    return {name.name: str(node.module) for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}


_MODULE_OF = _read_stub()

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        from difflib import get_close_matches

        close = [] if name.startswith("_") else get_close_matches(name, _MODULE_OF, n=1)
        hint = f". Did you mean: {close[0]!r}?" if close else ""
        # As the interpreter words it, which without the object adds no suggestion of its own: others show the message only.
        raise AttributeError(f"module 'gavel_py' has no attribute {name!r}{hint}", name=name, obj=None)
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
