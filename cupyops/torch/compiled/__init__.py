"""Operators in the graphs that ``torch.compile`` compiles with Inductor: direct calls of bodies, and repeated launches."""
