"""Step times and latencies against dense networks, side by side."""
