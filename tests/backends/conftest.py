"""A test that is run again measures again."""

import pytest
from processes import forget


@pytest.fixture(autouse=True)
def measured_anew(request):
    """What failed the test the first time is no use to its second try."""
    if getattr(request.node, "execution_count", 1) > 1:
        forget()
