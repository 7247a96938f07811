"""Tenants: trees from files, dictionaries and records, refused input, and the service order of their jobs."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gavel_py import Tenant, TenantTree
from gavel_py.policies.fair_queueing import ServiceTree, service_tree
from tests.support.fakes import refusal

TREE = {
    "research": {"weight": 2, "tenants": {"vision": {}, "language": {"weight": 3}}},
    "product": {"policy": "fifo"},
}
RECORDS = [
    Tenant("product", policy="fifo"),
    Tenant("research", weight=2),
    Tenant("vision", parent="research"),
    Tenant("language", weight=3, parent="research"),
]
YAML = """\
tenants:
  research:
    weight: 2
    tenants:
      vision:
      language: {weight: 3}
  product: {policy: fifo}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file(name: str, content: str) -> str:
    Path(name).write_text(content, encoding="utf-8")
    return name


class TestTenant:
    def test_only_the_name_is_needed(self) -> None:
        made = Tenant(" vision ")
        assert (made.name, made.weight, made.policy, made.parent) == ("vision", 1.0, "fairness", None)
        assert Tenant(name="vision") == made

    def test_is_frozen(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            Tenant("vision").weight = 2  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            (
                {"weight": 0},
                "field weight: must be greater than 0, found 0; to give a tenant nothing, exclude each of its jobs with a Forbid "
                "constraint",
            ),
            ({"weight": -1}, "field weight: must be greater than 0, found -1"),
            ({"weight": "much"}, "field weight: must be a number, found 'much'"),
            ({"weight": True}, "field weight: must be a number, found True"),
            ({"weight": float("inf")}, "field weight: must be a finite number, found inf"),
            ({"policy": "fair"}, "field policy: must be one of 'fairness' or 'fifo', found 'fair'"),
            ({"parent": ""}, "field parent: must not be empty, found ''"),
            ({"wieght": 1}, "field wieght: is not known; did you mean 'weight'?"),
        ],
    )
    def test_faults(self, changes: dict[str, Any], problem: str) -> None:
        assert refusal(Tenant, "vision", **changes) == f"tenant 'vision', {problem}"


class TestTree:
    def test_records_dictionaries_and_files_give_the_same_tree(self) -> None:
        tree = TenantTree(RECORDS)
        assert TenantTree(reversed(RECORDS)) == tree
        assert TenantTree.from_dict(TREE) == tree
        assert TenantTree.from_dict({t.name: t.model_dump(exclude={"name"}) for t in RECORDS}) == tree
        assert TenantTree.from_file(file("tenants.yaml", YAML)) == tree
        assert TenantTree.from_file(file("tenants.json", json.dumps({"tenants": TREE}))) == tree

    def test_what_is_meant_by_a_value(self) -> None:
        tree = TenantTree(RECORDS)
        for source in (tree, TREE, RECORDS, file("tenants.yml", YAML), Path("tenants.yml")):
            assert TenantTree.of(source) == tree
        assert TenantTree.of(None) == TenantTree() == TenantTree.from_dict({})

    def test_a_mapping_may_have_the_form_of_a_file(self) -> None:
        tree = TenantTree.from_dict(TREE, "fifo")
        assert TenantTree.of({"policy": "fifo", "tenants": TREE}) == tree
        assert TenantTree.of(MappingProxyType({"tenants": TREE})) == TenantTree(RECORDS)
        # Tenants may bear the names of keys: beside other tenants, `tenants` is one.
        named = TenantTree.of({"tenants": {"weight": 2}, "policy": None})
        assert named == TenantTree([Tenant("tenants", weight=2), Tenant("policy")])

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            (
                5,
                "tenant tree: must be a TenantTree, a mapping from name to details, the path of a file, or a list of tenants, "
                "found 5",
            ),
            ({"tenants": {"a": {}}, "polcy": "fifo"}, "tenants (tenant tree), field polcy: is not known; did you mean 'policy'?"),
            (
                {"tenants": {"a": {"tenants": {"b": {"weight": -1}}}}},
                "tenants.a.tenants.b (tenant 'b'), field weight: must be greater than 0, found -1",
            ),
            ({"policy": "fifo"}, "tenants.policy: must be a mapping of field to value, found 'fifo'"),
        ],
    )
    def test_a_value_that_means_no_tree(self, source: Any, problem: str) -> None:
        assert refusal(TenantTree.of, source) == problem

    def test_has_a_policy_at_the_top(self) -> None:
        tree = TenantTree(RECORDS, policy="fifo")
        assert tree != TenantTree(RECORDS)
        assert TenantTree.from_dict(TREE, "fifo") == TenantTree.from_file(file("tenants.yaml", "policy: fifo\n" + YAML)) == tree

    def test_is_frozen_and_hashable(self) -> None:
        tree = TenantTree(RECORDS)
        with pytest.raises(dataclasses.FrozenInstanceError):
            tree.policy = "fifo"  # type: ignore[misc]
        assert hash(tree) == hash(TenantTree.from_dict(TREE))
        assert pickle.loads(pickle.dumps(tree)) == tree  # noqa: S301

    def test_is_taken_as_it_is_as_an_option(self) -> None:
        tree = TenantTree(RECORDS)
        option: TypeAdapter[Any] = TypeAdapter(TenantTree | str | None)
        assert option.validate_python(tree) is tree
        assert option.validate_python("tenants.yaml") == "tenants.yaml"

    def test_repr_shows_the_size(self) -> None:
        assert repr(TenantTree(RECORDS)) == "TenantTree(4 tenants in 2 levels)"
        assert repr(TenantTree(policy="fifo")) == "TenantTree(0 tenants in 0 levels, fifo at the top)"

    def test_knows_whether_the_order_of_jobs_matters(self) -> None:
        assert TenantTree(RECORDS).orders_jobs
        assert not TenantTree.from_dict({"a": {"policy": "fifo", "tenants": {"b": {}}}}, "fifo").orders_jobs

    @given(data=st.data())
    def test_survives_the_way_to_a_dictionary_and_back(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from("abcdefgh"), unique=True))
        weights, policies = st.sampled_from([1.0, 2.0, 0.5]), st.sampled_from(["fairness", "fifo"])
        tenants = [
            Tenant(
                name, weight=data.draw(weights), policy=data.draw(policies), parent=data.draw(st.sampled_from([None, *names[:i]]))
            )
            for i, name in enumerate(names)
        ]
        tree = TenantTree(tenants)
        assert TenantTree.from_dict(json.loads(json.dumps(tree.to_dict()))) == tree


