"""The parts of ``python -m examples.char_gpt``: the model, and the text that the model learns."""
