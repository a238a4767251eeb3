"""Needs a core that does not exist yet."""

raise AssertionError("a plugin that does not admit the running core must not be imported")
