"""The checks that `check_op` runs on an operator."""