class TestWhatIsNoTree:
    def test_names_that_stand_twice(self) -> None:
        assert refusal(TenantTree, [Tenant("a"), Tenant("b"), Tenant("a", parent="b")]) == (
            "entry 3 (tenant 'a'), field name: appears twice, first at entry 1"
        )

    def test_unknown_parents(self) -> None:
        assert refusal(TenantTree, [Tenant("research"), Tenant("vision", parent="reserch")]) == (
            "entry 2 (tenant 'vision'), field parent: there is no tenant 'reserch'; did you mean 'research'?"
        )

    @pytest.mark.parametrize(
        ("parents", "circles"),
        [
            ({"a": "a"}, ["a -> a"]),
            ({"a": "b", "b": "a"}, ["a -> b -> a"]),
            ({"x": "a", "a": "b", "b": "c", "c": "a", "y": "x"}, ["a -> b -> c -> a"]),
            ({"a": "b", "b": "a", "top": None, "c": "d", "d": "c", "e": "top"}, ["a -> b -> a", "c -> d -> c"]),
        ],
    )
    def test_circles(self, parents: dict[str, str | None], circles: list[str]) -> None:
        found = refusal(TenantTree, [Tenant(name, parent=parent) for name, parent in parents.items()]).splitlines()
        assert [line.partition("forms a cycle: ")[2] for line in found] == circles

    def test_other_things(self) -> None:
        assert refusal(TenantTree, ["a", "b"]) == "tenant tree: must hold Tenant objects, found 'a'"
        assert refusal(TenantTree, [], "fare") == "tenant tree, field policy: must be 'fairness' or 'fifo', found 'fare'"

    def test_a_dictionary_that_holds_itself(self) -> None:
        knot: dict[str, Any] = {}
        knot["a"] = {"tenants": knot}
        assert refusal(TenantTree.from_dict, knot) == "tenant 'a', field tenants: is more than 100 levels below the top"


