"""Speed and cost, measured as ratios to a peer in the same run. `make bench` runs them all."""
