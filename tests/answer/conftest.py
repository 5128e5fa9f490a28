"""The diagnoses made by hand that reports are tested on."""

from tests.reports.conftest import any_form, forms

__all__ = ["any_form", "forms"]
