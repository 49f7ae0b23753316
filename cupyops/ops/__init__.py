"""The shipped operators on arrays of any library. No module of this package imports PyTorch."""
