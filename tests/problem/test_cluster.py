"""Clusters from counts, text and files: what they hold, what fits them, and what is refused."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py import AcceleratorType, Cluster, InputError, Node
from tests.support.fakes import refusal
from tests.support.shared_data import SHARED, needs_shared_data

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file(name: str, content: str) -> str:
    Path(name).write_text(content, encoding="utf-8")
    return name


def node(name: str, accelerator: str, num_gpus: int, rack: str | None = None) -> Node:
    return Node(name=name, accelerator=accelerator, num_gpus=num_gpus, rack=rack)


def sizes(cluster: Cluster) -> dict[str, int]:
    return {node.name: node.num_gpus for node in cluster.nodes}


def counts(cluster: Cluster) -> dict[str, int]:
    return {name: int(gpus) for name, gpus in zip(cluster.accelerator_names, cluster.capacities, strict=True)}


class TestNode:
    def test_fields(self) -> None:
        made = Node(name=" n1 ", accelerator="v100", num_gpus=8, cpus=64, memory_gb=512, rack="r1")
        assert (made.name, made.accelerator, made.num_gpus) == ("n1", "v100", 8)
        assert (made.cpus, made.memory_gb, made.rack) == (64.0, 512.0, "r1")

    def test_only_name_type_and_gpus_are_needed(self) -> None:
        made = node("n1", "v100", 8)
        assert (made.cpus, made.memory_gb, made.rack) == (None, None, None)

    def test_is_frozen(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            node("n1", "v100", 8).num_gpus = 4  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"num_gpus": -1}, "node 'n1', field num_gpus: must be at least 0, found -1"),
            ({"num_gpus": 4097}, "node 'n1', field num_gpus: must be at most 4,096, found 4097"),
            ({"num_gpus": 0.5}, "node 'n1', field num_gpus: must be a whole number, found 0.5"),
            ({"num_gpus": NAN}, "node 'n1', field num_gpus: must be a finite number, found nan"),
            ({"num_gpus": "many"}, "node 'n1', field num_gpus: must be a whole number, found 'many'"),
            ({"num_gpus": None}, "node 'n1', field num_gpus: must be a whole number, found None"),
            ({"name": ""}, "node, field name: must not be empty, found ''"),
            ({"name": "a\nb"}, "node 'a\\nb', field name: must not contain line breaks or control characters, found 'a\\nb'"),
            ({"accelerator": ""}, "node 'n1', field accelerator: must not be empty, found ''"),
            ({"accelerator": ["v100"]}, "node 'n1', field accelerator: must be text, found ['v100']"),
            ({"rack": ""}, "node 'n1', field rack: must not be empty, found ''"),
            ({"cpus": -1}, "node 'n1', field cpus: must be at least 0, found -1"),
            ({"cpus": "x" * 100}, f"node 'n1', field cpus: must be a number, found '{'x' * 56}..."),
            ({"memory_gb": INF}, "node 'n1', field memory_gb: must be a finite number, found inf"),
            ({"gpus": 1}, "node 'n1', field gpus: is not known; did you mean 'cpus' or 'num_gpus'?"),
        ],
    )
    def test_faults(self, changes: dict[str, Any], problem: str) -> None:
        assert refusal(Node, **{"name": "n1", "accelerator": "v100", "num_gpus": 8} | changes) == problem

    def test_all_faults_at_once(self) -> None:
        with pytest.raises(InputError) as error:
            Node(name="n1", num_gpus=-1, cpus=-1)
        assert [fault.field for fault in error.value.faults] == ["accelerator", "num_gpus", "cpus"]


class TestAcceleratorType:
    def test_only_the_name_is_needed(self) -> None:
        kind = AcceleratorType(name="v100")
        assert (kind.memory_gb, kind.price_per_hour) == (None, None)

    def test_may_be_free_of_charge(self) -> None:
        assert AcceleratorType(name="v100", price_per_hour=0).price_per_hour == 0

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"name": None}, "accelerator type, field name: must be text, found None"),
            ({"memory_gb": 0}, "accelerator type 'v100', field memory_gb: must be greater than 0, found 0"),
            ({"memory_gb": NAN}, "accelerator type 'v100', field memory_gb: must be a finite number, found nan"),
            ({"price_per_hour": -1}, "accelerator type 'v100', field price_per_hour: must be at least 0, found -1"),
            ({"price_per_hour": "dear"}, "accelerator type 'v100', field price_per_hour: must be a number, found 'dear'"),
            (
                {"price": 1},
                "accelerator type 'v100', field price: is not known; did you mean 'price_per_hour'?",
            ),
        ],
    )
    def test_faults(self, changes: dict[str, Any], problem: str) -> None:
        assert refusal(AcceleratorType, **{"name": "v100"} | changes) == problem


class TestCluster:
    def test_types_come_in_the_order_of_declaration_then_of_the_nodes(self) -> None:
        cluster = Cluster(
            [node("a", "v100", 8), node("b", "k80", 4), node("c", "v100", 2)],
            [AcceleratorType(name="p100"), AcceleratorType(name="k80")],
        )
        assert cluster.accelerator_names == ("p100", "k80", "v100")
        assert cluster.capacities.tolist() == [0, 4, 10]
        assert cluster.num_gpus == 14

    def test_prices_are_nan_where_unknown(self) -> None:
        cluster = Cluster([node("a", "v100", 8)], [AcceleratorType(name="k80", price_per_hour=0.45)])
        np.testing.assert_array_equal(cluster.prices_per_hour, [0.45, NAN])

    def test_nodes_of_a_type(self) -> None:
        cluster = Cluster([node("a", "v100", 8), node("b", "k80", 4), node("c", "v100", 2)])
        assert [n.name for n in cluster.nodes_of("v100")] == ["a", "c"]
        assert cluster.nodes_of("h100") == ()

    def test_may_be_empty(self) -> None:
        cluster = Cluster([])
        assert (cluster.accelerator_names, cluster.capacities.shape, cluster.num_gpus) == ((), (0,), 0)

    def test_repr_shows_the_contents(self) -> None:
        assert repr(Cluster.from_counts({"v100": 12, "k80": 0})) == "Cluster(v100: 12 GPUs in 2 nodes, k80: 0 GPUs in 0 nodes)"

    def test_equal_clusters_have_equal_nodes_and_types(self) -> None:
        assert Cluster.from_counts({"v100": 8}) == Cluster([node("v100-0", "v100", 8)])
        assert Cluster.from_counts({"v100": 8}) != Cluster.from_counts({"v100": 9})
        assert Cluster([], [AcceleratorType(name="v100")]) != Cluster([])
        assert Cluster([]) != "Cluster()"

    def test_survives_the_way_to_another_process(self) -> None:
        cluster = Cluster.from_counts({"v100": 12})
        assert pickle.loads(pickle.dumps(cluster)) == cluster  # noqa: S301

    def test_node_names_are_unique(self) -> None:
        assert refusal(Cluster, [node(name, "v100", 8) for name in "abacb"]) == (
            "cluster: node 'a' appears twice; names must be unique\ncluster: node 'b' appears twice; names must be unique"
        )

    def test_type_names_are_unique(self) -> None:
        kinds = [AcceleratorType(name=name) for name in ("v100", "k80", "v100")]
        assert refusal(Cluster, [], kinds) == "cluster: accelerator type 'v100' appears twice; names must be unique"


class TestLargestGang:
    RACKS = Cluster(
        [
            node("a", "v100", 4, "r1"),
            node("b", "v100", 4, "r1"),
            node("c", "v100", 8, "r2"),
            node("d", "v100", 1),
            node("e", "v100", 9),
            node("f", "k80", 2, "r1"),
        ],
        [AcceleratorType(name="p100")],
    )
    NO_RACKS = Cluster.from_counts({"v100": (10, 4)})

    @pytest.mark.parametrize(
        ("cluster", "accelerator", "locality", "gang"),
        [
            pytest.param(RACKS, "v100", "any", 26, id="anywhere: all of the type"),
            pytest.param(RACKS, "v100", "node", 9, id="node: the largest node"),
            pytest.param(RACKS, "v100", "rack", 9, id="rack: a node without rack is one of its own"),
            pytest.param(RACKS.restricted_to(["k80"]), "k80", "rack", 2, id="rack: GPUs of other types do not count"),
            pytest.param(RACKS, "p100", "any", 0, id="a type without nodes"),
            pytest.param(RACKS, "h100", "any", 0, id="a type that is not there"),
            pytest.param(NO_RACKS, "v100", "any", 10, id="no racks, anywhere"),
            pytest.param(NO_RACKS, "v100", "rack", 4, id="no racks, rack"),
            pytest.param(NO_RACKS, "v100", "node", 4, id="no racks, node"),
        ],
    )
    def test_of_an_empty_cluster(self, cluster: Cluster, accelerator: str, locality: str, gang: int) -> None:
        assert cluster.largest_gang(accelerator, locality) == gang

    def test_a_rack_holds_its_nodes_together(self) -> None:
        cluster = Cluster([node(str(i), "v100", 8, f"r{i // 3}") for i in range(5)])
        assert [cluster.largest_gang("v100", locality) for locality in ("node", "rack", "any")] == [8, 24, 40]

    def test_a_rack_named_as_a_node_is_no_part_of_it(self) -> None:
        assert Cluster([node("a", "v100", 4, "b"), node("b", "v100", 4)]).largest_gang("v100", "rack") == 4

    def test_anywhere_unless_said(self) -> None:
        assert self.NO_RACKS.largest_gang("v100") == 10


class TestRenamed:
    CLUSTER = Cluster(
        [node("a", "Tesla-V100", 8), node("b", "k80", 4), node("c", "V100-SXM2", 4)],
        [AcceleratorType(name="V100-SXM2", price_per_hour=2), AcceleratorType(name="Tesla-V100", price_per_hour=3)],
    )

    def test_one_type(self) -> None:
        assert counts(self.CLUSTER.renamed({"k80": "K80"})) == {"V100-SXM2": 4, "Tesla-V100": 8, "K80": 4}

    def test_two_into_one_has_the_first_ones_details(self) -> None:
        renamed = self.CLUSTER.renamed({"Tesla-V100": "v100", "V100-SXM2": "v100"})
        assert counts(renamed) == {"v100": 12, "k80": 4}
        assert renamed.accelerator_types[0] == AcceleratorType(name="v100", price_per_hour=2)

    def test_into_a_type_that_is_there(self) -> None:
        assert counts(self.CLUSTER.renamed({"V100-SXM2": "k80"})) == {"k80": 8, "Tesla-V100": 8}

    def test_two_may_swap_names(self) -> None:
        swapped = self.CLUSTER.renamed({"Tesla-V100": "k80", "k80": "Tesla-V100"})
        assert counts(swapped) == {"V100-SXM2": 4, "k80": 8, "Tesla-V100": 4}

    def test_the_cluster_itself_stays_as_it_is(self) -> None:
        self.CLUSTER.renamed({"k80": "K80"})
        assert self.CLUSTER.accelerator_names == ("V100-SXM2", "Tesla-V100", "k80")

    def test_unknown_names_are_refused_all_together(self) -> None:
        assert refusal(self.CLUSTER.renamed, {"k8": "K80", "h100": "H100", "k80": "K80"}) == (
            "cluster, field accelerator: 'k8' is not in the cluster; did you mean 'k80'?\n"
            "cluster, field accelerator: 'h100' is not in the cluster; known: V100-SXM2, Tesla-V100, k80"
        )


def test_restricted_to_keeps_the_order_and_details_of_its_types() -> None:
    cluster = Cluster(
        [node("a", "v100", 8), node("b", "k80", 4), node("c", "p100", 2)], [AcceleratorType(name="p100", price_per_hour=1)]
    )
    part = cluster.restricted_to(["v100", "p100", "h100"])
    assert counts(part) == {"p100": 2, "v100": 8}
    assert part.prices_per_hour[0] == 1
    assert sizes(part) == {"a": 8, "c": 2}


class TestFromCounts:
    @pytest.mark.parametrize(
        ("given_counts", "nodes"),
        [
            pytest.param({"v100": 16}, {"v100-0": 8, "v100-1": 8}, id="eight a node unless said"),
            pytest.param({"v100": (8, 4)}, {"v100-0": 4, "v100-1": 4}, id="GPUs per node"),
            pytest.param({"v100": [8, 4]}, {"v100-0": 4, "v100-1": 4}, id="a list will do"),
            pytest.param({"v100": (10, 4)}, {"v100-0": 4, "v100-1": 4, "v100-2": 2}, id="the rest becomes a smaller node"),
            pytest.param({"v100": 3}, {"v100-0": 3}, id="less than one node"),
            pytest.param({"v100": (2, 1), "v100-1": 1}, {"v100-0": 1, "v100-1": 1, "v100-1-0": 1}, id="names stay unique"),
            pytest.param({"v100": 0}, {}, id="no GPUs, no nodes"),
            pytest.param({}, {}, id="nothing"),
        ],
    )
    def test_nodes(self, given_counts: dict[str, Any], nodes: dict[str, int]) -> None:
        assert sizes(Cluster.from_counts(given_counts)) == nodes

    def test_a_type_without_gpus_keeps_its_column(self) -> None:
        cluster = Cluster.from_counts({"v100": 0, "k80": 4})
        assert cluster.accelerator_names == ("v100", "k80")
        assert cluster.capacities.tolist() == [0, 4]

    @pytest.mark.parametrize(
        ("count", "problem"),
        [
            (-1, "field GPUs: must be a whole number of at least 0, found -1"),
            (1.5, "field GPUs: must be a whole number of at least 0, found 1.5"),
            (NAN, "field GPUs: must be a whole number of at least 0, found nan"),
            ("8", "field GPUs: must be a whole number of at least 0, found '8'"),
            (None, "field GPUs: must be a whole number of at least 0, found None"),
            ((8, 0), "field GPUs per node: must be a whole number of at least 1, found 0"),
            ((8, "4"), "field GPUs per node: must be a whole number of at least 1, found '4'"),
        ],
    )
    def test_faults(self, count: Any, problem: str) -> None:
        assert refusal(Cluster.from_counts, {"k80": 4, "v100": count}) == f"cluster, accelerator type 'v100', {problem}"

    def test_all_faults_at_once(self) -> None:
        with pytest.raises(InputError) as error:
            Cluster.from_counts({"v100": (-1, 0), "k80": -2})
        assert [(fault.where, fault.field) for fault in error.value.faults] == [
            ("cluster, accelerator type 'v100'", "GPUs"),
            ("cluster, accelerator type 'v100'", "GPUs per node"),
            ("cluster, accelerator type 'k80'", "GPUs"),
        ]


class TestFromInline:
    @pytest.mark.parametrize(
        ("text", "same"),
        [
            ("v100:16,p100:8/4", {"v100": 16, "p100": (8, 4)}),
            (" v100 : 16 / 4 , p100:1 ", {"v100": (16, 4), "p100": 1}),
            ("v100:0", {"v100": 0}),
            ("A100 80GB:8", {"A100 80GB": 8}),
            ("tesla/p100:4/2", {"tesla/p100": (4, 2)}),
        ],
    )
    def test_means_the_same_as_counts(self, text: str, same: dict[str, Any]) -> None:
        assert Cluster.from_inline(text) == Cluster.from_counts(same)

    @pytest.mark.parametrize("part", ["", "v100", "v100:", ":8", "v100:-1", "v100:1.5", "v100:8/", "v100:1/2/3", "a:b:3", "v100=8"])
    def test_a_part_of_another_form_is_refused(self, part: str) -> None:
        problem = f"cluster: {part!r} is not of the form TYPE:GPUS or TYPE:GPUS/GPUS_PER_NODE"
        assert refusal(Cluster.from_inline, f"k80:4, {part} ") == problem

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("v100:8,k80:4,v100:8", "cluster: accelerator type 'v100' appears twice"),
            (
                "v100:8/0",
                "cluster, accelerator type 'v100', field GPUs per node: must be a whole number of at least 1, found 0",
            ),
            (
                "v100,k80:4,k80:4",
                "cluster: 'v100' is not of the form TYPE:GPUS or TYPE:GPUS/GPUS_PER_NODE\n"
                "cluster: accelerator type 'k80' appears twice",
            ),
        ],
    )
    def test_faults(self, text: str, problem: str) -> None:
        assert refusal(Cluster.from_inline, text) == problem


YAML = """\
accelerator_types:
  v100: {memory_gb: 16, price_per_hour: 2.48}
  k80:
