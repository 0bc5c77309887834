"""Every reader of what others wrote, on a few hundred damaged inputs; tests/fuzz/run.py does the same for long."""

import pytest
from fuzz.readers import READERS
from fuzz.run import run

CASES = 400


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_input_is_read_or_refused(name: str) -> None:
    """Success or a typed error, each within fuzz.run.SECONDS, all within fuzz.run.BYTES of memory."""
    result = run(READERS[name], CASES, seed=0)
    assert result.findings == {}
    assert 0 < result.accepted < CASES  # what is made is neither always whole nor always broken
