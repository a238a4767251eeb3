"""One of two distributions that own the plugin name `die`."""

raise AssertionError("a plugin whose name is contested must not be imported")
