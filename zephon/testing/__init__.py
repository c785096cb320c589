"""The conformance kit: what the author of a plug-in runs on a reader or an operator, and what we run on ours."""

from __future__ import annotations

from zephon.testing.formats import SAMPLE_ROWS as SAMPLE_ROWS
from zephon.testing.formats import CountingStore as CountingStore
from zephon.testing.formats import check_format as check_format
from zephon.testing.operators import check_operator as check_operator
