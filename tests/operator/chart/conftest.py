"""What Helm says about values that the chart does not take."""

import pytest


@pytest.fixture
def refusal(helm):
    """refusal("replica=2"): what Helm says about values that it does not take."""

    def said(*values):
        done = helm(*values)
        assert done.returncode != 0, done.stdout
        return done.stderr

    return said
