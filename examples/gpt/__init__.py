"""The parts of ``python -m examples.char_gpt``: text, model, options, steps, runs, and a comparison of speeds."""
