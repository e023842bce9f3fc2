"""Where no candidate of a search was right, defaults are verified like anything else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from helpers import CPU, heard, quiet, square

from clgemm.errors import ClgemmWarning, NoKernelError, TuningError
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS
from clgemm.runtime.programs import Programs
from clgemm.tuning import tuner

S = PRECISIONS["s"]


@pytest.fixture
def parameters(tmp_path, monkeypatch):
    """Parameters of a device on which every search fails."""

    def fail(*_):
        raise TuningError("no candidate was found to be right")

    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setattr(tuner.Parameters, "_search", fail)
    return tuner.Parameters(SimpleNamespace(traits=CPU, programs=Programs(None, CPU)))


@pytest.fixture
def wrong(monkeypatch):
    """Families that a check finds to be wrong; those that were checked are in `seen`."""
    found = SimpleNamespace(families=set(), seen=[])

    def check(_device, _precision, _store, config, _problem):
        found.seen.append(config.family)
        return f"{config}: wrong" if config.family in found.families else ""

    monkeypatch.setattr(tuner.verification, "find_fault", check)
    return found


def test_a_default_that_is_right_is_used(parameters, wrong):
    for n in (100, 200):
        config = quiet(lambda n=n: parameters.config_for(square(n)))
        assert config == BY_NAME["cpu_packed"].default(CPU, S)
    assert wrong.seen == ["cpu_packed"], "once"


def test_a_default_that_is_wrong_is_not_used(parameters, wrong):
    wrong.families = {"cpu_packed"}
    (message,) = heard(lambda: [parameters.config_for(square(n)) for n in (100, 200)])
    assert "cpu_packed" in message
    assert wrong.seen == ["cpu_packed", "direct"]
    assert quiet(lambda: parameters.config_for(square(300))).family == "direct"


def test_where_no_kernel_is_right_there_is_no_result(parameters, wrong):
    wrong.families = {"cpu_packed", "direct"}
    with (
        pytest.warns(ClgemmWarning, match="is not used"),
        pytest.raises(NoKernelError, match="no kernel computes right"),
    ):
        parameters.config_for(square(100))
    with pytest.raises(NoKernelError, match="CLGEMM_ROUTE=host"):
        parameters.config_for(square(200))
