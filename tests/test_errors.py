"""The exceptions that the command line turns into one line."""

from prixlm.errors import PrixError, Stopped, missing_extra


def test_an_error_of_the_user_is_its_text() -> None:
    assert str(PrixError("facts.tsv line 3: 2 columns, expected 4.")).startswith("facts.tsv line 3")


def test_a_stopped_run_knows_its_signal_and_is_not_an_error_of_the_user() -> None:
    stop = Stopped("stopped at step 3", 15)
    assert (str(stop), stop.signal) == ("stopped at step 3", 15)
    assert not isinstance(stop, PrixError)


def test_a_missing_package_of_an_extra_is_named_with_the_command() -> None:
    hint = missing_extra(ModuleNotFoundError("No module named 'torch'", name="torch.nn"))
    assert hint is not None and "pip install 'prixlm[model]'" in hint and "torch" in hint
    assert missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None
