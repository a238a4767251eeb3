"""Cannot be imported: what it needs was not installed."""

import a_module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401  the test: a broken import
