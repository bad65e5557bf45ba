"""Promise 7: after a kill at any moment the newest committed checkpoint is whole and verified, the logs read clean."""

import pytest
from storm_runs import Storm


def test_a_run_killed_again_and_again_loses_nothing_and_ends_as_if_it_never_was(tmp_path):
    """Fails if a commit is no single rename, if a save comes before the log's lines, or if rubbish stays."""
    storm = Storm(tmp_path)
    storm.rage(kills=15, longest=0.15)
    assert storm.newest > 12
    storm.end_as_if_it_never_was()


@pytest.mark.storm
def test_a_storm_of_kills(tmp_path, capsys):
    storm = Storm(tmp_path)
    storm.rage(kills=500, longest=0.3, seed=1)
    with capsys.disabled():
        print(f"\nstorm: {storm}")
    assert storm.rubbish > 10
    storm.end_as_if_it_never_was()
