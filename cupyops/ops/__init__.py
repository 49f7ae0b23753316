"""The shipped operators' bodies, on arrays of any library; nothing here imports PyTorch."""