class TestFiles:
    def test_all_faults_at_once_with_their_lines(self) -> None:
        path = file(
            "tenants.yaml",
            "policy: fare\n"
            "tenant: 1\n"
            "tenants:\n"
            "  a: {weight: 0}\n"
            "  b:\n"
            "    tenants:\n"
            "      c: {parent: b, policy: lifo}\n"
            "      a: {name: a}\n"
            "  d: {parent: e}\n"
            "  e: {parent: d}\n"
            "  f: 3\n"
            "  g: {tenants: [x]}\n"
            "  h: {parent: bb}\n",
        )
        assert refusal(TenantTree.from_file, path).splitlines() == [
            "tenants.yaml, line 1 (tenant tree), field policy: must be one of 'fairness' or 'fifo', found 'fare'",
            "tenants.yaml, line 2 (tenant tree), field tenant: is not known; did you mean 'tenants'?",
            "tenants.yaml, line 7 (tenant 'c'), field parent: follows from its position in the tree; remove it",
            "tenants.yaml, line 8 (tenant 'a'), field name: follows from its position in the tree; remove it",
            "tenants.yaml, line 4 (tenant 'a'), field weight: must be greater than 0, found 0; to give a tenant nothing, exclude "
            "each of its jobs with a Forbid constraint",
            "tenants.yaml, line 7 (tenant 'c'), field policy: must be one of 'fairness' or 'fifo', found 'lifo'",
            "tenants.yaml, line 11: must be a mapping of field to value, found 3",
            "tenants.yaml, line 12 (tenant 'g'), field tenants: must be a mapping from name to details, found ['x']",
            "tenants.yaml, line 8 (tenant 'a'), field name: appears twice, first at tenants.yaml, line 4",
            "tenants.yaml, line 13 (tenant 'h'), field parent: there is no tenant 'bb'; did you mean 'b'?",
            "tenants.yaml, line 9 (tenant 'd'), field parent: forms a cycle: d -> e -> d",
        ]

    def test_faults_in_json_and_in_dictionaries_tell_the_way(self) -> None:
        entries = {"a": {"tenants": {"b": {"weight": -1}}}}
        fault = "tenants.a.tenants.b (tenant 'b'), field weight: must be greater than 0, found -1"
        assert (
            refusal(TenantTree.from_file, file("tenants.json", json.dumps({"tenants": entries})))
            == f"tenants.json, line 1, {fault}"
        )
        assert refusal(TenantTree.from_dict, entries) == fault

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("", "tenants.yaml, line 1: must be a mapping of field to value, found None"),
            ("- a\n- b\n", "tenants.yaml, line 1: must be a mapping of field to value, found ['a', 'b']"),
            ("policy: fifo\n", "tenants.yaml, line 1 (tenant tree), field tenants: is required"),
            ("tenants:\n", "tenants.yaml, line 1 (tenant tree), field tenants: must be a mapping from name to details, found None"),
            (
                "tenants: [{name: a}]\n",
                "tenants.yaml, line 1 (tenant tree), field tenants: must be a mapping from name to details, found [{'name': 'a'}]",
            ),
            ("tenants:\n  a:\n  a:\n", "tenants.yaml, line 3: key 'a' appears twice in one mapping"),
        ],
    )
    def test_what_is_no_file_of_tenants(self, content: str, problem: str) -> None:
        assert refusal(TenantTree.from_file, file("tenants.yaml", content)) == problem

    def test_other_suffixes(self) -> None:
        assert refusal(TenantTree.from_file, "tenants.csv") == (
            "tenants.csv: cannot determine the format from the name; it must end in .yaml, .yml, .json"
        )

    def test_names_are_text_whatever_yaml_1_1_takes_them_for(self) -> None:
        names = ["yes", "no", "on", "null", "~", "010", "1_0", "1:30", "1.10", "2024-01-01", "0x10"]
        tree = TenantTree.from_file(file("tenants.yaml", "tenants:\n" + "".join(f"  {name}:\n" for name in names)))
        assert sorted(tenant.name for tenant in tree.tenants) == sorted(names)

    def test_names_may_be_numbers(self) -> None:
        assert [tenant.name for tenant in TenantTree.from_file(file("tenants.yaml", "tenants: {10: , 9: }\n")).tenants] == [
            "9",
            "10",
        ]


def jobs(*rows: tuple[str, float], counts: list[int] | None = None, weights: list[float] | None = None) -> dict[str, Any]:
    """Rows of (tenant, arrival) as the arguments of `service_tree`; ids are job-9, job-8, ..."""
    return {
        "tenants": [row[0] for row in rows],
        "job_ids": [f"job-{9 - i}" for i in range(len(rows))],
        "counts": np.array(counts or [1] * len(rows)),
        "weights": np.array(weights or [1.0] * len(rows)),
        "arrivals": np.array([row[1] for row in rows], dtype=float),
    }


def served(tree: ServiceTree, level: float) -> list[float]:
    """What jobs are served that have room for as much as one likes."""
    size = len(tree.leaves)
    return tree.rise(np.full(size, 1e6)).services(level).tolist()


