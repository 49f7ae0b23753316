"""Reads CUDA files with host code, such as PyTorch's extensions, with clang's front end.

- :mod:`.tree` parses a file, and wraps the tree.
- :mod:`.words` pairs each C++ name that host code uses of the standard library, CUDA and PyTorch with its Python
  meaning. :mod:`.standard`, :mod:`.cuda` and :mod:`.tensors` hold the words.
- :mod:`.functions`, :mod:`.statements` and :mod:`.expressions` write the host functions as Python, by the types in the tree.
- :mod:`.slice` takes from the file what its kernels reach, which is the text that NVRTC compiles.
- :mod:`.program` puts them together, and keeps the result on disk.
"""
