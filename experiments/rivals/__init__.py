"""GANs trained by DP-SGD, run beside our releases on the same rows, with the same classifiers and seeds."""