nodes:
  - {name: big, count: 2, accelerator: v100, num_gpus: 8, rack: r1}
  - name: small
    accelerator: p100
    num_gpus: 4
    cpus: 32
"""
JSON = """\
{"accelerator_types": {"v100": {"memory_gb": 16, "price_per_hour": 2.48}, "k80": null},
 "nodes": [{"name": "big", "count": 2, "accelerator": "v100", "num_gpus": 8, "rack": "r1"},
           {"name": "small", "accelerator": "p100", "num_gpus": 4, "cpus": 32, "memory_gb": null}]}
"""
OPENB = "sn,cpu_milli,memory_mib,gpu,model\n"
SPOT = ("gpu_model", "gpu_capacity_num", "cpu_num", "node_name")


class TestFromFile:
    @pytest.mark.parametrize(("name", "content"), [("c.yaml", YAML), ("c.yml", YAML), ("c.YAML", YAML), ("c.json", JSON)])
    def test_yaml_and_json_hold_the_same_document(self, name: str, content: str) -> None:
        assert Cluster.from_file(file(name, content)) == Cluster(
            [
                node("big-0", "v100", 8, "r1"),
                node("big-1", "v100", 8, "r1"),
                Node(name="small", accelerator="p100", num_gpus=4, cpus=32),
            ],
            [AcceleratorType(name="v100", memory_gb=16, price_per_hour=2.48), AcceleratorType(name="k80")],
        )

    def test_a_count_of_one_numbers_its_node(self) -> None:
        content = "nodes:\n  - {name: a, count: 1, accelerator: v100, num_gpus: 8}\n"
        assert sizes(Cluster.from_file(file("c.yaml", content))) == {"a-0": 8}

    def test_nodes_may_have_no_gpus(self) -> None:
        cluster = Cluster.from_file(file("c.yaml", "nodes:\n  - {name: a, accelerator: v100, num_gpus: 0}\n"))
        assert (sizes(cluster), counts(cluster)) == ({"a": 0}, {"v100": 0})

    @pytest.mark.parametrize("content", ["{}", "nodes: []\naccelerator_types: {}\n"])
    def test_may_be_empty(self, content: str) -> None:
        assert Cluster.from_file(file("c.yaml", content)) == Cluster([])

    @pytest.mark.parametrize("content", ["nodes:\n", "nodes: null\n"])
    def test_nodes_without_a_value_are_refused(self, content: str) -> None:
        assert (
            refusal(Cluster.from_file, file("c.yaml", content))
            == "c.yaml, line 1, field nodes: must be a list of nodes, found None"
        )

    @pytest.mark.parametrize(("value", "found"), [("0", "0"), ("false", "False"), ("''", "''"), ("v100", "'v100'")])
    def test_nodes_and_types_that_are_none(self, value: str, found: str) -> None:
        message = refusal(Cluster.from_file, file("c.yaml", f"nodes: {value}\naccelerator_types: {value}\n"))
        assert message == (
            f"c.yaml, line 1, field nodes: must be a list of nodes, found {found}\n"
            f"c.yaml, line 2, field accelerator_types: must be a mapping from name to details, found {found}"
        )

    def test_openb_leaves_out_nodes_without_gpus(self) -> None:
        rows = "n0,64000,262144,2,P100\nn1,96000,262144,0,\nn2,32000,1000000,8,T4\n"
        assert Cluster.from_file(file("nodes.csv", OPENB + rows)) == Cluster(
            [
                Node(name="n0", accelerator="P100", num_gpus=2, cpus=64, memory_gb=274.877906944),
                Node(name="n2", accelerator="T4", num_gpus=8, cpus=32, memory_gb=1048.576),
            ]
        )

    @needs_shared_data
    def test_the_published_openb_list(self) -> None:
        cluster = Cluster.from_file(SHARED / "openb" / "openb_node_list_gpu_node.csv")
        assert len(cluster.nodes) == 1213
        assert counts(cluster) == {"P100": 265, "G3": 312, "V100M32": 204, "V100M16": 195, "G2": 4392, "T4": 842, "A10": 2}
        assert [cluster.largest_gang(name, "node") for name in cluster.accelerator_names] == [2, 8, 8, 8, 8, 4, 1]

    @pytest.mark.parametrize("columns", [["node_name", "cpu_num", "gpu_model", "gpu_capacity_num"], [*SPOT]])
    def test_the_node_list_of_the_spot_trace_is_read_by_column_names(self, columns: list[str]) -> None:
        rows = (("A10", "1", "128", "0"), ("H800", "8", "192", "n1"), ("A10", "0", "64", "n2"))
        cells = [dict(zip(SPOT, row, strict=True)) for row in rows]
        lines = [",".join(columns), *(",".join(row[name] for name in columns) for row in cells)]
        assert Cluster.from_file(file("node_info_df.csv", "\n".join(lines) + "\n")) == Cluster(
            [
                Node(name="0", accelerator="A10", num_gpus=1, cpus=128),
                Node(name="n1", accelerator="H800", num_gpus=8, cpus=192),
            ]
        )

    @needs_shared_data
    def test_the_published_spot_list(self) -> None:
        cluster = Cluster.from_file(SHARED / "spot-gpu-2026" / "node_info_df.csv")
        assert (len(cluster.nodes), cluster.num_gpus) == (4278, 10_412)
        assert counts(cluster) == {
            "GPU-series-1": 1558, "A10": 2494, "A100-SXM4-80GB": 3456, "GPU-series-2": 976, "H800": 1752, "A800-SXM4-80GB": 176
        }  # fmt: skip

    def test_another_suffix_is_refused(self) -> None:
        assert refusal(Cluster.from_file, "cluster.toml") == (
            "cluster.toml: cannot determine the format from the name; it must end in .yaml, .yml, .json, .csv"
        )

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param(
                "", "c.yaml, line 1: must be a mapping with the key nodes and optionally accelerator_types, found None", id="empty"
            ),
            pytest.param(
                "- a\n",
                "c.yaml, line 1: must be a mapping with the key nodes and optionally accelerator_types, found ['a']",
                id="list",
            ),
            pytest.param(
                "nodes: []\nnode: 3\ncolour: red\n",
                "c.yaml, line 2: key 'node' is not known; did you mean 'nodes'?\n"
                "c.yaml, line 3: key 'colour' is not known; known: nodes, accelerator_types",
                id="unknown keys",
            ),
            pytest.param(
                "nodes: {a: 1}\naccelerator_types: [v100]\n",
                "c.yaml, line 1, field nodes: must be a list of nodes, found {'a': 1}\n"
                "c.yaml, line 2, field accelerator_types: must be a mapping from name to details, found ['v100']",
                id="list and mapping mistaken for each other",
            ),
            pytest.param(
                "nodes:\n  - v100\n", "c.yaml, line 2: must be a mapping of field to value, found 'v100'", id="node is text"
            ),
            pytest.param(
                "accelerator_types:\n  v100: 16\n",
                "c.yaml, line 2: must be a mapping of field to value, found 16",
                id="type is a number",
            ),
            pytest.param(
                "nodes:\n  - {name: a, accelerator: v100, num_gpus: -1}\n"
                "  - name: b\n    gpus: 3\n    accelerator: v100\n"
                "  - {name: c, count: 0, accelerator: v100, num_gpus: .nan}\n",
                "c.yaml, line 2 (node 'a'), field num_gpus: must be at least 0, found -1\n"
                "c.yaml, line 3 (node 'b'), field num_gpus: is required\n"
                "c.yaml, line 3 (node 'b'), field gpus: is not known; did you mean 'cpus' or 'num_gpus'?\n"
                "c.yaml, line 6 (node 'c'), field num_gpus: must be a finite number, found nan\n"
                "c.yaml, line 6 (node 'c'), field count: must be at least 1, found 0",
                id="several nodes",
            ),
            pytest.param(
                "accelerator_types:\n  v100: {memory_gb: -1}\n  k80: {price_hour: 1}\n",
                "c.yaml, line 2 (accelerator type 'v100'), field memory_gb: must be greater than 0, found -1\n"
                "c.yaml, line 3 (accelerator type 'k80'), field price_hour: is not known; did you mean 'price_per_hour'?",
                id="several types",
            ),
            pytest.param(
                "nodes:\n  - {name: a, accelerator: v100, num_gpus: -1}\naccelerator_types:\n  v100: {memory_gb: -1}\nkind: 3\n",
                "c.yaml, line 5: key 'kind' is not known; known: nodes, accelerator_types\n"
                "c.yaml, line 2 (node 'a'), field num_gpus: must be at least 0, found -1\n"
                "c.yaml, line 4 (accelerator type 'v100'), field memory_gb: must be greater than 0, found -1",
                id="keys, nodes and types at once",
            ),
        ],
    )
    def test_faults_in_yaml(self, content: str, problem: str) -> None:
        assert refusal(Cluster.from_file, file("c.yaml", content)) == problem

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param(
                "[]", "c.json, line 1: must be a mapping with the key nodes and optionally accelerator_types, found []", id="list"
            ),
            pytest.param('{"node": []}', "c.json, line 1, node: key 'node' is not known; did you mean 'nodes'?", id="unknown key"),
            pytest.param(
                '{"nodes": 3}', "c.json, line 1, nodes, field nodes: must be a list of nodes, found 3", id="nodes is a number"
            ),
            pytest.param(
                '{"nodes": [3]}', "c.json, line 1, nodes[0]: must be a mapping of field to value, found 3", id="node is a number"
            ),
            pytest.param(
                '{"nodes": [{"name": "a", "accelerator": "v100", "num_gpus": 8, "cpus": NaN},'
                '{"name": "b", "accelerator": "v100", "num_gpus": "x"}]}',
                "c.json, line 1, nodes[0] (node 'a'), field cpus: must be a finite number, found nan\n"
                "c.json, line 1, nodes[1] (node 'b'), field num_gpus: must be a whole number, found 'x'",
                id="several nodes",
            ),
            pytest.param(
                '{"accelerator_types": {"v100": {"memory_gb": 0}}}',
                "c.json, line 1, accelerator_types.v100 (accelerator type 'v100'), "
                "field memory_gb: must be greater than 0, found 0",
                id="type",
            ),
        ],
    )
    def test_faults_in_json(self, content: str, problem: str) -> None:
        assert refusal(Cluster.from_file, file("c.json", content)) == problem

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            pytest.param(
                "sn,cpu_milli,memory_mib,gpus,model\n",
                "c.csv, line 1: column 'gpu' is missing; did you mean 'gpus'?",
                id="missing column",
            ),
            pytest.param(
                OPENB + "n0,x,262144,2,P100\nn1,96000,-1,3,\nn2,1000,1000,1.5,T4\nn3,1,1,-1,T4\nn4,1,1,5000,T4\n",
                "c.csv, line 2 (node 'n0'), field cpu_milli: must be a number, found 'x'\n"
                "c.csv, line 3 (node 'n1'), field memory_mib: must be at least 0, found '-1'\n"
                "c.csv, line 3 (node 'n1'), field model: is required\n"
                "c.csv, line 4 (node 'n2'), field gpu: must be a whole number, found '1.5'\n"
                "c.csv, line 5 (node 'n3'), field gpu: must be at least 0, found '-1'\n"
                "c.csv, line 6 (node 'n4'), field gpu: must be at most 4,096, found '5000'",
                id="several nodes",
            ),
            pytest.param(
                OPENB + "n0,1000,1e308,2,P100\n",
                "c.csv, line 2 (node 'n0'), field memory_mib: must be at most 1e+15, found '1e308'",
                id="memory that no number of bytes can state",
            ),
        ],
    )
    def test_faults_in_openb(self, content: str, problem: str) -> None:
        assert refusal(Cluster.from_file, file("c.csv", content)) == problem

    def test_faults_in_the_spot_list(self) -> None:
        assert refusal(Cluster.from_file, file("c.csv", "gpu_model,gpu_capacity_num,node_name\nA10,1,0\n")) == (
            "c.csv, line 1: column 'cpu_num' is missing; known: gpu_model, gpu_capacity_num, cpu_num, node_name"
        )
        rows = "A10,many,128,0\nA10,1,-1,1\n,1,128,2\n"
        assert refusal(Cluster.from_file, file("c.csv", ",".join(SPOT) + "\n" + rows)) == (
            "c.csv, line 2 (node '0'), field gpu_capacity_num: must be a whole number, found 'many'\n"
            "c.csv, line 3 (node '1'), field cpu_num: must be at least 0, found '-1'\n"
            "c.csv, line 4 (node '2'), field gpu_model: is required"
        )

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            (
                "c.yaml",
                "nodes:\n- {name: a, count: 2, accelerator: v, num_gpus: 1}\n- {name: a-1, accelerator: v, num_gpus: 1}\n",
            ),
            (
                "c.json",
                '{"nodes": [{"name": "a-1", "accelerator": "v", "num_gpus": 1},'
                '{"name": "a-1", "accelerator": "v", "num_gpus": 1}]}',
            ),
            ("c.csv", OPENB + "a-1,1,1,1,v\na-1,1,1,1,v\n"),
            ("c.csv", ",".join(SPOT) + "\nv,1,1,a-1\nv,1,1,a-1\n"),
        ],
    )
    def test_node_names_are_unique_and_the_fault_names_the_file(self, name: str, content: str) -> None:
        message = refusal(Cluster.from_file, file(name, content))
        assert message.startswith(name)
        assert "(node 'a-1'), field " in message
        assert "appears twice, first at " in message


type_names = (
    st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=":,"), min_size=1).map(str.strip).filter(bool)
)
given_counts = st.dictionaries(type_names, st.tuples(st.integers(0, 300), st.integers(1, 64)), max_size=4)


@given(spec=given_counts)
def test_from_counts_conserves_gpus(spec: dict[str, tuple[int, int]]) -> None:
    cluster = Cluster.from_counts(spec)
    assert counts(cluster) == {name: gpus for name, (gpus, _) in spec.items()}
    assert sum(n.num_gpus for n in cluster.nodes) == cluster.num_gpus
    assert all(1 <= n.num_gpus <= spec[n.accelerator][1] for n in cluster.nodes)
    assert all(cluster.largest_gang(name, "node") == min(size) for name, size in spec.items())


@given(spec=given_counts.filter(bool))
def test_inline_text_means_the_same_as_counts(spec: dict[str, tuple[int, int]]) -> None:
    text = ",".join(f"{name}:{gpus}/{per_node}" for name, (gpus, per_node) in spec.items())
    assert Cluster.from_inline(text) == Cluster.from_counts(spec)


@given(spec=given_counts, new=st.sampled_from(["x", "y"]))
def test_renaming_and_restricting_conserve_gpus(spec: dict[str, tuple[int, int]], new: str) -> None:
    cluster = Cluster.from_counts(spec)
    assert cluster.renamed(dict.fromkeys(spec, new)).num_gpus == cluster.num_gpus
    assert sum(cluster.restricted_to([name]).num_gpus for name in spec) == cluster.num_gpus


@given(racks=st.lists(st.sampled_from([None, "r1", "r2"]), max_size=6), gpus=st.integers(0, 8))
def test_a_wider_locality_never_holds_less(racks: list[str | None], gpus: int) -> None:
    cluster = Cluster([node(f"n{i}", "v100", gpus + i, rack) for i, rack in enumerate(racks)])
    in_node, in_rack, anywhere = (cluster.largest_gang("v100", locality) for locality in ("node", "rack", "any"))
    assert in_node <= in_rack <= anywhere == cluster.num_gpus


class TestLists:
    """Names in cluster files with a list in brackets, as in Slurm."""

    @staticmethod
    def names(name: str, more: str = "") -> list[str]:
        Path("c.yaml").write_text(f"nodes:\n  - {{name: '{name}', accelerator: v100, num_gpus: 4{more}}}\n")
        return [each.name for each in Cluster.from_file("c.yaml").nodes]

    def test_ranges_numbers_and_leading_zeros(self) -> None:
        assert self.names("fast-[0-2,7]") == ["fast-0", "fast-1", "fast-2", "fast-7"]
        assert self.names("a[08-10].lan") == ["a08.lan", "a09.lan", "a10.lan"]
        assert self.names("b[3]", ", count: 2") == ["b3-0", "b3-1"]

    @pytest.mark.parametrize("name", ["a[", "a[]", "a[1-]", "a[x]", "a[1][2]", "a[3-1]", "a[0-100000]", "a[0-99999,7]"])
    def test_what_is_no_list_is_refused(self, name: str) -> None:
        with pytest.raises(InputError, match=r"c\.yaml, line 2.*name: .*(brackets|range)"):
            self.names(name)

    def test_names_appear_once(self) -> None:
        with pytest.raises(InputError, match="appears twice"):
            self.names("a[1-3,2]")


def test_a_type_is_renamed_by_any_of_its_names() -> None:
    cluster = Cluster.from_inline("NVIDIA H100 80GB HBM3:8,a100:4")
    assert cluster.renamed({"H100": "x"}).accelerator_names == ("x", "a100")
    with pytest.raises(InputError, match="'V100' is not in the cluster"):
        cluster.renamed({"V100": "x"})
