"""``python -m cupyops.integrations.kernelbench``: prints the lines for KernelBench's ``prompts.toml``."""

from . import entry

if __name__ == "__main__":
    print(entry(), end="")
