"""A short storm: every promise is kept. `make chaos` has a long one."""

import pytest
from tests.chaos.storm import storm
from tests.conftest import DATABASE


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_was_promised_is_kept_under_faults(tmp_path):
    report = storm(tmp_path, 24, 1, postgresql=DATABASE is not None)
    print(report.table())
    assert report.ledger.broken == []
    assert report.ledger.rollouts
    assert report.ledger.evaluations
    assert report.ledger.trained
    assert report.ledger.answers["whole"]
