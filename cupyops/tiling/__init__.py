"""How work is cut among threads: the configurations that kernels are compiled for."""
