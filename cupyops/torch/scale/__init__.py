"""What an operator declares for use beyond one dense tensor: sharding for DTensor, jagged nested tensors, and FLOPs."""
