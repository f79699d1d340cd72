"""What the experiments share: configuration, data, progress, results and pictures."""
