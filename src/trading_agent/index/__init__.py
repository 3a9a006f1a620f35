"""Copies of what was said, derived from the JSONL files for search: always rebuildable, never the truth."""
