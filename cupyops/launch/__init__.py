"""From a binary to a checked call: the declaration read, arguments checked, threads counted, the driver asked."""
