"""Ten puzzles in CUDA C++, each a text with a hole; docs/puzzles.md has the questions. Run: python -m examples.puzzles"""
