"""Linear layers: products, biases, and GELU behind them."""
