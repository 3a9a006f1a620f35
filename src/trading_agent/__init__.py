"""The daemon that keeps LLM trading desks in session."""

__version__ = '0.1.0'
