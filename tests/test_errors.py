"""Error messages name place, field, value found and valid values; one error holds all faults."""

from __future__ import annotations

import pickle

import pytest

import gavel_py as gp
from gavel_py import errors


class TestFault:
    @pytest.mark.parametrize(
        ("fault", "text"),
        [
            (gp.Fault("jobs.csv, line 3", "weight", "must be a number"), "jobs.csv, line 3, field weight: must be a number"),
            (gp.Fault("jobs.csv", "", "is empty"), "jobs.csv: is empty"),
            (gp.Fault("", "weights", "must have 2 entries"), "field weights: must have 2 entries"),
            (gp.Fault("", "", "there are no jobs"), "there are no jobs"),
        ],
    )
    def test_names_its_place_first(self, fault: gp.Fault, text: str) -> None:
        assert str(fault) == text


class TestInputError:
    def test_message_has_one_line_per_fault(self) -> None:
        first, second = gp.Fault("job 'a'", "weight", "is required"), gp.Fault("job 'b'", "num_gpus", "must be at least 1, found 0")
        error = gp.InputError(first, second)
        assert error.faults == (first, second)
        assert str(error) == "job 'a', field weight: is required\njob 'b', field num_gpus: must be at least 1, found 0"

    def test_takes_plain_text(self) -> None:
        error = gp.InputError("there are no jobs")
        assert error.faults == (gp.Fault("", "", "there are no jobs"),)
        assert str(error) == "there are no jobs"

    def test_shows_the_first_twenty_faults_and_counts_the_rest(self) -> None:
        error = gp.InputError(*(gp.Fault(f"job {i}", "", "is wrong") for i in range(23)))
        shown = str(error).splitlines()
        assert shown[:2] == ["job 0: is wrong", "job 1: is wrong"]
        assert shown[19:] == ["job 19: is wrong", "... and 3 more faults of this kind"]
        assert len(error.faults) == 23

    def test_shows_twenty_faults_without_a_remark(self) -> None:
        assert str(gp.InputError(*(gp.Fault(f"job {i}", "", "is wrong") for i in range(20)))).splitlines()[-1] == "job 19: is wrong"

    def test_more_than_four_faults_alike_of_a_field_are_one_line_with_a_count(self) -> None:
        wrong = [gp.Fault(f"line {n}", "weight", f"must be a number, found 'x{n}'") for n in range(2, 40)]
        others = [gp.Fault("line 3", "weight", "must be greater than 0, found '0'"), gp.Fault("line 4", "num_gpus", "is required")]
        error = gp.InputError(*wrong[:20], *others, *wrong[20:])
        assert str(error).splitlines() == [
            "line 2, field weight: must be a number, found 'x2'; so in 37 more, the last line 39",
            "line 3, field weight: must be greater than 0, found '0'",
            "line 4, field num_gpus: is required",
        ]
        assert len(error.faults) == 40, "none is lost"
        assert len(str(gp.InputError(*wrong[:4])).splitlines()) == 4

    def test_raise_any_is_quiet_without_faults(self) -> None:
        gp.InputError.raise_any([])

    def test_raise_any_raises_the_class_it_is_called_on(self) -> None:
        fault = gp.Fault("", "policy", "is not known")
        with pytest.raises(gp.UnknownNameError) as error:
            gp.UnknownNameError.raise_any([fault])
        assert error.value.faults == (fault,)

    def test_pickling_keeps_class_and_faults(self) -> None:
        error = gp.InputError(gp.Fault("job 'a'", "weight", "is required"), "and more")
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(copy), copy.faults, str(copy)) == (gp.InputError, error.faults, str(error))


class TestChecks:
    def test_unknown_names_get_the_nearest_known_one_at_their_own_place(self) -> None:
        found = errors.unknown_names(lambda name: f"line {len(name)}", "", ["weigt", "job"], ["weight", "job"], noun="column")
        assert found == [gp.Fault("line 5", "", "column 'weigt' is not known; did you mean 'weight'?")]

    def test_unknown_fields_are_named_as_fields(self) -> None:
        assert errors.unknown_names("row 1", None, ["weigt"], ["weight"]) == [
            gp.Fault("row 1", "weigt", "is not known; did you mean 'weight'?")
        ]

    def test_an_error_of_a_library_becomes_a_fault_of_its_file(self) -> None:
        with pytest.raises(gp.InputError) as error, errors.faults_from("a.json", "is damaged", KeyError, named=True):
            raise KeyError("jobs")
        assert str(error.value) == "a.json: is damaged: KeyError 'jobs'"

    def test_the_reason_of_the_system_is_told_without_its_number(self) -> None:
        with pytest.raises(gp.InputError) as error, errors.faults_from("a.json", "cannot be read", OSError):
            raise FileNotFoundError(2, "No such file or directory", "a.json")
        assert str(error.value) == "a.json: cannot be read: No such file or directory"

    def test_errors_of_gavel_py_pass_unchanged(self) -> None:
        with pytest.raises(gp.UnknownNameError, match="there is none"), errors.faults_from("a.json", "is damaged", ValueError):
            raise gp.UnknownNameError("there is none")

    def test_all_contradictions_of_a_record_are_told_at_once(self) -> None:
        fields = {"total_steps": 1, "duration_seconds": 2, "deadline_seconds": 3, "deadline_factor": 4}
        with pytest.raises(gp.InputError) as error:
            gp.Job("a", **fields)
        assert [fault.problem.partition(";")[0] for fault in error.value.faults] == [
            "total_steps and duration_seconds are both given",
            "duration_seconds and duration_accelerator must be given together",
            "deadline_seconds and deadline_factor are both given",
        ]


