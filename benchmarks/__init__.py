"""Speed of the operators, compared with PyTorch eager, ``torch.compile``, Triton and a C++ extension, measured in one run.

``python -m benchmarks --help`` says how to run it. An operator's benchmark is a module of its name with
``WORK``, ``cases(sizes)`` and ``host_cases()``. The kernels of its peers are ``peers/<name>.cu`` and
``peers/<name>_triton.py``.
"""
