"""The version of the core: what plugins declare their range against."""

__version__ = "0.1.0"
