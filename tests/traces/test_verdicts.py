"""The verdicts on the public traces are those of an expert, and the table of them is up to date."""

from pathlib import Path

import pytest
from verdicts import EXPERT, table

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse


@pytest.mark.parametrize("name", EXPERT)
def test_the_causes_are_those_of_an_expert(reference, name):
    analysis = analyse(read_trace(reference(name)))
    assert [finding["cause"] for finding in analysis.findings] == EXPERT[name][0]
    if not analysis.findings and analysis.devices:
        assert "kernels ran" in analysis.verdict, "never without saying how busy the GPU was"


def test_the_table_is_up_to_date(reference):
    for name in EXPERT:
        reference(name)
    assert Path(__file__).with_name("verdicts.md").read_text("utf-8") == table()
