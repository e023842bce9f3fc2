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
    ["sgemm", "cblas_hgemm", "sherk_", "cblas_dhemm", "sgemm3m_", "cblas_sdot", "xsgemm_",
     "cblas_sgemm_batch", "dgemm_batch_", "scipy_scipy_dgemm_", "mkl_dgemm_", ""],
)  # fmt: skip
def test_other_names_are_left_alone(name):
    assert Entry.of(name) is None


@pytest.mark.parametrize(
    ("name", "routine"),
    [
        ("scipy_cblas_sgemv64_", "gemv"), ("cblas_zhemm", "hemm"), ("strmm_", "trmm"),
        ("scipy_cher2k_", "her2k"), ("cblas_dsyr2k_64", "syr2k"), ("strsm_64_", "trsm"),
    ],
)  # fmt: skip
def test_other_routines_are_counted(name, routine):
    found = Entry.of(name)
    assert (found.routine, found.is_computed) == (routine, False)


@pytest.mark.parametrize(
    ("name", "routine", "extents"),
    [
        ("cblas_sgemm", "gemm", (3, 4, 5)), ("zgemm_", "gemm", (2, 3, 4)),
        ("cblas_cgemm3m", "gemm3m", (3, 4, 5)), ("scipy_zgemm3m_64_", "gemm3m", (2, 3, 4)),
        ("scipy_cblas_dsyrk64_", "syrk", (3, 3, 4)), ("ssyrk_", "syrk", (2, 2, 3)),
        ("cblas_zherk", "herk", (3, 3, 4)), ("cherk_", "herk", (2, 2, 3)),
        ("cblas_dgemmt", "gemmt", (4, 4, 5)), ("sgemmt_", "gemmt", (3, 3, 4)),
    ],
)  # fmt: skip
def test_what_is_computed_has_its_extents_in_registers(name, routine, extents):
    found = Entry.of(name)
    assert (found.routine, found.is_computed, found.extents) == (routine, True, extents)