class TestJobs:
    def test_each_is_served_below_its_tenant(self) -> None:
        tree = TenantTree.from_dict(TREE)
        rows = jobs(("vision", 0), ("product", 0), ("language", 0), ("vision", 0), weights=[3, 1, 1, 1])
        assert served(service_tree(tree, **rows), 4) == [4 * 2 / 4 * 3 / 4, 4, 4 * 2 * 3 / 4, 4 * 2 / 4 / 4]

    def test_rows_may_stand_for_several(self) -> None:
        rows = jobs(("a", 0), ("a", 0), ("b", 0), counts=[3, 1, 5])
        assert served(service_tree(TenantTree(), **rows), 60) == [15, 15, 12]

    def test_without_a_tree_each_tenant_is_one_of_weight_1(self) -> None:
        rows = jobs(("b", 0), ("", 0), ("b", 0))
        assert served(service_tree(TenantTree(), **rows), 1) == [0.5, 1, 0.5]

    @pytest.mark.parametrize(
        ("arrivals", "first"),
        [
            pytest.param([3, 1, 2], 1, id="the earliest"),
            pytest.param([1, 1, 2], 1, id="ties: the id, job-8 before job-9"),
            pytest.param([0, 0, 0], 2, id="all at once: job-7"),
        ],
    )
    def test_a_fifo_tenant_serves_its_first_job(self, arrivals: list[float], first: int) -> None:
        rows = jobs(*(("product", arrival) for arrival in arrivals))
        assert served(service_tree(TenantTree.from_dict(TREE), **rows), 1) == [float(i == first) for i in range(3)]

    def test_jobs_that_tie_go_in_the_order_of_numbers(self) -> None:
        rows = jobs(("product", 0), ("product", 0)) | {"job_ids": ["job-10", "job-9"]}
        assert served(service_tree(TenantTree.from_dict(TREE), **rows), 1) == [0, 1]

    @pytest.mark.parametrize(
        ("arrivals", "first"),
        [
            pytest.param([5, 9, 4, 2], 3, id="the tenant whose job came first, at any depth"),
            pytest.param([1, 9, 4, 2], 0, id="the first of all its jobs counts"),
            pytest.param([5, 9, 5, 5], 0, id="ties: the name, a before b and c"),
        ],
    )
    def test_tenants_that_take_turns(self, arrivals: list[float], first: int) -> None:
        tree = TenantTree.from_dict({"a": {}, "b": {"tenants": {"x": {}}}, "c": {"tenants": {"y": {}}}, "0": {}}, policy="fifo")
        rows = jobs(*zip(["a", "a", "x", "y"], arrivals, strict=True))
        expected = {0: [0.5, 0.5, 0, 0], 3: [0, 0, 0, 1]}[first]
        assert served(service_tree(tree, **rows), 1) == expected

    def test_tenants_without_jobs_take_no_part(self) -> None:
        rows = jobs(("vision", 0))
        assert served(service_tree(TenantTree.from_dict(TREE), **rows), 1) == [2]

    def test_no_jobs(self) -> None:
        assert served(service_tree(TenantTree.from_dict(TREE), **jobs()), 1) == []

    def test_all_that_have_no_place_are_named(self) -> None:
        rows = jobs(("vision", 0), ("visoin", 0), ("research", 0), ("", 0), ("", 0), ("research", 0), counts=[1, 7, 1, 1, 1, 1])
        assert refusal(service_tree, TenantTree.from_dict(TREE), **rows).splitlines() == [
            "jobs 'job-4', 'job-7', field tenant: 'research' has tenants below it, so it cannot have jobs; "
            "use 'language', 'vision', or add a tenant for these jobs",
            "jobs 'job-5', 'job-6', field tenant: is empty; known: language, product, vision",
            "job 'job-8' and 6 more, field tenant: 'visoin' is not in the tenant tree; did you mean 'vision'?",
        ]

    def test_the_first_of_many_are_named_in_the_order_of_numbers(self) -> None:
        rows = jobs(*([("product", 0)] + [("visoin", 0)] * 4)) | {"job_ids": ["a", "job-10", "job-9", "job-11", "job-2"]}
        assert refusal(service_tree, TenantTree.from_dict(TREE), **rows).startswith("jobs 'job-2', 'job-9', 'job-10' and 1 more, ")

    def test_a_tree_for_none_of_the_jobs(self) -> None:
        rows = jobs(*((name, 0) for name in "cbda"))
        assert refusal(service_tree, TenantTree.from_dict(TREE), **rows) == (
            "jobs, field tenant: no job names a tenant in the tree; they name 'a', 'b', 'c', ...; known: language, product, vision"
        )
