"""Arrays, tuples and what is made of them as plain data, from which they come back exactly as they were."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["as_data", "from_data"]

PLAIN = bool | int | float | str | None


def as_data(value: Any) -> Any:
    """Return an array, a tuple, list or mapping of text to such values, a number or a text as what JSON can hold."""
    if isinstance(value, np.ndarray):
        return {"array": value.ravel().tolist(), "shape": list(value.shape), "dtype": value.dtype.str}
    if isinstance(value, tuple):
        return {"tuple": [as_data(each) for each in value]}
    if isinstance(value, list):
        return [as_data(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[as_data(name), as_data(each)] for name, each in value.items()]}
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, PLAIN):
        raise TypeError(f"cannot be written to a file: {value!r}")
    return value


def from_data(data: Any) -> Any:
    """Return the value that `as_data` described."""
    if isinstance(data, list):
        return [from_data(each) for each in data]
    if not isinstance(data, dict):
        return data
    if "array" in data:
        return np.array(data["array"], dtype=np.dtype(data["dtype"])).reshape(data["shape"])
    if "tuple" in data:
        return tuple(from_data(each) for each in data["tuple"])
    return {from_data(name): from_data(each) for name, each in data["dict"]}
