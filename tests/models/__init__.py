"""Tests of whole models: what optimize() replaces in them, and what it leaves alone."""
