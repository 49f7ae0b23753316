"""Adapters for other projects' tools. Each module needs its tool, and nothing else of this project imports the
module."""
