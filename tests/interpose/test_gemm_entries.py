"""Names of gemms, and what their arguments are."""

from __future__ import annotations

import pytest

from clgemm.interpose.entries import Entry


@pytest.mark.parametrize(
    ("name", "code", "is_cblas", "wide"),
    [
        ("cblas_sgemm", "s", True, False),
        ("scipy_cblas_dgemm64_", "d", True, True),
        ("cblas_cgemm64_", "c", True, True),
        ("cblas_zgemm_64", "z", True, True),
        ("sgemm_", "s", False, False),
        ("scipy_zgemm_", "z", False, False),
        ("dgemm_64_", "d", False, True),
        ("scipy_cgemm_64_", "c", False, True),
    ],
)
def test_names_tell_precision_form_and_integers(name, code, is_cblas, wide):
    found = Entry.of(name)
    assert (found.precision.code, found.is_cblas, found.wide) == (code, is_cblas, wide)


@pytest.mark.parametrize(
    "name",
    ["sgemm", "cblas_sgemv", "cblas_hgemm", "cgemm3m_", "cblas_cgemm3m", "sgemmt_", "xsgemm_",
     "cblas_sgemm_batch", "dgemm_batch_", "scipy_scipy_dgemm_", "mkl_dgemm_", ""],
)  # fmt: skip
def test_other_names_are_left_alone(name):
    assert Entry.of(name) is None
