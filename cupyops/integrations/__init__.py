"""Adapters for the tools of others. Each module needs its tool, and nothing else of this project imports the module."""