class TestTogether:
    def test_collects_the_faults_of_all_checks_in_one_error(self) -> None:
        first, second, third = (gp.Fault(f"job {i}", "", "is wrong") for i in range(3))
        checks = [lambda: gp.InputError.raise_any([first, second]), lambda: 7, lambda: gp.UnknownNameError.raise_any([third])]
        results: list[object] = []
        with pytest.raises(gp.InputError) as error, gp.errors.together() as attempt:
            results.extend(attempt(check) for check in checks)
        assert error.value.faults == (first, second, third)
        assert results == [None, 7, None]

    def test_returns_the_result_of_a_check_that_passes(self) -> None:
        with gp.errors.together() as attempt:
            assert attempt(lambda: 7) == 7

    def test_other_errors_propagate_at_once(self) -> None:
        with pytest.raises(ZeroDivisionError), gp.errors.together() as attempt:
            attempt(lambda: 1 / 0)


class TestTree:
    @pytest.mark.parametrize(
        ("error", "builtin"),
        [
            (gp.InputError, ValueError),
            (gp.UnknownNameError, LookupError),
            (gp.UnknownNameError, gp.InputError),
            (gp.MissingThroughputError, LookupError),
            (gp.MissingThroughputError, gp.InputError),
            (gp.SolverError, RuntimeError),
            (gp.ProofError, gp.SolverError),
            (gp.PolicyContractError, AssertionError),
        ],
    )
    def test_each_error_derives_from_the_builtin_a_caller_expects(self, error: type[Exception], builtin: type[Exception]) -> None:
        assert issubclass(error, builtin)

    def test_all_errors_have_one_root(self) -> None:
        public = [getattr(errors, name) for name in errors.__all__]
        found = [kind for kind in public if isinstance(kind, type) and issubclass(kind, Exception)]
        assert [kind for kind in found if not issubclass(kind, gp.GavelError)] == [gp.GavelWarning]

    def test_a_failure_at_run_time_is_not_an_input_error(self) -> None:
        assert not issubclass(gp.SolverError, gp.InputError)

    def test_the_warning_can_be_filtered_as_a_user_warning(self) -> None:
        assert issubclass(gp.GavelWarning, UserWarning)


class TestNearest:
    @pytest.mark.parametrize(
        ("name", "known", "text"),
        [
            pytest.param("num_gpu", ["num_gpus", "weight"], "; did you mean 'num_gpus'?", id="one close name"),
            pytest.param("price", ["name", "price_per_hour"], "; did you mean 'price_per_hour'?", id="beginning of a name"),
            pytest.param("pr", ["name", "price_per_hour"], "; known: name, price_per_hour", id="too short for a beginning"),
            pytest.param("v10", ["v100", "k80", "v1"], "; did you mean 'v100' or 'v1'?", id="closest first"),
            pytest.param("colour", ["weight", "tenant"], "; known: weight, tenant", id="none close"),
            pytest.param("", ["weight"], "; known: weight", id="empty name"),
            pytest.param("colour", ["weight", "weight"], "; known: weight", id="repeated names once"),
            pytest.param("colour", [], "; there are none", id="nothing known"),
        ],
    )
    def test_suggests_or_lists(self, name: str, known: list[str], text: str) -> None:
        assert gp.errors.nearest(name, known) == text

    def test_suggests_three_at_most(self) -> None:
        assert gp.errors.nearest("aaaa", ["aaab", "aaac", "aaad", "aaae"]).count(" or ") == 2

    def test_lists_twelve_names_and_counts_all(self) -> None:
        listed = ", ".join(f"n{i}" for i in range(12))
        assert gp.errors.nearest("x", [f"n{i}" for i in range(12)]) == f"; known: {listed}"
        assert gp.errors.nearest("x", [f"n{i}" for i in range(13)]) == f"; known: {listed}, ... (13 in total)"
