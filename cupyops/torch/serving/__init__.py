"""Packages of models for processes without Python, or without cupyops: AOTInductor's, with the kernels of operators inside."""
