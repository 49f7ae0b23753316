"""Declarations of an operator for distributed and nested tensors: sharding for DTensor, jagged nested tensors, and
FLOPs."""
