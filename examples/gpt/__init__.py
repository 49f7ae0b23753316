"""The parts of ``python -m examples.char_gpt``: the model, and the text. ``examples.llama`` shares text, optimizer and sampling."""
