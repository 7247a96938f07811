"""The catalog: what a node of each accelerator type costs, draws and takes, and how many can be had.

Columns name their units, since a price per GPU that is read as one per node is wrong by a factor of eight, and one per month that
is read as one per hour by 730. The prices per GPU-hour of all other commands follow from the same file (`Catalog.priced`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gavel_py.errors import Fault, GavelWarning, InputError, faults_among, nearest, relocated_faults, together, unknown_names
from gavel_py.io import reading
from gavel_py.io.records import Name, Natural, NotNegative, Positive, Record, Whole, number_of, repeated
from gavel_py.problem.accelerators import AcceleratorTable, same_accelerator
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.nodes import AcceleratorType

HOURS_PER_YEAR = 8766.0
HOURS_PER_MONTH = HOURS_PER_YEAR / 12

PLAIN = ("accelerator", "life_years", "max_nodes", "nodes_per_rack")
UNITS = {"node": (1.0, False), "gpu": (1.0, True)}
TIMES = {f"{unit}_hour": how for unit, how in UNITS.items()} | {
    f"{unit}_month": (1 / HOURS_PER_MONTH, per_gpu) for unit, (_, per_gpu) in UNITS.items()
}
QUANTITIES = {"buy_usd": UNITS, "resale_usd": UNITS, "watts": UNITS, "rent_usd": TIMES}
"""{quantity: {unit: (factor, whether it is that of one GPU)}}, for a node."""


def column(quantity: str, unit: str) -> str:
    """Return the name of the column of a quantity in a unit."""
    return f"{quantity}_per_{unit}"


NODE_GPUS = column("gpus", "node")
COLUMNS = {column(quantity, unit): (quantity, *how) for quantity, units in QUANTITIES.items() for unit, how in units.items()}
COLUMNS[NODE_GPUS] = ("num_gpus", 1.0, False)

AMBIGUOUS = ("price", "usd", "cost", "buy_usd", "rent_usd", "price_per_hour", "usd_per_hour", "buy", "rent", "watts")

MATRIX_TFLOPS = 60.0
"""FP16 TFLOP/s from which prices are compared with usual ones: older GPUs are sold at any price."""

USUAL = (0.0004, 0.02)
"""US dollars per hour and FP16 TFLOP/s of a GPU: bought for four years or rented, from T4 to B300, in the years 2020 to 2026."""


class CatalogEntry(Record):
    """What a node of one accelerator type costs, and how many can be had.

    Attributes:
        accelerator: Name of the type.
        num_gpus: GPUs of a node.
        buy_usd: Price of a node; a type has either this or `rent_usd`.
        rent_usd: Rent of a node per hour.
        life_years: Time after which a bought node is sold.
        resale_usd: What it then brings, and what a node brings that is retired today.
        watts: Power of a node under load.
        max_nodes: Nodes that can be bought or rented in addition to those that are there; None for any number.
        nodes_per_rack: How many of them fill a rack.
    """

    label: ClassVar[str] = "accelerator"
    identifier: ClassVar[str] = "accelerator"

    accelerator: Name
    num_gpus: Whole
    buy_usd: Positive | None = None
    rent_usd: Positive | None = None
    life_years: Positive = 4.0
    resale_usd: NotNegative = 0.0
    watts: NotNegative | None = None
    max_nodes: Natural | None = None
    nodes_per_rack: Whole | None = None

    def node_usd_per_hour(self, usd_per_kwh: float = 0.0, *, is_owned: bool = False) -> float:
        """Return what a node costs per hour: its rent, or (price − resale) / life, and its power.

        A node that is owned already costs what its sale would bring, resale / life.

        Args:
            usd_per_kwh: Price of energy.
            is_owned: Whether the node has been paid for.
        """
        hours = self.life_years * HOURS_PER_YEAR
        bought = (self.resale_usd if is_owned else (self.buy_usd or 0.0) - self.resale_usd) / hours
        return (self.rent_usd if self.rent_usd is not None else bought) + (self.watts or 0.0) / 1000 * usd_per_kwh

    @property
    def gpu_usd_per_hour(self) -> float:
        """Price of a GPU-hour of a new node, without power."""
        return self.node_usd_per_hour() / self.num_gpus


@dataclass(frozen=True)
class Catalog:
    """Types of nodes with their prices, as `read_catalog` returns them.

    Attributes:
        entries: One for each accelerator type.
    """

    entries: tuple[CatalogEntry, ...]

    @property
    def names(self) -> list[str]:
        """The accelerator types."""
        return [each.accelerator for each in self.entries]

    def named(self, names: Mapping[str, str]) -> Catalog:
        """Return the catalog with other names of its types.

        Args:
            names: {name in the catalog: other name}.
        """
        return Catalog(
            tuple(each.model_copy(update={"accelerator": names.get(each.accelerator, each.accelerator)}) for each in self.entries)
        )

    def limited(self, nodes: Mapping[str, int]) -> Catalog:
        """Return the catalog with other numbers of nodes that can be had.

        Args:
            nodes: {accelerator type: `max_nodes`}.

        Raises:
            InputError: The catalog lacks a type.
        """
        found = {name: same_accelerator(name, self.names) for name in nodes}
        InputError.raise_any(
            [
                Fault("catalog", f"accelerator {name!r}", f"has no entry{nearest(name, self.names)}")
                for name in found
                if not found[name]
            ]
        )
        most = {there: nodes[name] for name, there in found.items()}
        changed = (each.model_copy(update={"max_nodes": most.get(each.accelerator, each.max_nodes)}) for each in self.entries)
        return replace(self, entries=tuple(changed))

    def nodes_in(self, cluster: Cluster) -> np.ndarray:
        """Return the (J,) nodes of each type that a cluster has.

        Args:
            cluster: The nodes that are there.

        Raises:
            InputError: A type of the cluster is not in the catalog, or its nodes have another number of GPUs.
        """
        counts = dict.fromkeys(self.names, 0)
        sizes = {each.accelerator: each.num_gpus for each in self.entries}
        faults = []
        for name in cluster.accelerator_names:
            nodes, there = cluster.nodes_of(name), same_accelerator(name, self.names)
            other = sorted({node.num_gpus for node in nodes} - {sizes.get(there or "", -1)})
            text = f"has nodes of {', '.join(map(str, other))} GPUs, but those of the catalog have {sizes.get(there or '')}"
            missing = f"is not in the catalog, so what a node of it costs is not known{nearest(name, self.names)}"
            where = f"accelerator {name!r}"
            faults += faults_among("cluster", (there is None and nodes, where, missing), (there and other, where, text))
            counts[there or ""] = counts.get(there or "", 0) + len(nodes)
        InputError.raise_any(faults)
        return np.array([counts[name] for name in self.names])

    def priced(self, cluster: Cluster) -> Cluster:
        """Return a cluster with the price of a GPU-hour of each type, for costs in all other commands.

        Args:
            cluster: A cluster; types that the catalog lacks keep their price.
        """
        prices = {each.accelerator: each.gpu_usd_per_hour for each in self.entries}
        types = []
        for each in cluster.accelerator_types:
            there = same_accelerator(each.name, prices)
            price = each.price_per_hour if there is None else prices[there]
            types.append(AcceleratorType(**each.model_dump() | {"price_per_hour": price}))
        return Cluster(cluster.nodes, types)


def read_catalog(path: str | Path) -> Catalog:
    """Read a catalog from a CSV file.

    Its columns are the accelerator, the GPUs of a node, and one price: buy_usd_per_node or buy_usd_per_gpu, or rent_usd_per_ with
    node_hour, gpu_hour, node_month or gpu_month. Optional are life_years [4], resale_usd and watts, per_node or per_gpu each,
    max_nodes and nodes_per_rack.

    Args:
        path: The file.

    Raises:
        InputError: With all faults: unknown columns, prices whose unit is not stated, two prices of a type, no price, types that
            appear twice, and values out of range.
    """
    where, header = reading.csv_header(path)
    known = [*PLAIN, *COLUMNS]
    prices = [name for name in COLUMNS if name.startswith(("buy", "rent"))]
    unclear = [name for name in header if name in AMBIGUOUS]
    text = f"must state its unit; use one of {', '.join(prices)}"
    wrong = [Fault(where, name, text) for name in unclear]
    wrong += unknown_names(where, "", [name for name in header if name and name not in unclear], known, noun="column")
    InputError.raise_any(wrong)  # rows would only be said to lack what these columns mean
    rows = list(reading.csv_rows(path, ("accelerator", NODE_GPUS), known))
    names = [(place, row.get("accelerator", "")) for place, row in rows]
    with together() as attempt:
        found = [attempt(partial(_entry, place, row)) for place, row in rows]
        attempt(lambda: InputError.raise_any(repeated("accelerator", "accelerator", names)))
        attempt(lambda: InputError.raise_any([] if rows else [Fault(str(path), "", "has no accelerators")]))
    entries: tuple[CatalogEntry, ...] = tuple(found)
    for entry, (place, row) in zip(entries, rows, strict=True):
        for warning in _unusual(entry, row):
            warnings.warn(f"{place}: {warning}", GavelWarning, stacklevel=2)
    return Catalog(entries)


def _entry(where: str, row: Mapping[str, str]) -> CatalogEntry:
    """Return the entry of a row, with quantities of a node; raises `InputError` with faults in the words of its columns."""
    fields: dict[str, Any] = {}
    columns: dict[str, str] = {}
    twice = []
    gpus = number_of(row.get(NODE_GPUS))
    for name, cell in row.items():
        quantity, factor, per_gpu = COLUMNS.get(name, (name, 1.0, False))
        if quantity in fields:
            twice.append(Fault(where, name, f"is also given as {columns[quantity]}; give only one of them"))
        value = number_of(cell) * factor * (gpus if per_gpu and gpus > 0 else 1.0)
        columns[quantity] = name
        fields[quantity] = cell if name in PLAIN or not math.isfinite(value) or (factor == 1.0 and not per_gpu) else value

    def relocate(fault: Fault) -> Fault:
        return replace(fault, where=f"{where} ({fault.where})", field=columns.get(fault.field, fault.field))

    with relocated_faults(relocate), together() as attempt:
        made = attempt(lambda: CatalogEntry(**fields))
        prices = [columns[name] for name in ("buy_usd", "rent_usd") if name in columns]
        label = f"accelerator {row.get('accelerator', '')!r}"
        none = "has no price; give buy_usd_per_node, rent_usd_per_gpu_hour or another price with its unit"
        two = f"has two prices, {' and '.join(prices)}; plan with one of them, since a node is either bought or rented"
        lost = made is not None and made.buy_usd is not None and made.resale_usd > made.buy_usd
        dear = "is above the price of a new node; it is what a node brings when it is sold"
        faults = faults_among(label, (not prices, "", none), (len(prices) > 1, "", two), (lost, "resale_usd", dear))
        attempt(lambda: InputError.raise_any(faults))
    InputError.raise_any(twice)
    entry: CatalogEntry = made
    return entry


def _unusual(entry: CatalogEntry, row: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence if a price is far from usual ones, but would be usual in another unit."""
    spec = AcceleratorTable.builtin().find(entry.accelerator)
    tflops = None if spec is None or (spec.fp16_tflops or 0.0) < MATRIX_TFLOPS else spec.fp16_tflops
    used = next(name for name in row if name.startswith(("buy", "rent")))
    quantity, factor, per_gpu = COLUMNS[used]

    def is_usual(price: float) -> bool:
        return tflops is None or USUAL[0] <= price / tflops <= USUAL[1]

    if is_usual(entry.gpu_usd_per_hour):
        return
    for name, (other, other_factor, other_per_gpu) in COLUMNS.items():
        times = (other_factor / factor) * (entry.num_gpus if other_per_gpu else 1) / (entry.num_gpus if per_gpu else 1)
        if other == quantity and name != used and is_usual(entry.gpu_usd_per_hour * times):
            yield f"{used} of {entry.accelerator} is {row[used]}, which would be usual as {name}; check its unit"
            return
