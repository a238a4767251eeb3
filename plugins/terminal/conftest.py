"""The tests of the example tasks run in a sandbox, on what an agent left; not here."""

collect_ignore = ["examples"]
