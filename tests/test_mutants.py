"""The mutants of `python -m tests.mutants`: that each still fits, and in a storm that none survives."""

import pytest
from click.testing import CliRunner
from mutants import MUTANTS, Copy, MisfitError, Mutant, try_all
from mutants.__main__ import main, table
from mutants.running import COPIED, ROOT

DOUBLE = Mutant("doubles one less", "callbacks/it.py", "2 * n", "2 * n - 1", ("test_it.py",))
TEST = "from callbacks.it import double\n\ndef test_it():\n    assert double(3) == {}\n"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_where_it_was_meant_to_be_and_its_tests_are_there(mutant):
    mutant.applied_to((ROOT / mutant.file).read_text(encoding="utf-8"))
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_there_are_many_of_them_and_each_has_a_name_of_its_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 45


@pytest.mark.parametrize(
    ("source", "new", "why"),
    [
        ("return 3 * n", "2 * n - 1", "occurs 0 times"),
        ("return 2 * n + 2 * n", "2 * n - 1", "occurs 2 times"),
        ("n = 2 * n", "2 *", "is no Python"),
        ("n = 2 * n", "2*n", "is the same as without it"),
    ],
)
def test_a_mutant_that_no_longer_fits_is_named(source, new, why):
    with pytest.raises(MisfitError, match=rf"'doubles one less' no longer fits callbacks/it.py: .*{why}"):
        Mutant(DOUBLE.name, DOUBLE.file, DOUBLE.old, new, DOUBLE.tests).applied_to(source)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of a library of one function with its test, to break."""
    root = tmp_path_factory.mktemp("library")
    for folder in COPIED:
        (root / folder).mkdir()
    (root / "callbacks" / "__init__.py").touch()
    (root / "callbacks" / "it.py").write_text("def double(n):\n    return 2 * n\n")
    (root / "tests" / "test_it.py").write_text(TEST.format(6))
    (root / "tests" / "test_wrong.py").write_text(TEST.format(7))
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['storm: x', 'integration: x']\n")
    with Copy(tmp_path_factory.mktemp("copy"), root) as made:
        yield made


def changed(new):
    return Mutant(new, DOUBLE.file, DOUBLE.old, new, DOUBLE.tests)


@pytest.mark.storm
def test_a_fault_is_killed_by_a_test_or_by_the_clock_or_it_survives_and_is_taken_out_again(copy):
    """Fails if the fault is not put in, if it is left in, or if a process that hangs is waited for."""
    copy.require_green(DOUBLE.tests)
    verdicts = [copy.attempt(changed("2 * n - 1")), copy.attempt(changed("n + n"))]
    hung = copy.attempt(changed("2 * n + any(iter(int, 1))"), timeout=2)
    assert [v.word for v in (*verdicts, hung)] == ["killed", "survived", "hung"]
    assert [v.survived for v in (*verdicts, hung)] == [False, True, False]
    assert verdicts[0].by == "test_it.py::test_it"
    assert table(verdicts).splitlines()[3].split()[:-1] == ["n", "+", "n", "callbacks/it.py", "survived"]
    copy.require_green(DOUBLE.tests)


@pytest.mark.storm
def test_nothing_is_tried_while_the_tests_fail_without_a_fault(copy):
    """Fails if the exit code of the run without a mutant is not looked at."""
    with pytest.raises(RuntimeError, match=r"(?s)without any mutant the tests do not pass.*test_wrong"):
        copy.require_green(["test_it.py", "test_wrong.py"])


@pytest.mark.storm
def test_a_fault_that_keeps_the_tests_from_running_is_no_kill(copy):
    """Fails if every exit code but 0 counts as a kill."""
    with pytest.raises(RuntimeError, match="'2 / 0' kept the tests from running"):
        copy.attempt(Mutant("2 / 0", DOUBLE.file, "def double", "2 / 0\n\ndef double", DOUBLE.tests))


def test_the_command_lists_them_and_refuses_a_text_that_names_none():
    run = CliRunner().invoke(main, ["--list", "--only", "patience off by one"])
    assert run.exit_code == 0
    assert "callbacks/early_stopping.py" in run.stdout
    assert "eventloop/" not in run.stdout
    refused = CliRunner().invoke(main, ["--only", "no such fault"])
    assert refused.exit_code == 2
    assert "no mutant has this text" in refused.output


@pytest.mark.storm
def test_no_mutant_survives(tmp_path):
    """Fails if any promise that a mutant breaks is no longer tested."""
    assert [verdict.mutant.name for verdict in try_all(MUTANTS, tmp_path) if verdict.survived] == []
