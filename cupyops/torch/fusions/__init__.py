"""A backend of ``torch.compile`` that finds operations of PyTorch which an operator of this package computes together."""
