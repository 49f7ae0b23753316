"""What makes a PyTorch operator out of a body."""
