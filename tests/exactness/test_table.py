from __future__ import annotations

import pytest

from tests.exactness.families import FAMILIES, Family
from tests.exactness.scenarios import CASES
from tests.exactness.table import PAGE, REASONS, cell, page


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_difference_from_the_template_is_explained(family: Family, case: str) -> None:
    reasons, why = cell(family, case)

    assert reasons
    assert set(reasons) <= set(REASONS)
    assert bool(why) == (reasons[0] in ("refused", "only ours"))


def test_the_page_of_the_docs_says_what_the_code_does() -> None:
    rows = {family.name: {case: cell(family, case) for case in CASES} for family in FAMILIES}

    assert PAGE.read_text(encoding="utf-8") == page(rows), "run: python -m tests.exactness.table"
