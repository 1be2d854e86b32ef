"""The library that every other part of ringslice stands on, and its standalone commands."""

__version__ = "0.1.0"
