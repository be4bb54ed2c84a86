import pytest

from clawrl.loss import predictors


def test_a_token_is_predicted_by_the_position_before_it() -> None:
    assert predictors(3, 6).tolist() == [2, 3, 4]


def test_the_first_token_of_a_row_has_no_predictor() -> None:
    with pytest.raises(ValueError, match="no predictor"):
        predictors(0, 4)
