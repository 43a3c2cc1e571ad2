"""The exceptions that the command line turns into one line."""

from prixlm.errors import PrixError, Stopped


def test_an_error_of_the_user_is_its_text() -> None:
    assert str(PrixError("facts.tsv line 3: 2 columns, expected 4.")).startswith("facts.tsv line 3")


def test_a_stopped_run_knows_its_signal_and_is_not_an_error_of_the_user() -> None:
    stop = Stopped("stopped at step 3", 15)
    assert (str(stop), stop.signal) == ("stopped at step 3", 15)
    assert not isinstance(stop, PrixError)
